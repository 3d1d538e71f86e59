"""Copies the input files of a recorded session that still exist into the session of its replay.

They are read through descriptors from wherever the recorded session's files are now, and never moved or
changed. Only the hash of the bytes that were actually copied decides whether a file is the recorded one. It
uses ``sessions.files``; ``files`` lists the recorded files.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import BufferedReader

from cellgate.errors import Conflict, NotFound
from cellgate.files.tree import parse_path
from cellgate.files.upload import PIECE, Upload
from cellgate.replay.files import CHANGED, GONE, NO_HASH, InputFile, restored_file
from cellgate.sessions.files import SessionFiles, Staged
from cellgate.sessions.session import Session
from cellgate.wire.answers import RestoredFile
from cellgate_kernels.base.errors import InvalidInput


async def restore(
    files: SessionFiles, principal: str, key: str, wanted: Iterable[InputFile], session: Session
) -> list[RestoredFile]:
    """Copy unchanged `wanted` files of session `key`. Raises QueueFull, QuotaExceeded, StorageError."""
    restored = [
        restored_file(file.path, await _restore(files, principal, key, file, session)) for file in wanted
    ]
    if session.kernel is not None and any(file.restored for file in restored):
        await session.kernel.files_given()
    return restored


async def _restore(
    files: SessionFiles, principal: str, key: str, file: InputFile, session: Session
) -> str | None:
    """Restore the file; return None, or why it was not restored."""
    if file.sha256 is None or file.size is None:
        return NO_HASH
    try:
        parts = parse_path(file.path)
        descriptor, state = await files.open(principal, key, parts)
    except (NotFound, InvalidInput, Conflict):
        return GONE
    source = os.fdopen(descriptor, "rb")
    try:
        if state.size != file.size:
            return CHANGED
        incoming = await files.reserve(session, file.size, parts)
        try:
            upload = files.begin(incoming)
            await _copy(files, source, file.size, upload)
            if upload.sha256 != file.sha256:
                return CHANGED
            await files.place(session, incoming, [Staged(parts, upload)])
        finally:
            await files.discard(incoming)
    finally:
        # In a thread, because it waits for a read that a cancelled replay may have left running.
        await files.lane.run(source.close)
    return None


async def _copy(files: SessionFiles, source: BufferedReader, size: int, upload: Upload) -> None:
    """Copy the file, but no more than its recorded size: user code may be appending to it."""
    while upload.size < size:
        piece = await files.lane.run(source.read, min(PIECE, size - upload.size))
        if not piece:
            break
        await upload.write(piece)
    await upload.finish()
