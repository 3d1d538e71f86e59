"""One Docker engine as the event loop sees it: calls that do not block, containers whose end is a future.

The SDK's calls run in a few threads that an `Engine` owns, and one more reads the engine's events: nothing
polls. Containers carry the label of one gateway (`instance`); other gateways' are never touched, and unknown
ones with our label are removed. When the engine goes away its containers may live on (live-restore): the
events thread reconnects, and the existing containers are then compared with the expected ones.
"""

from __future__ import annotations

import asyncio
import io
import logging
import secrets
import signal
import tarfile
from collections.abc import Callable, Collection, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import requests
from docker.api.client import APIClient
from docker.errors import APIError, DockerException, ImageNotFound, NotFound

from cellgate_kernels.base.errors import (
    BackendUnavailable,
    CellgateError,
    ImageMissing,
    KernelStartFailed,
    in_words,
)
from cellgate_kernels.base.settings import SOCKET
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.trees import NO_OPEN_FILES
from cellgate_kernels.engine.client import connect
from cellgate_kernels.engine.container import INSTANCE_LABEL, KEPT_BYTES
from cellgate_kernels.engine.events import EngineEvents
from cellgate_kernels.launch.backend import KernelExit, Launch
from cellgate_kernels.limits.disk import CountedFolder, may_look
from cellgate_kernels.limits.disk_watch import DiskWatch, Watched

logger = logging.getLogger(__name__)

CALL_TIMEOUT = 60.0
THREADS = 4
LOG_TAIL_BYTES = 8 * 1024
REMOVAL_PAUSES = (0.5, 2.0, 10.0, 60.0, 300.0)
"""Seconds between attempts to remove a container. The gateway's stop or next start removes the rest."""
MOST_LEFT = 1024
_TAR_OVERHEAD = 10 * 1024  # bytes that a tar of one file has before the file's

# containerd reports the memory limit and the end in different ways; the first may arrive second.
_MEMORY_NEWS_TIMEOUT = 0.5

_KILLED = KernelExit.of_returncode(-9)
_ENGINE_LOST = KernelExit("engine_lost", None, 9, "The container engine is gone, and the kernel with it.")

Result = TypeVar("Result")


@dataclass(slots=True, eq=False)
class Container:
    """One kernel's container. `exited` completes when all its processes are gone, `starting` when it runs.

    `workspaces`: returns the present number of them inside. `has_disk`: whether its files are watched here.
    """

    name: str
    launch: Launch
    exited: asyncio.Future[KernelExit]
    starting: asyncio.Task[None] | None = None
    ending: asyncio.Task[None] | None = None
    fate: KernelExit | None = None
    out_of_memory: asyncio.Event = field(default_factory=asyncio.Event)
    died: bool = False
    image: str = ""
    watched: Watched | None = None
    workspaces: Callable[[], int] = lambda: 1
    has_disk: bool = True
    log: str | None = None


