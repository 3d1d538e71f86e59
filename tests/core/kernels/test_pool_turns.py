"""Who gets the next kernel: claimants take turns. In virtual time; kernels start when the test says so."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from cellgate_kernels.base.errors import DeadlinePassed, KernelStartFailed, PoolExhausted
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.pool import claims
from cellgate_kernels.pool.claims import Moved
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.testing import Attempt, FakeLauncher, Gate, virtual_time

PYTHON3 = KernelProfile("python3")
RARE = KernelProfile("python3", ResourceLimits(memory=2048 * MIB))
ADA, BOB = Claimant("ada"), Claimant("bob")
FLOOD = 500


class House:
    """A pool whose starts end one by one, when the test says so; and who was served, in order."""

    def __init__(self, **settings: Any) -> None:
        self.gate = Gate()
        self.fails = False
        self.launcher = FakeLauncher(start=self._start)
        self.pool = KernelPool(
            self.launcher, PoolSettings(size=0, **{"max_kernels": 1000, **settings}), [PYTHON3]
        )
        self.served: list[str] = []
        self.kernels: list[Kernel] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def _start(self, attempt: Attempt) -> None:
        await self.gate(attempt)
        if self.fails:
            raise KernelStartFailed("it failed")

    def claim(
        self, claimant: Claimant, profile: KernelProfile = PYTHON3, moved: Moved | None = None
    ) -> asyncio.Task[None]:
        async def use() -> None:
            kernel = await self.pool.claim(profile, claimant, moved)
            self.served.append(claimant.name)
            self.kernels.append(kernel)

        self.tasks.append(asyncio.create_task(use()))
        return self.tasks[-1]

    async def flood(self, claimant: Claimant = ADA, count: int = FLOOD) -> None:
        for _ in range(count):
            self.claim(claimant)
        await rest()

    async def start(self, count: int = 1) -> None:
        """So many starts end well, one after another."""
        for _ in range(count):
            await self.gate.detach()
            await rest()

    async def release(self) -> None:
        """The oldest kernel in use is given back, and ends."""
        self.pool.release(self.kernels.pop(0))
        await rest()

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        ends = await asyncio.gather(*self.tasks, return_exceptions=True)
        assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError, PoolExhausted}
        assert len(self.pool._claims._line) == self.pool._claims.in_line == 0
        assert self.pool.statistics().waiting == 0
        await self.pool.close()
        assert self.launcher.existing == 0


async def rest() -> None:
    """Let everything happen that waits for no time."""
    for _ in range(10):
        await asyncio.sleep(0)


def in_house(test: Callable[[House], Coroutine[Any, Any, None]], **settings: Any) -> None:
    """Run it with a pool that leaves nothing."""

    async def life() -> None:
        house = House(**settings)
        await test(house)
        await house.close()

    with virtual_time() as loop:
        loop.run_until_complete(life())


# ---- turns


@pytest.mark.parametrize("concurrent_starts", [1, 2, 4])
def test_a_flood_delays_another_by_one_start_at_the_most(concurrent_starts: int) -> None:
    async def test(house: House) -> None:
        await house.flood()
        await house.start(3)
        house.claim(BOB)
        await rest()
        under_way = house.pool.statistics().starting
        # The first start that ends makes room, and the next to begin is bob's.
        await house.start(under_way + 1)
        assert house.served[3:] == ["ada"] * under_way + ["bob"]

    in_house(test, concurrent_starts=concurrent_starts)


def test_a_flood_of_who_holds_all_kernels_delays_another_by_no_place() -> None:
    async def test(house: House) -> None:
        await house.flood(count=4)
        await house.start(4)
        await house.flood()
        assert house.pool.statistics().starting == 0
        house.claim(BOB)
        await rest()
        await house.release()
        await house.start()
        assert house.served == ["ada"] * 4 + ["bob"]

    in_house(test, max_kernels=4, claim_timeout=1000.0)


def test_claimants_take_turns_by_weight() -> None:
    async def test(house: House) -> None:
        await house.flood(ADA, 60)
        await house.flood(Claimant("double", weight=2.0), 60)
        await house.start(61)
        counts = Counter(house.served)
        assert (counts["double"], counts["ada"]) == (40, 21)

    in_house(test, concurrent_starts=1)


def test_many_claimants_all_get_their_first_before_anybody_gets_a_third() -> None:
    async def test(house: House) -> None:
        await house.flood()
        for number in range(20):
            await house.flood(Claimant(f"claimant {number}"), 5)
        await house.start(22)
        assert max(Counter(house.served).values()) <= 2
        assert len(Counter(house.served)) == 21

    in_house(test, concurrent_starts=1)


def test_warm_kernels_that_were_taken_count_as_turns() -> None:
    async def test(house: House) -> None:
        pool = KernelPool(house.launcher, PoolSettings(size=2, max_kernels=4, concurrent_starts=1), [PYTHON3])
        house.pool = pool
        pool.start()
        await house.start(2)
        for _ in range(4):
            house.claim(ADA)
        house.claim(BOB)
        await rest()
        assert house.served == ["ada", "ada"]
        await house.start(2)
        assert sorted(house.served[2:]) == ["ada", "bob"]

    in_house(test)


def test_a_rare_profile_is_not_overtaken() -> None:
    """It waits for its place, and those after it in line wait too."""

    async def test(house: House) -> None:
        await house.flood(count=2)
        await house.start(2)
        await house.flood()
        house.claim(BOB, RARE)
        await rest()
        await house.release()
        assert [kernel.profile for kernel in house.launcher.kernels[2:]] == []
        await house.start()
        assert house.served == ["ada", "ada", "bob"]
        assert house.kernels[-1].profile == RARE

    in_house(test, max_kernels=2, claim_timeout=1000.0)


def test_a_warm_kernel_ends_for_the_claim_whose_turn_it_is() -> None:
    async def test(house: House) -> None:
        settings = PoolSettings(size=1, max_kernels=2, concurrent_starts=1)
        house.pool = KernelPool(house.launcher, settings, [PYTHON3])
        house.pool.start()
        await house.start()
        # One kernel is warm; ada's rare claims take the other place, and then the warm one's.
        for _ in range(20):
            house.claim(ADA, RARE)
        await rest()
        house.claim(BOB, KernelProfile("python3", env=(("A", "1"),)))
        await house.start(2)
        assert house.served == ["ada", "bob"]

    in_house(test)


# ---- claims that go


def test_a_start_whose_claim_has_gone_goes_to_whose_turn_it_is() -> None:
    async def test(house: House) -> None:
        first = house.claim(ADA)
        await rest()
        await house.flood(ADA, 5)
        house.claim(BOB)
        await rest()
        first.cancel()
        await house.start(2)
        assert house.served == ["bob", "ada"]

    in_house(test, concurrent_starts=1)


def test_claims_that_go_leave_nothing_in_line() -> None:
    async def test(house: House) -> None:
        await house.flood()
        await house.flood(BOB, 50)
        for number, task in enumerate(house.tasks):
            if number % 3:
                task.cancel()
        await rest()
        assert house.pool.statistics().waiting == len([task for task in house.tasks if not task.done()])
        for task in house.tasks:
            task.cancel()
        await rest()
        line = house.pool._claims
        assert len(line._line) == len(line._in_line) == len(line) == 0
        assert line._line.claimants <= 2

    in_house(test)


def test_claims_that_waited_too_long_are_told_and_the_others_keep_their_turns() -> None:
    async def test(house: House) -> None:
        await house.flood(count=1)
        await house.start()
        await house.flood(count=3)
        await asyncio.sleep(4)
        house.claim(BOB)
        assert house.pool.statistics().longest_wait == 4
        await asyncio.sleep(2)
        assert [type(task.exception()) for task in house.tasks[1:4]] == [PoolExhausted] * 3
        assert house.pool.statistics().waiting == 1
        assert house.pool.statistics().longest_wait == 2
        await house.release()
        await house.start()
        assert house.served == ["ada", "bob"]

    in_house(test, max_kernels=1, claim_timeout=5.0)


def test_a_claim_waits_no_longer_than_its_caller_will() -> None:
    async def test(house: House) -> None:
        await house.flood(count=1)
        await house.start()
        impatient = asyncio.create_task(house.pool.claim(PYTHON3, BOB, patience=2.0))
        await asyncio.sleep(1.9)
        assert not impatient.done()
        await asyncio.sleep(0.2)
        with pytest.raises(DeadlinePassed) as refusal:
            impatient.result()
        assert refusal.value.retry_after == 2.0
        await house.release()
        # In line no time counts but its own: a start may take as long as it takes.
        starts = asyncio.create_task(house.pool.claim(PYTHON3, BOB, patience=2.0))
        await asyncio.sleep(60)
        await house.start()
        house.kernels.append(await starts)

    in_house(test, max_kernels=1)


def test_a_place_that_comes_free_as_a_claim_gives_up_goes_to_the_next() -> None:
    async def test(house: House) -> None:
        await house.flood(count=1)
        await house.start()
        loop = asyncio.get_running_loop()
        errors: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: errors.append(context))
        kernel = house.kernels.pop()
        claimed_at = loop.time()
        house.claim(ADA)
        await rest()
        await asyncio.sleep(1)
        house.claim(BOB)

        def free() -> None:
            house.pool.detach(kernel)
            house.pool.start()

        # In the same turn of the loop, before the task that waits has seen that it is too late.
        loop.call_at(claimed_at + 5.0, free)
        await asyncio.sleep(5)
        await house.start()
        await kernel.discard()
        assert house.served == ["ada", "bob"]
        assert errors == []

    in_house(test, max_kernels=1, claim_timeout=5.0)


def test_a_start_that_fails_is_told_to_its_own_claim() -> None:
    async def test(house: House) -> None:
        house.claim(ADA)
        await rest()
        house.claim(BOB)
        await rest()
        house.fails = True
        await house.start()
        house.fails = False
        assert isinstance(house.tasks[0].exception(), KernelStartFailed)
        house.tasks.pop(0)
        await house.start()
        assert house.served == ["bob"]

    in_house(test, concurrent_starts=1)


# ---- positions


def test_a_claim_is_told_its_position_as_it_changes() -> None:
    async def test(house: House) -> None:
        await house.flood(count=3)
        told: list[int | None] = []
        house.claim(ADA, moved=told.append)
        await asyncio.sleep(0.1)
        assert told == [2]
        house.claim(BOB)
        await asyncio.sleep(0.5)
        assert told == [2], "told more often than every second"
        await asyncio.sleep(1)
        assert told == [2, 3], "bob's turn comes first"
        await house.start()
        await asyncio.sleep(2)
        await house.start()
        await house.start()
        await asyncio.sleep(2)
        assert told == [2, 3, 2, 1, 0]
        await asyncio.sleep(20)
        assert told == [2, 3, 2, 1, 0], "nothing has changed"
        await house.start()
        assert told == [2, 3, 2, 1, 0, None], "its kernel starts"

    in_house(test, concurrent_starts=1, claim_timeout=1000.0)


def test_a_claim_that_need_not_wait_in_line_is_told_no_position() -> None:
    async def test(house: House) -> None:
        told: list[int | None] = []
        house.claim(ADA, moved=told.append)
        await asyncio.sleep(5)
        await house.start()
        assert house.served == ["ada"]
        assert told == [None]

    in_house(test)


def test_a_long_line_is_told_once_a_second_however_often_it_moves() -> None:
    async def test(house: House) -> None:
        calls = 0

        def moved(position: int | None) -> None:
            nonlocal calls
            calls += position is not None

        for _ in range(FLOOD):
            house.claim(ADA, moved=moved)
        for _ in range(100):
            await house.start()
            await asyncio.sleep(0.05)
        # Five seconds, and the beginning.
        assert FLOOD <= calls <= 6 * FLOOD

    in_house(test, concurrent_starts=1, claim_timeout=1000.0)


def test_only_the_beginning_of_a_very_long_line_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claims, "MOST_TOLD", 10)

    async def test(house: House) -> None:
        told: Counter[int] = Counter()
        await house.flood(count=1)
        for _ in range(30):
            house.claim(ADA, moved=lambda position: told.update([-1 if position is None else position]))
        await asyncio.sleep(5)
        assert told == Counter(range(10))

    in_house(test, concurrent_starts=1, claim_timeout=1000.0)


def test_a_listener_that_fails_or_leaves_keeps_nothing_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def test(house: House) -> None:
        told: list[int | None] = []

        def fails(position: int | None) -> None:
            raise OSError("no")

        await house.flood(count=1)
        house.claim(ADA, moved=fails)

        def goes(position: int | None) -> None:
            leaves.cancel()

        leaves = house.claim(ADA, moved=goes)
        house.claim(ADA, moved=told.append)
        await asyncio.sleep(3)
        assert leaves.cancelled()
        assert told == [2, 1]

    in_house(test, concurrent_starts=1, claim_timeout=1000.0)
    assert "position in line" in caplog.text
