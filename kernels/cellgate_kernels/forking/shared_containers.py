"""Containers that hold the kernels of one principal each, as forks of a zygote in the container.

There is one for each `Sharers`: a principal, a kernelspec and limits. Its first process loads modules
(``inside/container_zygote.py``) and forks a kernel for each `Seat`, with folders, variables, a keeper and,
where we may divide the container's cgroup, a cgroup of its own. It is replaced after a number of forks, some
time, or at a doubt, and ends with its last kernel. The kernels' folders lie side by side in folders that are
mounted when the container starts, as no others can be mounted later. Only root owns those, so no kernel can
exchange a neighbour's folder for a link: the gateway must be root. What can't be forked raises NotForked.
"""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import os
import secrets
import signal
import socket
import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cellgate_kernels.base.branching import BRANCHES
from cellgate_kernels.base.errors import BackendUnavailable, CellgateError, KernelStartFailed, in_words
from cellgate_kernels.base.resources import MIB, MOST_BYTES, ResourceLimits
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.engine.container import KEPT_BYTES, VIEW, WORKSPACE
from cellgate_kernels.engine.engine import Container, Engine
from cellgate_kernels.forking.forker import ForkedChild, Forker, is_read_early, process_of
from cellgate_kernels.forking.messages import NotForked
from cellgate_kernels.forking.server import ZYGOTE, ForkSettings
from cellgate_kernels.launch.base import KernelExit, KernelView, Launch
from cellgate_kernels.launch.folders import LaunchFolders, check_socket_path
from cellgate_kernels.launch.names import NameMaking, Names, NamesRequest
from cellgate_kernels.limits.cgroups import Cgroup, Cgroups
from cellgate_kernels.limits.disk import CountedFolder, may_look
from cellgate_kernels.limits.disk_watch import DiskWatch, Watched

logger = logging.getLogger(__name__)

SOCKETS_AT = "/run/kernel"
WORKSPACES_AT = "/sessions"
PACKAGES_AT = VIEW.packages
"""Where a container has the folders of its kernels."""

CGROUPS = "cellgate"
MOST_KERNELS = 32
"""Of one container; the principal's next kernel opens another."""
_FIRST_MEMORY = 512 * MIB
_MOST_CPUS, _MOST_PIDS = 1024.0, 1_000_000
"""Of anything that has limits."""
_PEER = struct.Struct("3i")

_ADDRESS = "zygote"
_LONGEST_NAME = "00000000-0000/b00000000"
"""What the names of sockets begin with at the most: those of a branch."""
_KEEPER = "CELLGATE_KEEPER"
_FIRST = 1
"""A container's first process, in it."""

# Seconds.
START_TIMEOUT = 45.0
_RETRY_AFTER = 300.0
_RETRY_SOON = 20.0
_LOWER_AGAIN = (0.5, 2.0, 8.0)
"""Between attempts to lower a container's memory; files may have to be written to disk for it."""
_INSIST_AFTER = 1.0
"""After which a kernel is killed that its keeper was asked to end."""


_MOST_TOLD = 100
_MOST_FAILED = 100


@dataclass(frozen=True, slots=True)
class Sharers:
    """What kernels in one container have in common."""

    principal: str
    kernelspec: str
    limits: ResourceLimits

    @property
    def kind(self) -> tuple[str, ResourceLimits]:
        """The values that a container's start depends on, whoever uses it."""
        return self.kernelspec, self.limits


class _NotNow(NotForked):
    """What failed says little about the next attempt."""


@dataclass(frozen=True, slots=True)
class Roots:
    """The gateway's folders in which kernels have theirs; without `packages` none has a folder of these."""

    runtime: Path
    workspaces: Path
    packages: Path | None = None


