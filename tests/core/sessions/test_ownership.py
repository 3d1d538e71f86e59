"""The contract of ownerships, and a registry that has the record in common with another gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from msgspec import structs
from msgspec.json import decode

from cellgate.errors import (
    CannotShare,
    Conflict,
    Fenced,
    NotRecorded,
    OwnedElsewhere,
    PrincipalQuotaExceeded,
    StorageError,
)
from cellgate.execution.request import ExecuteRequest
from cellgate.identity.principal import EVERYWHERE
from cellgate.quotas.cluster_uses import ClusterUses, Sums
from cellgate.quotas.quotas import Policy, Quotas
from cellgate.record.store.interface import FENCED
from cellgate.sessions.adoption import Recovery
from cellgate.sessions.fences import FENCE, Fences
from cellgate.sessions.keys import SessionKeys
from cellgate.sessions.ownership import OURS, Alone, KeyOwner, Ownership
from cellgate.sessions.proven_time import ProvenTime
from cellgate.sessions.reader import Archive
from cellgate.sessions.retention import Retention
from cellgate.sessions.settings import RetentionSettings
from cellgate.testing.record_store import session_row
from cellgate.wire.models import SessionBody
from cellgate.wire.queries import SessionsQuery
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import DeadlinePassed, GatewayFault
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.launcher import KernelLauncher
from tests.core.fakes import House
from tests.core.shared_keys import Keys, Shared
from tests.pure.record.conftest import eventually

THERE = "http://other:8888"
KEY = ("ada", "s")
BODY = SessionBody(session="s")


@pytest.fixture
def keys() -> Keys:
    return {}


@pytest.fixture
async def house(tmp_path: Path, keys: Keys) -> AsyncIterator[House]:
    house = await House.open(tmp_path)
    house.manager.keys.ownership = Shared("here", keys)
    yield house
    await house.close()


async def ended_elsewhere(house: House, keys: Keys) -> Keys:
    """Let a session end whose files are at another gateway, and old ones here; return where they are."""
    session, _ = await house.manager.get_or_create("ada", BODY)
    (house.pool.kernels[0].folder / "a").write_text("old")
    await session.end("idle_timeout")
    homes = {KEY: THERE}
    house.manager.keys.ownership = Shared("here", keys, homes)
    return homes


@pytest.mark.parametrize("ownership", [Alone(), Shared("here", {})])
async def test_a_claimed_key_is_ours_until_it_is_released(ownership: Ownership) -> None:
    ownership.release(*KEY)
    for _ in range(2):
        assert await ownership.claim(*KEY) == OURS
        assert await ownership.claim(*KEY) == OURS
        assert await ownership.find(*KEY) == OURS
        ownership.release(*KEY)


async def test_only_one_of_two_has_a_key(keys: Keys) -> None:
    one, other = Shared("one", keys), Shared("other", keys)
    assert await other.find(*KEY) is None
    await one.claim(*KEY)
    other.release(*KEY)
    assert await other.claim(*KEY) == await other.find(*KEY) == KeyOwner("one")
    one.release(*KEY)
    assert await other.claim(*KEY) == OURS


async def test_a_session_of_another_gateway_is_left_to_that(house: House, keys: Keys) -> None:
    keys[KEY] = keys["ada", "branch"] = THERE
    manager = house.manager
    for refused in (
        manager.get_or_create("ada", BODY),
        manager.get_or_create("ada", SessionBody(session="t", workspace_of="s")),
        manager.execute("ada", "s", ExecuteRequest("1")),
        manager.branch("ada", "s", "b", BranchSpec()),
    ):
        with pytest.raises(OwnedElsewhere) as refusal:
            await refused
        assert refusal.value.address == THERE
    await manager.get_or_create("ada", SessionBody(session="mine"))
    with pytest.raises(Conflict, match="Another gateway has the session 'branch'"):
        await manager.branch("ada", "mine", "branch", BranchSpec())
    await house.journal.commit()
    assert [row.key for row in await house.journal.reads.sessions()] == ["mine"]
    assert keys == {KEY: THERE, ("ada", "branch"): THERE, ("ada", "mine"): "here"}


async def test_files_that_were_lost_with_a_gateway_are_not_shared(house: House, keys: Keys) -> None:
    homes = await ended_elsewhere(house, keys)
    sharing = SessionBody(session="t", workspace_of="s")
    with pytest.raises(CannotShare, match="Run a cell there first"):
        await house.manager.get_or_create("ada", sharing)
    assert (homes, keys, house.manager.get("ada", "t")) == ({KEY: THERE}, {}, None)
    first, _ = await house.manager.get_or_create("ada", BODY)
    second, _ = await house.manager.get_or_create("ada", sharing)
    assert second.row.folder == first.row.folder


@pytest.mark.parametrize("live", [True, False])
async def test_sessions_of_two_gateways_have_no_common_workspace(
    house: House, keys: Keys, *, live: bool
) -> None:
    """The request is not handed on: the other gateway would find that the asking session is here."""
    homes: Keys = {}
    house.manager.keys.ownership = Shared("here", keys, homes)
    session, _ = await house.manager.get_or_create("ada", SessionBody(session="t"))
    if not live:
        await session.end("idle_timeout")
    keys[KEY] = homes[KEY] = THERE
    with pytest.raises(CannotShare, match="at two gateways"):
        await house.manager.get_or_create("ada", SessionBody(session="t", workspace_of="s"))
    assert keys[KEY] == THERE


async def test_a_session_is_not_opened_while_its_files_are_being_removed(house: House, keys: Keys) -> None:
    class Slow(Shared):
        async def claim(self, principal: str, key: str) -> KeyOwner:
            claiming.set()
            await answer.wait()
            return await super().claim(principal, key)

    session, _ = await house.manager.get_or_create("ada", BODY)
    (house.pool.kernels[0].folder / "a").write_text("deleted")
    await session.end("idle_timeout")
    claiming, answer = asyncio.Event(), asyncio.Event()
    house.manager.keys.ownership = Slow("here", keys)
    deleting = [asyncio.ensure_future(house.manager.delete(*KEY)) for _ in range(2)]
    await claiming.wait()
    opening = asyncio.ensure_future(house.manager.get_or_create("ada", BODY))
    for _ in range(20):
        await asyncio.sleep(0)
    assert not house.manager.keys.find(KEY).open
    answer.set()
    await asyncio.gather(*deleting)
    again, made = await opening
    assert (made, again.ending, keys) == (True, False, {KEY: "here"})
    assert not (house.pool.kernels[-1].folder / "a").exists()


async def test_a_session_that_was_used_since_retention_chose_it_stays(house: House, keys: Keys) -> None:
    """As by another gateway, between the choice and the claim."""

    class Used(Shared):
        async def claim(self, principal: str, key: str) -> KeyOwner:
            row = await house.journal.reads.session(principal, key)
            assert row is not None
            house.journal.save_session(structs.replace(row, last_activity="2099-01-01T00:00:00.000000Z"))
            await house.journal.commit()
            return await super().claim(principal, key)

    session, _ = await house.manager.get_or_create("ada", BODY)
    (house.pool.kernels[0].folder / "a").write_text("kept")
    await session.end("idle_timeout")
    house.manager.keys.ownership = Used("here", keys)
    lane = Lane("bulk", 1)
    clock = ProvenTime(house.workspaces)
    retention = Retention(house.journal, house.manager.purger, RetentionSettings(size=0), clock, lane)
    assert await retention._look() == 0
    assert (await house.journal.reads.session(*KEY) is not None, len(house.kept()), keys) == (True, 1, {})
    lane.close()


async def test_whoever_loses_a_race_for_a_key_opens_nothing(house: House, keys: Keys) -> None:
    class Late(Shared):
        async def find(self, principal: str, key: str) -> None:
            return None

        async def claim(self, principal: str, key: str) -> KeyOwner:
            return KeyOwner(THERE)

    keys[KEY] = THERE
    house.manager.keys.ownership = Late("here", keys)
    with pytest.raises(OwnedElsewhere):
        await house.manager.get_or_create("ada", BODY)
    assert (house.manager.get(*KEY), house.pool.kernels, keys) == (None, [], {KEY: THERE})
    assert house.manager.counts()["starting"] == 0


async def test_a_key_is_released_when_its_session_is_over(house: House, keys: Keys) -> None:
    house.faults.arm("claim")
    with pytest.raises(GatewayFault):
        await house.manager.get_or_create("ada", BODY)
    assert keys == {}
    session, _ = await house.manager.get_or_create("ada", BODY)
    assert keys == {KEY: "here"}
    await session.end("idle_timeout")
    assert keys == {}
    await house.manager.get_or_create("ada", BODY)
    await house.manager.delete(*KEY)
    assert keys == {}


async def test_old_files_are_gone_before_the_session_is_settled_here(house: House, keys: Keys) -> None:
    """Whatever fails in between, the next opening finds that they are old."""
    homes = await ended_elsewhere(house, keys)

    async def fails(*_: object, **__: object) -> bool:
        raise StorageError("The database is away")

    for owner, name in (
        (house.manager.opener.workspaces, "is_held"),
        (house.manager.keys.ownership, "settle"),
    ):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(owner, name, fails)
            with pytest.raises(StorageError):
                await house.manager.get_or_create("ada", BODY)
        assert (homes, keys, house.pool.in_use) == ({KEY: THERE}, {}, set())
    await house.manager.get_or_create("ada", BODY)
    assert (homes, keys, house.kept()) == ({KEY: "here"}, {KEY: "here"}, [])
    assert not (house.pool.kernels[-1].folder / "a").exists()


@pytest.mark.parametrize("key", ["s", "unrecorded"])
async def test_an_opening_without_a_kernel_leaves_the_files_at_their_gateway(
    house: House, keys: Keys, key: str
) -> None:
    """Whether it waits in line for too long or no kernel starts."""
    homes = await ended_elsewhere(house, keys)
    homes["ada", key] = THERE
    body, now = SessionBody(session=key), asyncio.get_running_loop().time()
    house.pool.gate.clear()
    with pytest.raises(DeadlinePassed):
        await house.manager.get_or_create("ada", body, until=now + 0.05)
    house.pool.gate.set()
    house.faults.arm("claim")
    with pytest.raises(GatewayFault):
        await house.manager.get_or_create("ada", body)
    assert (homes["ada", key], len(house.kept())) == (THERE, 1)
    await house.manager.get_or_create("ada", body)
    assert (homes["ada", key], len(house.kept())) == ("here", 0 if key == "s" else 1)


async def test_openings_that_are_about_to_claim_a_kernel_are_counted(
    house: House, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a look at all: each of many claims at a time asks for their number."""

    class Slow(Shared):
        async def claim(self, principal: str, key: str) -> KeyOwner:
            await answer.wait()
            if key == "fails":
                raise StorageError("The database is away")
            return await super().claim(principal, key)

    answer = asyncio.Event()
    manager = house.manager
    manager.keys.ownership = Slow("here", keys)
    house.pool.gate.clear()
    bodies = [SessionBody(session=key) for key in ("a", "b", "fails")]
    asked = [asyncio.ensure_future(manager.get_or_create("ada", body)) for body in bodies]
    with monkeypatch.context() as patch:
        patch.setattr(SessionKeys, "openings", lambda _: pytest.fail("All openings were looked at"))
        await eventually(lambda: manager.keys.unmade == 3)
    answer.set()
    with pytest.raises(StorageError):
        await asked[2]
    await eventually(lambda: manager.keys.unmade == 0)
    assert len([*manager.keys.openings()]) == 2
    house.pool.gate.set()
    await asyncio.gather(*asked[:2])


