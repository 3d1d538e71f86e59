"""A kernel without a process: its side of the four channels is in memory, and a behaviour runs its cells.

The connection is real except for its sockets: messages arrive signed and framed, in the order in which they
were sent, and wait while it is paused. ``cells`` has the behaviours, ``launchers`` makes the kernels.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec import structs

from cellgate_kernels.base import trees
from cellgate_kernels.base.branching import (
    BRANCHES,
    Branched,
    BranchSpec,
    BranchWorkspace,
    Obstacle,
    ObstacleKind,
)
from cellgate_kernels.base.errors import CannotBranch, InvalidInput, KernelBusy, KernelDied
from cellgate_kernels.base.tasks import Supervisor, guarded
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.channels.reception import Reception
from cellgate_kernels.channels.sockets import ChannelSocket, Receiver
from cellgate_kernels.forking.sharing import Outlook
from cellgate_kernels.kernel.asleep import Sleep
from cellgate_kernels.kernel.held import HeldFork
from cellgate_kernels.kernel.kernel import Kernel, KernelFacts, KernelProfile
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.limits.control_group import ControlGroup
from cellgate_kernels.protocol.messages import Channel, Message, Signer, new_message
from cellgate_kernels.testing.cells import Cell, Interrupted, Program, understand

KEY = b"a key for tests"
_PER_TURN = 64
"""The messages that a socket delivers in one turn of the loop; real sockets have a limit too."""


class MemorySocket(ChannelSocket):
    """A `ChannelSocket` without a socket. `sent` receives what the gateway sends."""

    def __init__(self, receive: Receiver, sent: Callable[[list[bytes]], None]) -> None:
        self._receive = receive
        self._sent = sent
        self._inbox: deque[list[bytes]] = deque()
        self._paused = False
        self._closed = False
        self._resting: asyncio.TimerHandle | None = None
        self._turn: asyncio.Handle | None = None
        self.taken = asyncio.Event()
        """Set while no message waits."""
        self.taken.set()

    def deliver(self, frames: list[bytes]) -> None:
        """Deliver frames that the kernel has sent."""
        if self._closed:
            return
        self._inbox.append(frames)
        self.taken.clear()
        self._hand_out_soon()

    def _hand_out_soon(self) -> None:
        ready = self._turn is None and not self._paused and self._resting is None
        if ready and self._inbox and not self._closed:
            self._turn = asyncio.get_running_loop().call_soon(guarded(self._hand_out, "fake socket"))

    def _hand_out(self) -> None:
        if self._turn is not None:
            self._turn.cancel()
            self._turn = None
        for _ in range(_PER_TURN):
            if self._paused or self._closed or not self._inbox:
                break
            self._receive(self._inbox.popleft(), 0)
        if not self._inbox:
            self.taken.set()
        self._hand_out_soon()

    def send(self, frames: Sequence[bytes]) -> None:
        self._sent(list(frames))

    def pause(self) -> None:
        self._paused = True

    def resume(self) -> None:
        self._paused = False
        self._hand_out_soon()

    def rest(self, seconds: float) -> None:
        if self._resting is None:
            self._resting = asyncio.get_running_loop().call_later(seconds, guarded(self.wake, "fake socket"))

    def wake(self) -> None:
        if self._resting is not None:
            self._resting.cancel()
            self._resting = None
        if not self._paused:
            self._hand_out()

    def close(self) -> None:
        self._closed = True
        self._inbox.clear()
        self.taken.set()
        for waiting in (self._resting, self._turn):
            if waiting is not None:
                waiting.cancel()


class FakeConnection(KernelConnection):
    """A real connection with sockets in memory. `sent` receives each sent message, with its channel."""

    def __init__(
        self, sent: Callable[[Channel, list[bytes]], None], *, kernel_id: str, reception: Reception | None
    ) -> None:
        super().__init__({"key": KEY}, kernel_id=kernel_id, reception=reception)
        self._taker = sent
        self.memory: dict[Channel, MemorySocket] = {}

    def open_channel(self, channel: Channel, receive: Receiver) -> ChannelSocket:
        socket = MemorySocket(receive, lambda frames: self._taker(channel, frames))
        self.memory[channel] = socket
        return socket


@dataclass(eq=False)
class FakeSandbox:
    """The common state of fake kernels forked from each other: `kernels` has all of them, also ended ones.

    `held`: all held forks, also ended ones. `branched` is called with each forked kernel before any caller
    gets it. `spared`: folders that stay when the kernels end.
    """

    kernels: list[FakeKernel] = field(default_factory=list)
    held: list[FakeHeldFork] = field(default_factory=list)
    spared: set[Path] = field(default_factory=set)
    branched: Callable[[FakeKernel], object] = lambda kernel: None

    def end_held(self) -> None:
        """End all held forks if all kernels were shut down, as the end of a sandbox does."""
        if all(each.dismissed for each in self.kernels):
            for held in self.held:
                held.die()


class FakeHeldFork(HeldFork):
    """A held fork of a fake kernel. Made by `FakeKernel.checkpoint`.

    A test sets its results: `bytes`, the memory that it reports; `restore_error`, raised after the workspace
    was filled, as if no kernel had started.
    """

    def __init__(self, held_id: str, kernel: FakeKernel, count: int, overruled: tuple[Obstacle, ...]) -> None:
        # Doesn't call super().__init__: there is no process.
        self.id = held_id
        self.made_of = kernel.id
        self.workspace = kernel.workspace
        self.overruled = overruled
        self.kernel: FakeKernel = kernel
        self.count = count
        self.bytes = 1024 * 1024
        self.restore_error: Exception | None = None
        self.ended: asyncio.Future[KernelExit] = asyncio.get_running_loop().create_future()
        self._closed = False

    @property
    def alive(self) -> bool:
        return not self._closed and not self.ended.done()

    async def memory(self) -> int:
        await asyncio.sleep(0)
        if not self.alive:
            raise KernelDied("The checkpoint has ended")
        return self.bytes

    def close(self) -> None:
        if self.alive:
            self._closed = True
            asyncio.get_running_loop().call_soon(guarded(self.die, "fake held fork"))

    def die(self) -> None:
        """End the fork's process now."""
        if not self.ended.done():
            self.ended.set_result(KernelExit.of_returncode(-9))

    async def restore(self, spec: BranchSpec, like: FakeKernel) -> FakeKernel:
        """See ``KernelPool.restore``; `like` is a kernel of that workspace, alive or not any more."""
        if not self.alive:
            raise KernelDied("The checkpoint has ended")
        if like.sandbox is not self.kernel.sandbox:
            raise InvalidInput("The kernels are not in one sandbox")
        branched = Branched(self.made_of, spec.workspace, spec.seed, self.overruled, checkpoint=self.id)
        return await like.forked(spec, branched, self.count, self._check)

    def _check(self) -> None:
        if not self.alive:
            raise KernelDied("The checkpoint has ended")
        if self.restore_error is not None:
            raise self.restore_error


