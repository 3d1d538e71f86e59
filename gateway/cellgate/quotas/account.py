"""A principal's present use, compared with its quotas before work begins.

Everything with a quota is reserved in one step without waiting, so a hundred requests at once can't exceed
it, and is released exactly once. An `Account` knows amounts, no sessions and no requests, and never refuses a
principal without a quota; ``usage`` has the accounts of all principals. In a cluster it has of cells and of a
minute's requests what this gateway is allotted, and asks for more ahead.

Cells above the quota `running` wait in line. Each session has at most one cell in line, so that sessions take
turns, in the order in which these cells became the next ones of their sessions.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from cellgate.fairness.minute import Minute
from cellgate.fairness.pace import Pace
from cellgate.quotas.allotment import Allotment, Five, Flow
from cellgate.quotas.quotas import Quotas
from cellgate.quotas.session_sums import SessionSums, Told

COUNTED: Final = (
    "sessions",
    "running",
    "queued",
    "memory",
    "cpus",
    "disk",
    "record",
    "requests_per_minute",
    "bytes_per_minute",
    "network_bytes_per_minute",
)
"""The quotas whose use is counted; the others are limits of single requests."""

PASSED = "bytes were sent and received in the last minute"
QUEUE_RETRY_SECONDS = 1.0

Clock = Callable[[], float]


def nobody(_: str) -> None:
    """Tell nobody of a refusal, or of a change."""


@dataclass(frozen=True, slots=True)
class Use:
    """The use of one quota. `limit` None: no limit; `used` None: not measured."""

    limit: float | None
    used: float | None


class _State(Enum):
    QUEUED = auto()
    IN_LINE = auto()
    RUNNING = auto()
    OVER = auto()


class CellPlace:
    """One cell's place among those of its principal: queued, then in line, then running, then over.

    `leave` it when the cell has ended, however it ended.
    """

    __slots__ = ("_account", "_state", "_turn")

    def __init__(self, account: Account, state: _State) -> None:
        self._account = account
        self._state = state
        self._turn: Callable[[], None] | None = None

    @property
    def running(self) -> bool:
        """Whether it may run."""
        return self._state is _State.RUNNING

    def begin(self, turn: Callable[[], None]) -> bool:
        """Return whether the cell may run now. If not, it joins the line, and `turn` is called later."""
        if self._state is _State.QUEUED:
            self._turn = turn
            self._account._stand_in_line(self)
        return self._state is _State.RUNNING

    def leave(self) -> None:
        """Release the ended cell's place; a repeat does nothing."""
        self._account._leave(self)


