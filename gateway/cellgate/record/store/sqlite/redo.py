"""The redo log: rows that are committed but not yet in the tables. Its format and its writer.

A cell produces a kilobyte or two. A SQLite transaction for it costs ten times as much as appending to a file,
and has to wait for another thread too. So small groups of rows are committed as a frame here, and a moment
later ``journal`` has the rows of many frames written into the tables by one transaction. ``salvage`` recovers
the rows that a killed gateway left here.

An append writes into a file whose space was allocated when it was created: a copy into the page cache, which
neither waits for a disk nor finds it full, so it may run on the event loop. Where it is slow anyway, as on
some network file systems, the log is left unused for a while. An append survives the gateway at once and the
machine after the next `sync`; if that is not enough, ``--journal-sync full`` does without a log.

The file has two halves. A half is a sequence of frames from its start, followed by zeros. A frame is a magic
word, a number, a length, a checksum, and the rows as MessagePack. The checksum is the CRC-32 of all other
parts, started with the log's random seed, so a client can't forge a frame with bytes in its rows. While the
rows of one half go into the tables, the other half is appended to. A half is overwritten with zeros once all
its rows are safely in the tables, because they may be purged there.

Numbers rise by one with each commit. The tables hold the number of their last commit, and a small file beside
the log holds the number of the log's last commit. So damage to the log is found even where whole frames are
gone, and the number of missing commits is known.
"""

from __future__ import annotations

import errno
import logging
import math
import os
import re
import secrets
import struct
import time
import zlib
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cellgate.errors import StorageError
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow
from cellgate.record.store.backlog import Group
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.base.resources import KIB, MIB

logger = logging.getLogger(__name__)

SLOW_SECONDS = 0.25
"""Seconds above which an append has held up every session."""
PAUSE_SECONDS = 60.0

HALF_BYTES = MIB // 2
LOG_BYTES = 2 * HALF_BYTES
MOST_BYTES = 64 * KIB
"""Most bytes of a frame. Writing a larger group twice would cost more than a transaction does."""
SEED_BYTES = 16

_MAGIC = b"CGR2"
_BEGINNING = re.compile(re.escape(_MAGIC))
_HEAD = struct.Struct(">4sQI")
_CHECK = struct.Struct(">I")
_FRONT = _HEAD.size + _CHECK.size
_Rows = tuple[list[SessionRow], list[ExecutionRow], list[EventRow]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Rows).decode

UNENCODABLE = (ValueError, OverflowError, TypeError, RecursionError, msgspec.MsgspecError)
"""Errors of `encode_rows` for rows that MessagePack can't represent."""

_LAST_MAGIC = b"CGL1"
_NUMBER = struct.Struct(">Q")
_CHECKED = struct.Struct(">8sI")
_NUMBER_AT = len(_LAST_MAGIC) + SEED_BYTES
_LAST_BYTES = _NUMBER_AT + _CHECKED.size


# ---- the format ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Frames:
    """The whole frames found, by number, and whether other bytes were among them."""

    groups: dict[int, Group]
    damaged: bool

    @property
    def highest(self) -> int:
        """The highest number of a whole frame, 0 when there is none."""
        return max(self.groups, default=0)


def encode_rows(group: Group) -> bytes:
    """Return the group's rows as MessagePack. Raises one of `UNENCODABLE`."""
    return _encode((list(group.sessions.values()), list(group.executions.values()), group.events))


def frame(number: int, group: Group, start: int) -> bytes:
    """Return the group as a frame of a log with checksums from `start`. Raises one of `UNENCODABLE`."""
    rows = encode_rows(group)
    head = _HEAD.pack(_MAGIC, number, len(rows))
    return head + _CHECK.pack(zlib.crc32(rows, zlib.crc32(head, start))) + rows


def find_frames(data: bytes, seeds: Collection[bytes]) -> Frames:
    """Return the whole frames in a log's bytes that were made with one of the seeds.

    After bytes that are not a frame the search continues at the next magic word. Raises StorageError for a
    whole frame with rows of another version.
    """
    starts = [zlib.crc32(seed) for seed in seeds]
    groups: dict[int, Group] = {}
    damaged = False
    for half in (data[:HALF_BYTES], data[HALF_BYTES:]):
        position = 0
        content = len(half.rstrip(b"\0"))
        while position < content:
            if (end := _whole(half, position, starts)) is not None:
                number = _HEAD.unpack_from(half, position)[1]
                groups[number] = _group(number, half[position + _FRONT : end])
                position = end
            else:
                damaged = True
                position = _next(half, position + 1)
    return Frames(groups, damaged)


