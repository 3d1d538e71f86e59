"""The process that forks kernels, at the other end of a socket, and the kernels that it has forked.

A `Forker` is the gateway's view of a running zygote, wherever it runs: ``server`` has the ones in sandboxes,
``shared_containers`` the ones in containers. It sends requests, each with one end of a connection to the
child, and describes the kernel to the child. A `ForkedChild` is such a child, which is watched and ended by
its pidfd. A descriptor without a waiter is closed, and never signalled: it may be anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.tasks import Supervisor, guarded
from cellgate_kernels.engine.engine import out_of_memory
from cellgate_kernels.forking.messages import (
    LENGTH,
    MOST_BYTES,
    MOST_DESCRIPTORS,
    Ended,
    ForkRefusal,
    ForkSuccess,
    NotForked,
    Ready,
    request,
    understand,
)
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.launch.base import last_words
from cellgate_kernels.launch.child import Log
from cellgate_kernels.limits.cgroups import Cgroup

logger = logging.getLogger(__name__)

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
_FORK_TIMEOUT = 10.0
_STATUS_TIMEOUT = 1.0

_ANSWER_BYTES = 1024
_OK, _WITH_NAMES = b"ok", b"ok, with names"
"""The answers of a child that matches its description, the second with the names of a workspace."""


class Outer(Protocol):
    """The environment in which a zygote runs."""

    @property
    def exited(self) -> asyncio.Future[KernelExit]:
        """Completed when it has ended, and with it all that was forked there."""

    def kill(self) -> None:
        """End it, with all processes forked there."""

    def log_tail(self) -> str:
        """Return the end of the zygote's stderr, as far as it is known."""


