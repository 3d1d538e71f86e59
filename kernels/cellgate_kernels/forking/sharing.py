"""Several kernels in one sandbox or container: a kernel, its branches and their branches.

A `SharedSandbox` lists the kernels of a sandbox and ends it with the last of them. Until then a kernel ends
alone, by its keeper, and a dying kernel does not end a sandbox with held forks. Folders that several kernels
use are removed with the last of these. A `BranchProvisioner` belongs to a branch: the sandbox's own parts are
the first kernel's (`root`), whose provisioner works on after that kernel's own end.

The keeper reports a single kernel's end (``kept``). Code in the sandbox can end the keeper, and with it the
sandbox, or forge reports, and would deceive its owner about its own kernels. The end of the whole sandbox is
seen from outside, and always believed.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cellgate_kernels.base.errors import InvalidInput, KernelStartFailed
from cellgate_kernels.base.tasks import Supervisor, guarded
from cellgate_kernels.forking.kept import Kept
from cellgate_kernels.launch.backend import KernelExit, KernelView, Launch
from cellgate_kernels.launch.base import KILL_TIMEOUT, CellgateProvisioner, connection_info
from cellgate_kernels.launch.folders import LaunchFolders, check_socket_path
from cellgate_kernels.protocol.unsent import SUFFIX as UNSENT

logger = logging.getLogger(__name__)

_INSIST_AFTER = 2.0
"""Seconds after which a killed kernel counts as ended although its keeper reports nothing."""

_FIRST = 1
_SOCKETS = 5
_KILLED = KernelExit.of_returncode(-signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class Outlook:
    """A kernel's view of the workspaces in its sandbox. `workspace`: the name of its own.

    `named`: the folder, here, to which the sandbox's name of a workspace leads; its own, or that of a kernel
    from which it was forked. `depth`: the number of user namespaces that it has entered.
    """

    workspace: str
    named: Path
    depth: int = 0


@dataclass(frozen=True, slots=True)
class BranchPlace:
    """The place of a new branch's sockets and workspace, here, and the sockets as the branch sees them."""

    prefix: str
    inner_prefix: str
    workspace: Path


@dataclass(slots=True, eq=False)
class _Tenant:
    """One kernel of the sandbox. `workspace` and `packages`: its folders besides the sandbox's own. `kept`:
    set for all once there are several. `killed`: by us. `vacated`: it has left.
    """

    exited: asyncio.Future[KernelExit]
    workspace: Path
    packages: Path | None
    kept: Kept | None = None
    killed: bool = False
    vacated: bool = False

    @property
    def folders(self) -> frozenset[Path]:
        """The kernel's workspace, and its packages' folder if it has one."""
        return frozenset({self.workspace} if self.packages is None else {self.workspace, self.packages})

    def end(self, how: KernelExit) -> None:
        """Set the kernel's end, once."""
        if not self.exited.done():
            self.exited.set_result(how)

    def close(self) -> None:
        """Stop listening to its keeper."""
        if self.kept is not None:
            self.kept.close()