def _whole(data: bytes, position: int, starts: Collection[int]) -> int | None:
    """Return the end of the frame at this position, None when there is no whole one."""
    if position + _FRONT > len(data):
        return None
    magic, _, length = _HEAD.unpack_from(data, position)
    (check,) = _CHECK.unpack_from(data, position + _HEAD.size)
    end: int = position + _FRONT + length
    if magic != _MAGIC or end > len(data) or end - position > MOST_BYTES:
        return None
    head = data[position : position + _HEAD.size]
    rows = data[position + _FRONT : end]
    fits = any(zlib.crc32(rows, zlib.crc32(head, start)) == check for start in starts)
    return end if fits else None


def _next(data: bytes, position: int) -> int:
    found = _BEGINNING.search(data, position)
    return len(data) if found is None else found.start()


def _group(number: int, rows: bytes) -> Group:
    try:
        sessions, executions, events = _decode(rows)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError(
            f"The redo log holds rows of another version: {error}. Start the version that wrote them once"
        ) from error
    return Group(
        {row.id: row for row in sessions},
        {(row.session_id, row.id): row for row in executions},
        events,
        number=number,
    )


# ---- the files -------------------------------------------------------------------------------------------


def beside(record: Path) -> Path:
    """Return the path of the redo log of a record."""
    return record.with_name(record.name + ".redo")


def last_beside(record: Path) -> Path:
    """Return the path of the file with the number of the redo log's last commit."""
    return record.with_name(record.name + ".last")


def read_beside(path: Path, most: int = LOG_BYTES) -> bytes | None:
    """Return the first `most` bytes of a file beside a record, None when there is none. Raises OSError."""
    try:
        return read_regular(path, most)
    except FileNotFoundError:
        return None


def read_last(path: Path) -> tuple[bytes, int] | None:
    """Return the log's seed and last number, from the file at `path`; None for a missing or damaged file."""
    data = read_beside(path, _LAST_BYTES)
    if data is None or len(data) < _LAST_BYTES or not data.startswith(_LAST_MAGIC):
        return None
    prefix = data[: -_CHECKED.size]
    number, check = _CHECKED.unpack(data[-_CHECKED.size :])
    if zlib.crc32(number, zlib.crc32(prefix)) != check:
        return None
    return prefix[len(_LAST_MAGIC) :], _NUMBER.unpack(number)[0]


@dataclass(slots=True)
class _Half:
    """One half. `used`: where the next frame goes. `dirty`: bytes from the start that may not be zero, more
    than `used` after a write that failed. `first` and `last`: the numbers of its frames.
    """

    start: int
    used: int = 0
    dirty: int = 0
    first: int = 0
    last: int = 0