class Forker:
    """One zygote process, and the children that it has forked.

    `outer`: where it runs. `control`: our end of the connection to it, which this closes. `common`: the
    variables with which it was started. It is in use from `start` until `retire`.
    """

    def __init__(
        self, outer: Outer, control: socket.socket, common: Mapping[str, str], tasks: Supervisor
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._outer = outer
        self._control = control
        self._control.setblocking(False)
        self._common = common
        self._tasks = tasks
        self._ready: asyncio.Future[Ready] = self._loop.create_future()
        self._read_variables: frozenset[str] = frozenset()
        self._waiting: dict[int, asyncio.Future[int]] = {}
        self._children: dict[int, ForkedChild] = {}
        self._retired = False
        self.forked = 0
        """The number of forks requested from it."""
        self._heard = 0
        self.since = self._loop.time()
        self._loop.add_reader(control, self._guard(self._receive))
        outer.exited.add_done_callback(self._guard(self._gone))

    def _guard(self, callback: Callable[..., object]) -> Callable[..., None]:
        return guarded(callback, "zygote", self._broke)

    def _broke(self, error: Exception) -> None:
        """End the zygote after an internal error: its state is unknown."""
        if self._control.fileno() >= 0:
            self._loop.remove_reader(self._control)
        self.kill()

    @property
    def exited(self) -> asyncio.Future[KernelExit]:
        """Completed when it has ended, and with it all its children."""
        return self._outer.exited

    @property
    def usable(self) -> bool:
        """Whether it can fork a kernel now."""
        return not self._retired and self._ready.done()

    @property
    def read_variables(self) -> frozenset[str]:
        """Environment variables that the interpreter has read while it loaded its modules."""
        return self._read_variables

    async def _begin(self, orders: bytes) -> Ready:
        """Send its orders, and wait until it has followed them. Raises NotForked."""
        self._control.send(orders)
        ready = await self._ready
        if ready.threads != 1:
            raise NotForked("the modules that are loaded beforehand have started threads")
        if ready.failed:
            logger.info("Modules that are not loaded before kernels are forked: %s", ", ".join(ready.failed))
        self._read_variables = frozenset(ready.asked)
        self.since = self._loop.time()
        return ready

    def check_variables(self, env: Mapping[str, str]) -> None:
        """Raise NotForked if a kernel has another value for a variable that was read already."""
        for name in sorted(self._common.keys() | env.keys()):
            if self._common.get(name) != env.get(name) and (
                name in self._read_variables or is_read_early(name)
            ):
                raise NotForked(f"the variable {name} was read before the fork")

    async def fork(
        self,
        description: bytes,
        cgroup: Cgroup | None,
        limits: ResourceLimits,
        further: Sequence[int],
        made: list[ForkedChild],
        scratch: str = "",
    ) -> None:
        """Fork a kernel, which is added to `made` as soon as it exists. Raises NotForked.

        `further`: descriptors for it. `scratch`: a folder that the zygote must remove after its end.
        """
        number = self.forked
        self.forked += 1
        try:
            ours, theirs = socket.socketpair()
        except OSError as error:
            await remove_cgroup(cgroup)
            raise NotForked(f"there is no connection for it: {in_words(error)}") from error
        with ours:
            ours.setblocking(False)
            with theirs:
                pidfd = await self._request_child(number, theirs, scratch)
            if pidfd is None:
                self._end_if_unused()
                await remove_cgroup(cgroup)
                raise NotForked("the zygote did not fork")
            try:
                child = self._child_of(pidfd, cgroup, limits)
            except NotForked as error:
                self._doubt(error.message)
                await remove_cgroup(cgroup)
                raise
            made.append(child)
            self._children[number] = child
            child.exited.add_done_callback(self._guard(lambda _: self._child_ended(number)))
            try:
                async with asyncio.timeout(_FORK_TIMEOUT):
                    answer = await self._describe(ours, description, child, cgroup, further)
            except (OSError, TimeoutError) as error:
                answer = f"no answer: {in_words(error)}".encode()
        child.has_names = answer == _WITH_NAMES
        if answer not in (_OK, _WITH_NAMES):
            said = answer.decode(errors="replace")
            why = f"its walls could not be built: {said}{last_words(child.log_tail())}"
            self.retire(why)
            raise NotForked(why)

    def _child_of(self, pidfd: int, cgroup: Cgroup | None, limits: ResourceLimits) -> ForkedChild:
        """Return the child of this descriptor, which it takes over or closes. Raises NotForked."""
        try:
            self._check_child(pidfd)
            return self._new_child(pidfd, cgroup, limits)
        except (OSError, ValueError) as error:
            os.close(pidfd)
            raise NotForked(f"the child that the zygote names is none: {in_words(error)}") from error
        except BaseException:
            os.close(pidfd)
            raise

    def _check_child(self, pidfd: int) -> None:
        """Raise NotForked or OSError unless the descriptor may be a child of the zygote."""

    def _doubt(self, why: str) -> None:
        """Retire the zygote, which has named an impossible child."""
        self.retire(why)

    def _new_child(self, pidfd: int, cgroup: Cgroup | None, limits: ResourceLimits) -> ForkedChild:
        return ForkedChild(pidfd, cgroup, limits.memory, self._tasks)

    async def _request_child(self, number: int, door: socket.socket, scratch: str) -> int | None:
        """Have a child with this number forked; `door` is the child's end of the connection.

        Returns its pidfd; None if there is none, which puts the zygote in doubt.
        """
        if self._retired:
            return None
        answer: asyncio.Future[int] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            socket.send_fds(self._control, [request(number, scratch)], [door.fileno()])
            async with asyncio.timeout(_FORK_TIMEOUT):
                return await answer
        except (OSError, TimeoutError, NotForked) as error:
            self.retire(f"a fork failed: {in_words(error)}")
            return None
        finally:
            self._waiting.pop(number, None)

    async def _describe(
        self,
        door: socket.socket,
        description: bytes,
        child: ForkedChild,
        cgroup: Cgroup | None,
        further: Sequence[int],
    ) -> bytes:
        writer = child.log.writer()
        opened: list[int] = []
        try:
            if cgroup is not None:
                opened = await asyncio.to_thread(cgroup.open)
            descriptors = [*self._first_descriptors(), writer, *further, *opened]
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

    def _first_descriptors(self) -> Sequence[int]:
        """Return the descriptors that each child gets before its own."""
        return ()

    def _take(self, descriptors: list[int]) -> bool:
        """Take the descriptors that came with `Ready` out of the list; return whether they are expected."""
        return not descriptors

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

    def _said(self, what: Ready | ForkSuccess | ForkRefusal | Ended, descriptors: list[int]) -> None:
        """Take the needed descriptors out of the list."""
        self._heard += 1
        if self._heard > 1 + 2 * self.forked:
            raise NotForked("the zygote said more than an answer and an end of each fork")
        match what:
            case Ready() if not self._ready.done() and self._take(descriptors):
                self._ready.set_result(what)
            case ForkSuccess(number) if len(descriptors) == 1 and number < self.forked:
                answer = self._waiting.get(number)
                # Without a waiter, the child ends as it finds its connection closed.
                if answer is not None and not answer.done():
                    answer.set_result(descriptors.pop())
            case ForkRefusal(number, why) if number in self._waiting:
                answer = self._waiting[number]
                if not answer.done():
                    answer.set_exception(NotForked(why))
            case Ended(number, status) if number < self.forked:
                if number in self._children:
                    self._children[number].reported(status)
            case _:
                raise NotForked("the zygote said what nobody had asked for")

    def retire(self, why: str) -> None:
        """Fork no more; end the zygote after its last child. Idempotent."""
        if not self._retired:
            self._retired = True
            logger.info("A zygote is given up after %d forks: %s", self.forked, why)
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
        self._outer.kill()

    def _gone(self, exited: asyncio.Future[KernelExit]) -> None:
        self._retired = True
        self._loop.remove_reader(self._control)
        self._control.close()
        why = f"the zygote ended. {exited.result().message}{last_words(self._outer.log_tail())}"
        if not self._ready.done():
            self._ready.set_exception(NotForked(why))
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(NotForked(why))
        if self._ready.done():
            self._ready.exception()  # nobody may be waiting for it
        for child in self._children.values():
            child.reported(-signal.SIGKILL)


def is_read_early(name: str) -> bool:
    """Return whether the interpreter or a library reads this variable before any Python code runs."""
    return name.startswith(_READ_EARLY)


@dataclass(slots=True)
class _Fate:
    """The facts about a child's end. `given`: the end that we announced; `killed`: whether we ended it.
    `status`: see `KernelExit.of_shell_code`, negative for a signal.
    """

    given: KernelExit | None = None
    killed: bool = False
    status: int | None = None
    reported: asyncio.Event = field(default_factory=asyncio.Event)


class ForkedChild:
    """A kernel's first process, whose parent is a zygote. It is killed by its pidfd, with its namespace."""

    oom_score_refused = False

    ending: Callable[[], None] | None = None
    """Called when it has ended and its cgroup is still there."""

    def __init__(self, pidfd: int, cgroup: Cgroup | None, memory: int, tasks: Supervisor) -> None:
        self._loop = asyncio.get_running_loop()
        self._pidfd: int | None = pidfd
        self._cgroup = cgroup
        self._memory = memory
        self._tasks = tasks
        self._fate = _Fate()
        self._memory_kills = 0
        self.log = Log(self._guard)
        self.has_names = False
        """Whether it has taken the names of a workspace that it was sent."""
        self.inner_pid: int | None = process_of(pidfd)
        self.exited: asyncio.Future[KernelExit] = self._loop.create_future()
        self.started: asyncio.Future[None] = self._loop.create_future()
        self.started.set_result(None)
        self._loop.add_reader(pidfd, self._guard(self._on_exit))

    def _guard(self, callback: Callable[..., object]) -> Callable[..., None]:
        return guarded(callback, "forked kernel", self._broke)

    def _broke(self, error: Exception) -> None:
        """End the kernel after an internal error; its end is still watched."""
        self.log.close()
        self.kill()

    @property
    def pid(self) -> int:
        """The process id on this machine, until `exited`; 0 if the child ended before it could be read."""
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
        """Return the last 8 KiB of its stderr so far."""
        return self.log.tail

    async def explain_kill(self) -> KernelExit | None:
        """Return an out-of-memory exit, if the system killed a process of this cgroup since the last call."""
        return out_of_memory(self._memory) if await self._ran_out_of_memory() else None

    async def _ran_out_of_memory(self) -> bool:
        """Return whether the system ended a process for lack of memory and no earlier end explains that."""
        if self._cgroup is None:
            return False
        known = self._memory_kills
        self._memory_kills = await asyncio.to_thread(self._cgroup.memory_kills)
        return self._memory_kills > known

    def reported(self, status: int) -> None:
        """Note the wait status that the child's parent reported."""
        if self._fate.status is None:
            self._fate.status = status
            self._fate.reported.set()

    def _on_exit(self) -> None:
        assert self._pidfd is not None
        self._loop.remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = None
        if self.ending is not None:
            self.ending()
        self._tasks.start(self._bury(), "end of a forked kernel", failed=self._lost)

    async def _bury(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_STATUS_TIMEOUT):
                await self._fate.reported.wait()
        ended = self._explained()
        if ended.signal == signal.SIGKILL and not self._fate.killed:
            ended = await self.explain_kill() or ended
        await self._clear()
        await self._seal()
        await remove_cgroup(self._cgroup)
        self.log.read()
        self.log.close()
        if not self.exited.done():
            self.exited.set_result(ended)

    async def _clear(self) -> None:
        """End remaining processes: there are none, if it was the first process of a pid namespace."""

    async def _seal(self) -> None:
        """Close its files to others, which can't see them if it had a mount namespace of its own."""

    def _explained(self) -> KernelExit:
        if self._fate.given is not None:
            return self._fate.given
        status = -signal.SIGKILL if self._fate.status is None else self._fate.status
        return KernelExit.of_shell_code(status) if status >= 0 else KernelExit.of_returncode(status)

    def _lost(self, error: Exception) -> None:
        """Report an end after an internal error to all waiters."""
        self.log.close()
        if not self.exited.done():
            self.exited.set_result(self._explained())


async def remove_cgroup(cgroup: Cgroup | None) -> None:
    """Remove a cgroup; one that can't be removed is only logged. The gateway's next start tries again."""
    if cgroup is not None:
        try:
            await asyncio.to_thread(cgroup.remove)
        except OSError as error:
            logger.warning("The cgroup of a kernel can't be removed: %s", in_words(error))


def process_of(pidfd: int) -> int | None:
    """Return the id of a pidfd's process; None once it has been reaped, and for any other descriptor."""
    for line in Path(f"/proc/self/fdinfo/{pidfd}").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "Pid":
            return int(value) if int(value) > 0 else None
    return None