class SharedSandbox:
    """The kernels of one sandbox, from the first attempt at a branch on. `root`: the provisioner that
    launched it, for a kernel with this workspace and these packages.
    """

    def __init__(self, root: CellgateProvisioner, workspace: Path, packages: Path | None) -> None:
        self.root = root
        self.folders, self.view = root.place
        assert self.folders.branches is not None
        self.branches: Path = self.folders.branches
        self._gone = root.gone
        self._tenants: dict[str, _Tenant] = {}
        self._workspace = workspace
        self._packages = packages
        self._spared = set[Path]()
        self._filling = set[Path]()
        self._held = 0
        self._tasks = Supervisor()
        self.add(str(root.kernel_id), root.exited, workspace, packages)
        root.sharing = self
        self._gone.add_done_callback(guarded(self._sandbox_ended, "end of a sandbox"))

    def place_for(self, kernel_id: str) -> BranchPlace:
        """Return the place of a branch. Raises KernelStartFailed if its sockets' paths are too long."""
        name = f"b{kernel_id[:8]}"
        prefix = str(self.folders.sockets / name)
        check_socket_path(prefix)
        return BranchPlace(
            prefix, str(Path(self.view.socket_prefix).with_name(name)), self.branches / kernel_id
        )

    def first_name(self, workspace: Path) -> str:
        """Return the workspace's name for the first kernel. Raises KernelStartFailed for no folder."""
        if workspace == self._workspace:
            return self.view.workspace
        if workspace.parent == self.branches:
            return f"{self.view.branches}/{workspace.name}"
        raise KernelStartFailed("The files are not in the kernel's sandbox")

    def socket_of_names(self, kernel_id: str) -> tuple[str, str]:
        """Return the socket that offers names to a new kernel: its path here, and as the kernel sees it."""
        name = f"n{kernel_id[:8]}"
        return str(self.folders.sockets / name), str(Path(self.view.socket_prefix).with_name(name))

    def socket_of_held(self, held_id: str) -> tuple[str, str]:
        """Return a held fork's socket: its path here and inside. Raises KernelStartFailed if too long."""
        name = f"h{held_id[:8]}"
        path = str(self.folders.sockets / name)
        check_socket_path(path)
        return path, str(Path(self.view.socket_prefix).with_name(name))

    @property
    def held(self) -> int:
        """The number of held forks in the sandbox."""
        return self._held

    def hold(self, ended: asyncio.Future[KernelExit]) -> None:
        """Count one more held fork."""
        self._held += 1

        def has_ended(_: asyncio.Future[KernelExit]) -> None:
            self._held -= 1

        ended.add_done_callback(has_ended)

    def processes(self) -> tuple[int, ...]:
        """Return the process numbers, as in the sandbox, of the kernels that have not ended."""
        tenants = (each for each in self._tenants.values() if not each.exited.done())
        return tuple(each.kept.pid for each in tenants if each.kept is not None)

    def process_of(self, kernel_id: str) -> int:
        """Return a process for this kernel, numbered as inside: its own, or the first of all."""
        kept = self._tenants[kernel_id].kept
        return _FIRST if kept is None else kept.pid

    def add(
        self, kernel_id: str, exited: asyncio.Future[KernelExit], workspace: Path, packages: Path | None
    ) -> None:
        """Add a kernel. Its `exited` completes when its keeper reports its end, or with the sandbox."""
        self._tenants[kernel_id] = _Tenant(exited, workspace, packages)

    @contextmanager
    def filling(self, workspace: Path) -> Iterator[None]:
        """Count one more workspace, of a kernel that will be added before this context ends."""
        self._filling.add(workspace)
        try:
            yield
        finally:
            self._filling.discard(workspace)

    @property
    def workspaces(self) -> int:
        """See `Sharing`. Ended kernels' workspaces count until their files are saved elsewhere."""
        used = {each.workspace for each in self._tenants.values()}
        return len((used | self._filling | self._spared) - {self._packages})

    def is_kept(self, kernel_id: str) -> bool:
        """Return whether the keeper reports this kernel's end."""
        return self._tenants[kernel_id].kept is not None

    def keep(self, kernel_id: str, kept: Kept) -> None:
        """Let its keeper report this kernel's end from now on."""
        tenant = self._tenants[kernel_id]
        tenant.kept = kept
        kept.ended.add_done_callback(guarded(lambda told: self._told(tenant, told), "end of a kernel"))
        if self._gone.done():
            self._sandbox_ended(self._gone)

    def others(self, kernel_id: str) -> tuple[str, ...]:
        """Return the ids of the other kernels that have not ended."""
        return tuple(
            each for each, tenant in self._tenants.items() if each != kernel_id and not tenant.exited.done()
        )

    def others_in(self, folder: Path, kernel_id: str) -> tuple[str, ...]:
        """Return the ids of the other kernels that use this folder."""
        return tuple(each for each in self.others(kernel_id) if folder in self._tenants[each].folders)

    def _told(self, tenant: _Tenant, told: asyncio.Future[KernelExit | None]) -> None:
        how = None if told.cancelled() else told.result()
        tenant.close()
        if how is None or (self._is_last(tenant) and not self._held):
            # The keeper has gone, or has nothing more to keep. Either way the sandbox ends, which tells more;
            # it is ended now if it still runs.
            self._end_sandbox()
        elif how.signal == signal.SIGKILL and not tenant.killed:
            self._tasks.start(self._explain(tenant, how), "end of a kernel", failed=lambda _: tenant.end(how))
        else:
            tenant.end(how)

    async def _explain(self, tenant: _Tenant, how: KernelExit) -> None:
        tenant.end(await self.root.explain_kill() or how)

    def _is_last(self, tenant: _Tenant) -> bool:
        return all(each is tenant or each.exited.done() for each in self._tenants.values())

    def _end_sandbox(self) -> None:
        if not self._gone.done():
            loop = asyncio.get_running_loop()
            loop.call_later(_INSIST_AFTER, guarded(self.end_all, "end of a sandbox"))

    def _sandbox_ended(self, gone: asyncio.Future[KernelExit]) -> None:
        for tenant in self._tenants.values():
            tenant.close()
            tenant.end(gone.result())

    def end_all(self) -> None:
        """End the sandbox with all its kernels. Idempotent."""
        if not self._gone.done():
            self.root._end()

    def end(self, kernel_id: str) -> bool:
        """End a kernel; returns False if the sandbox must end for it instead."""
        tenant = self._tenants.get(kernel_id)
        if tenant is None or tenant.kept is None or self._gone.done() or self._is_last(tenant):
            return False
        tenant.killed = True
        tenant.kept.kill()
        loop = asyncio.get_running_loop()
        loop.call_later(_INSIST_AFTER, guarded(self._give_up, "end of a kernel"), tenant)
        return True

    def _give_up(self, tenant: _Tenant) -> None:
        """End the whole sandbox if it has not reported the end of a killed kernel."""
        if not tenant.exited.done():
            tenant.close()
            if self._is_last(tenant):
                self.end_all()
            else:
                tenant.end(_KILLED)

    async def vacate(self, kernel_id: str) -> tuple[Path, ...]:
        """See `Sharing`. The last one waits until the sandbox is gone."""
        tenant = self._tenants.get(kernel_id)
        if tenant is not None:
            tenant.vacated = True
        if not all(each.vacated for each in self._tenants.values()):
            return ()
        self.end_all()
        await asyncio.wait({self._gone}, timeout=KILL_TIMEOUT)
        return self.folders.owned

    def leave_folders(self, kernel_id: str, spared: Collection[Path] = ()) -> list[Path]:
        """Release an ended kernel's folders; return the ones that no other kernel uses.

        The `spared` ones are never among them, even if others leave them later: their files must still be
        saved for this kernel's owner. The folder of branches then stays too.
        """
        tenant = self._tenants.pop(kernel_id, None)
        if tenant is None:
            return []
        self._spared.update(spared)
        others = frozenset[Path]().union(*(each.folders for each in self._tenants.values()))
        unused = [folder for folder in tenant.folders - others if folder not in self._spared]
        if not self._tenants and not self._spared:
            unused.append(self.branches)
        return unused