class RedoLog:
    """The log that a journal appends to, and the number of its last commit. Made by `create`."""

    def __init__(self, record: Path, number: int, seed: bytes, descriptors: tuple[int, int] | None) -> None:
        self.number = number
        self.seed = seed
        self._record = record
        self._descriptors = descriptors
        self._halves = (_Half(0), _Half(HALF_BYTES))
        self._half = self._halves[0]
        self._start = zlib.crc32(seed)
        self._last_start = zlib.crc32(_LAST_MAGIC + seed)
        self._usable_from = 0.0

    @classmethod
    def create(cls, record: Path, number: int) -> RedoLog:
        """Return an empty log beside `record`, after commit `number`, or one that accepts nothing.

        Both files appear complete, so that an unfinished file is never mistaken for a damaged one.
        """
        seed = secrets.token_bytes(SEED_BYTES)
        last = _LAST_MAGIC + seed
        last += _checked(number, zlib.crc32(last))
        opened: list[int] = []
        try:
            for path, content in ((last_beside(record), last), (beside(record), bytes(LOG_BYTES))):
                opened.append(_make(path, content))
        except OSError as error:
            logger.warning("There is no redo log (%s), and each commit is a transaction", in_brief(error))
            for descriptor in opened:
                os.close(descriptor)
            last_beside(record).unlink(missing_ok=True)
            return cls.without(record, number)
        return cls(record, number, seed, (opened[1], opened[0]))

    @classmethod
    def without(cls, record: Path, number: int) -> RedoLog:
        """Return a log that accepts nothing."""
        return cls(record, number, b"", None)

    @property
    def is_ours(self) -> bool:
        """Whether the files at the log's paths are the ones that are open here."""
        if self._descriptors is None:
            return True
        try:
            found = [path.lstat() for path in (beside(self._record), last_beside(self._record))]
        except (FileNotFoundError, NotADirectoryError):
            return False
        held = [os.fstat(descriptor) for descriptor in self._descriptors]
        return all(map(os.path.samestat, found, held))

    @property
    def usable(self) -> bool:
        """Whether there is a file that was not retired."""
        return self._descriptors is not None and self._usable_from < math.inf

    def retire(self) -> None:
        """Accept no more commits."""
        self._usable_from = math.inf

    @property
    def descriptor(self) -> int | None:
        """The log's file, for another thread to sync; None without one."""
        return None if self._descriptors is None else self._descriptors[0]

    @property
    def crowded(self) -> bool:
        """Whether more than half of the current half is used."""
        return self._half.used * 2 > HALF_BYTES

    @property
    def cramped(self) -> bool:
        """Whether the current half is crowded, and the other half holds rows too."""
        return self.crowded and bool(self._other.dirty)

    @property
    def _other(self) -> _Half:
        return self._halves[self._half is self._halves[0]]

    def append(self, group: Group) -> bool:
        """Commit the group and number it; return whether that was possible."""
        if self._descriptors is None or group.size > MOST_BYTES or time.monotonic() < self._usable_from:
            return False
        number = self.number + 1
        try:
            data = frame(number, group, self._start)
        except UNENCODABLE:
            # MessagePack lacks some of JSON's numbers, and some text can't be encoded at all.
            return False
        half = self._half
        if half.dirty > half.used:
            self.switch()
            half = self._half
        fits = len(data) <= min(MOST_BYTES, HALF_BYTES - half.used) and half.dirty == half.used
        if not fits or not self._write(data, half):
            return False
        half.used = half.dirty
        half.first = half.first or number
        half.last = group.number = self.number = number
        return True

    def switch(self) -> None:
        """Append to the other half, if empty: all logged rows are on their way to the tables."""
        if not self._other.dirty:
            self._half = self._other

    def rewind(self, number: int) -> None:
        """Overwrite halves without a commit after `number`: the tables have the earlier ones on disk."""
        if self._descriptors is None:
            return
        for half in self._halves:
            old = half.dirty and half.last <= number
            if old and self._put(((self._descriptors[0], bytes(half.dirty), half.start),)):
                half.used = half.dirty = half.first = half.last = 0

    def holds(self, number: int) -> bool:
        """Return whether bytes of commits up to `number` may be in the file."""
        return any(half.dirty > half.used or 0 < half.first <= number for half in self._halves)

    def _write(self, data: bytes, half: _Half) -> bool:
        """Append a frame, then its number to the other file; both before the commit is acknowledged."""
        assert self._descriptors is not None
        log, last = self._descriptors
        position = half.start + half.used
        half.dirty = half.used + len(data)
        numbered = last, _checked(self.number + 1, self._last_start), _NUMBER_AT
        if self._put(((log, data, position), numbered)):
            return True
        # A transaction commits these rows instead, and a later frame gets the number: this one must not be
        # found complete after a crash.
        with suppress(OSError):
            os.pwrite(log, bytes(len(data)), position)
        return False

    def _put(self, writes: tuple[tuple[int, bytes, int], ...]) -> bool:
        """Write bytes at positions of files, in this order; return whether all were written."""
        begun = time.monotonic()
        whole = True
        try:
            for descriptor, data, position in writes:
                whole = whole and os.pwrite(descriptor, data, position) == len(data)
        except OSError as error:
            whole = False
            logger.warning("The redo log can't be written: %s", in_brief(error))
        took = time.monotonic() - begun
        if took > SLOW_SECONDS:
            size = sum(len(data) for _, data, _ in writes)
            logger.warning("The disk of the record made a write of %d bytes wait %.1f s", size, took)
        if took > SLOW_SECONDS or not whole:
            self._usable_from = max(self._usable_from, begun + took + PAUSE_SECONDS)
        return whole

    def close(self, *, clean: bool) -> None:
        """Close the files, and remove them if the tables have all rows (`clean`). May be called again."""
        descriptors, self._descriptors = self._descriptors, None
        for descriptor in descriptors or ():
            os.close(descriptor)
        if descriptors and clean:
            beside(self._record).unlink(missing_ok=True)
            last_beside(self._record).unlink(missing_ok=True)


def _checked(number: int, start: int) -> bytes:
    packed = _NUMBER.pack(number)
    return packed + _CHECK.pack(zlib.crc32(packed, start))


def _make(path: Path, content: bytes) -> int:
    """Make a file appear at `path` with this complete content; return its descriptor, open for writing."""
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        if os.pwrite(descriptor, content, 0) < len(content):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        draft.replace(path)
    except OSError:
        os.close(descriptor)
        draft.unlink(missing_ok=True)
        raise
    return descriptor
