"""Accounts of principals: reserved at once, released once, never above a quota and never below zero."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, precondition, rule

from cellgate.errors import PrincipalQuotaExceeded, PrincipalQuotaExceededForNow, StorageError
from cellgate.fairness.minute import MINUTE, SLOT, Minute
from cellgate.fairness.pace import Pace
from cellgate.fairness.reservation import Reservation
from cellgate.quotas.cluster_uses import NOTHING, ClusterUses, Sums
from cellgate.quotas.quotas import Policy, Quotas
from cellgate.quotas.usage import COUNTED, FIRST_SWEEP, Account, CellPlace, Usage, Use
from cellgate_kernels.base.resources import GIB, MIB, ResourceLimits
from cellgate_kernels.testing.clock import VirtualTimeLoop
from tests.support.clock import Clock


def usage(**quotas: object) -> Usage:
    return Usage(Policy({"user": quotas}), clock=Clock())


def account(**quotas: object) -> Account:
    return usage(**quotas).account("ada")


def small(**values: object) -> ResourceLimits:
    return ResourceLimits(**{"memory": 64 * MIB, "cpus": 0.1, "disk": MIB, **values})  # type: ignore[arg-type]


def nothing() -> None: ...


def used(of: Account) -> dict[str, float]:
    return {name: use.used for name, use in of.uses().items()}


# Everybody


async def test_who_uses_something_or_has_a_record_is_listed_by_name() -> None:
    everybody = usage(sessions=9)
    everybody.load_records({"carl": 100, "zoe": 5})
    held = {name: everybody.account(name).reserve_session(small()) for name in ("eve", "ada", "bob")}
    everybody.account("idle")
    accounts, more = await everybody.page("", 10)
    assert ([each.name for each in accounts], more) == (["ada", "bob", "carl", "eve", "zoe"], False)
    assert (used(accounts[2])["record"], used(accounts[3])["sessions"]) == (100, 1)
    held["bob"].release()
    accounts, more = await everybody.page("ada", 2)
    assert ([each.name for each in accounts], more) == (["carl", "eve"], True)
    assert len(everybody) == 4, "to be listed costs no account"


# Sessions


def test_a_session_above_a_quota_is_refused_and_reserves_nothing() -> None:
    ada = account(sessions=2)
    reserved = [ada.reserve_session(small()) for _ in range(2)]
    with pytest.raises(PrincipalQuotaExceeded) as caught:
        ada.reserve_session(small())
    assert not isinstance(caught.value, PrincipalQuotaExceededForNow)
    assert (caught.value.quota, caught.value.limit, caught.value.used) == ("sessions", 2, 2)
    assert "quota sessions is 2, and 2 are used by live sessions: end a session first" in caught.value.message
    reserved[0].release()
    ada.reserve_session(small())


@pytest.mark.parametrize(
    ("quota", "limit", "one"), [("memory", GIB, 600 * MIB), ("cpus", 1.0, 0.6), ("disk", 10 * MIB, 6 * MIB)]
)
def test_the_limits_of_sessions_count_in_sum(quota: str, limit: float, one: float) -> None:
    ada = account(**{quota: limit})
    ada.reserve_session(small(**{quota: one}))
    with pytest.raises(PrincipalQuotaExceeded) as caught:
        ada.reserve_session(small(**{quota: one}))
    assert (caught.value.quota, caught.value.limit, caught.value.used) == (quota, limit, one)


def test_tenths_of_processors_add_up() -> None:
    ada = account(cpus=1.0)
    reserved = [ada.reserve_session(small(cpus=0.1)) for _ in range(10)]
    with pytest.raises(PrincipalQuotaExceeded):
        ada.reserve_session(small(cpus=0.1))
    for each in reserved:
        each.release()
    assert used(ada)["cpus"] == 0


def test_releasing_twice_is_releasing_once() -> None:
    ada = account()
    ada.reserve_session(small())
    second = ada.reserve_session(small())
    second.release()
    second.release()
    assert used(ada)["sessions"] == 1
    assert used(ada)["memory"] == 64 * MIB


def test_an_adopted_session_counts_even_above_a_quota() -> None:
    ada = account(sessions=1)
    first, second = ada.adopt_session(small()), ada.adopt_session(small())
    first.release()
    with pytest.raises(PrincipalQuotaExceeded):
        ada.reserve_session(small())
    second.release()
    ada.reserve_session(small())


def test_a_full_record_takes_no_more() -> None:
    everybody = usage(record=100)
    everybody.load_records({"ada": 60, "bob": 100})
    ada = everybody.account("ada")
    ada.check_record()
    everybody.recorded("ada", 40)
    with pytest.raises(PrincipalQuotaExceeded, match="quota record is 100, and 100 are taken by its record"):
        ada.check_record()
    with pytest.raises(PrincipalQuotaExceeded):
        everybody.account("bob").reserve_session(small())
    everybody.recorded("ada", -60)
    ada.check_record()
    assert used(ada)["record"] == 40


# Cells


def test_cells_above_running_stand_in_line() -> None:
    ada = account(running=1)
    turns: list[str] = []
    first = ada.enter(at_once=True)
    second, third = ada.enter(at_once=True), ada.enter(at_once=False)
    assert first.running
    assert not second.begin(lambda: turns.append("second"))
    assert not third.begin(lambda: turns.append("third"))
    assert (used(ada)["running"], used(ada)["queued"]) == (1, 2)
    first.leave()
    assert turns == ["second"]
    assert second.running
    assert second.begin(nothing)
    second.leave()
    assert turns == ["second", "third"]
    third.leave()
    assert (used(ada)["running"], used(ada)["queued"]) == (0, 0)


def test_a_cell_that_leaves_the_line_delays_nobody() -> None:
    ada = account(running=1)
    first, second, third = (ada.enter(at_once=True) for _ in range(3))
    second.begin(nothing)
    third.begin(nothing)
    second.leave()
    first.leave()
    assert third.running


def test_too_many_waiting_are_refused_and_running_ones_are_not() -> None:
    ada = account(queued=1)
    ada.enter(at_once=False)
    ada.enter(at_once=True)
    with pytest.raises(PrincipalQuotaExceededForNow) as caught:
        ada.enter(at_once=False)
    assert (caught.value.quota, caught.value.limit, caught.value.used) == ("queued", 1, 1)
    assert caught.value.retry_after >= 1


async def test_what_can_not_wait_for_long_has_its_turn_or_is_refused() -> None:
    ada = account(running=1)
    first, second, third = (ada.enter(at_once=True) for _ in range(3))
    waits = asyncio.ensure_future(second.turn(60))
    with pytest.raises(PrincipalQuotaExceededForNow) as caught:
        await third.turn(0)
    third.leave()
    assert (caught.value.quota, caught.value.limit, caught.value.used) == ("running", 1, 1)
    assert caught.value.retry_after >= 1
    first.leave()
    await waits
    assert second.running
    await second.turn(0)
    second.leave()
    assert (used(ada)["running"], used(ada)["queued"]) == (0, 0)


def test_a_raised_quota_gives_turns_to_those_in_line() -> None:
    everybody = usage(running=1)
    ada = everybody.account("ada")
    places = [ada.enter(at_once=True) for _ in range(3)]
    told: list[int] = []
    for number in (1, 2):
        places[number].begin(lambda number=number: told.append(number))  # type: ignore[misc]
    everybody.change(Policy({"user": {"running": 2}}))
    assert told == [1]
    everybody.change(Policy())
    assert told == [1, 2]


# Requests and bytes


def test_requests_above_the_quota_wait_for_the_minute_to_pass() -> None:
    everybody = usage(requests_per_minute=3)
    clock: Clock = everybody._clock  # type: ignore[assignment]
    ada = everybody.account("ada")
    for _ in range(3):
        ada.begin_request()
    with pytest.raises(PrincipalQuotaExceededForNow) as caught:
        ada.begin_request()
    assert (caught.value.quota, caught.value.limit, caught.value.used) == ("requests_per_minute", 3, 3)
    assert MINUTE <= caught.value.retry_after <= MINUTE + SLOT
    clock.now += caught.value.retry_after
    ada.begin_request()


def test_bytes_are_checked_at_the_start_and_as_they_come() -> None:
    ada = account(bytes_per_minute=100)
    ada.begin_request(40)
    ada.receive(40)
    with pytest.raises(PrincipalQuotaExceededForNow, match="bytes_per_minute is 100, and 40 bytes"):
        ada.begin_request(61)
    ada.begin_request(60)
    ada.receive(60)
    with pytest.raises(PrincipalQuotaExceededForNow):
        ada.receive(1)
    with pytest.raises(PrincipalQuotaExceededForNow):
        ada.begin_request()


def test_a_body_above_the_quota_never_fits() -> None:
    with pytest.raises(PrincipalQuotaExceeded) as caught:
        account(bytes_per_minute=100).begin_request(101)
    assert not isinstance(caught.value, PrincipalQuotaExceededForNow)


def test_an_answer_may_exceed_the_quota_and_the_next_request_waits() -> None:
    ada = account(bytes_per_minute=100)
    ada.begin_request()
    ada.pass_bytes(1000)
    with pytest.raises(PrincipalQuotaExceededForNow) as caught:
        ada.begin_request()
    assert caught.value.used == 1000


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), max_size=60), st.integers(1, 200))
def test_no_minute_has_more_than_is_counted(steps: list[tuple[float, int]], limit: int) -> None:
    minute = Minute()
    now = 0.0
    taken: list[tuple[float, int]] = []
    for pause, amount in steps:
        now += pause
        exact = sum(each for at, each in taken if at > now - MINUTE)
        assert exact <= minute.used(now) <= sum(each for at, each in taken if at > now - MINUTE - SLOT - 1e-6)
        wait = minute.seconds_until(limit, now)
        assert (wait == 0) == (minute.used(now) <= limit)
        if minute.used(now) + amount <= limit:
            minute.add(amount, now)
            taken.append((now, amount))
    later = Minute()
    later.add(5, now)
    assert later.used(now + later.seconds_until(0, now)) == 0


# The network of sessions


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(1, 50)), max_size=60), st.integers(1, 200))
def test_no_minute_has_more_than_the_pace_lets_pass(steps: list[tuple[float, int]], limit: int) -> None:
    pace = Pace()
    now = 0.0
    passed: list[tuple[float, int]] = []
    for pause, amount in steps:
        now += pause
        passed.append((now + pace.take(min(amount, limit), limit, now), min(amount, limit)))
    assert [at for at, _ in passed] == sorted(at for at, _ in passed), "who came first passes first"
    for begun, _ in passed:
        # One that may pass at once is whole, so the amount of one may be on top.
        most = limit + max(amount for _, amount in passed)
        assert sum(amount for at, amount in passed if begun <= at < begun + MINUTE) <= most + 1e-6


def test_what_will_not_pass_holds_nobody_up() -> None:
    pace = Pace()
    assert pace.take(25, 100, 0.0) == 0
    assert pace.take(75, 100, 0.0) == pytest.approx(MINUTE)
    pace.give_back(75)
    assert pace.take(75, 100, MINUTE / 3) == pytest.approx(2 / 3 * MINUTE)


def test_bytes_of_all_sessions_of_a_principal_keep_one_pace() -> None:
    async def pass_them() -> None:
        time = asyncio.get_running_loop().time
        begun = time()
        everybody = Usage(Policy({"user": {"network_bytes_per_minute": 100 * MIB}}), clock=time)
        for _ in range(50):
            await asyncio.gather(*(everybody.pass_network("ada", MIB) for _ in range(4)))
        # A quarter at once, the rest evenly.
        assert time() - begun == pytest.approx((200 - 25) / 75 * MINUTE)
        before = time()
        await everybody.pass_network("bob", 20 * MIB)
        assert time() == before, "nobody waits for another principal"

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(pass_them())


async def test_bytes_that_are_not_sent_after_all_are_not_counted() -> None:
    everybody = usage(network_bytes_per_minute=100)
    await everybody.pass_network("ada", 25)
    waiting = asyncio.create_task(everybody.pass_network("ada", 1_000_000))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])
    ada = everybody.account("ada")
    assert ada.uses()["network_bytes_per_minute"].used == 25
    assert ada.take_network(1) < 2
    assert not ada.idle
    everybody._clock.now += 2 * MINUTE  # type: ignore[attr-defined]
    assert ada.idle


# All


def test_idle_accounts_are_forgotten() -> None:
    everybody = usage()
    clock: Clock = everybody._clock  # type: ignore[assignment]
    kept = everybody.account("kept")
    kept.reserve_session(small())
    for number in range(10 * FIRST_SWEEP):
        everybody.account(f"user{number}").begin_request()
        clock.now += 1
    assert len(everybody) <= FIRST_SWEEP + 1
    assert everybody.account("kept") is kept


def test_the_size_of_a_record_outlives_the_account() -> None:
    everybody = usage()
    everybody.recorded("ada", 10)
    assert everybody.account("ada").record is None
    everybody.load_records({"bob": 5})
    everybody.recorded("ada", 10)
    everybody.recorded("bob", -5)
    assert everybody.account("ada").record == 10
    assert everybody.account("bob").record == 0


def test_refusals_are_counted_by_quota() -> None:
    refused: list[str] = []
    ada = Usage(Policy({"user": {"sessions": 1}}), refused=refused.append).account("ada")
    ada.reserve_session(small())
    for _ in range(2):
        with pytest.raises(PrincipalQuotaExceeded):
            ada.reserve_session(small())
    assert refused == ["sessions", "sessions"]


def test_the_role_of_a_name_decides() -> None:
    policy = Policy({"user": {"sessions": 1}, "auditor": {"sessions": 2}})
    everybody = Usage(policy, {"ada": "user", "bob": "auditor"}.__getitem__)
    assert everybody.quotas("ada").sessions == 1
    assert everybody.quotas("bob").sessions == 2
    assert Usage(policy).quotas("default").sessions is None


def test_all_counted_quotas_are_shown_with_and_without_limit() -> None:
    uses = account(sessions=3).uses()
    assert tuple(uses) == COUNTED
    assert uses["sessions"].limit == 3
    assert uses["memory"].limit is None


class Anything(RuleBasedStateMachine):
    """Any interleaving of what sessions and cells do keeps the sums right."""

    reservations: Bundle[Reservation] = Bundle("reservations")
    places: Bundle[CellPlace] = Bundle("places")
    SESSIONS, RUNNING, QUEUED, MEMORY = 3, 2, 4, 512 * MIB

    def __init__(self) -> None:
        super().__init__()
        self.everybody = usage(
            sessions=self.SESSIONS, running=self.RUNNING, queued=self.QUEUED, memory=self.MEMORY, cpus=1.0
        )
        self.ada = self.everybody.account("ada")
        self.live: set[Reservation] = set()
        self.cells: list[CellPlace] = []

    @rule(target=reservations, memory=st.integers(64, 300), cpus=st.sampled_from([0.1, 0.3, 0.7]))
    def reserve(self, memory: int, cpus: float) -> Reservation:
        try:
            reserved = self.ada.reserve_session(small(memory=memory * MIB, cpus=cpus))
        except PrincipalQuotaExceeded:
            return Reservation(nothing)
        self.live.add(reserved)
        return reserved

    @rule(reserved=reservations)
    def release(self, reserved: Reservation) -> None:
        reserved.release()
        self.live.discard(reserved)

    @rule(target=places, at_once=st.booleans())
    def enter(self, *, at_once: bool) -> CellPlace:
        try:
            place = self.ada.enter(at_once=at_once)
        except PrincipalQuotaExceededForNow:
            assert used(self.ada)["queued"] == self.QUEUED
            place = Account("bob", self.ada.quotas, Clock(), lambda _: None).enter(at_once=True)
        else:
            self.cells.append(place)
        return place

    @rule(place=places)
    def begin(self, place: CellPlace) -> None:
        assert place.begin(nothing) == place.running

    @rule(place=consumes(places))
    def leave_for_good(self, place: CellPlace) -> None:
        self.leave(place)

    @rule(place=places)
    def leave(self, place: CellPlace) -> None:
        place.leave()
        if place in self.cells:
            self.cells.remove(place)

    @invariant()
    def sums_are_right(self) -> None:
        now = used(self.ada)
        assert now["sessions"] == len(self.live) <= self.SESSIONS
        assert 0 <= now["memory"] <= self.MEMORY
        assert 0 <= now["cpus"] <= 1.0 + 1e-6
        running = sum(place.running for place in self.cells)
        assert now["running"] == running <= self.RUNNING
        assert now["queued"] == len(self.cells) - running <= self.QUEUED

    @precondition(lambda self: not self.live and not self.cells)
    @invariant()
    def nothing_is_left(self) -> None:
        assert not any(used(self.ada).values())

    @invariant()
    def nobody_stands_in_line_beside_a_free_turn(self) -> None:
        assert not self.ada._line or used(self.ada)["running"] == self.RUNNING


TestAnything = Anything.TestCase


class Cluster:
    """What the sessions at two gateways use, as their database has it."""

    def __init__(self) -> None:
        self.used: dict[str, dict[str, Sums]] = {}
        self.looks = 0
        self.is_away = False
        self.before_publishing: list[Callable[[], None]] = []

    def of(self, node: str, used_there: Usage) -> Usage:
        used_there.cluster = _Node(self, node, used_there)
        return used_there


class _Node(ClusterUses):
    """The uses as one gateway sees them. A change is published in the task `writing`."""

    def __init__(self, cluster: Cluster, node: str, used_there: Usage) -> None:
        self._cluster, self._node, self._usage = cluster, node, used_there
        self.writing: asyncio.Task[None] | None = None

    def _of_others(self, principal: str) -> Sums:
        total = NOTHING
        for node, used in self._cluster.used.items():
            if node != self._node:
                total = total.plus(used.get(principal, NOTHING))
        return total

    async def of_others(self, principals: Sequence[str]) -> Mapping[str, Sums]:
        await asyncio.sleep(0)
        self._cluster.looks += 1
        return {principal: self._of_others(principal) for principal in principals}

    async def first(self, after: str, limit: int) -> Mapping[str, Sums]:
        if self._cluster.is_away:
            raise StorageError("The database is away")
        names = sorted({name for used in self._cluster.used.values() for name in used if name > after})
        found = {name: sums for name in names if (sums := self._of_others(name)) != NOTHING}
        return dict([*found.items()][:limit])

    async def publish(self, principal: str, own: Sums, most: Quotas) -> bool:
        await asyncio.sleep(0)
        if self._cluster.before_publishing:
            self._cluster.before_publishing.pop()()
        fits = not own.plus(self._of_others(principal)).exceeds(most)
        if fits:
            self._cluster.used.setdefault(self._node, {})[principal] = own
        return fits

    def changed(self, principal: str) -> None:
        self.writing = asyncio.ensure_future(self._usage.publish(principal))


async def settled(at: Usage) -> None:
    """Return once the others know of the last change."""
    assert isinstance(at.cluster, _Node)
    assert at.cluster.writing is not None
    await at.cluster.writing


async def opened(at: Usage) -> Reservation:
    """What opening a session of ada's reserves."""
    await at.look([at.account("ada")])
    reserved = at.account("ada").reserve_session(small())
    await at.confirm("ada", reserved)
    return reserved


