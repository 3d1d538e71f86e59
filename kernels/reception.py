"""What the connections of all kernels share: bounds, a budget of bytes, threads for large messages.

One is built for a gateway. A large message is checked and decoded in a thread of a small pool of its own, so
that neither the event loop nor the threads of other work wait for it. A thread that decodes holds the
interpreter, so ``structure`` bounds how much a message can be. Which messages are large, and in which order
a kernel's messages are handed out, is ``connection``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import msgspec
from msgspec import structs

from kernels.budget import ReceiveBudget
from kernels.messages import Channel, MalformedMessage, Message, Signer, read_content
from kernels.outputs import OutputCaps
from kernels.policy import MessagePolicy
from kernels.structure import weigh

THREADS = 2
_KINDS = 8


class _Shown(msgspec.Struct):
    data: dict[str, msgspec.Raw] = msgspec.field(default_factory=dict)


_shown = msgspec.json.Decoder(_Shown)


class Reception:
    """`policy`: how large messages may be. `budget`: of bytes that are held and can't be used yet."""

    def __init__(self, caps: OutputCaps | None = None, *, most_held: int | None = None) -> None:
        self.policy = MessagePolicy(OutputCaps() if caps is None else caps)
        largest = max(map(self.policy.most_bytes, Channel))
        # One message must fit, whatever the caps, and another one while it waits to be read.
        self.budget = ReceiveBudget() if most_held is None else ReceiveBudget(most_held)
        self.budget.total = max(self.budget.total, 2 * largest)
        self._threads = ThreadPoolExecutor(THREADS, "messages")

    def read(self, signer: Signer, channel: Channel, frames: Sequence[bytes], room: int) -> Future[Message]:
        """Read a large message in a thread; see `read_large`. The future may raise MalformedMessage."""
        return self._threads.submit(read_large, signer, channel, frames, room)

    def close(self, *, wait: bool = False) -> None:
        """End the threads once they have read what they have begun to read; with `wait`, return then."""
        self._threads.shutdown(wait=wait, cancel_futures=True)


def read_large(signer: Signer, channel: Channel, frames: Sequence[bytes], room: int) -> Message:
    """The message with its content decoded; unread when it needs more than `room`, or is too complex.

    Only a stream's text is cut where that ends, because what fits of it is shown.

    Raises MalformedMessage as `Signer.parse` does.
    """
    message = signer.parse(channel, frames)
    frame = message.content_frame
    if not room:
        return structs.replace(message, unread=True)
    weight = weigh(frame)
    if weight is None:
        return structs.replace(message, unread=True)
    is_text = message.msg_type == "stream"
    if max(len(frame), weight) > room and not is_text:
        return structs.replace(message, unread=True, kinds=_kinds(frame))
    try:
        content = read_content(frame, message.msg_type)
    except MalformedMessage:
        return structs.replace(message, unread=True)
    if is_text and isinstance(text := content.get("text"), str) and len(text) > room:
        # A little more than the room, so that it is cut there, and said to be.
        content["text"] = text[: room + 1].encode()[: room + 4].decode(errors="ignore")
        return structs.replace(message, decoded=content, weight=len(text))
    return structs.replace(message, decoded=content, weight=0 if is_text else weight)


def _kinds(frame: bytes) -> tuple[str, ...]:
    """The first MIME types of what a message shows; they are found without decoding what they name."""
    try:
        return tuple(_shown.decode(frame).data)[:_KINDS]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()
