"""The fork server: zygotes, and the kernels that they fork, as the gateway sees them.

A zygote (``image/zygote.py``) is an interpreter in a sandbox of its own that has loaded what kernels need.
There is one for each `Lineage`: a kernelspec with what all its kernels have in common. It is replaced after a
number of forks, after some time, and at the first doubt; it then ends with its last kernel. Kernels end with
their zygote.

What can't be forked faithfully is not forked: `ForkServer.fork` raises NotForked, which says why, and the
caller starts the kernel by itself. That is so for variables that the interpreter or the loaded modules have
read already, for libraries that start threads when they are loaded, and for folders that the zygote's sandbox
does not have.

Nothing here blocks the loop: cgroups are made in threads, sockets don't block, processes are watched by
pidfds.
"""

from __future__ import annotations

import asyncio
import logging
import os
import platform
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from cellgate_kernels.errors import BackendUnavailable
from cellgate_kernels.limits import ResourceLimits
from cellgate_kernels.provisioners import bubblewrap
from cellgate_kernels.provisioners.base import OOM_SCORE, KernelExit, last_words
from cellgate_kernels.provisioners.bubblewrap import Files
from cellgate_kernels.provisioners.cgroups import Cgroup, Cgroups
from cellgate_kernels.provisioners.child import Child, Lasting, Log, rlimits
from cellgate_kernels.provisioners.engine import out_of_memory
from cellgate_kernels.provisioners.folders import LaunchFolders
from cellgate_kernels.provisioners.mounts import (
    NOTHING,
    SESSIONS,
    VIEW,
    WORKSPACE,
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
from cellgate_kernels.provisioners.seccomp import sandbox_filter
from cellgate_kernels.provisioners.zygote_messages import (
    LENGTH,
    MOST_BYTES,
    MOST_DESCRIPTORS,
    Description,
    Ended,
    Forked,
    NotForked,
    Ready,
    Refused,
    orders,
    request,
    understand,
)
from cellgate_kernels.tasks import Supervisor, guarded

logger = logging.getLogger(__name__)

MODULES = ("numpy", "pandas", "matplotlib.pyplot")
"""What a zygote loads, where it is installed. They start no threads, and look for no shell when they are
imported, except pyplot, for which ``image/zygote.py`` makes up."""

BOOTSTRAP = "bootstrap.py"
# Named and explained in image/bootstrap.py and image/keeper.py.
ZYGOTE = "CELLGATE_ZYGOTE"
KEEPER = "CELLGATE_KEEPER"

USER = 1000
_ROOT = 0
_ZYGOTE_TMP = 64 * 1024 * 1024

_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--die-with-parent", "--new-session", "--clearenv"),
    *("--cap-add", "ALL", "--hostname", "cellgate", "--uid", str(_ROOT), "--gid", str(_ROOT)),
)

# Variables that the interpreter and compiled libraries read before any Python code runs, by their beginnings.
_READ_EARLY = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ", "OMP_", "KMP_", "GOMP_", "OPENBLAS_"),
    *(
        "GOTO_",
        "MKL_",
        "BLIS_",
        "VECLIB_",
        "NUMEXPR_",
        "LOKY_",
        "NPY_",
        "NUMPY_",
        "ARROW_",
        "JE_",
        "MIMALLOC_",
    ),
)

# Seconds.
_START_TIMEOUT = 30.0
_FORK_TIMEOUT = 10.0
_STATUS_TIMEOUT = 1.0
_RETRY_AFTER = 300.0

_ANSWER_BYTES = 1024
_MOST_TOLD = 100


