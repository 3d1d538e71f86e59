"""Copies of a record: made from one snapshot while a gateway writes, and restored to a data folder.

A copy is a single file in the newest schema with all rows that were committed when it was started, including
rows only in the redo log. The caller checks the copy before it gets its name. Nothing here talks to a
gateway; it reads like ``check``.
"""

from __future__ import annotations

import os
import re
import sqlite3
import stat
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path

from cellgate.errors import RecordDamaged, StorageError, StorageFull, not_written
from cellgate.record.store.sqlite import purge, salvage, schema
from cellgate.record.store.sqlite.drafts import draft_folder
from cellgate.record.store.sqlite.location import RECORD, existing, mode_of
from cellgate.record.store.sqlite.lock import RecordLock
from cellgate.record.store.sqlite.migrations import version_of
from cellgate.record.store.sqlite.opening import damage_told, open_copy
from cellgate.record.store.sqlite.redo import beside, last_beside, read_beside
from cellgate_kernels.base.errors import in_words

STEP_PAGES = 1024
_MOST_NAMES = 1000
_NAMED_BY_TIME = re.compile(r"record-\d{8}T\d{6}Z\.sqlite3")

Progress = Callable[[int, int], None]


class Copy:
    """A finished copy, of `bytes` bytes in `file`, without a name yet: removed unless it is published."""

    def __init__(self, file: Path, target: Path) -> None:
        self.file = file
        self.bytes = file.stat().st_size
        self._target = target

    def publish(self, *, replace: bool, aside: bool) -> None:
        """Give the copy its name. `replace`: even if that is taken; `aside`: by a file to be renamed."""
        with set_aside(self._target, "replaced") if aside else nullcontext():
            _publish(self.file, self._target, replace=replace)


@contextmanager
def backing_up(record: Path, target: Path, *, replace: bool, progress: Progress) -> Iterator[Copy]:
    """Copy a record that a gateway may be using; only its owner can read the copy, to be `target`.

    `progress` is called with the pages copied and the pages in all. Raises StorageError, and leaves no file,
    if the copy can't be made, or if `target` exists and must not be replaced.
    """
    record = existing(record)
    _check_target(record, target, replace=replace)
    try:
        with drafting(target) as draft:
            _make(record, draft, progress)
            yield Copy(draft, target)
    except RecordDamaged as error:
        raise RecordDamaged(f"The record {record}", error.why) from error


def _check_target(record: Path, target: Path, *, replace: bool) -> None:
    """Raise StorageError unless a copy may get this name."""
    if not stat.S_ISDIR(mode_of(target.parent)):
        raise StorageError(f"There is no folder {target.parent}; make it first, or mount its disk")
    # Such names beside the record belong to it, its logs or its lock, or could be mistaken for one.
    beside_record = target.parent.resolve() == record.parent.resolve()
    if beside_record and target.name.startswith(record.name):
        raise StorageError(f"{target} is the record, or a file of it; choose another name")
    there = mode_of(target)
    if not replace and os.path.lexists(target):
        raise StorageError(f"{target} exists; choose another name, or replace it with --force")
    if there and not stat.S_ISREG(there):
        raise StorageError(f"{target} is not a file that a copy could replace; choose another name")


def named_by_time(folder: Path) -> Path:
    """Return the name for a copy made now in a folder of copies; names sort by time."""
    return folder / f"record-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}.sqlite3"


def remove_old(folder: Path, keep: int) -> list[Path]:
    """Remove the oldest copies with names from `named_by_time`, all but the newest `keep`; return them.

    Raises StorageError when one can't be removed; older ones are gone then.
    """
    try:
        copies = sorted(file for file in folder.iterdir() if _NAMED_BY_TIME.fullmatch(file.name))
        old = [file for file in copies if stat.S_ISREG(file.lstat().st_mode)][:-keep]
        for file in old:
            file.unlink(missing_ok=True)
    except OSError as error:
        raise StorageError(f"The copy is made, but old ones can't be removed: {in_words(error)}") from error
    return old


