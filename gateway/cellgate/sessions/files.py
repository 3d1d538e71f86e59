"""The files of sessions, by principal and key: listing, reading, adding and removing them.

Changes are recorded. This module finds the folder that currently holds a session's files and keeps it in
place while it works. ``files.tree`` knows how to access a hostile folder safely; ``http.v1.files`` does the
HTTP.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from msgspec import structs

from cellgate.errors import NotFound, QueueFull, QuotaExceeded, storage
from cellgate.execution.checks import check_session_key
from cellgate.fairness.reservation import Reservation as Place
from cellgate.fairness.shares import Shares
from cellgate.fairness.turns import Turns
from cellgate.files import tree
from cellgate.files.ledger import UploadLedger, UploadReservation
from cellgate.files.listing import Listings, Stop
from cellgate.files.precondition import Precondition
from cellgate.files.tree import FileState, Parts
from cellgate.files.upload import Upload
from cellgate.files.watch import MAX_HASHED
from cellgate.record.export.page_order import MOST_FILE, PageOrder, read_order
from cellgate.record.store.interface import RecordStore
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.session import Session
from cellgate.wire.answers import FileChange, FilePage
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane, ThreadLanes
from cellgate_kernels.limits.disk import ENTRY_BYTES, CountedFolder, new_bytes, usage

MAX_UPLOADS = 32
UPLOADS_OF_ONE = 24
ORDERS_AT_ONCE = 2
"""Notebook files that are in memory at once."""
ORDERS_WAITING = 32
ORDERS_PATIENCE = 60.0
RECORDED_AT_ONCE = 256
"""Most events about files that are recorded before others have their turn."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A complete upload, its target path, and what must hold of the file that is there."""

    parts: Parts
    upload: Upload
    condition: Precondition | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """A file that was put into a workspace: what changed, and its ETag."""

    change: FileChange
    tag: str


@dataclass(frozen=True, eq=False, slots=True)
class Incoming:
    """The files of one request: the space reserved for them, and the uploads that were started."""

    reservation: UploadReservation
    owner: str
    uploads: dict[Upload, Place] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class UploadSpace:
    """The place for uploads in progress.

    `folder`: on the workspaces' file system. `reserve`: bytes of its disk that stay free. `most`: bytes that
    all uploads together may have.
    """

    folder: Path
    reserve: int
    most: int