def nodes(**quotas: Any) -> tuple[Cluster, Usage, Usage]:
    cluster = Cluster()
    return cluster, cluster.of("one", usage(**quotas)), cluster.of("two", usage(**quotas))


async def test_sums_hold_over_all_gateways_of_a_cluster() -> None:
    _, one, two = nodes(sessions=3)
    first = await opened(one)
    await opened(two)
    await opened(two)
    for node in (one, two):
        with pytest.raises(PrincipalQuotaExceeded) as refused:
            await opened(node)
        assert (refused.value.quota, refused.value.used) == ("sessions", 3)
        await node.look([node.account("ada")])
        assert node.account("ada").uses()["sessions"] == Use(3, 3)
    first.release()
    await settled(one)
    await opened(two)


async def test_of_sessions_that_are_opened_at_once_as_many_as_fit_are() -> None:
    _, one, two = nodes(sessions=7)
    await opened(two)
    found = await asyncio.gather(*(opened(each) for each in [one, two] * 8), return_exceptions=True)
    assert sum(isinstance(each, Reservation) for each in found) == 6
    assert all(isinstance(each, Reservation | PrincipalQuotaExceeded) for each in found)
    assert one.account("ada").sums.plus(two.account("ada").sums).sessions == 7


async def test_a_reservation_that_another_gateway_was_faster_with_is_released() -> None:
    cluster, one, two = nodes(sessions=1)

    def open_there() -> None:
        two.account("ada").adopt_session(small())
        cluster.used["two"] = {"ada": two.account("ada").confirmed()}

    cluster.before_publishing.append(open_there)
    with pytest.raises(PrincipalQuotaExceeded) as refused:
        await opened(one)
    assert (refused.value.used, refused.value.limit) == (1, 1)
    assert one.account("ada").sums == NOTHING