@dataclass(frozen=True, slots=True)
class SeatRequest:
    """A kernel to be forked.

    `launch` is its own; `common` has what it would be if its owner had chosen nothing. `connection`: what its
    connection file is to say. `config` makes a container's configuration out of its launch. `named_for`: the
    user and group that kernels are there, if they can have names of their own for their workspaces.
    """

    launch: Launch
    common: Launch
    connection: Mapping[str, Any]
    config: Callable[[Launch, ContainerPlaces], dict[str, Any]]
    named_for: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class ContainerPlaces:
    """The folders of one container's kernels, here; and for how many kernels its own limits are."""

    sockets: Path
    workspaces: Path
    packages: Path | None
    kernels: int

    @property
    def all(self) -> list[Path]:
        """The folders of the container; those that it lacks are left out."""
        return [folder for folder in (self.sockets, self.workspaces, self.packages) if folder is not None]

    def limits(self, limits: ResourceLimits) -> ResourceLimits:
        """Return the container's limits: the sum of its kernels' and the zygote's."""
        if self.kernels == 1:
            return limits
        first = of_the_first(limits)
        return replace(
            limits,
            memory=min(limits.memory * self.kernels + first.memory, MOST_BYTES),
            cpus=min(max(limits.cpus * self.kernels, first.cpus), _MOST_CPUS),
            pids=min(limits.pids * self.kernels + first.pids, _MOST_PIDS),
        )


def of_the_first(limits: ResourceLimits) -> ResourceLimits:
    """Return a zygote's limits for kernels with these limits: never less than its modules need to load."""
    memory, cpus, pids = max(limits.memory, _FIRST_MEMORY), max(limits.cpus, 1.0), max(limits.pids, 64)
    return replace(limits, memory=memory, cpus=cpus, pids=pids)


