"""A sandbox's files: their bytes, streamed both ways, and what a program in the sandbox does with them.

Paths are the sandbox's own; those without a slash in front begin in the workspace.
"""

from __future__ import annotations

from typing import ClassVar, Final

import msgspec

from cellgate.doors.base import Asked
from cellgate.doors.opensandbox.base import ExecdHandler
from cellgate.doors.opensandbox.filing import (
    MOST_PATHS,
    Call,
    Filed,
    call,
    check_mode,
    check_owner,
    file,
    told_by_path,
    told_of_all,
)
from cellgate.doors.sandbox.errors import Unsupported
from cellgate.doors.sandbox.paths import parse_program_path
from cellgate.doors.sandbox.transfer import SandboxDownload, SandboxUpload
from cellgate.files.tree import Parts
from cellgate.http.message import encode
from cellgate.http.multipart import MultipartReader
from cellgate.http.operation import requires
from cellgate.http.services import Services
from cellgate.identity.principal import Permission
from cellgate.sessions.files import Staged
from cellgate_kernels.base.errors import InvalidInput

METADATA: Final = "metadata"
MOST_METADATA: Final = 16 * 1024
DEEPEST: Final = 64
ANY: Final = "**"


class ModeBody(Asked, frozen=True):
    """Who may do what with a file or a folder. `mode`: in octal digits."""

    mode: int = 755
    owner: str | None = None
    group: str | None = None

    def bits(self) -> int:
        """Return the mode as a number. Raises InvalidInput, and Unsupported for an owner."""
        check_owner(self.owner, self.group)
        return check_mode(self.mode)


class FileMetadata(Asked, frozen=True):
    """Where an uploaded file goes. `mode`: in octal digits; None: as it comes."""

    path: str = ""
    mode: int | None = None
    owner: str | None = None
    group: str | None = None


class Renaming(Asked, frozen=True):
    """The new path of a file or a folder."""

    src: str
    dest: str


class Replacement(Asked, frozen=True):
    """A text that takes the place of another one in a file."""

    old: str = ""
    new: str = ""


class FilesUploadHandler(ExecdHandler, SandboxUpload):
    """Uploads: forms in which a part with its metadata is before each file."""

    uploads: ClassVar[frozenset[str]] = frozenset({"POST"})

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._metadata: dict[int, bytearray] = {}
        self._modes: list[Call] = []

    def begin(self) -> None:
        self._form = MultipartReader(self.request.headers.get("Content-Type", ""))

    async def receive(self, chunk: bytes | memoryview) -> None:
        for number, _, data in self._form.feed(bytes(chunk)):
            if self._form.fields[number] == METADATA:
                told = self._metadata.setdefault(number, bytearray())
                if len(told) + len(data) > MOST_METADATA:
                    raise InvalidInput(f"A file's metadata has at most {MOST_METADATA} bytes")
                if len(self._metadata) > MOST_PATHS:
                    raise InvalidInput(f"A request has at most {MOST_PATHS} files")
                told += data
                continue
            if number not in self.staged:
                self.staged[number] = Staged(self._target(), self.new_upload())
            await self.staged[number].upload.write(data)

    def _target(self) -> Parts:
        """Return where the next file is put into the workspace, for now or for good. Raises InvalidInput."""
        if len(self.staged) == len(self._metadata):
            raise InvalidInput("Each file needs a part with its metadata before it")
        told = list(self._metadata.values())[len(self.staged)]
        try:
            metadata = msgspec.json.decode(told, type=FileMetadata)
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"A file's metadata can't be read: {error}") from error
        check_owner(metadata.owner, metadata.group)
        if metadata.mode is not None:
            self._modes.append(call("mode", metadata.path, check_mode(metadata.mode)))
        return self.take(metadata.path)

    @requires(Permission.FILES, Permission.RUN)
    async def post(self, _: str) -> None:
        """Put the files in their places; missing folders are made."""
        self._form.end()
        if len(self._metadata) != len(self.staged):
            raise InvalidInput("There is metadata without a file")
        if await self.put_all() and self._modes:
            await file(self.session(), self._modes)


class FilesDownloadHandler(ExecdHandler, SandboxDownload):
    """The bytes of a file."""

    @requires(Permission.FILES)
    async def get(self, _: str) -> None:
        """Send them, or the range of them that is asked for."""
        self.session()
        for name in ("offset", "limit"):
            if self.get_query_argument(name, ""):
                raise Unsupported(f"{name} is not there: ask for a range of bytes, or for the whole file")
        await self.answer_path(self.get_query_argument("path", "", strip=False))


