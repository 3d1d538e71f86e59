"""Kernels that are children of this process: started on the loop's thread, watched by pidfds, and ended.

`Child` supervises one process and knows nothing of kernels; `ChildProvisioner` makes a provisioner of it.
There is no thread, no SIGCHLD handler and no polling: the loop watches the process's pidfd and its stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import shutil
import signal
import subprocess
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import ClassVar, ParamSpec, Protocol

from cellgate_kernels.base.errors import BackendUnavailable, KernelStartFailed, in_words
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.launch.backend import KernelExit, Launch
from cellgate_kernels.launch.base import OOM_SCORE, SYSTEM_PATH, CellgateProvisioner, last_words

P = ParamSpec("P")

LOG_TAIL_BYTES = 8 * 1024
OPEN_FILES = 4096
PENDING_SIGNALS = 4096  # and timers

# The pause between two reads of a child's stderr: a child that floods its stderr costs a fraction of a
# percent of a core, and is itself slowed down by the full pipe.
_LOG_PAUSE = 0.05
_PIPE_BYTES = 64 * 1024

# The seconds that bwrap gets to exit after its namespace ended, and a keeper after its kernels ended.
_FOLLOW_TIMEOUT = 1.0


class Supervised(Protocol):
    """The interface of a kernel's supervised process, whichever process is its parent."""

    exited: asyncio.Future[KernelExit]
    started: asyncio.Future[None]
    ending: Callable[[], None] | None
    inner_pid: int | None
    oom_score_refused: bool

    @property
    def pid(self) -> int:
        """The process's id on this machine, until `exited`."""

    def signal(self, signum: int) -> None:
        """Send a signal to the process; does nothing after its end."""

    def kill(self, fate: KernelExit | None = None, first: int | None = None) -> None:
        """End the kernel's processes; `exited` then completes with `fate`. `first`: see `Child`."""

    def log_tail(self) -> str:
        """Return the last 8 KiB of the process's stderr so far."""


class Log:
    """The end of a process's stderr. `guard` wraps the callbacks of the loop."""

    def __init__(self, guard: Callable[[Callable[[], object]], Callable[[], None]]) -> None:
        self._loop = asyncio.get_running_loop()
        self._guard = guard
        self._tail = b""
        self._resume: asyncio.TimerHandle | None = None
        self._reader: int | None = None

    def writer(self) -> int:
        """Return a descriptor for the process's stderr; the caller closes it once the process is started."""
        self._reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(writer, True)
        return writer

    @property
    def tail(self) -> str:
        """Return the last 8 KiB of stderr so far."""
        return self._tail.decode(errors="replace")

    def follow(self) -> None:
        """Start reading stderr, with a pause after each read."""
        if self._reader is not None:
            self._loop.add_reader(self._reader, self._guard(self._readable))

    def _readable(self) -> None:
        if self.read() and self._reader is not None:
            self._loop.remove_reader(self._reader)
            self._resume = self._loop.call_later(_LOG_PAUSE, self._guard(self.follow))

    def read(self) -> bool:
        """Read the available bytes; when all writers have closed their end, stop reading and return False."""
        if self._reader is None:
            return False
        with suppress(BlockingIOError):
            data = os.read(self._reader, _PIPE_BYTES)
            self._tail = (self._tail + data)[-LOG_TAIL_BYTES:]
            if not data:
                self._loop.remove_reader(self._reader)
                return False
        return True

    def close(self) -> None:
        """Stop reading and close the pipe. Idempotent."""
        if self._resume is not None:
            self._resume.cancel()
        if self._reader is not None:
            self._loop.remove_reader(self._reader)
            os.close(self._reader)
            self._reader = None


