"""The fork server: the gateway's view of zygotes, and of the kernels that they fork.

A zygote (``inside/zygote.py``) is an interpreter in a sandbox of its own that has loaded the modules of
kernels. There is one for each `ZygoteLineage`: a kernelspec with the common parts of all its kernels. It is
replaced after a number of forks, after some time, and at the first doubt; then it ends with its last kernel.

Kernels that can't be forked faithfully are not forked: `ForkServer.fork` raises NotForked, and the caller
starts the kernel cold. Reasons are variables that the interpreter or the loaded modules have already read,
libraries that start threads when loaded, and folders that the zygote's sandbox lacks. Nothing here blocks the
loop.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

from cellgate_kernels.base.errors import BackendUnavailable, in_words
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.forking.forker import ForkedChild, Forker
from cellgate_kernels.forking.messages import Description, NotForked, orders
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.launch.base import OOM_SCORE
from cellgate_kernels.launch.child import Child, Lasting, rlimits
from cellgate_kernels.launch.folders import LaunchFolders
from cellgate_kernels.limits.cgroups import Cgroup, Cgroups
from cellgate_kernels.walls import bubblewrap
from cellgate_kernels.walls.bubblewrap import SandboxFiles
from cellgate_kernels.walls.kernel_uids import KernelUid, KernelUids, Mounts
from cellgate_kernels.walls.mounts import (
    NOTHING,
    SESSIONS,
    VIEW,
    WORKSPACE,
    Bind,
    Devices,
    Folder,
    Memory,
    Step,
    files,
    session_part,
    system_part,
    within_own,
    zygote_words,
)
from cellgate_kernels.walls.seccomp import sandbox_filter

logger = logging.getLogger(__name__)

MODULES = ("numpy", "pandas", "matplotlib.pyplot", "matplotlib_inline.backend_inline")
"""Modules that a zygote loads, where installed. They start no threads, and look for no shell on import,
except pyplot, for which ``inside/zygote.py`` compensates.
"""

BOOTSTRAP = "bootstrap.py"
# Named and explained in inside/bootstrap.py and inside/keeper.py.
ZYGOTE = "CELLGATE_ZYGOTE"
KEEPER = "CELLGATE_KEEPER"

USER = 1000
_ROOT = 0
_ZYGOTE_TMP = 64 * 1024 * 1024

_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv"),
    *("--cap-add", "ALL", "--hostname", "cellgate", "--uid", str(_ROOT), "--gid", str(_ROOT)),
)

# Seconds.
_START_TIMEOUT = 30.0
_RETRY_AFTER = 300.0

_MOST_TOLD = 100


@dataclass(frozen=True, slots=True)
class ForkSettings:
    """Limits of zygotes: their replacement and their number.

    `most_forks` and `age` (in seconds): a zygote that has forked so many kernels, or is so old, is replaced.
    `unused` (in seconds): one of more than `lineages` takes the place of one that forked nothing for so long.
    """

    modules: tuple[str, ...] = MODULES
    most_forks: int = 500
    age: float = 3600.0
    lineages: int = 4
    unused: float = 60.0


@dataclass(frozen=True, slots=True)
class ZygoteLineage:
    """The purpose of a zygote: its kernels' common command and environment, and their readable files of the
    host. `packages`: whether they have a folder of packages, maybe with other versions.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    readable: tuple[str, ...]
    packages: bool


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """One kernel to be forked."""

    lineage: ZygoteLineage
    env: Mapping[str, str]
    limits: ResourceLimits
    folders: LaunchFolders
    reserved: int = 0


@dataclass(slots=True, eq=False)
class _Line:
    """The zygotes of one lineage: the one in use, and the start of the next."""

    current: SandboxZygote | None = None
    coming: asyncio.Task[SandboxZygote] | None = None
    retry_at: float = 0.0
    why: str = ""
    used_at: float = 0.0


def can_fork(argv: Sequence[str]) -> bool:
    """Return whether a kernelspec's command starts our kernel for Python, with no other arguments."""
    return len(argv) == 4 and Path(argv[1]).name == BOOTSTRAP and argv[2] == "-f"


