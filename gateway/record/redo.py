"""The redo log: rows that are committed and not in the tables yet.

A cell leaves a kilobyte or two. A transaction of SQLite for them costs ten times what appending them to a
file does, and a wait for another thread besides. So small groups of rows are committed by a frame here, and
``journal`` has the rows of many frames written into the tables by one transaction, a moment later. What a
gateway that was killed left here goes into the tables before anything else is done with them (`recover`).

An append is one write into a file whose space was taken when it was made: a copy into the system's memory
that neither waits for a disk nor finds it full, so it may be done on the event loop. Where it takes long all
the same, as on some network file systems, the log is left alone for a while. It outlives the gateway, not
the machine; who needs that has no log (``--journal-sync full``).

The file has two halves; while the rows of one go into the tables, the other is appended to. A half is frames
from its start up to the first thing that is no whole frame. A frame is a magic word, a number, a length,
the CRC-32 of all the rest, and the rows, as MessagePack. Numbers rise by one with each commit, be it here or
to the tables, and the tables know the last one that they have.
"""

from __future__ import annotations

import errno
import logging
import os
import sqlite3
import struct
import time
import zlib
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path

import msgspec

from gateway.record import schema
from gateway.record.errors import StorageError
from gateway.record.group import Group
from gateway.record.rows import EventRow, ExecutionRow, SessionRow
from kernels.limits import KIB, MIB

logger = logging.getLogger(__name__)

HALF_BYTES = MIB // 2
MOST_BYTES = 64 * KIB
"""Of one frame. What is larger would cost more by being written twice than the transaction does."""
SLOW_SECONDS = 0.25
"""An append that takes longer held up everybody."""
PAUSE_SECONDS = 60.0

_MAGIC = b"CGR1"
_HEAD = struct.Struct(">4sQI")
_CHECK = struct.Struct(">I")
_FRONT = _HEAD.size + _CHECK.size
_Rows = tuple[list[SessionRow], list[ExecutionRow], list[EventRow]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Rows).decode


def beside(record: Path) -> Path:
    """Where the redo log of the record at `record` is."""
    return record.with_name(record.name + ".redo")


