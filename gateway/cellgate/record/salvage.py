"""What a gateway that did not end in order left in its redo log, and what of it is missing.

The last number that the log took stands in a file of its own, and the tables know whether there must be a
log, and which (its seed). So a number that is neither in the tables nor in a whole frame is missing: it is
counted, noted in the audit trail, and the damaged log is kept under another name. What can be used of the
rest is used: all frames up to the first gap; after it the rows of those sessions whose chain they continue.
``redo`` writes the log, ``opening`` decides when it is read.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cellgate.record import schema, trail
from cellgate.record.frames import Frames, find_frames
from cellgate.record.group import Group
from cellgate.record.redo import beside, last_beside, read_beside, read_last
from cellgate.wire.errors import StorageError

logger = logging.getLogger(__name__)

FIRST_WITH_SEED = 5
"""The schema from which on the tables know the log's seed; logs of earlier ones tell no last number."""


@dataclass(frozen=True, slots=True)
class Found:
    """The files beside a record. `last`: the number they say was the last, None when they don't."""

    frames: Frames
    last: int | None
    there: bool


@dataclass(frozen=True, slots=True)
class Loss:
    """Numbers from `first` to `last` of which so many are `missing`; `certain`: and no others."""

    first: int
    last: int
    missing: int
    certain: bool
    why: str

    def __str__(self) -> str:
        if not self.missing:
            return f"commits after number {self.first - 1} may be missing: {self.why}"
        least = "" if self.certain else "at least "
        verb = "is" if self.missing == 1 else "are"
        where = f"of the numbers {self.first} to {self.last}"
        return f"{least}{self.missing} of the record's commits {verb} missing, {where}: {self.why}"


def look(record: Path, version: int, seed: bytes | None) -> Found:
    """Read the files beside `record`, whose tables have this schema and expect a log with this seed.

    Of a record in use, look here first and at the tables then: so nothing is missed that moves. Raises
    StorageError for files that can't be read and for rows of another version.
    """
    try:
        told = read_last(last_beside(record))
        data = read_beside(beside(record))
    except OSError as error:
        raise StorageError(f"The redo log of {record} can't be read: {error.strerror}") from error
    seeds = {known for known in (seed, told and told[0]) if known}
    former = version < FIRST_WITH_SEED
    if not seeds and not former:
        # The tables miss no log: what is there is what was given up, and all of it is in them.
        data = data and b""
    frames = find_frames(data or b"", seeds, former=former)
    last = told[1] if told is not None and seed in {None, told[0]} else None
    return Found(frames, last, data is not None)


def loss(found: Found, applied: int, *, expected: bool) -> Loss | None:
    """What is missing when the tables have all commits up to `applied`; None when nothing is.

    `expected`: the tables say that a gateway was at work with a log.
    """
    highest = max(found.last or 0, found.frames.highest, applied)
    whole = sum(applied < number <= highest for number in found.frames.groups)
    missing = highest - applied - whole
    unknown = found.last is None and (expected or found.frames.damaged)
    if not missing and not unknown:
        return None
    if not found.there:
        why = "the redo log is gone"
    elif found.last is None and expected:
        why = "the file with the last commit's number is gone or damaged"
    elif found.frames.damaged:
        why = "the redo log is damaged"
    else:
        why = "the tables and the redo log don't follow on each other"
    return Loss(applied + 1, highest, missing, not unknown, why)


def runs(found: Found, applied: int) -> Iterator[Group]:
    """The commits that are not in the tables, those that follow on each other together."""
    run = Group(number=applied)
    for number in sorted(number for number in found.frames.groups if number > applied):
        if number != run.number + 1:
            yield run
            run = Group(number=number - 1)
        run.absorb(found.frames.groups[number])
    yield run


def take_in(db: sqlite3.Connection, record: Path, found: Found, *, expected: bool) -> int:
    """Put what was found into the tables, and note what is missing; inside a transaction.

    Returns the number of the last commit. The files stay where they are until `put_away`; a damaged log has
    a second name from here on, which the trail tells.
    """
    applied = schema.applied(db)
    lost = loss(found, applied, expected=expected)
    refused: dict[int, str] = {}
    events = 0
    first, *later = runs(found, applied)
    refused |= schema.put_apart(db, first, {})
    events += len(first.events)
    for run in later:
        unconnected = schema.not_following(db, run)
        refused |= schema.put_apart(db, run, unconnected | refused)
        events += len(run.events)
    if lost is not None:
        kept = _keep(beside(record)) if found.there else None
        numbers = {"first": lost.first, "last": lost.last, "missing": lost.missing}
        trail.damaged(db, {**numbers, "certain": lost.certain, "told": str(lost), "kept": kept})
        logger.error("%s%s", lost, f". The log is kept as {kept}" if kept else "")
    if events:
        logger.info("%d events were in the redo log", events)
    for session_id, reason in refused.items():
        logger.error("The record refused rows of session %d from the redo log: %s", session_id, reason)
    last = max(applied, found.last or 0, found.frames.highest)
    schema.set_applied(db, last)
    return last


def _keep(path: Path) -> str:
    """Give the log another name too; returns it."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    try:
        os.link(path, kept)
    except OSError:
        # A file system without second names.
        shutil.copyfile(path, kept)
        kept.chmod(0o600)
    return kept.name


def put_away(record: Path) -> None:
    """Remove the files: what they told is in the tables."""
    beside(record).unlink(missing_ok=True)
    last_beside(record).unlink(missing_ok=True)
