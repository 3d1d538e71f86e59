"""Kernels and pools by their behaviour, so that a session is tested in one process and made to fail at will.

A fake kernel answers cells by what their code says (`ok`, `hang`) and fails where a test has armed it. All
else is real: the session, its manager, its journal and its folders.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, cast

from jupyter_client.kernelspec import KernelSpec
from msgspec import structs

from cellgate.channels.client import ChannelSettings
from cellgate.execution.run import ExecutionSettings
from cellgate.files.workspace import WorkspaceStore
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.store.interface import FIRST_EPOCH, Purge
from cellgate.record.store.sqlite.journal import Journal
from cellgate.sessions.parts import SessionSettings, SharedParts
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.settings import ManagerSettings
from cellgate_kernels.base import trees
from cellgate_kernels.base.budget import Owner
from cellgate_kernels.base.errors import KernelspecNotFound
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.channels.connection import Listener
from cellgate_kernels.kernel.kernel import KernelFacts, KernelProfile
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.pool.claims import Moved
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.protocol.messages import Channel, Header, Message, new_message
from cellgate_kernels.protocol.outputs import OutputCaps
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.specs.named_environment import NamedEnvironment


class Fault(LookupError):
    """What nobody expects: a mistake in the code."""


class Faults:
    """Which collaborator fails, and how often."""

    def __init__(self) -> None:
        self._armed: dict[str, int] = {}
        self.met: list[str] = []

    def arm(self, what: str, times: int = 1) -> None:
        self._armed[what] = times

    def meet(self, what: str) -> None:
        """Called by the fakes wherever they can fail."""
        if self._armed.get(what, 0) > 0:
            self._armed[what] -= 1
            self.met.append(what)
            raise Fault(what)


class BadMessage:
    """A message that nobody can read, but for what it answers."""

    def __init__(self, parent: Header) -> None:
        self.parent = parent

    def __getattr__(self, name: str) -> Any:
        raise Fault("message")


Failed = Callable[[Exception], None] | None


class FakeConnection:
    """A kernel's channels. What it is sent, it answers at the loop's next turn."""

    def __init__(self, faults: Faults) -> None:
        self.session = "fake"
        self.owner = Owner()
        self.listeners: list[tuple[Listener, frozenset[str] | None, Failed]] = []
        self.followers: dict[str, tuple[Listener, Failed]] = {}
        self.closed = False
        self.paused = False
        self._faults = faults

    def listen(
        self,
        received: Listener,
        sent: Listener | None = None,
        *,
        room: object = None,
        types: frozenset[str] | None = None,
        failed: Failed = None,
    ) -> Callable[[], None]:
        self.listeners.append((received, types, failed))
        return lambda: self.listeners.remove((received, types, failed))

    def follow(
        self, msg_id: str, received: Listener, *, room: object = None, failed: Failed = None
    ) -> Callable[[], None]:
        self.followers[msg_id] = received, failed
        return lambda: self.followers.pop(msg_id, None) and None

    def tell(self, message: Message) -> None:
        if self.closed:
            return
        told = [(listen, failed) for listen, types, failed in self.listeners if types is None]
        told += [self.followers[message.parent.msg_id]] if message.parent.msg_id in self.followers else []
        for received, failed in told:
            try:
                received(message)
            except Fault as error:
                assert failed is not None
                failed(error)

    def tell_nonsense(self) -> None:
        """What nobody can read, of the cell that runs; or to all who listen."""
        for msg_id in (*self.followers, ""):
            self.tell(cast(Message, BadMessage(Header(msg_id, "execute_request"))))

    def send(self, message: Message) -> None:
        self._faults.meet("send")
        code = message.content().get("code", "")
        if code != "hang":
            asyncio.get_running_loop().call_soon(self._answer, message)

    def say(self, channel: Channel, msg_type: str, content: dict[str, Any], parent: str) -> None:
        """What the kernel says of its own accord of the cell with this request's id."""
        message = new_message(channel, msg_type, content, session="kernel")
        self.tell(structs.replace(message, parent=Header(parent, "execute_request")))

    def _answer(self, request: Message) -> None:
        self._status("busy", request)
        self._say(Channel.IOPUB, "execute_input", {"code": "", "execution_count": 1}, request)
        self._say(Channel.IOPUB, "stream", {"name": "stdout", "text": "out"}, request)
        self._say(Channel.SHELL, "execute_reply", {"status": "ok", "execution_count": 1}, request)
        self._status("idle", request)

    def _status(self, state: str, request: Message) -> None:
        self._say(Channel.IOPUB, "status", {"execution_state": state}, request)

    def _say(self, channel: Channel, msg_type: str, content: dict[str, Any], request: Message) -> None:
        message = new_message(channel, msg_type, content, session="kernel")
        self.tell(structs.replace(message, parent=Header(request.header.msg_id, request.msg_type)))

    def ask(self, *_: object) -> asyncio.Future[Message]:
        return asyncio.get_running_loop().create_future()

    def rest(self, seconds: float) -> None:
        self._faults.meet("rest")

    def wake(self) -> None: ...

    def pause(self) -> None:
        self.paused = True

    def resume(self) -> None:
        self.paused = False

    def close(self) -> None:
        self.closed = True


