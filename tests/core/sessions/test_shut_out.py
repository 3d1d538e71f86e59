"""A user who is disabled or removed: everything of theirs ends, whatever waits, and nobody else's does."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.errors import Forbidden
from cellgate.wire.models import SessionBody
from cellgate_kernels.testing import starts_after, virtual_time
from tests.core.world import PRINCIPAL, World

SHUT_OUT: set[str] = set()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    SHUT_OUT.clear()
    with virtual_time() as loop:
        world = World(loop, tmp_path)
        world.run(world.open(max_kernels=10, admits=lambda name: name not in SHUT_OUT))
        yield world
        world.run(world.close())
        world.check()


def shut_out(world: World, name: str) -> None:
    SHUT_OUT.add(name)
    world.manager.end_all(name, "user_disabled")


def test_sessions_and_unrecorded_one_shots_end_and_others_stay(world: World) -> None:
    async def work() -> None:
        mine = await world.session()
        shot = await world.manager.open_one_shot(PRINCIPAL, SessionBody(), record=False)
        other, _ = await world.manager.get_or_create("other", SessionBody(session="s"))
        shut_out(world, PRINCIPAL)
        await asyncio.wait([mine.over, shot.over])
        assert mine.record.cause == "user_disabled"
        assert not other.ending

    world.run(work())


def test_what_waits_for_a_kernel_gets_none(world: World) -> None:
    world.kernels_wanted = starts_after(5.0)

    async def work() -> None:
        opening = asyncio.create_task(world.manager.get_or_create(PRINCIPAL, SessionBody(session="s")))
        shot = asyncio.create_task(world.manager.open_one_shot(PRINCIPAL, SessionBody(), record=False))
        await asyncio.sleep(1.0)
        shut_out(world, PRINCIPAL)
        results = await asyncio.gather(opening, shot, return_exceptions=True)
        assert all(isinstance(result, Exception) for result in results), results
        await asyncio.sleep(60.0)
        assert sum(world.manager.counts().values()) == 0

    world.run(work())


def test_a_request_that_waited_for_the_sessions_end_makes_no_new_one(world: World) -> None:
    async def work() -> None:
        session = await world.session()
        shut_out(world, PRINCIPAL)
        with pytest.raises(Forbidden, match="shut out"):
            await world.manager.get_or_create(PRINCIPAL, SessionBody(session="s"))
        await asyncio.wait([session.over])
        SHUT_OUT.clear()
        assert await world.session()

    world.run(work())