class BranchProvisioner(CellgateProvisioner):
    """The provisioner of a branch: `join` takes the place of a launch."""

    sandbox: SharedSandbox
    _prefix = ""
    _is_in = False

    def join(
        self, sandbox: SharedSandbox, place: BranchPlace, kept: Kept, workspace: Path, packages: Path | None
    ) -> None:
        """Become the kernel of a running process. Its connection has a new key."""
        self.sandbox = sandbox
        self.sharing = sandbox
        self.isolation = sandbox.root.isolation
        self._prefix = place.prefix
        self.leftovers = sandbox.root.leftovers
        self._exited = asyncio.get_running_loop().create_future()
        self._attached = self._is_in = True
        sandbox.add(str(self.kernel_id), self._exited, workspace, packages)
        sandbox.keep(str(self.kernel_id), kept)

    @property
    def image_used(self) -> Mapping[str, str]:
        return self.sandbox.root.image_used

    @property
    def process(self) -> int | None:
        return self.sandbox.root.process

    @property
    def has_neighbours(self) -> bool:
        return self.sandbox.root.has_neighbours

    async def remove(self, *folders: Path) -> None:
        await self.sandbox.root.remove(*folders)

    @property
    def keeper_socket(self) -> str | None:
        return keeper_of(self.sandbox.folders)

    @property
    def can_share(self) -> bool:
        return True

    @property
    def place(self) -> tuple[LaunchFolders, KernelView]:
        return self.sandbox.folders, self.sandbox.view

    async def log_tail(self) -> str:
        return await self.sandbox.root.log_tail()

    async def files_given(self) -> None:
        await self.sandbox.root.files_given()

    async def branch_files_given(self) -> None:
        await self.sandbox.root.branch_files_given()

    async def cleanup(self, restart: bool = False) -> None:
        """End the branch if it still runs, and remove its own parts of the sandbox."""
        await self.kill()
        self._attached = False
        if self._is_in:
            self._is_in = False
            await asyncio.to_thread(_unlink_files, self._prefix)
            await self.remove(*await self.sandbox.vacate(str(self.kernel_id)))

    def detach(self) -> None:
        """End the branch, which can't be adopted."""
        if self._running and not self.sandbox.end(str(self.kernel_id)):
            self._end()

    @classmethod
    async def check(cls) -> None:
        """Do nothing: the kernel runs in its sandbox."""

    def _view(self, folders: LaunchFolders) -> KernelView:
        return self.sandbox.view

    async def _start(self, launch: Launch) -> None:
        raise KernelStartFailed("A branch can't be launched.")

    def _end(self) -> None:
        self.sandbox.end_all()

    def _signal(self, signum: int) -> None:
        if signum not in (signal.SIGKILL, signal.SIGTERM):
            raise InvalidInput("A branch takes no signals; its kernelspec needs interrupt_mode 'message'.")
        if not self.sandbox.end(str(self.kernel_id)):
            self._end()


def branch_connection(place: BranchPlace) -> dict[str, Any]:
    """Return the connection info of a branch, with a new key, as we see it."""
    return dict(connection_info(place.prefix))


def _unlink_files(prefix: str) -> None:
    for path in (*(f"{prefix}-{number}" for number in range(1, _SOCKETS + 1)), prefix + UNSENT):
        with suppress(OSError):
            Path(path).unlink()


def keeper_of(folders: LaunchFolders) -> str:
    """Return the path of the socket on which a sandbox's keeper accepts programs."""
    return f"{folders.socket_prefix}-0"
