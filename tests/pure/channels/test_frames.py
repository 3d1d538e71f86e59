"""Kernel messages as frames: what a large one needs was done in the thread that read it."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from cellgate.channels import frames
from cellgate.channels.frames import OutgoingMessage
from cellgate_kernels.channels.reception import read_large
from cellgate_kernels.protocol import contents, messages
from cellgate_kernels.protocol.messages import Channel, Message, Signer, is_utf8
from cellgate_kernels.protocol.websocket import Subprotocol

KEY = Signer(b"key")
TEXT, BINARY = Subprotocol.JSON, Subprotocol.V1
LARGE = 1_000_000
ROOM = 100_000_000


def sent(msg_type: str, content: bytes, channel: Channel = Channel.IOPUB) -> list[bytes]:
    """A message of a kernel, signed."""
    header = msgspec.json.encode({"msg_id": "m", "msg_type": msg_type})
    return KEY.serialize(Message(channel, header, b"{}", b"{}", content, (), *[messages.Header()] * 2))


def content_in(frame: bytes) -> Any:
    """Of the message in a text frame of more than 64 KiB, or of less than 126 bytes."""
    payload = frame[10:] if frame[1] == 127 else frame[4:] if frame[1] == 126 else frame[2:]
    return json.loads(payload)["content"]


@pytest.mark.parametrize("text", ["x", "é"])
@pytest.mark.parametrize("room", [0, 10, ROOM])
def test_a_large_message_is_only_joined(monkeypatch: pytest.MonkeyPatch, text: str, room: int) -> None:
    content = msgspec.json.encode({"data": {"text/plain": text * LARGE}, "metadata": {}})
    message = read_large(KEY, Channel.IOPUB, sent("display_data", content), room)
    monkeypatch.setattr(frames, "with_plain_text", lambda _: pytest.fail("it was looked for"))
    monkeypatch.setattr(
        "cellgate_kernels.protocol.websocket._check_utf8",
        lambda frame: len(frame) < LARGE or pytest.fail("decoded"),
    )
    assert content_in(OutgoingMessage(message).frame(TEXT))["data"]["text/plain"] == text * LARGE
    assert content in OutgoingMessage(message).frame(BINARY)


def test_what_has_no_text_gets_one_where_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = msgspec.json.encode({"data": {"image/png": "x" * LARGE}, "metadata": {"a": 1}})
    message = read_large(KEY, Channel.IOPUB, sent("display_data", content), ROOM)
    assert message.content()["data"].keys() == {"image/png"}, "the record has what was shown"
    monkeypatch.setattr(contents, "encode_in_steps", lambda _: pytest.fail("it was encoded again"))
    shown = content_in(OutgoingMessage(message).frame(TEXT))
    assert shown == {"data": {"image/png": "x" * LARGE, "text/plain": ""}, "metadata": {"a": 1}}


def test_a_large_content_that_is_no_text_is_not_repaired_on_the_loop() -> None:
    """Replacing sixty million bytes takes seconds, in one piece."""
    broken = b'{"name":"stdout","text":"' + b"\xff" * LARGE + b'"}'
    for channel, msg_type in ((Channel.IOPUB, "stream"), (Channel.SHELL, "execute_reply")):
        message = read_large(KEY, channel, sent(msg_type, broken, channel), 10)
        outgoing = OutgoingMessage(message)
        assert broken in outgoing.frame(BINARY), "who reads bytes gets them"
        frame = outgoing.frame(TEXT)
        if channel is Channel.IOPUB:
            assert frame == b""
        else:
            assert content_in(frame) == {}, "who waits for an answer hears of it"


@pytest.mark.parametrize(
    ("frame", "valid"),
    [
        (b"x" * 100_000, True),
        ("é".encode() * 50_000, True),
        (b"x" + "\U0001f600".encode() * 30_000, True),
        ("é".encode() * 50_000 + b"\xc3", False),
        (b"\xff" + b"x" * 100_000, False),
        (b"", True),
    ],
)
def test_utf8_is_told_in_steps(frame: bytes, valid: bool) -> None:
    assert is_utf8(frame) is valid
