"""Parts of quotas in a real PostgreSQL server: of many principals, by gateways that race, of a dead one."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import psycopg
import pytest

from cellgate.cluster import statements
from cellgate.cluster.allotments import NodeAllotments
from cellgate.cluster.membership import Membership
from cellgate.cluster.settings import ClusterSettings
from cellgate.quotas.allotment import AskedPart, HeldPart
from cellgate.quotas.allotting import Allotting
from cellgate.quotas.quotas import Policy
from cellgate.quotas.usage import CellPlace, Usage
from cellgate.record.store.postgresql.record_connection import Hold, RecordAddress, TimedConnection
from cellgate.record.store.postgresql.store import PostgresStore
from cellgate_kernels.base.threads import Lane
from tests.pure.record.conftest import eventually

HELD = """SELECT a.principal, sum((e.value->1->>0)::int)
    FROM cellgate.allotments AS a, jsonb_each(a.by_node) AS e GROUP BY 1"""
WAITING = """SELECT pid FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock'"""
NAMES = [f"{number}-" + "x" * (number % 7) for number in range(60)]
"""Of different lengths: nodes that compare them otherwise would lock rows in another order."""


class Gateway:
    """What a gateway of a cluster has for quotas. It looks at its parts when a test calls `renew`."""

    def __init__(self, membership: Membership, allotments: NodeAllotments, policy: Policy) -> None:
        self.membership = membership
        self.allotments = allotments
        self.usage = Usage(policy)
        self.allotting = Allotting(self.usage, allotments)
        self.usage.allotting = self.allotting
        self.places: dict[str, list[CellPlace]] = {}

    def cell(self, principal: str) -> None:
        """Begin a cell as soon as it has a turn."""
        place = self.usage.account(principal).enter(at_once=True)
        place.begin(lambda: None)
        self.places.setdefault(principal, []).append(place)

    def leave(self, principal: str) -> None:
        """End a principal's oldest cell, whether it has run or not."""
        self.places[principal].pop(0).leave()

    def running(self, principal: str) -> int:
        """The number of a principal's cells that run here."""
        return sum(place.running for place in self.places.get(principal, ()))

    async def top_up_all(self, principals: Sequence[str]) -> None:
        """Have a part of each of these principals."""
        await asyncio.gather(*map(self.allotting.top_up, principals))


class Cluster:
    """Gateways of one cluster, in this process, in which everybody may run four cells at once."""

    def __init__(self, url: str, stack: AsyncExitStack) -> None:
        self.address = RecordAddress.of(url)
        self._stack = stack
        self._lane = Lane("nodes", 4)
        stack.callback(self._lane.close)

    async def join(self, name: str, lease: float = 60.0) -> Gateway:
        """A gateway that begins to beat."""
        settings = ClusterSettings("", f"http://{name}:8888", lease, lease / 12)
        membership = await Membership.open(name, settings, self.address, self._lane)
        self._stack.push_async_callback(membership.close)
        allotments = await NodeAllotments.open(membership, self.address)
        self._stack.push_async_callback(allotments.close)
        return Gateway(membership, allotments, Policy({"user": {"running": 4}}))


