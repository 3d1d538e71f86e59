"""What the gateways of a cluster let in of cells and requests: together never more than the quota."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from cellgate.errors import PrincipalQuotaExceeded, PrincipalQuotaExceededForNow, StorageError
from cellgate.quotas.allotment import KEEP_SECONDS, SUMMED, AskedPart, ClusterAllotments, Flow, HeldPart
from cellgate.quotas.allotting import MOST_TOGETHER, Allotting
from cellgate.quotas.quotas import Policy, Quotas
from cellgate.quotas.usage import CellPlace, Usage
from tests.support.clock import Clock

BEAT = 3.0


class Parts:
    """The parts of all gateways, as their database has them. `held`: those of ada."""

    def __init__(self, **quotas: object) -> None:
        self.clock = Clock()
        self.policy = Policy({"user": quotas})
        self.rows: dict[str, dict[str, HeldPart]] = {"ada": {}}
        self.held = self.rows["ada"]
        self.is_away = False
        self.statements = 0
        self.nodes: dict[str, Node] = {}

    def node(self, name: str) -> Node:
        self.nodes[name] = Node(self, name)
        return self.nodes[name]

    async def beat(self, seconds: float = BEAT / 2) -> None:
        """Let time pass until each gateway has looked at its part."""
        self.clock.now += seconds
        for node in tuple(self.nodes.values()):
            await node.renew()


class Node(ClusterAllotments):
    """A gateway. What it is to look at soon is looked at by `settle`."""

    def __init__(self, parts: Parts, name: str) -> None:
        self.beat = BEAT
        self.parts, self.name = parts, name
        self.due: list[str] = []
        self.places: list[CellPlace] = []
        self.usage = Usage(parts.policy, clock=parts.clock)
        self.allotting = Allotting(self.usage, self, parts.clock)
        self.usage.allotting = self.allotting

    def others(self, principal: str) -> Sequence[HeldPart]:
        parts = self.parts.rows.get(principal, {})
        return tuple(part for name, part in parts.items() if name != self.name)

    async def replace(self, asked: Mapping[str, AskedPart]) -> Mapping[str, tuple[bool, Sequence[HeldPart]]]:
        await self._begin_statement()
        return {principal: self._replace_one(principal, each) for principal, each in asked.items()}

    def _replace_one(self, principal: str, asked: AskedPart) -> tuple[bool, Sequence[HeldPart]]:
        others = self.others(principal)
        fits = all(
            limit is None or asked.part.held[flow] + sum(part.held[flow] for part in others) <= limit
            for flow, limit in zip(SUMMED, asked.most, strict=False)
        )
        if fits:
            self.parts.rows.setdefault(principal, {})[self.name] = asked.part
        return fits, others

    async def remove(self, principals: Sequence[str]) -> None:
        await self._begin_statement()
        for principal in principals:
            self.parts.rows.get(principal, {}).pop(self.name, None)

    async def of_others(self, principals: Sequence[str]) -> Mapping[str, Sequence[HeldPart]]:
        return {principal: self.others(principal) for principal in principals}

    async def _begin_statement(self) -> None:
        await asyncio.sleep(0)
        if self.parts.is_away:
            raise StorageError("The database is away")
        self.parts.statements += 1

    def soon(self, principal: str) -> None:
        self.due.append(principal)

    async def settle(self) -> None:
        while self.due:
            with suppress(StorageError):
                await self.allotting.top_up(self.due.pop())

    async def renew(self) -> None:
        with suppress(StorageError):
            await self.allotting.renew()
        await self.settle()

    async def request(self, length: int = 0) -> bool:
        asking = self.usage.ask_for_more("ada", length)
        if asking is not None:
            await asking
        try:
            self.usage.account("ada").begin_request(length)
        except PrincipalQuotaExceeded:
            return False
        finally:
            await self.settle()
        return True

    async def cell(self, principal: str = "ada") -> CellPlace:
        """A cell that begins as soon as it has a turn."""
        place = self.usage.account(principal).enter(at_once=True)
        place.begin(lambda: None)
        self.places.append(place)
        await self.settle()
        return place

    async def leave(self, place: CellPlace) -> None:
        self.places.remove(place)
        place.leave()
        await self.settle()

    @property
    def running(self) -> int:
        return sum(place.running for place in self.places)

    def used(self, quota: str) -> float | None:
        return self.usage.account("ada").uses()[quota].used


async def test_a_gateway_gets_the_whole_quota_if_no_other_uses_it() -> None:
    parts = Parts(running=5, requests_per_minute=100)
    one, two = parts.node("one"), parts.node("two")
    assert [await one.request() for _ in range(101)] == [True] * 100 + [False]
    assert not await two.request()
    for _ in range(6):
        await one.cell()
    assert (one.running, parts.held["one"].held[Flow.RUNNING]) == (5, 5)
    assert (await two.cell()).running is False
    assert two.used("running") == 5
    assert two.used("requests_per_minute") == 100
    with pytest.raises(PrincipalQuotaExceededForNow, match="is 100, and 100 requests came") as refused:
        two.usage.account("ada").begin_request()
    assert refused.value.used == 100


async def test_requests_at_once_at_all_gateways_are_never_more_than_the_quota() -> None:
    parts = Parts(requests_per_minute=30, bytes_per_minute=10_000)
    nodes = [parts.node(name) for name in ("one", "two", "three")]
    let_in = await asyncio.gather(*(node.request(100) for node in nodes * 30))
    assert sum(let_in) == 30
    for seconds in (66, BEAT, BEAT):
        await parts.beat(seconds)
    assert sum(await asyncio.gather(*(node.request(2000) for node in nodes * 30))) == 30, "no byte came"


async def test_an_idle_gateways_part_is_there_for_another_within_a_beat() -> None:
    parts = Parts(running=4)
    one, two = parts.node("one"), parts.node("two")
    for place in [await one.cell() for _ in range(3)]:
        await one.leave(place)
    held = parts.held["one"].held[Flow.RUNNING]
    assert 0 < held < 4
    for _ in range(4):
        await two.cell()
    assert two.running == 4 - held
    await parts.beat()
    await parts.beat()
    assert two.running == 4


async def test_a_lone_cell_costs_a_statement_only_after_a_pause() -> None:
    parts = Parts(running=4)
    one = parts.node("one")
    await one.leave(await one.cell())
    assert parts.statements == 1
    for _ in range(9):
        await one.leave(await one.cell())
    assert parts.statements == 1
    await parts.beat(KEEP_SECONDS + 1)
    assert parts.held == {}
    assert len(one.usage) == 1
    assert one.usage.account("ada").idle
    assert (await one.cell()).running


async def test_all_principals_of_a_gateway_are_renewed_together() -> None:
    """By a statement for each 250, and one more if others' parts have changed; and so they are given back."""
    parts = Parts(running=4)
    one, two = parts.node("one"), parts.node("two")
    names = [f"user-{number}" for number in range(2 * MOST_TOGETHER)]
    for node in (one, two):
        for name in names:
            await node.cell(name)
    await parts.beat()
    await one.renew()
    assert await statements_of_renewal(one) == 2
    for place in [*two.places]:
        await two.leave(place)
    await two.renew()
    assert await statements_of_renewal(one) == 4
    for place in [*one.places]:
        await one.leave(place)
    parts.clock.now += KEEP_SECONDS + 1
    assert await statements_of_renewal(one) == 2
    assert {name: [*parts.rows[name]] for name in names} == {name: ["two"] for name in names}


