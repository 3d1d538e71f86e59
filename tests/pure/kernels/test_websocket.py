"""The frames of a client's WebSocket: bytes made by hand, shapes real clients send, and broken ones."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from jupyter_client.session import Session

from cellgate_kernels.codec.structure import MOST_PASSED_OVER
from cellgate_kernels.protocol import websocket
from cellgate_kernels.protocol.messages import EMPTY, Channel, Header, MalformedMessage, Message, Signer
from cellgate_kernels.protocol.websocket import MAX_BUFFERS, Subprotocol, decode, negotiate
from tests.support.examples import examples

KEY = b"4f2a9c1e-a-secret-of-one-kernel"
JSON, V1 = Subprotocol.JSON, Subprotocol.V1
CLIENT_CHANNELS = (Channel.SHELL, Channel.CONTROL, Channel.STDIN)
HEADER: dict[str, Any] = {"msg_id": "m-1", "msg_type": "execute_request", "session": "s", "version": "5.3"}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=6,
).filter(lambda value: "Infinity" not in json.dumps(value))
objects = st.builds(
    lambda value, ascii_only: json.dumps(value, ensure_ascii=ascii_only).encode(),
    st.dictionaries(st.text(), json_values, max_size=3),
    st.booleans(),
)


def frames(message: Message) -> tuple[bytes, ...]:
    return (
        message.header_frame,
        message.parent_frame,
        message.metadata_frame,
        message.content_frame,
        *message.buffers,
    )


def encode(message: Message, subprotocol: Subprotocol) -> tuple[bytes, bool]:
    """The whole payload, and whether it is binary."""
    parts, is_binary = websocket.encode(message, subprotocol)
    return b"".join(parts), is_binary


def stream(content: bytes = b'{"name":"stdout","text":"hi"}', *buffers: bytes) -> Message:
    header = Header("m-1", "stream")
    return Message(
        Channel.IOPUB,
        b'{"msg_id": "m-1", "msg_type": "stream"}',
        b'{"msg_id":"p-1"}',
        b"{}",
        content,
        buffers,
        header,
        Header("p-1"),
    )


def from_client(**fields: Any) -> dict[str, Any]:
    return {"header": HEADER, "parent_header": {}, "metadata": {}, "content": {}, "channel": "shell"} | fields


def decode_text(message: Any) -> Message:
    return decode(message if isinstance(message, str) else json.dumps(message), JSON, is_binary=False)


def legacy(count: int, *offsets: int, rest: bytes = b"") -> bytes:
    return struct.pack(f">{len(offsets) + 1}I", count, *offsets) + rest


def v1(*parts: bytes, shift: int = 0) -> bytes:
    """A v1 frame of `parts`; every offset after the first is `shift` bytes too far."""
    start = 8 * (len(parts) + 2)
    ends = [start + sum(map(len, parts[: index + 1])) + shift for index in range(len(parts))]
    return struct.pack(f"<{len(parts) + 2}Q", len(parts) + 1, start, *ends) + b"".join(parts)


def v1_request(
    channel: bytes = b"shell",
    header: bytes = json.dumps(HEADER).encode(),
    parent: bytes = EMPTY,
    metadata: bytes = EMPTY,
    content: bytes = EMPTY,
) -> bytes:
    return v1(channel, header, parent, metadata, content)


def as_the_kernel_reads(message: Message) -> dict[str, Any]:
    """The message as a kernel unpacks it: ipykernel 7 without its content first. Warnings are errors here."""
    session = Session(key=KEY, signature_scheme="hmac-sha256")
    _, parts = session.feed_identities(Signer(KEY).serialize(message))
    session.deserialize(parts, content=False)
    return session.deserialize(parts)


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        ([], JSON),
        (["v1.kernel.websocket.jupyter.org"], V1),
        (["some.other", "v1.kernel.websocket.jupyter.org"], V1),
        (["v2.kernel.websocket.jupyter.org", ""], JSON),
    ],
)
def test_v1_is_selected_only_when_offered(offered: list[str], selected: Subprotocol) -> None:
    assert negotiate(offered) is selected


def test_a_text_frame_holds_the_kernels_own_bytes() -> None:
    payload, is_binary = encode(stream(b'{"text" :"\\u00e9 \xc3\xa9"}'), JSON)

    assert not is_binary
    assert payload == (
        b'{"header":{"msg_id": "m-1", "msg_type": "stream"},"msg_id":"m-1","msg_type":"stream",'
        b'"parent_header":{"msg_id":"p-1"},"metadata":{},"content":{"text" :"\\u00e9 \xc3\xa9"},'
        b'"buffers":[],"channel":"iopub"}'
    )


def test_buffers_make_a_legacy_message_binary() -> None:
    text, _ = encode(stream(), JSON)

    payload, is_binary = encode(stream(b'{"name":"stdout","text":"hi"}', b"abc", b"", b"\xff"), JSON)

    end = 20 + len(text)
    assert is_binary
    assert payload == legacy(4, 20, end, end + 3, end + 3, rest=text + b"abc\xff")


def test_v1_has_offsets_of_all_parts_and_of_the_end() -> None:
    header = b'{"msg_id": "m-1", "msg_type": "stream"}'

    payload, is_binary = encode(stream(b'{"a":1}', b"abc", b""), V1)

    assert is_binary
    assert payload == (
        struct.pack("<9Q", 8, 72, 77, 116, 132, 134, 141, 144, 144)
        + b"iopub"
        + header
        + b'{"msg_id":"p-1"}{}{"a":1}abc'
    )


def test_ids_are_escaped_in_a_text_frame() -> None:
    header = Header('a"\\\n\u2028é', "stream")
    message = Message(Channel.IOPUB, EMPTY, EMPTY, EMPTY, EMPTY, (), header, Header())

    payload, _ = encode(message, JSON)

    assert json.loads(payload)["msg_id"] == header.msg_id


@pytest.mark.parametrize("buffers", [(), (b"abc",)])
def test_invalid_utf8_of_a_kernel_is_replaced_in_legacy_frames(buffers: tuple[bytes, ...]) -> None:
    """A browser closes the socket at a text frame that is not UTF-8; output is not lost for one byte."""
    payload, is_binary = encode(stream(b'{"text":"a\x80b\xe2\x82"}', *buffers), JSON)

    text = payload[12 : len(payload) - 3] if is_binary else payload
    assert json.loads(text.decode())["content"] == {"text": "a\ufffdb\ufffd"}


def test_v1_relays_invalid_utf8_untouched() -> None:
    payload, _ = encode(stream(b'{"text":"a\x80b"}'), V1)

    assert payload.endswith(b'{"text":"a\x80b"}')


@examples(60)
@given(
    channel=st.sampled_from(CLIENT_CHANNELS),
    parent=objects,
    metadata=objects,
    content=objects,
    buffers=st.lists(st.binary(max_size=9), max_size=3).map(tuple),
    msg_id=st.text(min_size=1),
    subprotocol=st.sampled_from(Subprotocol),
)
@example(Channel.SHELL, EMPTY, EMPTY, EMPTY, (b"", b""), "m", JSON)
def test_what_is_encoded_is_decoded_to_the_same_frames(
    channel: Channel,
    parent: bytes,
    metadata: bytes,
    content: bytes,
    buffers: tuple[bytes, ...],
    msg_id: str,
    subprotocol: Subprotocol,
) -> None:
    header = json.dumps(HEADER | {"msg_id": msg_id}).encode()
    parent = b'{"msg_id":"p","more":' + parent + b"}"
    sent = Message(
        channel, header, parent, metadata, content, buffers, Header(msg_id, "execute_request"), Header("p")
    )

    payload, is_binary = encode(sent, subprotocol)
    received = decode(payload, subprotocol, is_binary=is_binary)

    assert frames(received) == frames(sent)
    assert (received.channel, received.header, received.parent) == (sent.channel, sent.header, sent.parent)


EXECUTE = {"code": "1+1", "silent": False, "store_history": True, "user_expressions": {}}
CLIENTS: dict[str, dict[str, Any]] = {
    "autogen": {
        "header": {
            "msg_id": "8e6ab5",
            "msg_type": "execute_request",
            "username": "autogen",
            "session": "f3b2",
            "date": "2026-11-21T10:00:00.123456",
            "version": "5.0",
        },
        "parent_header": {},
        "channel": "shell",
        "content": EXECUTE | {"allow_stdin": False, "stop_on_error": True},
        "metadata": {},
        "buffers": {},
    },
    "smolagents": {
        "header": {
            "msg_id": "1f",
            "username": "anonymous",
            "session": "2f",
            "msg_type": "execute_request",
            "version": "5.0",
        },
        "parent_header": {},
        "metadata": {},
        "content": EXECUTE | {"allow_stdin": False},
    },
    "openhands": {
        "header": {
            "username": "",
            "version": "5.0",
            "session": "",
            "msg_id": "3f",
            "msg_type": "execute_request",
        },
        "parent_header": {},
        "channel": "shell",
        "content": EXECUTE | {"store_history": False},
        "metadata": {},
        "buffers": {},
    },
    "open-webui": {
        "header": {
            "msg_id": "4f",
            "msg_type": "execute_request",
            "username": "user",
            "session": "5f",
            "date": "",
            "version": "5.3",
        },
        "parent_header": {},
        "metadata": {},
        "content": EXECUTE | {"allow_stdin": False, "stop_on_error": True},
        "channel": "shell",
    },
    "jupyterlab": {
        "buffers": [],
        "channel": "control",
        "content": {"command": "initialize", "type": "request", "seq": 1, "arguments": {}},
        "header": {
            "date": "2026-11-21T10:00:00.123Z",
            "msg_id": "6f",
            "msg_type": "debug_request",
            "session": "7f",
            "username": "",
            "version": "5.2",
            "subshell_id": None,
        },
        "metadata": {"cellId": "c"},
        "parent_header": {},
    },
}


@pytest.mark.parametrize("client", CLIENTS)
def test_what_each_client_sends_reaches_the_kernel(client: str) -> None:
    """As the clients themselves build it: no channel, no date, a naive one or '', buffers as an object."""
    sent = CLIENTS[client]

    received = decode_text(sent)
    read = as_the_kernel_reads(received)

    assert received.channel == sent.get("channel", "shell")
    assert received.header == Header(sent["header"]["msg_id"], sent["header"]["msg_type"])
    assert received.buffers == ()
    assert (read["content"], read["metadata"]) == (sent["content"], sent["metadata"])
    assert read["header"]["session"] == sent["header"]["session"]


@pytest.mark.parametrize("name", ["parent_header", "metadata", "content", "channel", "buffers"])
def test_a_part_may_be_missing(name: str) -> None:
    message = from_client(buffers=[])
    del message[name]

    assert frames(decode_text(message))[1:] == (EMPTY, EMPTY, EMPTY)
    assert decode_text(message).channel is Channel.SHELL


@pytest.mark.parametrize("name", ["parent_header", "metadata", "content", "channel", "buffers"])
def test_a_part_may_be_null(name: str) -> None:
    assert frames(decode_text(from_client(**{name: None})))[1:] == (EMPTY, EMPTY, EMPTY)
    assert decode_text(from_client(**{name: None})).channel is Channel.SHELL


def test_unknown_fields_pass() -> None:
    header = HEADER | {"subshell_id": "x", "more": [1]}

    received = decode_text(from_client(header=header, msg_id="m-1", msg_type="execute_request", more={}))

    assert json.loads(received.header_frame) == header


def test_a_usable_header_is_relayed_byte_by_byte() -> None:
    header = '{ "msg_type":"t", "msg_id" :"m","n":1.0e2, "version":"5.3", "date":"2026-11-21T10:00:00+01:00"}'

    assert decode_text(f'{{"header":{header}}}').header_frame == header.encode()
    assert decode(v1_request(header=header.encode()), V1, is_binary=True).header_frame == header.encode()


@pytest.mark.parametrize(
    "date", ["", None, "yesterday", "2026-11-21", "2026-11-21T10:00:00", "2026-13-41T30:00:00Z"]
)
@pytest.mark.parametrize("version", ["5.3", "5", "10.0", "", None, 5, "five", "4.1", "3.0", "5x", "9" * 5000])
def test_the_kernel_can_read_any_date_and_version(date: Any, version: Any) -> None:
    """A kernel drops a message whose header it can't read, so a client would wait for ever."""
    content = {"code": "a.", "cursor_pos": 2, "line": "a."}
    header = {"msg_id": "m", "msg_type": "complete_request", "date": date, "version": version, "kept": [1]}

    read = as_the_kernel_reads(decode_text(from_client(header=header, content=content)))

    assert (read["header"]["msg_id"], read["header"]["kept"]) == ("m", [1])
    assert read["content"]["code"] == "a."