@pytest.fixture
async def cluster(database: str) -> AsyncGenerator[Cluster, None]:
    async with AsyncExitStack() as stack:
        store = await PostgresStore.open(RecordAddress.of(database), hold=Hold.SHARED)
        stack.push_async_callback(store.close)
        yield Cluster(database, stack)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement was sent to the server, by its text."""
    found: Counter[str] = Counter()
    execute = TimedConnection.execute

    def counted(self: TimedConnection, query: Any, *given: Any, **more: Any) -> Any:
        found[query] += 1
        return execute(self, query, *given, **more)

    monkeypatch.setattr(TimedConnection, "execute", counted)
    return found


async def test_parts_of_a_thousand_principals_are_renewed_by_few_statements(
    cluster: Cluster, sent: Counter[str]
) -> None:
    """Four a look, and as many more if what the other gateway uses has changed: each is told of that."""
    one, two = await cluster.join("one"), await cluster.join("two")
    names = [f"user-{number}" for number in range(1000)]
    for gateway in (one, two):
        for name in names:
            gateway.cell(name)
        await gateway.top_up_all(names)
    for gateway in (two, one):
        await gateway.allotting.renew()
    assert all(one.usage.account(name).uses()["running"].used == 2 for name in names)

    async def renewal() -> int:
        sent.clear()
        await one.allotting.renew()
        return sent[statements.WRITE_PARTS]

    assert await renewal() == 4
    for name in names:
        two.leave(name)
    await two.allotting.renew()
    assert await renewal() == 8
    assert all(one.usage.account(name).uses()["running"].used == 1 for name in names)


async def use(gateway: Gateway) -> None:
    """Begin and end cells of all principals, and look at their parts."""
    for _ in range(25):
        for name in random.sample(NAMES, 30):
            if gateway.places.get(name) and random.random() < 0.5:
                gateway.leave(name)
            elif len(gateway.places.get(name, ())) < 4:
                gateway.cell(name)
        await gateway.top_up_all(random.sample(NAMES, 3))
        await gateway.allotting.renew()


async def give_back(gateway: Gateway) -> None:
    """Begin cells, end them, and give all parts back."""
    for _ in range(25):
        for name in NAMES:
            gateway.cell(name)
        await gateway.top_up_all(random.sample(NAMES, 20))
        for name in NAMES:
            gateway.leave(name)
        await gateway.allotments.remove(NAMES)
        for name in NAMES:
            allotment = gateway.usage.account(name).allotment
            assert allotment is not None
            allotment.forget()


async def check(database: str, gateways: Sequence[Gateway], over: asyncio.Event) -> int:
    """Check parts and cells until it is `over`; return how often."""
    checks = 0
    async with await psycopg.AsyncConnection.connect(database, autocommit=True) as db:
        while not over.is_set():
            held = await (await db.execute(HELD)).fetchall()
            assert [each for each in held if each[1] > 4] == []
            for name in NAMES:
                assert sum(gateway.running(name) for gateway in gateways) <= 4
            checks += 1
    return checks


async def test_gateways_that_renew_at_once_are_within_each_quota(cluster: Cluster, database: str) -> None:
    """In whatever order each has its principals, and while another gives parts back, none waits for ever."""
    gateways = [await cluster.join(name) for name in ("one", "two", "three", "four")]
    *using, leaving = gateways
    over = asyncio.Event()
    checking = asyncio.create_task(check(database, gateways, over))
    await asyncio.gather(*map(use, using), give_back(leaving))
    over.set()
    assert await checking > 10


async def test_rows_are_locked_by_name_whatever_its_length(cluster: Cluster, database: str) -> None:
    """While one that comes first is another's, no later one is locked: JSON has the short names first."""
    one = await cluster.join("one")
    some = HeldPart((1, 1, 0, 0, 0), (1, 1, 0, 0, 0))
    asked = {name: AskedPart(some, ()) for name in ("b", "aa")}
    await one.allotments.replace(asked)
    row = "SELECT principal FROM cellgate.allotments WHERE principal = %s FOR UPDATE SKIP LOCKED"
    connect = psycopg.AsyncConnection.connect
    async with await connect(database) as other, await connect(database, autocommit=True) as looker:
        await other.execute(row, ["aa"])
        for work in (partial(one.allotments.replace, asked), partial(one.allotments.remove, [*asked])):
            writing = asyncio.create_task(work())

            async def waits() -> bool:
                return bool(await (await looker.execute(WAITING)).fetchall())

            await eventually(waits)
            assert await (await looker.execute(row, ["b"])).fetchall() == [("b",)]
            await other.rollback()
            await writing
            await other.execute(row, ["aa"])


async def test_what_a_dead_gateway_held_of_all_is_free_after_its_lease(cluster: Cluster) -> None:
    one, two = await cluster.join("one", lease=1.2), await cluster.join("two", lease=1.2)
    names = [f"user-{number}" for number in range(50)]
    for gateway in (one, two):
        for name in names:
            for _ in range(4):
                gateway.cell(name)
        await gateway.top_up_all(names)
        await gateway.allotting.renew()
    # What began first had all turns that were free.
    assert sum(two.running(name) for name in names) < 4 * len(names)
    one.membership._beat = lambda: None  # type: ignore[method-assign]

    async def has_all_turns() -> bool:
        await two.allotting.renew()
        return all(two.running(name) == 4 for name in names)

    await eventually(has_all_turns)
    assert all(two.usage.account(name).allotment.others == () for name in names)  # type: ignore[union-attr]


async def test_a_part_that_does_not_fit_is_refused_alone(cluster: Cluster) -> None:
    """Of other principals in the same statement it changes nothing; a quota that is none refuses nothing."""
    one, two = await cluster.join("one"), await cluster.join("two")
    four = HeldPart((4, 9, 0, 0, 0), (4, 9, 0, 0, 0), (0, 0, 1, 0, 0))
    limits = (4, None, None, None, None)
    assert await two.allotments.replace({"bob": AskedPart(four, limits)}) == {"bob": (True, ())}
    some = HeldPart((1, 1, 0, 0, 0), (1, 1, 0, 0, 0))
    found = await one.allotments.replace({name: AskedPart(some, limits) for name in ("ada", "bob", "cy")})
    assert found == {"ada": (True, ()), "bob": (False, (four,)), "cy": (True, ())}
    assert await one.allotments.replace({"bob": AskedPart(some, ())}) == {"bob": (True, (four,))}
    await one.allotments.remove(["ada", "bob"])
    assert await two.allotments.of_others(["ada", "bob", "cy"]) == {"bob": (), "cy": (some,)}