class SharedContainers:
    """A gateway's shared containers; `close` before the engine. `patience`: seconds to have a zygote."""

    def __init__(
        self,
        engine: Engine,
        roots: Roots,
        settings: ForkSettings | None = None,
        *,
        patience: float = START_TIMEOUT,
    ) -> None:
        self.engine = engine
        self.patience = patience
        self.settings = ForkSettings() if settings is None else settings
        self.disks = DiskWatch()
        self.tasks = Supervisor()
        self.divides: bool | None = None
        """Whether kernels have cgroups of their own; None before the first container."""
        self._roots = roots
        self._current: dict[Sharers, _House] = {}
        self._houses: set[_House] = set()
        self._read: dict[str, frozenset[str]] = {}
        self._failed: dict[tuple[str, ResourceLimits], tuple[str, float]] = {}
        self._told: set[str] = set()

    def forks(self, kernelspec: str, limits: ResourceLimits | None = None) -> bool:
        """Return whether kernels of this kernelspec are forked, as far as is known.

        With these limits: a client may have chosen some with which no zygote works. Without: any.
        """
        if limits is not None:
            return not self._why_not((kernelspec, limits))
        return kernelspec in self._read or not any(
            name == kernelspec and self._why_not((name, those)) for name, those in self._failed
        )

    def _why_not(self, kind: tuple[str, ResourceLimits]) -> str:
        """Why none is forked for the time being; empty if that is not so."""
        why, until = self._failed.get(kind, ("", 0.0))
        return why if asyncio.get_running_loop().time() < until else ""

    def seat(self, sharers: Sharers, kernel_id: str) -> Seat:
        """Return a place for a kernel, which must `leave` it. Raises NotForked and OSError."""
        if why := self._why_not(sharers.kind):
            raise NotForked(why)
        house = self._current.get(sharers)
        if house is None or not house.takes_more:
            house = self._current[sharers] = _House(self, sharers, self._new_places())
            self._houses.add(house)
        return house.seat(kernel_id)

    def _new_places(self) -> ContainerPlaces:
        name = f"shared-{secrets.token_hex(4)}"
        packages = None if self._roots.packages is None else self._roots.packages / name
        # As with branches, of which the start of a gateway knows.
        workspaces = self._roots.workspaces / f"{name}{BRANCHES}"
        kernels = 1 if self.divides is False else MOST_KERNELS
        places = ContainerPlaces(self._roots.runtime / name, workspaces, packages, kernels)
        try:
            check_socket_path(str(places.sockets / _LONGEST_NAME))
        except KernelStartFailed as error:
            raise NotForked(error.message) from error
        for folder in places.all:
            folder.mkdir()
            # Kernels may read them and pass through; only we may change what is in them.
            folder.chmod(0o755)
        return places

    def check(self, kernelspec: str, changed: Sequence[str]) -> None:
        """Raise NotForked for variables known to be read by an interpreter before it forks."""
        for name in changed:
            if is_read_early(name) or name in self._read.get(kernelspec, frozenset()):
                raise NotForked(f"the variable {name} was read before the fork")

    def learned(self, kind: tuple[str, ResourceLimits], names: frozenset[str]) -> None:
        """Note that a zygote of this kind works, and has read these variables."""
        self._read[kind[0]] = names
        self._failed.pop(kind, None)

    def failed(self, kind: tuple[str, ResourceLimits], why: str, retry_after: float = _RETRY_AFTER) -> None:
        """Note that no zygote of this kind works, for the time being."""
        self._failed.pop(kind, None)
        while len(self._failed) >= _MOST_FAILED:
            del self._failed[next(iter(self._failed))]
        self._failed[kind] = why, asyncio.get_running_loop().time() + retry_after
        self.tell(why, logging.WARNING)

    def tell(self, why: str, level: int = logging.INFO) -> None:
        """Say once why kernels get containers of their own."""
        if why not in self._told and len(self._told) < _MOST_TOLD:
            self._told.add(why)
            logger.log(level, "A kernel gets a container of its own, as others may: %s", why)

    def undivided(self, why: str) -> None:
        """Note that kernels can have no cgroups of their own."""
        if self.divides is not False:
            logger.warning(
                "The kernels of a principal's container share its limits, which are those of one kernel: %s",
                why,
            )
        self.divides = False

    def ended(self, house: _House) -> None:
        """Note that a container has gone; its folders may still have files that others take care of."""
        if self._current.get(house.sharers) is house:
            del self._current[house.sharers]

    def tidy(self, house: _House) -> None:
        """Remove a house's folders if it is over and they are empty."""
        if house.is_over and all(_removed(folder) for folder in house.places.all):
            self._houses.discard(house)

    async def close(self) -> None:
        """End all shared containers with their kernels. Idempotent."""
        for house in tuple(self._houses):
            await house.close()
            self.tidy(house)
        await self.tasks.finished()


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False  # somebody's files are still there
    return True


