"""A sandbox's files: the server that is called envd there. Bytes by HTTP, everything else by Connect calls.

The home folder there, ``/home/user``, is the workspace here. Bytes of files elsewhere go by programs, and
calls find nothing there. A call is one JSON object each way; 64-bit numbers are texts.
"""

from __future__ import annotations

import posixpath
import stat
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import ClassVar, Final

from cellgate.doors.base import Asked
from cellgate.doors.e2b.base import AlreadyThere, SandboxHandler
from cellgate.doors.sandbox.errors import Unsupported
from cellgate.doors.sandbox.paths import (
    home_path,
    parse_file_path,
    parse_home_path,
    parse_program_path,
    program_path,
)
from cellgate.doors.sandbox.transfer import SandboxDownload, SandboxUpload
from cellgate.errors import UnsupportedMedia
from cellgate.files.gunzip import Gunzip
from cellgate.files.tree import MAX_DEPTH, Item, Parts
from cellgate.http.message import encode
from cellgate.http.multipart import MultipartReader
from cellgate.http.operation import requires
from cellgate.http.services import Services
from cellgate.identity.principal import Permission
from cellgate.sessions.files import Staged
from cellgate_kernels.base.errors import InvalidInput

USER: Final = "user"
FEW: Final = 200
"""Entries that are told at once; more are in a thread."""
NS: Final = 1_000_000_000
LAST_SECOND: Final = 253_402_300_799
"""Of the year 9999."""


class E2bFilesHandler(SandboxHandler, SandboxDownload, SandboxUpload):
    """The bytes of files."""

    uploads: ClassVar[frozenset[str]] = frozenset({"POST"})

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._parts: Parts | None = None
        self._form: MultipartReader | None = None
        self._unpacker: Gunzip | None = None
        self._paths: list[str] = []

    def begin(self) -> None:
        headers = self.request.headers
        match headers.get("Content-Encoding", "identity").lower():
            case "gzip":
                self._unpacker = Gunzip()
            case other if other != "identity":
                raise UnsupportedMedia("Files are taken as they are here, or compressed by gzip alone")
        path = self.get_query_argument("path", "", strip=False)
        self._parts = self._taken(path) if path else None
        if headers.get("Content-Type", "").lower().startswith("multipart/"):
            self._form = MultipartReader(headers["Content-Type"])
        elif self._parts is None:
            raise InvalidInput("path is missing")

    def _taken(self, path: str) -> Parts:
        """Return the names under which a file of this path is put into the workspace, for now or for good."""
        parts = self.take(path)
        self._paths.append(program_path(parse_program_path(path)))
        return parts

    def target(self) -> Parts | None:
        return self._parts

    async def receive(self, chunk: bytes | memoryview) -> None:
        if self._unpacker is None:
            await self._put(chunk)
            return
        # What comes out may be a thousand times larger: each step reserves its space before the next.
        self._unpacker.feed(bytes(chunk))
        lane = self.services.sessions.files.lane
        while piece := await lane.run(self._unpacker.step):
            await self._put(piece)

    async def _put(self, chunk: bytes | memoryview) -> None:
        """Add a chunk of the files as they are."""
        pieces = [(0, "", chunk)] if self._form is None else self._form.feed(bytes(chunk))
        for number, name, data in pieces:
            if number not in self.staged:
                # A form with one file has its path in the query, and the name doesn't count.
                parts = self._parts if self._parts is not None else self._taken(name)
                self.staged[number] = Staged(parts, self.new_upload())
            await self.staged[number].upload.write(data)

    @requires(Permission.FILES)
    async def post(self) -> None:
        """Put files into the workspace, all or none; missing folders are made."""
        if self._unpacker is not None:
            self._unpacker.end()
        if self._form is not None:
            self._form.end()
        elif not self.staged and self._parts is not None:
            self.staged[0] = Staged(self._parts, self.new_upload())
        if await self.put_all():
            self.answer([{"name": posixpath.basename(p), "path": p, "type": "file"} for p in self._paths])

    @requires(Permission.FILES)
    async def get(self) -> None:
        """Send the file's bytes."""
        await self.answer_path(self.get_query_argument("path", "", strip=False))


