"""Kernels that share the threads for large messages; decoding is a fake that waits until it may go on."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from concurrent.futures import Future

import pytest

from cellgate_kernels.channels import reception as reading
from cellgate_kernels.channels.reception import LONG_BYTES, Reception, Share
from cellgate_kernels.protocol.messages import Channel, Message, Signer, new_message
from cellgate_kernels.protocol.texts import TextStream

DEADLINE = 60.0
SHORT, LONG = LONG_BYTES // 2, 2 * LONG_BYTES
SIGNER = Signer(b"key")


class Frames(list[bytes]):
    """Frames whose end can be seen."""


def stream(text: str, size: int) -> Frames:
    """A message on the way that begins with `text`."""
    content = {"name": "stdout", "text": text.ljust(size)}
    return Frames(SIGNER.serialize(new_message(Channel.IOPUB, "stream", content, session="s")))


class Decoding:
    """Stands for decoding: each message waits for `go_on` of its name, and is in `begun` from its begin."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun: list[str] = []
        self._may_go: dict[str, threading.Event] = {}
        self._decode = reading.read_text
        monkeypatch.setattr(reading, "read_text", self)

    def __call__(self, frame: bytes, room: int) -> TextStream:
        stream = self._decode(frame, room)
        name = stream.content["text"].strip()
        self.begun.append(name)
        assert self._event(name).wait(DEADLINE), f"nobody let {name} go on"
        return stream

    def _event(self, name: str) -> threading.Event:
        return self._may_go.setdefault(name, threading.Event())

    def wait_for(self, name: str) -> None:
        """Returns once this one is being decoded."""
        end = time.monotonic() + DEADLINE
        while name not in self.begun:
            assert time.monotonic() < end, f"{name} is not read; these are: {self.begun}"
            time.sleep(0.001)

    def go_on(self, *names: str) -> None:
        """Let these be decoded."""
        for name in names:
            self._event(name).set()

    def let_all_go(self) -> None:
        self.go_on(*self.begun, *self._may_go)


class Readers:
    """Kernels by name, and what they have sent."""

    def __init__(self, reception: Reception) -> None:
        self._reception = reception
        self._shares: dict[str, Share] = {}

    def send(self, name: str, size: int, *, kernel: str | None = None) -> Future[Message]:
        """A message of the kernel of this name, or of `kernel`."""
        share = self._shares.setdefault(kernel or name, Share())
        return self.give(share, stream(name, size))

    def give(self, share: Share, frames: Sequence[bytes]) -> Future[Message]:
        return self._reception.read(share, SIGNER, Channel.IOPUB, frames, 2 * LONG)


@pytest.fixture
def decoding(monkeypatch: pytest.MonkeyPatch) -> Decoding:
    return Decoding(monkeypatch)


@pytest.fixture
def kernels(decoding: Decoding) -> Iterator[Readers]:
    """Kernels that share one reception."""
    reception = Reception()
    yield Readers(reception)
    reception.close()
    decoding.let_all_go()
    reception.close(wait=True)


def test_a_shorter_message_does_not_wait_for_long_ones(decoding: Decoding, kernels: Readers) -> None:
    long = [kernels.send(f"hostile-{number}", LONG) for number in range(5)]
    decoding.wait_for("hostile-0")
    decoding.go_on("plot")
    assert kernels.send("plot", SHORT).result(DEADLINE).content()["text"].strip() == "plot"
    assert decoding.begun == ["hostile-0", "plot"], "one long message at a time"
    for number, message in enumerate(long):
        decoding.go_on(f"hostile-{number}")
        assert message.result(DEADLINE).content()["text"].strip() == f"hostile-{number}"


@pytest.mark.parametrize("size", [SHORT, LONG])
def test_the_kernel_that_had_least_is_next(decoding: Decoding, kernels: Readers, size: int) -> None:
    """Who sends its first message is before one that had its turn, and asked for the next before that."""
    decoding.go_on("hostile", "hostile again")
    long = kernels.send("long", LONG)
    decoding.wait_for("long")
    kernels.send("hostile", SHORT).result(DEADLINE)
    short = kernels.send("short", SHORT)
    decoding.wait_for("short")
    waiting = [kernels.send("hostile again", size, kernel="hostile"), kernels.send("newcomer", size)]
    decoding.go_on("short" if size == SHORT else "long")
    decoding.wait_for("newcomer")
    assert "hostile again" not in decoding.begun
    decoding.go_on("long", "short", "newcomer")
    for message in (long, short, *waiting):
        message.result(DEADLINE)


def test_kernels_of_one_principal_have_one_share(decoding: Decoding, kernels: Readers) -> None:
    """Who has many waits no less for others than who has one."""
    first = [kernels.send(name, LONG) for name in ("ada-0",)]
    decoding.wait_for("ada-0")
    kernels.send("other", SHORT)
    decoding.wait_for("other")
    waiting = [kernels.send(f"ada-{number}", SHORT, kernel="ada-0") for number in range(1, 9)]
    waiting.append(kernels.send("bea", SHORT))
    decoding.go_on("ada-0")
    decoding.wait_for("bea")
    assert decoding.begun == ["ada-0", "other", "bea"]
    decoding.go_on("other", "bea", *(f"ada-{number}" for number in range(1, 9)))
    for message in (*first, *waiting):
        message.result(DEADLINE)


def test_the_share_of_a_principal_is_found_again(kernels: Readers) -> None:
    reception = kernels._reception
    assert reception.share("ada") is (hers := reception.share("ada"))
    assert reception.share("bea") is not hers
    assert reception.share("") is not reception.share("")


def test_what_is_given_up_waits_for_no_thread(decoding: Decoding, kernels: Readers) -> None:
    """Its bytes are free at once, however long the threads are busy: the budget counts on it."""
    kernels.send("short", SHORT)
    kernels.send("long", LONG)
    for name in ("short", "long"):
        decoding.wait_for(name)
    frames = stream("given up", LONG)
    held = weakref.ref(frames)
    message = kernels.give(Share(), frames)
    del frames
    assert held() is not None
    assert message.cancel()
    gc.collect()
    assert held() is None


def test_nothing_waits_after_the_end(decoding: Decoding, kernels: Readers) -> None:
    begun = [kernels.send("short", SHORT), kernels.send("long", LONG)]
    for name in ("short", "long"):
        decoding.wait_for(name)
    waiting = kernels.send("waiting", SHORT)
    kernels._reception.close()
    assert waiting.cancelled()
    decoding.go_on("short", "long")
    assert all(message.result(DEADLINE).readable for message in begun)
