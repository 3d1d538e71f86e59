"""Finds the rows of each cell in one pass over a session's rows, so that cells can be made one by one.

Pure: rows in, places out. It keeps no outputs: even for gigabytes of them it holds only a few hundred bytes
per cell. ``notebook`` makes cells from the rows at these places.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Protocol

import msgspec

from cellgate.errors import StorageError
from cellgate.record.chain import GENESIS
from cellgate.record.facts import BRANCHED, TELLING, SessionFacts, decode_fact
from cellgate.record.rows import EventRow
from cellgate.wire.events import Branched, Queued, RolledBack
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.codec.decoding import json_decoder

_CELL_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_WIDGETS = frozenset({"comm_open", "comm_msg", "comm_close"})
MOST_WIDGET_BYTES = 64 * MIB
"""Most bytes of rows for the state of a notebook's widgets, all of which is held in memory."""
_GAP = 16
"""Up to so many rows of other executions are read and skipped, which is cheaper than another query."""


class _Shown(msgspec.Struct):
    """The part of an output's event that names its display, and the widget that shows it."""

    display_id: Any = None
    widget: Any = None


_decode = json_decoder(_Shown).decode
_branched = json_decoder(Branched).decode


class Rows(Protocol):
    """A session's rows, which can be read repeatedly."""

    def read(self, first: int, last: int) -> Iterable[EventRow]:
        """Yield the rows from seq `first` to `last`, in order."""


class ListedRows:
    """A session's rows in memory, starting with the first."""

    def __init__(self, rows: list[EventRow]) -> None:
        self._rows = rows

    def read(self, first: int, last: int) -> list[EventRow]:
        """Return the rows in memory; see `Rows.read`."""
        return self._rows[first - 1 : last]


@dataclass(slots=True)
class SurveyPlace:
    """The place of an execution's rows, the id of its cell, and marks to recognise the rows later.

    `count` and `hash`: the number of rows, and the last one's hash, which covers all before it. `repeats`:
    the client's cell whose code ran here again, of which an earlier place has the id; None if none.
    """

    execution: str
    cell_id: str
    first_seq: int
    started: int | None = None
    repeats: str | None = None
    count: int = 0
    hash: bytes = GENESIS
    ranges: list[tuple[int, int]] = field(default_factory=list)
    displays: set[str] = field(default_factory=set)

    def add(self, row: EventRow) -> None:
        """Add one of the execution's rows."""
        self.count += 1
        self.hash = row.hash
        if self.ranges and row.seq - self.ranges[-1][1] <= _GAP:
            self.ranges[-1] = self.ranges[-1][0], row.seq
        else:
            self.ranges.append((row.seq, row.seq))

    def rows(self, source: Rows) -> Iterator[EventRow]:
        """Yield the cell's rows. Raises StorageError unless all are there and the last is unchanged."""
        count = 0
        last = GENESIS
        for first, end in self.ranges:
            for row in source.read(first, end):
                if row.execution == self.execution:
                    count += 1
                    last = row.hash
                    yield row
        if (count, last) != (self.count, self.hash):
            raise StorageError("The record of this session changed while it was read")


class Survey:
    """Add all rows in order, then query. `head` is the last row's hash, `seq` its number.

    `widgets`: the numbers of the rows of widgets, with the outputs that they show; rows above a limit are
    only counted. `processes`: the number of programs started beside the cells. `repeats`: whether a cell of
    a client ran more than once. `seed`: the seed of the session's last branch.

    `before`: the finished survey of the session that this one continues as a branch. `inherited`: the cells
    are shown in a branch's notebook, where only its own cells have the ids that clients chose.
    """

    def __init__(self, before: Survey | None = None, *, inherited: bool = False) -> None:
        self.facts: SessionFacts = SessionFacts(None if before is None else before.facts.files)
        self.inherited = inherited
        self.seq = 0
        self.head = GENESIS
        self.places: dict[str, SurveyPlace] = {}
        self.widgets: list[int] = []
        self.widgets_left_out = 0
        self.processes = 0
        self.repeats = False
        self.seed: int | None = None
        self._widget_bytes: int = 0 if before is None else before._widget_bytes
        self._shown_last: dict[str, int] = {}
        self._shown_in: dict[str, set[str]] = {}
        self._taken: set[str] = set() if before is None else before._taken

    def undoing(self, place: SurveyPlace) -> RolledBack | None:
        """Return the rollback that undid the cell at this place; None if there is none."""
        return self.facts.undoing(place.first_seq if place.started is None else place.started)

    def add(self, row: EventRow) -> None:
        """Add the next row."""
        self.seq = row.seq
        self.head = row.hash
        place = self._place(row) if row.execution is not None else None
        if row.type in TELLING:
            event = decode_fact(row.type, row.body)
            self.facts.apply(event)
            if place is not None and isinstance(event, Queued) and event.waiting_for is msgspec.UNSET:
                self._name(place, event.cell_id)
        else:
            self.facts.touch(row.execution, row.seq)
            if place is not None and row.type == "started":
                place.started = row.seq
            elif row.type in _WIDGETS:
                self._widget(row)
            elif row.type == "process_started":
                self.processes += 1
            elif row.type == BRANCHED:
                self.seed = _branched(row.body).seed
            elif b'"display_id"' in row.body or b'"widget"' in row.body:
                shown = _decode(row.body)
                if shown.widget is not None:
                    self._widget(row)
                elif place is not None:
                    self._display(place, shown.display_id, row.seq)

    def _widget(self, row: EventRow) -> None:
        self._widget_bytes += len(row.body)
        if self._widget_bytes > MOST_WIDGET_BYTES:
            self.widgets_left_out += 1
        else:
            self.widgets.append(row.seq)

    def _place(self, row: EventRow) -> SurveyPlace:
        assert row.execution is not None
        place = self.places.get(row.execution)
        if place is None:
            known = row.execution
            cell_id = known if _CELL_ID.fullmatch(known) else sha256(known.encode()).hexdigest()[:32]
            place = SurveyPlace(known, cell_id, row.seq)
            self.places[known] = place
            self._taken.add(cell_id)
        place.add(row)
        return place

    def _name(self, place: SurveyPlace, cell_id: Any) -> None:
        """Use a client's own id of the cell, if it is valid and no other cell has it."""
        fits = not self.inherited and isinstance(cell_id, str) and _CELL_ID.fullmatch(cell_id)
        if not fits:
            return
        if cell_id in self._taken:
            place.repeats = cell_id
            self.repeats = True
        else:
            place.cell_id = cell_id
            self._taken.add(cell_id)

    def _display(self, place: SurveyPlace, display_id: Any, seq: int) -> None:
        if display_id is not None:
            self._shown_last[display_id] = seq
            self._shown_in.setdefault(display_id, set()).add(place.execution)
            place.displays.add(display_id)

    def changed_elsewhere(self, place: SurveyPlace) -> Iterator[tuple[str, int]]:
        """Return the displays that the cell shares with others, each with its last event's number."""
        for display_id in sorted(place.displays):
            if len(self._shown_in[display_id]) > 1:
                yield display_id, self._shown_last[display_id]

    def in_order(self) -> Iterator[SurveyPlace]:
        """Return places in the queue's order; those that started swap into starting order."""
        begun = sorted((place.started, place.execution) for place in self.places.values() if place.started)
        following = iter(begun)
        for place in self.places.values():
            yield place if place.started is None else self.places[next(following)[1]]
