"""The memory held for one client: what counts, from when to when, and for whom."""

from __future__ import annotations

from contextlib import suppress

import pytest

from cellgate.http.listener.held_memory import HeldMemory
from cellgate_kernels.base.budget import ByteBudget, largest


@pytest.fixture
def budget() -> ByteBudget:
    return ByteBudget(1000, largest)


@pytest.fixture
def ended() -> list[str]:
    """Whose memory the budget has ordered to be given up."""
    return []


@pytest.fixture
def memory(budget: ByteBudget, ended: list[str]) -> HeldMemory:
    return HeldMemory(budget, "ada", lambda: ended.append("ada"))


def test_a_message_counts_until_it_is_released(budget: ByteBudget, memory: HeldMemory) -> None:
    memory.hold(100)
    memory.hold(50)
    assert (budget.held_by("ada"), memory.is_unread) == (150, False)
    memory.release()
    assert (budget.held, memory in budget) == (0, False)


def test_what_a_caller_keeps_counts_meanwhile(budget: ByteBudget, memory: HeldMemory) -> None:
    with suppress(OSError), memory.owing(100):
        assert (budget.held, memory.is_unread) == (100, True)
        raise OSError
    assert budget.held == 0


def test_a_write_counts_as_a_whole_until_its_last_byte_is_taken(
    budget: ByteBudget, memory: HeldMemory
) -> None:
    memory.took(100)
    memory.wrote(100)
    assert budget.held == 0, "the system took it at once"
    memory.wrote(100)
    memory.wrote(200)
    for count, held in ((99, 300), (1, 200), (199, 200), (1, 0)):
        memory.took(count)
        assert budget.held == held


def test_it_counts_for_whoever_it_is_at_the_time(budget: ByteBudget, memory: HeldMemory) -> None:
    memory.hold(100)
    memory.whose = "bea"
    assert budget.held_by("ada") == 100
    memory.hold(1)
    assert (budget.held_by("ada"), budget.held_by("bea")) == (0, 101)


def test_what_is_given_up_counts_no_more(budget: ByteBudget, memory: HeldMemory, ended: list[str]) -> None:
    other = HeldMemory(budget, "bea", lambda: ended.append("bea"))
    other.hold(400)
    memory.hold(700)
    assert ended == ["ada"]
    memory.wrote(5000)
    memory.give_up()
    memory.close()
    assert (ended, budget.held, budget.held_by("bea")) == (["ada"], 400, 400)


def test_nothing_counts_of_a_closed_connection(
    budget: ByteBudget, memory: HeldMemory, ended: list[str]
) -> None:
    with memory.owing(10):
        memory.hold(100)
        memory.close()
        assert budget.held == 0
    memory.hold(5000)
    assert (budget.held, ended) == (0, [])