class FakeKernel:
    """As much of a kernel as a session sees."""

    isolation, packages, environment, stored = "none", None, None, False
    egress = branched = None
    asleep = False
    shares_sandbox_with = ()

    def __init__(self, number: int, profile: KernelProfile, root: Path, faults: Faults) -> None:
        self.id = f"kernel-{number}"
        self.profile = profile
        self.image: dict[str, str] = {}
        self.facts = KernelFacts({}, "Fake")
        self.connection = FakeConnection(faults)
        self.exited: asyncio.Future[KernelExit] = asyncio.get_running_loop().create_future()
        self.folder = profile.workspace or root / self.id
        self.folder.mkdir(exist_ok=True)
        self.dismissed = False
        self._faults = faults

    @property
    def workspace(self) -> Path:
        self._faults.meet("workspace")
        return self.folder

    @property
    def alive(self) -> bool:
        return not self.exited.done()

    async def files_given(self) -> None:
        self._faults.meet("files_given")

    def interrupt(self) -> asyncio.Future[Message]:
        return asyncio.get_running_loop().create_future()

    async def shutdown(self) -> None:
        self.dismissed = True
        if not self.exited.done():
            self.exited.set_result(KernelExit("kernel_exit", None, 9, "The kernel was ended by SIGKILL."))
        await asyncio.sleep(0)
        self._faults.meet("shutdown")


class FakePool:
    """Hands out fake kernels at once, or when `gate` is open; counts those in use.

    `asked` is set by a claim, which then waits for the gate.
    """

    def __init__(self, root: Path, faults: Faults) -> None:
        self.kernels: list[FakeKernel] = []
        self.in_use: set[FakeKernel] = set()
        self.gate = asyncio.Event()
        self.gate.set()
        self.asked = asyncio.Event()
        self._root = root
        self._faults = faults
        self._numbers = itertools.count()

    def shares_workspaces(self) -> bool:
        """Whether two kernels may have one workspace."""
        return True

    def let_yield(self, _: object) -> None:
        """There is a place for every kernel."""

    def look_for_places(self) -> None:
        """Nobody lacks one."""

    async def claim(
        self,
        profile: KernelProfile,
        claimant: Claimant,
        moved: Moved | None = None,
        *,
        patience: float | None = None,
    ) -> FakeKernel:
        self._faults.meet("claim")
        self.asked.set()
        await self.gate.wait()
        kernel = FakeKernel(next(self._numbers), profile, self._root, self._faults)
        self.kernels.append(kernel)
        self.in_use.add(kernel)
        return kernel

    def release(self, kernel: FakeKernel, *, spared: Collection[Path] = ()) -> None:
        self.in_use.discard(kernel)
        if kernel.folder not in spared and kernel.folder.exists():
            trees.remove(kernel.folder)


class FakeCatalog:
    """One kernelspec."""

    def choose(self, kernel: str | None, language: str | None, default: str) -> str:
        return kernel or default

    def get_kernel_spec(self, name: str) -> KernelSpec:
        if name != "python3":
            raise KernelspecNotFound(f"There is no kernelspec {name}.")
        return KernelSpec(language="python")

    def find_kernel_specs(self) -> dict[str, str]:
        return {"python3": ""}

    def environments(self) -> dict[str, NamedEnvironment]:
        return {}

    def refresh(self) -> None:
        """There is nothing on disk."""


class FaultyJournal(Journal):
    """A real one that fails where it is armed."""

    faults: Faults

    async def commit(self, session_id: int | None = None, *, epoch: int | None = None) -> None:
        self.faults.meet("commit")
        await super().commit(session_id, epoch=epoch)

    async def purge(self, session_id: int, *, by: str, reason: str, epoch: int = FIRST_EPOCH) -> Purge | None:
        self.faults.meet("purge")
        return await super().purge(session_id, by=by, reason=reason, epoch=epoch)


class House:
    """A manager with all that it needs, below one folder."""

    def __init__(self, root: Path, journal: FaultyJournal) -> None:
        self.faults = journal.faults = Faults()
        self.journal = journal
        self.workspaces = root / "workspaces"
        self.workspaces.mkdir(exist_ok=True)
        self.pool = FakePool(self.workspaces, self.faults)
        self.lane = Lane("outboxes", 1)
        settings = SessionSettings(
            ExecutionSettings(OutputCaps(), interrupt_grace=0.2, settle=2.0), ChannelSettings(root, self.lane)
        )
        self.manager = SessionRegistry(
            journal,
            cast(KernelspecCatalog, FakeCatalog()),
            SharedParts(cast(KernelPool, self.pool), WorkspaceStore(self.workspaces), SpillLedger(root, 0)),
            ManagerSettings(settings, cull_interval=0.02),
        )

    @classmethod
    async def open(cls, root: Path) -> House:
        return cls(root, await FaultyJournal.open(root / "record.sqlite3"))

    async def close(self) -> None:
        await self.manager.close(0.1)
        await self.journal.close()
        self.lane.close()

    def kept(self) -> Sequence[Path]:
        """The kept folders of sessions."""
        return sorted(path for path in self.workspaces.iterdir() if path.name.startswith("session-"))
