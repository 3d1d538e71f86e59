"""cellgate_kernels.protocol.texts: the text of reading at one go, in steps that tear nothing apart."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cellgate_kernels.protocol import texts
from cellgate_kernels.protocol.messages import MalformedMessage, TooComplex, read_content
from cellgate_kernels.protocol.texts import MOST_ODD, STEP, read_text
from tests.support.examples import examples

PIECES = ["a", '"', "\\", "\n", "é", "\u2028", "🎉", "\ud83d", "\ude00", "u", "/", "\\u12"]
contents = st.fixed_dictionaries(
    {"text": st.lists(st.sampled_from(PIECES), max_size=60).map("".join)},
    optional={"name": st.sampled_from(["stdout", "stderr"])},
)


@pytest.fixture(autouse=True)
def _short_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(texts, "STEP", 16)
        yield


def encoded(content: dict[str, Any], *, ascii_only: bool, name_last: bool) -> bytes:
    names = sorted(content, reverse=name_last)
    text = json.dumps({name: content[name] for name in names}, ensure_ascii=ascii_only)
    return text.encode(errors="replace")


@examples(500)
@given(contents, st.booleans(), st.booleans())
@example({"name": "stdout", "text": "abcdefghij\ud83d\ud83d\ude00"}, True, False)
@example({"name": "stdout", "text": "\\" * 40 + '"' * 40}, True, False)
def test_a_text_is_what_it_is_when_read_at_one_go(
    content: dict[str, Any], ascii_only: bool, name_last: bool
) -> None:
    frame = encoded(content, ascii_only=ascii_only, name_last=name_last)
    stream = read_text(frame, sys.maxsize)
    whole = {"name": "", **read_content(frame, "stream")}
    assert (stream.content, stream.size) == (whole, 0)
    assert read_text(bytearray(frame), sys.maxsize) == stream


@examples(500)
@given(contents, st.booleans(), st.booleans(), st.integers(0, 300), st.integers(0, 255))
def test_a_damaged_content_is_refused_or_read_as_at_one_go(
    content: dict[str, Any], ascii_only: bool, name_last: bool, place: int, byte: int
) -> None:
    frame = bytearray(encoded(content, ascii_only=ascii_only, name_last=name_last))
    frame[place % len(frame)] = byte
    if byte >= 0x80:
        byte_is_no_text(frame)
        return
    try:
        whole: Any = {"name": "", **read_content(frame, "stream")}
    except MalformedMessage:
        whole = None
    try:
        parts: Any = {"name": "", **read_text(frame, sys.maxsize).content}
    except MalformedMessage:
        parts = None
    assert parts == whole


def byte_is_no_text(frame: bytearray) -> None:
    """How many characters of replacement a torn one makes may differ; nothing else may."""
    try:
        whole = read_content(frame, "stream")
    except MalformedMessage:
        with pytest.raises(MalformedMessage):
            read_text(frame, sys.maxsize)
        return
    parts = read_text(frame, sys.maxsize).content
    assert without_replaced(parts.get("text")) == without_replaced(whole.get("text"))


def without_replaced(text: Any) -> Any:
    return text.replace("\ufffd", "") if isinstance(text, str) else text


@pytest.mark.parametrize("character", ["é", "€", "🎉"])
@pytest.mark.parametrize("strays", range(8))
def test_stray_continuation_bytes_cost_no_character_before_them(character: str, strays: int) -> None:
    """Wherever the cut is: a character that is whole is never torn apart."""
    for padding in range(20):
        text = b"a" * padding + character.encode() + b"\x80" * strays + b"b" * 40
        frame = b'{"name": "stdout", "text": "' + text + b'"}'
        assert read_text(frame, sys.maxsize).content["text"] == text.decode(errors="replace")


@pytest.mark.parametrize(("first", "last"), [("stdout", "stderr"), ("stderr", "stdout"), ("stderr", "")])
@pytest.mark.parametrize("room", [10, sys.maxsize])
def test_of_two_names_the_last_counts(first: str, last: str, room: int) -> None:
    frame = f'{{"name": "{first}", "text": "{"x" * 100}", "name": "{last}"}}'.encode()
    assert read_text(frame, room).content["name"] == json.loads(frame)["name"]


@pytest.mark.parametrize("text", ["x" * 10_000, "\n" * 10_000, "é" * 10_000, "\ud83d\ude00" * 5_000])
@pytest.mark.parametrize("name_last", [False, True])
def test_no_more_is_read_than_there_is_room_for(text: str, name_last: bool) -> None:
    frame = encoded({"name": "stderr", "text": text}, ascii_only=True, name_last=name_last)
    stream = read_text(frame, 1000)
    read = stream.content["text"]
    assert stream.content["name"] == "stderr"
    assert json.loads(frame)["text"].startswith(read)
    assert 1000 < len(read.encode()) <= 1000 + texts.STEP
    assert stream.size >= len(json.loads(frame)["text"])


def test_a_long_text_is_not_decoded_at_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(texts, "STEP", STEP)
    sizes: list[int] = []
    decode = texts.read_string
    monkeypatch.setattr(texts, "read_string", lambda part: sizes.append(len(part)) or decode(part))
    monkeypatch.setattr(texts, "read_content", lambda *_: pytest.fail("it was decoded at one go"))
    frame = encoded({"name": "stdout", "text": "\\\n" * 1_000_000}, ascii_only=True, name_last=False)
    assert read_text(frame, sys.maxsize).content["text"] == "\\\n" * 1_000_000
    assert max(sizes) <= STEP


@pytest.mark.parametrize(
    "content",
    [
        {"name": "stdout", "text": "x", "more": 1},
        {"name": "stdout", "text": ["x", "y"]},
        {"name": 1, "text": "x"},
        {},
    ],
)
def test_another_shape_is_read_while_it_is_small(content: dict[str, Any]) -> None:
    frame = json.dumps(content).encode()
    assert read_text(frame, 1).content == content
    large = json.dumps({"further": "x" * MOST_ODD, **content}).encode()
    with pytest.raises(TooComplex):
        read_text(large, sys.maxsize)


@pytest.mark.parametrize("after", [b"", b'", "name": "stdout"', b'"}}', b'" x}', b'", "more": 1}'])
def test_what_follows_a_long_text_has_to_fit(after: bytes) -> None:
    frame = b'{"name": "stdout", "text": "' + b"x" * MOST_ODD + after
    with pytest.raises(MalformedMessage):
        read_text(frame, sys.maxsize)
