"""Recovers rows from the redo log of a gateway that did not end in order, and finds missing ones.

A separate file holds the log's last number, and the tables note whether there must be a log, and its seed. So
a number that is neither in the tables nor in a whole frame is missing: it is counted and noted in the audit
trail, and the damaged log is kept under another name. The rest is used as far as possible: all frames up to
the first gap, and after it the rows of sessions whose chain they continue. ``redo`` writes the log,
``opening`` decides when it is read.
"""

from __future__ import annotations

import logging
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from cellgate.errors import StorageError
from cellgate.record.store.backlog import Group
from cellgate.record.store.sqlite import schema, trail
from cellgate.record.store.sqlite.redo import Frames, beside, find_frames, last_beside, read_beside, read_last
from cellgate.record.trail import DAMAGED
from cellgate_kernels.base.errors import in_brief

T = TypeVar("T")

logger = logging.getLogger(__name__)

ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class SalvagedLog:
    """The files beside a record. `last`: the last number according to them, None if unknown."""

    frames: Frames
    last: int | None
    there: bool


@dataclass(frozen=True, slots=True)
class SalvageLoss:
    """The number `missing` of the commits `first` to `last`; `certain`: whether no others are missing."""

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


def look(record: Path, seed: bytes | None) -> SalvagedLog:
    """Read the files beside `record`, whose tables expect a log with this seed.

    For a record in use, see `one_moment`. Raises StorageError for files that can't be read and for rows of
    another version.
    """
    try:
        told = read_last(last_beside(record))
        data = read_beside(beside(record))
    except OSError as error:
        raise StorageError(f"The redo log of {record} can't be read: {in_brief(error)}") from error
    there = data is not None
    told_seed, told_last = told or (b"", None)
    seeds = {each for each in (seed, told_seed) if each}
    last = told_last if seed in {None, told_seed} else None
    if data is None or not seeds:
        # Without a seed the tables expect no log: an existing one was retired, and they have all its rows.
        data = b""
    return SalvagedLog(find_frames(data, seeds), last, there)


def one_moment(
    db: sqlite3.Connection, record: Path, read: Callable[[bytes | None], T], instead: str
) -> tuple[T, bytes | None]:
    """Read the files beside a record, then begin a snapshot of its tables, so that no moving row is missed.

    `read` gets the seed of the log that the tables expect; the seed is returned too. Raises StorageError,
    which says what to do `instead`.
    """
    for _ in range(ATTEMPTS):
        seed = schema.expected_log(db)
        found = read(seed)
        db.execute("BEGIN")
        if schema.expected_log(db) == seed:
            return found, seed
        # A gateway has started or ended in between: the log does not belong to these tables.
        db.execute("ROLLBACK")
    raise StorageError(f"Gateways keep starting and stopping with {record}; {instead}")


def loss(found: SalvagedLog, applied: int, *, expected: bool) -> SalvageLoss | None:
    """Return the loss if the tables have all commits up to `applied`; None if nothing is missing.

    `expected`: whether the tables say that a gateway was using a log.
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
    return SalvageLoss(applied + 1, highest, missing, not unknown, why)


def runs(found: SalvagedLog, applied: int) -> Iterator[Group]:
    """Yield the commits that are not in the tables, consecutive ones together."""
    run = Group(number=applied)
    for number in sorted(number for number in found.frames.groups if number > applied):
        if number != run.number + 1:
            yield run
            run = Group(number=number - 1)
        run.absorb(found.frames.groups[number])
    yield run


def take_in(db: sqlite3.Connection, record: Path, found: SalvagedLog, *, expected: bool) -> int:
    """Put the found commits into the tables, and note the missing ones; inside a transaction.

    Returns the number of the last commit. The files stay in place until `put_away`; a damaged log also gets a
    second name, which is noted in the trail.
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
        trail.append(db, DAMAGED, {**numbers, "certain": lost.certain, "told": str(lost), "kept": kept})
        logger.error("%s%s", lost, f". The log is kept as {kept}" if kept else "")
    if events:
        logger.info("%d events were in the redo log", events)
    for session_id, reason in refused.items():
        logger.error("The record refused rows of session %d from the redo log: %s", session_id, reason)
    last = max(applied, found.last or 0, found.frames.highest)
    schema.set_applied(db, last)
    return last


def _keep(path: Path) -> str:
    """Give the log a second name; return that."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    kept = path.with_name(f"{path.name}.damaged-{stamp}")
    try:
        os.link(path, kept)
    except OSError:
        # A file system without hard links.
        shutil.copyfile(path, kept)
        kept.chmod(0o600)
    return kept.name


def put_away(record: Path) -> None:
    """Remove the files: their rows are in the tables."""
    beside(record).unlink(missing_ok=True)
    last_beside(record).unlink(missing_ok=True)
