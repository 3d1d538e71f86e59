"""The format of the redo log's file: groups of rows as frames, and how to find them again in damaged bytes.

Pure: bytes in, groups out. ``redo`` writes the file, ``salvage`` reads it.

The file has two halves. A half is a sequence of frames from its start, followed by zeros. A frame is a magic
word, a number, a length, a checksum, and the rows as MessagePack. The checksum is the CRC-32 of all the rest,
started with the log's random seed: bytes that a client has put into its rows can't pass for a frame.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from cellgate.record.backlog import Group
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow
from cellgate.wire.errors import StorageError
from cellgate_kernels.limits import KIB, MIB

HALF_BYTES = MIB // 2
LOG_BYTES = 2 * HALF_BYTES
MOST_BYTES = 64 * KIB
"""Of one frame. Writing a larger group twice would cost more than a transaction does."""
SEED_BYTES = 16

_MAGIC = b"CGR2"
_FORMER_MAGIC = b"CGR1"
_BEGINNING = re.compile(re.escape(_MAGIC) + b"|" + re.escape(_FORMER_MAGIC))
_HEAD = struct.Struct(">4sQI")
_CHECK = struct.Struct(">I")
_FRONT = _HEAD.size + _CHECK.size
_Rows = tuple[list[SessionRow], list[ExecutionRow], list[EventRow]]
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Rows).decode

UNENCODABLE = (ValueError, OverflowError, TypeError, RecursionError, msgspec.MsgspecError)
"""What `encode_rows` raises for rows that MessagePack can't represent."""


@dataclass(frozen=True, slots=True)
class Frames:
    """The whole frames that were found, by number, and whether other bytes were among them."""

    groups: dict[int, Group]
    damaged: bool

    @property
    def highest(self) -> int:
        """The highest number of a whole frame, 0 when there is none."""
        return max(self.groups, default=0)


def encode_rows(group: Group) -> bytes:
    """The group's rows as MessagePack. Raises one of `UNENCODABLE`."""
    return _encode((list(group.sessions.values()), list(group.executions.values()), group.events))


def seed_check(seed: bytes) -> int:
    """The start value of the checksums of a log with this seed."""
    return zlib.crc32(seed)


def frame(number: int, group: Group, start: int) -> bytes:
    """The group as a frame of a log whose checksums start from `start`. Raises one of `UNENCODABLE`."""
    rows = encode_rows(group)
    head = _HEAD.pack(_MAGIC, number, len(rows))
    return head + _CHECK.pack(zlib.crc32(rows, zlib.crc32(head, start))) + rows


def find_frames(data: bytes, seeds: Collection[bytes], *, former: bool) -> Frames:
    """The whole frames in a log's bytes that were made with one of the seeds.

    `former`: logs of versions without seeds are read too. After bytes that are not a frame the search goes on
    at what looks like the next one. Raises StorageError for a whole frame with rows of another version.
    """
    starts = {_MAGIC: [seed_check(seed) for seed in seeds]}
    if former:
        starts[_FORMER_MAGIC] = [0]
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


def _whole(data: bytes, position: int, starts: dict[bytes, list[int]]) -> int | None:
    """The end of the frame at this position, None when there is no whole one."""
    if position + _FRONT > len(data):
        return None
    magic, _, length = _HEAD.unpack_from(data, position)
    (check,) = _CHECK.unpack_from(data, position + _HEAD.size)
    end: int = position + _FRONT + length
    if magic not in starts or end > len(data) or end - position > MOST_BYTES:
        return None
    head = data[position : position + _HEAD.size]
    rows = data[position + _FRONT : end]
    fits = any(zlib.crc32(rows, zlib.crc32(head, start)) == check for start in starts[magic])
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
