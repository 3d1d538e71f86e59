"""The files of sessions, by principal and key: listed, read, brought in, removed; changes go into the
record.

It finds the folder that a session's files are in at the moment and keeps it there while it works. How a
hostile folder is touched is ``files.tree``'s affair; HTTP is ``http.v1.files``'.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from msgspec import structs

from cellgate.files import tree
from cellgate.files.ledger import Ledger, Reservation
from cellgate.files.listing import Listings, Stop
from cellgate.files.tree import FileState, Parts
from cellgate.files.upload import Upload
from cellgate.files.workspace import WorkspaceStore, folder_of
from cellgate.record.journal import Journal
from cellgate.sessions.registry import SessionManager
from cellgate.sessions.session import Session
from cellgate.wire.answers import FileChange, FilePage
from cellgate.wire.errors import NotFound, QueueFull, QuotaExceeded
from cellgate.wire.models import SessionBody, check_session_key
from cellgate_kernels.tasks import Supervisor
from cellgate_kernels.threads import Lane, ThreadLanes

MAX_UPLOADS = 32


@dataclass(frozen=True, slots=True)
class Staged:
    """An upload that is complete, and the path it is for."""

    parts: Parts
    upload: Upload


@dataclass(frozen=True, eq=False, slots=True)
class Incoming:
    """The files of one request: the room that was reserved for them, and those that have begun."""

    reservation: Reservation
    uploads: list[Upload] = field(default_factory=list)


class SessionFiles:
    """All sessions' files. Methods raise NotFound for what is not the principal's.

    `staging`: the folder of uploads that are under way; `reserve`: bytes of its disk that stay free;
    `most`: bytes that all uploads may have together.
    """

    def __init__(
        self,
        journal: Journal,
        manager: SessionManager,
        workspaces: WorkspaceStore,
        staging: Path,
        lanes: ThreadLanes,
        *,
        reserve: int,
        most: int,
    ) -> None:
        self._journal = journal
        self._manager = manager
        self._workspaces = workspaces
        self._staging = staging
        self._lanes = lanes
        self._reserve = reserve
        self._ledger = Ledger(staging, reserve, most)
        self._listings = Listings(lanes.bulk)
        self._incoming: set[Incoming] = set()
        self._uploads = 0
        self._tasks = Supervisor(lambda: {"part": "uploads"})

    @property
    def lane(self) -> Lane:
        """Threads for reading and writing what clients bring and fetch."""
        return self._lanes.files

    @asynccontextmanager
    async def _root(self, principal: str, key: str) -> AsyncGenerator[Path, None]:
        """The folder of the session's files, which stay there meanwhile."""
        session = self._manager.get(principal, check_session_key(key))
        if session is not None:
            async with session.slot.moving:
                yield session.slot.workspace
            return
        row = await self._journal.session(principal, key)
        if row is None:
            raise NotFound(f"No session {key!r}")
        yield self._workspaces.of(folder_of(row)).path

    # Looking

    async def page(self, principal: str, key: str, *, limit: int, after: str, stop: Stop) -> FilePage:
        """Up to `limit` files with a path after `after`, by path."""
        async with self._root(principal, key) as root:
            pass
        # Hashing takes a while: what is moved away in the meantime is left out.
        return await self._listings.page((principal, key), root, limit=limit, after=after, stop=stop)

    async def open(self, principal: str, key: str, parts: Parts) -> tuple[int, FileState]:
        """A descriptor for reading and the file's state; the caller closes it."""
        async with self._root(principal, key) as root:
            return await self._lanes.files.run(tree.open_file, root, parts)

    # Changing

    async def session(self, principal: str, key: str) -> Session:
        """The live session of this key, made if there is none: files may come before the first cell."""
        session, _ = await self._manager.get_or_create(principal, SessionBody(session=check_session_key(key)))
        session.record.check_writable()
        return session

    async def reserve(self, session: Session, length: int, parts: Parts | None = None) -> Incoming:
        """Reserve room for `length` bytes, in place of the file at `parts` if it is known; `discard` it.

        Raises QuotaExceeded, StorageFull and QueueFull.
        """
        # What is placed is placed under the same lock: it is counted in the folder or as reserved, not twice
        # and not never.
        async with session.slot.moving:
            used, replaced = await self._lanes.files.run(_measure, session.slot.workspace, parts)
            reservation = self._ledger.reserve(
                session.row.id, used, session.limits.resources.disk, length, replaced
            )
        return Incoming(reservation)

    def begin(self, incoming: Incoming) -> Upload:
        """A new upload into what was reserved. Raises QueueFull and StorageError."""
        if self._uploads >= MAX_UPLOADS:
            raise QueueFull(f"{MAX_UPLOADS} uploads are in progress; try again", retry_after=5)
        upload = Upload(self._staging, incoming.reservation, self._reserve, self._lanes.files)
        self._uploads += 1
        self._incoming.add(incoming)
        incoming.uploads.append(upload)
        return upload

    async def discard(self, incoming: Incoming) -> None:
        """Forget uploads, and give back their room; what was placed stays. May be called again."""
        while incoming.uploads:
            upload = incoming.uploads[0]
            await upload.discard()
            if incoming.uploads and incoming.uploads[0] is upload:
                incoming.uploads.pop(0)
                self._uploads -= 1
        incoming.reservation.release()
        self._incoming.discard(incoming)

    def discard_later(self, incoming: Incoming) -> None:
        """As `discard`, in the background."""
        self._tasks.start(self.discard(incoming), "discard upload")

    async def place(self, session: Session, incoming: Incoming, staged: Sequence[Staged]) -> list[FileChange]:
        """Put finished uploads into the workspace, and into the record; their models.

        Raises QuotaExceeded, and then nothing was placed, when the workspace has grown in the meantime, and
        ShuttingDown when the session has begun to end.
        """
        models = []
        async with session.slot.moving:
            # The end waits for this lock before it sees to the files. Behind it, what is placed here would
            # stay in a folder that nobody knows of, or turn up in a later session of the same key.
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
                session.log.append("file", None, structs.asdict(model))
                models.append(model)
            self._ledger.placed(incoming.reservation, used)
        session.touch()
        await session.log.commit()
        return models

    async def write(self, session: Session, parts: Parts, data: bytes) -> FileChange:
        """Put `data` into the workspace as a file, as an upload would; its model."""
        incoming = await self.reserve(session, len(data), parts)
        try:
            upload = self.begin(incoming)
            await upload.write(data)
            await upload.finish()
            (model,) = await self.place(session, incoming, [Staged(parts, upload)])
        finally:
            await self.discard(incoming)
        return model

    async def remove(self, principal: str, key: str, parts: Parts) -> None:
        """Remove a file, a link or an empty folder."""
        session = self._manager.get(principal, check_session_key(key))
        async with self._root(principal, key) as root:
            if session is not None:
                session.check_open()
            await self._lanes.files.run(tree.remove, root, parts)
        if session is not None:
            session.slot.watch.know("/".join(parts), None)
            fields = {"path": "/".join(parts), "size": None, "sha256": None, "action": "deleted"}
            session.log.append("file", None, fields)
            session.touch()
            await session.log.commit()

    async def close(self) -> None:
        """End listings, and discard what is under way."""
        self._listings.close()
        await self._tasks.finished()
        for incoming in tuple(self._incoming):
            await self.discard(incoming)


def _measure(root: Path, parts: Parts | None) -> tuple[int, int]:
    """The bytes of all files, and of the one at `parts`."""
    used = sum(file.size for file in tree.scan(root)[0].values())
    return used, 0 if parts is None else tree.size_of(root, parts)


def _check_room(root: Path, staged: Sequence[Staged], limit: int) -> int:
    """The bytes of all files once `staged` is in place. Raises QuotaExceeded."""
    used, _ = _measure(root, None)
    after = used
    for each in staged:
        after += each.upload.size - tree.size_of(root, each.parts)
    if after > max(limit, used):
        raise QuotaExceeded(
            f"The workspace would have {after} bytes, and its limit is {limit}: it has grown since the upload"
            " began; delete files first"
        )
    return after


def _place(staged: Staged, root: Path) -> tuple[FileState, bool]:
    root.mkdir(mode=0o700, exist_ok=True)
    return tree.place(staged.upload.path, root, staged.parts)