class Account(SessionSums):
    """One principal's use: never more than its quotas, unless one was lowered, or after a restart."""

    def __init__(
        self, name: str, quotas: Quotas, clock: Clock, refused: Told, changed: Told = nobody
    ) -> None:
        super().__init__(name, quotas, refused, changed)
        self.publishing = asyncio.Lock()
        """Held while other gateways are told of its use."""
        self.allotment: Allotment | None = None
        """What this gateway of a cluster may use of its quotas; None without a cluster: all."""
        self.lacking: Told = nobody
        """Has the allotment looked at soon: there may be too little of it, or others lack some."""
        self._clock = clock
        self._running = 0
        self._queued = 0
        self._requests = Minute()
        self._bytes = Minute()
        self._network = Minute()
        self._network_pace = Pace()
        # Any place may leave, not only the first.
        self._line: OrderedDict[CellPlace, None] = OrderedDict()

    @property
    def idle(self) -> bool:
        """Whether a new account would be equal."""
        now = self._clock()
        used = self.sums.sessions or self._running or self._queued
        lately = self._requests.used(now) or self._bytes.used(now) or self._network.used(now)
        limit = self.quotas.network_bytes_per_minute
        allotment = self.allotment
        is_allotted = allotment is not None and (allotment.known or allotment.exchanging.locked())
        behind = limit is None or self._network_pace.is_behind(limit, now)
        return behind and not (used or lately or is_allotted)

    def flows(self) -> Five:
        """Return what is used here of the quotas that are allotted, in the order of `Flow`."""
        now = self._clock()
        passed = self._requests.used(now), self._bytes.used(now), self._network.used(now)
        return self._running, self._queued, *passed

    @property
    def without_turn(self) -> int:
        """The number of cells that wait in line for their turn."""
        return len(self._line)

    def uses(self) -> dict[str, Use]:
        """Return the use of every quota, by its name."""
        sums = self.sums.plus(self.of_others)
        running, queued, requests, passed, network = (
            self._used_everywhere(flow, used) for flow, used in zip(Flow, self.flows(), strict=True)
        )
        used: Mapping[str, float | None] = {
            "sessions": sums.sessions,
            "running": running,
            "queued": queued,
            "memory": sums.memory,
            "cpus": sums.cpus,
            "disk": sums.disk,
            "record": self.record,
            "requests_per_minute": requests,
            "bytes_per_minute": passed,
            "network_bytes_per_minute": network,
        }
        return {name: Use(getattr(self.quotas, name), used[name]) for name in COUNTED}

    # Cells

    def enter(self, *, at_once: bool) -> CellPlace:
        """Return a place for a new cell: running if it could begin `at_once` and may, otherwise queued.

        Raises PrincipalQuotaExceededForNow if it would have to wait and too many cells wait already.
        """
        if at_once and self._has_turn():
            self._running += 1
            return CellPlace(self, _State.RUNNING)
        limit = self.quotas.queued
        if limit is not None and self._queued >= self._most_at_once(Flow.QUEUED, limit):
            said = "executions wait already: send the next when one has finished"
            self._want(Flow.QUEUED, 1)
            used = self._used_everywhere(Flow.QUEUED, self._queued)
            raise self.refusal("queued", limit, used, said, QUEUE_RETRY_SECONDS)
        self._queued += 1
        self._look_ahead(Flow.QUEUED, limit, self._queued)
        return CellPlace(self, _State.QUEUED)

    def adopt_cell(self) -> CellPlace:
        """Return the place of a cell that is already running, whatever the quotas are."""
        self._running += 1
        return CellPlace(self, _State.RUNNING)

    def _has_turn(self) -> bool:
        # Others in line come first; there are none unless all turns are taken.
        limit = self.quotas.running
        return limit is None or self._running < self._most(Flow.RUNNING, limit)

    def _stand_in_line(self, place: CellPlace) -> None:
        if self._has_turn():
            self._run(place)
        else:
            place._state = _State.IN_LINE
            self._line[place] = None
            self._ask(Flow.RUNNING)

    def _run(self, place: CellPlace) -> None:
        place._state = _State.RUNNING
        self._queued -= 1
        self._running += 1

    def _leave(self, place: CellPlace) -> None:
        state = place._state
        place._state = _State.OVER
        place._turn = None
        if state is _State.RUNNING:
            self._running -= 1
            if self._line:
                self.give_turns()
            # The only turn is not kept for the next cell here: one at another gateway would wait for it.
            allotment = self.allotment
            if allotment is not None and (allotment.is_wanted(Flow.RUNNING) or self.quotas.running == 1):
                self.lacking(self.name)
        elif state is not _State.OVER:
            self._queued -= 1
            self._line.pop(place, None)

    def give_turns(self) -> None:
        """Start as many cells in line as the quota allows."""
        while self._line and self._has_turn():
            place, _ = self._line.popitem(last=False)
            self._run(place)
            if place._turn is not None:
                place._turn()

    # Requests and bytes

    def begin_request(self, length: int = 0, *, at_once: bool = False) -> None:
        """Count a request with a body of `length` bytes, as far as that is known.

        `at_once`: nobody has awaited `Usage.ask_for_more`. `pass_bytes` counts the bytes as they come. Raises
        PrincipalQuotaExceededForNow; a refused request does not count.
        """
        now = self._clock()
        limit, used = self.quotas.requests_per_minute, self._requests.used(now)
        most_of = self._most_at_once if at_once else self._most
        if limit is not None and used >= (most := most_of(Flow.REQUESTS, limit)):
            wait = self._requests.seconds_until(most - 1, now) if most == limit else 0
            said = "requests came in the last minute"
            self._want(Flow.REQUESTS, 1)
            used = self._used_everywhere(Flow.REQUESTS, used)
            raise self.refusal("requests_per_minute", limit, used, said, wait)
        self._check_bytes(length, now)
        self._requests.add(1, now)
        self._look_ahead(Flow.REQUESTS, limit, used + 1)

    def pass_bytes(self, count: int) -> None:
        """Count bytes of a body, a message or an answer."""
        self._bytes.add(count, self._clock())

    def receive(self, count: int) -> None:
        """Count bytes of a body. Raises PrincipalQuotaExceededForNow above the limit."""
        now = self._clock()
        self._bytes.add(count, now)
        limit, used = self.quotas.bytes_per_minute, self._bytes.used(now)
        # What has begun goes on with what nobody holds, and the others are told.
        most = limit if limit is None or self.allotment is None else self.allotment.free(Flow.BYTES, limit)
        if limit is not None and most is not None and used > most:
            wait = self._bytes.seconds_until(limit - 1, now)
            used = self._used_everywhere(Flow.BYTES, used)
            raise self.refusal("bytes_per_minute", limit, used, PASSED, wait)
        self._look_ahead(Flow.BYTES, limit, used)

    # The network of sessions

    def take_network(self, count: int) -> float:
        """Count bytes between a session and a host; return the seconds to wait before sending them."""
        limit = self.quotas.network_bytes_per_minute
        if limit is None:
            return 0.0
        pace: float = limit
        if self.allotment is not None:
            pace = self.allotment.pace(limit)
            if not self.allotment.known:
                self.lacking(self.name)
        return self._network_pace.take(count, pace, self._clock())

    def give_back_network(self, count: int) -> None:
        """Subtract bytes that will not be sent after all."""
        self._network_pace.give_back(count)

    def pass_network(self, count: int) -> None:
        """Count bytes that pass."""
        self._network.add(count, self._clock())

    def _check_bytes(self, more: int, now: float) -> None:
        limit = self.quotas.bytes_per_minute
        if limit is None:
            return
        used, asked = self._bytes.used(now), max(more, 1)
        told = self._used_everywhere(Flow.BYTES, used)
        if more > limit:
            said = f"{PASSED}; this body alone has {more}"
            raise self.refusal("bytes_per_minute", limit, told, said)
        if used + asked > (most := self._most(Flow.BYTES, limit)):
            wait = self._bytes.seconds_until(limit - asked, now) if most == limit else 0
            self._want(Flow.BYTES, asked)
            raise self.refusal("bytes_per_minute", limit, told, PASSED, wait)

    # The allotment, in a cluster

    def _most(self, flow: Flow, limit: int) -> int:
        return limit if self.allotment is None else self.allotment.most(flow, limit)

    def _most_at_once(self, flow: Flow, limit: int) -> int:
        return limit if self.allotment is None else self.allotment.most_at_once(flow, limit)

    def _used_everywhere(self, flow: Flow, used: int) -> int:
        return used if self.allotment is None else used + self.allotment.used_by_others(flow)

    def _want(self, flow: Flow, amount: int) -> None:
        if self.allotment is not None:
            self.allotment.want(flow, amount, self._clock())
            self._ask(flow)

    def _ask(self, flow: Flow) -> None:
        if self.allotment is not None and not self.allotment.is_pausing(flow, self._clock()):
            self.lacking(self.name)

    def _look_ahead(self, flow: Flow, limit: int | None, used: int) -> None:
        allotment = self.allotment
        if allotment is not None and limit is not None and allotment.is_low(flow, limit, used):
            self._ask(flow)