@dataclass(frozen=True, slots=True)
class ForkSettings:
    """When a zygote is replaced, and how many there may be; `age` in seconds."""

    modules: tuple[str, ...] = MODULES
    forks: int = 500
    age: float = 3600.0
    lineages: int = 4


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a zygote is made for: the command and the environment that all its kernels have, and what they may
    read of the host. `packages`: whether they have a folder of packages, which may have other versions of
    what a zygote loads.
    """

    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    readable: tuple[str, ...]
    packages: bool


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """One kernel to be forked."""

    lineage: Lineage
    env: Mapping[str, str]
    limits: ResourceLimits
    folders: LaunchFolders
    reserved: int = 0


@dataclass(slots=True, eq=False)
class _Line:
    """The zygotes of one lineage: the one in use, and the start of the next."""

    current: Zygote | None = None
    coming: asyncio.Task[Zygote] | None = None
    retry_at: float = 0.0
    why: str = ""


def can_fork(argv: Sequence[str]) -> bool:
    """Whether a kernelspec's command starts our kernel for Python, with no other arguments."""
    return len(argv) == 4 and Path(argv[1]).name == BOOTSTRAP and argv[2] == "-f"


class ForkServer:
    """The zygotes of one gateway. `sessions`: the folders in which kernels' folders are, and whether kernels
    may write there. Without `cgroups` kernels have none. `close` it when no kernel is left.
    """

    def __init__(
        self,
        sessions: Sequence[tuple[Path, bool]],
        cgroups: Cgroups | None = None,
        settings: ForkSettings | None = None,
    ) -> None:
        self.settings = ForkSettings() if settings is None else settings
        self.cgroups = cgroups
        self._sessions = [(folder.resolve(), writable) for folder, writable in sessions]
        self._lines: dict[Lineage, _Line] = {}
        self._zygotes: set[Zygote] = set()
        self._tasks = Supervisor()
        self._kernels = 0
        self._told: set[str] = set()
        self._closed = False

    def way(self, argv: Sequence[str]) -> str:
        """How kernels with this command start: ``fork``, or ``cold`` if they can't be forked here."""
        failed = any(line.why for lineage, line in self._lines.items() if lineage.argv[:2] == tuple(argv[:2]))
        return "fork" if can_fork(argv) and not failed else "cold"

    async def fork(self, wanted: ForkRequest) -> ForkedChild:
        """A forked kernel behind its walls, as it begins to start. Raises NotForked; then nothing is left."""
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
        """Say once why kernels are not forked."""
        if why not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(why)
            logger.log(level, "A kernel is started by itself, as others may be for the same reason: %s", why)

    async def _fork(self, zygote: Zygote, wanted: ForkRequest, made: list[ForkedChild]) -> None:
        env = dict(wanted.env)
        zygote.check_variables(env)
        program = sandbox_filter(platform.machine())
        if program is None:
            # It is also what keeps a forked kernel from making namespaces; bubblewrap has another way.
            raise NotForked(f"there is no filter of system calls for {platform.machine()}")
        own_user = os.geteuid() != 0
        readable = wanted.lineage.readable
        description = Description(
            env=env,
            mounts=[Devices(), *session_part(wanted.limits, wanted.folders, readable)],
            folder=WORKSPACE,
            # What the zygote has loaded is shared, and no part of what the kernel may use.
            limits=rlimits(
                wanted.limits,
                processes=own_user,
                reserved=wanted.reserved + zygote.reserved,
                own_user=True,
            ),
            user=USER,
            oom_score=OOM_SCORE,
            filter=program,
        )
        encoded = description.encoded(self._source_of)
        cgroup: Cgroup | None = None
        if self.cgroups is not None:
            self._kernels += 1
            try:
                cgroup = await asyncio.to_thread(
                    self.cgroups.make, f"{self._kernels}", wanted.limits, reserved=wanted.reserved
                )
            except OSError as error:
                raise NotForked(f"its cgroup can't be made: {error}") from error
        await zygote.fork(encoded, cgroup, wanted.limits, made)

    def _source_of(self, path: str) -> str:
        """Where a child finds a folder or file of the host, before it gives up those of sessions."""
        # What is above it is ours, and may be reached by links; it may itself be written to by a kernel.
        real = Path(path).parent.resolve() / Path(path).name
        for number, (folder, _) in enumerate(self._sessions):
            if real.is_relative_to(folder):
                return str(Path(SESSIONS, str(number), real.relative_to(folder)))
        return path

    def _check_folders(self, folders: LaunchFolders) -> None:
        """Raises NotForked for folders that no zygote's sandbox has."""
        for folder in (folders.runtime, folders.workspace, folders.packages):
            if folder is not None and self._source_of(str(folder)) == str(folder):
                raise NotForked(f"{folder} is in none of the folders of this gateway's sessions")

    async def _zygote(self, lineage: Lineage) -> Zygote:
        """The zygote to fork from. Raises NotForked where there is none, and none can be made now."""
        line = self._lines.get(lineage)
        if line is None:
            if len(self._lines) >= self.settings.lineages:
                raise NotForked("there are zygotes for other kernels already")
            line = self._lines[lineage] = _Line()
        loop = asyncio.get_running_loop()
        zygote = line.current
        if zygote is None or not zygote.usable:
            if loop.time() < line.retry_at:
                raise NotForked(line.why)
            return await asyncio.shield(self._renew(lineage, line))
        if zygote.forks >= self.settings.forks or loop.time() - zygote.since >= self.settings.age:
            self._renew(lineage, line)
        return zygote

    def _renew(self, lineage: Lineage, line: _Line) -> asyncio.Task[Zygote]:
        if line.coming is None:
            work = self._start(lineage, line)
            line.coming = self._tasks.share(work, "start a zygote")
        return line.coming

    async def _start(self, lineage: Lineage, line: _Line) -> Zygote:
        loop = asyncio.get_running_loop()
        modules = () if lineage.packages else self.settings.modules
        zygote: Zygote | None = None
        try:
            zygote = Zygote(lineage, self._sessions, self._tasks, self._ended)
            self._zygotes.add(zygote)
            async with asyncio.timeout(_START_TIMEOUT):
                await zygote.start(modules)
        except (NotForked, BackendUnavailable, OSError, TimeoutError) as error:
            why = str(error) or f"it was not ready within {_START_TIMEOUT:g} s"
            if zygote is not None:
                zygote.retire(why)
            self._tell(why, logging.WARNING)
            line.why = why
            line.retry_at = loop.time() + _RETRY_AFTER
            raise NotForked(why) from error
        finally:
            line.coming = None
        if line.current is not None:
            line.current.retire("it has been replaced")
        line.current = zygote
        line.why = ""
        if self._closed:
            zygote.retire("the gateway ends")
        return zygote

    def _ended(self, zygote: Zygote) -> None:
        self._zygotes.discard(zygote)

    def processes(self) -> list[int]:
        """The outermost processes of the zygotes; the kernels are among their descendants."""
        return [zygote.process for zygote in self._zygotes]

    async def close(self) -> None:
        """End all zygotes with whatever they have forked, and remove the cgroups. Idempotent."""
        self._closed = True
        for zygote in tuple(self._zygotes):
            zygote.kill()
            await asyncio.shield(zygote.exited)
        await self._tasks.finished()
        if self.cgroups is not None:
            try:
                await asyncio.to_thread(self.cgroups.close)
            except OSError as error:
                logger.warning("The gateway's cgroups can't be removed: %s", error)


