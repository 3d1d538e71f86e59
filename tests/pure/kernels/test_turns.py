"""TurnOrder: the fair order, its weights, and that it keeps nothing of who has gone."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cellgate_kernels.base import turns
from cellgate_kernels.base.turns import LEAST_WEIGHT, MOST_WEIGHT, TURN, Claimant, TurnOrder

ADA, BOB, CLEO = Claimant("ada"), Claimant("bob"), Claimant("cleo")


def served(order: TurnOrder[str]) -> list[str]:
    """Serve all that waits."""
    found = []
    while (item := order.first()) is not None:
        order.take(item)
        found.append(item)
    return found


def wait(order: TurnOrder[str], claimant: Claimant, count: int) -> list[str]:
    """Let so many items of a claimant wait."""
    items = [f"{claimant.name} {number}" for number in range(count)]
    for item in items:
        order.add(claimant, item)
    return items


def test_what_one_claimant_waits_for_is_served_in_order_of_arrival() -> None:
    order: TurnOrder[str] = TurnOrder()
    items = wait(order, ADA, 20)
    assert served(order) == items
    assert order.first() is None


@pytest.mark.parametrize("turns_had", [0, 1, 17])
def test_who_comes_new_is_served_after_at_most_one_turn_of_each_other(turns_had: int) -> None:
    order: TurnOrder[str] = TurnOrder()
    wait(order, ADA, 500)
    wait(order, Claimant("heavy", weight=50.0), 500)
    for _ in range(turns_had):
        first = order.first()
        assert first is not None
        order.take(first)
    order.add(BOB, "new")
    assert served(order).index("new") <= 2


def test_claimants_take_turns() -> None:
    order: TurnOrder[str] = TurnOrder()
    for claimant in (ADA, BOB, CLEO):
        wait(order, claimant, 3)
    assert [item.split()[0] for item in served(order)] == ["ada", "bob", "cleo"] * 3


def test_twice_the_weight_is_twice_the_turns() -> None:
    order: TurnOrder[str] = TurnOrder()
    wait(order, ADA, 300)
    wait(order, Claimant("double", weight=2.0), 300)
    wait(order, Claimant("half", weight=0.5), 300)
    counts = Counter(item.split()[0] for item in served(order)[:350])
    assert counts == {"double": 200, "ada": 100, "half": 50}


def test_a_weight_counts_from_the_next_claim_on() -> None:
    order: TurnOrder[str] = TurnOrder()
    wait(order, ADA, 100)
    wait(order, BOB, 100)
    order.add(Claimant("bob", weight=3.0), "last")
    counts = Counter(item.split()[0] for item in served(order)[:80])
    assert counts == {"bob": 60, "ada": 20}


def test_absence_earns_nothing() -> None:
    order: TurnOrder[str] = TurnOrder()
    wait(order, ADA, 1000)
    for _ in range(500):
        first = order.first()
        assert first is not None
        order.take(first)
    wait(order, BOB, 1000)
    counts = Counter(item.split()[0] for item in served(order)[:100])
    assert counts == {"ada": 50, "bob": 50}


def test_leaving_after_each_turn_forgives_nothing() -> None:
    """Whoever asks for one thing at a time gets as many turns as one with a long line, not all of them."""
    order: TurnOrder[str] = TurnOrder()
    wait(order, ADA, 1000)
    order.add(BOB, "bob")
    counts: Counter[str] = Counter()
    for _ in range(100):
        first = order.first()
        assert first is not None
        order.take(first)
        counts[first.split()[0]] += 1
        if first == "bob":
            order.add(BOB, "bob")
    assert counts == {"ada": 50, "bob": 50}


def test_what_was_served_without_waiting_is_a_turn() -> None:
    order: TurnOrder[str] = TurnOrder()
    order.served(ADA)
    wait(order, ADA, 2)
    wait(order, BOB, 2)
    assert served(order) == ["bob 0", "ada 0", "bob 1", "ada 1"]


def test_who_is_served_beside_the_line_does_not_set_back_those_who_come_new() -> None:
    order: TurnOrder[str] = TurnOrder()
    wait(order, BOB, 3)
    for _ in range(10):
        order.served(ADA)
    order.add(CLEO, "cleo")
    assert served(order)[:2] == ["bob 0", "cleo"]


def test_an_item_that_is_taken_out_of_order_is_a_turn_of_its_claimant() -> None:
    order: TurnOrder[str] = TurnOrder()
    wait(order, ADA, 3)
    wait(order, BOB, 3)
    order.take("bob 2")
    assert served(order) == ["ada 0", "bob 0", "ada 1", "bob 1", "ada 2"]


def test_what_is_removed_was_no_turn() -> None:
    order: TurnOrder[str] = TurnOrder()
    wait(order, ADA, 4)
    wait(order, BOB, 2)
    for number in range(3):
        order.remove(f"ada {number}")
    assert served(order) == ["ada 3", "bob 0", "bob 1"]


def test_nothing_is_kept_of_who_has_gone() -> None:
    order: TurnOrder[str] = TurnOrder()
    for number in range(3000):
        claimant = Claimant(f"claimant {number}")
        order.add(claimant, claimant.name)
        if number % 3:
            order.remove(claimant.name)
    served(order)
    order.served(ADA)
    order.served(ADA)
    order.served(ADA)
    assert order.claimants == 1
    assert len(order) == len(order._line_of) == 0
    assert len(order._waiting) + len(order._absent) <= 2 * order.claimants + turns.SLACK


def test_joining_and_leaving_again_and_again_takes_no_memory() -> None:
    order: TurnOrder[str] = TurnOrder()
    order.served(ADA)
    for number in range(10_000):
        order.add(ADA, f"{number}")
        order.remove(f"{number}")
    assert len(order._waiting) <= 2 * order.claimants + turns.SLACK
    assert len(order._absent) == 1


def test_no_more_claimants_are_remembered_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "MOST_REMEMBERED", 5)
    order: TurnOrder[str] = TurnOrder()
    order.add(ADA, "waits")
    for number in range(100):
        order.served(Claimant(f"{number}", weight=1 + number))
    assert order.claimants <= 6


@pytest.mark.parametrize("weight", [0, -1, LEAST_WEIGHT / 2, MOST_WEIGHT * 2, math.inf, math.nan])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(ValueError, match="A weight is a number from"):
        Claimant("ada", weight)


NAMES = st.sampled_from(["ada", "bob", "cleo", "dan"])
WEIGHTS = {"ada": 1.0, "bob": 2.0, "cleo": 0.5, "dan": 1000.0}


@given(st.lists(st.tuples(NAMES, st.integers(1, 30)), max_size=8), st.integers(0, 40))
def test_claimants_who_wait_all_the_time_share_by_weight(waiting: list[tuple[str, int]], before: int) -> None:
    """For any two that wait during the whole time, turns by weight differ by one of each at the most."""
    order: TurnOrder[tuple[str, int]] = TurnOrder()
    left: Counter[str] = Counter()
    for number, (name, count) in enumerate(waiting):
        for each in range(count):
            order.add(Claimant(name, WEIGHTS[name]), (name, 100 * number + each))
        left[name] += count
    had: Counter[str] = Counter()
    for _ in range(before):
        first = order.first()
        if first is None:
            break
        order.take(first)
        had[first[0]] += 1
        left[first[0]] -= 1
        there = [name for name, count in left.items() if count]
        for one in there:
            for other in there:
                apart = had[one] / WEIGHTS[one] - had[other] / WEIGHTS[other]
                assert apart <= 1 / WEIGHTS[one] + 1 / WEIGHTS[other]


class AnyLife(RuleBasedStateMachine):
    """Claims come, are served and leave in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.order: TurnOrder[int] = TurnOrder()
        self.model: dict[str, list[int]] = defaultdict(list)
        self.made = 0

    @rule(name=NAMES)
    def add(self, name: str) -> None:
        self.made += 1
        self.model[name].append(self.made)
        self.order.add(Claimant(name, WEIGHTS[name]), self.made)

    @rule(name=NAMES)
    def served(self, name: str) -> None:
        self.order.served(Claimant(name, WEIGHTS[name]))

    @precondition(lambda self: len(self.order) > 0)
    @rule()
    def take_first(self) -> None:
        item = self.order.first()
        assert item is not None
        name = next(name for name, items in self.model.items() if item in items)
        assert self.model[name][0] == item, "a claimant's items are served in order"
        self.order.take(item)
        self.model[name].remove(item)

    @precondition(lambda self: len(self.order) > 0)
    @rule(data=st.data(), served=st.booleans())
    def any_goes(self, data: st.DataObject, served: bool) -> None:
        name = data.draw(st.sampled_from([name for name, items in self.model.items() if items]))
        item = data.draw(st.sampled_from(self.model[name]))
        self.model[name].remove(item)
        if served:
            self.order.take(item)
        else:
            self.order.remove(item)

    @invariant()
    def it_knows_what_waits(self) -> None:
        waiting = [item for items in self.model.values() for item in items]
        assert len(self.order) == len(waiting)
        assert all(item in self.order for item in waiting)
        assert self.order.claimants <= len(WEIGHTS)

    @invariant()
    def nobody_who_waits_was_due_before_now(self) -> None:
        for line in self.order._lines.values():
            if line.items:
                assert line.due >= self.order._now
                assert line.entry in self.order._waiting

    @invariant()
    def the_order_foretold_is_the_order_served(self) -> None:
        foretold = list(self.order.order())
        assert sorted(foretold) == sorted(item for items in self.model.values() for item in items)
        assert foretold[:1] == [item for item in [self.order.first()] if item is not None]

    def teardown(self) -> None:
        foretold = list(self.order.order())
        for item in foretold:
            assert self.order.first() == item
            self.order.take(item)
        assert self.order.first() is None


TestAnyLife = AnyLife.TestCase


def test_a_turn_is_long_enough_for_the_largest_weight() -> None:
    assert Claimant("ada", MOST_WEIGHT).turn == TURN // MOST_WEIGHT
