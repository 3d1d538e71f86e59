"""Owners of keys in a real PostgreSQL server: races, deaths, outages, and the fence in the record."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import random
import signal
import threading
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from msgspec.json import decode

from cellgate.cluster import statements
from cellgate.cluster.membership import Membership
from cellgate.cluster.node_table import NodeTable
from cellgate.cluster.nodes import Load, NodeState, node_of
from cellgate.cluster.owners import LOOKS, KeyOwners
from cellgate.cluster.settings import ClusterSettings, check_cluster
from cellgate.cluster.uses import NodeUses
from cellgate.errors import Fenced, StorageError
from cellgate.quotas.cluster_uses import NOTHING, Sums
from cellgate.quotas.quotas import Quotas
from cellgate.record.chain import verify
from cellgate.record.store.interface import FIRST_EPOCH
from cellgate.record.store.postgresql.record_connection import Hold, RecordAddress, connect
from cellgate.record.store.postgresql.store import PostgresStore
from cellgate.sessions.ownership import OURS, KeyOwner
from cellgate.testing.record_store import Chain, session_row
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.threads import Lane
from tests.pure.record.conftest import eventually
from tests.support.postgresql import PostgresServer

LEASE, BEAT = 1.2, 0.1
KEY = ("ada", "s")
SOME = Sums(1, 64, 0.1, 1)


class Members:
    """Nodes of one cluster, in this process; `store` is the record that they share."""

    def __init__(self, address: RecordAddress, store: PostgresStore, stack: AsyncExitStack) -> None:
        self.address, self.store = address, store
        self._stack = stack
        self._lane = Lane("nodes", 4)
        stack.callback(self._lane.close)

    async def join(self, name: str) -> KeyOwners:
        """A node that begins to beat."""
        settings = ClusterSettings("", f"http://{name}:8888", LEASE, BEAT)
        membership = await Membership.open(name, settings, self.address, self._lane)
        self._stack.push_async_callback(membership.close)
        owners = KeyOwners(membership, self.address)
        self._stack.push_async_callback(owners.close)
        return owners

    async def store_of(self, owners: KeyOwners) -> PostgresStore:
        """A store of the same record that is the node's own."""
        store = await PostgresStore.open(self.address, hold=Hold.SHARED)
        self._stack.push_async_callback(store.close)
        store.join(owners.node, owners._membership.incarnation)
        return store


def silence(owners: KeyOwners) -> None:
    """Let a node die: it beats no more, and says nothing about that."""
    owners._membership._beat = lambda: None  # type: ignore[method-assign]


@pytest.fixture
async def members(database: str) -> AsyncGenerator[Members, None]:
    async with AsyncExitStack() as stack:
        address = RecordAddress.of(database)
        store = await PostgresStore.open(address, hold=Hold.SHARED)
        stack.push_async_callback(store.close)
        yield Members(address, store, stack)


async def free(owners: KeyOwners, key: tuple[str, str] = KEY) -> None:
    """Return once a node finds that it may claim a key."""

    async def found() -> bool:
        return await owners.find(*key) is None

    await eventually(found)


async def leave_ended(members: Members, owners: KeyOwners) -> None:
    """Let a node's session end, whose files it keeps."""
    assert await owners.claim(*KEY) == OURS
    session_id = await members.store.begin_session(*KEY)
    members.store.save_session(session_row(session_id, "s", state="ended"))
    await members.store.commit(session_id)
    owners.release(*KEY)


async def steady(*nodes: KeyOwners) -> None:
    """Return once these nodes have beaten for a lease."""
    await asyncio.sleep(LEASE + 3 * BEAT)
    assert all(node._membership.nodes for node in nodes)