class ForkServer:
    """The zygotes of one gateway. `sessions`: the folders in which kernels' folders are, and whether kernels
    may write there. Without `cgroups` kernels have none, without `uids` they have the gateway's.
    """

    def __init__(
        self,
        sessions: Sequence[tuple[Path, bool]],
        cgroups: Cgroups | None = None,
        settings: ForkSettings | None = None,
        uids: KernelUids | None = None,
    ) -> None:
        self.settings = ForkSettings() if settings is None else settings
        self.cgroups = cgroups
        self.uids = uids
        self._sessions = [(folder.resolve(), writable) for folder, writable in sessions]
        self._lines: dict[ZygoteLineage, _Line] = {}
        self._zygotes: set[SandboxZygote] = set()
        self._tasks = Supervisor()
        self._kernels = 0
        self._told: set[str] = set()
        self._closed = False

    def forks(self, argv: Sequence[str]) -> bool:
        """Return whether kernels with this command are forked here."""
        failed = any(line.why for lineage, line in self._lines.items() if lineage.argv[:2] == tuple(argv[:2]))
        return can_fork(argv) and not failed

    async def fork(self, wanted: ForkRequest) -> ForkedChild:
        """Return a forked kernel behind its walls, about to start. Raises NotForked, leaving nothing."""
        made: list[ForkedChild] = []
        try:
            self._check_folders(wanted.folders)
            zygote = await self._zygote(wanted.lineage)
            await self._tasks.complete(self._fork(zygote, wanted, made), "fork a kernel")
        except BaseException as error:
            for child in made:
                child.kill()
                await asyncio.shield(child.exited)
            if isinstance(error, NotForked):
                self._tell(error.message)
            raise
        return made[0]

    def _tell(self, why: str, level: int = logging.INFO) -> None:
        """Log once why kernels are not forked."""
        if why not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(why)
            logger.log(level, "A kernel is started cold, as others may be for the same reason: %s", why)

    async def _fork(self, zygote: SandboxZygote, wanted: ForkRequest, made: list[ForkedChild]) -> None:
        zygote.check_variables(wanted.env)
        uid = await self._uid(zygote)
        try:
            # Needed even with a uid of its own, because its files on disk are ours.
            program = sandbox_filter(platform.machine(), branches=True, root=os.geteuid() == 0)
            if program is None:
                # The filter also keeps a forked kernel from making namespaces; bubblewrap has another way.
                raise NotForked(f"there is no filter of system calls for {platform.machine()}")
            with Mounts() as mounts:
                await self._fork_as(uid, mounts, zygote, wanted, program, made)
        finally:
            if self.uids is not None and uid is not None:
                self._give_back(self.uids, uid, made)

    async def _uid(self, zygote: SandboxZygote) -> KernelUid | None:
        """Return a uid for a kernel of this zygote; None where kernels have none of their own."""
        if self.uids is None or zygote.unreadable is not None:
            return None
        try:
            return await self.uids.take()
        except (OSError, BackendUnavailable) as error:
            raise NotForked(f"it can't have a uid of its own: {in_words(error)}") from error

    def _give_back(self, uids: KernelUids, uid: KernelUid, made: Sequence[ForkedChild]) -> None:
        """Release a uid when its kernel has ended; at once if there is no kernel."""
        if not made:
            uids.give_back(uid)
            return
        ended = self._tasks.guard(lambda _: uids.give_back(uid), "end of a uid")
        made[0].exited.add_done_callback(ended)

    async def _fork_as(
        self,
        uid: KernelUid | None,
        mounts: Mounts,
        zygote: SandboxZygote,
        wanted: ForkRequest,
        program: bytes,
        made: list[ForkedChild],
    ) -> None:
        steps = [Devices(), *session_part(wanted.limits, wanted.folders, wanted.lineage.readable)]
        if uid is not None:
            # The child gets its session's folders mounted; else it finds them in the zygote's view.
            own = [(step.source, step.writable) for step in steps if self._is_of_session(step)]
            try:
                await asyncio.to_thread(mounts.add, uid, own)
            except OSError as error:
                raise NotForked(f"its files can't be mounted as its user's: {in_words(error)}") from error
        description = Description(
            env=wanted.env,
            mounts=steps,
            mounted=len(mounts.descriptors),
            folder=WORKSPACE,
            # The zygote's loaded memory is shared, and does not count towards the kernel's limit.
            limits=rlimits(
                wanted.limits,
                processes=os.geteuid() != 0 or uid is not None,
                reserved=wanted.reserved + zygote.reserved,
                own_user=True,
            ),
            user=USER,
            uid=_ROOT if uid is None else uid.within,
            oom_score=OOM_SCORE,
            filter=program,
        )
        encoded = description.encoded(lambda path: mounts.numbers.get(path, self._source_of(path)))
        cgroup: Cgroup | None = None
        if self.cgroups is not None:
            self._kernels += 1
            # An operator finds the kernel, and so its session, from /proc/PID/cgroup.
            name = f"{self._kernels}-{wanted.folders.runtime.name}"
            try:
                cgroup = await asyncio.to_thread(
                    self.cgroups.make, name, wanted.limits, reserved=wanted.reserved
                )
            except OSError as error:
                raise NotForked(f"its cgroup can't be made: {in_words(error)}") from error
        await zygote.fork(encoded, cgroup, wanted.limits, mounts.descriptors, made)

    def _is_of_session(self, step: Step) -> TypeGuard[Bind]:
        return isinstance(step, Bind) and self._source_of(step.source) != step.source

    def _source_of(self, path: str) -> str:
        """Return the path at which a child finds the host's file before it gives up sessions' folders."""
        # The folders above are ours, and may be reached by links; a kernel may write to the file itself.
        real = Path(path).parent.resolve() / Path(path).name
        for number, (folder, _) in enumerate(self._sessions):
            if real.is_relative_to(folder):
                return str(Path(SESSIONS, str(number), real.relative_to(folder)))
        return path

    def _check_folders(self, folders: LaunchFolders) -> None:
        """Raise NotForked for folders that no zygote's sandbox has."""
        for folder in (folders.runtime, folders.workspace, folders.packages, folders.branches):
            if folder is not None and self._source_of(str(folder)) == str(folder):
                raise NotForked(f"{folder} is in none of the folders of this gateway's sessions")

    async def _zygote(self, lineage: ZygoteLineage) -> SandboxZygote:
        """Return the zygote to fork from. Raises NotForked where there is none, and none can be made now."""
        line = self._lines.get(lineage)
        loop = asyncio.get_running_loop()
        if line is None:
            if len(self._lines) >= self.settings.lineages:
                self._give_way(loop.time() - self.settings.unused)
            line = self._lines[lineage] = _Line()
        line.used_at = loop.time()
        zygote = line.current
        if zygote is None or not zygote.usable:
            if loop.time() < line.retry_at:
                raise NotForked(line.why)
            return await asyncio.shield(self._renew(lineage, line))
        if zygote.forked >= self.settings.most_forks or loop.time() - zygote.since >= self.settings.age:
            self._renew(lineage, line)
        return zygote

    def _give_way(self, since: float) -> None:
        """Give up the zygote that was not used for longest, at least since then. Raises NotForked."""
        unused = {
            line.used_at: lineage
            for lineage, line in self._lines.items()
            if line.coming is None and line.used_at <= since
        }
        if not unused:
            raise NotForked("there are zygotes for other kernels already")
        line = self._lines.pop(unused[min(unused)])
        if line.current is not None:
            line.current.retire("kernels of another kernelspec need its place")

    def _renew(self, lineage: ZygoteLineage, line: _Line) -> asyncio.Task[SandboxZygote]:
        if line.coming is None:
            work = self._start(lineage, line)
            line.coming = self._tasks.share(work, "start a zygote")
        return line.coming

    async def _start(self, lineage: ZygoteLineage, line: _Line) -> SandboxZygote:
        loop = asyncio.get_running_loop()
        modules = () if lineage.packages else self.settings.modules
        zygote: SandboxZygote | None = None
        try:
            zygote = SandboxZygote(lineage, self._sessions, self._tasks, self.uids)
            self._zygotes.add(zygote)
            zygote.exited.add_done_callback(self._forget(zygote))
            async with asyncio.timeout(_START_TIMEOUT):
                await zygote.start(modules)
        except (NotForked, BackendUnavailable, OSError, TimeoutError) as error:
            why = in_words(error) if error.args else f"it was not ready within {_START_TIMEOUT:g} s"
            if zygote is not None:
                zygote.retire(why)
            if not self._closed:
                self._tell(why, logging.WARNING)
            line.why = why
            line.retry_at = loop.time() + _RETRY_AFTER
            raise NotForked(why) from error
        finally:
            line.coming = None
        if self.uids is not None and zygote.unreadable is not None:
            logger.warning("Kernels have the gateway's uid: other users can't read %s", zygote.unreadable)
        if line.current is not None:
            line.current.retire("it has been replaced")
        line.current = zygote
        line.why = ""
        if self._closed:
            zygote.retire("the gateway ends")
        return zygote

    def _forget(self, zygote: SandboxZygote) -> Callable[[object], None]:
        return self._tasks.guard(lambda _: self._zygotes.discard(zygote), "end of a zygote")

    def processes(self) -> list[int]:
        """Return the outermost processes of the zygotes; the kernels are among their descendants."""
        return [zygote.process for zygote in self._zygotes]

    async def close(self) -> None:
        """End all zygotes with all their kernels, and remove the cgroups. Idempotent."""
        self._closed = True
        for zygote in tuple(self._zygotes):
            zygote.kill()
            await asyncio.shield(zygote.exited)
        await self._tasks.finished()
        if self.uids is not None:
            self.uids.close()
        if self.cgroups is not None:
            try:
                await asyncio.to_thread(self.cgroups.close)
            except OSError as error:
                logger.warning("The gateway's cgroups can't be removed: %s", in_words(error))


