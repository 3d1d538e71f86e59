"""Removes folders that are no longer needed: now, or later if that fails.

A kernel, a session or a failed start must not wait for a folder that can't be removed just now, because no
file can be opened or code still writes to it. Only this module tries again: at growing intervals, once when
the gateway stops, and at its next start. A folder is first renamed to a name that marks it for removal, which
takes no open file: so it is never mistaken for one in use, or for user files.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from itertools import chain, repeat
from pathlib import Path

from cellgate_kernels.base import trees
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

PREFIX = "leftover-"
PAUSES = (0.1, 0.5, 2.0, 10.0, 60.0, 300.0)
"""Seconds between attempts to remove a folder; the last one repeats until the gateway ends."""
MOST = 1024
"""Most folders that are tried again at the same time."""


def is_leftover(name: str) -> bool:
    """Return whether a folder of this name is marked for removal."""
    return name.startswith(PREFIX)


def make_way(path: Path) -> None:
    """Rename the entry at `path` so that the path is free and `sweep` removes the entry. Raises OSError."""
    with suppress(FileNotFoundError):
        path.rename(_nameless(path))


class Leftovers:
    """The leftovers of one gateway. `close` it when nothing more will be removed."""

    def __init__(self, pauses: Sequence[float] = PAUSES) -> None:
        self._pauses = pauses
        self._tasks = Supervisor()
        # By current path: the original path, and a future that is done when the folder is gone.
        self._left: dict[Path, tuple[Path, asyncio.Future[None]]] = {}
        self._closed = False

    async def remove(self, *folders: Path) -> None:
        """Remove these folders with everything in them; a missing one is not an error.

        Returns when each has been tried. Folders that could not be removed are logged and tried again later.
        """
        await self._tasks.complete(self._remove_all(folders), "remove folders")

    async def empty(self, folder: Path, but: Collection[str] = ()) -> None:
        """Remove everything in a folder except these names. Raises OSError if the folder can't be read."""
        await self.remove(*(folder / name for name in await self._names(folder) if name not in but))

    async def sweep(self, *folders: Path) -> None:
        """Remove an earlier gateway's leftovers from these folders, at the start. Raises as `empty`."""
        for folder in folders:
            await self.remove(*(folder / name for name in await self._names(folder) if is_leftover(name)))

    @staticmethod
    async def _names(folder: Path) -> list[str]:
        return await asyncio.to_thread(os.listdir, folder)

    async def gone(self, *folders: Path) -> None:
        """Return when these folders, which were given to `remove` before, are completely gone."""
        for former, gone in tuple(self._left.values()):
            if former in folders:
                await asyncio.shield(gone)

    async def _remove_all(self, folders: Iterable[Path]) -> None:
        for folder in folders:
            place, refusal = await asyncio.to_thread(_begin, folder)
            if refusal is None or place in self._left:
                continue
            if self._closed or len(self._left) >= MOST:
                _log_left(place, refusal)
                continue
            logger.warning("%s can't be removed now, and is tried again: %s", place, refusal)
            self._left[place] = folder, asyncio.get_running_loop().create_future()
            self._tasks.start(self._insist(place), f"remove {place.name}")

    async def _insist(self, place: Path) -> None:
        for number, pause in enumerate(chain(self._pauses, repeat(self._pauses[-1]))):
            await asyncio.sleep(pause)
            refusal = await asyncio.to_thread(_try, place)
            if refusal is None:
                self._gone(place)
                return
            if number == len(self._pauses):
                _log_left(place, refusal)

    def _gone(self, place: Path) -> None:
        _, gone = self._left.pop(place)
        if not gone.done():
            gone.set_result(None)

    async def close(self) -> None:
        """Try the remaining folders once more, and stop."""
        self._closed = True
        await self._tasks.cancel()
        for place, (_, gone) in tuple(self._left.items()):
            refusal = await asyncio.to_thread(_try, place)
            if refusal is None:
                self._gone(place)
            else:
                _log_left(place, refusal)
                gone.cancel()


def _nameless(path: Path) -> Path:
    return path.with_name(f"{PREFIX}{secrets.token_hex(8)}")


def _log_left(place: Path, refusal: OSError) -> None:
    logger.error(
        "%s can't be removed; the next start of the gateway tries again: %s", place, in_words(refusal)
    )


def _begin(folder: Path) -> tuple[Path, OSError | None]:
    """Rename a folder as a leftover and try to remove it. Returns its path, and the error if that failed."""
    place = folder
    if not is_leftover(folder.name):
        place = _nameless(folder)
        try:
            folder.rename(place)
        except FileNotFoundError:
            return place, None
        except OSError:
            # For example in a folder that we may not write to. Its contents may still be removable.
            place = folder
    return place, _try(place)


def _try(place: Path) -> OSError | None:
    try:
        trees.remove(place)
    except OSError as error:
        return error
    return None
