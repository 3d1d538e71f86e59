"""The signed wire format, with jupyter_client's own Session as the other side."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jupyter_client.session import Session

from cellgate_kernels.protocol.messages import (
    DELIMITER,
    EMPTY,
    Channel,
    Header,
    MalformedMessage,
    Message,
    Signer,
    TooComplex,
    new_message,
)
from tests.support.examples import examples

KEY = b"4f2a9c1e-a-secret-of-one-kernel"

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)
contents = st.dictionaries(st.text(), json_values, max_size=4)


def jupyter_session() -> Session:
    return Session(key=KEY, signature_scheme="hmac-sha256")


def signed(header: bytes = b'{"msg_id":"m"}', parent: bytes = EMPTY, content: bytes = EMPTY) -> list[bytes]:
    message = Message(Channel.IOPUB, header, parent, EMPTY, content, (), Header(), Header())
    return Signer(KEY).serialize(message)


def with_content(frame: bytes) -> Message:
    return Message(Channel.IOPUB, EMPTY, EMPTY, EMPTY, frame, (), Header("m", "stream"), Header())


@examples(50)
@given(content=contents, metadata=contents, buffers=st.lists(st.binary(), max_size=2))
def test_parse_reads_what_jupyter_client_signs(
    content: dict[str, Any], metadata: dict[str, Any], buffers: list[bytes]
) -> None:
    session = jupyter_session()
    parent = session.msg_header("execute_request")
    sent = session.msg("stream", content, parent=parent, metadata=metadata)
    frames = [b"topic", *session.serialize(sent), *buffers]

    message = Signer(KEY).parse(Channel.IOPUB, frames)

    assert message.header == Header(sent["header"]["msg_id"], "stream")
    assert message.parent == Header(parent["msg_id"], "execute_request")
    assert message.content() == content
    assert message.buffers == tuple(buffers)


@examples(50)
@given(content=contents)
def test_jupyter_client_reads_what_we_sign(content: dict[str, Any]) -> None:
    message = new_message(Channel.SHELL, "execute_request", content, session="s", msg_id="m")

    _, frames = jupyter_session().feed_identities(Signer(KEY).serialize(message))
    received = jupyter_session().deserialize(frames)

    assert received["content"] == content
    assert received["header"]["msg_id"] == "m"
    assert received["header"]["session"] == "s"
    assert received["msg_type"] == "execute_request"


def test_new_messages_have_ids_of_their_own() -> None:
    first, second = (new_message(Channel.SHELL, "kernel_info_request", {}, session="s") for _ in range(2))

    assert first.header.msg_id
    assert first.header.msg_id != second.header.msg_id


@examples()
@given(data=st.data())
def test_one_changed_byte_breaks_the_signature(data: st.DataObject) -> None:
    frames = signed(parent=b'{"msg_id":"p"}', content=b'{"text":"hello"}')
    part = data.draw(st.integers(1, 5))
    position = data.draw(st.integers(0, len(frames[part]) - 1))
    change = data.draw(st.integers(1, 255))
    changed = bytearray(frames[part])
    changed[position] ^= change
    frames[part] = bytes(changed)

    with pytest.raises(MalformedMessage, match="wrong signature"):
        Signer(KEY).parse(Channel.IOPUB, frames)


def test_another_kernels_key_is_refused() -> None:
    with pytest.raises(MalformedMessage, match="wrong signature"):
        Signer(b"another").parse(Channel.IOPUB, signed())


@pytest.mark.parametrize("count", range(6))
def test_short_messages_are_refused(count: int) -> None:
    """Whatever is missing at the end, and the delimiter itself, is a malformed message."""
    with pytest.raises(MalformedMessage):
        Signer(KEY).parse(Channel.IOPUB, [b"topic", *signed()[:count]])


def test_frames_without_a_delimiter_are_refused() -> None:
    with pytest.raises(MalformedMessage, match="no delimiter"):
        Signer(KEY).parse(Channel.IOPUB, [frame for frame in signed() if frame != DELIMITER])


def test_long_contents_are_not_mended() -> None:
    """That takes long, in one piece, and nobody else runs meanwhile."""
    start, end = b'{"text":"', b'"}'
    for size, readable in ((4_000_000, True), (9_000_000, False)):
        message = with_content(start + b"\xff" * size + end)
        if readable:
            assert message.content()["text"] == "\ufffd" * size
        else:
            with pytest.raises(TooComplex):
                message.content()
    assert with_content(start + b"x" * 9_000_000 + end).content()["text"] == "x" * 9_000_000


@pytest.mark.parametrize("header", [b"", b"{", b"[]", b"null", b'{"msg_id":1}', b'{"msg_id":"\xff"}'])
def test_a_signed_header_that_is_no_header_is_refused(header: bytes) -> None:
    with pytest.raises(MalformedMessage, match="unreadable header"):
        Signer(KEY).parse(Channel.IOPUB, signed(header=header))
    with pytest.raises(MalformedMessage, match="unreadable header"):
        Signer(KEY).parse(Channel.IOPUB, signed(parent=header))


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (b'{"text": "caf\xc3\xa9"}', "café"),
        (b'{"text": "a\x80b"}', "a\ufffdb"),
        (b'{"text": "a\\ud800b"}', "a?b"),
        (b'{"text": "\\ud83d\\ude00 \\udc80"}', "\U0001f600 ?"),
        (b'{"text": NaN}', "NaN"),
        (b'{"text": -Infinity}', "-Infinity"),
    ],
)
def test_one_bad_character_does_not_lose_the_content(frame: bytes, text: str) -> None:
    assert with_content(frame).content() == {"text": text}


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"{",
        b"[1]",
        b'"text"',
        b"\xff\xfe",
        b'{"n": 1e999}',
        b'{"n": ' + b"9" * 5000 + b"}",
        b'{"deep": ' + b"[" * 100_000,
    ],
    ids=lambda frame: repr(frame[:12]),
)
def test_content_that_is_no_json_object_is_refused(frame: bytes) -> None:
    with pytest.raises(MalformedMessage, match="content of stream"):
        with_content(frame).content()