class SessionFiles:
    """The files of all sessions. Methods raise NotFound for anything that is not the principal's."""

    def __init__(
        self, journal: RecordStore, manager: SessionRegistry, lanes: ThreadLanes, space: UploadSpace
    ) -> None:
        self._journal = journal
        self._manager = manager
        self._lanes = lanes
        self._space = space
        self._ledger = UploadLedger(space.folder, space.reserve, space.most)
        self._listings = Listings(lanes.bulk)
        self._incoming: set[Incoming] = set()
        self._places = Shares(MAX_UPLOADS, UPLOADS_OF_ONE)
        refusal = "Too many notebooks are being read; try again later"
        self._orders = Turns(ORDERS_AT_ONCE, ORDERS_WAITING, ORDERS_PATIENCE, refusal)
        self._turns: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()
        self._tasks = Supervisor(lambda: {"part": "uploads"})

    @property
    def lane(self) -> Lane:
        """Threads for reading and writing the files that clients transfer."""
        return self._lanes.files

    @asynccontextmanager
    async def _root(self, principal: str, key: str) -> AsyncGenerator[Path, None]:
        """Yield the folder of the session's files, which stay there while the context is open."""
        session = self._manager.get(principal, check_session_key(key))
        if session is not None:
            async with session.slot.moving:
                yield session.slot.workspace
            return
        row = await self._journal.reads.session(principal, key)
        if row is None:
            raise NotFound(f"No session {key!r}")
        yield await self._manager.workspace(row)

    # Reading

    async def page(
        self, principal: str, key: str, *, limit: int, after: str, stop: Stop, folders: bool = False
    ) -> FilePage:
        """Return up to `limit` files with a path after `after`, by path; `folders`: return folders too."""
        async with self._root(principal, key) as root:
            pass
        # Hashing takes a while, so the lock is not held: files that are moved in the meantime are left out.
        return await self._listings.page(
            (principal, key), root, limit=limit, after=after, stop=stop, folders=folders
        )

    async def open(self, principal: str, key: str, parts: Parts) -> tuple[int, FileState]:
        """Return a descriptor for reading, which the caller closes, and the file's state."""
        async with self._root(principal, key) as root:
            return await self._lanes.files.run(tree.open_settled, root, parts)

    async def check(self, principal: str, key: str, parts: Parts, condition: Precondition) -> None:
        """Check a condition of an upload before anything is made for it. Raises FileChanged."""
        try:
            async with self._root(principal, key) as root:
                await self._lanes.files.run(tree.check, root, parts, condition)
        except NotFound:
            condition.check("/".join(parts)[:200], None)

    async def order(self, principal: str, key: str, parts: Parts) -> PageOrder:
        """Return the order of a notebook file. Raises NotFound, InvalidInput, TooLarge and QueueFull."""
        async with self._orders.turn(principal):
            async with self._root(principal, key) as root:
                content = await self._lanes.files.run(tree.read_file, root, parts, MOST_FILE)
            return await self._lanes.texts.run(read_order, content, "/".join(parts))

    async def look(self, principal: str, key: str, parts: Parts) -> tree.Item:
        """Return the file or folder at this path; no parts mean the workspace itself."""
        async with self._root(principal, key) as root:
            return await self._lanes.files.run(tree.look, root, parts)

    async def look_into(self, principal: str, key: str, parts: Parts, depth: int) -> list[tree.Item]:
        """Return the items in a folder and, down to `depth`, in its subfolders; see `tree.look_into`."""
        async with self._root(principal, key) as root:
            return await self._lanes.files.run(tree.look_into, root, parts, depth)

    async def used(self, session: Session) -> int:
        """Return the bytes on disk of a session's files, as its limit counts them. Raises StorageError."""
        async with session.slot.moving:
            return await self._lanes.files.run(_used, session.slot.workspace, session.limits.resources.disk)

    # Changing

    async def session(self, principal: str, key: str, wanted: SessionBody | None = None) -> Session:
        """Return the key's live session, made with `wanted` if necessary: files may come before a cell."""
        body = structs.replace(wanted or SessionBody(), session=check_session_key(key))
        session, _ = await self._manager.get_or_create(principal, body)
        session.record.check_writable()
        session.account.check_record()
        return session

    async def reserve(self, session: Session, length: int, parts: Parts | None = None) -> Incoming:
        """Reserve space for `length` bytes, to be `discard`ed. `parts`: the file to be replaced, if any.

        Raises QuotaExceeded, StorageFull and QueueFull.
        """
        # Files are placed under the same lock, so each counts exactly once: in the folder or as reserved.
        async with session.slot.moving:
            limit = session.limits.resources.disk
            used, replaced = await self._lanes.files.run(_measure, session.slot.workspace, parts, limit)
            reservation = self._ledger.reserve(
                session.row.id, session.account.name, used, limit, length, replaced
            )
        return Incoming(reservation, session.account.name)

    def begin(self, incoming: Incoming) -> Upload:
        """Return a new upload into the reserved space. Raises QueueFull and StorageError."""
        place = self._places.take(incoming.owner)
        if place is None:
            raise QueueFull(f"{self._places.taken} uploads are in progress; try again", retry_after=5)
        try:
            upload = Upload(self._space.folder, incoming.reservation, self._space.reserve, self._lanes.files)
        except BaseException:
            place.release()
            raise
        self._incoming.add(incoming)
        incoming.uploads[upload] = place
        return upload

    async def discard(self, incoming: Incoming) -> None:
        """Discard uploads and release their space; placed files stay. May be called more than once."""
        while incoming.uploads:
            upload = next(iter(incoming.uploads))
            await upload.discard()
            if (place := incoming.uploads.pop(upload, None)) is not None:
                place.release()
        incoming.reservation.release()
        self._incoming.discard(incoming)

    def discard_later(self, incoming: Incoming) -> None:
        """Discard an upload in the background."""
        self._tasks.start(self.discard(incoming), "discard upload")

    async def place(self, session: Session, incoming: Incoming, staged: Sequence[Staged]) -> list[Placed]:
        """Move finished uploads into the workspace and record them; return the files as they are then.

        Raises QuotaExceeded, without placing anything, when the workspace has grown in the meantime,
        FileChanged when a condition does not hold, and ShuttingDown when the session is ending.
        """
        placed = []
        async with session.slot.moving, self._turn(session.slot.workspace):
            # The session's end takes this lock before it handles the files. A file that is placed later would
            # stay in an unknown folder, or turn up in a later session with the same key.
            session.check_open()
            root = session.slot.workspace
            used = await self._lanes.files.run(_check_room, root, staged, session.limits.resources.disk)
            for each in staged:
                state, created = await self._lanes.files.run(_place, each, root)
                session.slot.watch.know(state.path, state)
                self._listings.know(state, each.upload.sha256)
                model = FileChange(
                    path="/".join(each.parts),
                    size=each.upload.size,
                    sha256=each.upload.sha256,
                    action="created" if created else "changed",
                )
                session.log.append("file", None, session.record.masked_file(structs.asdict(model)))
                placed.append(Placed(model, state.tag))
            self._ledger.placed(incoming.reservation, used)
        session.record.begin_idleness()
        await session.log.commit()
        return placed

    def _turn(self, root: Path) -> asyncio.Lock:
        """Return what is held while files are put into a folder, which several sessions may share."""
        return self._turns.setdefault(root, asyncio.Lock())

    async def write(self, session: Session, parts: Parts, data: bytes) -> FileChange:
        """Write `data` to a file in the workspace, as an upload would; return the file's model."""
        incoming = await self.reserve(session, len(data), parts)
        try:
            upload = self.begin(incoming)
            await upload.write(data)
            await upload.finish()
            (placed,) = await self.place(session, incoming, [Staged(parts, upload)])
        finally:
            await self.discard(incoming)
        return placed.change

    async def copy(
        self, principal: str, key: str, parts: Parts, session: Session, target: Parts
    ) -> FileChange:
        """Copy a file of the principal's sessions, live or ended, into this session; return its model."""
        descriptor, state = await self.open(principal, key, parts)
        try:
            incoming = await self.reserve(session, state.size, target)
            try:
                upload = self.begin(incoming)
                while chunk := await self.lane.run(os.pread, descriptor, tree.CHUNK, upload.size):
                    await upload.write(chunk)
                await upload.finish()
                (placed,) = await self.place(session, incoming, [Staged(target, upload)])
            finally:
                await self.discard(incoming)
        finally:
            os.close(descriptor)
        return placed.change

    async def remove(
        self, principal: str, key: str, parts: Parts, condition: Precondition | None = None
    ) -> None:
        """Remove a file, a link or an empty folder. Raises FileChanged if a condition does not hold."""
        session = self._manager.get(principal, check_session_key(key))
        async with self._root(principal, key) as root:
            if session is not None:
                session.check_open()
            async with self._turn(root):
                await self._lanes.files.run(tree.remove, root, parts, condition)
        if session is not None:
            session.slot.watch.know("/".join(parts), None)
            fields = {"path": "/".join(parts), "size": None, "sha256": None, "action": "deleted"}
            session.log.append("file", None, session.record.masked_file(fields))
            session.record.begin_idleness()
            await session.log.commit()

    async def remove_all(self, principal: str, key: str, parts: Parts) -> None:
        """Remove the item at this path of a live session with everything in it; see `tree.remove_all`."""
        session = self._manager.live(principal, key)
        async with session.slot.moving, self._turn(session.slot.workspace):
            session.check_open()
            gone = await self._lanes.files.run(tree.remove_all, session.slot.workspace, parts)
            for path in gone:
                session.slot.watch.know(path, None)
            for number, path in enumerate(gone, 1):
                fields = {"path": path, "size": None, "sha256": None, "action": "deleted"}
                session.log.append("file", None, session.record.masked_file(fields))
                if number % RECORDED_AT_ONCE == 0:
                    await asyncio.sleep(0)
        session.record.begin_idleness()
        await session.log.commit()

    async def make_folder(self, principal: str, key: str, parts: Parts) -> bool:
        """Make a folder, and the session if necessary; returns whether the folder is new.

        Folders are not recorded, only files. Raises QuotaExceeded when the workspace has no room.
        """
        session = await self.session(principal, key)
        async with session.slot.moving:
            session.check_open()
            limit = session.limits.resources.disk
            made = await self._lanes.files.run(_make_folder, session.slot.workspace, parts, limit)
        session.record.begin_idleness()
        return made

    async def move(self, principal: str, key: str, old: Parts, new: Parts) -> list[FileChange]:
        """Rename a file or folder, recorded as deleted and created; return the moved files."""
        session = self._manager.get(principal, check_session_key(key))
        async with self._root(principal, key) as root:
            if session is not None:
                session.check_open()
                session.record.check_writable()
            limit = None if session is None else session.limits.resources.disk
            async with self._turn(root):
                moved = await self._lanes.files.run(_move, root, old, new, limit)
            changes = [
                FileChange(path=state.path, size=state.size, sha256=sha256, action="created")
                for state, sha256 in await self._lanes.files.run(_hashed, root, moved)
            ]
            if session is not None:
                start, former = len("/".join(new)), "/".join(old)
                for state, change in zip(moved, changes, strict=True):
                    path = former + state.path[start:]
                    session.slot.watch.know(path, None)
                    session.slot.watch.know(state.path, state)
                    gone = {"path": path, "size": None, "sha256": None, "action": "deleted"}
                    session.log.append("file", None, session.record.masked_file(gone))
                    session.log.append("file", None, session.record.masked_file(structs.asdict(change)))
        if session is not None:
            session.record.begin_idleness()
            await session.log.commit()
        return changes

    async def close(self) -> None:
        """Stop listings and discard uploads in progress."""
        self._listings.close()
        await self._tasks.finished()
        for incoming in tuple(self._incoming):
            await self.discard(incoming)


