"""Turns at what clients can request at will: in order, for everybody, and not for ever."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellgate.errors import QueueFull
from cellgate.fairness.turns import Turns, part_of_one
from cellgate_kernels.testing.clock import VirtualTimeLoop


async def steps() -> None:
    """Let every task go as far as it can."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_turns_are_had_in_order_and_the_rest_is_refused() -> None:
    turns = Turns(1, 4, 60, "full", retry_after=7)
    order: list[int] = []
    release = asyncio.Event()

    async def work(number: int) -> None:
        async with turns.turn("ada"):
            order.append(number)
            await release.wait()

    tasks = [asyncio.ensure_future(work(number)) for number in range(4)]
    await steps()
    with pytest.raises(QueueFull) as raised:
        await work(4)
    assert raised.value.retry_after == 7
    tasks[1].cancel()
    await asyncio.wait([tasks[1]])
    tasks.append(asyncio.ensure_future(work(5)))
    await steps()
    release.set()
    await asyncio.gather(tasks[0], *tasks[2:])
    assert order == [0, 2, 3, 5]


async def test_nobody_waits_for_a_turn_for_ever() -> None:
    turns = Turns(1, 2, 0.05, "full")
    async with turns.turn("ada"):
        with pytest.raises(QueueFull):
            async with turns.turn("bob"):
                pass
    async with turns.turn("bob"):
        pass


async def test_one_principal_leaves_a_place_for_others() -> None:
    turns = Turns(4, 8, 60, "full")
    running: Counter[str] = Counter()
    release = asyncio.Event()

    async def work(name: str) -> None:
        async with turns.turn(name):
            running[name] += 1
            await release.wait()

    of_ada = [asyncio.ensure_future(work("ada")) for _ in range(3 + 6)]
    await steps()
    assert running == {"ada": 3}
    with pytest.raises(QueueFull):
        await work("ada")
    of_bob = [asyncio.ensure_future(work("bob")) for _ in range(3)]
    await steps()
    assert running == {"ada": 3, "bob": 1}, "bob has the fourth place, and waits with two"
    with pytest.raises(QueueFull):
        await work("eve")
    release.set()
    await asyncio.gather(*of_ada, *of_bob)
    assert running == {"ada": 9, "bob": 3}


async def test_who_comes_new_waits_for_one_turn_of_another() -> None:
    turns = Turns(1, 16, 60, "full")
    order: list[str] = []

    async def work(name: str) -> None:
        async with turns.turn(name):
            order.append(name)
            await asyncio.sleep(0)

    names = ["ada"] * 8 + ["bob"]
    await asyncio.gather(*map(work, names))
    assert order.index("bob") <= 2


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.floats(0, 5), st.floats(0, 5), st.floats(0.1, 9))),
    st.integers(1, 5),
    st.integers(1, 6),
)
def test_places_are_never_too_many_nor_lost(
    work: list[tuple[str, float, float, float]], at_once: int, most_waiting: int
) -> None:
    """Whoever comes, works, gives up or is refused whenever: in the end all places are free."""

    async def go() -> None:
        turns = Turns(at_once, most_waiting, 3, "full")
        running: Counter[str] = Counter()

        async def one(name: str, at: float, length: float, patience: float) -> None:
            await asyncio.sleep(at)
            try:
                async with asyncio.timeout(patience), turns.turn(name):
                    running[name] += 1
                    assert running.total() <= at_once
                    assert running[name] <= part_of_one(at_once)
                    try:
                        await asyncio.sleep(length)
                    finally:
                        running[name] -= 1
            except (QueueFull, TimeoutError):
                pass

        await asyncio.gather(*(one(*each) for each in work))
        assert running.total() == 0
        assert (turns._running, turns._waiting, len(turns._line)) == ({}, {}, 0)

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        runner.run(go())
