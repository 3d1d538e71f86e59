"""Bytes that many hold under one limit: nobody has all of it, and who holds most is the first to go."""

from __future__ import annotations

from cellgate_kernels.base.budget import ByteBudget, Owner, ReceiveBudget, largest


class Holder:
    """One that says what it was told."""

    def __init__(self, name: str, told: list[str]) -> None:
        self.name = name
        self._told = told

    def give_up(self) -> None:
        self._told.append(self.name)


def held(budget: ByteBudget, *names: str) -> list[int]:
    return [budget.held_by(name) for name in names]


def test_one_has_three_quarters_and_loses_the_largest() -> None:
    told: list[str] = []
    budget = ByteBudget(100, largest)
    small, large, other = (Holder(name, told) for name in ("small", "large", "other"))
    budget.hold(small, 20, "ada")
    budget.hold(large, 50, "ada")
    budget.hold(other, 30, "bea")
    assert (told, budget.held) == ([], 100)
    budget.hold(small, 26, "ada")
    assert told == ["large"]
    assert held(budget, "ada", "bea") == [26, 30]


def test_who_holds_most_in_all_goes_and_not_who_has_the_largest() -> None:
    told: list[str] = []
    budget = ByteBudget(100, largest)
    for number in range(7):
        budget.hold(Holder(f"ada{number}", told), 10, "ada")
    budget.hold(bea := Holder("bea", told), 25, "bea")
    assert told == []
    budget.hold(bea, 35, "bea")
    assert told == ["ada0"], "the largest of hers, and of these the oldest"
    assert held(budget, "ada", "bea") == [60, 35]


def test_what_was_held_for_nobody_counts_for_its_owner_from_then_on() -> None:
    told: list[str] = []
    budget = ByteBudget(100, largest)
    holder = Holder("one", told)
    budget.hold(holder, 70)
    budget.hold(holder, 40, "ada")
    assert (budget.held, held(budget, "", "ada")) == (40, [0, 40])
    budget.release(holder)
    budget.release(holder)
    assert (budget.held, held(budget, "ada"), holder in budget) == (0, [0], False)


def test_nobody_s_holders_have_no_limit_of_their_own() -> None:
    told: list[str] = []
    budget = ByteBudget(100, largest)
    budget.hold(Holder("warm", told), 100)
    assert told == []


def test_messages_of_one_principal_s_kernels_do_not_end_those_of_another_s() -> None:
    """The oldest goes, of whose kernels hold most: what others' kernels began before stays."""
    told: list[str] = []
    budget = ReceiveBudget(100)
    ada, bea = Owner(), Owner()
    older = Holder("bea", told)
    budget.part(bea).hold(older, 20)
    bea.name, ada.name = "bea", "ada"
    budget.part(bea).hold(older, 20)
    for number in range(20):
        budget.part(ada).hold(Holder(f"ada{number}", told), 10)
    assert told == [f"ada{number}" for number in range(13)]
    assert held(budget, "ada", "bea", "") == [70, 20, 0]