async def statements_of_renewal(node: Node) -> int:
    """The number of statements by which a gateway looks at all its parts."""
    before = node.parts.statements
    await node.allotting.renew()
    return node.parts.statements - before


async def test_what_does_not_fit_of_one_principal_holds_up_no_other() -> None:
    """Their parts are renewed by one statement, which replaces those that fit."""
    parts = Parts(running=4)
    one = parts.node("one")
    for name in ("ada", "bob", "cy"):
        await one.cell(name)
    parts.rows["bob"]["two"] = HeldPart((4, 0, 0, 0, 0), (4, 0, 0, 0, 0))
    for name in ("ada", "bob", "cy"):
        await one.cell(name)
    await parts.beat()
    assert {name: parts.rows[name]["one"].held[Flow.RUNNING] for name in ("ada", "bob", "cy")} == {
        "ada": 3,
        "bob": 2,
        "cy": 3,
    }
    assert (await one.cell("bob")).running is False
    assert (await one.cell("cy")).running


async def test_a_part_that_is_asked_for_just_then_is_not_renewed_as_well() -> None:
    parts = Parts(running=2)
    one = parts.node("one")
    await one.cell()
    asking = asyncio.create_task(one.allotting.top_up("ada"))
    await asyncio.sleep(0)
    assert await statements_of_renewal(one) == 0
    await asking
    assert await statements_of_renewal(one) == 1


