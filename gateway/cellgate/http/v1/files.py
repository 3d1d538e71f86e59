"""/v1/sessions/{s}/files: the workspace's files, streamed both ways.

A download is always an attachment and never rendered: a file may hold anything. An upload goes to disk as it
arrives, and into the workspace when it is complete. ``files`` handles paths and folders, ``multipart`` forms.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar
from urllib.parse import quote

from tornado.http1connection import HTTP1Connection
from tornado.iostream import StreamClosedError

from cellgate import errors
from cellgate.files.listing import Stop, modified_at
from cellgate.files.tree import CHUNK, FileState, Parts, parse_path
from cellgate.files.upload import Upload
from cellgate.http.base import BaseHandler, UntaggedHandler
from cellgate.http.entity_tags import precondition
from cellgate.http.message import MAX_DRAINED_BODY, MAX_JSON_BODY
from cellgate.http.multipart import MultipartReader
from cellgate.http.operation import BYTES, FORM, JSON, READS, STARTS, WRITES, Answer, operation
from cellgate.http.services import Services
from cellgate.http.transfer import WIDE, can_send, read_wide, send_file
from cellgate.http.v1.download import IF_NONE_MATCH, NOT_MODIFIED
from cellgate.identity.principal import Permission
from cellgate.sessions.files import Incoming, Placed, Staged
from cellgate.sessions.session import Session
from cellgate.wire.answers import FileChange, FileChanges, FilePage
from cellgate.wire.queries import FileActionQuery, FilesQuery, SessionQuery
from cellgate_kernels.base.errors import CellgateError, InvalidInput

MAX_UPLOAD = 1 << 40
UPLOADS = (*STARTS, errors.QuotaExceeded, errors.QueueFull, errors.Conflict)
"""Errors of an upload."""
TAGGED = {"ETag": "Changes with the file."}
FILE_HEADERS = TAGGED | {"Content-Disposition": "The name of the file."}
CONTENT_RANGE = {"Content-Range": "Which bytes of how many."}
IN_RANGES = (
    Answer(206, "The requested range.", {BYTES: None}, FILE_HEADERS | CONTENT_RANGE),
    NOT_MODIFIED,
    Answer(416, "The range is outside the file; no body.", headers=CONTENT_RANGE),
)
DOWNLOAD: Mapping[str, Any] = {
    "headers": {"Range": "One range of bytes.", **IF_NONE_MATCH},
    "errors": (*READS, errors.FileHeld),
    "query": SessionQuery,
    "needs": Permission.FILES,
}
"""The declaration of reading a file, with its body or without."""
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class UploadHandler(BaseHandler):
    """A handler whose body goes to disk. Subclasses define `uploads`, `begin` and `receive`."""

    max_body = MAX_UPLOAD
    uploads: ClassVar[frozenset[str]]
    """The methods whose body is an upload, among the handler's own: each needs a permission."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._incoming: Incoming | None = None
        self._session: Session | None = None

    async def prepare(self) -> None:
        """Find the session and reserve space, after every handler's checks and before the body is read."""
        held = super().prepare()
        if held is not None:
            await held
        if self._refused is not None or self.request.method not in self.uploads or self.relay is not None:
            return
        self.keeps_body = False
        if self._length() > WIDE:
            read_wide(self.request.connection)
        try:
            await self._begin()
        except CellgateError as error:
            self._refused = error
            if self._length() > MAX_DRAINED_BODY:
                raise

    def _length(self) -> int:
        length = self.request.headers.get("Content-Length", "0")
        return int(length) if length.isdecimal() else 0

    async def _begin(self) -> None:
        self.begin()
        self._session = await self.find_session()
        files = self.services.sessions.files
        self._incoming = await files.reserve(self._session, self._length(), self.target())

    async def find_session(self) -> Session:
        """Return the session whose files are uploaded."""
        return await self.services.sessions.files.session(self.owner, self.path_args[0])

    async def place(self, staged: Sequence[Staged]) -> list[Placed] | None:
        """Put all uploads into the workspace; None if the client has gone meanwhile."""
        assert self._session is not None
        assert self._incoming is not None
        if len({each.parts for each in staged}) < len(staged):
            raise InvalidInput("Two files of the form have the same name")
        if not staged:
            raise InvalidInput("The form has no file: each needs a filename in its Content-Disposition")
        for each in staged:
            await each.upload.finish()
        if self.disconnected:
            return None
        return await self.services.sessions.files.place(self._session, self._incoming, staged)

    def begin(self) -> None:
        """Check all that can be checked before anything is created. Raises InvalidInput, UnsupportedMedia."""

    def target(self) -> Parts | None:
        """Return the path of the uploaded file, if there is only one and its path is known."""
        return None

    async def receive(self, chunk: bytes | memoryview) -> None:
        """Take a chunk of the body. A memoryview is valid only until the next chunk is taken."""
        raise NotImplementedError

    def new_upload(self) -> Upload:
        """Return a new upload, discarded with this request unless it is placed."""
        assert self._incoming is not None
        return self.services.sessions.files.begin(self._incoming)

    async def data_received(self, chunk: bytes | memoryview) -> None:
        if self.relay is not None:
            self.count_body(len(chunk))
            if self._refused is None:
                await self.relay.pass_on(bytes(chunk))
            return
        if self.request.method in self.uploads:
            self.count_body(len(chunk))
        if self._refused is None and self.request.method in self.uploads:
            try:
                await self.receive(chunk)
            except CellgateError as error:
                self._refused = error
        else:
            if self._refused is None and self._body_size + len(chunk) > MAX_JSON_BODY:
                # These methods need no large body; a small one is kept in memory.
                self._refused = errors.TooLarge("This method takes no such body")
            super().data_received(bytes(chunk))

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._discard()

    def on_finish(self) -> None:
        super().on_finish()
        self._discard()

    def _discard(self) -> None:
        if self._incoming is not None:
            self.services.sessions.files.discard_later(self._incoming)

    def _check_body(self) -> None:
        """Accept any type: the gateway does not interpret a file."""