class FakeKernel(Kernel):
    """A ready kernel that runs each cell as `program` chooses. Made by a `FakeLauncher`, or as a branch.

    `group`: the control group that it reports. `discards`: how often it was discarded. `requests`: the types
    of all messages sent to it. `knows`: its replies to requests that are no cells, by type; None: it works on
    the request until an interrupt. A test sets how it is forked: `facts`; `obstacles`, which refuse or are
    overruled; `children` that stay with it; `branch_error`, raised after the workspace was filled. A branch
    copies the obstacles and the count of cells.
    """

    def __init__(
        self,
        kernel_id: str,
        profile: KernelProfile,
        workspace: Path,
        program: Program = understand,
        *,
        reception: Reception | None = None,
        ending: Callable[[FakeKernel], Any] | None = None,
    ) -> None:
        # Doesn't call super().__init__: without a process there is no manager and no provisioner.
        self.id = kernel_id
        self.profile = profile
        self.workspace = workspace
        info = {"language_info": {"name": "python"}}
        self.facts = KernelFacts(info, profile.kernelspec, can_branch=True, tells_variables=True)
        self.environment = None
        self.packages = None
        self.branched: Branched | None = None
        self.obstacles: tuple[Obstacle, ...] = ()
        self.children: tuple[str, ...] = ()
        self.branch_error: Exception | None = None
        self.sandbox = FakeSandbox([self])
        self.outlook = Outlook("/workspace", workspace)
        self.discards = 0
        self.requests: list[str] = []
        self.knows: dict[str, Mapping[str, Any] | None] = {}
        self._asked: Message | None = None
        self.cell: Cell | None = None
        self._program = program
        self._ending = ending
        self._reception = reception
        self.exited = asyncio.get_running_loop().create_future()
        self._ended = False
        self._unsent_is_told = False
        self._sleep: Sleep | None = None
        self.group: ControlGroup | None = None
        self._signer = Signer(KEY)
        self._waiting: deque[Message] = deque()
        self._count = 0
        self._tasks = Supervisor(lambda: {"kernel": kernel_id})
        self._runner: asyncio.Task[None] | None = None
        self.connection = self._opened(reception)

    def _opened(self, reception: Reception | None) -> FakeConnection:
        connection = FakeConnection(self._receive, kernel_id=self.id, reception=reception)
        connection.open()
        self._memory = connection.memory
        return connection

    # As a kernel's owner sees it

    @property
    def isolation(self) -> str:
        return "none"

    def control_group(self, mounts: str | None = None) -> ControlGroup | None:
        return self.group

    @property
    def image(self) -> Mapping[str, str]:
        return {}

    @property
    def egress(self) -> Path | None:
        """A folder beside all workspaces, which the launcher makes; branches have their first kernel's."""
        if not self.profile.egress:
            return None
        first = self.sandbox.kernels[0]
        return first.workspace.parents[1] / f"egress-{first.id}"

    @property
    def stored(self) -> bool:
        return False

    @property
    def process(self) -> int | None:
        return None

    @property
    def dismissed(self) -> bool:
        return self._ended

    @property
    def alive(self) -> bool:
        return not self._ended and not self.exited.done()

    @property
    def shares_sandbox_with(self) -> tuple[str, ...]:
        return tuple(each.id for each in self.sandbox.kernels if each is not self and each.alive)

    @property
    def _has_sandbox_alone(self) -> bool:
        return not self.shares_sandbox_with and all(held.ended.done() for held in self.sandbox.held)

    @property
    def shares_workspace_with(self) -> tuple[str, ...]:
        sharers = (each for each in self.sandbox.kernels if each.workspace == self.workspace)
        return tuple(each.id for each in sharers if each is not self and each.alive)

    async def branch(self, spec: BranchSpec) -> FakeKernel:
        if not self.facts.can_branch:
            raise CannotBranch((Obstacle(ObstacleKind.KERNEL, self.profile.kernelspec),))
        branched = Branched(self.id, spec.workspace, spec.seed, self.obstacles, self.children)
        return await self.forked(spec, branched, self._count, lambda: self._refuse(spec.anyway))

    async def checkpoint(self, *, anyway: bool = False) -> FakeHeldFork:
        if not self.facts.can_branch:
            raise CannotBranch((Obstacle(ObstacleKind.KERNEL, self.profile.kernelspec),))
        await asyncio.sleep(0)
        self._refuse(anyway)
        held = FakeHeldFork(f"{self.id}-held-{len(self.sandbox.held)}", self, self._count, self.obstacles)
        self.sandbox.held.append(held)
        return held

    async def forked(
        self, spec: BranchSpec, branched: Branched, count: int, check: Callable[[], None]
    ) -> FakeKernel:
        """Return another fake kernel in its sandbox, with its files or others, and this count.

        `check` raises an obstacle's error once the workspace is filled.
        """
        branch_id = f"{branched.parent}-branch-{len(self.sandbox.kernels)}"
        workspace = self.workspace
        made = spec.workspace is BranchWorkspace.COPY and self.workspace.is_dir()
        if spec.workspace is BranchWorkspace.COPY:
            first = self.sandbox.kernels[0]
            workspace = self.workspace.parent / f"{first.id}{BRANCHES}" / branch_id
        if made:
            workspace.mkdir(parents=True)
        try:
            if made and spec.fill is not None:
                await spec.fill(workspace)
            await asyncio.sleep(0)
            check()
        except BaseException:
            if made:
                trees.remove(workspace)
            raise
        branch = FakeKernel(
            branch_id, self.profile, workspace, self._program, reception=self._reception, ending=self._ending
        )
        branch.branched = branched
        branch.obstacles = branched.overruled
        branch._count = count
        branch.sandbox = self.sandbox
        self.sandbox.kernels.append(branch)
        self.sandbox.branched(branch)
        return branch

    def _refuse(self, anyway: bool) -> None:
        """Raise the error of an obstacle to a fork."""
        if not self.alive:
            raise KernelDied("The kernel has ended")
        if self.cell is not None:
            raise KernelBusy("The kernel runs a cell; branch it when it is idle")
        if self.obstacles and not anyway:
            raise CannotBranch(self.obstacles)
        if self.branch_error is not None:
            raise self.branch_error

    async def files_given(self) -> None:
        """Do nothing: a fake kernel has no user of its own."""

    async def shutdown(self) -> None:
        self._ended = True
        self.connection.close()
        self._exit_as(KernelExit("kernel_exit", None, 9, "The kernel was ended by SIGKILL."))
        self.sandbox.end_held()
        await asyncio.sleep(0)

    async def discard(self, *, spared: Collection[Path] = ()) -> None:
        self.discards += 1
        self._ended = True
        try:
            if self._ending is not None:
                await self._ending(self)
        finally:
            await self.shutdown()
            users = [each for each in self.sandbox.kernels if each.workspace == self.workspace]
            self.sandbox.spared.update(spared)
            # As the real one does, it leaves folders that another kernel made.
            is_spared = self.workspace in {*self.sandbox.spared, self.profile.workspace}
            if not is_spared and self.workspace.exists() and all(each.discards for each in users):
                trees.remove(self.workspace)
            if self.egress is not None and not self.shares_sandbox_with:
                trees.remove(self.egress)

    def detach(self) -> None:
        self.connection.close()

    async def remember(self) -> None:
        """Do nothing: no other gateway adopts a fake kernel."""

    # As the test sees it

    def die(self, cause: str = "kernel_exit", code: int = 1) -> None:
        """End the process on its own, now. Sent messages still arrive."""
        self._exit_as(KernelExit(cause, code, None, f"The kernel exited with code {code}."))

    def _exit_as(self, end: KernelExit) -> None:
        if not self.exited.done():
            self.exited.set_result(end)
        if self._runner is not None:
            self._runner.cancel()

    def say(
        self, channel: Channel, msg_type: str, content: Mapping[str, Any], parent: Message | None = None
    ) -> None:
        """Send a message, as an answer to `parent` or unsolicited."""
        message = new_message(channel, msg_type, content, session=f"of {self.id}")
        if parent is not None:
            message = structs.replace(message, parent_frame=parent.header_frame)
        self.deliver(channel, self._signer.serialize(message))

    def deliver(self, channel: Channel, frames: list[bytes]) -> None:
        """Send any frames. A dead kernel sends nothing."""
        if not self.exited.done():
            self._memory[channel].deliver(frames)

    async def taken(self) -> None:
        """Return when all output has been read."""
        await self._memory[Channel.IOPUB].taken.wait()

    # Its side of the channels

    def _receive(self, channel: Channel, frames: list[bytes]) -> None:
        """Take a message in the loop's next turn."""
        if not self.exited.done():
            message = self._signer.parse(channel, frames)
            asyncio.get_running_loop().call_soon(guarded(self._take, "fake kernel"), message)

    def _take(self, message: Message) -> None:
        if self.exited.done():
            return
        self.requests.append(message.msg_type)
        match message.msg_type:
            case "execute_request":
                self._waiting.append(message)
                if self._runner is None or self._runner.done():
                    self._runner = self._tasks.start(self._run_cells(), f"cells of {self.id}")
            case "interrupt_request":
                self._interrupt()
                self.say(message.channel, "interrupt_reply", {"status": "ok"}, message)
            case "input_reply":
                if self.cell is not None and self.cell.answer is not None and not self.cell.answer.done():
                    self.cell.answer.set_result(str(message.content().get("value", "")))
            case "kernel_info_request":
                self.say(message.channel, "kernel_info_reply", dict(self.facts.info), message)
            case asked if asked in self.knows:
                self._reply(message, self.knows[asked])

    def _reply(self, message: Message, content: Mapping[str, Any] | None) -> None:
        self.say(Channel.IOPUB, "status", {"execution_state": "busy"}, message)
        if content is None:
            self._asked = message
            return
        self.say(Channel.SHELL, message.msg_type.replace("_request", "_reply"), content, message)
        self.say(Channel.IOPUB, "status", {"execution_state": "idle"}, message)

    def _interrupt(self) -> None:
        """Interrupt the running cell, or the work on a reply; an idle kernel ignores it."""
        if self._asked is not None:
            self.say(Channel.IOPUB, "status", {"execution_state": "idle"}, self._asked)
            self._asked = None
        if self.cell is None:
            return
        self.cell.interrupted.set()
        if self.cell.answer is not None and not self.cell.answer.done():
            self.cell.answer.set_exception(Interrupted())

    async def _run_cells(self) -> None:
        while self._waiting:
            self._count += 1
            self.cell = Cell(self, self._waiting.popleft(), self._count)
            try:
                await self._program(self.cell.code)(self.cell)
            finally:
                self.cell = None