class Engine:
    """The containers of one gateway on one engine. `open` first, `close` last, both on the same loop."""

    def __init__(
        self, url: str = SOCKET, instance: str | None = None, *, spared: Collection[str] = ()
    ) -> None:
        self.url = url
        # Our containers that are neither managed nor removed: to be adopted, or left for the next start.
        self._spared = set(spared)
        self.instance = instance or secrets.token_hex(16)
        self.processors = 1.0
        self.rootless = False
        self.selinux = False
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="docker")
        self._containers: dict[str, Container] = {}
        self._tasks = Supervisor()
        # Containers that could not be removed, by name, with the tasks that try again.
        self._left: dict[str, asyncio.Task[None]] = {}
        self._leaving = Supervisor()
        self._client: APIClient | None = None
        self._events: EngineEvents | None = None
        self._disks = DiskWatch()
        self._closed = False

    @property
    def answers(self) -> bool:
        """Whether the engine answers, as far as its stream of events shows."""
        return self._events is not None and self._events.connected

    async def open(self) -> None:
        """Connect, listen, and remove containers from earlier runs of this instance, except the spared.

        Raises BackendUnavailable when no engine answers; then there is nothing to close.
        """
        try:
            self._client = await self._in_thread(connect, self.url, CALL_TIMEOUT)
            info = await self.call(APIClient.info)
            self.processors = float(info.get("NCPU") or 1)
            options = info.get("SecurityOptions") or ()
            self.rootless = "name=rootless" in options
            self.selinux = "name=selinux" in options
            self._events = EngineEvents(
                self._client, self.instance, connected=self._connected, happened=self._happened
            )
            async with asyncio.timeout(CALL_TIMEOUT):
                await self._events.start()
        except TimeoutError:
            await self.close()
            raise BackendUnavailable(f"The Docker engine at {self.url} sends no events.") from None
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Remove every container that was not detached and stop the threads. Idempotent."""
        self._closed = True
        await self._leaving.cancel()
        for container in tuple(self._containers.values()):
            self.end(container)
        for name in tuple(self._left):
            self._leaving.start(self._remove_left(name), f"remove {name}")
        await self._leaving.finished()
        await self._tasks.finished()
        events = self._events
        self._events = None
        if events is not None:
            await events.stop()
        client = self._client
        self._client = None
        if client is not None:
            client.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def call(self, function: Callable[..., Result], *arguments: object, **options: object) -> Result:
        """Call a method of APIClient in a thread. Raises ImageMissing, KernelStartFailed, BackendUnavailable.

        A cancelled call continues in its thread; its result is dropped.
        """
        if self._client is None:
            raise BackendUnavailable("The connection to the Docker engine is closed.")
        return await self._in_thread(function, self._client, *arguments, **options)

    async def _in_thread(
        self, function: Callable[..., Result], *arguments: object, **options: object
    ) -> Result:
        def work() -> Result:
            try:
                return function(*arguments, **options)
            except (DockerException, requests.RequestException, OSError) as error:
                raise explained(error, self.url) from error

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    def launch(self, launch: Launch, config: dict[str, Any], *, watch: bool = True) -> Container:
        """Start creating and starting a container; `starting` ends when it runs, or with the error.

        The caller must also `end` it. `watch`: whether the container is ended when its files are too large.
        """
        if self._closed:
            raise BackendUnavailable("The gateway is shutting down.")
        name = f"cellgate-{secrets.token_hex(8)}"
        container = self._manage(name, launch, lambda: self.call(_create_and_start, config, name))
        container.has_disk = watch
        return container

    def adopt(self, name: str, launch: Launch) -> Container:
        """Manage a spared container; `starting` fails if it does not run. `end` it afterwards."""
        self._spared.discard(name)
        return self._manage(name, launch, lambda: self.call(_inspect_running, name))

    def detach(self, container: Container) -> None:
        """Stop managing the container, and leave it running when this gateway ends."""
        self._spared.add(container.name)
        self._disks.discard(container.watched)
        self._containers.pop(container.name, None)

    async def reap(self) -> None:
        """Remove the spared containers that were not adopted."""
        self._spared.clear()
        await self._compare()

    def _manage(
        self, name: str, launch: Launch, begin: Callable[[], Coroutine[Any, Any, dict[str, Any]]]
    ) -> Container:
        container = Container(name, launch, asyncio.get_running_loop().create_future())
        self._containers[name] = container
        container.starting = self._own(self._run(container, begin))
        return container

    async def _run(
        self, container: Container, begin: Callable[[], Coroutine[Any, Any, dict[str, Any]]]
    ) -> None:
        inspected = await begin()
        container.image = str(inspected["Image"])
        if container.ending is None:
            try:
                container.watched = self._to_watch(container, inspected)
            except OSError as error:
                raise KernelStartFailed(f"The kernel's disk can't be looked at: {in_words(error)}") from error
            if container.has_disk:
                self._disks.add(container.watched)

    def _to_watch(self, container: Container, inspected: Mapping[str, Any]) -> Watched:
        process, folders = int(inspected["State"]["Pid"]), container.launch.folders
        ours = _is_here(process, str(inspected["Id"])) and may_look(process)
        watched = [
            CountedFolder(folders.workspace, is_workspace=True),
            CountedFolder(folders.sockets, KEPT_BYTES),
        ]
        if folders.branches is not None:
            watched.append(CountedFolder(folders.branches, has_workspaces=True))
        return Watched(
            container.launch.limits,
            tuple(watched),
            process if ours else None,
            lambda fate: self._disk_is_full(container, fate),
            passes_files="runsc" not in str(inspected["HostConfig"].get("Runtime")),
            workspaces=container.workspaces,
        )

    @staticmethod
    async def until_running(container: Container) -> None:
        """Return when the container runs. Raises ImageMissing, KernelStartFailed or BackendUnavailable."""
        assert container.starting is not None
        await asyncio.shield(container.starting)

    def end(self, container: Container, fate: KernelExit | None = None) -> None:
        """Start killing and removing a container, even one that is still starting. `fate`: its cause."""
        if container.ending is None:
            container.fate = fate
            self._disks.discard(container.watched)
            container.ending = self._own(self._remove(container))

    @staticmethod
    async def explain_kill(container: Container) -> KernelExit | None:
        """Return the end of a kernel in a running container for lack of memory; None for other ends."""
        if not await _soon(container.out_of_memory):
            return None
        # The next end may have another cause.
        container.out_of_memory.clear()
        return out_of_memory(container.launch.limits.memory)

    async def log_tail(self, container: Container) -> str:
        """Return the end of the stderr of the container's first process, at most 8 KiB."""
        if container.log is not None:
            return container.log
        log: bytes = await self.call(APIClient.logs, container.name, stdout=False, stderr=True)
        return log[-LOG_TAIL_BYTES:].decode(errors="replace")

    async def read_from_image(self, image: str, path: str, most: int) -> bytes | None:
        """Return the file at `path` in an image, at most `most` bytes of it; None if there is no such file.

        Nothing is started. Raises ImageMissing, KernelStartFailed, BackendUnavailable.
        """
        name = f"cellgate-{secrets.token_hex(8)}"
        # Otherwise it would be removed at once, as a container of ours that nobody manages.
        self._spared.add(name)
        try:
            labels = {INSTANCE_LABEL: self.instance}
            return await self.call(_read_from_image, image, path, most, labels=labels, name=name)
        finally:
            self._spared.discard(name)

    def _own(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        return self._tasks.share(work, "work on containers")

    async def _remove(self, container: Container) -> None:
        assert container.starting is not None
        await asyncio.wait({container.starting})
        try:
            await self.call(_remove, container.name)
        except CellgateError as error:
            # The container is unknown from now on, and removed when the engine answers again.
            logger.warning("A container could not be removed: %s", error.message)
            container.fate = container.fate or _ENGINE_LOST
            self._remove_later(container.name)
        finally:
            # Needed also after an internal error: waiters must see an end.
            self._containers.pop(container.name, None)
            self._finish(container, _KILLED)

    def _remove_later(self, name: str) -> None:
        """Try removing again: with too many open files, the engine could not be called."""
        if self._closed or len(self._left) >= MOST_LEFT:
            return
        self._left[name] = self._leaving.start(self._insist(name), f"remove {name}")

    async def _insist(self, name: str) -> None:
        for pause in REMOVAL_PAUSES:
            await asyncio.sleep(pause)
            if await self._remove_left(name):
                return

    async def _remove_left(self, name: str) -> bool:
        try:
            await self.call(_remove, name)
        except CellgateError as error:
            logger.debug("A container could still not be removed: %s", error.message)
            return False
        self._left.pop(name, None)
        return True

    @staticmethod
    def _finish(container: Container, how: KernelExit) -> None:
        if not container.exited.done():
            container.exited.set_result(container.fate or how)

    # Called on the loop by the events thread.

    def _happened(self, name: str, action: str, code: int) -> None:
        container = self._containers.get(name)
        if action == "create":
            if container is None and name not in self._spared and not self._closed:
                # An earlier run of this gateway requested it and ended before it was created.
                self._own(self.call(_remove, name))
            return
        if container is None or container.exited.done():
            return
        if action == "oom":
            container.out_of_memory.set()
        elif container.ending is not None:
            self._finish(container, _KILLED)
        elif not container.died:
            container.died = True
            self._own(self._bury(container, code))

    async def _bury(self, container: Container, code: int) -> None:
        """Find the cause of a container's own end, then remove the container."""
        ended = KernelExit.of_shell_code(code)
        try:
            state = (await self.call(APIClient.inspect_container, container.name))["State"]
            container.log = await self.log_tail(container)
            if ended.signal == 9 and (state["OOMKilled"] or await _soon(container.out_of_memory)):
                ended = out_of_memory(container.launch.limits.memory)
        except CellgateError as error:
            logger.warning("The end of a container could not be explained: %s", error.message)
            if ended.signal == signal.SIGTERM and isinstance(error, BackendUnavailable):
                # An engine that stops ends its containers this way; nothing of ours does.
                ended = _ENGINE_LOST
        finally:
            self._finish(container, ended)
            self.end(container)

    def _disk_is_full(self, container: Container, fate: KernelExit) -> None:
        if not container.died:
            self.end(container, fate)

    async def files_given(self, container: Container) -> None:
        """Allow the present files of the workspace, even over the limit."""
        if container.watched is not None:
            await self._disks.files_given(container.watched)

    def _connected(self) -> None:
        if not self._closed:
            self._own(self._compare())

    async def _compare(self) -> None:
        """Remove unknown containers after (re)connection, and handle those that ended unseen."""
        listed = await self.call(
            APIClient.containers, all=True, filters={"label": f"{INSTANCE_LABEL}={self.instance}"}
        )
        there = {entry["Names"][0].lstrip("/"): entry["State"] for entry in listed}
        for name in there.keys() - self._containers.keys() - self._spared:
            await self.call(_remove, name)
        for name, container in tuple(self._containers.items()):
            starting = container.starting
            if starting is None or not starting.done() or starting.exception() or container.ending:
                continue
            if name not in there:
                lost = "The kernel's container was removed by somebody else."
                self.end(container, KernelExit("kernel_exit", None, 9, lost))
            elif there[name] in ("exited", "dead"):
                inspected = await self.call(APIClient.inspect_container, name)
                self._happened(name, "die", inspected["State"]["ExitCode"])


def _is_here(process: int, container: str) -> bool:
    """Return whether a process is in a container of an engine here. Raises OSError on too many open files."""
    try:
        return container in Path(f"/proc/{process}/cgroup").read_text()
    except OSError as error:
        if error.errno in NO_OPEN_FILES:
            raise
        return False


def out_of_memory(memory: int) -> KernelExit:
    """Return the end of a kernel whose container used more than `memory` bytes."""
    size = f"{memory / 2**20:.4g} MiB"
    said = f"The kernel used more than its {size} of memory and was ended. Its variables are lost."
    return KernelExit("out_of_memory", None, 9, said)


def explained(error: Exception, url: str) -> CellgateError:
    """Return an error of the SDK as a CellgateError."""
    if isinstance(error, ImageNotFound):
        return ImageMissing(
            f"The kernel image is not there: {error.explanation}. Run `cellgate image build`."
        )
    if isinstance(error, APIError):
        said = str(error.explanation or in_words(error))[:500]
        if error.is_client_error():
            return KernelStartFailed(f"The Docker engine refused: {said}")
        return KernelStartFailed(f"The Docker engine failed: {said}")
    if isinstance(error, PermissionError) or "PermissionError" in in_words(error):
        return BackendUnavailable(
            f"No right to use the Docker engine at {url}; an ordinary user must be in the group `docker`."
        )
    return BackendUnavailable(f"No Docker engine answers at {url}. Is it installed, and running?")


async def _soon(event: asyncio.Event) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(_MEMORY_NEWS_TIMEOUT):
            await event.wait()
    return event.is_set()


def _create_and_start(client: APIClient, config: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the engine's description of the new container."""
    made = client.create_container_from_config(config, name)["Id"]
    client.start(made)
    return dict(client.inspect_container(made))


def _inspect_running(client: APIClient, name: str) -> dict[str, Any]:
    """Return the engine's description of a container. Raises KernelStartFailed when it has ended."""
    inspected = dict(client.inspect_container(name))
    if not inspected["State"]["Running"]:
        raise KernelStartFailed("The kernel's container has ended.")
    return inspected


def _read_from_image(
    client: APIClient, image: str, path: str, most: int, *, labels: Mapping[str, str], name: str
) -> bytes | None:
    """Return the first bytes of a file of an image, read from a container that is never started."""
    config = {"Image": image, "Entrypoint": ["/none"], "Cmd": [], "Labels": dict(labels)}
    made = client.create_container_from_config(config, name)["Id"]
    try:
        chunks, _ = client.get_archive(made, path)
        packed = io.BytesIO()
        with closing(chunks):
            for chunk in chunks:
                packed.write(chunk)
                if packed.tell() > most + _TAR_OVERHEAD:
                    break
        packed.seek(0)
        with tarfile.open(fileobj=packed, mode="r|") as archive:
            member = archive.next()
            file = None if member is None else archive.extractfile(member)
            return None if file is None else file.read(most)
    except NotFound:
        return None
    except tarfile.TarError as error:
        raise DockerException(f"the engine sent no archive: {error}") from error
    finally:
        _remove(client, name)


def _remove(client: APIClient, name: str) -> None:
    """Kill and remove a container and its anonymous volumes; one that is gone, or going, is not an error."""
    try:
        client.remove_container(name, force=True, v=True)
    except NotFound:
        return
    except APIError as error:
        if error.status_code != requests.codes.conflict:
            raise
