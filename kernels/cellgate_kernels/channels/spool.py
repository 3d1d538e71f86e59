"""Reads a kernel's spool: its cells' messages, in its own folder for a gateway that was away.

``inside/bootstrap.py`` writes it if CELLGATE_SPOOL names a folder: a ring of files, each entry the five
signed frames of one message. Code in the kernel can write there too, so links are never followed, only
regular files are opened, and at most a ring's bytes are read. Only the kernel's process can sign. Blocking.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from msgspec import structs

from cellgate_kernels.base.regular import open_at_once
from cellgate_kernels.channels.reception import read_large
from cellgate_kernels.codec.structure import is_heavy
from cellgate_kernels.protocol.messages import DELIMITER, Channel, MalformedMessage, Message, Signer

SEGMENTS = 4
SEGMENT_BYTES = 4 * 1024 * 1024

_MOST_NAMES = 10_000
_NAME = re.compile(r"spool-\d{8}", re.ASCII)
_ENTRY = struct.Struct(">I5I")
_OUTPUTS = frozenset(
    {"stream", "display_data", "update_display_data", "execute_result", "clear_output", "error"}
)
_CHANNELS = {"execute_reply": Channel.SHELL, "input_request": Channel.STDIN}


@dataclass(frozen=True, slots=True)
class Spooled:
    """A message, and how many output messages of the same cell the kernel had sent before it."""

    before: int
    message: Message


@dataclass(frozen=True, slots=True)
class Undelivered:
    """Messages that did not arrive, in order, and whether the spool still had all of them."""

    messages: tuple[Message, ...]
    complete: bool


def read_spool(folder: Path, key: bytes) -> list[Spooled]:
    """Return the messages in a kernel's spool, oldest first; none without a spool."""
    try:
        with os.scandir(folder) as entries:
            # Limited, because code in the kernel may have made any number of entries.
            names = [entry.name for entry in islice(entries, _MOST_NAMES) if _NAME.fullmatch(entry.name)]
    except OSError:
        return []
    signer = Signer(key)
    # One more than a ring, because the oldest may be removed while we look.
    paths = [folder / name for name in sorted(names)[-SEGMENTS - 1 :]]
    return [entry for path in paths for entry in _entries(_read(path), signer)]


def undelivered(folder: Path, key: bytes, received: Sequence[str], most: int) -> Undelivered:
    """Return a dead kernel's spooled outputs that were sent and did not arrive.

    `received`: the ids of the latest messages that came, in order; `most`: how many are remembered. If there
    are so many, earlier ones came, too.
    """
    entries = read_spool(folder, key)
    known = frozenset(received)
    found = [number for number, entry in enumerate(entries) if entry.message.header.msg_id in known]
    has_earlier = len(received) >= most
    # The kernel's threads do not send in the order in which messages were made.
    first = found[len(found) // 2] if found and has_earlier else 0
    missing = tuple(
        entry.message
        for entry in entries[first:]
        if entry.message.msg_type in _OUTPUTS and entry.message.header.msg_id not in known
    )
    return Undelivered(missing, complete=bool(found) or not (entries and has_earlier))


def _read(path: Path) -> bytes:
    """Return at most a segment of a regular file; nothing of any other or missing file."""
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            return b""
        # Checked again once it is open: by then it may be another file.
        descriptor = open_at_once(str(path), os.O_RDONLY)
        try:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            return os.read(descriptor, SEGMENT_BYTES) if regular else b""
        finally:
            os.close(descriptor)
    except OSError:
        return b""


def _entries(data: bytes, signer: Signer) -> Iterator[Spooled]:
    """Yield the entries up to the end, or up to one that is still being written."""
    at = 0
    while at + _ENTRY.size <= len(data):
        before, *sizes = _ENTRY.unpack_from(data, at)
        at += _ENTRY.size
        if at + sum(sizes) > len(data):
            return
        frames = [DELIMITER]
        for size in sizes:
            frames.append(data[at : at + size])
            at += size
        try:
            # Content that takes too long to decode on the loop is decoded here, in this thread.
            if is_heavy(frames[-1]):
                message = read_large(signer, Channel.IOPUB, frames, sys.maxsize)
            else:
                message = signer.parse(Channel.IOPUB, frames)
        except MalformedMessage:
            return
        channel = _CHANNELS.get(message.msg_type, Channel.IOPUB)
        yield Spooled(before, structs.replace(message, channel=channel))