class PathBody(Asked, frozen=True):
    """A path, and how deep a folder is to be listed."""

    path: str
    depth: int = 0


class MoveBody(Asked, frozen=True):
    """Two paths."""

    source: str
    destination: str


class FilesystemHandler(SandboxHandler):
    """Calls about files and folders."""

    connect = True

    @requires(Permission.FILES)
    async def post(self, name: str) -> None:
        """Make the call of this name."""
        key = self.session().row.key
        call = CALLS.get(name)
        if call is None:
            raise Unsupported(f"{name[:40]} is not there in this gateway")
        told = await call(self, key)
        entries = told.get("entries")
        if isinstance(entries, list) and len(entries) > FEW:
            await self.answer_parts([await self.services.storage.lanes.texts.run(encode, told)])
        else:
            self.answer(told)

    async def list_folder(self, key: str) -> Mapping[str, object]:
        """List a folder; a link or a file is none."""
        body = await self.body(PathBody)
        if not 0 <= body.depth <= MAX_DEPTH:
            raise InvalidInput(f"depth must be from 1 to {MAX_DEPTH}")
        parts = parse_home_path(body.path)
        found = await self.services.sessions.files.look_into(self.owner, key, parts, body.depth or 1)
        if len(found) <= FEW:
            return {"entries": told_of_all(found)}
        return {"entries": await self.services.storage.lanes.texts.run(told_of_all, found)}

    async def look(self, key: str) -> Mapping[str, object]:
        """Return the entry at a path."""
        return await self._entry(key, parse_home_path((await self.body(PathBody)).path))

    async def make_folder(self, key: str) -> Mapping[str, object]:
        """Make a folder and those above it."""
        parts = parse_home_path((await self.body(PathBody)).path)
        self.session()  # still there: it would be made otherwise
        if not parts or not await self.services.sessions.files.make_folder(self.owner, key, parts):
            raise AlreadyThere(f"{home_path(parts)[:200]!r} is there already")
        return await self._entry(key, parts)

    async def move(self, key: str) -> Mapping[str, object]:
        """Rename a file or a folder; nothing is replaced."""
        body = await self.body(MoveBody)
        old, new = parse_file_path(body.source), parse_file_path(body.destination)
        await self.services.sessions.files.move(self.owner, key, old, new)
        return await self._entry(key, new)

    async def remove(self, key: str) -> Mapping[str, object]:
        """Remove a file, or a folder with all that is in it."""
        parts = parse_file_path((await self.body(PathBody)).path)
        await self.services.sessions.files.remove_all(self.owner, key, parts)
        return {}

    async def _entry(self, key: str, parts: Parts) -> Mapping[str, object]:
        return {"entry": told_of(await self.services.sessions.files.look(self.owner, key, parts))}


CALLS: Mapping[str, Callable[[FilesystemHandler, str], Awaitable[Mapping[str, object]]]] = MappingProxyType(
    {
        "ListDir": FilesystemHandler.list_folder,
        "Stat": FilesystemHandler.look,
        "MakeDir": FilesystemHandler.make_folder,
        "Move": FilesystemHandler.move,
        "Remove": FilesystemHandler.remove,
    }
)


def told_of_all(items: Sequence[Item]) -> list[dict[str, object]]:
    """Return the entries as they are told."""
    return [told_of(item) for item in items]


def told_of(item: Item) -> dict[str, object]:
    """Return an entry as it is told."""
    parts = tuple(item.path.split("/")) if item.path else ()
    kind = "DIRECTORY" if item.is_folder else "SYMLINK" if item.is_link else "FILE"
    seconds, rest = divmod(item.modified, NS)
    # Code may give a file any time; not each is one of a calendar.
    modified = datetime.fromtimestamp(min(max(seconds, 0), LAST_SECOND), UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return {
        "name": parts[-1] if parts else USER,
        "type": f"FILE_TYPE_{kind}",
        "path": home_path(parts),
        "size": str(item.size),
        "mode": stat.S_IMODE(item.mode),
        "permissions": stat.filemode(item.mode),
        "owner": USER,
        "group": USER,
        "modifiedTime": f"{modified}.{rest:09d}Z",
    }