class SandboxZygote(Forker):
    """A zygote process in a sandbox, with its forked children, which with `uids` have one each."""

    def __init__(
        self,
        lineage: ZygoteLineage,
        sessions: Sequence[tuple[Path, bool]],
        tasks: Supervisor,
        uids: KernelUids | None = None,
    ) -> None:
        self._uids = uids
        self._lineage = lineage
        self._sessions = sessions
        self._first_mounts: int | None = None
        """A descriptor of its first mount namespace, which has the folders of all sessions.

        The zygote has left that namespace; a child enters it by this, and takes its own folders out of it.
        """
        self.reserved = 0
        self.unreadable: str | None = None
        """A loaded file that others can't read, so that its children need the gateway's uid."""
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                self._child: Child = self._spawn(theirs.fileno())
            except BaseException:
                control.close()
                raise
        super().__init__(self._child, control, dict(lineage.env), tasks)

    def _spawn(self, control: int) -> Child:
        readable = self._lineage.readable
        sessions = [(str(folder), writable) for folder, writable in self._sessions]
        with SandboxFiles() as contents:
            texts = {**files(system_part(readable)), NOTHING: b""}
            opened = {path: contents.add(text) for path, text in texts.items()}
            words = [*_NAMESPACES, *zygote_words(readable, sessions, opened), "--chdir", WORKSPACE]
            env = {**dict(self._lineage.env), ZYGOTE: str(control)}
            # It keeps its children itself; they get keepers of their own.
            env.pop(KEEPER, None)
            return bubblewrap.start(
                words,
                self._lineage.argv,
                env,
                contents,
                pass_fds=(control,),
                kind=Lasting,
                prepare=None if self._uids is None else self._uids.admit,
            )

    @property
    def process(self) -> int:
        """The id of bwrap's outer process."""
        return self._child.pid

    async def start(self, modules: Sequence[str]) -> None:
        """Wait until the zygote has loaded these modules. Raises NotForked."""
        own: list[Step] = [
            Memory("/tmp", _ZYGOTE_TMP, 0o1777),  # noqa: S108
            Folder(VIEW.home),
            *within_own(self._lineage.readable),
        ]
        sessions = [f"{SESSIONS}/{number}" for number in range(len(self._sessions))]
        ready = await self._begin(orders(sessions, own, WORKSPACE, modules))
        self.reserved = ready.reserved
        self.unreadable = ready.private or None

    def _first_descriptors(self) -> Sequence[int]:
        assert self._first_mounts is not None
        return (self._first_mounts,)

    def _take(self, descriptors: list[int]) -> bool:
        if len(descriptors) != 1:
            return False
        self._first_mounts = descriptors.pop()
        return True

    def _gone(self, exited: asyncio.Future[KernelExit]) -> None:
        if self._first_mounts is not None:
            os.close(self._first_mounts)
            self._first_mounts = None
        super()._gone(exited)