class _House:
    """One container, its zygote, and its kernels' seats."""

    def __init__(self, containers: SharedContainers, sharers: Sharers, places: ContainerPlaces) -> None:
        self.sharers = sharers
        self.places = places
        self._containers = containers
        self._engine = containers.engine
        self._tasks = containers.tasks
        self._seats: set[str] = set()
        self._forker: Forker | None = None
        self._opening: asyncio.Task[Forker] | None = None
        self._container: Container | None = None
        self._cgroups: Cgroups | None = None
        self.forks = 0
        """How many kernels have been forked there, or were to be."""
        self._memory = asyncio.Lock()
        self._naming = NameMaking()
        self._live = 0
        self._children: set[SharedChild] = set()
        self._left: set[Watched] = set()
        """Folders of kernels that have ended, in which others can still write."""
        self._closed = False

    @property
    def takes_more(self) -> bool:
        """Whether there may be one more kernel."""
        if self._closed or len(self._seats) >= MOST_KERNELS:
            return False
        forker, settings = self._forker, self._containers.settings
        if forker is None:
            return True
        age = asyncio.get_running_loop().time() - forker.since
        return forker.usable and forker.forked < settings.most_forks and age < settings.age

    @property
    def is_over(self) -> bool:
        """Whether nothing runs there, and nothing will."""
        container = self._container
        return self._closed and not self._seats and (container is None or container.exited.done())

    @property
    def image(self) -> str:
        """The digest of its image, once it is known."""
        return "" if self._container is None else self._container.image

    def seat(self, kernel_id: str) -> Seat:
        """Reserve a place for one more kernel."""
        self._seats.add(kernel_id)
        return Seat(self, kernel_id)

    def leave(self, kernel_id: str) -> None:
        """Count one kernel less; with the last one the container ends. Idempotent."""
        if kernel_id in self._seats:
            self._seats.remove(kernel_id)
            if not self._seats:
                self._end()

    def _end(self) -> None:
        self._closed = True
        self._containers.ended(self)
        if self._container is not None:
            self._engine.end(self._container)
        self._containers.tidy(self)

    async def close(self) -> None:
        """End the container now, and wait until it has ended."""
        self._seats.clear()
        self._end()
        if self._container is not None:
            await asyncio.shield(self._container.exited)

    def tidy(self) -> None:
        """Note that a kernel's folders were removed."""
        for watched in tuple(self._left):
            if not any(folder.path.exists() for folder in watched.folders):
                self._let_go(watched)
        self._containers.tidy(self)

    async def fork(self, seat: Seat, request: SeatRequest) -> SharedChild:
        """Return a forked kernel, as it begins to start. Raises NotForked; then nothing is left of it."""
        env, common = seat.common(request.launch.env), seat.common(request.common.env)
        try:
            changed = [name for name in env.keys() | common.keys() if env.get(name) != common.get(name)]
            self._containers.check(self.sharers.kernelspec, sorted(changed))
            if self._opening is None:
                self._opening = self._tasks.share(self._open(request, common), "open a shared container")
            forker = await asyncio.shield(self._opening)
            forker.check_variables(env)
            return await self._fork(forker, seat, request)
        except NotForked as error:
            self._containers.tell(error.message)
            raise

    async def _fork(self, forker: Forker, seat: Seat, request: SeatRequest) -> SharedChild:
        launch = request.launch
        made: list[ForkedChild] = []
        self._live += 1
        self.forks += 1
        try:
            cgroup = await self._cgroup_for(seat, launch)
            user = request.named_for
            names = None if user is None else await self.make_names(seat.path, _FIRST, user)
            further = () if names is None else names.descriptors
            try:
                described = seat.description(request, len(further))
                work = forker.fork(described, cgroup, launch.limits, further, made, seat.scratch)
                await self._tasks.complete(work, "fork a kernel")
            finally:
                if names is not None:
                    names.close()
        except BaseException:
            try:
                for child in made:
                    child.kill()
                    await asyncio.shield(child.exited)
            finally:
                self._one_less()
            raise
        (child,) = made
        assert isinstance(child, SharedChild)
        seat.has_names = child.has_names
        self._children.add(child)
        self._watch(child, launch)
        return child

    async def make_names(self, folder: str, forked: int, user: tuple[int, int]) -> Names | None:
        """Let a folder of the container be the workspace, for a kernel that is forked off this process."""
        container = self._container
        watched = None if container is None or container.exited.done() else container.watched
        if watched is None or watched.process is None:
            return None
        return await self._naming.make(
            NamesRequest(watched.process, forked, folder, WORKSPACE, *user, is_machines_user=True)
        )

    async def _cgroup_for(self, seat: Seat, launch: Launch) -> Cgroup | None:
        if self._cgroups is None:
            return None
        processors = float(self._engine.processors)
        limits = replace(launch.limits, cpus=min(launch.limits.cpus, processors))
        try:
            await self._fit()
            return await asyncio.to_thread(self._cgroups.make, seat.name, limits)
        except OSError as error:
            raise NotForked(f"its cgroup can't be made: {in_words(error)}") from error

    async def _fit(self) -> None:
        """Let all processes have the memory of the kernels that there are, and of the zygote.

        What ended kernels have left counts too, in /tmp, /dev/shm or anywhere. Raises OSError.
        """
        if self._cgroups is not None:
            limits = self.sharers.limits
            async with self._memory:
                most = of_the_first(limits).memory + self._live * limits.memory
                await asyncio.to_thread(self._cgroups.limit_memory, most)

    def _one_less(self) -> None:
        self._live -= 1
        self._tasks.start(self._lower(), "memory of a shared container")

    async def _lower(self) -> None:
        """Take back an ended kernel's memory; if it can't be had, this ends."""
        container = self._container
        if container is None:
            return
        for pause in (*_LOWER_AGAIN, 0.0):
            if container.exited.done():
                return
            try:
                await self._fit()
            except OSError as error:
                if error.errno != errno.EBUSY:
                    return  # it has gone
            else:
                return
            await asyncio.wait([container.exited], timeout=pause)
        self._give_up(
            KernelExit(
                "out_of_memory",
                None,
                signal.SIGKILL,
                "Earlier kernels of this container have left so much in its memory that it was ended.",
            )
        )

    def _give_up(self, fate: KernelExit) -> None:
        """End it, with all its kernels."""
        logger.warning("A container that several kernels share is ended: %s", fate.message)
        for child in tuple(self._children):
            child.kill(fate)
        if self._forker is not None:
            self._forker.retire(fate.message)
        self._closed = True
        self._containers.ended(self)
        if self._container is not None:
            self._engine.end(self._container)

    def _watch(self, child: SharedChild, launch: Launch) -> None:
        process = child.inner_pid
        own = tuple(each for each in (launch.folders.workspace, launch.folders.branches) if each is not None)
        workspaces = [CountedFolder(launch.folders.workspace, is_workspace=True)]
        if launch.folders.branches is not None:
            workspaces.append(CountedFolder(launch.folders.branches, has_workspaces=True))
        folders = (*workspaces, CountedFolder(launch.folders.sockets, KEPT_BYTES))
        seen = process is not None and may_look(process)
        child.watched = Watched(
            launch.limits,
            folders,
            process if seen else None,
            child.kill,
            workspaces=lambda: child.workspaces(),  # noqa: PLW0108 - it is set later
        )
        child.folders = own
        for before in tuple(self._left):
            if before.folders == folders:
                # It was started again in the same place.
                self._let_go(before)
        self._containers.disks.add(child.watched)
        child.exited.add_done_callback(self._tasks.guard(lambda _: self._ended(child), "end of a kernel"))

    def _ended(self, child: SharedChild) -> None:
        self._children.discard(child)
        self._containers.disks.discard(child.watched)
        self._one_less()
        if child.watched is None or self._container is None or self._container.exited.done():
            return
        # Its neighbours can write there until its session has taken the files along: by folders and files
        # that they have opened before. What is there now is nobody else's doing.
        number = max(1, child.workspaces())
        watched = Watched(
            child.watched.limits,
            child.watched.folders,
            None,
            self._give_up,
            workspaces=lambda: number,
            given=None,
        )
        self._left.add(watched)
        self._containers.disks.add(watched)

    def _let_go(self, watched: Watched) -> None:
        self._left.discard(watched)
        self._containers.disks.discard(watched)

    async def _open(self, request: SeatRequest, env: Mapping[str, str]) -> Forker:
        """Start the container and its zygote. Raises NotForked."""
        kind, patience = self.sharers.kind, self._containers.patience
        try:
            async with asyncio.timeout(patience):
                forker = await self._started(request, env)
                if self._cgroups is None and self.places.kernels > 1:
                    # It has limits for many kernels, which each of them could use up alone.
                    await self._gone()
                    self.places = replace(self.places, kernels=1)
                    forker = await self._started(request, env)
        except (CellgateError, OSError, TimeoutError) as error:
            why = in_words(error) if error.args else f"the zygote was not ready within {patience:g} s"
            if not self._closed:
                soon = isinstance(error, _NotNow)
                self._containers.failed(kind, why, _RETRY_SOON if soon else _RETRY_AFTER)
            # Its seats are left by their kernels; no more are given.
            self._closed = True
            self._containers.ended(self)
            if self._container is not None:
                self._engine.end(self._container)
            raise NotForked(why) from error
        self._containers.learned(kind, forker.read_variables)
        self._forker = forker
        return forker

    async def _gone(self) -> None:
        assert self._container is not None
        self._engine.end(self._container)
        await asyncio.shield(self._container.exited)

    async def _started(self, request: SeatRequest, env: Mapping[str, str]) -> Forker:
        loop = asyncio.get_running_loop()
        address = self.places.sockets / _ADDRESS
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.setblocking(False)
            listener.bind(str(address))
            try:
                # Nobody else gets past the folders above.
                address.chmod(0o666)
                listener.listen(1)
                container = self._launch(request, env)
                await self._engine.until_running(container)
                connecting = self._tasks.start(loop.sock_accept(listener), "wait for a zygote")
                try:
                    either: set[asyncio.Future[Any]] = {connecting, container.exited}
                    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
                    if not connecting.done():
                        how = container.exited.result().message
                        raise NotForked(f"the zygote's container ended. {how} {container.log or ''}".strip())
                    control, _ = connecting.result()
                finally:
                    connecting.cancel()
            finally:
                address.unlink(missing_ok=True)
        try:
            await self._divide(container, control)
            forker = _SharedForker(_Outer(self._engine, container), control, env, self._tasks, container)
        except BaseException:
            control.close()
            raise
        await forker.start(self._containers.settings.modules if self.places.packages is None else ())
        return forker

    def _launch(self, request: SeatRequest, env: Mapping[str, str]) -> Container:
        if self._closed:
            raise NotForked("the container is not needed any more")
        argv = (*request.common.argv[:3], VIEW.connection_file)
        variables = {**env, ZYGOTE: f"{SOCKETS_AT}/{_ADDRESS}"}
        folders = LaunchFolders(self.places.sockets, self.places.workspaces, owns_workspace=False)
        launch = Launch(argv, variables, self.sharers.limits, folders)
        self._container = container = self._engine.launch(
            launch, request.config(launch, self.places), watch=False
        )
        gone = self._tasks.guard(lambda _: self._gone_with_all(container), "end of a shared container")
        container.exited.add_done_callback(gone)
        return container

    def _gone_with_all(self, container: Container) -> None:
        if self._container is container:
            # Nobody can write there any more.
            for watched in tuple(self._left):
                self._let_go(watched)
        self._containers.tidy(self)

    async def _divide(self, container: Container, control: socket.socket) -> None:
        """Give the zygote a cgroup, beside which its kernels will have theirs."""
        peer, _, _ = _PEER.unpack(control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        process = None if container.watched is None else container.watched.process
        if peer <= 0 or process is None:
            raise NotForked("the processes of the engine's containers are not seen from here")
        if self.places.kernels == 1:
            return
        first = of_the_first(self.sharers.limits)
        first = replace(first, cpus=min(first.cpus, float(self._engine.processors)))
        try:
            made = await asyncio.to_thread(Cgroups.around, process, CGROUPS, first)
        except BackendUnavailable as error:
            self._containers.undivided(error.message)
        except OSError as error:
            # It may be this container that has gone, or that we have too many files open.
            raise _NotNow(f"its container's cgroup can't be divided: {in_words(error)}") from error
        else:
            self._containers.divides = True
            self._cgroups, _ = made


class Seat:
    """One kernel's place in a shared container. `leave` it when the kernel has ended, or will not start."""

    def __init__(self, house: _House, kernel_id: str) -> None:
        self._house = house
        self.kernel_id = kernel_id
        self.name = kernel_id[:13]
        self.sockets = house.places.sockets / self.name
        self.workspaces = house.places.workspaces
        self.packages = house.places.packages
        self.scratch = f"/tmp/{self.name}"  # noqa: S108 - the container's own
        self.path = f"{WORKSPACES_AT}/{kernel_id}"
        """Of its workspace, for all in the container."""
        self.has_names = False
        """Whether the usual names are its own workspace's, for its kernel."""

    @property
    def view(self) -> KernelView:
        """Paths as its kernel sees them."""
        return KernelView(
            f"{self.scratch}/kernel.json",
            f"{SOCKETS_AT}/{self.name}/k",
            f"{self.scratch}/home",
            f"{PACKAGES_AT}/{self.kernel_id}",
            egress=VIEW.egress,
            workspace=WORKSPACE if self.has_names else self.path,
            branches=f"{self.path}{BRANCHES}",
        )

    async def make_names(
        self, child: SharedChild, folder: str, forked: int, user: tuple[int, int]
    ) -> Names | None:
        """Make names as `CellgateProvisioner.make_names` does, for kernels of this user and group."""
        if not self.has_names:
            return None
        if forked == _FIRST:
            # The first of the container is not where this kernel is, but its keeper is.
            process = child.inner_pid
            inside = None if process is None or child.exited.done() else _number_inside(process)
            if inside is None:
                return None
            forked = inside
        return await self._house.make_names(self.path if folder == WORKSPACE else folder, forked, user)

    @property
    def image(self) -> str:
        """The digest of the container's image."""
        return self._house.image

    @property
    def shared_with(self) -> str:
        """The principal whose kernels share the container."""
        return self._house.sharers.principal

    @property
    def alone(self) -> bool:
        """Whether no other kernel has been in the container so far."""
        return self._house.forks <= 1

    async def fork(self, request: SeatRequest) -> SharedChild:
        """Fork the kernel. Raises NotForked; then nothing is left of it."""
        return await self._house.fork(self, request)

    async def files_given(self, child: SharedChild) -> None:
        """Allow the given files even over the kernel's disk limit."""
        if child.watched is not None:
            await self._house._containers.disks.files_given(child.watched)

    def leave(self) -> None:
        """Note that the kernel has ended. Idempotent."""
        self._house.leave(self.kernel_id)

    def tidy(self) -> None:
        """Note that some of the kernel's folders were removed."""
        self._house.tidy()

    def own(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return this kernel's variables, with those that it has in any case."""
        return {
            "HOSTNAME": "cellgate",
            **env,
            "USER": "cellgate",
            "LOGNAME": "cellgate",
            "TMPDIR": self.scratch,
            "CELLGATE_SPOOL": self.view.socket_prefix.rpartition("/")[0],
        }

    def common(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return variables without a kernel's own folders, with which a zygote can be started."""
        ours = {self.view.packages: PACKAGES_AT, self.view.home: VIEW.home}
        found = {}
        for name, value in self.own(env).items():
            found[name] = value
            for path, usual in ours.items():
                found[name] = found[name].replace(path, usual)
        found["TMPDIR"] = "/tmp"  # noqa: S108
        del found["CELLGATE_SPOOL"], found[_KEEPER]
        return found

    def description(self, request: SeatRequest, names: int) -> bytes:
        """Return the kernel as its child reads it. `names`: the descriptors that come for its workspace."""
        return json.dumps(
            {
                "env": self.own(request.launch.env),
                "folder": self.path,
                "names": names,
                "named_folder": WORKSPACE,
                "scratch": self.scratch,
                "connection_file": self.view.connection_file,
                "connection": dict(request.connection),
                "packages": self.view.packages,
                "no_packages": PACKAGES_AT,
            }
        ).encode()


def _namespace(process: int) -> tuple[int, int]:
    """Return device and inode of the PID namespace of a process. Raises OSError."""
    found = Path(f"/proc/{process}/ns/pid").stat()
    return found.st_dev, found.st_ino


def _number_inside(process: int) -> int | None:
    """Return a process's number in its own PID namespace; None if it has ended."""
    try:
        lines = Path(f"/proc/{process}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), None)


@dataclass(slots=True)
class _Outer:
    """The zygote's container."""

    engine: Engine
    container: Container

    @property
    def exited(self) -> asyncio.Future[KernelExit]:
        return self.container.exited

    def kill(self) -> None:
        self.engine.end(self.container)

    def log_tail(self) -> str:
        return self.container.log or ""


class _SharedForker(Forker):
    """A zygote in a container."""

    def __init__(
        self,
        outer: _Outer,
        control: socket.socket,
        common: Mapping[str, str],
        tasks: Supervisor,
        container: Container,
    ) -> None:
        super().__init__(outer, control, common, tasks)
        self._container = container

    async def start(self, modules: Sequence[str]) -> None:
        """Wait until it has loaded these modules. Raises NotForked."""
        await self._begin(json.dumps({"modules": list(modules)}).encode())

    def _check_child(self, pidfd: int) -> None:
        """Raise NotForked or OSError unless it is a process of this container.

        Whoever has taken the zygote over can send any descriptor, such as one of the gateway's own process,
        which is at the other end of their connection. And we signal the child as root.
        """
        watched = self._container.watched
        process = process_of(pidfd)
        if process is None or process == os.getpid() or watched is None or watched.process is None:
            raise NotForked("the zygote sent something else than its child")
        if _namespace(process) != _namespace(watched.process) or process_of(pidfd) != process:
            raise NotForked("the zygote sent a process that is not of its container")

    def _doubt(self, why: str) -> None:
        super()._doubt(why)
        self.kill()

    def _new_child(self, pidfd: int, cgroup: Cgroup | None, limits: ResourceLimits) -> ForkedChild:
        return SharedChild(pidfd, cgroup, limits.memory, self._tasks, self._container)


class SharedChild(ForkedChild):
    """A kernel's keeper in a shared container, which has no namespace of its own to end with it."""

    def __init__(
        self, pidfd: int, cgroup: Cgroup | None, memory: int, tasks: Supervisor, container: Container
    ) -> None:
        super().__init__(pidfd, cgroup, memory, tasks)
        self._container = container
        self.watched: Watched | None = None
        self.folders: tuple[Path, ...] = ()
        self.workspaces: Callable[[], int] = lambda: 1

    def kill(self, fate: KernelExit | None = None, first: int | None = None) -> None:
        """End it with all its processes: those of its cgroup, or without one those that its keeper knows."""
        self._fate.given = self._fate.given or fate
        if self._fate.killed:
            return
        self._fate.killed = True
        if self._cgroup is not None:
            self.signal(signal.SIGKILL)
            self._tasks.start(self._clear(), "end of a kernel's processes")
            return
        # What the keeper understands as the end of all that it has started.
        self.signal(signal.SIGQUIT)
        self._loop.call_later(_INSIST_AFTER, self._guard(lambda: self.signal(signal.SIGKILL)))

    async def explain_kill(self) -> KernelExit | None:
        if self._cgroup is not None:
            return await super().explain_kill()
        return await Engine.explain_kill(self._container)

    async def _clear(self) -> None:
        """Kill what is left in its cgroup. Without one it lasts as long as the container."""
        if self._cgroup is not None:
            with suppress(OSError):
                await asyncio.to_thread(self._cgroup.kill)

    async def _seal(self) -> None:
        """Let no neighbour into its folders; whoever has them next gives them to their kernel's user."""
        try:
            await asyncio.to_thread(_take, self.folders)
        except OSError as error:
            logger.warning("A kernel's files can't be kept from others: %s", in_words(error))


def _take(folders: Sequence[Path]) -> None:
    """Make folders the gateway's alone. What is around them is root's, so they can't be links."""
    for folder in folders:
        with suppress(FileNotFoundError):
            os.chown(folder, os.geteuid(), os.getegid(), follow_symlinks=False)
            folder.chmod(0o700)