class Child:
    """One child process, leader of its own session, with no stdin and stdout.

    `status_fd` is the reading end of bubblewrap's ``--info-fd``. With it, the child counts as started once
    bwrap names the first process of the pid namespace (`inner_pid`), and as ended when that namespace is gone
    too. `release_fd` is the writing end of ``--block-fd``: nothing runs in the sandbox before this is closed.
    `lifetime_fd` is only held open. The child owns all three. It must be made in the loop's thread, because a
    parent's death signal is sent when the thread that forked ends (prctl(2)). Raises OSError.

    `oom_score_refused`: whether the system refused to let its OOM killer take the child first.
    """

    expendable: ClassVar[bool] = True

    prepare: Callable[[int], None] | None = None
    """Called with the first process of the pid namespace before anything runs in the sandbox."""

    ending: Callable[[], None] | None = None
    """Called when the process has ended and the system still has its counts."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        status_fd: int | None = None,
        release_fd: int | None = None,
        lifetime_fd: int | None = None,
        explain: Callable[[int], KernelExit] = KernelExit.of_returncode,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._explain = explain
        self._status = b""
        self._pidfd: int | None = None
        self._inner_fd: int | None = None
        self._fate: KernelExit | None = None
        self.inner_pid: int | None = None
        self.oom_score_refused = False
        self._status_fd = status_fd
        self._release_fd = release_fd
        self._lifetime_fd = lifetime_fd
        self._insist: asyncio.TimerHandle | None = None
        self._tasks = Supervisor(failed=self._failed)
        self.exited: asyncio.Future[KernelExit] = self._loop.create_future()
        self.started: asyncio.Future[None] = self._loop.create_future()
        self._log = Log(self._guard)
        log_writer = self._log.writer()
        try:
            self._process = subprocess.Popen(
                argv,
                env=env,
                cwd=cwd,
                pass_fds=pass_fds,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log_writer,
                start_new_session=True,
            )
        except BaseException:
            self._close_fds()
            raise
        finally:
            os.close(log_writer)
        self._watch()

    def _watch(self) -> None:
        try:
            self._pidfd = os.pidfd_open(self._process.pid)
            self._offer_to_oom_killer(self._process.pid)
            self._loop.add_reader(self._pidfd, self._guard(self._on_exit))
            self._log.follow()
            if self._status_fd is not None:
                self._loop.add_reader(self._status_fd, self._guard(self._on_status))
        except BaseException:
            self._process.kill()
            self._process.wait()
            self._close_fds()
            raise
        if self._status_fd is None:
            self.started.set_result(None)

    def _guard(self, callback: Callable[P, object]) -> Callable[P, None]:
        return self._tasks.guard(callback, "child")

    def _failed(self, name: str, error: Exception) -> None:
        """End the process after an internal error; its end is still reported."""
        if self._pidfd is None:
            return  # it has ended
        self._fate = self._fate or KernelExit.of_returncode(-signal.SIGKILL)
        self._stop_reading()
        # Closing the other descriptors also ends processes that wait for them in the sandbox.
        self._close("_status_fd", "_release_fd", "_inner_fd", "_lifetime_fd")
        try:
            self.signal(signal.SIGKILL)
        finally:
            self._loop.add_reader(self._pidfd, self._guard(self._bury))

    def _bury(self) -> None:
        """Reap the process after an internal error, without the usual steps: one of them may have failed."""
        self._process.wait()
        self._close_fds()
        self._tell_end()

    @property
    def pid(self) -> int:
        """The process's id, which is not reused before `exited`."""
        return self._process.pid

    def signal(self, signum: int) -> None:
        """Send a signal to the process's group; does nothing after its end."""
        if not self.exited.done() and self._process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signum)

    def kill(self, fate: KernelExit | None = None, first: int | None = None) -> None:
        """End the process, its group and its pid namespace; `exited` then completes, with any `fate`.

        `first`: a signal by which a process without a pid namespace ends its children and itself. SIGKILL
        follows if the process is still alive a moment later.
        """
        self._fate = self._fate or fate
        if self._insist is not None:
            self.signal(signal.SIGKILL)
            return
        if self._inner_fd is None:
            self.signal(signal.SIGKILL if first is None else first)
        else:
            # The outer process reaps the inner one and then exits. If it were killed first, it would leave a
            # zombie to init, which in a container may be a program that reaps nothing.
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inner_fd, signal.SIGKILL)
        self._insist = self._loop.call_later(_FOLLOW_TIMEOUT, self._guard(self.signal), signal.SIGKILL)

    def log_tail(self) -> str:
        """Return the last 8 KiB of the process's stderr so far."""
        return self._log.tail

    def _on_status(self) -> None:
        assert self._status_fd is not None
        data = os.read(self._status_fd, 4096)
        self._status += data
        if data:
            return
        self._close("_status_fd")
        if self._status and self._process.returncode is None:
            try:
                inner = int(json.loads(self._status)["child-pid"])
            except ValueError:
                return  # bwrap writes its status in pieces, and was killed between two writes
            # An inner process that is already gone need not be watched: the outer one is about to exit too.
            with suppress(ProcessLookupError):
                self._inner_fd = os.pidfd_open(inner)
                self.inner_pid = inner
                # The inner process may have been forked before the outer process's score was set.
                self._offer_to_oom_killer(inner)
                if self.prepare is not None:
                    self.prepare(inner)
            self._close("_release_fd")
            if not self.started.done():
                self.started.set_result(None)

    def _offer_to_oom_killer(self, pid: int) -> None:
        """Raise a process's oom_score_adj, which later children inherit; does nothing when it has ended."""
        if not self.expendable:
            return
        try:
            Path(f"/proc/{pid}/oom_score_adj").write_text(str(OOM_SCORE))
        except (FileNotFoundError, ProcessLookupError):
            return
        except PermissionError:
            # A starting setuid program belongs to root. Isolation does not depend on this score.
            self.oom_score_refused = True

    def _on_exit(self) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        if self.ending is not None:
            self.ending()
        # Until the leader is reaped, its group's id can't be reused.
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._inner_fd is None:
            self._finish()
        else:
            self._loop.add_reader(self._inner_fd, self._guard(self._finish))

    def _finish(self) -> None:
        self._log.read()
        self._close_fds()
        self._tell_end()

    def _tell_end(self) -> None:
        self.exited.set_result(self._fate or self._explain(self._process.returncode))
        if not self.started.done():
            self.started.set_result(None)

    def _stop_reading(self) -> None:
        if self._insist is not None:
            self._insist.cancel()
        self._log.close()

    def _close_fds(self) -> None:
        self._stop_reading()
        self._close("_status_fd", "_release_fd", "_pidfd", "_inner_fd", "_lifetime_fd")

    def _close(self, *names: str) -> None:
        for name in names:
            fd: int | None = getattr(self, name)
            if fd is not None:
                self._loop.remove_reader(fd)
                os.close(fd)
                setattr(self, name, None)