@examples(60)
@given(
    date=st.from_regex(
        r"\A[0-9]{4}-[0-3][0-9]-[0-3][0-9]T[0-2][0-9]:[0-6][0-9]:[0-6][0-9](\.[0-9]{1,7})?"
        r"(Z|[+-][0-2][0-9]:?[0-9]{2})?\Z"
    )
    | st.text()
)
@example("2026-11-21T10:00:00-0060")
@example("2026-12-31T23:59:60Z")
def test_no_date_stops_a_message(date: str) -> None:
    header = HEADER | {"date": date}

    assert as_the_kernel_reads(decode_text(from_client(header=header)))["msg_id"] == "m-1"


@pytest.mark.parametrize("version", [{}, {"version": "4.1"}])
def test_nothing_is_taken_for_protocol_4(version: dict[str, str]) -> None:
    header = {"msg_id": "m", "msg_type": "complete_request"} | version
    content = {"code": "a.", "cursor_pos": 2}

    assert as_the_kernel_reads(decode_text(from_client(header=header, content=content)))["content"] == content


def test_a_legacy_binary_frame_is_cut_at_its_offsets() -> None:
    text = json.dumps(from_client(buffers={"0": 1})).encode()
    end = 16 + len(text)

    received = decode(legacy(3, 16, end, end + 2, rest=text + b"abcde"), JSON, is_binary=True)

    assert received.buffers == (b"ab", b"cde")
    assert received.header == Header("m-1", "execute_request")


