"""A session's files: list, upload, download and remove them, streamed both ways."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncGenerator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote, urlencode

from cellgate.client.blocking import Asynchronous
from cellgate.client.calls import Calls, Progress, given, ignore_progress, session_path
from cellgate.client.errors import GatewayError, InvalidInput
from cellgate.client.sync import SyncFiles
from cellgate.client.transport import MOST_FILE, MOST_RESULT, RequestBody
from cellgate.client.values import Pages, decode
from cellgate.wire.answers import FileChange, FileChanges, FileModel, FilePage
from cellgate.wire.paths import UNFIT_PATH, in_workspace

_CHUNK = 1024 * 1024
_PAGE = 1000


class Files(Asynchronous):
    """The workspace of one session. Methods raise GatewayError.

    Paths are relative to the workspace, or begin as cells name it: ``./a`` and ``/workspace/a`` are ``a``.
    """

    facade = SyncFiles

    def __init__(self, calls: Calls, session: str) -> None:
        self._calls = calls
        self._session = session

    def _path(self, path: str) -> str:
        # Slashes separate; everything else, dots included, is left to the gateway. A path with two slashes
        # would be another one behind a proxy that merges them.
        below = in_workspace(path)
        if below.startswith("/"):
            raise InvalidInput(UNFIT_PATH)
        return f"{session_path(self._session, 'files')}/{quote(below, safe='/~')}"

    async def list(self, *, folders: bool = False) -> AsyncGenerator[FileModel]:
        """Yield all files, by path; with `folders`, these too, each with a slash at its path's end."""
        pages = Pages("")
        while pages.after is not None:
            begins = pages.after or None
            query = urlencode(given(limit=_PAGE, after=begins, folders="true" if folders else None))
            path = f"{session_path(self._session, 'files')}?{query}"
            page = decode(await self._calls.call("GET", path), FilePage)
            for model in page.files:
                yield model
            pages.turn(page.next)

    async def put(
        self, path: str, source: bytes | str | Path | BinaryIO, progress: Progress | None = None
    ) -> FileChange:
        """Write `source` to the file: bytes, text, the content of the file at a Path, or of an open one.

        An existing file is replaced; missing folders are created. An open file is read from where it is; it
        must be open for bytes. Raises OSError if the source can't be read, TypeError for anything else.
        """
        progress = progress or ignore_progress
        if isinstance(source, Path):
            with await asyncio.to_thread(source.open, "rb") as file:
                return await self._put(path, _of_file(file, progress))
        return await self._put(path, await _body_of(source, progress))

    async def _put(self, path: str, body: RequestBody) -> FileChange:
        return decode(await self._calls.upload(self._path(path), body), FileChange)

    async def get(self, path: str, *, start: int = 0, length: int | None = None) -> bytes:
        """Return `length` bytes of the file from byte `start` on, by default all; empty after its end."""
        if length == 0:
            return b""
        last = "" if length is None else start + length - 1
        headers = {"Range": f"bytes={start}-{last}"} if start or length is not None else {}
        try:
            async with self._calls.open(self._path(path), headers) as answer:
                known = "content-length" in answer.headers
                return await answer.body(most=MOST_FILE if known else MOST_RESULT)
        except GatewayError as error:
            if error.status != HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            return b""

    async def save(self, path: str, target: Path | str, progress: Progress | None = None) -> None:
        """Write the file to `target`, whole or not at all. Raises OSError if `target` can't be written."""
        await self._calls.download(self._path(path), Path(target), progress)

    async def make_folder(self, path: str) -> None:
        """Make a folder and those above it; it is no error if it exists."""
        await self._calls.call("POST", f"{self._path(path)}?mkdir=true")

    async def move(self, path: str, to: str) -> Sequence[FileChange]:
        """Rename a file or a folder; return the files at their new paths. Nothing is replaced."""
        target = f"{self._path(path)}?{urlencode({'move_to': to})}"
        return decode(await self._calls.call("POST", target), FileChanges).files

    async def remove(self, path: str) -> None:
        """Remove a file or an empty folder."""
        await self._calls.call("DELETE", self._path(path))


async def _body_of(source: bytes | str | BinaryIO, progress: Progress) -> RequestBody:
    """Return bytes, a text or the rest of an open file as a body. Raises TypeError for anything else."""
    if isinstance(source, io.TextIOBase):
        raise TypeError('source is a file that is open for text: open it with "rb"')
    if isinstance(source, str):
        data = source.encode()
    elif isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
    elif not hasattr(source, "read"):
        raise TypeError(f"source must be bytes, str, a Path or an open file, not {type(source).__name__}")
    elif source.seekable():
        return _of_file(source, progress)
    else:
        data = await asyncio.to_thread(source.read)
    return RequestBody(len(data), _pieces(data, progress))


def _of_file(file: BinaryIO, progress: Progress) -> RequestBody:
    """Return the rest of an open file as a body."""
    begin = file.tell()
    length = file.seek(0, os.SEEK_END) - begin
    file.seek(begin)
    return RequestBody(length, _read(file, length, progress))


async def _pieces(data: bytes, progress: Progress) -> AsyncGenerator[bytes]:
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]
        progress(min(len(data), start + _CHUNK), len(data))


async def _read(file: BinaryIO, length: int, progress: Progress) -> AsyncGenerator[bytes]:
    done = 0
    while done < length:
        chunk = await asyncio.to_thread(file.read, min(_CHUNK, length - done))
        if not chunk:
            name = getattr(file, "name", "The file")
            raise InvalidInput(f"{name} became shorter while it was read")
        yield chunk
        done += len(chunk)
        progress(done, length)