class Lasting(Child):
    """A child that others depend on: it is not offered to the OOM killer."""

    expendable = False


class ChildProvisioner(CellgateProvisioner):
    """A provisioner whose kernel is a child of this process, started by the backend's `_spawn`."""

    _child: Supervised | None = None

    @abstractmethod
    def _spawn(self, launch: Launch) -> Child:
        """Start the child. Raises BackendUnavailable when a needed program is not installed."""

    async def _begin(self, launch: Launch) -> Supervised:
        """Return the kernel's process. Raises as `_spawn`; no process is left after a cancellation."""
        return self._spawn(launch)

    async def _start(self, launch: Launch) -> None:
        try:
            self._child = await self._begin(launch)
        except OSError as error:
            raise KernelStartFailed(f"The kernel could not be started: {in_words(error)}") from error
        self._child.ending = self._look_last
        self._follow(self._child.exited)
        await asyncio.shield(self._child.started)
        if self._child.exited.done():
            ended = self._child.exited.result().message
            raise KernelStartFailed(
                f"The kernel ended while it was started. {ended}{last_words(self._child.log_tail())}"
            )

    @property
    def process(self) -> int | None:
        child = self._child
        if child is None or child.exited.done():
            return None
        return child.inner_pid or child.pid or None

    def _end(self) -> None:
        if self._child is not None:
            self._child.kill()

    def _signal(self, signum: int) -> None:
        if self._child is not None:
            self._child.signal(signum)

    async def log_tail(self) -> str:
        return self._child.log_tail() if self._child is not None else ""


def find_program(name: str, package: str) -> str:
    """Return a system program's path. Raises BackendUnavailable naming the Debian package to install."""
    path = shutil.which(name, path=SYSTEM_PATH)
    if path is None:
        raise BackendUnavailable(f"{name} is not installed; on Debian and Ubuntu: apt-get install {package}")
    return path


def rlimits(
    limits: ResourceLimits, *, processes: bool, reserved: int = 0, own_user: bool = False
) -> dict[str, int]:
    """Return a kernel's limits by the option names of prlimit(1).

    `memory` is RLIMIT_DATA, the private writable memory of each process: RLIMIT_AS would also count address
    space that BLAS only reserves. `reserved` is added because V8's memory for code counts too. Shared memory
    and the sum over several processes are not limited. `disk` is the largest size of one file. `processes`
    limits tasks to `pids`: without a user namespace of their own (`own_user`) all tasks of the user count.
    For root, `processes` has no effect.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
    limits_by_name = {"core": 0, "nofile": files, "fsize": limits.disk, "data": limits.memory + reserved}
    if own_user:
        limits_by_name["sigpending"] = PENDING_SIGNALS
    if processes:
        limits_by_name["nproc"] = limits.pids
    return limits_by_name


def rlimit_arguments(
    limits: ResourceLimits, *, processes: bool, reserved: int = 0, own_user: bool = False
) -> list[str]:
    """Return a prlimit(1) command line to which the kernel's command is appended; see `rlimits`."""
    named = rlimits(limits, processes=processes, reserved=reserved, own_user=own_user)
    options = (f"--{name}={most}" for name, most in named.items())
    return [find_program("prlimit", "util-linux"), *options, "--"]
