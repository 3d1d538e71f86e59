"""The files of sessions, by principal and key: listed, read, brought in, removed; changes go into the record.

It finds the folder that a session's files are in at the moment and keeps it there while it works. How a
hostile folder is touched is ``tree``'s affair; HTTP is ``handlers.files``'.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gateway.errors import NotFound, QueueFull, QuotaExceeded
from gateway.files import tree
from gateway.files.tree import FileState, Parts
from gateway.files.upload import Upload
from gateway.manager import SessionManager
from gateway.models import SessionBody, check_session_key
from gateway.record.journal import Journal
from gateway.sessions import Session
from gateway.workspace import WorkspaceStore

MAX_UPLOADS = 32
MAX_KNOWN = 100_000


@dataclass(frozen=True, slots=True)
class Staged:
    """An upload that is complete, and the path it is for."""

    parts: Parts
    upload: Upload


class SessionFiles:
    """All sessions' files. Methods raise NotFound for what is not the principal's."""

    def __init__(
        self, journal: Journal, manager: SessionManager, workspaces: WorkspaceStore, staging: Path
    ) -> None:
        self._journal = journal
        self._manager = manager
        self._workspaces = workspaces
        self._staging = staging
        self._uploads: set[Upload] = set()
        self._discards: set[asyncio.Task[None]] = set()
        self._known: OrderedDict[tuple[int, int, int, int, int], str] = OrderedDict()

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
        yield self._workspaces.kept(row.id)

    # Looking

    async def page(
        self, principal: str, key: str, *, limit: int, after: str
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Up to `limit` files with a path behind `after`, by path, and where the next page begins."""
        async with self._root(principal, key) as root:
            pass
        # Hashing may take long: what is moved away meanwhile is left out.
        return await asyncio.to_thread(self._list, root, limit, after)

    def _list(self, root: Path, limit: int, after: str) -> tuple[list[dict[str, Any]], str | None]:
        found = sorted((f for f in tree.scan(root)[0].values() if f.path > after), key=lambda f: f.path)
        models = [model for file in found[:limit] if (model := self._model(root, file)) is not None]
        return models, found[limit - 1].path if len(found) > limit else None

    def _model(self, root: Path, file: FileState) -> dict[str, Any] | None:
        """What the wire says of a file; None when it has gone meanwhile."""
        sha256 = self._known.get(file.identity)
        if sha256 is None:
            try:
                file, sha256 = tree.digest(root, tree.parse_path(file.path))
            except NotFound:
                return None
            self._known[file.identity] = sha256
            if len(self._known) > MAX_KNOWN:
                self._known.popitem(last=False)
        return file_model(file, sha256)

    async def open(self, principal: str, key: str, parts: Parts) -> tuple[int, FileState]:
        """A descriptor for reading and the file's state; the caller closes it."""
        async with self._root(principal, key) as root:
            return await asyncio.to_thread(tree.open_file, root, parts)

    # Changing

    async def session(self, principal: str, key: str) -> Session:
        """The live session of this key, made if there is none: files may come before the first cell."""
        session, _ = await self._manager.get_or_create(principal, SessionBody(session=check_session_key(key)))
        session.record.check_writable()
        return session

    async def room(self, session: Session, length: int) -> int:
        """Bytes that may still come into the workspace. Raises QuotaExceeded when `length` are too many."""
        async with session.slot.moving:
            used = await asyncio.to_thread(_used, session.slot.workspace)
        room = max(0, session.limits.resources.disk - used)
        if length > room:
            raise QuotaExceeded(
                f"The workspace has room for {room} more bytes, and this would be {length}; delete files"
                " first, or ask for a larger limit 'disk' when the session is made"
            )
        return room

    def begin(self, most: int) -> Upload:
        """A new upload of at most `most` bytes; `discard` it in the end. Raises QueueFull."""
        if len(self._uploads) >= MAX_UPLOADS:
            raise QueueFull(f"{MAX_UPLOADS} uploads are under way; try again", retry_after=5)
        upload = Upload(self._staging, most)
        self._uploads.add(upload)
        return upload

    async def discard(self, upload: Upload) -> None:
        """Forget an upload; what was placed stays."""
        await upload.discard()
        self._uploads.discard(upload)

    def discard_later(self, uploads: Sequence[Upload]) -> None:
        """As `discard`, in the background."""
        for upload in uploads:
            if upload in self._uploads:
                task = asyncio.create_task(self.discard(upload), name="discard upload")
                self._discards.add(task)
                task.add_done_callback(self._discards.discard)

    async def place(self, session: Session, staged: Sequence[Staged]) -> list[dict[str, Any]]:
        """Put finished uploads into the workspace, and into the record; their models."""
        models = []
        async with session.slot.moving:
            root = session.slot.workspace
            for each in staged:
                state, created = await asyncio.to_thread(_place, each, root)
                session.slot.watch.know(state.path, state)
                model = {
                    "path": "/".join(each.parts),
                    "size": each.upload.size,
                    "sha256": each.upload.sha256,
                    "action": "created" if created else "changed",
                }
                session.log.append("file", None, model)
                models.append(model)
        session.touch()
        await session.log.commit()
        return models

    async def write(self, session: Session, parts: Parts, data: bytes) -> dict[str, Any]:
        """Put `data` into the workspace as a file, as an upload would; its model."""
        upload = self.begin(await self.room(session, len(data)))
        try:
            await upload.write(data)
            await upload.finish()
            (model,) = await self.place(session, [Staged(parts, upload)])
        finally:
            await self.discard(upload)
        return model

    async def remove(self, principal: str, key: str, parts: Parts) -> None:
        """Remove a file, a link or an empty folder."""
        session = self._manager.get(principal, check_session_key(key))
        async with self._root(principal, key) as root:
            await asyncio.to_thread(tree.remove, root, parts)
        if session is not None:
            session.slot.watch.know("/".join(parts), None)
            fields = {"path": "/".join(parts), "size": None, "sha256": None, "action": "deleted"}
            session.log.append("file", None, fields)
            session.touch()
            await session.log.commit()

    async def close(self) -> None:
        """Discard what is under way."""
        await asyncio.gather(*self._discards, return_exceptions=True)
        for upload in tuple(self._uploads):
            await self.discard(upload)


def file_model(file: FileState, sha256: str) -> dict[str, Any]:
    """A file on the wire."""
    modified = datetime.fromtimestamp(file.modified / 1e9, UTC).replace(tzinfo=None)
    return {
        "path": file.path,
        "size": file.size,
        "modified": modified.isoformat(timespec="microseconds") + "Z",
        "sha256": sha256,
    }


def _used(root: Path) -> int:
    return sum(file.size for file in tree.scan(root)[0].values())


def _place(staged: Staged, root: Path) -> tuple[FileState, bool]:
    root.mkdir(mode=0o700, exist_ok=True)
    return tree.place(staged.upload.path, root, staged.parts)
