"""The cells of a fake kernel: a `Behaviour` decides which messages the kernel sends, and when.

A behaviour is a coroutine function of a `Cell`. It controls the whole protocol, so it can also break it.
Those in this module cover what real kernels do, from well-behaved to forged. ``kernels`` runs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from cellgate_kernels.protocol.messages import Channel, Message

Behaviour = Callable[["Cell"], Awaitable[None]]
"""Runs one cell of a fake kernel."""
Program = Callable[[str], Behaviour]
"""Chooses the behaviour for a cell's code."""

_BATCH = 16
"""The messages of a flood between two turns of the loop."""


class Interrupted(Exception):
    """The kernel was interrupted while the cell waited."""


class KernelSide(Protocol):
    """The parts of a kernel that a behaviour uses."""

    def say(
        self, channel: Channel, msg_type: str, content: Mapping[str, Any], parent: Message | None = None
    ) -> None:
        """Send a message, as an answer to `parent` or unsolicited."""

    def deliver(self, channel: Channel, frames: list[bytes]) -> None:
        """Send any frames to the client."""

    def die(self, cause: str = "kernel_exit", code: int = 1) -> None:
        """End the process, now."""

    async def taken(self) -> None:
        """Return when all output has been read."""


class Cell:
    """One execute_request, as the behaviour of a fake kernel sees it. `count`: the kernel's prompt number."""

    def __init__(self, kernel: KernelSide, request: Message, count: int) -> None:
        content = request.content()
        self.kernel = kernel
        self.request = request
        self.count = count
        self.code = str(content.get("code", ""))
        self.silent = bool(content.get("silent"))
        self.interrupted = asyncio.Event()
        self.answer: asyncio.Future[str] | None = None

    def say(self, channel: Channel, msg_type: str, content: Mapping[str, Any]) -> None:
        """Send a message with this cell's request as its parent."""
        self.kernel.say(channel, msg_type, content, self.request)

    def begin(self) -> None:
        """Report that the cell has started."""
        self.say(Channel.IOPUB, "status", {"execution_state": "busy"})
        if not self.silent:
            self.say(Channel.IOPUB, "execute_input", {"code": self.code, "execution_count": self.count})

    def stream(self, text: str, name: str = "stdout") -> None:
        """Send text of a stream."""
        self.say(Channel.IOPUB, "stream", {"name": name, "text": text})

    def reply(self, status: str = "ok", **fields: Any) -> None:
        """Send the cell's execute_reply."""
        content = {"status": status, "execution_count": self.count, **fields}
        self.say(Channel.SHELL, "execute_reply", content)

    def idle(self) -> None:
        """Report that the cell is idle."""
        self.say(Channel.IOPUB, "status", {"execution_state": "idle"})

    def end(self) -> None:
        """Send the reply, and report idle."""
        self.reply()
        self.idle()

    def fail(self, ename: str, evalue: str = "") -> None:
        """End with an error."""
        error = {"ename": ename, "evalue": evalue, "traceback": [f"{ename}: {evalue}"]}
        self.say(Channel.IOPUB, "error", error)
        self.reply("error", **error)
        self.idle()

    async def sleep(self, seconds: float) -> None:
        """Wait for some seconds. Raises Interrupted when the kernel is interrupted."""
        try:
            async with asyncio.timeout(seconds):
                await self.interrupted.wait()
        except TimeoutError:
            return
        raise Interrupted

    async def ask(self, prompt: str = "") -> str:
        """Return the answer to an input_request. Raises Interrupted when the kernel is interrupted."""
        self.answer = asyncio.get_running_loop().create_future()
        self.say(Channel.STDIN, "input_request", {"prompt": prompt, "password": False})
        return await self.answer


async def answers(cell: Cell) -> None:
    """Print the code, and succeed."""
    cell.begin()
    if not cell.silent:
        cell.stream(cell.code)
    cell.end()


def prints(*texts: str) -> Behaviour:
    """Print these texts, one message each, and succeed."""

    async def behave(cell: Cell) -> None:
        cell.begin()
        for text in texts:
            cell.stream(text)
        cell.end()

    return behave


def slow(seconds: float) -> Behaviour:
    """Run for some seconds; an interrupt ends the cell with a KeyboardInterrupt."""

    async def behave(cell: Cell) -> None:
        cell.begin()
        try:
            await cell.sleep(seconds)
        except Interrupted:
            cell.fail("KeyboardInterrupt")
        else:
            cell.end()

    return behave