def _used(root: Path, limit: int) -> int:
    """Return the disk space of all files and folders in bytes, counted as while a kernel runs.

    Stops counting a little above `limit`. Raises StorageError if the folder can't be read.
    """
    with storage("The workspace can't be measured"):
        return usage([CountedFolder(root)], None, enough=limit).used


def _measure(root: Path, parts: Parts | None, limit: int) -> tuple[int, int]:
    """Return the bytes of all files on disk, as `_used`, and the bytes that replacing `parts` frees."""
    return _used(root, limit), 0 if parts is None else tree.freed_by(root, parts)


def _folder_bytes(root: Path, folders: Iterable[Parts]) -> int:
    """Return the bytes that the missing ones of these folders would take."""
    new: set[Parts] = set()
    for folder in folders:
        first = len(folder) - tree.missing(root, folder)
        new.update(folder[: number + 1] for number in range(first, len(folder)))
    return len(new) * ENTRY_BYTES


def _check_room(root: Path, staged: Sequence[Staged], limit: int) -> int:
    """Return the bytes on disk of all files once `staged` is in place. Raises QuotaExceeded, StorageError."""
    used = _used(root, limit)
    after = used + _folder_bytes(root, (each.parts[:-1] for each in staged))
    for each in staged:
        after += new_bytes(each.upload.size) - tree.freed_by(root, each.parts)
    if after > max(limit, used):
        raise QuotaExceeded(
            f"The workspace would take {after} bytes of disk, and its limit is {limit}; delete files first."
            f" A file or folder takes {ENTRY_BYTES} bytes at least"
        )
    return after