class FolderHandler(UploadHandler):
    """A workspace as a whole: files of forms that go into it, and pages of its files."""

    uploads = frozenset({"POST"})
    mislabelled_forms: ClassVar[bool] = False
    """Whether a form may have another media type."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._stop = Stop()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._stop.set()

    def begin(self) -> None:
        label = self.request.headers.get("Content-Type", "")
        self._form = MultipartReader(label, mislabelled=self.mislabelled_forms)
        self._staged: dict[int, Staged] = {}

    def parts_of(self, name: str) -> Parts:
        """Return the path of a file of this name in the form. Raises InvalidInput."""
        return parse_path(name)

    async def receive(self, chunk: bytes | memoryview) -> None:
        for number, name, data in self._form.feed(bytes(chunk)):
            if number not in self._staged:
                self._staged[number] = Staged(self.parts_of(name), self.new_upload())
            await self._staged[number].upload.write(data)

    async def placed(self) -> list[FileChange] | None:
        """Put the files of the form into the workspace, all or none; None if the client has gone."""
        self._form.end()
        placed = await self.place(list(self._staged.values()))
        return None if placed is None else [each.change for each in placed]

    async def page(self, key: str, *, limit: int, after: str, folders: bool = False) -> FilePage:
        """Return some of the files, by path; see `Listings.page`."""
        return await self.services.sessions.files.page(
            self.owner, key, limit=limit, after=after, stop=self._stop, folders=folders
        )


class FilesHandler(FolderHandler):
    """The workspace as a whole."""

    @operation(
        "list_files",
        "List a session's files",
        Answer(200, "One page, sorted by path.", {JSON: FilePage}),
        query=FilesQuery,
        errors=(*READS, errors.QueueFull, errors.ShuttingDown),
        needs=Permission.FILES,
    )
    async def get(self, key: str) -> None:
        query = self.query(FilesQuery)
        page = await self.page(key, limit=query.limit, after=query.after, folders=query.folders)
        self.answer(page)

    @operation(
        "upload_files",
        "Upload files by a form",
        Answer(201, "All files are in the workspace.", {JSON: FileChanges}),
        description="Each part with a filename becomes a file: all of them, or none.",
        body={FORM: None},
        errors=UPLOADS,
        needs=Permission.FILES,
    )
    async def post(self, _: str) -> None:
        models = await self.placed()
        if models is not None:
            self.answer(FileChanges(files=models), 201)


class FileAnswers(UntaggedHandler):
    """Answers with a file of a workspace, always as an attachment."""

    async def answer_file(self, key: str, parts: Parts) -> None:
        """Answer with the file, or with the range of it that is asked for."""
        descriptor, file = await self.services.sessions.files.open(self.owner, key, parts)
        try:
            await self._send(descriptor, file)
        except StreamClosedError:
            self.on_connection_close()
        finally:
            os.close(descriptor)

    async def _send(self, descriptor: int, file: FileState) -> None:
        self.set_header("Etag", file.tag)
        self.set_header("Accept-Ranges", "bytes")
        self.set_header("Last-Modified", modified_at(file))
        self.set_header("Content-Type", "application/octet-stream")
        self.set_header("Content-Security-Policy", "sandbox")
        name = quote(file.path.rpartition("/")[2], safe="")
        self.set_header("Content-Disposition", f"attachment; filename*=UTF-8''{name}")
        if self.check_etag_header():
            self.set_status(304)
            return
        start, end = self._range(file.size)
        self.set_header("Content-Length", str(end - start))
        if self.request.method == "HEAD":
            self.finish()
            return
        connection, lane = self.request.connection, self.services.sessions.files.lane
        if end - start > WIDE and can_send(connection):
            await self.flush()
            assert isinstance(connection, HTTP1Connection)
            if not await send_file(connection, descriptor, start, end, lane):
                connection.stream.close()
            return
        offset = start
        while offset < end:
            chunk = await lane.run(os.pread, descriptor, min(CHUNK, end - offset), offset)
            if not chunk:
                # The file was truncated in the meantime: only a broken connection can report it now.
                assert self.request.connection is not None
                self.request.connection.stream.close()  # type: ignore[attr-defined]
                return
            offset += len(chunk)
            self.write(chunk)
            await self.flush()

    def _range(self, size: int) -> tuple[int, int]:
        """Return the first byte and the one after the last, from the Range header (RFC 9110, section 14)."""
        wanted = _RANGE.fullmatch(self.request.headers.get("Range", ""))
        if wanted is None or wanted[0] == "bytes=-":
            return 0, size
        if wanted[1]:
            start = int(wanted[1])
            end = min(size, int(wanted[2]) + 1) if wanted[2] else size
        else:
            # `bytes=-N`: the last N bytes.
            start = max(0, size - int(wanted[2]))
            end = size
        if start >= end:
            self.set_header("Content-Range", f"bytes */{size}")
            self.set_status(416)
            return 0, 0
        self.set_status(206)
        self.set_header("Content-Range", f"bytes {start}-{end - 1}/{size}")
        return start, end


class FileHandler(FileAnswers, UploadHandler):
    """One file."""

    uploads = frozenset({"PUT"})

    def begin(self) -> None:
        kind = self.request.headers.get("Content-Type", "")
        if kind.startswith("multipart/"):
            raise errors.UnsupportedMedia(
                "PUT takes the file's bytes as they are; POST to .../files takes forms"
            )
        self._parts: Parts = parse_path(self.path_args[1])
        self._condition = precondition(self.request.headers)
        self._upload: Upload | None = None

    def target(self) -> Parts | None:
        return self._parts

    async def find_session(self) -> Session:
        # What can't be written makes no session, and is refused before it is sent.
        if self._condition is not None:
            await self.services.sessions.files.check(
                self.owner, self.path_args[0], self._parts, self._condition
            )
        return await super().find_session()

    async def receive(self, chunk: bytes | memoryview) -> None:
        if self._upload is None:
            self._upload = self.new_upload()
        await self._upload.write(chunk)

    @operation(
        "put_file",
        "Upload a file",
        Answer(200, "The file was replaced.", {JSON: FileChange}, TAGGED),
        Answer(201, "The file was created.", {JSON: FileChange}, TAGGED),
        description="The request body is the file. Missing folders, and the session, are created.",
        body={BYTES: None},
        headers={
            "If-Match": "ETags, or *: the file is replaced only if it is there and still has one of them.",
            "If-None-Match": "*: the file is written only if there is none; or ETags that it must not have.",
        },
        errors=(*UPLOADS, errors.FileChanged),
        needs=Permission.FILES,
    )
    async def put(self, *_: str) -> None:
        upload = self._upload or self.new_upload()
        placed = await self.place([Staged(self._parts, upload, self._condition)])
        if placed is not None:
            (file,) = placed
            self.set_header("Etag", file.tag)
            self.answer(file.change, 201 if file.change.action == "created" else 200)

    @operation(
        "move_file",
        "Make a folder, or rename a file or folder",
        Answer(
            200, "It was renamed, or the folder exists already: the files at new paths.", {JSON: FileChanges}
        ),
        Answer(201, "The folder was made.", {JSON: FileChanges}),
        description="With `mkdir`, the session is made if necessary. Nothing is ever replaced.",
        errors=(*STARTS, errors.Conflict, errors.MethodNotAllowed, errors.QuotaExceeded),
        query=FileActionQuery,
        needs=Permission.FILES,
    )
    async def post(self, key: str, path: str) -> None:
        query = self.query(FileActionQuery)
        if query.mkdir is None and query.move_to is None:
            allowed = tuple(each for each in self.methods() if each != "POST")
            raise errors.MethodNotAllowed(
                "PUT uploads a file to its path. POST makes a folder there (?mkdir), or renames what is there"
                " (?move_to=PATH); forms are posted to .../files",
                allowed=allowed,
            )
        if (query.mkdir is None) == (query.move_to is None):
            raise InvalidInput("Give either mkdir or move_to")
        files = self.services.sessions.files
        if query.move_to is None:
            made = await files.make_folder(self.owner, key, parse_path(path))
            self.answer(FileChanges(files=[]), 201 if made else 200)
        else:
            moved = await files.move(self.owner, key, parse_path(path), parse_path(query.move_to))
            self.answer(FileChanges(files=moved))

    @operation(
        "delete_file",
        "Remove a file, a link or an empty folder",
        Answer(204, "Removed."),
        headers={"If-Match": "ETags, or *: the file is removed only if it still has one of them."},
        errors=(*WRITES, errors.Conflict, errors.FileChanged),
        needs=Permission.FILES,
    )
    async def delete(self, key: str, path: str) -> None:
        condition = precondition(self.request.headers)
        await self.services.sessions.files.remove(self.owner, key, parse_path(path), condition)
        self.set_status(204)

    @operation(
        "head_file",
        "Get a file's headers",
        Answer(200, "The size, without a body.", {BYTES: None}, FILE_HEADERS),
        *IN_RANGES,
        **DOWNLOAD,
    )
    async def head(self, key: str, path: str) -> None:
        await self.get(key, path)

    @operation(
        "get_file",
        "Download a file",
        Answer(200, "The file, as an attachment.", {BYTES: None}, FILE_HEADERS),
        *IN_RANGES,
        **DOWNLOAD,
    )
    async def get(self, key: str, path: str) -> None:
        await self.answer_file(key, parse_path(path))
