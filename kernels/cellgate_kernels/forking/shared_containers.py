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
import logging
import secrets
import signal
import socket
import struct
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from cellgate_kernels.base.branching import BRANCHES
from cellgate_kernels.base.errors import BackendUnavailable, CellgateError, KernelStartFailed, in_words
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.engine.container import KEPT_BYTES, VIEW, WORKSPACE
from cellgate_kernels.engine.engine import Container, Engine
from cellgate_kernels.forking.fork_trials import RETRY_AFTER, RETRY_SOON, ForkTrials
from cellgate_kernels.forking.forker import ForkedChild, Forker
from cellgate_kernels.forking.messages import NotForked
from cellgate_kernels.forking.server import ZYGOTE, ForkSettings
from cellgate_kernels.forking.shared_child import SharedChild, SharedForker, ZygoteContainer, number_inside
from cellgate_kernels.forking.shared_places import (
    SOCKETS_AT,
    ContainerPlaces,
    Roots,
    SeatPaths,
    SeatRequest,
    Sharers,
    of_the_first,
)
from cellgate_kernels.launch.backend import KernelExit, Launch
from cellgate_kernels.launch.folders import LaunchFolders, check_socket_path
from cellgate_kernels.launch.names import NameMaking, Names, NamesRequest
from cellgate_kernels.limits.cgroups import Cgroup, Cgroups
from cellgate_kernels.limits.disk import CountedFolder, may_look
from cellgate_kernels.limits.disk_watch import DiskWatch, Watched

logger = logging.getLogger(__name__)

CGROUPS = "cellgate"
MOST_KERNELS = 32
"""Most kernels of one container; the principal's next kernel opens another."""
_PEER = struct.Struct("3i")

_ADDRESS = "zygote"
_LONGEST_NAME = "00000000-0000/b00000000"
"""The longest beginning of sockets' names: a branch's."""
_FIRST = 1
"""A container's first process, in it."""

# Seconds.
START_TIMEOUT = 45.0
_LOWER_AGAIN = (0.5, 2.0, 8.0)
"""Seconds between attempts to lower a container's memory; files may have to be written to disk for it."""


class _NotNow(NotForked):
    """The failure says little about the next attempt."""


class SharedContainers:
    """A gateway's shared containers; `close` before the engine. `patience`: seconds for a zygote's start."""

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
        self.trials = ForkTrials()
        self._roots = roots
        self._current: dict[Sharers, _House] = {}
        self._houses: set[_House] = set()

    def seat(self, sharers: Sharers, kernel_id: str) -> Seat:
        """Return a place for a kernel, which must `leave` it. Raises NotForked and OSError."""
        if why := self.trials.why_not(sharers.kind):
            raise NotForked(why)
        house = self._current.get(sharers)
        if house is None or not house.takes_more:
            house = self._current[sharers] = _House(self, sharers, self._new_places())
            self._houses.add(house)
        return house.seat(kernel_id)

    def _new_places(self) -> ContainerPlaces:
        name = f"shared-{secrets.token_hex(4)}"
        packages = None if self._roots.packages is None else self._roots.packages / name
        # Placed like branches, which the start of a gateway knows.
        workspaces = self._roots.workspaces / f"{name}{BRANCHES}"
        kernels = 1 if self.trials.divides is False else MOST_KERNELS
        places = ContainerPlaces(self._roots.runtime / name, workspaces, packages, kernels)
        try:
            check_socket_path(str(places.sockets / _LONGEST_NAME))
        except KernelStartFailed as error:
            raise NotForked(error.message) from error
        for folder in places.all:
            folder.mkdir()
            # Kernels may read and enter them; only we may change their content.
            folder.chmod(0o755)
        return places

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
        """The number of kernels forked there, or about to be."""
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
        """Return a forked kernel that begins to start. Raises NotForked; then nothing of it is left."""
        env, common = seat.common_env(request.launch.env), seat.common_env(request.common.env)
        try:
            changed = [name for name in env.keys() | common.keys() if env.get(name) != common.get(name)]
            self._containers.trials.check(self.sharers.kernelspec, sorted(changed))
            if self._opening is None:
                self._opening = self._tasks.share(self._open(request, common), "open a shared container")
            forker = await asyncio.shield(self._opening)
            forker.check_variables(env)
            return await self._fork(forker, seat, request)
        except NotForked as error:
            self._containers.trials.tell(error.message)
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
        """Make a folder of the container the workspace of a kernel forked from this process."""
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
        """Set the memory of all processes to that of the present kernels and the zygote.

        Leftovers of ended kernels count too, in /tmp, /dev/shm or anywhere. Raises OSError.
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
        """Take back an ended kernel's memory; if that fails, the container ends."""
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
                # The container was started again in the same place.
                self._let_go(before)
        self._containers.disks.add(child.watched)
        child.exited.add_done_callback(self._tasks.guard(lambda _: self._ended(child), "end of a kernel"))

    def _ended(self, child: SharedChild) -> None:
        self._children.discard(child)
        self._containers.disks.discard(child.watched)
        self._one_less()
        if child.watched is None or self._container is None or self._container.exited.done():
            return
        # Neighbours can write there until the session has taken its files: by folders and files that they
        # opened before. The present content is the kernel's own.
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
                    # The container has limits for many kernels, which each of them could use up alone.
                    await self._gone()
                    self.places = replace(self.places, kernels=1)
                    forker = await self._started(request, env)
        except (CellgateError, OSError, TimeoutError) as error:
            why = in_words(error) if error.args else f"the zygote was not ready within {patience:g} s"
            if not self._closed:
                soon = isinstance(error, _NotNow)
                self._containers.trials.failed(kind, why, RETRY_SOON if soon else RETRY_AFTER)
            # Its kernels leave their seats; no more are given.
            self._closed = True
            self._containers.ended(self)
            if self._container is not None:
                self._engine.end(self._container)
            raise NotForked(why) from error
        self._containers.trials.learned(kind, forker.read_variables)
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
                # The folders above are closed to all others.
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
            forker = SharedForker(
                ZygoteContainer(self._engine, container), control, env, self._tasks, container
            )
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
        """Give the zygote a cgroup, beside which its kernels will have their own."""
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
            self._containers.trials.undivided(error.message)
        except OSError as error:
            # This container may be gone, or too many files are open.
            raise _NotNow(f"its container's cgroup can't be divided: {in_words(error)}") from error
        else:
            self._containers.trials.divides = True
            self._cgroups, _ = made


class Seat(SeatPaths):
    """One kernel's place in a shared container. `leave` it when the kernel has ended, or will not start."""

    def __init__(self, house: _House, kernel_id: str) -> None:
        super().__init__(house.places, kernel_id)
        self._house = house

    async def make_names(
        self, child: SharedChild, folder: str, forked: int, user: tuple[int, int]
    ) -> Names | None:
        """Make names as `IsolationBackend.make_names` does, for kernels with this user and group."""
        if not self.has_names:
            return None
        if forked == _FIRST:
            # The container's first process is not where this kernel is, but the kernel's keeper is.
            process = child.inner_pid
            inside = None if process is None or child.exited.done() else number_inside(process)
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
        """Fork the kernel. Raises NotForked; then nothing of the kernel is left."""
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