async def test_cells_in_line_run_while_the_database_is_away() -> None:
    """Whoever holds the rest may be away as well; what has enough keeps to its part."""
    parts = Parts(running=2)
    one, two = parts.node("one"), parts.node("two")
    for _ in range(2):
        await two.cell()
    waiting = await one.cell()
    idle = one.usage.account("bob")
    await one.leave(await one.cell("bob"))
    assert (waiting.running, idle.allotment is not None and idle.allotment.known) == (False, True)
    parts.is_away = True
    await parts.beat()
    assert waiting.running
    assert idle.allotment is not None
    assert not idle.allotment.is_alone


async def test_without_quotas_nothing_is_asked() -> None:
    parts = Parts()
    one = parts.node("one")
    assert await one.request(100)
    assert (await one.cell()).running
    await parts.beat()
    assert (parts.statements, parts.held) == (0, {})


@pytest.mark.parametrize("limit", [1, 2, 3, 5])
async def test_cells_in_line_at_two_gateways_share_the_turns(limit: int) -> None:
    """However long the line of the first one is; and of a single turn, each has it after the other."""
    parts = Parts(running=limit)
    one, two = parts.node("one"), parts.node("two")
    for node in (one, two):
        for _ in range(20):
            await node.cell()
    had = {one: 0, two: 0}
    for _ in range(24):
        for node in (one, two):
            for place in [each for each in node.places if each.running]:
                had[node] += 1
                await node.leave(place)
                await node.cell()
            assert one.running + two.running <= limit
        await parts.beat()
        assert one.running + two.running == limit or limit == 1
    assert min(had.values()) >= 6, had


async def test_a_gateway_that_is_gone_holds_nothing() -> None:
    parts = Parts(running=2, requests_per_minute=10)
    one, two = parts.node("one"), parts.node("two")
    assert [await one.request() for _ in range(10)] == [True] * 10
    for _ in range(2):
        await one.cell()
    waiting = await two.cell()
    assert not await two.request()
    del parts.nodes["one"], parts.held["one"]
    await parts.beat()
    assert waiting.running
    assert [await two.request() for _ in range(11)] == [True] * 10 + [False]


async def test_while_the_database_is_away_each_gateway_has_the_whole_quota() -> None:
    parts = Parts(running=2, requests_per_minute=3)
    one, two = parts.node("one"), parts.node("two")
    parts.is_away = True
    for node in (one, two):
        assert [await node.request() for _ in range(4)] == [True] * 3 + [False]
        for _ in range(3):
            await node.cell()
        assert node.running == 2
    parts.is_away = False
    await parts.beat()
    for node in (one, two):
        assert not (await node.cell()).running
        for place in [each for each in node.places if each.running]:
            await node.leave(place)
    await parts.beat()
    assert one.running + two.running == 2


async def test_a_changed_quota_counts_at_once() -> None:
    parts = Parts(running=4)
    one, two = parts.node("one"), parts.node("two")
    for _ in range(4):
        await one.cell()
    waiting = await two.cell()
    for node in (one, two):
        node.usage.change(Policy({"user": {"running": 5}}))
    await parts.beat()
    assert waiting.running
    for node in (one, two):
        node.usage.change(Policy({"user": {}}))
    await parts.beat()
    assert parts.held == {}
    assert (await one.cell()).running


async def test_too_many_that_wait_at_all_gateways_are_refused() -> None:
    parts = Parts(running=1, queued=4)
    one, two = parts.node("one"), parts.node("two")
    await one.cell()
    for node in (one, two):
        for _ in range(2):
            await node.cell()
    await parts.beat()
    for node in (one, two):
        with pytest.raises(PrincipalQuotaExceededForNow, match="is 4, and 4 executions wait"):
            await node.cell()
        await node.settle()