async def never(cell: Cell) -> None:
    """Start a cell that only an interrupt ends."""
    await slow(1e9)(cell)


async def ignores_interrupts(cell: Cell) -> None:
    """Start a cell that nothing ends."""
    cell.begin()
    await asyncio.get_running_loop().create_future()


def fails(ename: str = "ValueError", evalue: str = "") -> Behaviour:
    """End with this error."""

    async def behave(cell: Cell) -> None:
        cell.begin()
        cell.fail(ename, evalue)

    return behave


def dies(seconds: float = 0.0, *, after_reply: bool = False) -> Behaviour:
    """Print something, and die in the middle of the cell, or `after_reply` but before the idle status."""

    async def behave(cell: Cell) -> None:
        cell.begin()
        cell.stream("last words")
        try:
            await cell.sleep(seconds)
        except Interrupted:
            cell.fail("KeyboardInterrupt")
            return
        if after_reply:
            cell.reply()
        cell.kernel.die()

    return behave


def floods(messages: int, size: int = 10) -> Behaviour:
    """Print this many messages of this size, as fast as they are read."""

    async def behave(cell: Cell) -> None:
        cell.begin()
        for number in range(messages):
            cell.stream("x" * size)
            if number % _BATCH == 0:
                await asyncio.sleep(0)
                await cell.kernel.taken()
        cell.end()

    return behave


def replies_late(seconds: float) -> Behaviour:
    """Report idle at once and send the reply later: they race on two sockets."""

    async def behave(cell: Cell) -> None:
        cell.begin()
        cell.stream(cell.code)
        cell.idle()
        await asyncio.sleep(seconds)
        cell.reply()

    return behave


def loses(what: str) -> Behaviour:
    """End well, but without the ``reply`` or without ``idle``."""

    async def behave(cell: Cell) -> None:
        cell.begin()
        cell.stream(cell.code)
        if what != "reply":
            cell.reply()
        if what != "idle":
            cell.idle()

    return behave


async def asks(cell: Cell) -> None:
    """Ask for a line, print it, and succeed."""
    cell.begin()
    try:
        line = await cell.ask("name? ")
    except Interrupted:
        cell.fail("KeyboardInterrupt")
        return
    cell.stream(line)
    cell.end()


async def lies(cell: Cell) -> None:
    """Send everything that a forged kernel can send, then succeed: none of it may do any harm."""
    kernel = cell.kernel
    kernel.deliver(Channel.IOPUB, [b"no message"])
    kernel.deliver(Channel.SHELL, [b"<IDS|MSG>", b"forged", b"{}", b"{}", b"{}", b"{}"])
    kernel.say(Channel.IOPUB, "status", {"execution_state": "idle"}, None)
    kernel.say(Channel.SHELL, "execute_reply", {"status": "ok"}, None)
    cell.say(Channel.IOPUB, "execute_reply", {"status": "error"})
    cell.say(Channel.SHELL, "status", {"execution_state": "idle"})
    cell.begin()
    cell.begin()
    cell.say(Channel.IOPUB, "stream", {"name": "nowhere", "text": ["no", "text"]})
    cell.say(Channel.IOPUB, "execute_input", {"execution_count": -(2**80)})
    cell.say(Channel.STDIN, "input_request", {"prompt": 3})
    cell.say(Channel.IOPUB, "display_data", {"data": None, "metadata": 1})
    cell.stream("the truth")
    cell.end()
    cell.end()
    cell.stream("after the end")


_WORDS: Mapping[str, Callable[..., Behaviour]] = {
    "slow": lambda seconds="1": slow(float(seconds)),
    "never": lambda: never,
    "ignores": lambda: ignores_interrupts,
    "fails": lambda ename="ValueError": fails(ename),
    "dies": lambda seconds="0": dies(float(seconds)),
    "dies-replied": lambda: dies(after_reply=True),
    "floods": lambda messages="1000", size="10": floods(int(messages), int(size)),
    "late": lambda seconds="1": replies_late(float(seconds)),
    "loses": lambda what="reply": loses(what),
    "asks": lambda: asks,
    "lies": lambda: lies,
}


def understand(code: str) -> Behaviour:
    """Return the behaviour named by the code: ``slow 5``, ``dies``, ``floods 1000 80``; else `answers`.

    The words are slow, never, ignores, fails, dies, dies-replied, floods, late, loses, asks and lies.
    """
    word, *arguments = code.split() or [""]
    return _WORDS[word](*arguments) if word in _WORDS else answers
