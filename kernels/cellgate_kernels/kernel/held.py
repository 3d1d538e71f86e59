"""Checkpoints: everything that a kernel has in memory, kept as it was at a moment by a fork of its process.

A held fork is a process in its kernel's sandbox or container that waits, and runs nothing. It counts towards
the same limits: where memory is limited for a whole sandbox, the system may end a kernel for what held forks
keep, so whoever takes checkpoints must keep well within the limit. It ends with the last kernel of its
sandbox and with the gateway that asked for it. The files of the workspace are no part of it.

Here is a connection to its process, and the keeper's word on its end; ``inside/held.py`` is the process. What
it answers is from a sandbox, where anybody may have taken its place: its size is limited, and it becomes a
typed value. A false answer deceives nobody but its own user.
"""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final, Protocol

import msgspec

from cellgate_kernels.base.branching import Obstacle
from cellgate_kernels.base.errors import KernelDied, KernelStartFailed, in_brief
from cellgate_kernels.base.local_stream import open_stream
from cellgate_kernels.base.tasks import Supervisor, guarded
from cellgate_kernels.forking.kept import Kept
from cellgate_kernels.forking.sharing import SharedSandbox
from cellgate_kernels.kernel.branch_request import ANSWER_TIMEOUT, BranchOrder, Made, understood
from cellgate_kernels.launch.backend import KernelExit

MOST_ANSWER: Final = 16 * 1024
_GONE = "The checkpoint has ended"
_KILLED = KernelExit.of_returncode(-signal.SIGKILL)
_INSIST_AFTER = 2.0
"""Seconds after which it counts as ended when it was closed, and the keeper says nothing."""


class _Bytes(msgspec.Struct, tag_field="status", tag="ok", frozen=True):
    bytes: Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Tether:
    """The connection to a held fork, which ends when it is closed. Made by `tie`."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tasks: Supervisor) -> None:
        self._reader = reader
        self._writer = writer
        # Each order is answered in turn, even if nobody waits any more.
        self._asked = asyncio.Queue[asyncio.Future[bytes]]()
        self._reading = tasks.start(self._read(), "answers of a held fork")
        self._reading.add_done_callback(lambda _: self._over())
        self._is_over = False

    async def ask(self, order: object) -> bytes:
        """Send an order and return the answer's bytes. Raises KernelDied when there is none.

        A held fork that does not answer in time is given up; a caller's cancellation does not end it.
        """
        if self._is_over:
            raise KernelDied(_GONE)
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(answer)
        self._writer.write(msgspec.json.encode(order) + b"\n")
        return await answer

    async def _read(self) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            while True:
                asked = await self._asked.get()
                try:
                    async with asyncio.timeout(ANSWER_TIMEOUT):
                        line = await self._reader.readuntil(b"\n")
                except BaseException:
                    self._asked.put_nowait(asked)
                    raise
                if not asked.done():
                    asked.set_result(line)

    def _over(self) -> None:
        """Stop reading the fork's answers."""
        self._is_over = True
        self._writer.transport.abort()
        while not self._asked.empty():
            asked = self._asked.get_nowait()
            if not asked.done():
                asked.set_exception(KernelDied(f"{_GONE}, or does not answer"))

    def close(self) -> None:
        """Close the connection to the held fork. Idempotent."""
        self._is_over = True
        self._reading.cancel()


async def tie(path: str, tasks: Supervisor) -> Tether:
    """Connect to the held fork that waits at `path`. Raises KernelStartFailed when there is none."""
    try:
        return Tether(*await open_stream(path, MOST_ANSWER), tasks)
    except OSError as error:
        raise KernelStartFailed(f"The checkpoint can't be reached: {in_brief(error)}") from None


class ForkedKernel(Protocol):
    """The kernel that was forked, which may have ended since."""

    id: str
    workspace: Path


class HeldFork:
    """One kernel as it was at a moment. Keep it until `close`.

    `made_of`: the id of the forked kernel. `workspace`: the folder of that kernel's files, which may be gone
    by now. `overruled`: the obstacles that were ignored; a kernel made from it lacks what they name.
    """

    def __init__(
        self,
        held_id: str,
        kernel: ForkedKernel,
        sandbox: SharedSandbox,
        tether: Tether,
        kept: Kept,
        overruled: tuple[Obstacle, ...],
        tasks: Supervisor,
    ) -> None:
        self.id = held_id
        self.kernel = kernel
        self.made_of = kernel.id
        self.workspace = kernel.workspace
        self.sandbox = sandbox
        self.overruled = overruled
        self.ended: asyncio.Future[KernelExit] = asyncio.get_running_loop().create_future()
        """Completed once, when its process is gone for whatever reason. Shield it when you await it."""
        self._tether = tether
        self._kept = kept
        self._closed = False
        self._tasks = tasks
        kept.ended.add_done_callback(guarded(self._told, "end of a held fork"))
        sandbox.hold(self.ended)

    def _told(self, told: asyncio.Future[KernelExit | None]) -> None:
        how = told.result()
        if how is not None and how.signal == signal.SIGKILL and not self._closed:
            self._tasks.start(self._explain(how), "end of a held fork", failed=lambda _: self._end(how))
        else:
            self._end(how)
        self._closed = True
        self._tether.close()

    async def _explain(self, how: KernelExit) -> None:
        self._end(await self.sandbox.root.explain_kill() or how)

    def _end(self, how: KernelExit | None = None) -> None:
        if not self.ended.done():
            self.ended.set_result(_KILLED if how is None else how)

    @property
    def process(self) -> int:
        """The process's number in its own PID namespace."""
        return self._kept.pid

    @property
    def alive(self) -> bool:
        """Whether a kernel can be made from it: it is neither closed nor ended."""
        return not self._closed

    async def memory(self) -> int:
        """Measure the bytes that it keeps and that no kernel of its sandbox uses any more.

        Memory that several held forks share is divided among them, so that the sum is the cost of all. It
        takes the system some milliseconds for each gigabyte. Raises KernelDied when it has ended.
        """
        order = {"kernels": self.sandbox.processes(), "held": self.sandbox.held}
        answer = await self._ask(order)
        try:
            return msgspec.json.decode(answer, type=_Bytes).bytes
        except msgspec.MsgspecError:
            raise KernelDied("The checkpoint does not say how much memory it keeps") from None

    async def make(self, order: BranchOrder) -> Made:
        """Make it fork, and return when the process is about to become a kernel.

        Raises KernelDied when it has ended, KernelStartFailed when the kernel did not come up.
        """
        answer = await self._ask(order)
        try:
            told = msgspec.json.decode(answer)
        except msgspec.MsgspecError:
            raise KernelStartFailed("The checkpoint's answer is not one about a kernel") from None
        return understood(told)

    async def _ask(self, order: object) -> bytes:
        if self._closed:
            raise KernelDied(_GONE)
        try:
            return await self._tether.ask(order)
        except KernelDied:
            self.close()
            raise

    def close(self) -> None:
        """End the held fork, and give it up if it does not end in time. Idempotent."""
        if not self._closed:
            self._closed = True
            self._tether.close()
            # It ends on its own, unless it was stopped.
            self._kept.kill()
            loop = asyncio.get_running_loop()
            loop.call_later(_INSIST_AFTER, guarded(self._give_up, "end of a held fork"))

    def _give_up(self) -> None:
        """Assume the fork's end, because the keeper reports nothing."""
        if not self.ended.done():
            self._kept.close()
            self._end()
