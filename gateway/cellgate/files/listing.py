"""Listings of workspaces with the hashes of their files, limited in time and stopped when the client leaves.

Hashing files is the only slow part of a listing, so a request hashes no more than `Most` allows. Files that
it skips have no hash yet, and the next request continues there, because hashes are cached by the file's
identity. The work runs in its own thread lane, one listing of a session at a time, and stops within one chunk
when its client leaves. This module knows folders, not sessions: ``sessions.files`` passes the folder.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec import structs

from cellgate.errors import QueueFull, ShuttingDown
from cellgate.fairness.turns import Turns, part_of_one
from cellgate.files import tree
from cellgate.files.tree import FileState
from cellgate.wire.answers import FileModel, FilePage
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.threads import Lane

MOST_HASHES = 100_000
MOST_PATHS = MIB
"""Most characters of all paths in a page, which is encoded as JSON in one step."""
MOST_WAITING = 64
MOST_WAITING_OF_ONE = 8
"""Most waiting listings of one session."""
AT_ONCE = 2
"""Listings at once: as many as the lane has threads."""
PATIENCE = 300.0
REFUSAL = "Too many listings of files are in progress; try again"
RETRY_AFTER = 5.0

Identity = tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class Most:
    """The most that one listing may hash: bytes in total, and seconds."""

    size: int = 256 * MIB
    seconds: float = 2.0


class Stop:
    """A flag that stops a listing: its client has gone, or the gateway is shutting down."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def set(self) -> None:
        """Stop the listing at its next step."""
        self._event.set()

    def __call__(self) -> bool:
        """Return whether it was set; may be called from any thread."""
        return self._event.is_set()


@dataclass(frozen=True, slots=True)
class _Found:
    """A page as the wire has it, and the newly computed hashes."""

    page: FilePage
    hashed: dict[Identity, str]


class Listings:
    """Makes listings, and caches hashes."""

    def __init__(self, lane: Lane, most: Most | None = None) -> None:
        self._lane = lane
        self._most = most or Most()
        self._known: OrderedDict[Identity, str] = OrderedDict()
        self._sessions: dict[tuple[str, str], tuple[asyncio.Lock, list[Stop]]] = {}
        self._turns = Turns(AT_ONCE, MOST_WAITING, PATIENCE, REFUSAL, retry_after=RETRY_AFTER)
        self._closed = False

    def know(self, file: FileState, sha256: str) -> None:
        """Cache the hash of a file."""
        self._known[file.identity] = sha256
        self._known.move_to_end(file.identity)
        if len(self._known) > MOST_HASHES:
            self._known.popitem(last=False)

    async def page(
        self,
        session: tuple[str, str],
        root: Path,
        *,
        limit: int,
        after: str,
        stop: Stop,
        folders: bool = False,
    ) -> FilePage:
        """Return up to `limit` files with a path after `after`, by path; fewer if paths are very long.

        `session`: its principal and its key. `folders`: return folders too.

        The page also says whether all files could be seen; see `tree.scan`.

        Raises QueueFull when too many listings wait, ShuttingDown when `stop` was set.
        """
        lock, stops = self._sessions.setdefault(session, (asyncio.Lock(), []))
        waiting = sum(len(each) for _, each in self._sessions.values())
        theirs = sum(len(each) for (owner, _), (_, each) in self._sessions.items() if owner == session[0])
        full = waiting >= MOST_WAITING or theirs >= part_of_one(MOST_WAITING)
        if len(stops) >= MOST_WAITING_OF_ONE or full:
            if not stops:
                del self._sessions[session]
            raise QueueFull(REFUSAL, retry_after=RETRY_AFTER)
        stops.append(stop)
        if self._closed:
            stop.set()
        try:
            async with lock, self._turns.turn(session[0]):
                found = await self._lane.run(self._list, root, limit, after, stop, folders)
        finally:
            stops.remove(stop)
            if not stops:
                del self._sessions[session]
        for identity, sha256 in found.hashed.items():
            self._known[identity] = sha256
            if len(self._known) > MOST_HASHES:
                self._known.popitem(last=False)
        if stop():
            raise ShuttingDown("The listing was stopped")
        return found.page

    def _list(self, root: Path, limit: int, after: str, stop: Callable[[], bool], folders: bool) -> _Found:
        everything: dict[str, FileState] = {}
        complete = False
        if not stop():
            everything, complete = tree.scan(root, stopped=stop, folders=folders)
        found = sorted((f for f in everything.values() if f.path > after), key=lambda f: f.path)
        hasher = _Hasher(self._most, stop)
        models: list[FileModel] = []
        room = MOST_PATHS
        for file in found[:limit]:
            if stop() or room <= 0:
                break
            room -= len(file.path)
            if file.path.endswith("/"):
                models.append(structs.replace(file_model(file, None), size=0, folder=True))
                continue
            models.append(file_model(file, self._known.get(file.identity) or hasher.hash(root, file)))
        following = models[-1].path if models and len(found) > len(models) else None
        return _Found(FilePage(files=models, next=following, complete=complete), hasher.hashed)

    def close(self) -> None:
        """Stop all listings, and refuse new ones."""
        self._closed = True
        for _, stops in self._sessions.values():
            for stop in stops:
                stop.set()


class _Hasher:
    """Hashes files until its allowance is used up. `hashed`: the new hashes."""

    def __init__(self, most: Most, stop: Callable[[], bool]) -> None:
        self.hashed: dict[Identity, str] = {}
        self._left = most.size
        self._end = time.monotonic() + most.seconds
        self._stop = stop

    def hash(self, root: Path, file: FileState) -> str | None:
        """Return the hash, or None if the allowance is used up or the file changed or can't be read."""
        if file.size > self._left or time.monotonic() > self._end:
            return None
        try:
            descriptor, opened = tree.open_file(root, tree.parse_path(file.path))
        except CellgateError:
            return None
        try:
            if opened.identity != file.identity:
                return None
            sha256 = self._read(descriptor)
            if sha256 is None or tree.state_of(file.path, descriptor).identity != file.identity:
                return None
        except OSError:
            return None
        finally:
            os.close(descriptor)
        self.hashed[file.identity] = sha256
        return sha256

    def _read(self, descriptor: int) -> str | None:
        hashed = hashlib.sha256()
        while chunk := os.read(descriptor, tree.CHUNK):
            self._left -= len(chunk)
            if self._stop() or self._left < 0 or time.monotonic() > self._end:
                return None
            hashed.update(chunk)
        return hashed.hexdigest()


def file_model(file: FileState, sha256: str | None) -> FileModel:
    """Return a file as the wire has it. `sha256` is None if it is not known yet."""
    modified = modified_at(file).replace(tzinfo=None)
    return FileModel(
        path=file.path,
        size=file.size,
        modified=modified.isoformat(timespec="microseconds") + "Z",
        sha256=sha256,
    )


def modified_at(file: FileState) -> datetime:
    """Return the time of a file's last change. User code can set any; one beyond `datetime` is clamped."""
    return datetime.fromtimestamp(min(max(file.modified / 1e9, _FIRST), _LAST), UTC)


_FIRST = datetime(1, 1, 1, tzinfo=UTC).timestamp()
_LAST = datetime(9999, 12, 31, tzinfo=UTC).timestamp()
