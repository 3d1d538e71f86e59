"""The findings of a check, and words for bad rows and cells of exports and of data folders. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from cellgate.record.chain import GENESIS, link
from cellgate.record.rows import EventRow


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check. `problem`: the first one found, None if there is none.

    `key`: the public key of a valid signature, if there is one. `sealed` is False for a file without a seal:
    then nothing could be checked, and `problem` says so.
    """

    subject: str
    checked: str
    problem: str | None = None
    key: str | None = None
    sealed: bool = True

    @property
    def valid(self) -> bool:
        """Whether the check was made and found no problem."""
        return self.problem is None


class BrokenRecord(Exception):
    """A check failed; the message names the first bad row or cell."""


class NoSeal(Exception):
    """A notebook has nothing to be checked against; the message says why."""


class RowFacts(msgspec.Struct):
    """The part of each row's body that repeats the row's columns."""

    seq: int
    session: str
    execution: str | None
    type: str


_told = msgspec.json.Decoder(RowFacts).decode


def chained(rows: Iterable[EventRow], session: str) -> Iterator[EventRow]:
    """Yield the rows one by one, each checked against the rows before it. Raises Broken."""
    head = GENESIS
    for number, row in enumerate(rows, 1):
        if row.seq != number:
            raise BrokenRecord(f"row {number} was removed: row {row.seq} follows row {number - 1}")
        head = link(head, row.body)
        try:
            content = _told(row.body)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise BrokenRecord(f"row {number} was changed: its body is no event") from None
        if head != row.hash:
            moved = "" if content.seq == number else f", or moved: it says it is row {content.seq}"
            raise BrokenRecord(f"row {number} was changed{moved}: its hash is not that of its bytes")
        if content.type != row.type or content.execution != row.execution:
            raise BrokenRecord(f"row {number} was changed: its type or execution is not what its body says")
        if content.seq != number or content.session != session:
            told = f"it says it is row {content.seq} of {content.session}"
            raise BrokenRecord(f"row {number} was moved there: {told}")
        yield row


def differing(kind: str, names: Sequence[str], recorded: Sequence[Any], found: Sequence[Any]) -> str | None:
    """Return the first difference of `found` from `recorded` as a sentence; None if there is none."""
    for index, (was, now) in enumerate(zip(recorded, found, strict=False)):
        if was == now:
            continue
        name = f"{kind} {index + 1} ({names[index]})"
        if now in recorded and was in found:
            return f"{name} was moved there from place {recorded.index(now) + 1}"
        if now in recorded:
            return f"{kind} {index + 1} was removed: what was {kind} {recorded.index(now) + 1} stands there"
        return f"{name} was added" if was in found else f"{name} was changed"
    if len(found) < len(recorded):
        return f"{kind} {len(found) + 1} was removed: there are {len(found)} of {len(recorded)}"
    if len(found) > len(recorded):
        return f"{kind} {len(recorded) + 1} ({names[len(recorded)]}) was added"
    return None


def counted(count: int, noun: str) -> str:
    """Return a count with its noun, such as "1 row" and "2 entries"."""
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count} {noun if count == 1 else plural}"
