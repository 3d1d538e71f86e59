"""Folders that kernels of several sessions use at once, because one was branched from the other.

Each of these sessions leaves the folder with its kernel. The last one may take the files with it; the others
get a copy, so that no session loses files that another still has. Counts only; ``workspace`` moves files.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class _Shared:
    users: int = 1
    one_at_a_time: asyncio.Lock = field(default_factory=asyncio.Lock)


class FolderUsers:
    """The number of sessions that use a folder. Folders that were never joined have one user and no entry."""

    def __init__(self) -> None:
        # By the folder's name, a kernel's id: a path may be written in several ways.
        self._shared: dict[str, _Shared] = {}

    def join(self, folder: Path) -> None:
        """Count one more session that uses the folder."""
        self._shared.setdefault(folder.name, _Shared()).users += 1

    def others_use(self, folder: Path) -> bool:
        """Return whether more than one session uses the folder."""
        shared = self._shared.get(folder.name)
        return shared is not None and shared.users > 1

    @asynccontextmanager
    async def leaving(self, folder: Path) -> AsyncGenerator[bool, None]:
        """Yield whether this session is the folder's last user; on exit it no longer uses it.

        One session leaves at a time. If the block raises, the session still uses the folder, because its
        files exist only there.
        """
        shared = self._shared.get(folder.name)
        if shared is None:
            yield True
            return
        async with shared.one_at_a_time:
            last = shared.users == 1
            try:
                yield last
                shared.users -= 1
            finally:
                if last:
                    # Removed even if the last session could not leave: folders with one user have no entry.
                    del self._shared[folder.name]