def _place(staged: Staged, root: Path) -> tuple[FileState, bool]:
    root.mkdir(mode=0o700, exist_ok=True)
    if staged.condition is not None:
        tree.check(root, staged.parts, staged.condition)
    return tree.place(staged.upload.path, root, staged.parts)


def _make_folder(root: Path, parts: Parts, limit: int) -> bool:
    root.mkdir(mode=0o700, exist_ok=True)
    _check_folders(root, parts, limit)
    return tree.make_folder(root, parts)


def _check_folders(root: Path, folder: Parts, limit: int) -> None:
    """Check that there is room for the missing folders of this path. Raises QuotaExceeded, StorageError."""
    new = _folder_bytes(root, [folder])
    if new and (after := _used(root, limit) + new) > limit:
        raise QuotaExceeded(
            f"With these folders the workspace would take {after} bytes of disk, and its limit is {limit};"
            " delete files first"
        )


def _move(root: Path, old: Parts, new: Parts, limit: int | None) -> list[FileState]:
    if limit is not None:
        _check_folders(root, new[:-1], limit)
    return tree.move(root, old, new)


def _hashed(root: Path, moved: Sequence[FileState]) -> list[tuple[FileState, str | None]]:
    """Return the files with the hashes of their first `MAX_HASHED` bytes."""
    left = MAX_HASHED
    found: list[tuple[FileState, str | None]] = []
    for state in moved:
        sha256 = None
        if state.size <= left:
            left -= state.size
            with suppress(CellgateError, OSError):
                sha256 = tree.digest(root, tree.parse_path(state.path))[1]
        found.append((state, sha256))
    return found