@pytest.mark.parametrize(("state", "limit"), [(None, 2), ("busy", 2), ("live", 150)])
async def test_a_list_asks_once_for_the_cells_of_other_gateways_sessions(
    house: House, keys: Keys, lane: Lane, monkeypatch: pytest.MonkeyPatch, state: str | None, limit: int
) -> None:
    """Once for each block of rows, which with no wanted state are those of the page."""
    rows = []
    for number in range(150):
        rows.append(session_row(await house.journal.begin_session("ada", f"s{number}"), f"s{number}"))
        house.journal.save_session(structs.replace(rows[-1], state="idle"))
    asked: list[int] = []

    async def counts(session_ids: Sequence[int]) -> dict[int, int]:
        asked.extend(session_ids)
        return dict.fromkeys(session_ids, 2)

    monkeypatch.setattr(house.journal.reads, "unfinished_counts", counts)
    nothing: Any = None
    archive = Archive(house.journal, house.manager, nothing, lane)
    models, _ = await archive.models("ada", EVERYWHERE, SessionsQuery(state=state, limit=limit))
    assert [(each.state, each.queue_length) for each in models] == [("busy", 1)] * limit
    read = 100 if state == "busy" else limit
    assert asked == [row.id for row in rows[:read]]


async def test_a_branch_settles_its_key_before_it_has_files(
    house: House, keys: Keys, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = await house.manager.get_or_create("ada", BODY)
    homes = {("ada", "b"): THERE}
    house.manager.keys.ownership = Shared("here", keys, homes)

    async def branch(*_: object) -> None:
        assert homes["ada", "b"] == "here"
        raise StorageError("The disk is full")

    monkeypatch.setattr(session.slot, "branch", branch)
    with pytest.raises(StorageError, match="The disk is full"):
        await house.manager.branch("ada", "s", "b", BranchSpec())


async def test_records_and_files_of_another_gateways_session_are_not_removed(
    house: House, keys: Keys
) -> None:
    session, _ = await house.manager.get_or_create("ada", BODY)
    (house.pool.kernels[0].folder / "a").write_text("kept")
    await session.end("idle_timeout")
    keys[KEY] = THERE
    for removed in (house.manager.delete(*KEY), house.manager.purger.purge(*KEY, by="ada")):
        with pytest.raises(OwnedElsewhere):
            await removed
    assert len(house.kept()) == 1
    assert await house.journal.reads.session(*KEY) is not None
    assert keys == {KEY: THERE}


async def test_a_purge_whose_session_another_gateway_has_taken_removes_nothing(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The key was claimed; the other gateway came between that and the claim of the record."""

    async def fenced(session_id: int) -> int:
        raise Fenced(FENCED)

    session, _ = await house.manager.get_or_create("ada", BODY)
    await session.end("idle_timeout")
    monkeypatch.setattr(house.journal, "claim", fenced)
    with pytest.raises(Fenced):
        await house.manager.purger.purge(*KEY, by="ada")
    assert await house.journal.reads.session(*KEY) is not None
    lane = Lane("bulk", 1)
    settings = RetentionSettings(size=0)
    retention = Retention(house.journal, house.manager.purger, settings, ProvenTime(house.workspaces), lane)
    assert await retention._look() == 0
    assert await house.journal.reads.session(*KEY) is not None
    lane.close()


async def test_a_gateway_starts_without_what_another_one_takes_over_just_then(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fenced(session_id: int) -> int:
        raise Fenced(FENCED)

    row = session_row(await house.journal.begin_session(*KEY), "s")
    house.journal.save_session(row)
    await house.journal.commit()
    monkeypatch.setattr(house.journal, "claim", fenced)
    launcher = cast(KernelLauncher, None)  # no kernel is left
    assert await Recovery(house.journal, launcher, {}, house.manager.opener).recover() == (0, 0)
    assert await house.journal.reads.session(*KEY) == row


async def test_retention_leaves_what_another_gateway_has_and_goes_on(house: House, keys: Keys) -> None:
    for key in ("theirs", "ours"):
        session, _ = await house.manager.get_or_create("ada", SessionBody(session=key))
        await session.end("idle_timeout")
    keys["ada", "theirs"] = THERE
    settings = RetentionSettings(size=0)
    lane = Lane("bulk", 1)
    clock = ProvenTime(house.workspaces)
    retention = Retention(house.journal, house.manager.purger, settings, clock, lane)
    assert await retention._look() == 1
    assert [row.key for row in await house.journal.reads.sessions()] == ["theirs"]
    assert keys == {("ada", "theirs"): THERE}
    lane.close()


async def test_who_has_the_files_of_an_ended_session_removes_it(house: House, keys: Keys) -> None:
    """Nobody has the key, but another gateway has the files, even if it opens no more sessions."""
    homes = await ended_elsewhere(house, keys)
    manager = house.manager
    lane = Lane("bulk", 1)
    clock = ProvenTime(house.workspaces)
    retention = Retention(house.journal, manager.purger, RetentionSettings(size=0), clock, lane)
    assert await retention._look() == 0
    for removed in (manager.delete(*KEY), manager.purger.purge(*KEY, by="ada")):
        with pytest.raises(OwnedElsewhere):
            await removed
    assert (homes, keys, len(house.kept())) == ({KEY: THERE}, {}, 1)
    del homes[KEY]
    assert await retention._look() == 1
    assert house.kept() == []
    lane.close()


async def test_a_fenced_session_ends_here_with_its_kernel(house: House, keys: Keys) -> None:
    """Its files stay, and nothing of its end is recorded: the record is the other gateway's."""
    session, _ = await house.manager.get_or_create("ada", BODY)
    kept, _ = await house.manager.get_or_create("ada", SessionBody(session="kept"))
    await house.journal.commit()
    before = await house.journal.reads.session(*KEY)
    keys[KEY] = THERE
    fences = Fences(
        house.journal,
        house.manager.keys,
        lambda each, why: house.manager.end_later(each, why, keep_files=True),
    )
    fences._end_by_id(session.row.id)
    await session.over
    assert session.record.cause == FENCE
    assert (house.manager.get(*KEY), house.manager.get("ada", "kept")) == (None, kept)
    with pytest.raises(NotRecorded):
        house.journal.check_writable(session.row.id)
    assert await house.journal.reads.session(*KEY) == before
    assert keys == {KEY: THERE, ("ada", "kept"): "here"}


@pytest.mark.parametrize("found_by", ["its key", "its rows"])
async def test_an_opening_whose_key_another_gateway_has_taken_is_given_up(
    house: House, keys: Keys, found_by: str
) -> None:
    """Its requests are told to ask again; no kernel is left, and nothing is recorded."""
    fences = Fences(
        house.journal,
        house.manager.keys,
        lambda each, why: house.manager.end_later(each, why, keep_files=True),
    )
    house.pool.gate.clear()
    asked = asyncio.ensure_future(house.manager.get_or_create("ada", BODY))
    await house.pool.asked.wait()
    assert fences._recorded() == [KEY]
    keys[KEY] = THERE
    made = house.manager.keys.find(KEY).made
    assert made is not None
    if found_by == "its key":
        fences._end_by_key(KEY)
    else:
        fences._end_by_id(made.row.id)
    with pytest.raises(Fenced):
        await asked
    house.pool.gate.set()
    assert (house.manager.get(*KEY), house.pool.kernels, keys) == (None, [], {KEY: THERE})
    assert house.manager.counts()["starting"] == 0
    with pytest.raises(NotRecorded):
        house.journal.check_writable(made.row.id)
    assert await house.journal.reads.sessions() == []


async def test_an_opening_that_has_not_claimed_its_key_yet_has_not_lost_it(house: House, keys: Keys) -> None:
    class Slow(Shared):
        async def claim(self, principal: str, key: str) -> KeyOwner:
            claiming.set()
            await answer.wait()
            return await super().claim(principal, key)

    claiming, answer = asyncio.Event(), asyncio.Event()
    house.manager.keys.ownership = Slow("here", keys)
    fences = Fences(house.journal, house.manager.keys, lambda _: None)
    asked = asyncio.ensure_future(house.manager.get_or_create("ada", BODY))
    await claiming.wait()
    assert fences._recorded() == []
    answer.set()
    await asked
    assert fences._recorded() == [KEY]


async def test_what_a_lost_gateway_left_open_ends_before_the_session_goes_on(
    house: House, keys: Keys
) -> None:
    session, _ = await house.manager.get_or_create("ada", BODY)
    await house.journal.commit()
    left = await house.journal.reads.session(*KEY)
    assert left is not None
    await session.end("idle_timeout")
    await house.journal.commit()
    house.journal.save_session(left)
    await house.journal.commit()
    session, _ = await house.manager.get_or_create("ada", BODY)
    await house.journal.commit()
    ends = [
        (event["state"], event["cause"])
        async for batch in house.journal.reads.event_batches(session.row.id)
        for event in map(decode, (row.body for row in batch))
        if event["type"] == "session"
    ]
    assert ends[-2:] == [("ended", "node_lost"), ("idle", "resumed")]


async def test_a_session_that_quotas_refuse_keeps_its_files_at_their_gateway(house: House) -> None:
    """Another gateway has reserved the last session since this one looked."""

    class Full(ClusterUses):
        looks = 0

        async def of_others(self, principals: Sequence[str]) -> Mapping[str, Sums]:
            self.looks += 1
            return {"ada": Sums(1)} if self.looks == 2 else {}

        async def first(self, after: str, limit: int) -> Mapping[str, Sums]:
            return {}

        async def publish(self, principal: str, own: Sums, most: Quotas) -> bool:
            return self.looks > 2

        def changed(self, principal: str) -> None:
            """Nobody is told."""

    homes = await ended_elsewhere(house, {})
    usage = house.manager.opener._usage
    usage.change(Policy({"user": {"sessions": 1}}))
    usage.cluster = Full()
    with pytest.raises(PrincipalQuotaExceeded):
        await house.manager.get_or_create("ada", BODY)
    assert (homes, len(house.kept())) == ({KEY: THERE}, 1)
    await house.manager.get_or_create("ada", BODY)
    assert homes == {KEY: "here"}
    assert not (house.pool.kernels[-1].folder / "a").exists()