async def test_gateways_whose_sessions_send_bytes_share_the_pace() -> None:
    minute = 60 * 1024 * 1024
    parts = Parts(network_bytes_per_minute=minute)
    one, two = parts.node("one"), parts.node("two")

    def taken(node: Node) -> float:
        account = node.usage.account("ada")
        account.pass_network(minute)
        return account.take_network(minute)

    alone = taken(one)
    await one.settle()
    parts.clock.now += 1000
    for node in (one, two):
        node.usage.account("ada").pass_network(1)
        node.usage.account("ada").take_network(1)
        await node.settle()
    await parts.beat()
    assert taken(two) == pytest.approx(2 * alone + 20, rel=0.01)
    assert Quotas(network_bytes_per_minute=minute).of_flows == (None, None, None, None, minute)


class Anything(RuleBasedStateMachine):
    """Whatever cells, requests, beats and deaths of gateways there are, the sums are at most the quota."""

    RUNNING, QUEUED, REQUESTS, BYTES = 3, 6, 12, 1000
    names = st.sampled_from(["one", "two", "three"])

    def __init__(self) -> None:
        super().__init__()
        self.parts = Parts(
            running=self.RUNNING, requests_per_minute=self.REQUESTS, bytes_per_minute=self.BYTES
        )
        self.loop = asyncio.new_event_loop()
        self.let_in: list[tuple[float, str]] = []

    def teardown(self) -> None:
        self.loop.close()

    def node(self, name: str) -> Node:
        return self.parts.nodes.get(name) or self.parts.node(name)

    @rule(name=names, number=st.integers(1, 4))
    def cells(self, name: str, number: int) -> None:
        for _ in range(number):
            self.loop.run_until_complete(self.node(name).cell())

    @rule(name=names, which=st.integers(0, 9))
    def leave(self, name: str, which: int) -> None:
        node = self.node(name)
        if node.places:
            self.loop.run_until_complete(node.leave(node.places[which % len(node.places)]))

    @rule(given=st.lists(st.tuples(names, st.integers(0, 400)), max_size=8))
    def requests(self, given: list[tuple[str, int]]) -> None:
        async def send() -> list[bool]:
            return await asyncio.gather(*(self.node(name).request(length) for name, length in given))

        found = self.loop.run_until_complete(send())
        now = self.parts.clock.now
        self.let_in += [(now, name) for (name, _), ok in zip(given, found, strict=True) if ok]

    @rule(name=names)
    def die(self, name: str) -> None:
        if self.parts.nodes.pop(name, None) is not None:
            self.parts.held.pop(name, None)
            self.let_in = [each for each in self.let_in if each[1] != name]

    @rule(seconds=st.sampled_from([0.1, BEAT / 2, 20.0, 70.0]))
    def pass_time(self, seconds: float) -> None:
        self.loop.run_until_complete(self.parts.beat(seconds))

    @invariant()
    def sums_are_at_most_the_quota(self) -> None:
        assert sum(node.running for node in self.parts.nodes.values()) <= self.RUNNING
        lately = [each for each in self.let_in if each[0] > self.parts.clock.now - 60]
        assert len(lately) <= self.REQUESTS
        for flow, limit in ((Flow.RUNNING, self.RUNNING), (Flow.REQUESTS, self.REQUESTS)):
            assert sum(part.held[flow] for part in self.parts.held.values()) <= limit
        for name, node in self.parts.nodes.items():
            used = node.usage.account("ada").flows()
            held = self.parts.held.get(name, HeldPart()).held
            assert used[Flow.RUNNING] <= held[Flow.RUNNING]
            assert used[Flow.REQUESTS] <= held[Flow.REQUESTS]

    @rule()
    def wait(self) -> None:
        """All turns are taken soon, if there are cells for them."""
        for _ in range(3):
            self.loop.run_until_complete(self.parts.beat())
        nodes = self.parts.nodes.values()
        cells = sum(len(node.places) for node in nodes)
        assert sum(node.running for node in nodes) == min(self.RUNNING, cells)


TestAnything = Anything.TestCase