async def test_of_racing_nodes_each_key_gets_one(members: Members) -> None:
    nodes = [await members.join(f"n{number}") for number in range(16)]
    keys = [("ada", f"k{number}") for number in range(300)]

    async def claim_all(node: KeyOwners) -> dict[tuple[str, str], KeyOwner]:
        order = random.sample(keys, len(keys))
        return {key: await node.claim(*key) for key in order}

    found = await asyncio.gather(*map(claim_all, nodes))
    for key in keys:
        winners = [node for node, owned in zip(nodes, found, strict=True) if owned[key] == OURS]
        assert len(winners) == 1, key
        winner = KeyOwner(f"http://{winners[0].node}:8888", winners[0].node)
        assert {owned[key] for owned in found} == {OURS, winner}
        assert await nodes[0].find(*key) == (OURS if winners[0] is nodes[0] else winner)
    assert len({owner.node for owned in found for owner in owned.values()}) > 8, "one node had them all"


async def test_a_key_is_released_to_whoever_comes_next(members: Members) -> None:
    one, other = await members.join("one"), await members.join("other")
    other.release(*KEY)
    for node, rest in ((one, other), (other, one)):
        assert await node.find(*KEY) is None
        assert await node.claim(*KEY) == await node.claim(*KEY) == OURS
        rest.release(*KEY)
        assert (
            await rest.claim(*KEY) == await rest.find(*KEY) == KeyOwner(f"http://{node.node}:8888", node.node)
        )
        node.release(*KEY)
        await free(node)


async def test_a_claim_after_a_release_of_this_node_comes_after_it(members: Members) -> None:
    one = await members.join("one")
    for _ in range(20):
        assert await one.claim(*KEY) == OURS
        one.release(*KEY)
        assert await one.claim(*KEY) == OURS
        assert await one.find(*KEY) == OURS


