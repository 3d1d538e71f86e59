"""Reads a dead kernel's last words: the text that it had written and not sent.

``inside/unsent.py`` writes the file of a kernel's own text beside its sockets. ``inside/keeper.py`` writes
the file of the text left in the pipes of its children and C code. User code can write both files. So no link
is followed, only regular files are opened, reading stops at the files' size limit, and the number of texts is
limited. A forger can only claim text that the kernel could have printed as well. Blocking.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.protocol.messages import MalformedMessage, read_header

SUFFIX = "-unsent"
REST = "-rest"
HALF = 256 * 1024

_REST_BYTES = 64 * 1024
FILES_BYTES = 2 * HALF + 2 * _REST_BYTES + 4096
"""The most bytes of disk that both files may use."""
MOST_TEXTS = 2048
"""The most texts of a dead kernel; earlier ones are left out. The file has room for forty times as many."""
_TURN = struct.Struct(">IQ")
_RECORD = struct.Struct(">BI")
_SENT = struct.Struct(">QH")
_SIZES = struct.Struct(">II")
_PARENT = 1
_TEXT = {2: "stdout", 3: "stderr"}
_SENDS = {4: "stdout", 5: "stderr"}


@dataclass(frozen=True, slots=True)
class LastText:
    """Text for a stream. `parent`: the header of the request that caused the text, unchanged."""

    name: str
    parent: bytes
    text: str


@dataclass(frozen=True, slots=True)
class LastWords:
    """The text that a kernel had written and not sent, in order, and whether the text is certainly complete.

    Without the kernel's file it is not complete: nothing is known then.
    """

    unsent: tuple[LastText, ...] = ()
    complete: bool = False


@dataclass(frozen=True, slots=True)
class _Text:
    """A piece of text. `end`: the bytes of text written so far, including the piece."""

    name: str
    parent: bytes
    parent_id: str
    data: bytes
    end: int

    def after(self, before: int) -> bytes:
        """Return the part that was written after the first `before` bytes of text."""
        return self.data[max(0, before - self.end + len(self.data)) :]


@dataclass(frozen=True, slots=True)
class _Sent:
    """A sent message with a stream's text for a request, up to `before` bytes of text."""

    name: str
    parent_id: str
    msg_id: str
    before: int


class _Half:
    """The content of one half of the file, up to its end or its first invalid record."""

    def __init__(self, data: bytes) -> None:
        self.turn, self._text = _TURN.unpack_from(data) if len(data) >= _TURN.size else (0, 0)
        self.texts: list[_Text] = []
        self.sent: list[_Sent] = []
        self.parent = b""
        self._parent_id = ""
        at = _TURN.size
        while at + _RECORD.size <= len(data):
            kind, size = _RECORD.unpack_from(data, at)
            at += _RECORD.size
            if at + size > len(data) or not self._take(kind, data[at : at + size]):
                return
            at += size

    def _take(self, kind: int, data: bytes) -> bool:
        """Return whether the record is valid."""
        if kind == _PARENT:
            try:
                self._parent_id = read_header(data).msg_id
            except MalformedMessage:
                return False
            self.parent = data
            return True
        if kind in _TEXT:
            self._text += len(data)
            self.texts.append(_Text(_TEXT[kind], self.parent, self._parent_id, data, self._text))
            return bool(self.parent)
        if kind not in _SENDS or len(data) < _SENT.size:
            return False
        before, size = _SENT.unpack_from(data)
        ids = data[_SENT.size :].decode(errors="replace")
        self.sent.append(_Sent(_SENDS[kind], ids[size:], ids[:size], before))
        return True


def read_last_words(prefix: str, received: frozenset[str]) -> LastWords:
    """Return the text that a dead kernel had written and not sent; empty if it kept no files.

    `prefix`: the prefix of its sockets' paths. `received`: ids of its messages, with the latest text's.
    """
    data = _read(Path(prefix + SUFFIX), 2 * HALF)
    halves = sorted((_Half(data[:HALF]), _Half(data[HALF:])), key=lambda half: half.turn)
    sent = [each for half in halves for each in half.sent]
    latest = max((at for at, each in enumerate(sent) if each.msg_id in received), default=-1)
    seen = {(each.name, each.parent_id): each.before for each in sent[: latest + 1]}
    texts = [text for half in halves for text in half.texts]
    left = [text.after(seen.get((text.name, text.parent_id), 0)) for text in texts]
    pieces = [(text.name, text.parent, data) for text, data in zip(texts, left, strict=True) if data]
    parent = halves[-1].parent or halves[0].parent
    left_in_pipes, is_cut = _rest(Path(prefix + REST))
    if parent:
        pieces += [(name, parent, rest) for name, rest in left_in_pipes if rest]
    found = list(_joined(pieces))
    was_written_over = halves[0].turn > 0 and latest < 0
    complete = bool(data) and not was_written_over and not is_cut and len(found) <= MOST_TEXTS
    return LastWords(tuple(found[-MOST_TEXTS:]), complete)


def _rest(path: Path) -> tuple[list[tuple[str, bytes]], bool]:
    """Return the bytes left in the pipes, by stream, and whether earlier bytes are missing."""
    data = _read(path, _SIZES.size + 2 * _REST_BYTES)
    if len(data) < _SIZES.size:
        return [], False
    sizes = _SIZES.unpack_from(data)
    out, err = (min(size, _REST_BYTES) for size in sizes)
    data = data[_SIZES.size :]
    return [("stdout", data[:out]), ("stderr", data[out : out + err])], max(sizes) > _REST_BYTES


def _joined(pieces: Iterable[tuple[str, bytes, bytes]]) -> Iterator[LastText]:
    """Yield one text for all consecutive pieces of one stream and one request."""
    for (name, parent), found in groupby(pieces, key=lambda piece: piece[:2]):
        yield LastText(name, parent, b"".join(data for _, _, data in found).decode(errors="replace"))


def _read(path: Path, most: int) -> bytes:
    with suppress(OSError):
        return read_regular(path, most, follow=False)
    return b""
