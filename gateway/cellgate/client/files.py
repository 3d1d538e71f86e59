"""A session's files: list, upload, download and remove them, streamed both ways."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncGenerator, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Any, BinaryIO
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
_IS_TEXT = 'source is a file that is open for text: open it with "rb"'


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
        must be open for bytes. A pipe is sent as it is read. Raises OSError if the source can't be read,
        TypeError for anything else.
        """
        progress = progress or ignore_progress
        if isinstance(source, Path):
            with await asyncio.to_thread(source.open, "rb") as file:
                return await self._put(path, await _body_of(file, progress))
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
    if isinstance(source, str):
        source = source.encode()
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        return RequestBody(len(data), _pieces(data, progress))
    if not hasattr(source, "read"):
        raise TypeError(f"source must be bytes, str, a Path or an open file, not {type(source).__name__}")
    length, first = await asyncio.to_thread(_begin, source)
    return RequestBody(length, _read(source, first, length, progress))


def _begin(file: Any) -> tuple[int | None, bytes]:
    """Return the length of the rest of an open file, None for a pipe's, and its first chunk.

    So a file that is open for text is refused before anything is sent. Raises TypeError.
    """
    if isinstance(file, io.TextIOBase):
        raise TypeError(_IS_TEXT)
    length = None
    if getattr(file, "seekable", bool)():
        begin = file.tell()
        length = file.seek(0, os.SEEK_END) - begin
        file.seek(begin)
    return length, _chunk(file, length)


def _chunk(file: Any, left: int | None) -> bytes:
    """Read the next chunk of a file; `left`: of how many bytes, None for a pipe. Raises TypeError."""
    chunk = file.read(_CHUNK if left is None else min(_CHUNK, max(0, left)))
    if isinstance(chunk, str):
        raise TypeError(_IS_TEXT)
    if not isinstance(chunk, (bytes, bytearray, memoryview)):
        raise TypeError(f"source.read() must return bytes, not {type(chunk).__name__}")
    return bytes(chunk)


async def _pieces(data: bytes, progress: Progress) -> AsyncGenerator[bytes]:
    for start in range(0, len(data), _CHUNK):
        yield data[start : start + _CHUNK]
        progress(min(len(data), start + _CHUNK), len(data))


async def _read(
    file: BinaryIO, chunk: bytes, length: int | None, progress: Progress
) -> AsyncGenerator[bytes]:
    """Yield the first chunk and the rest of a file."""
    done = 0
    while chunk:
        yield chunk
        done += len(chunk)
        progress(done, length)
        if done == length:
            return
        chunk = await asyncio.to_thread(_chunk, file, None if length is None else length - done)
    if length is not None and done < length:
        name = getattr(file, "name", "The file")
        raise InvalidInput(f"{name} became shorter while it was read")
