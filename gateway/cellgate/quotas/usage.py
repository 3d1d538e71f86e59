"""Each principal's present use, compared with its quotas before work begins.

Everything with a quota is reserved in one step without waiting, so a hundred requests at once can't exceed
it, and is released exactly once. An `Account` is one principal's; `Usage` has the accounts of all principals
that use something. It knows names and amounts, no sessions and no requests, and never refuses a principal
without a quota. In a cluster, sums of sessions are over all gateways: `look`, reserve, then `confirm`; of the
other quotas an account has what this gateway is allotted, for which ``allotting`` asks.

Cells above the quota `running` wait in line. Each session has at most one cell in line, so that sessions take
turns, in the order in which these cells became the next ones of their sessions.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum, auto
from heapq import nsmallest
from itertools import chain
from typing import Final

from cellgate.errors import PrincipalQuotaExceeded, StorageError
from cellgate.fairness.minute import Minute
from cellgate.fairness.pace import Pace
from cellgate.fairness.reservation import Reservation
from cellgate.quotas.allotment import Allotment, AsksForMore, Five, Flow
from cellgate.quotas.cluster_uses import NOTHING, ClusterUses, Sums
from cellgate.quotas.quotas import NO_QUOTAS, UNLIMITED, Policy, Quotas
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

FIRST_SWEEP: Final = 1024
"""Number of accounts above which idle ones are removed."""
GLANCE_SECONDS: Final = 1.0
"""The longest wait for the use at other gateways of somebody who only reads it."""
MOST_TRIES: Final = 8
"""The most attempts to tell the others of a reservation, if what they have reserved changes just then."""

Clock = Callable[[], float]


def _nobody(_: str) -> None:
    """Tell nobody of a refusal, or of a change."""


def role_of_name(name: str) -> str:
    """Return the role of a principal while the token's principal is the only one."""
    return "admin" if name == "default" else "user"


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

    async def turn(self, patience: float) -> None:
        """Wait in line until it may run. Raises PrincipalQuotaExceededForNow after `patience` seconds."""
        came = asyncio.Event()
        if not self.begin(came.set):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await came.wait()
        if not self.running:
            raise self._account._all_run()

    def leave(self) -> None:
        """Release the ended cell's place; a repeat does nothing."""
        self._account._leave(self)


class Account(SessionSums):
    """One principal's use: never more than its quotas, unless one was lowered, or after a restart."""

    def __init__(
        self, name: str, quotas: Quotas, clock: Clock, refused: Told, changed: Told = _nobody
    ) -> None:
        super().__init__(name, quotas, refused, changed)
        self.publishing = asyncio.Lock()
        """Held while other gateways are told of its use."""
        self.allotment: Allotment | None = None
        """What this gateway of a cluster may use of its quotas; None without a cluster: all."""
        self.lacking: Told = _nobody
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

    # The record

    def check_record(self) -> None:
        """Raise PrincipalQuotaExceeded when the record is full."""
        limit = self.quotas.record
        if limit is not None and self.record is not None and self.record >= limit:
            advice = "nothing more is recorded until an administrator purges some of its sessions"
            raise self.refusal("record", limit, self.record, f"are taken by its record: {advice}")

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

    def _all_run(self) -> PrincipalQuotaExceeded:
        """Return what to raise for work that has had no turn."""
        limit = self.quotas.running or 0
        used = self._used_everywhere(Flow.RUNNING, self._running)
        return self.refusal(
            "running", limit, used, "cells run now: try again when one of them has ended", 1.0
        )

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


