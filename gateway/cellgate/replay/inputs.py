"""Copies the input files of a recorded session into the session of its replay, where they still are.

They are read where the recorded session has its files now, by descriptors, and never moved or changed. A
file counts as the recorded one by its hash alone, taken of the very bytes that were copied. It talks to
``sessions.files``; which files there were is told by ``files``.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from io import BufferedReader

from cellgate.files.tree import parse_path
from cellgate.files.upload import PIECE, Upload
from cellgate.replay.files import CHANGED, GONE, NO_HASH, InputFile, Restored
from cellgate.sessions.files import SessionFiles, Staged
from cellgate.sessions.session import Session
from cellgate.wire.errors import Conflict, NotFound
from cellgate_kernels.errors import InvalidInput


async def restore(
    files: SessionFiles, principal: str, key: str, wanted: Iterable[InputFile], session: Session
) -> list[Restored]:
    """Put those of the `wanted` files of session `key` into `session` that are as they were recorded.

    Raises QueueFull, QuotaExceeded and StorageError.
    """
    restored = [Restored(file.path, await _restore(files, principal, key, file, session)) for file in wanted]
    if session.kernel is not None and any(file.reason is None for file in restored):
        await session.kernel.files_given()
    return restored


async def _restore(
    files: SessionFiles, principal: str, key: str, file: InputFile, session: Session
) -> str | None:
    """None when the file was restored, and else why not."""
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
        # In a thread, because it waits for a reading that a cancelled replay has left behind.
        await files.lane.run(source.close)
    return None


async def _copy(files: SessionFiles, source: BufferedReader, size: int, upload: Upload) -> None:
    """What is in the file, but no more than it should have: user code may write to it meanwhile."""
    while upload.size < size:
        piece = await files.lane.run(source.read, min(PIECE, size - upload.size))
        if not piece:
            break
        await upload.write(piece)
    await upload.finish()