async def test_a_release_that_comes_late_frees_no_later_claim(
    members: Members, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from a connection that was given up, when the server does what it had been sent after all."""
    one = await members.join("one")
    late: list[Any] = []
    execute = psycopg.Connection.execute

    def delayed(db: psycopg.Connection[Any], query: Any, *asked: Any, **options: Any) -> Any:
        if query != statements.RELEASE:
            return execute(db, query, *asked, **options)
        late.append(asked)
        return execute(db, "SELECT 1")

    monkeypatch.setattr(psycopg.Connection, "execute", delayed)
    assert await one.claim(*KEY) == OURS
    one.release(*KEY)
    assert await one.claim(*KEY) == OURS
    assert len(late) == 1
    one.release(*KEY)
    await eventually(lambda: len(late) == 2)
    with psycopg.connect(database, autocommit=True) as db:
        db.execute("SET search_path = cellgate")
        execute(db, statements.RELEASE, *late[0])
        assert await one.find(*KEY) == OURS
        execute(db, statements.RELEASE, *late[1])
    assert await one.find(*KEY) is None


async def test_a_dead_nodes_key_is_taken_by_a_steady_one_alone(members: Members) -> None:
    one, other = await members.join("one"), await members.join("other")
    await one.claim(*KEY)
    await steady(one, other)
    assert await other.claim(*KEY) == KeyOwner("http://one:8888", "one"), "it lives"
    silence(one)
    await asyncio.sleep(LEASE / 2)
    young = await members.join("young")
    await free(other)
    assert await young.claim(*KEY) == KeyOwner("http://one:8888", "one"), "it is young itself"
    assert await other.claim(*KEY) == KeyOwner(moved=True)
    assert await young.claim(*KEY) == KeyOwner("http://other:8888", "other")
    assert (other._membership.takeovers, young._membership.takeovers) == (1, 0)


async def test_a_session_comes_back_with_word_that_it_was_elsewhere(members: Members) -> None:
    """Its record names its home, also when nobody has it."""
    one, other = await members.join("one"), await members.join("other")
    await leave_ended(members, one)
    NodeTable(members.address).drain("one")
    await free(other)
    assert await other.claim(*KEY) == KeyOwner(moved=True)
    await other.settle(*KEY)
    assert await other.claim(*KEY) == OURS
    other.release(*KEY)
    NodeTable(members.address).drain("other")
    await free(one)
    assert await one.claim(*KEY) == KeyOwner(moved=True)


async def test_a_free_key_is_for_the_node_that_has_the_files(members: Members) -> None:
    """As long as it may live and opens sessions; whoever drains still has the files."""
    one, other = await members.join("one"), await members.join("other")
    at_home = KeyOwner("http://one:8888", "one")
    assert await one.home(*KEY) is await other.home(*KEY) is None
    await leave_ended(members, one)
    await free(one)
    assert await other.find(*KEY) == await other.claim(*KEY) == await other.home(*KEY) == at_home
    assert await one.home(*KEY) == OURS
    NodeTable(members.address).drain("one")
    assert await other.find(*KEY) is None
    assert await other.home(*KEY) == at_home
    await one._membership.close()
    assert await other.home(*KEY) is None
    one = await members.join("one")
    assert await other.find(*KEY) == at_home
    await steady(one, other)
    silence(one)
    await asyncio.sleep(LEASE / 2)
    young = await members.join("young")
    await free(other)
    assert await young.find(*KEY) == at_home, "the young one can't know yet that it is dead"
    assert await other.home(*KEY) is None
    assert await other.claim(*KEY) == KeyOwner(moved=True)


async def test_a_session_has_moved_until_its_old_files_are_gone(members: Members) -> None:
    """A claim that is repeated, or given up, says so again; one that is given up leaves its home."""
    one, other = await members.join("one"), await members.join("other")
    await one.claim(*KEY)
    members.store.save_session(session_row(await members.store.begin_session(*KEY), "s", state="ended"))
    await members.store.commit()
    await steady(one, other)
    silence(one)
    await free(other)
    for _ in range(2):
        assert await other.claim(*KEY) == await other.claim(*KEY) == KeyOwner(moved=True)
        other.release(*KEY)
    assert await other.claim(*KEY) == KeyOwner(moved=True)
    await one.settle(*KEY)
    assert await other.claim(*KEY) == KeyOwner(moved=True), "another node had it settled"
    await other.settle(*KEY)
    assert await other.claim(*KEY) == OURS


async def test_after_a_takeover_the_former_owner_records_nothing(members: Members) -> None:
    """From the claim on, before the new owner has read anything; it is told at its next commit."""
    one, other = await members.join("one"), await members.join("other")
    store, told = members.store, list[int]()
    store.follow(told.append)
    await one.claim(*KEY)
    chain = Chain(await store.begin_session(*KEY))
    store.save_session(session_row(chain.session_id, "s"))
    store.append(chain.next())
    await store.commit(chain.session_id)
    await steady(one, other)
    silence(one)
    await free(other)
    assert (await other.claim(*KEY)).address is None
    store.append(chain.next())
    with pytest.raises(Fenced):
        await store.commit(chain.session_id)
    assert told == [chain.session_id]
    assert len(await store.events(chain.session_id)) == 1


@dataclass
class Lost:
    """A node, `one`, whose `KEY` another node has taken over, each with a store of its own."""

    one: PostgresStore
    other: PostgresStore
    fenced: list[int]
    taker: KeyOwners


@pytest.fixture
async def lost(members: Members) -> Lost:
    """`one` still has the key of the session "kept", too. It has noticed nothing."""
    one, other = await members.join("one"), await members.join("other")
    await one.claim(*KEY)
    await one.claim("ada", "kept")
    await steady(one, other)
    silence(one)
    await free(other)
    assert (await other.claim(*KEY)).address is None
    found = Lost(await members.store_of(one), await members.store_of(other), [], other)
    found.one.follow(found.fenced.append)
    return found


async def begun(store: PostgresStore, key: str, **fields: Any) -> Chain:
    """A session of a node that has its key, with one event."""
    chain = Chain(await store.begin_session("ada", key))
    store.save_session(session_row(chain.session_id, key, **fields))
    store.append(chain.next())
    await store.commit(chain.session_id)
    return chain


async def test_whoever_has_lost_a_key_does_not_claim_its_record(lost: Lost) -> None:
    """However late: the owner goes on, and is not fenced."""
    chain = await begun(lost.other, "s")
    epoch = await lost.other.claim(chain.session_id)
    with pytest.raises(Fenced):
        await lost.one.claim(chain.session_id)
    lost.other.append(chain.next(), epoch=epoch)
    await lost.other.commit(chain.session_id, epoch=epoch)
    assert len(await lost.other.events(chain.session_id)) == 2
    kept = await begun(lost.one, "kept")
    assert await lost.one.claim(kept.session_id) == FIRST_EPOCH + 1
    assert await lost.one.claim(kept.session_id + 100) == FIRST_EPOCH, "there is no such session"


async def test_whoever_has_lost_a_key_begins_no_record_of_it(lost: Lost) -> None:
    """Its other sessions' rows of the same moment are written, and the owner begins the session."""
    late, kept = [Chain(await lost.one.begin_session("ada", key)) for key in ("s", "kept")]
    for chain, key in ((late, "s"), (kept, "kept")):
        lost.one.save_session(session_row(chain.session_id, key))
        lost.one.append(chain.next())
    with pytest.raises(Fenced):
        await lost.one.commit(late.session_id)
    await lost.one.commit(kept.session_id)
    assert lost.fenced == [late.session_id]
    assert len(await lost.one.events(kept.session_id)) == 1
    chain = await begun(lost.other, "s")
    rows, _ = await lost.other.reads.trail(0, 10)
    assert [decode(row.body)["session_id"] for row in rows] == [kept.session_id, chain.session_id]
    assert verify((row.seq, row.body, row.hash) for row in rows).valid


async def test_whoever_has_lost_a_key_does_not_purge_its_record(lost: Lost) -> None:
    """The claim for the purge came before the takeover; the purge itself, when the owner had gone on."""
    chain = await begun(lost.one, "kept", state="ended")
    epoch = await lost.one.claim(chain.session_id)
    assert (await lost.taker.claim("ada", "kept")).moved
    row = await lost.other.reads.session("ada", "kept")
    with pytest.raises(Fenced, match="its record stays"):
        await lost.one.purge(chain.session_id, by="ada", reason="requested", epoch=epoch)
    assert await lost.other.reads.session("ada", "kept") == row
    assert lost.one.failure_of(chain.session_id) is None
    epoch = await lost.other.claim(chain.session_id)
    lost.other.append(chain.next(), epoch=epoch)
    await lost.other.commit(chain.session_id, epoch=epoch)
    assert len(await lost.other.events(chain.session_id)) == 2
    purged = await lost.other.purge(chain.session_id, by="ada", reason="requested", epoch=epoch)
    assert purged is not None
    await purged.removed


async def test_of_two_sessions_with_one_key_the_later_one_is_fenced(lost: Lost) -> None:
    """As after a claim of a key that was lost and has come back."""
    await begun(lost.one, "kept")
    with pytest.raises(Fenced):
        await begun(lost.one, "kept")
    assert len(lost.fenced) == 1


async def test_an_outage_of_the_database_costs_nobody_a_key(
    members: Members, postgres_server: PostgresServer
) -> None:
    nodes = [await members.join(f"n{number}") for number in range(4)]
    keys = {(name, "s"): node for name, node in zip("abcd", nodes, strict=True)}
    for key, node in keys.items():
        await node.claim(*key)
    await steady(*nodes)
    not_ours = set[tuple[str, str]]()
    for node in nodes:
        node.follow(lambda: [*keys], lambda key, name=node.node: not_ours.add((name, key[0])))  # type: ignore[misc]
    postgres_server.stop()
    try:
        with pytest.raises(StorageError):
            await nodes[0].claim("ada", "new")
        await asyncio.sleep(2 * LEASE)
    finally:
        postgres_server.start()
    end = asyncio.get_running_loop().time() + 2 * LEASE
    asked = 0
    while asyncio.get_running_loop().time() < end:
        for key, node in keys.items():
            for each in nodes:
                try:
                    owner = await each.claim(*key)
                except StorageError:
                    continue
                asked += 1
                assert owner.node == ("" if each is node else node.node)
    assert asked > 16
    assert sum(node._membership.takeovers for node in nodes) == 0
    others = {(node.node, key[0]) for node in nodes for key, owner in keys.items() if owner is not node}
    assert not_ours == others, "each node finds that it has its own key still"


async def test_after_a_silence_the_owners_are_looked_at_until_that_succeeds(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And once more: a claim of another node may be on its way at the first time."""
    one, other = await members.join("one"), await members.join("other")
    await one.claim(*KEY)
    ended = list[tuple[str, str]]()
    one.follow(lambda: [KEY], ended.append)
    await steady(one, other)
    beat = one._membership._beat
    silence(one)
    await free(other)
    assert (await other.claim(*KEY)).moved
    repeatable = one._db.repeatable
    failures = 3

    async def fails(query: Any, statement: str, *asked: Any) -> Any:
        nonlocal failures
        if statement == statements.HELD and failures:
            failures -= 1
            raise StorageError("PostgreSQL can't be reached")
        return await repeatable(query, statement, *asked)

    monkeypatch.setattr(one._db, "repeatable", fails)
    one._membership._beat = beat  # type: ignore[method-assign]
    await eventually(lambda: len(ended) == LOOKS)
    await asyncio.sleep(3 * BEAT)
    assert (ended, failures) == ([KEY] * LOOKS, 0)


async def test_a_server_that_never_answers_a_beat_is_given_up(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    one = await members.join("one")
    await eventually(lambda: bool(one._membership.nodes))
    db, beat = one._membership._db, one._membership._beat
    assert db is not None
    silence(one)
    await asyncio.sleep(2 * BEAT)  # so that it stops with no row locked
    pid = db.info.backend_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        one._membership._beat = beat  # type: ignore[method-assign]
        await eventually(lambda: one._membership._db not in {None, db})
        await eventually(lambda: "The node one beats again" in caplog.text)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert "The node one can't beat" in caplog.text


async def test_the_databases_clock_may_be_set_back(members: Members) -> None:
    """Nodes that beat then live, the dead do not live on, and all are steady after a lease again."""
    one, other = await members.join("one"), await members.join("other")
    for node, key in ((one, "s"), (other, "others")):
        await node.claim("ada", key)
    await steady(one, other)
    silence(one)
    await asyncio.sleep(2 * BEAT)
    with contextlib.closing(connect(members.address)) as db:
        db.execute("UPDATE nodes SET beat_at = beat_at + '1 day', steady_since = steady_since + '1 day'")
    await free(other)
    assert await other.claim(*KEY) == KeyOwner(moved=True)
    with pytest.raises(StorageError, match="no signs of life"):
        await one.claim("ada", "new")
    assert await one.claim("ada", "others") == KeyOwner("http://other:8888", "other")


async def test_a_node_without_signs_of_life_claims_nothing(members: Members) -> None:
    """Another one could take the session at once; where others have theirs is said as always."""
    one, other = await members.join("one"), await members.join("other")
    await other.claim("ada", "others")
    silence(one)
    await asyncio.sleep(LEASE + BEAT)
    with pytest.raises(StorageError, match="no signs of life"):
        await one.claim(*KEY)
    assert await one.claim("ada", "others") == KeyOwner("http://other:8888", "other")
    assert await other.find(*KEY) is None


async def test_of_two_processes_with_one_name_the_elder_stops(members: Members) -> None:
    elder = await members.join("one")
    await elder.claim(*KEY)
    younger = await members.join("one")
    told = await asyncio.wait_for(elder._membership.lost, 30)
    assert "Another gateway has started as this node of the cluster, one" in told
    with pytest.raises(StorageError, match="has this one's name"):
        await elder.claim("ada", "new")
    elder.release(*KEY)
    await elder.close()
    assert await younger.find(*KEY) == OURS
    assert not younger._membership.lost.done()


async def test_an_end_frees_the_keys_of_all_sessions_that_have_ended(members: Members) -> None:
    """A key whose session is left to the next process stays; that one is told of it, and of no other's."""
    one, other = await members.join("one"), await members.join("other")
    for key, state in (("ended", "ended"), ("left", "idle"), ("others", "idle")):
        node = other if key == "others" else one
        await node.claim("ada", key)
        session_id = await members.store.begin_session("ada", key)
        members.store.save_session(session_row(session_id, key, state=state))
    await one.claim("ada", "never begun")
    await members.store.commit()
    one.release("ada", "left")
    await one.close()
    assert await other.find("ada", "ended") == KeyOwner("http://one:8888", "one"), "which has its files"
    assert await other.find("ada", "never begun") is None
    assert (await other.claim("ada", "left")).node == "one"
    again = await members.join("one")
    assert await again.held() == [("ada", "left")]
    rows = await members.store.reads.unfinished_sessions(await again.held())
    assert [row.key for row in rows] == ["left"]


async def test_of_racing_nodes_as_many_use_a_quota_as_fit(members: Members) -> None:
    nodes = [await members.join(f"n{number}") for number in range(8)]
    await steady(*nodes)
    uses = [await NodeUses.open(node._membership, members.address) for node in nodes]
    own, most = SOME, Quotas(sessions=5, cpus=0.3)
    try:
        for principal in ("ada", "bob", "eve"):
            found = await asyncio.gather(*(each.publish(principal, own, most) for each in uses))
            assert sum(found) == 3
            winner = uses[found.index(True)]
            assert await winner.of_others([principal]) == {principal: Sums(2, 128, 0.2, 2)}
            assert await winner.publish(principal, NOTHING, most)
            assert sum([await each.publish(principal, own, most) for each in uses]) == 3
        users = [bool(await each.publish("zoe", own, most)) for each in uses]
        watcher = uses[users.index(False)]
        assert (await watcher.of_others(["zoe"]))["zoe"].sessions == 3
        silence(nodes[users.index(True)])
        await asyncio.sleep(LEASE + 3 * BEAT)
        assert (await watcher.of_others(["zoe"]))["zoe"].sessions == 2
    finally:
        for each in uses:
            await each.close()


def rows_of(db: psycopg.Connection[Any]) -> dict[str, list[str]]:
    """The nodes in the rows of principals' uses."""
    rows = db.execute("SELECT principal, by_node FROM uses").fetchall()
    return {principal: sorted(by_node) for principal, by_node in rows}


async def use(node: KeyOwners, members: Members, *principals: str) -> None:
    """Let principals use something at a node whose process ends then."""
    uses = await NodeUses.open(node._membership, members.address)
    for principal in principals:
        assert await uses.publish(principal, SOME, Quotas())
    await uses.close()


async def test_of_uses_nothing_is_left_when_their_nodes_are_gone(members: Members) -> None:
    one, other = await members.join("one"), await members.join("other")
    with contextlib.closing(connect(members.address)) as db:
        await use(one, members, "ada", "bob")
        await use(other, members, "bob", "eve")
        assert rows_of(db) == {"ada": ["one"], "bob": ["one", "other"], "eve": ["other"]}
        await one._membership.close()
        NodeTable(members.address).remove("one")
        assert rows_of(db) == {"bob": ["other"], "eve": ["other"]}
        await use(other, members, "zoe")
        assert rows_of(db) == {"zoe": ["other"]}


@contextlib.asynccontextmanager
async def starting(node: KeyOwners, members: Members) -> AsyncGenerator[None, None]:
    """A node's start that waits for whoever has a row of uses; it must succeed in the end."""
    start = asyncio.create_task(NodeUses.open(node._membership, members.address))
    try:
        with contextlib.closing(connect(members.address)) as db:

            def waits() -> bool:
                return bool(db.execute("SELECT FROM pg_locks WHERE NOT granted").fetchall())

            await eventually(waits)
            yield
    finally:
        uses = await start
        await uses.close()


async def test_nodes_that_start_together_do_not_wait_for_each_other_in_a_circle(members: Members) -> None:
    """Whoever waits for the first row has no later one, wherever the rows are in the table."""
    one = await members.join("one")
    await use(one, members, "bob", "ada")
    with contextlib.closing(connect(members.address)) as db:
        db.execute("BEGIN")
        db.execute("SELECT FROM uses WHERE principal = 'ada' FOR UPDATE")
        async with starting(one, members):
            try:
                db.execute("SELECT FROM uses WHERE principal = 'bob' FOR UPDATE NOWAIT")
            finally:
                db.execute("ROLLBACK")
        assert rows_of(db) == {}


async def test_of_two_nodes_that_leave_a_row_together_the_last_one_removes_it(members: Members) -> None:
    one, other = await members.join("one"), await members.join("other")
    await use(one, members, "ada")
    await use(other, members, "ada")
    with contextlib.closing(connect(members.address)) as db:
        db.execute("BEGIN")
        db.execute(statements.REMOVE_USES, other._membership.asked())
        async with starting(one, members):
            db.execute("COMMIT")
        assert rows_of(db) == {}


async def test_a_row_without_any_use_is_removed(members: Members) -> None:
    one, other = await members.join("one"), await members.join("other")
    uses = [await NodeUses.open(node._membership, members.address) for node in (one, other)]
    with contextlib.closing(connect(members.address)) as db:
        for each in uses:
            assert await each.publish("ada", SOME, Quotas())
            assert await each.publish("eve", NOTHING, Quotas())
        assert rows_of(db) == {"ada": ["one", "other"]}
        for each, left in zip(uses, ({"ada": ["other"]}, {}), strict=True):
            # What is over a lowered quota may become less.
            assert await each.publish("ada", NOTHING, Quotas(sessions=1))
            assert rows_of(db) == left
    for each in uses:
        await each.close()


async def test_who_uses_something_at_other_nodes_is_listed_by_name(members: Members) -> None:
    nodes = [await members.join(name) for name in ("one", "other", "third")]
    await steady(*nodes)
    one, other, third = [await NodeUses.open(node._membership, members.address) for node in nodes]
    # In this order everywhere, whatever the database's language is.
    for principal in ("B", "a", "b", "c"):
        await other.publish(principal, SOME, Quotas())
        await third.publish(principal, SOME, Quotas())
    await one.publish("0", SOME, Quotas())
    assert [*(await one.first("", 3)).items()] == [(each, Sums(2, 128, 0.2, 2)) for each in ("B", "a", "b")]
    silence(nodes[2])
    await other.publish("b", NOTHING, Quotas())
    await asyncio.sleep(LEASE + 3 * BEAT)
    assert [*(await one.first("B", 3)).items()] == [(each, SOME) for each in ("a", "c")]
    for each in (one, other, third):
        await each.close()


async def test_uses_whose_begin_fails_leave_nothing_open(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = await members.join("one")
    threads = set(threading.enumerate())
    monkeypatch.setattr(statements, "REMOVE_USES", "SELECT nonsense")
    with pytest.raises(StorageError):
        await NodeUses.open(one._membership, members.address)
    assert [each.name for each in set(threading.enumerate()) - threads] == []


async def test_a_use_that_can_not_be_told_is_told_later(
    members: Members, caplog: pytest.LogCaptureFixture
) -> None:
    one = await members.join("one")
    uses = await NodeUses.open(one._membership, members.address)
    errors = [RuntimeError("a fault of ours"), StorageError("The database is away")]
    told: list[str] = []

    async def publish_own(principal: str) -> None:
        if principal == "ada" and errors:
            raise errors.pop(0)
        told.append(principal)

    uses.publish_own = publish_own
    uses.changed("ada")
    uses.changed("bob")
    await eventually(lambda: told == ["bob", "ada"])
    assert "a fault of ours" in caplog.text
    await uses.close()


async def test_a_use_that_can_not_be_told_by_a_fault_of_ours_is_tried_less_and_less_often(
    members: Members, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And it keeps nobody else's waiting."""
    monkeypatch.setattr("cellgate.cluster.uses.MOST_PAUSE", 8 * BEAT)
    one = await members.join("one")
    uses = await NodeUses.open(one._membership, members.address)
    tried: list[float] = []
    told: list[str] = []

    async def publish_own(principal: str) -> None:
        if principal == "ada":
            tried.append(asyncio.get_running_loop().time())
            raise RuntimeError("a fault of ours")
        told.append(principal)

    uses.publish_own = publish_own
    uses.changed("ada")
    uses.changed("bob")
    await eventually(lambda: len(tried) == 4)
    uses.changed("ada")
    uses.changed("eve")
    await eventually(lambda: told == ["bob", "eve"])
    await eventually(lambda: len(tried) == 6)
    pauses = [late - early for early, late in itertools.pairwise(tried)]
    assert all(pause >= least * BEAT for pause, least in zip(pauses, (1, 2, 4, 8, 8), strict=False)), pauses
    await uses.close()


async def test_an_id_of_a_node_that_no_gateway_has_is_refused(members: Members) -> None:
    """It would be the name of a folder, on the disk that gateways share."""
    one, other = await members.join("one"), await members.join("other")
    await leave_ended(members, one)
    with contextlib.closing(connect(members.address)) as db:
        for bad in ("../one", "", "a b"):
            db.execute("UPDATE owners SET home = %s", (bad,))
            with pytest.raises(StorageError, match="no gateway's id"):
                await other.files_at(*KEY)
            db.execute("UPDATE nodes SET id = %s, lease = 1000 WHERE url = 'http://one:8888'", (bad,))
            with pytest.raises(StorageError, match="no gateway's id"):
                await other.find(*KEY)


async def test_nodes_know_each_other(members: Members) -> None:
    one, other = await members.join("one"), await members.join("other")
    one._membership.measure = lambda: Load(8, 3, 2)

    def seen() -> bool:
        found = other._membership.nodes.get("one")
        return found is not None and found.load == Load(8, 3, 2)

    await eventually(seen)
    assert other._membership.nodes["one"].state is NodeState.UP
    assert other.address_of("one") == "http://one:8888"
    assert other.address_of("other") is other.address_of("unknown") is None
    silence(one)
    await eventually(lambda: other._membership.nodes["one"].state is NodeState.DOWN)
    assert other.address_of("one") is None
    await other._membership.close()
    third = await members.join("third")
    await eventually(lambda: bool(third._membership.nodes))
    assert third._membership.nodes["other"].state is NodeState.DOWN, "it has left"


@pytest.mark.parametrize(
    ("recorded", "age", "state", "lives"),
    [
        ("up", 1, NodeState.UP, True),
        ("up", 8, NodeState.LATE, True),
        ("up", 16, NodeState.DOWN, False),
        ("draining", 8, NodeState.DRAINING, True),
        ("draining", 16, NodeState.DOWN, False),
        ("down", 1, NodeState.DOWN, False),
    ],
)
def test_a_nodes_state_follows_from_its_last_beat(
    recorded: str, age: float, state: NodeState, lives: bool
) -> None:
    row = ("one", "http://one:8888", recorded, 8, 3, 2, 0, 15.0, datetime.now(UTC))
    node = node_of(row, age)
    assert (node.state, node.lives) == (state, lives)


@pytest.mark.parametrize(
    ("advertise", "lease", "told"),
    [
        ("", 15, "advertise must be"),
        ("10.0.0.7:8888", 15, "advertise must be"),
        ("http://ada:secret@one:8888", 15, "advertise must be"),
        ("http://one:99999", 15, "advertise must be"),
        ("http://one:8888/cellgate", 15, "without a path"),
        ("http://one:8888", 11, "lease must be at least 4 times the beat"),
    ],
)
def test_settings_that_no_cluster_can_have(advertise: str, lease: float, told: str) -> None:
    with pytest.raises(InvalidInput, match=told) as refusal:
        check_cluster(ClusterSettings("postgresql://db/record", advertise, lease, 3))
    assert "secret" not in refusal.value.message