class Usage:
    """The accounts of all principals that use something now; idle ones are dropped.

    `role_of`: returns the role of a principal known only by name. `refused` is called with the quota's name
    at each refusal.
    """

    def __init__(
        self,
        policy: Policy = NO_QUOTAS,
        role_of: Callable[[str], str] = role_of_name,
        *,
        clock: Clock = time.monotonic,
        refused: Told = _nobody,
    ) -> None:
        self._policy = policy
        self._role_of = role_of
        self._clock = clock
        self._refused = refused
        self._accounts: dict[str, Account] = {}
        self._records: dict[str, int] = {}
        self.measures_records = False
        """Whether the sizes of records are known, and `recorded` must update them."""
        self.cluster: ClusterUses | None = None
        """The uses of quotas at the gateways of a cluster, if this is one of it."""
        self.allotting: AsksForMore | None = None
        """Asks for this gateway's parts of the other quotas, if it is one of a cluster."""
        self._sweep_at = FIRST_SWEEP

    def __len__(self) -> int:
        return len(self._accounts)

    def account(self, name: str) -> Account:
        """Return the principal's account. Keep it only while something is reserved in it."""
        account = self._accounts.get(name)
        if account is None:
            if len(self._accounts) >= self._sweep_at:
                self._sweep()
            account = self._accounts[name] = self._new(name)
        return account

    def _new(self, name: str) -> Account:
        quotas = self._policy.of(name, self._role_of(name))
        account = Account(name, quotas, self._clock, self._refused, self._changed)
        account.record = self._record_of(name)
        if self.allotting is not None:
            account.allotment = Allotment(self.allotting.cluster.beat)
            account.lacking = self.allotting.cluster.soon
        return account

    # Other gateways of a cluster

    def _changed(self, name: str) -> None:
        if self.cluster is not None:
            self.cluster.changed(name)

    async def look(self, accounts: Iterable[Account]) -> None:
        """Look up the use at other gateways, of accounts with quotas for sums. Raises StorageError."""
        if self.cluster is None:
            return
        asked = {account.name: account for account in accounts if any(account.quotas.of_sums)}
        if asked:
            found = await self.cluster.of_others([*asked])
            for name, account in asked.items():
                account.of_others = found.get(name, NOTHING)

    async def glance(self, account: Account) -> None:
        """Look as `look` does, but only for a moment: otherwise what was last known stays."""
        with suppress(StorageError, TimeoutError):
            async with asyncio.timeout(GLANCE_SECONDS):
                await self.look([account])
                await self._look_at_parts([account])

    async def _look_at_parts(self, accounts: Sequence[Account]) -> None:
        """Look up what other gateways use of the quotas that are allotted. Raises StorageError."""
        asked = {each.name: each.allotment for each in accounts if any(each.quotas.of_flows)}
        if self.allotting is not None and asked:
            found = await self.allotting.cluster.of_others([*asked])
            for name, allotment in asked.items():
                if allotment is not None:
                    allotment.others = found.get(name, ())

    async def confirm(self, name: str, reserved: Reservation) -> None:
        """Tell the other gateways of a session's reservation; release it if, with theirs, it is too much.

        Of two that race for the last place one gets it: neither is published before it is let in. Raises
        PrincipalQuotaExceeded and StorageError.
        """
        account = self.account(name)
        if self.cluster is None or not any(account.quotas.of_sums):
            account.confirm(reserved)
            self._changed(name)
            return
        async with account.publishing:
            for _ in range(MOST_TRIES):
                own = account.confirmed(reserved)
                if await self.cluster.publish(name, own, account.quotas):
                    account.confirm(reserved)
                    return
                await self.look([account])
                if own.plus(account.of_others).exceeds(account.quotas):
                    break
            # Before the next reservation is confirmed, which may fit without this one.
            with_it = account.sums
            reserved.release()
            account.check_sums(with_it.plus(account.sums, -1))
        raise StorageError("Too many gateways use the quotas of this user at the same time; try again")

    async def publish(self, name: str) -> None:
        """Tell other gateways what a principal uses here, whatever the quotas are. Raises StorageError."""
        account = self.account(name)
        async with account.publishing:
            if self.cluster is not None:
                await self.cluster.publish(name, account.confirmed(), UNLIMITED)

    def ask_for_more(self, name: str, length: int) -> Awaitable[None] | None:
        """Await the result, if any, before a request with a body of this length is counted.

        What a principal lacks here of its quotas is then here, if other gateways hold less than the rest.
        """
        return None if self.allotting is None else self.allotting.ask_for_more(name, length)

    def in_use(self) -> Iterable[Account]:
        """Return all accounts that are not forgotten."""
        return tuple(self._accounts.values())

    def _sweep(self) -> None:
        for name, account in tuple(self._accounts.items()):
            if account.idle:
                del self._accounts[name]
        # The next one follows when as many have been added: each looks at all accounts.
        self._sweep_at = max(FIRST_SWEEP, 2 * len(self._accounts))

    async def page(self, after: str, limit: int) -> tuple[list[Account], bool]:
        """Return the accounts in use, at any gateway, or with a record, by name, behind `after`; and whether
        more follow. Without an answer of the cluster for a moment, those of this gateway.
        """
        others: Mapping[str, Sums] | None = None
        if self.cluster is not None:
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(GLANCE_SECONDS):
                    others = await self.cluster.first(after, limit + 1)
        using = (name for name, account in self._accounts.items() if not account.idle)
        names = {name for name in chain(using, self._records, others or ()) if name > after}
        found = nsmallest(limit + 1, names)
        accounts = [self._accounts.get(name) or self._new(name) for name in found[:limit]]
        if others is not None:
            for account in accounts:
                account.of_others = others.get(account.name, NOTHING)
            with suppress(StorageError, TimeoutError):
                async with asyncio.timeout(GLANCE_SECONDS):
                    await self._look_at_parts(accounts)
        return accounts, len(found) > limit

    def role(self, name: str) -> str:
        """Return the role of a principal."""
        return self._role_of(name)

    def quotas(self, name: str) -> Quotas:
        """Return the quotas of a principal."""
        return self.account(name).quotas

    def change(self, policy: Policy) -> None:
        """Apply another policy. Use above a lowered quota stays; cells in line may have a turn now."""
        self._policy = policy
        self.refresh()

    def refresh(self) -> None:
        """Look up everybody's quotas again, because roles or quotas have changed."""
        for name, account in self._accounts.items():
            account.quotas = self._policy.of(name, self._role_of(name))
        for account in tuple(self._accounts.values()):
            account.give_turns()

    def refresh_account(self, name: str) -> None:
        """Look up the principal's quotas again, because its role has changed."""
        account = self._accounts.get(name)
        if account is not None:
            account.quotas = self._policy.of(name, self._role_of(name))
            account.give_turns()

    def pass_bytes(self, name: str, count: int) -> None:
        """Count bytes to or from the principal; its account may be dropped meanwhile."""
        self.account(name).pass_bytes(count)

    async def pass_network(self, name: str, count: int) -> None:
        """Wait until bytes between a principal's session and a host may be sent, and count them."""
        wait = self.account(name).take_network(count)
        if wait:
            try:
                await asyncio.sleep(wait)
            except asyncio.CancelledError:
                self.account(name).give_back_network(count)
                raise
        self.account(name).pass_network(count)

    # The record, whose size lasts longer than an account

    def load_records(self, sizes: Mapping[str, int]) -> None:
        """Store the sizes of existing records, by principal."""
        self._records = dict(sizes)
        self.measures_records = True
        for name, account in self._accounts.items():
            account.record = self._record_of(name)

    def _record_of(self, name: str) -> int | None:
        return self._records.get(name, 0) if self.measures_records else None

    def recorded(self, name: str, size: int) -> None:
        """Add bytes to the size of the principal's record, or subtract them if negative."""
        if not self.measures_records:
            return
        total = max(0, self._records.get(name, 0) + size)
        if total:
            self._records[name] = total
        else:
            self._records.pop(name, None)
        if (account := self._accounts.get(name)) is not None:
            account.record = total