class FilingHandler(ExecdHandler):
    """A handler whose requests a program in the sandbox answers."""

    async def filed(self, *calls: Call) -> Filed:
        """Make calls; see `filing.file`."""
        return await file(self.session(), calls)

    def paths(self) -> list[str]:
        """Return the paths that the query names."""
        return self.get_query_arguments("path", strip=False)

    async def answer_entries(self, filed: Filed) -> None:
        """Answer with a list of entries."""
        size = sum(len(each.path) for each in filed.entries)
        parts = await self.aside(size * 4, lambda: [encode(told_of_all(filed))])
        await self.answer_parts(parts)


class FilesInfoHandler(FilingHandler):
    """What files are like."""

    @requires(Permission.FILES, Permission.RUN)
    async def get(self, _: str) -> None:
        """Tell of each by its path."""
        filed = await self.filed(*(call("info", path) for path in self.paths()))
        self.answer(told_by_path(filed))


class FilesRemovalHandler(FilingHandler):
    """Files."""

    @requires(Permission.FILES, Permission.RUN)
    async def delete(self, _: str) -> None:
        """Remove files, up to the first that is not there."""
        await self.filed(*(call("remove", path) for path in self.paths()))


class FoldersHandler(FilingHandler):
    """Folders."""

    @requires(Permission.FILES, Permission.RUN)
    async def post(self, _: str) -> None:
        """Make folders, and those above them."""
        body = await self.body(dict[str, ModeBody])
        await self.filed(*(call("make", path, each.bits()) for path, each in body.items()))

    @requires(Permission.FILES, Permission.RUN)
    async def delete(self, _: str) -> None:
        """Remove folders with all that is in them; one that is not there is none the less removed."""
        await self.filed(*(call("remove_folder", path) for path in self.paths()))


class FolderListHandler(FilingHandler):
    """What is in a folder."""

    @requires(Permission.FILES, Permission.RUN)
    async def get(self, _: str) -> None:
        """List it, and the folders in it down to the query's depth."""
        depth = self.get_query_argument("depth", "1")
        if not (depth.isascii() and depth.isdecimal() and len(depth) < 4 and 1 <= int(depth) <= DEEPEST):
            raise InvalidInput(f"depth must be from 1 to {DEEPEST}")
        path = self.get_query_argument("path", "", strip=False)
        await self.answer_entries(await self.filed(call("visit", path, int(depth), None)))


class FilesSearchHandler(FilingHandler):
    """Files by their names."""

    @requires(Permission.FILES, Permission.RUN)
    async def get(self, _: str) -> None:
        """List files below a folder whose own names fit the query's pattern."""
        path = self.get_query_argument("path", "", strip=False)
        pattern = self.get_query_argument("pattern", ANY, strip=False)
        await self.answer_entries(await self.filed(call("visit", path, DEEPEST, pattern or ANY)))


class FilesMoveHandler(FilingHandler):
    """Other paths of files and folders."""

    @requires(Permission.FILES, Permission.RUN)
    async def post(self, _: str) -> None:
        """Rename them, one after the other; a file takes the place of another one."""
        body = await self.body(list[Renaming])
        await self.filed(*(call("move", each.src, parse_program_path(each.dest)) for each in body))


class FilesModeHandler(FilingHandler):
    """Who may do what with files."""

    @requires(Permission.FILES, Permission.RUN)
    async def post(self, _: str) -> None:
        """Set it."""
        body = await self.body(dict[str, ModeBody])
        await self.filed(*(call("mode", path, each.bits()) for path, each in body.items()))


class FilesReplaceHandler(FilingHandler):
    """Texts in files."""

    @requires(Permission.FILES, Permission.RUN)
    async def post(self, _: str) -> None:
        """Replace a text by another one wherever it is; with `verbose`, tell how often it was."""
        body = await self.body(dict[str, Replacement])
        if not all(each.old for each in body.values()):
            raise InvalidInput("old must not be empty")
        filed = await self.filed(*(call("replace", path, each.old, each.new) for path, each in body.items()))
        if self.get_query_argument("verbose", "") == "true":
            self.answer({path: {"replacedCount": count} for path, count in filed.counts.items()})