class RedoLog:
    """The log that a journal appends to, and the numbers of all its commits. Made by `create`."""

    def __init__(self, path: Path, descriptor: int | None, number: int) -> None:
        self.number = number
        self._path = path
        self._descriptor = descriptor
        # Where the next frame goes, in each half.
        self._positions = [0, 0]
        self._half = 0
        self._usable_from = 0.0

    @classmethod
    def create(cls, path: Path, number: int) -> RedoLog:
        """An empty one at `path`, after the commit `number`. Where it can't be made, it takes nothing."""
        descriptor = None
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            if os.pwrite(descriptor, bytes(2 * HALF_BYTES), 0) < 2 * HALF_BYTES:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            logger.warning("There is no redo log (%s), and each commit is a transaction", error.strerror)
            if descriptor is not None:
                os.close(descriptor)
                path.unlink()
            return cls.without(path, number)
        return cls(path, descriptor, number)

    @classmethod
    def without(cls, path: Path, number: int) -> RedoLog:
        """One that takes nothing."""
        return cls(path, None, number)

    @property
    def crowded(self) -> bool:
        """Whether half is used of the half that is appended to."""
        return self._positions[self._half] * 2 > HALF_BYTES

    def append(self, group: Group) -> bool:
        """Commit the group, which gets its number; or tell that it can't be done here."""
        if self._descriptor is None or group.size > MOST_BYTES or time.monotonic() < self._usable_from:
            return False
        try:
            frame = _frame(self.number + 1, group)
        except (ValueError, OverflowError):
            # Numbers that MessagePack does not know, which JSON does, or text that nothing can encode.
            return False
        position = self._positions[self._half]
        fits = len(frame) <= min(MOST_BYTES, HALF_BYTES - position)
        if not fits or not self._write(frame, self._half, position):
            return False
        self._positions[self._half] += len(frame)
        group.number = self.count()
        return True

    def count(self) -> int:
        """The number of a commit that is made to the tables."""
        self.number += 1
        return self.number

    def switch(self) -> None:
        """All rows in the log are on their way to the tables: append to the other half, if that is empty."""
        other = 1 - self._half
        if not self._positions[other]:
            self._half = other

    def rewind(self, *, wholly: bool) -> None:
        """What was in the log at the last `switch` is in the tables; `wholly`: so is what came after it.

        It is overwritten, since it may be purged from the tables.
        """
        for half in (0, 1) if wholly else (1 - self._half,):
            if used := self._positions[half]:
                self._write(bytes(used), half, 0)
                self._positions[half] = 0

    def _write(self, data: bytes, half: int, position: int) -> bool:
        assert self._descriptor is not None
        begun = time.monotonic()
        try:
            whole = os.pwrite(self._descriptor, data, half * HALF_BYTES + position) == len(data)
        except OSError as error:
            whole = False
            logger.warning("The redo log can't be written: %s", error.strerror)
        took = time.monotonic() - begun
        if took > SLOW_SECONDS:
            logger.warning("The disk of the record made a write of %d bytes wait %.1f s", len(data), took)
        if took > SLOW_SECONDS or not whole:
            self._usable_from = begun + took + PAUSE_SECONDS
        return whole

    def close(self) -> None:
        """Close the file; it goes unless it holds what is not in the tables. May be called again."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
            if not any(self._positions):
                self._path.unlink()


def _frame(number: int, group: Group) -> bytes:
    rows = _encode((list(group.sessions.values()), list(group.executions.values()), group.events))
    head = _HEAD.pack(_MAGIC, number, len(rows))
    return head + _CHECK.pack(zlib.crc32(rows, zlib.crc32(head))) + rows


def recover(db: sqlite3.Connection, path: Path) -> int:
    """Put what the log at `path` holds into the tables and remove it; the number of the last commit then.

    Raises sqlite3.Error or StorageError, and leaves the log as it was, when that can't be done.
    """
    group = waiting(db, path)
    if not group.empty:
        refused = schema.write(db, group)
        logger.info("%d events from the redo log are in the tables now", len(group.events))
        if refused:
            logger.error("The record refused rows of the redo log: %s", "; ".join(refused))
    path.unlink(missing_ok=True)
    return group.number


def waiting(db: sqlite3.Connection, path: Path) -> Group:
    """What is committed in the log at `path` and not in the tables.

    A frame that does not follow on what the tables have is what a machine that lost power kept of later ones.
    Raises sqlite3.Error and StorageError.
    """
    group = Group(number=schema.applied(db))
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return group
    frames = [*_frames(data[:HALF_BYTES]), *_frames(data[HALF_BYTES:])]
    for later in sorted(frames, key=attrgetter("number")):
        if later.number == group.number + 1:
            group.absorb(later)
    return group


def _frames(data: bytes) -> Iterator[Group]:
    position = 0
    while position + _FRONT <= len(data):
        magic, number, length = _HEAD.unpack_from(data, position)
        (check,) = _CHECK.unpack_from(data, position + _HEAD.size)
        rows = data[position + _FRONT : position + _FRONT + length]
        found = zlib.crc32(rows, zlib.crc32(data[position : position + _HEAD.size]))
        if magic != _MAGIC or len(rows) != length or found != check:
            return
        yield _group(number, rows)
        position += _FRONT + length


def _group(number: int, rows: bytes) -> Group:
    try:
        sessions, executions, events = _decode(rows)
    except msgspec.MsgspecError as error:
        raise StorageError(
            f"The redo log holds rows of another version: {error}. Start the version that wrote them once"
        ) from error
    return Group(
        {row.id: row for row in sessions},
        {(row.session_id, row.id): row for row in executions},
        events,
        number=number,
    )
