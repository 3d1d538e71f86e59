"""A principal's quotas in sessions of this process: reserved before anything is awaited, then released."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import PrincipalQuotaExceeded, PrincipalQuotaExceededForNow
from cellgate.execution.cell_record import explain_end
from cellgate.execution.request import ExecuteRequest
from cellgate.quotas.quotas import Policy
from cellgate.sessions.session import Session
from cellgate.wire.models import LimitsBody, SessionBody
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.resources import GIB, MIB
from cellgate_kernels.testing import fails_to_start, starts_after, virtual_time
from tests.core.world import PRINCIPAL, Asked, World

MakeWorld = Callable[..., World]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[MakeWorld]:
    """Worlds whose users have the given quotas. Afterwards nothing is reserved, and the record is whole."""
    with virtual_time() as loop:
        made: list[World] = []

        def begin(max_kernels: int = 20, **quotas: Any) -> World:
            world = World(loop, tmp_path)
            world.run(world.open(max_kernels=max_kernels, max_queue=100, quotas=quotas))
            made.append(world)
            return world

        yield begin
        for world in made:
            world.run(world.close())
            world.check()


def used(world: World, quota: str, principal: str = PRINCIPAL) -> float | None:
    return world.usage.account(principal).uses()[quota].used


async def opened(world: World, key: str, **limits: Any) -> Session | CellgateError:
    try:
        body = SessionBody(session=key, limits=LimitsBody(**limits) if limits else None)
        return (await world.manager.get_or_create(PRINCIPAL, body))[0]
    except CellgateError as error:
        return error


def statuses(asked: list[Asked]) -> list[str]:
    return [str(each.run.machine.outcome().status) for each in asked if each.run is not None and each.told]


# Sessions


def test_a_hundred_requests_at_once_at_a_quota_of_five_give_exactly_five(make: MakeWorld) -> None:
    world = make(sessions=5)

    async def rounds() -> list[int]:
        counts = []
        for number in range(50):
            found = await asyncio.gather(*[opened(world, f"r{number}-{key}") for key in range(100)])
            sessions = [each for each in found if isinstance(each, Session)]
            refusals = [each for each in found if isinstance(each, PrincipalQuotaExceeded)]
            assert len(sessions) + len(refusals) == 100
            assert {refusal.quota for refusal in refusals} == {"sessions"}
            counts.append(len(sessions))
            assert used(world, "sessions") == 5
            for session in sessions:
                await world.manager.delete(PRINCIPAL, session.row.key)
            assert used(world, "sessions") == 0
        return counts

    assert world.run(rounds()) == [5] * 50


def test_a_deleted_sessions_room_is_free_when_the_deletion_is_answered(make: MakeWorld) -> None:
    world = make(sessions=1)

    async def work() -> None:
        for number in range(5):
            assert isinstance(await opened(world, f"s{number}"), Session)
            assert isinstance(await opened(world, "other"), PrincipalQuotaExceeded)
            await world.manager.delete(PRINCIPAL, f"s{number}")

    world.run(work())


def test_one_key_is_reserved_once_and_others_have_quotas_of_their_own(make: MakeWorld) -> None:
    world = make(sessions=1)

    async def work() -> None:
        found = await asyncio.gather(*[opened(world, "same") for _ in range(20)])
        assert len(set(found)) == 1
        await world.manager.get_or_create("bob", SessionBody(session="same"))
        assert used(world, "sessions", "bob") == 1

    world.run(work())


def test_a_session_that_fails_to_open_leaves_nothing_reserved(make: MakeWorld) -> None:
    world = make(sessions=1)
    world.kernels_wanted = fails_to_start()
    assert not isinstance(world.run(opened(world, "s")), (Session, PrincipalQuotaExceeded))
    assert used(world, "sessions") == 0
    assert used(world, "memory") == 0


def test_a_session_cancelled_before_it_begins_to_open_leaves_nothing_reserved(make: MakeWorld) -> None:
    world = make(sessions=1)
    world.kernels_wanted = starts_after(20)

    async def work() -> None:
        waiting = asyncio.ensure_future(opened(world, "s"))
        await asyncio.sleep(0)
        assert used(world, "sessions") == 1
        ((_, opening),) = world.manager.keys.openings()
        opening.task.cancel()
        assert isinstance(await waiting, CellgateError)
        assert used(world, "sessions") == 0

    world.run(work())


@pytest.mark.parametrize(
    ("quota", "limit", "asked"),
    [
        ("memory", GIB, {"memory": 600 * MIB}),
        ("cpus", 1.0, {"cpus": 0.6}),
        ("disk", 2 * GIB, {"disk": "1.1g"}),
    ],
)
def test_the_limits_of_live_sessions_are_limited_in_sum(
    make: MakeWorld, quota: str, limit: float, asked: dict[str, Any]
) -> None:
    world = make(**{quota: limit})
    assert isinstance(world.run(opened(world, "first", **asked)), Session)
    refusal = world.run(opened(world, "second", **asked))
    assert isinstance(refusal, PrincipalQuotaExceeded)
    assert refusal.quota == quota
    world.run(world.manager.delete(PRINCIPAL, "first"))
    assert isinstance(world.run(opened(world, "second", **asked)), Session)


def test_a_resumed_session_is_counted_with_the_limits_that_it_had(make: MakeWorld) -> None:
    world = make(memory=4 * GIB)

    async def work() -> None:
        assert isinstance(await opened(world, "large", memory=3 * GIB), Session)
        await world.manager.delete(PRINCIPAL, "large")
        # Its key alone: what it had comes from its record.
        assert isinstance(await opened(world, "large"), Session)
        assert used(world, "memory") == 3 * GIB
        refused = await opened(world, "other", memory=2 * GIB)
        assert isinstance(refused, PrincipalQuotaExceeded)
        assert used(world, "memory") == 3 * GIB
        await world.manager.delete(PRINCIPAL, "large")
        assert isinstance(await opened(world, "other", memory=2 * GIB), Session)
        refused = await opened(world, "large")
        assert isinstance(refused, PrincipalQuotaExceeded)
        assert (used(world, "memory"), used(world, "sessions")) == (2 * GIB, 1)

    world.run(work())


def test_unrecorded_one_shots_count_too(make: MakeWorld) -> None:
    world = make(sessions=1)

    async def work() -> None:
        body = SessionBody()
        session = await world.manager.open_one_shot(PRINCIPAL, body, record=False)
        assert isinstance(await opened(world, "s"), PrincipalQuotaExceeded)
        with pytest.raises(PrincipalQuotaExceeded):
            await world.manager.open_one_shot(PRINCIPAL, body, record=False)
        world.manager.end_later(session, "one_shot")
        await session.over
        await asyncio.sleep(0)
        assert isinstance(await opened(world, "s"), Session)

    world.run(work())


# Ceilings


def test_the_lower_of_the_two_ceilings_applies(make: MakeWorld) -> None:
    world = make(max_memory=512 * MIB, max_cell_timeout=20.0, max_lifetime=100.0)
    refusal = world.run(opened(world, "s", memory="513m"))
    assert isinstance(refusal, InvalidInput)
    assert "above the principal's ceiling max_memory, which is 536870912 bytes" in refusal.message
    session = world.run(world.session("s"))
    assert session.limits.resources.memory == 512 * MIB
    assert session.limits.cell_timeout == 20.0
    everybody = world.manager.terms.ceilings("default")
    assert everybody.resources.memory > 512 * MIB
    assert world.manager.terms.ceilings(PRINCIPAL).lifetime == 100.0
    world.pass_time(110)
    assert world.live("s") is None


def test_a_lowered_ceiling_shortens_cells_of_sessions_that_exist(make: MakeWorld) -> None:
    world = make()
    world.run(world.session("s"))
    world.usage.change(Policy({"user": {"max_cell_timeout": 2.0}}))
    asked = world.ask("s", "never")
    world.pass_time(5)
    assert statuses([asked]) == ["timeout"]


# Cells


def test_cells_above_running_wait_for_their_turn(make: MakeWorld) -> None:
    world = make(running=2)
    asked = [world.ask(key, "slow 5") for key in ("a", "b", "c", "d")]
    world.pass_time(4)
    assert (used(world, "running"), used(world, "queued")) == (2, 2)
    world.pass_time(2)
    assert statuses(asked) == ["ok", "ok"]
    assert (used(world, "running"), used(world, "queued")) == (2, 0)
    world.pass_time(5)
    assert statuses(asked) == ["ok"] * 4
    assert (used(world, "running"), used(world, "queued")) == (0, 0)


def test_sessions_take_turns_first_come_first_served(make: MakeWorld) -> None:
    world = make(running=1)
    for key in "abc":
        world.run(world.session(key))
    order: list[str] = []

    def ask(key: str) -> Asked:
        asked = world.ask(key, "slow 1")
        assert asked.task is not None
        asked.task.add_done_callback(lambda _: order.append(key))
        return asked

    asked = [ask("a") for _ in range(4)]
    world.pass_time(0.1)
    asked += [ask("b") for _ in range(2)]
    world.pass_time(0.1)
    asked += [ask("c")]
    world.pass_time(10)
    assert statuses(asked) == ["ok"] * 7
    assert "".join(order) == "abcabaa"


def test_nobody_elses_cells_wait(make: MakeWorld) -> None:
    world = make(running=1)
    world.ask("s", "slow 5")
    world.pass_time(0.1)

    async def other() -> str:
        session = (await world.manager.get_or_create("bob", SessionBody(session="s")))[0]
        run = session.submit(ExecuteRequest("hello"))
        await run.end.wait()
        return str(run.machine.outcome().status)

    assert world.run(asyncio.wait_for(other(), 1)) == "ok"


def test_a_cell_that_waits_for_its_turn_can_be_cancelled(make: MakeWorld) -> None:
    world = make(running=1)
    first = world.ask("a", "slow 5")
    world.pass_time(0.1)
    second = world.ask("b", "hello")
    third = world.ask("c", "hello")
    world.pass_time(0.1)
    session = world.live("b")
    assert session is not None
    assert second.run is not None
    world.do(session.stop, second.run.id)
    world.pass_time(0.1)
    assert statuses([second]) == ["cancelled"]
    assert used(world, "queued") == 1
    world.pass_time(6)
    assert statuses([first, third]) == ["ok", "ok"]


def test_a_restart_and_an_end_do_not_wait_for_a_turn(make: MakeWorld) -> None:
    world = make(running=1)
    first = world.ask("a", "slow 5")
    world.pass_time(0.1)
    waiting = [world.ask("b", "hello"), world.ask("c", "hello")]
    world.pass_time(0.1)
    session = world.live("b")
    assert session is not None
    world.restart(session)
    world.run(asyncio.wait_for(world.manager.delete(PRINCIPAL, "c"), 1))
    world.pass_time(1)
    assert statuses(waiting) == ["cancelled", "cancelled"]
    world.pass_time(6)
    assert statuses([first]) == ["ok"]


def test_the_timeout_of_a_cell_passes_while_it_waits_for_its_turn(make: MakeWorld) -> None:
    world = make(running=1)
    first = world.ask("a", "slow 10")
    world.pass_time(0.1)
    short = world.ask("b", "hello", timeout=3)
    after = world.ask("b", "hello")
    world.pass_time(3.1)
    assert statuses([short]) == ["timeout"]
    assert short.run is not None
    assert short.run.machine.outcome().cause == "running_quota"
    explained = explain_end(short.run.machine.outcome().status, 3, short.run.message)
    assert explained is not None
    assert "the quota `running` limits how many run at once" in explained["evalue"]
    world.pass_time(10)
    assert statuses([first, after]) == ["ok", "ok"]
    assert len(world.launcher.kernels) == 2


def test_what_a_cell_waited_is_taken_from_its_timeout(make: MakeWorld) -> None:
    world = make(running=1)
    world.ask("a", "slow 5")
    world.pass_time(0.01)
    second = world.ask("b", "never", timeout=8)
    world.pass_time(7.9)
    assert statuses([second]) == []
    world.pass_time(0.2)
    assert statuses([second]) == ["timeout"]


def test_a_cells_own_queue_does_not_shorten_its_timeout(make: MakeWorld) -> None:
    world = make(running=1)
    asked = [world.ask("a", "slow 2", timeout=3) for _ in range(3)]
    world.pass_time(10)
    assert statuses(asked) == ["ok"] * 3


def test_a_kernels_death_gives_the_turn_back(make: MakeWorld) -> None:
    world = make(running=1)
    asked = [world.ask("a", "dies 1"), world.ask("b", "hello")]
    world.pass_time(10)
    assert statuses(asked) == ["died", "ok"]


def test_too_many_queued_are_refused(make: MakeWorld) -> None:
    world = make(running=1, queued=2)
    world.ask("a", "slow 5")
    world.pass_time(0.1)
    asked = [world.ask(key, "hello") for key in ("a", "b", "b", "a")]
    world.pass_time(0.1)
    refusals = [each.refusal for each in asked if each.refusal is not None]
    assert [type(refusal) for refusal in refusals] == [PrincipalQuotaExceededForNow] * 2
    assert {refusal.quota for refusal in refusals if isinstance(refusal, PrincipalQuotaExceeded)} == {
        "queued"
    }
    world.pass_time(10)
    assert statuses(asked) == ["ok", "ok"]


def test_a_cell_that_runs_at_once_is_not_queued(make: MakeWorld) -> None:
    world = make(queued=1)
    for number in range(5):
        world.run(world.session(f"s{number}"))
    asked = [world.ask(f"s{number}", "slow 1") for number in range(5)]
    world.pass_time(3)
    assert statuses(asked) == ["ok"] * 5


def test_a_jupyter_clients_cells_count(make: MakeWorld) -> None:
    world = make(running=1, requests_per_minute=3)
    first = world.ask("a", "slow 5")
    world.pass_time(0.1)
    session = world.run(world.session("b"))
    world.do(world.connect, session, "lab")
    client = world.clients["b", "lab"]
    for _ in range(4):
        world.do(world.send, session, client, "hello")
    world.pass_time(0.1)
    assert (used(world, "running"), used(world, "queued")) == (1, 3)
    world.pass_time(6)
    assert statuses([first]) == ["ok"]
    assert (used(world, "running"), used(world, "queued")) == (0, 0)


# The record


def test_a_full_record_takes_no_cell_and_no_session(make: MakeWorld) -> None:
    world = make(record=2000)
    asked = []
    for _ in range(10):
        asked.append(world.ask("s", "hello"))
        world.pass_time(1)
    refusals = [each.refusal for each in asked if each.refusal is not None]
    assert refusals
    assert {type(refusal) for refusal in refusals} == {PrincipalQuotaExceeded}
    assert isinstance(world.run(opened(world, "another")), PrincipalQuotaExceeded)
    size = used(world, "record")
    assert size is not None
    assert size >= 2000

    async def purge() -> None:
        await world.manager.purger.purge(PRINCIPAL, "s", by="default")

    world.run(purge())
    world.asked.clear()  # of these nothing is left
    assert used(world, "record") == 0
    assert isinstance(world.run(opened(world, "another")), Session)


def test_the_size_of_a_record_is_known_after_a_restart(make: MakeWorld) -> None:
    world = make()
    for code in ("hello", "floods 50", "x = '" + "a" * 10_000 + "'", "x = '" + "a" * 10_000 + "'"):
        world.ask("s", code)
    world.pass_time(5)

    async def sizes() -> tuple[dict[str, int], int]:
        await world.journal.commit()
        session = world.live("s")
        assert session is not None
        return await world.journal.reads.record_sizes(), await world.journal.reads.record_size(session.row.id)

    of_all, of_one = world.run(sizes())
    assert of_all == {PRINCIPAL: of_one}
    assert of_one == used(world, "record") > 20_000
