"""A gateway was killed, and something happens to one of its files: nothing is lost without a word.

The oracle: each acknowledged row is either there after the next start, or ``cellgate verify`` says that
something is missing or damaged, before the start and after it. And a start fails, if at all, with an error
that says what to do.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import strategies as st

from cellgate.errors import StorageError
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate_kernels.base.errors import InvalidInput
from tests.fuzz.budget import Fuzz
from tests.pure.record.conftest import all_events
from tests.pure.record.recorded import Recorded, image, text
from tests.pure.record.test_redo import crashed, synced

NAME = "record.sqlite"
FILES = tuple(f"{NAME}{suffix}" for suffix in ("", "-wal", ".redo", ".last"))


@dataclass(frozen=True)
class Killed:
    """The files as they were at the kill, and a moment earlier, and the rows that were acknowledged."""

    files: dict[str, bytes]
    earlier: dict[str, bytes]
    rows: dict[int, list[bytes]]


@dataclass(frozen=True)
class Change:
    """What happens to a file. `where` is a part of its length."""

    kind: str
    where: float
    length: int
    content: bytes

    def of(self, before: bytes, earlier: bytes) -> bytes | None:
        """The file afterwards, None when it is gone."""
        used = len(before.rstrip(b"\0")) or 1
        start = int(self.where * used)
        return CHANGED[self.kind](self, Content(before, earlier, start))

    def flipped(self, file: Content) -> bytes:
        changed = bytearray(file.before)
        changed[min(file.start, len(changed) - 1)] ^= 1 << (self.length % 8)
        return bytes(changed)


@dataclass(frozen=True)
class Content:
    """A file and the place in it."""

    before: bytes
    earlier: bytes
    start: int

    @property
    def head(self) -> bytes:
        return self.before[: self.start]

    def after(self, length: int) -> bytes:
        return self.before[self.start + length :]


CHANGED: dict[str, Callable[[Change, Content], bytes | None]] = {
    "removed": lambda change, file: None,
    "earlier": lambda change, file: file.earlier,
    "cut": lambda change, file: file.head,
    "zeros": lambda change, file: file.head.ljust(len(file.before), b"\0"),
    "hole": lambda change, file: file.head + bytes(change.length) + file.after(change.length),
    "doubled": lambda change, file: file.before[: file.start + change.length] + file.after(0),
    "left out": lambda change, file: file.head + file.after(change.length),
    "appended": lambda change, file: file.before + change.content,
    "moved": lambda change, file: file.after(change.length) + file.before[: file.start + change.length],
    "replaced": lambda change, file: change.content,
    "overwritten": lambda change, file: file.head + change.content + file.after(len(change.content)),
    "flipped": Change.flipped,
}
CHANGES = st.builds(
    Change,
    st.sampled_from((*CHANGED, "flipped", "flipped", "cut")),
    st.floats(0, 1, exclude_max=True),
    st.one_of(st.integers(1, 64), st.sampled_from((512, 4096, 8192))),
    st.binary(min_size=1, max_size=64),
)


async def make(folder: Path) -> Killed:
    """Some sessions with rows of all kinds, a part of them in the redo log alone."""
    path = folder / "data" / NAME
    journal = await Journal.open(path)
    sessions = [Recorded(journal, key) for key in ("one", "two", "three")]
    for number in range(4):
        for session in sessions:
            session.cell(f"{number}", text(f"{number}" * 50), image())
        await journal.commit()
    sessions[2].end()
    await journal.commit()
    purged = await journal.purge(sessions[2].row.id, by="ada", reason="test")
    assert purged is not None
    await purged.erased
    for number in range(4):
        sessions[number % 2].cell(f"{number}", text("later"))
        await journal.commit()
    await journal.applied()
    await synced(journal)
    earlier = crashed(path, folder / "earlier")
    for number in range(8):
        sessions[number % 2].cell(f"{number}", text("in the log"))
        await journal.commit()
        if number == 3:
            await journal.applied()
            await synced(journal)
    at_the_kill = crashed(path, folder / "killed")
    rows = {
        session.row.id: [row.body for row in await all_events(journal, session.row.id)]
        for session in sessions[:2]
    }
    await journal.close()
    return Killed(read(at_the_kill), read(earlier), rows)


def read(record: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in record.parent.iterdir() if file.name in FILES}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Killed:
    found = asyncio.run(make(tmp_path_factory.mktemp("fuzz")))
    assert set(found.files) == set(FILES)
    return found


def told(record: Path) -> bool:
    """Whether the check finds something."""
    try:
        return not all(found.valid for found in check_record(record))
    except (StorageError, InvalidInput):
        # The latter of an empty file with none of the others beside it: nothing says that it was a record.
        return True


async def rows_after_a_start(record: Path) -> dict[int, list[bytes]]:
    """What is there once a gateway has started, read as it reads it. Raises StorageError."""
    journal = await Journal.open(record)
    try:
        for row in await journal.reads.unfinished_sessions():
            await journal.reads.unfinished_executions(row.id)
            await journal.reads.last_event(row.id)
        await journal.reads.session_folders()
        found = {
            session_id: [row.body for row in await all_events(journal, session_id)] for session_id in (1, 2)
        }
        Recorded(journal, "new").cell("1", text("1"))
        await journal.commit()
        await journal.applied()
    finally:
        await journal.close()
    return found


def started(record: Path) -> dict[int, list[bytes]] | None:
    """As `rows_after_a_start`, None when the start fails as it may."""
    try:
        return asyncio.run(rows_after_a_start(record))
    except StorageError as error:
        return None if error.message else {}


def put(killed: Killed, changes: dict[str, Change]) -> Path:
    folder = Path(tempfile.mkdtemp(prefix="fuzz-journal-"))
    for name, content in killed.files.items():
        after: bytes | None = content
        if name in changes:
            after = changes[name].of(content, killed.earlier.get(name, b""))
        if after is not None:
            (folder / name).write_bytes(after)
    return folder / NAME


def test_whatever_happens_to_one_file_nothing_is_lost_without_a_word(fuzz: Fuzz, killed: Killed) -> None:
    def check(name: str, change: Change) -> None:
        record = put(killed, {name: change})
        try:
            before = told(record)
            if not record.exists():
                return
            found = started(record)
            if found is None:
                assert before or told(record), "a start fails, and the check finds nothing"
            elif found != killed.rows:
                assert before, "rows are missing, and the check before the start finds nothing"
                assert told(record), "rows are missing, and the check after the start finds nothing"
        finally:
            shutil.rmtree(record.parent)

    fuzz.run(check, st.sampled_from((*FILES, FILES[2])), CHANGES, examples=60)


def test_whatever_happens_to_several_files_a_start_says_what_is_wrong(fuzz: Fuzz, killed: Killed) -> None:
    """All of them together may look like another record; an error is still one of ours."""

    def check(changes: dict[str, Change]) -> None:
        record = put(killed, changes)
        try:
            told(record)
            started(record)
            told(record)
        finally:
            shutil.rmtree(record.parent)

    fuzz.run(check, st.dictionaries(st.sampled_from(FILES), CHANGES, min_size=2), examples=25)