@contextmanager
def restoring(source: Path, record: Path, *, replace: bool, progress: Progress) -> Iterator[Copy]:
    """Copy the copy at `source`, to become the record of a data folder that no gateway uses.

    Raises StorageError, and leaves the folder as it is, also for a record that is not to be replaced.
    """
    source = existing(source, "file")
    lock = RecordLock(record)
    record = lock.record
    try:
        if os.path.lexists(record) and not replace:
            raise StorageError(f"There is a record at {record}; --force sets it aside and replaces it")
        with drafting(record) as draft:
            _make(source, draft, progress)
            yield Copy(draft, record)
    except RecordDamaged as error:
        raise StorageError(
            f"{source} is not a backup of a record, or is damaged ({error.why}); restore another one"
        ) from error
    finally:
        lock.release()


@contextmanager
def drafting(target: Path) -> Iterator[Path]:
    """Yield an empty file for a copy of this name, on its disk; remove it and its siblings at the end."""
    full = f"There is no space left for {target}; free some on its disk"
    try:
        with draft_folder(target.parent) as folder:
            draft = folder / RECORD
            os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            yield draft
    except StorageFull as error:
        # This is SQLite's error, which names the record; but here only the draft is written.
        raise StorageFull(full) from error
    except OSError as error:
        raise not_written(error, full, f"{target} can't be written") from error


def _make(source: Path, draft: Path, progress: Progress) -> None:
    """Copy the record and bring the copy up to date. Raises StorageError and OSError."""
    try:
        _copy(source, draft, progress)
        _finish(draft)
    except sqlite3.Error as error:
        raise schema.storage_error(error, source) from error


def _copy(source: Path, draft: Path, progress: Progress) -> None:
    """Copy the redo log and the tables, the log a moment earlier: together they miss nothing."""
    with closing(schema.open_reader(source)) as db, damage_told(f"The record {source}"):
        if not version_of(db, source, older=True):
            raise StorageError(f"{source} is no record")
        # The last number is read before the log, which then has all commits up to that number.
        places = last_beside(source), beside(source)
        files, _ = salvage.one_moment(db, source, lambda _: [*map(read_beside, places)], "try again")
        with closing(sqlite3.connect(draft, isolation_level=None)) as copy:
            db.backup(copy, pages=STEP_PAGES, progress=lambda _, left, total: progress(total - left, total))
        db.execute("ROLLBACK")
    for path, content in zip((last_beside(draft), beside(draft)), files, strict=True):
        if content is not None:
            path.write_bytes(content)


def _finish(draft: Path) -> None:
    """Bring the copy up to date, absorb the log, and finish purges."""
    with closing(open_copy(draft)) as db:
        purge.finish_all(db)
    descriptor = os.open(draft, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _publish(draft: Path, target: Path, *, replace: bool) -> None:
    """Give the finished copy its name. Overwrites another file only if that is to be replaced."""
    if replace:
        draft.replace(target)
    else:
        try:
            os.link(draft, target)
        except FileExistsError as error:
            raise StorageError(f"{target} exists; choose another name, or replace it with --force") from error
        except OSError:
            # A file system without hard links.
            if os.path.lexists(target):
                raise StorageError(f"{target} exists; choose another name") from None
            draft.rename(target)
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


@contextmanager
def set_aside(record: Path, why: str) -> Iterator[Path]:
    """Rename a record and all its files, with the word `why` and the time; yield the new path.

    If an error is raised inside, its files get their names back. Raises OSError.
    """
    kept = _unused(f"{record}.{why}-{datetime.now(UTC).strftime('%Y%m%dT%H%M%SZ')}")
    moved: list[tuple[Path, Path]] = []
    try:
        for suffix in ("", "-wal", "-journal", ".redo", ".last"):
            was, becomes = record.with_name(record.name + suffix), kept.with_name(kept.name + suffix)
            with suppress(FileNotFoundError):
                was.rename(becomes)
                moved.append((was, becomes))
        with suppress(FileNotFoundError):
            record.with_name(record.name + "-shm").unlink()
        yield kept
    except BaseException:
        # The record itself goes last: it is never without the rows that only its logs have.
        for was, becomes in reversed(moved):
            becomes.rename(was)
        raise


def _unused(name: str) -> Path:
    """Return an unused path with this name, and a number if need be."""
    names = (Path(f"{name}{more}") for more in ("", *(f"-{number}" for number in range(2, _MOST_NAMES))))
    return next(path for path in names if not os.path.lexists(path))
