"""Kernels whose files are watched (``limits.disk_watch``), since no file system of their own limits them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cellgate_kernels.launch.backend import Launch
from cellgate_kernels.launch.child import ChildProvisioner
from cellgate_kernels.launch.folders import LaunchFolders
from cellgate_kernels.limits.disk import CountedFolder, may_look
from cellgate_kernels.limits.disk_watch import DiskWatch, Watched
from cellgate_kernels.protocol.unsent import FILES_BYTES


class WatchedProvisioner(ChildProvisioner):
    """A provisioner whose kernel ends when its files are larger than its limit."""

    _disks: DiskWatch | None = None
    _watched: Watched | None = None

    async def pre_launch(self, **kwargs: Any) -> dict[str, Any]:
        """Return the launch's keywords. `disk_watch` is the watch that a gateway's kernels share."""
        self._disks = kwargs.pop("disk_watch", None) or self._disks or DiskWatch()
        return await super().pre_launch(**kwargs)

    async def _start(self, launch: Launch) -> None:
        await super()._start(launch)
        child, disks = self._child, self._disks
        assert child is not None
        assert disks is not None
        process = self.watched_process
        if process is not None and not may_look(process):
            process = None
        folders = tuple(self.counted(launch.folders))
        watched = Watched(launch.limits, folders, process, child.kill, workspaces=lambda: self.workspaces)
        disks.add(watched)
        child.exited.add_done_callback(lambda _: disks.discard(watched))
        self._watched = watched

    @property
    def watched_process(self) -> int | None:
        """The first process of those whose open files count."""
        return None if self._child is None else self._child.inner_pid

    def counted(self, folders: LaunchFolders) -> Sequence[CountedFolder]:
        """Return the folders that count."""
        counted = [
            CountedFolder(folders.workspace, is_workspace=True),
            CountedFolder(folders.sockets, FILES_BYTES),
        ]
        if folders.branches is not None:
            counted.append(CountedFolder(folders.branches, has_workspaces=True))
        return counted

    async def files_given(self) -> None:
        if self._disks is not None and self._watched is not None:
            await self._disks.files_given(self._watched)