async def test_whoever_has_no_quota_is_known_to_other_gateways_for_when_there_is_one() -> None:
    cluster, one, two = nodes()
    await opened(one)
    await settled(one)
    two.change(Policy({"user": {"sessions": 1}}))
    with pytest.raises(PrincipalQuotaExceeded):
        await opened(two)
    assert cluster.used["one"]["ada"].sessions == 1


async def test_what_is_not_let_in_yet_is_told_to_no_other_gateway() -> None:
    """Otherwise each of two that race for the last place would be refused because of the other."""
    cluster, one, two = nodes(sessions=1)
    reserved = []
    for node in (one, two):
        reserved.append(node.account("ada").reserve_session(small()))
        node.account("ada").adopt_disk(MIB)
        await settled(node)
    assert cluster.used == {"one": {"ada": Sums(disk=MIB)}, "two": {"ada": Sums(disk=MIB)}}
    await one.confirm("ada", reserved[0])
    with pytest.raises(PrincipalQuotaExceeded):
        await two.confirm("ada", reserved[1])
    assert one.account("ada").confirmed() == cluster.used["one"]["ada"] == Sums(1, 64 * MIB, 0.1, 2 * MIB)


async def test_whoever_uses_something_at_another_gateway_is_listed() -> None:
    cluster, one, two = nodes()
    names = ["ada", "bob", "carl", "eve", "zoe"]
    for name in names:
        node = one if name == "eve" else two
        node.account(name).adopt_session(small())
        await settled(node)
    listed, after = [], ""
    while True:
        accounts, more = await one.page(after, 2)
        listed += [(each.name, used(each)["sessions"]) for each in accounts]
        after = accounts[-1].name
        if not more:
            break
    assert listed == [(name, 1) for name in names]
    assert len(one) == 1, "to be listed costs no account"
    cluster.is_away = True
    accounts, more = await one.page("", 2)
    assert ([each.name for each in accounts], more) == (["eve"], False)


async def test_without_a_cluster_nobody_is_asked_about() -> None:
    def unread() -> Iterator[Account]:
        pytest.fail("The accounts were looked through")
        yield  # pragma: no cover

    await usage(sessions=1).look(unread())