class Zygote:
    """One zygote process, and the children that it has forked.

    `ended` is called when it and all its children have ended. It is in use from `start` until `retire`.
    """

    def __init__(
        self,
        lineage: Lineage,
        sessions: Sequence[tuple[Path, bool]],
        tasks: Supervisor,
        ended: Callable[[Zygote], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._ended = ended
        self._lineage = lineage
        self._sessions = sessions
        self._ready: asyncio.Future[Ready] = self._loop.create_future()
        self._asked: frozenset[str] = frozenset()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._children: dict[int, ForkedChild] = {}
        self._outside: int | None = None
        self._retired = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        self.forks = 0
        self.since = self._loop.time()
        self.reserved = 0
        with theirs:
            try:
                self._child: Child = self._spawn(theirs.fileno())
            except BaseException:
                self._control.close()
                raise
        self._loop.add_reader(self._control, self._guard(self._receive))
        self._child.exited.add_done_callback(self._guard(self._gone))

    def _guard(self, callback: Callable[..., object]) -> Callable[..., None]:
        return guarded(callback, "zygote", self._broke)

    def _broke(self, error: Exception) -> None:
        """An internal error: nothing is known for sure any more."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
        self.kill()

    def _spawn(self, control: int) -> Child:
        readable = self._lineage.readable
        sessions = [(str(folder), writable) for folder, writable in self._sessions]
        with Files() as contents:
            texts = {**files(system_part(readable)), NOTHING: b""}
            opened = {path: contents.add(text) for path, text in texts.items()}
            words = [*_NAMESPACES, *zygote_words(readable, sessions, opened), "--chdir", WORKSPACE]
            env = {**dict(self._lineage.env), ZYGOTE: str(control)}
            # It keeps its children itself; they get keepers of their own.
            env.pop(KEEPER, None)
            return bubblewrap.start(
                words, self._lineage.argv, env, contents, pass_fds=(control,), kind=Lasting
            )

    @property
    def process(self) -> int:
        """The id of bwrap's outer process."""
        return self._child.pid

    @property
    def exited(self) -> asyncio.Future[KernelExit]:
        """Completed when it has ended, and with it all its children."""
        return self._child.exited

    @property
    def usable(self) -> bool:
        """Whether it forks."""
        return not self._retired and self._ready.done()

    async def start(self, modules: Sequence[str]) -> None:
        """Wait until it has loaded these modules. Raises NotForked."""
        own: list[Step] = [
            Memory("/tmp", _ZYGOTE_TMP, 0o1777),  # noqa: S108
            Folder(VIEW.home),
            *within_own(self._lineage.readable),
        ]
        sessions = [f"{SESSIONS}/{number}" for number in range(len(self._sessions))]
        self._control.send(orders(sessions, own, WORKSPACE, modules))
        ready = await self._ready
        if ready.threads != 1:
            raise NotForked("the modules that are loaded beforehand have started threads")
        if ready.failed:
            logger.info("Not loaded before kernels are forked: %s", ", ".join(ready.failed))
        self._asked = frozenset(ready.asked)
        self.reserved = ready.reserved
        self.since = self._loop.time()

    def check_variables(self, env: Mapping[str, str]) -> None:
        """Raises NotForked where a kernel's variables differ in one that has been read already."""
        common = dict(self._lineage.env)
        for name in sorted(common.keys() | env.keys()):
            if common.get(name) != env.get(name) and (name in self._asked or name.startswith(_READ_EARLY)):
                raise NotForked(f"the variable {name} was read before the fork")

    async def fork(
        self, description: bytes, cgroup: Cgroup | None, limits: ResourceLimits, made: list[ForkedChild]
    ) -> None:
        """Fork a kernel, which is added to `made` as soon as it exists. Raises NotForked."""
        number = self.forks
        self.forks += 1
        ours, theirs = socket.socketpair()
        with ours:
            ours.setblocking(False)
            with theirs:
                pidfd = await self._asked_for(number, theirs)
            if pidfd is None:
                self._end_if_unused()
                await _remove(cgroup)
                raise NotForked("the zygote did not fork")
            child = ForkedChild(pidfd, cgroup, limits.memory, self._tasks)
            made.append(child)
            self._children[number] = child
            child.exited.add_done_callback(self._guard(lambda _: self._child_ended(number)))
            try:
                async with asyncio.timeout(_FORK_TIMEOUT):
                    answer = await self._describe(ours, description, child, cgroup)
            except (OSError, TimeoutError) as error:
                answer = f"no answer: {error}".encode()
        if answer != b"ok":
            said = answer.decode(errors="replace")
            why = f"its walls could not be built: {said}{last_words(child.log_tail())}"
            self.retire(why)
            raise NotForked(why)

    async def _asked_for(self, number: int, door: socket.socket) -> int | None:
        """The pidfd of the child of this number; None if there is none, which puts the zygote in doubt."""
        if self._retired:
            return None
        answer: asyncio.Future[int] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            socket.send_fds(self._control, [request(number)], [door.fileno()])
            async with asyncio.timeout(_FORK_TIMEOUT):
                return await answer
        except (OSError, TimeoutError, NotForked) as error:
            self.retire(f"a fork failed: {error}")
            return None
        finally:
            self._waiting.pop(number, None)

    async def _describe(
        self, door: socket.socket, description: bytes, child: ForkedChild, cgroup: Cgroup | None
    ) -> bytes:
        assert self._outside is not None
        writer = child.log.writer()
        opened: list[int] = []
        try:
            if cgroup is not None:
                opened = await asyncio.to_thread(cgroup.open)
            descriptors = [self._outside, writer, *opened]
            socket.send_fds(door, [LENGTH.pack(len(description))], descriptors)
        finally:
            for descriptor in (writer, *opened):
                os.close(descriptor)
        child.log.follow()
        await self._loop.sock_sendall(door, description)
        answer = b""
        while part := await self._loop.sock_recv(door, _ANSWER_BYTES):
            answer += part
            if len(answer) > _ANSWER_BYTES:
                break
        return answer

    def _receive(self) -> None:
        try:
            message, descriptors, flags, _ = socket.recv_fds(
                self._control, MOST_BYTES, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return
        except ConnectionError:
            message, descriptors, flags = b"", [], 0
        try:
            if not message or flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                raise NotForked("the zygote has gone, or said too much")
            self._said(understand(message), descriptors)
        except NotForked as error:
            self._loop.remove_reader(self._control)
            self.retire(error.message)
            self.kill()
        finally:
            for descriptor in descriptors:
                os.close(descriptor)

    def _said(self, what: Ready | Forked | Refused | Ended, descriptors: list[int]) -> None:
        """Takes the descriptors that it needs out of the list."""
        match what:
            case Ready() if len(descriptors) == 1 and not self._ready.done():
                self._outside = descriptors.pop()
                self._ready.set_result(what)
            case Forked(number) if len(descriptors) == 1 and number < self.forks:
                answer = self._waiting.get(number)
                if answer is not None and not answer.done():
                    answer.set_result(descriptors.pop())
                else:
                    # Nobody waits any more.
                    with suppress(ProcessLookupError):
                        signal.pidfd_send_signal(descriptors[0], signal.SIGKILL)
            case Refused(number, why) if number in self._waiting:
                answer = self._waiting[number]
                if not answer.done():
                    answer.set_exception(NotForked(why))
            case Ended(number, status) if number < self.forks:
                if number in self._children:
                    self._children[number].reported(status)
            case _:
                raise NotForked("the zygote said what nobody had asked for")

    def retire(self, why: str) -> None:
        """Fork no more; when the last child has ended, so does this. Idempotent."""
        if not self._retired:
            self._retired = True
            logger.info("A zygote is given up after %d forks: %s", self.forks, why)
        self._end_if_unused()

    def _child_ended(self, number: int) -> None:
        del self._children[number]
        self._end_if_unused()

    def _end_if_unused(self) -> None:
        if self._retired and not self._children and not self._waiting:
            self.kill()

    def kill(self) -> None:
        """End it, with all its children."""
        self._retired = True
        self._child.kill()

    def _gone(self, exited: asyncio.Future[KernelExit]) -> None:
        self._retired = True
        self._loop.remove_reader(self._control)
        self._control.close()
        if self._outside is not None:
            os.close(self._outside)
            self._outside = None
        why = f"the zygote ended. {exited.result().message}{last_words(self._child.log_tail())}"
        if not self._ready.done():
            self._ready.set_exception(NotForked(why))
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(NotForked(why))
        if self._ready.done():
            self._ready.exception()  # nobody may be waiting for it
        for child in self._children.values():
            child.reported(-signal.SIGKILL)
        self._ended(self)


@dataclass(slots=True)
class _Fate:
    """What is known of a child's end. `given`: how we said that it ends; `killed`: whether we ended it.
    `status`: see `KernelExit.of_shell_code`, negative for a signal.
    """

    given: KernelExit | None = None
    killed: bool = False
    status: int | None = None
    reported: asyncio.Event = field(default_factory=asyncio.Event)


class ForkedChild:
    """A kernel's first process, whose parent is a zygote. It is killed by its pidfd, with its namespace."""

    oom_score_refused = False

    def __init__(self, pidfd: int, cgroup: Cgroup | None, memory: int, tasks: Supervisor) -> None:
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = pidfd
        self._cgroup = cgroup
        self._memory = memory
        self._tasks = tasks
        self._fate = _Fate()
        self.log = Log(self._guard)
        self.inner_pid: int | None = _process_of(pidfd)
        self.exited: asyncio.Future[KernelExit] = self._loop.create_future()
        self.started: asyncio.Future[None] = self._loop.create_future()
        self.started.set_result(None)
        self._loop.add_reader(pidfd, self._guard(self._on_exit))

    def _guard(self, callback: Callable[..., object]) -> Callable[..., None]:
        return guarded(callback, "forked kernel", self._broke)

    def _broke(self, error: Exception) -> None:
        """An internal error: the kernel must not continue; its end is still watched."""
        self.log.close()
        self.kill()

    @property
    def pid(self) -> int:
        """Its id on this machine, until `exited`; 0 if it had ended before that could be asked."""
        return self.inner_pid or 0

    def signal(self, signum: int) -> None:
        """Send a signal to it; does nothing after its end."""
        if self._pidfd is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, signum)

    def kill(self, fate: KernelExit | None = None, first: int | None = None) -> None:
        """End it with all its processes; `exited` completes when they are gone, with `fate` if given.

        `first` is for processes outside of a pid namespace; the end of this one ends its namespace.
        """
        self._fate.given = self._fate.given or fate
        self._fate.killed = True
        self.signal(signal.SIGKILL)

    def log_tail(self) -> str:
        """The last 8 KiB of its stderr so far."""
        return self.log.tail

    def reported(self, status: int) -> None:
        """Its parent says how it ended."""
        if self._fate.status is None:
            self._fate.status = status
            self._fate.reported.set()

    def _on_exit(self) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        self._tasks.start(self._bury(), "end of a forked kernel", failed=self._lost)

    async def _bury(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_STATUS_TIMEOUT):
                await self._fate.reported.wait()
        ended = self._explained()
        if self._cgroup is not None:
            by_itself = ended.signal == signal.SIGKILL and not self._fate.killed
            if by_itself and await asyncio.to_thread(self._cgroup.ran_out_of_memory):
                ended = out_of_memory(self._memory)
            await _remove(self._cgroup)
        self.log.read()
        self.log.close()
        if not self.exited.done():
            self.exited.set_result(ended)

    def _explained(self) -> KernelExit:
        if self._fate.given is not None:
            return self._fate.given
        status = -signal.SIGKILL if self._fate.status is None else self._fate.status
        return KernelExit.of_shell_code(status) if status >= 0 else KernelExit.of_returncode(status)

    def _lost(self, error: Exception) -> None:
        """An internal error: whoever waits for the end must still be told."""
        self.log.close()
        if not self.exited.done():
            self.exited.set_result(self._explained())


async def _remove(cgroup: Cgroup | None) -> None:
    """Remove a cgroup; one that can't be removed is only logged. The gateway's next start tries again."""
    if cgroup is not None:
        try:
            await asyncio.to_thread(cgroup.remove)
        except OSError as error:
            logger.warning("The cgroup of a kernel can't be removed: %s", error)


def _process_of(pidfd: int) -> int | None:
    """The id of a pidfd's process; None once it has been reaped."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value) if int(value) > 0 else None
    return None
