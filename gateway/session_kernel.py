"""The kernel of a session: claimed from the pool, listened to, replaced together with its files.

It knows the pool, the folders of files and packages, and the back-pressure between a kernel and the disk. It
knows nothing of executions or of the session's state; ``sessions`` decides when a kernel is replaced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from gateway.channels.door import Door
from gateway.files.watch import WorkspaceWatch
from gateway.packages.session import SessionPackages
from gateway.record.errors import StorageError
from gateway.record.events import EventStore
from gateway.workspace import WorkspaceStore
from kernels.connection import Listener
from kernels.kernel import Kernel, KernelProfile
from kernels.messages import Message
from kernels.pool import KernelPool


class SessionKernel:
    """At most one kernel at a time. `receive` gets all its messages, `exited` is called when it ends."""

    def __init__(
        self,
        profile: KernelProfile,
        pool: KernelPool,
        workspaces: WorkspaceStore,
        store: EventStore,
        door: Door,
        packages: SessionPackages,
        receive: Listener,
        exited: Callable[[Kernel], None],
    ) -> None:
        self.current: Kernel | None = None
        self.moving = asyncio.Lock()
        """Held while the files are moved; hold it to use `workspace`."""
        self.packages = packages
        self.watch = WorkspaceWatch()
        self._session_id = packages.session_id
        self._profile = profile
        self._pool = pool
        self._workspaces = workspaces
        self._store = store
        self._door = door
        self._receive = receive
        self._exited = exited
        self._throttle: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether there is a kernel that can take a cell."""
        return self.current is not None and self.current.alive

    @property
    def workspace(self) -> Path:
        """The folder that the session's files are in now; without a kernel there may be none."""
        return self.current.workspace if self.current else self._workspaces.kept(self._session_id)

    async def claim(self) -> Kernel:
        """A fresh kernel with the session's files. Raises the pool's errors; then there is none."""
        assert self.current is None
        kernel = await self._pool.claim(self._profile)
        try:
            async with self.moving:
                if await self._workspaces.restore(self._session_id, kernel.workspace):
                    await kernel.files_given()
                    await self.watch.begin(kernel.workspace)
                else:
                    self.watch = WorkspaceWatch()
                await self.packages.restore(kernel)
                self.current = kernel
        except BaseException:
            self._pool.release(kernel)
            raise
        self._attend(kernel)
        return kernel

    async def adopt(self, kernel: Kernel) -> Kernel:
        """Go on with a kernel that had the session's files before this gateway was."""
        self._pool.adopt(kernel)
        self.current = kernel
        await self.watch.begin(kernel.workspace)
        await self.packages.load()
        self._attend(kernel)
        return kernel

    def _attend(self, kernel: Kernel) -> None:
        kernel.connection.listen(self._received)
        kernel.exited.add_done_callback(lambda _: self._exited(kernel))

    async def changed_files(self) -> list[dict[str, Any]]:
        """What happened to the files since this was last asked; see `WorkspaceWatch.changes`."""
        return [] if self.current is None else await self.watch.changes(self.current.workspace)

    async def drop(self, *, keep_files: bool = True) -> None:
        """End the kernel, if there is one, and keep its files for the next or remove them."""
        async with self.moving:
            kernel = await self._detach()
            if kernel is None:
                return
            await kernel.shutdown()
            try:
                await self.packages.keep(kernel)
                if keep_files:
                    await self._workspaces.keep(self._session_id, kernel.workspace)
            finally:
                self._pool.release(kernel)

    async def let_go(self) -> None:
        """Leave the kernel, if there is one, with its files to the next gateway."""
        async with self.moving:
            if (kernel := await self._detach()) is not None:
                self._pool.let_go(kernel)

    async def _detach(self) -> Kernel | None:
        kernel, self.current = self.current, None
        if self._throttle is not None:
            self._throttle.cancel()
            await asyncio.gather(self._throttle, return_exceptions=True)
            self._throttle = None
        return kernel

    async def end(self, *, keep_files: bool) -> None:
        """As `drop`, for good: packages go, files too unless they are to be kept."""
        await self.drop(keep_files=keep_files)
        if not keep_files:
            await self._workspaces.remove(self._session_id)
        await self.packages.forget()

    def _received(self, message: Message) -> None:
        self._receive(message)
        if self._throttle is None and (self._store.full or self._door.crowded):
            self._throttle = asyncio.create_task(self._hold_back(), name=f"throttle {self._session_id}")

    async def _hold_back(self) -> None:
        """Let the kernel keep its output in its own memory while the disk catches up."""
        kernel = self.current
        if kernel is not None:
            kernel.connection.pause()
            await self._door.room()
            # A record that can't be written is told to whoever waits for the session's next commit.
            with suppress(StorageError):
                await self._store.room()
            kernel.connection.resume()
        self._throttle = None


def environment_of(kernel: Kernel) -> dict[str, Any]:
    """What the record keeps of where a session's cells run: what kernel, image, Python and packages.

    By the kernel's own kernel_info_reply, and by what it told of its environment before anybody used it.
    """
    names = ("implementation", "implementation_version", "language_info", "protocol_version")
    info = {name: kernel.info[name] for name in names if name in kernel.info}
    known = {"display_name": kernel.display_name, "kernel_id": kernel.id, "kernel_info": info, **kernel.image}
    if kernel.environment is not None:
        known |= {"python": kernel.environment.python, "packages": kernel.environment.packages}
    return known