def test_a_v1_frame_is_cut_at_its_offsets() -> None:
    header = json.dumps(HEADER).encode()

    received = decode(
        v1(b"control", header, b'{"msg_id":"p"}', b'{"m":1}', b'{"c":2}', b"ab", b"cde"), V1, is_binary=True
    )

    assert frames(received) == (header, b'{"msg_id":"p"}', b'{"m":1}', b'{"c":2}', b"ab", b"cde")
    assert (received.channel, received.parent) == (Channel.CONTROL, Header("p"))


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        ("", "the frame can't be read"),
        ("{", "the frame can't be read"),
        ("[]", "Expected `object`, got `array`"),
        ("{}", "missing required field `header`"),
        (b"\xff", "can't decode byte 0xff"),
        (b'{"header":{"msg_id":"m","msg_type":"t"},"content":{"a":"\xff"}}', "can't decode byte 0xff"),
        ("\ud800", "not UTF-8"),
        (from_client(header=None), "header can't be read"),
        (from_client(header=[]), "header can't be read"),
        (from_client(header={"msg_type": "t"}), "missing required field `msg_id`"),
        (from_client(header={"msg_id": "m"}), "missing required field `msg_type`"),
        (from_client(header={"msg_id": "", "msg_type": "t"}), r"length >= 1 - at `\$.msg_id`"),
        (from_client(header={"msg_id": "m", "msg_type": ""}), r"length >= 1 - at `\$.msg_type`"),
        (from_client(header={"msg_id": 1, "msg_type": "t"}), r"got `int` - at `\$.msg_id`"),
        (from_client(header={"msg_id": "m", "msg_type": None}), r"got `null` - at `\$.msg_type`"),
        (from_client(channel="iopub"), "can't send on channel 'iopub', only on shell, control, stdin"),
        (from_client(channel="hb"), "can't send on channel 'hb'"),
        (from_client(channel=""), "can't send on channel ''"),
        (from_client(channel=1), r"at `\$.channel`"),
        (from_client(channel="x" * 9999), "can't send on channel 'x{40}',"),
        (from_client(content=[1]), "content is not a JSON object"),
        (from_client(metadata="text"), "metadata is not a JSON object"),
        (from_client(parent_header=7), "parent_header is not a JSON object"),
        (from_client(parent_header={"msg_id": 7}), "parent_header can't be read"),
        (from_client(buffers=["abc"]), "buffers can't be sent in a text frame"),
        (from_client(buffers={"0": 1}), "buffers can't be sent in a text frame"),
        (from_client(buffers="abc"), "buffers can't be sent in a text frame"),
        ('{"header":{"msg_id":"m","msg_type":"t"},"content":{"a":NaN}}', "malformed"),
        ('{"header":{"msg_id":"m","msg_type":"t"},"content":{"a":01}}', "malformed"),
        ('{"header":{"msg_id":"m","msg_type":"t"},"content":{"a":"\\q"}}', "malformed"),
        ('{"header":{"msg_id":"m","msg_type":"t"},"content":{"a":' + "[" * 100_000, "nested too deep"),
        ('{"header":{"msg_id":"m","msg_type":"t","date":' + "[" * 100_000, "nested too deep"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_text_frame_that_is_no_message_is_refused(payload: Any, says: str) -> None:
    text = payload if isinstance(payload, (str, bytes)) else json.dumps(payload)

    with pytest.raises(MalformedMessage, match=says) as caught:
        decode(text, JSON, is_binary=False)

    assert caught.value.reason == "malformed_message"


MANY = b"[" + b"1," * MOST_PASSED_OVER + b"1]"


@pytest.mark.parametrize("place", ["header", "parent_header", "metadata", "content", "buffers", "other"])
def test_a_text_frame_of_very_many_parts_is_refused(place: str) -> None:
    """Checking that it is JSON would keep everybody waiting."""
    payload = json.dumps(from_client(**{place: "HERE"})).encode().replace(b'"HERE"', MANY)
    with pytest.raises(MalformedMessage, match="the frame has more than 8000000 lists"):
        decode(payload, JSON, is_binary=False)


@pytest.mark.parametrize("place", ["header", "parent", "metadata", "content"])
def test_a_v1_part_of_very_many_parts_is_refused(place: str) -> None:
    with pytest.raises(MalformedMessage, match="has more than 8000000 lists"):
        decode(v1_request(**{place: MANY}), V1, is_binary=True)


@pytest.mark.parametrize("text", [b"a" * 2_000_000, "\u20ac".encode() * 1_000_000, b"1,[{" * 3_000_000])
def test_a_large_text_is_read_from_whatever_holds_it(text: bytes) -> None:
    payload = json.dumps(from_client(content={"code": "HERE"})).encode().replace(b"HERE", text)
    message = decode(bytearray(payload), JSON, is_binary=False)
    assert frames(message) == frames(decode(payload, JSON, is_binary=False))
    assert type(message.content_frame) is bytes
    assert text in message.content_frame
    binary = v1(b"shell", json.dumps(HEADER).encode(), EMPTY, EMPTY, message.content_frame, b"a", b"b")
    received = decode(bytearray(binary), V1, is_binary=True)
    assert frames(received) == frames(decode(binary, V1, is_binary=True))
    assert received.buffers == (b"a", b"b")
    assert {type(frame) for frame in (*frames(received), *received.buffers)} == {bytes}


def test_a_large_text_that_is_not_utf8_is_refused() -> None:
    payload = json.dumps(from_client(content={"code": "HERE"})).encode().replace(b"HERE", b"\xff" * 2_000_000)
    with pytest.raises(MalformedMessage, match="can't decode byte 0xff"):
        decode(bytearray(payload), JSON, is_binary=False)


REQUEST = json.dumps(from_client()).encode()


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "no offset count"),
        (b"\0\0\0", "no offset count"),
        (legacy(0), "^0 offsets;"),
        (legacy(0xFFFFFFFF), "^4294967295 offsets;"),
        (legacy(MAX_BUFFERS + 2), f"^{MAX_BUFFERS + 2} offsets;"),
        (legacy(2, 12), "too short for 2 offsets"),
        (legacy(1, 8), "the JSON part can't be read"),
        (legacy(1, 7, rest=REQUEST), "offsets must ascend from 8"),
        (legacy(1, 0, rest=REQUEST), "offsets must ascend"),
        (legacy(1, 0xFFFFFFF8, rest=REQUEST), "offsets must ascend"),
        (legacy(2, 20, 12, rest=REQUEST), "offsets must ascend"),
        (legacy(2, 12, 13 + len(REQUEST), rest=REQUEST), "offsets must ascend"),
        (legacy(1, 8, rest=REQUEST[:-1]), "the JSON part can't be read"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_a_broken_legacy_binary_frame_is_refused(payload: bytes, says: str) -> None:
    with pytest.raises(MalformedMessage, match=says):
        decode(payload, JSON, is_binary=True)


@pytest.mark.parametrize(
    ("payload", "says"),
    [
        (b"", "no offset count"),
        (b"\6" + bytes(6), "no offset count"),
        (bytes(8), "^0 offsets;"),
        (b"\xff" * 8, "^18446744073709551615 offsets;"),
        (v1(b"shell", EMPTY, EMPTY, EMPTY), "^5 offsets;"),
        (struct.pack("<2Q", 6, 56), "too short for 6 offsets"),
        (v1_request()[:-1], "offsets must ascend"),
        (v1_request() + b"x", "offsets must ascend"),
        (v1(b"shell", EMPTY, EMPTY, EMPTY, EMPTY, shift=1), "offsets must ascend"),
        (v1(b"shell", EMPTY, EMPTY, EMPTY, EMPTY, shift=-20), "offsets must ascend"),
        (struct.pack("<7Q", 6, *[2**64 - 1] * 6), "offsets must ascend"),
        (struct.pack("<7Q", 6, 0, 5, 6, 7, 8, 56), "offsets must ascend from 56"),
        (v1_request(channel=b"iopub"), "can't send on channel 'iopub'"),
        (v1_request(channel=b""), "can't send on channel ''"),
        (v1_request(channel=b"\xff"), "can't send on channel"),
        (v1_request(header=b""), "header can't be read"),
        (v1_request(header=EMPTY), "missing required field `msg_id`"),
        (v1_request(header=b'{"msg_id":"\xff","msg_type":"t"}'), "header can't be read"),
        (v1_request(parent=b"[]"), "parent_header is not a JSON object"),
        (v1_request(parent=b"{"), "parent_header can't be read"),
        (v1_request(metadata=b'{"a":}'), "metadata can't be read"),
        (v1_request(content=b'{"a":"\xff"}'), "content can't be read"),
        (v1_request(content=b"{}{}"), "content can't be read"),
        (v1_request(content=b'{"a":' + b"[" * 100_000), "content is nested too deep"),
        (v1_request(content=b'"text"'), "content is not a JSON object"),
    ],
    ids=lambda value: repr(value)[-60:],
)
def test_a_broken_v1_frame_is_refused(payload: bytes, says: str) -> None:
    with pytest.raises(MalformedMessage, match=says):
        decode(payload, V1, is_binary=True)


def test_v1_has_no_text_frames() -> None:
    with pytest.raises(MalformedMessage, match="binary frames only"):
        decode(json.dumps(from_client()), V1, is_binary=False)


def test_as_many_buffers_as_allowed_pass() -> None:
    count = MAX_BUFFERS + 1
    start = 4 * (count + 1)
    payload = legacy(count, start, *[start + len(REQUEST)] * MAX_BUFFERS, rest=REQUEST)

    assert decode(payload, JSON, is_binary=True).buffers == (b"",) * MAX_BUFFERS


VALID_FRAMES = [
    (REQUEST, JSON, False),
    (legacy(2, 12, 12 + len(REQUEST), rest=REQUEST + b"ab"), JSON, True),
    (v1_request(), V1, True),
]


@examples(300)
@given(data=st.data(), frame=st.sampled_from(VALID_FRAMES))
def test_a_changed_frame_is_a_message_or_malformed(
    data: st.DataObject, frame: tuple[bytes, Subprotocol, bool]
) -> None:
    """Whatever is cut out or written over, the outcome is a message a kernel can unpack or one error."""
    payload, subprotocol, is_binary = frame
    start = data.draw(st.integers(0, len(payload)))
    end = data.draw(st.integers(start, min(len(payload), start + 12)))
    changed = payload[:start] + data.draw(st.binary(max_size=12)) + payload[end:]
    try:
        message = decode(changed, subprotocol, is_binary=is_binary)
    except MalformedMessage:
        return
    assert all(isinstance(json.loads(part), dict) for part in frames(message)[:4])


@examples(150)
@given(
    payload=st.binary() | st.text(st.characters()),
    subprotocol=st.sampled_from(Subprotocol),
    is_binary=st.booleans(),
)
def test_bytes_that_are_no_message_raise_nothing_but_malformed_message(
    payload: bytes | str, subprotocol: Subprotocol, is_binary: bool
) -> None:
    with pytest.raises(MalformedMessage):
        decode(payload, subprotocol, is_binary=is_binary)


@pytest.mark.parametrize("subprotocol", [JSON, V1])
def test_a_header_is_not_so_long_that_its_echo_would_be_passed_over(subprotocol: Subprotocol) -> None:
    """A kernel's answer would be dropped for it, and its cell would never end for the client."""
    header = json.dumps({**HEADER, "more": "x" * websocket.MAX_HEADER}).encode()
    message = Message(Channel.SHELL, header, EMPTY, EMPTY, EMPTY, (), Header(), Header())
    payload, is_binary = encode(message, subprotocol)
    with pytest.raises(MalformedMessage, match="header is longer"):
        decode(payload, subprotocol, is_binary=is_binary)
