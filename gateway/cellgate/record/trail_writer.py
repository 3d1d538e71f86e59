"""Writes entries to the audit trail while the gateway serves: accesses to others' sessions, and refusals.

Noting takes a microsecond, never waits and never fails. A task writes the notes a moment later, many in one
transaction, and tries again while the record accepts nothing. Equal notes, as in a flood of wrong tokens,
make one entry at the first time, and one with the count of the others when their minute is over. At most
`MOST_REFUSALS` different refusals a minute have entries of their own; the rest share one. Notes without room
are counted in an entry of their own. It knows no HTTP: ``http.base`` reports the requests.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from types import MappingProxyType

from cellgate.errors import StorageError
from cellgate.record.store.interface import RecordStore
from cellgate.record.trail import ACCESS, LOST, REFUSED, NewEntry
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

WRITE_SECONDS = 0.25
RETRY_SECONDS = 5.0
WINDOW_SECONDS = 60.0
MOST_REFUSALS = 100
"""Most different refusals that have entries of their own in a window."""
MOST_KEPT = 4096
"""Most entries that may wait for the record, and most different notes that are counted in a window."""
MOST_TEXT = 200
"""Most characters of a text in a note."""

OTHERS = (("reason", "others"),)
"""Refusals beyond `MOST_REFUSALS`."""

NOTHING: Mapping[str, str] = MappingProxyType({})

Fields = tuple[tuple[str, str], ...]
Key = tuple[str, Fields]


def _now() -> str:
    return datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


@dataclass(slots=True)
class _Repeats:
    """How often a note was repeated in the window, and when."""

    count: int = 0
    first_at: str = ""
    last_at: str = ""

    def add(self, moment: str) -> None:
        self.first_at = self.first_at or moment
        self.last_at = moment
        self.count += 1


class Notes:
    """The notes of a window of time, and their entries. Pure but for its clocks."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, moment: Callable[[], str] = _now) -> None:
        self._clock = clock
        self._moment = moment
        self._window_ends = 0.0
        self._repeats: dict[Key, _Repeats] = {}
        self._refusals = 0
        self._waiting: list[NewEntry] = []
        self._lost = 0

    def add(self, kind: str, fields: dict[str, str], first: Mapping[str, str] = NOTHING) -> None:
        """Note an occurrence now. Empty fields are left out.

        Notes with the same `fields` are repeats of each other; only the first one's entry has its `first`.
        """
        self._turn()
        moment = self._moment()
        key = kind, _short(fields)
        known = self._repeats.get(key)
        if known is None and kind == REFUSED and self._refusals >= MOST_REFUSALS:
            key = REFUSED, OTHERS
            first = NOTHING
            known = self._repeats.get(key)
        if known is not None:
            known.add(moment)
            return
        if len(self._repeats) < MOST_KEPT:
            self._repeats[key] = _Repeats()
            self._refusals += kind == REFUSED
        self._keep(_entry((kind, key[1] + _short(first)), 1, moment, moment))

    def take(self, *, all_of_it: bool = False) -> list[NewEntry]:
        """Return the entries to write now; with `all_of_it` also those of the current window."""
        if all_of_it:
            self._window_ends = 0.0
        self._turn()
        entries = self._waiting
        self._waiting = []
        if self._lost:
            entries.append(NewEntry(LOST, {"count": self._lost}))
            self._lost = 0
        return entries

    def put_back(self, entries: list[NewEntry]) -> None:
        """Put back entries that could not be written, to be written first."""
        later = self._waiting
        self._waiting = []
        for entry in (*entries, *later):
            if entry.type == LOST:
                self._lost += entry.fields["count"]
            else:
                self._keep(entry)

    def _turn(self) -> None:
        """Begin a new window if it is time, and add entries with the last one's counts."""
        now = self._clock()
        if now < self._window_ends:
            return
        self._window_ends = now + WINDOW_SECONDS
        for key, again in self._repeats.items():
            if again.count:
                self._keep(_entry(key, again.count, again.first_at, again.last_at))
        self._repeats = {}
        self._refusals = 0

    def _keep(self, entry: NewEntry) -> None:
        if len(self._waiting) < MOST_KEPT:
            self._waiting.append(entry)
        else:
            self._lost += entry.fields["count"]


def _short(fields: Mapping[str, str]) -> Fields:
    return tuple((name, value[:MOST_TEXT]) for name, value in fields.items() if value)


def _entry(key: Key, count: int, first_at: str, last_at: str) -> NewEntry:
    kind, fields = key
    return NewEntry(kind, {**dict(fields), "count": count, "first_at": first_at, "last_at": last_at})


class TrailWriter:
    """Writes notes into a journal's audit trail. `start` it once, and `close` it before the journal."""

    def __init__(self, journal: RecordStore) -> None:
        self._journal = journal
        self._notes = Notes()
        self._tasks = Supervisor()
        # Not cancelled by `close`: entries that are being written must not be written again.
        self._writes = Supervisor()
        self._is_failing = False

    def accessed(self, fields: dict[str, str]) -> None:
        """Note an access to somebody else's sessions."""
        self._notes.add(ACCESS, fields)

    def refused(self, fields: dict[str, str], first: Mapping[str, str]) -> None:
        """Note a refusal; see `Notes.add`."""
        self._notes.add(REFUSED, fields, first)

    def start(self) -> None:
        """Write notes from now on."""
        self._tasks.repeat(self._write, "write the audit trail", pause=RETRY_SECONDS)

    async def _write(self) -> float:
        entries = self._notes.take()
        if not entries:
            return WRITE_SECONDS
        await self._writes.complete(self._put(entries), "entries of the audit trail")
        return RETRY_SECONDS if self._is_failing else WRITE_SECONDS

    async def _put(self, entries: list[NewEntry]) -> None:
        try:
            await self._journal.add_to_trail(entries)
        except StorageError as error:
            if not self._is_failing:
                logger.error("The audit trail can't be written for now: %s", error.message)
            self._is_failing = True
            self._notes.put_back(entries)
        else:
            self._is_failing = False

    async def close(self) -> None:
        """Write the remaining entries, and stop."""
        await self._tasks.cancel()
        await self._writes.finished()
        entries = self._notes.take(all_of_it=True)
        if entries:
            await self._put(entries)
        if left := len(self._notes.take()):
            logger.error("%d entries of the audit trail could not be written", left)
