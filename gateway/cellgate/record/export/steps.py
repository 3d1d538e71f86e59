"""Reads a session from the database and writes it in parts: notebook, widgets, audit trail and its check.

All of this runs in a separate thread (`Reads.in_steps`): it reads a whole session, but holds only one cell in
memory. It reads only rows up to a given head, so an export shows one moment, however long it takes. Its steps
are short, so the database's log can be checkpointed in between. Rows never change and are removed only by a
purge of the whole session, so a missing row ends the export. ``bundle`` adds a bundle's other files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from cellgate.errors import RecordGone, StorageError
from cellgate.record import chain
from cellgate.record.export.notebook import Export, Notebook, NotebookPart
from cellgate.record.export.survey import Survey
from cellgate.record.keys import SigningKey
from cellgate.record.rows import EventRow, SessionRow
from cellgate.record.store.interface import Steps
from cellgate_kernels.codec.encoding import encode

PART = 256 * 1024
"""Least bytes of each part except the last."""


class Reading:
    """The rows of a session up to row `until`, whose hash is `head`. As `Rows` they are complete or an error.

    `ancestors`: the readings of the sessions that this one continues, oldest first.
    """

    def __init__(
        self, steps: Steps, session: SessionRow, until: int, head: bytes, ancestors: Sequence[Reading] = ()
    ) -> None:
        self.session = session
        self.ancestors = ancestors
        self.until = until
        self.head = head
        self.steps = steps

    def read(self, first: int, last: int) -> Iterator[EventRow]:
        """Yield rows from seq `first` to `last`, in order. Raises RecordGone or StorageError for a gap."""
        due = first
        for row in self._steps(first, last):
            if row.seq != due:
                break
            due += 1
            yield row
        if due <= last:
            self.check_there()
            what_to_do = "`cellgate verify --data-dir` tells more"
            raise StorageError(f"Row {due} of this session's record is missing; {what_to_do}")

    def all(self) -> Iterator[EventRow]:
        """Yield all rows, complete as by `read`. Raises StorageError if the last one has changed."""
        head = chain.GENESIS
        for row in self.read(1, self.until):
            head = row.hash
            yield row
        if head != self.head:
            raise StorageError("The record of this session changed while it was read")

    def as_found(self) -> Iterator[EventRow]:
        """Return the rows that exist, for callers that look for gaps themselves."""
        return self._steps(1, self.until)

    def _steps(self, first: int, last: int) -> Iterator[EventRow]:
        after = first - 1
        while after < last:
            rows = self.steps.events(self.session.id, after, last)
            if not rows:
                return
            yield from rows
            after = rows[-1].seq

    def check_there(self) -> None:
        """Raise RecordGone when the session has been purged since the reading started."""
        if not self.steps.is_there(self.session.id):
            raise RecordGone("The record of this session was purged while it was read")


def read_notebook(reading: Reading, export: Export) -> Notebook:
    """Return the notebook of all rows. Raises RecordGone and StorageError if some no longer exist."""
    parts: list[NotebookPart] = []
    before: Survey | None = None
    for each in (*reading.ancestors, reading):
        before = survey = Survey(before, inherited=each is not reading)
        for row in each.all():
            survey.add(row)
        parts.append(NotebookPart(each.session.key, survey, each))
    own = parts.pop()
    return Notebook(reading.session, own.survey, reading, export, parts)


def notebook_parts(reading: Reading, export: Export, key: SigningKey | None) -> Iterator[bytes]:
    """Return the sealed notebook as a file's bytes."""
    pieces = (part.encode() for part in read_notebook(reading, export).write(key))
    return in_parts(pieces, reading.steps.go_on)


def widget_parts(reading: Reading, export: Export) -> Iterator[bytes]:
    """Return the last states of all widgets as JSON: the wire contract's `SessionWidgets`."""
    return in_parts(_widgets(reading, export), reading.steps.go_on)


def _widgets(reading: Reading, export: Export) -> Iterator[bytes]:
    states = read_notebook(reading, export).widgets()
    yield b'{"seq":%d,"closed":%s,"widgets":{' % (reading.until, encode(states.closed))
    separator = b""
    for comm_id, model in states.models().items():
        yield b"%s%s:%s" % (separator, encode(comm_id), encode(model))
        separator = b","
    yield b"}}"


def audit_parts(reading: Reading) -> Iterator[bytes]:
    """Return the rows as NDJSON: each line has a row's hash and its exact bytes, see `audit_line`."""
    return in_parts(map(audit_line, reading.all()), reading.steps.go_on)


def audit_line(row: EventRow) -> bytes:
    """Return the row as a line: ``{"hash":"<64 hex digits>","row":<the bytes that were hashed>}``."""
    return b'{"hash":"%s","row":%s}\n' % (row.hash.hex().encode(), row.body)


def check(reading: Reading) -> chain.Verification:
    """Return whether the chain is valid up to its head. Raises RecordGone: a purge is no damage."""
    rows = ((row.seq, row.body, row.hash) for row in reading.as_found())
    found = chain.verify(rows, head=reading.head)
    if not found.valid:
        reading.check_there()
    elif reading.steps.origin_problem(reading.session) is not None:
        # The chain is valid, but the row before its first one is missing.
        return chain.Verification(valid=False, rows=0, head=chain.GENESIS, first_bad=1)
    return found


def in_parts(pieces: Iterator[bytes], going_on: Callable[[], None]) -> Iterator[bytes]:
    """Yield the same bytes in parts of at least `PART`; stop when `going_on` raises."""
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        going_on()
        held.append(piece)
        size += len(piece)
        if size >= PART:
            yield b"".join(held)
            held.clear()
            size = 0
    yield b"".join(held)
