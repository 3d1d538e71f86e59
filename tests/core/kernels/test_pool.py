"""KernelPool, with launchers that behave well or badly."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest

from cellgate_kernels.base.errors import KernelspecNotFound, KernelStartFailed, PoolExhausted
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.pool.claims import ANYBODY
from cellgate_kernels.pool.pool import KernelPool, PoolStatistics
from cellgate_kernels.specs.named_environment import METADATA
from cellgate_kernels.testing import (
    Attempt,
    FakeKernel,
    FakeLauncher,
    Gate,
    at_once,
    fails_to_start,
    never_starts,
    virtual_time,
)
from tests.support.clock import Clock

DEADLINE = 60.0
PYTHON3 = KernelProfile("python3")
OTHER = KernelProfile("other")
BIG = KernelProfile("python3", ResourceLimits(memory=2048 * MIB))
WITH_ENV = KernelProfile("python3", env=(("API_KEY", "secret"),))
ADA, BOB, CLEO = Claimant("ada"), Claimant("bob"), Claimant("cleo", weight=2.0)
NOTHING = PoolStatistics(warm=0, starting=0, in_use=0, ending=0, waiting=0)


# ---- launchers by their behaviour


class QuickLauncher(FakeLauncher):
    """Starts at once; its kernels end when the test lets them."""

    def __init__(self) -> None:
        super().__init__(
            start=self.prepare, ready=self.ready, ending=self.wait_to_end, kernelspecs=("python3", "other")
        )
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def prepare(self, attempt: Attempt) -> None:
        await at_once(attempt)

    def ready(self, kernel: FakeKernel) -> None:
        """A kernel is ready."""

    async def wait_to_end(self, kernel: FakeKernel) -> None:
        await self.may_end.wait()


class SlowLauncher(QuickLauncher):
    """Each start waits until the test lets one go on."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate()

    @property
    def starting(self) -> Collection[object]:
        return self.gate.waiting

    async def prepare(self, attempt: Attempt) -> None:
        await self.gate(attempt)

    async def detach(self) -> None:
        """The oldest start succeeds."""
        async with asyncio.timeout(DEADLINE):
            await self.gate.detach()


class FailingLauncher(QuickLauncher):
    """The first `times` starts fail."""

    def __init__(self, times: float = float("inf"), error: type[Exception] = KernelStartFailed) -> None:
        super().__init__()
        self.times = times
        self.error = error

    async def prepare(self, attempt: Attempt) -> None:
        await fails_to_start(self.times, self.error)(attempt)


class DyingLauncher(QuickLauncher):
    """The first `times` kernels die as soon as they are ready."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def ready(self, kernel: FakeKernel) -> None:
        if len(self.kernels) <= self.times:
            asyncio.get_running_loop().call_soon(kernel.die)


class RandomLauncher(QuickLauncher):
    """Slow by a few turns, and sometimes bad."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self.chance = chance

    async def prepare(self, attempt: Attempt) -> None:
        await turns(self.chance.randrange(6))
        if self.chance.random() < 0.1:
            raise KernelStartFailed("bad luck")

    def ready(self, kernel: FakeKernel) -> None:
        if self.chance.random() < 0.1:
            asyncio.get_running_loop().call_soon(kernel.die)

    async def wait_to_end(self, kernel: FakeKernel) -> None:
        await turns(self.chance.randrange(6))


# ---- helpers


async def until(condition: Callable[[], object], otherwise: str = "it did not happen in time") -> None:
    """Returns when the condition holds; fails when it does not in time."""
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline, otherwise
        await asyncio.sleep(0.001)


async def turns(count: int = 50) -> None:
    """Enough turns of the loop for all that waits for nothing else."""
    for _ in range(count):
        await asyncio.sleep(0)


def new_pool(
    launcher: FakeLauncher,
    *,
    warm: Sequence[KernelProfile] = (PYTHON3,),
    clock: Callable[[], float] = time.monotonic,
    size: int = 0,
    max_kernels: int = 4,
    concurrent_starts: int = 2,
    claim_timeout: float = DEADLINE,
    burst_size: int = 0,
    retry_delay: float = 1.0,
    refill_pause: float = 0.0,
) -> KernelPool:
    settings = PoolSettings(
        size=size,
        burst_size=burst_size,
        max_kernels=max_kernels,
        concurrent_starts=concurrent_starts,
        claim_timeout=claim_timeout,
        retry_delay=retry_delay,
        max_retry_delay=8 * retry_delay,
        refill_pause=refill_pause,
    )
    return KernelPool(launcher, settings, warm, clock=clock)


Claim = asyncio.Task[Kernel]


def claim(pool: KernelPool, profile: KernelProfile = PYTHON3, claimant: Claimant = ANYBODY) -> Claim:
    return asyncio.create_task(pool.claim(profile, claimant))


async def warmed(pool: KernelPool, count: int) -> None:
    """Start the pool and wait until so many kernels are warm and nothing else is under way."""
    pool.start()
    await until(lambda: pool.statistics() == PoolStatistics(count, 0, 0, 0, 0))


@pytest.fixture(autouse=True)
async def nothing_left() -> AsyncIterator[None]:
    """Fails the test if it leaves a task."""
    before = asyncio.all_tasks()
    yield
    await until(lambda: asyncio.all_tasks() - before <= {asyncio.current_task()}, "tasks are left")


async def close(pool: KernelPool, launcher: FakeLauncher) -> None:
    """Close, and check that nothing is left and that nothing was ended twice."""
    async with asyncio.timeout(DEADLINE):
        await pool.close()
    assert pool.statistics() == NOTHING
    assert len(pool._claims._line) == len(pool._claims._in_line) == 0, "the line keeps claims"
    assert launcher.existing == 0
    assert [kernel.id for kernel in launcher.kernels if kernel.discards != 1] == []


# ---- how many


async def test_a_hundred_claims_never_make_more_kernels_than_allowed() -> None:
    """Counted where kernels are made, and those that end count until they have ended."""
    launcher = RandomLauncher(random.Random(1))
    launcher.chance.random = lambda: 1.0  # type: ignore[method-assign]  # slow, never bad
    pool = new_pool(launcher, size=2, burst_size=8, max_kernels=7, concurrent_starts=3)
    pool.start()
    served: list[str] = []

    async def use() -> None:
        kernel = await pool.claim(PYTHON3)
        assert kernel.alive
        await turns(3)
        assert kernel.alive
        served.append(kernel.id)
        pool.release(kernel)

    await asyncio.gather(*(use() for _ in range(100)))
    assert len(set(served)) == 100, "a kernel was used twice"
    assert launcher.most == 7
    await close(pool, launcher)


@pytest.mark.parametrize("seed", range(30))
def test_a_random_life_of_a_pool_keeps_its_promises(seed: int) -> None:
    """In virtual time: who is cancelled keeps its kernel, so that the last claims may wait in vain."""
    with virtual_time() as loop:
        loop.run_until_complete(random_life(random.Random(seed)))


async def random_life(chance: random.Random) -> None:
    """Claims, releases, cancellations, failures and deaths in any order; then a close at any moment."""
    launcher = RandomLauncher(chance)
    most = chance.randint(1, 6)
    pool = new_pool(
        launcher,
        warm=(PYTHON3, OTHER),
        size=chance.randint(0, 2),
        burst_size=chance.randint(0, 4),
        max_kernels=most,
        concurrent_starts=chance.randint(1, 3),
        retry_delay=0.001,
        clock=asyncio.get_running_loop().time,
    )
    pool.start()
    owned: list[Kernel] = []
    served: Counter[str] = Counter()

    async def use() -> None:
        try:
            kernel = await pool.claim(chance.choice((PYTHON3, OTHER, BIG)), chance.choice((ADA, BOB, CLEO)))
        except (KernelStartFailed, PoolExhausted):
            return
        served[kernel.id] += 1
        owned.append(kernel)
        await turns(chance.randrange(8))
        owned.remove(kernel)
        pool.release(kernel)

    users = []
    for _ in range(60):
        users.append(asyncio.create_task(use()))
        await turns(chance.randrange(4))
        if chance.random() < 0.25:
            chance.choice(users).cancel()
        assert len({id(kernel) for kernel in owned}) == len(owned)
    if chance.random() < 0.5:
        await asyncio.gather(*users, return_exceptions=True)
    assert launcher.most <= most
    await close(pool, launcher)
    async with asyncio.timeout(DEADLINE):
        ends = await asyncio.gather(*users, return_exceptions=True)
    assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError}
    assert launcher.most <= most
    assert max(served.values(), default=0) <= 1, "a kernel was handed out twice"
    assert launcher.existing == 0


async def test_no_more_kernels_start_at_once_than_allowed() -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, size=4, max_kernels=4, concurrent_starts=2)
    pool.start()
    for started in (2, 3, 4):
        await turns()
        assert (len(launcher.started), pool.statistics().starting) == (started, 2)
        await launcher.detach()
    await turns()
    assert pool.statistics() == PoolStatistics(warm=3, starting=1, in_use=0, ending=0, waiting=0)
    await close(pool, launcher)


async def test_every_claim_of_a_profile_without_warm_kernels_gets_a_start_of_its_own() -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, max_kernels=8, concurrent_starts=8)
    claims = [claim(pool, BIG) for _ in range(3)]
    await turns()
    assert launcher.started == [BIG] * 3
    for _ in range(3):
        await launcher.detach()
    assert await asyncio.gather(*claims) == launcher.kernels
    await close(pool, launcher)


async def test_claims_are_started_for_side_by_side_and_beside_the_warm_kernels() -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, size=1, max_kernels=8, concurrent_starts=4)
    pool.start()
    await turns()
    assert len(launcher.started) == 1
    claims = [claim(pool) for _ in range(3)]
    await turns()
    # Three for the claims, and one that will be warm.
    assert len(launcher.started) == 4
    for _ in range(4):
        await launcher.detach()
    assert await asyncio.gather(*claims) == launcher.kernels[:3]
    await until(lambda: pool.statistics() == PoolStatistics(1, 0, 3, 0, 0))
    await close(pool, launcher)


# ---- who gets which


async def test_a_warm_kernel_is_handed_out_at_once_and_once() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=2)
    await warmed(pool, 2)
    first, second = await pool.claim(PYTHON3), await pool.claim(PYTHON3)
    assert [first, second] == launcher.kernels[:2]
    third = await pool.claim(PYTHON3)
    assert third not in {first, second}
    await close(pool, launcher)


async def test_a_warm_kernel_of_a_former_environment_is_given_to_nobody() -> None:
    launcher = FakeLauncher()
    pool = new_pool(launcher, size=1)
    await warmed(pool, 1)
    former = launcher.kernels[0]
    spec = launcher.catalog.get_kernel_spec(PYTHON3.kernelspec)
    spec.metadata = {METADATA: {"name": "geo", "digest": "a" * 64}}
    kernel = await claim(pool)
    assert kernel is not former
    assert former.discards == 1
    pool.release(kernel)
    await close(pool, launcher)


async def test_warm_kernels_end_when_their_claims_share_containers_again() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=2, max_kernels=3)
    pool.start()
    await until(lambda: pool.statistics().warm == 2)
    launcher.keeps_warm = lambda profile: False  # type: ignore[method-assign]
    kernel = await pool.claim(PYTHON3)
    await until(lambda: launcher.existing == 1)
    assert pool.statistics().warm == 0
    pool.release(kernel)
    await close(pool, launcher)


async def test_a_released_kernel_is_ended_and_never_used_again() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, max_kernels=1)
    first = await pool.claim(PYTHON3)
    waiting = claim(pool)
    await turns()
    pool.release(first)
    pool.release(first)
    second = await waiting
    assert second is not first
    assert not first.alive
    assert launcher.most == 1
    pool.release(first)
    assert second.alive
    await close(pool, launcher)


async def test_a_place_comes_free_only_when_the_kernel_has_ended() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, max_kernels=1)
    launcher.may_end.clear()
    pool.release(await pool.claim(PYTHON3))
    waiting = claim(pool)
    await turns()
    now = replace(pool.statistics(), longest_wait=0.0)
    assert now == PoolStatistics(warm=0, starting=0, in_use=0, ending=1, waiting=1)
    assert len(launcher.started) == 1
    launcher.may_end.set()
    assert (await waiting).alive
    await close(pool, launcher)


async def test_the_room_is_for_claims_that_wait_for_nobodys_release() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=1, max_kernels=2)
    await warmed(pool, 1)
    assert pool.room() == 2
    kernels = [await claim(pool), await claim(pool)]
    assert pool.room() == 0
    launcher.may_end.clear()
    waiting = claim(pool)
    await turns()
    assert pool.room() == -1
    pool.release(kernels[0])
    assert pool.room() == 0
    pool.release(kernels[1])
    assert pool.room() == 1
    launcher.may_end.set()
    pool.release(await waiting)
    await until(lambda: pool.room() == 2)
    await close(pool, launcher)


async def test_claims_are_served_in_the_order_they_came() -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, max_kernels=2)
    order: list[int] = []

    async def use(number: int, profile: KernelProfile) -> None:
        kernel = await pool.claim(profile)
        order.append(number)
        await turns(5)
        pool.release(kernel)

    users = []
    for number in range(20):
        users.append(asyncio.create_task(use(number, (PYTHON3, OTHER, BIG)[number % 3])))
        await turns(2)
    for _ in range(20):
        await launcher.detach()
    await asyncio.gather(*users)
    assert order == list(range(20))
    assert launcher.started == [(PYTHON3, OTHER, BIG)[number % 3] for number in range(20)]
    await close(pool, launcher)


async def test_a_claim_that_comes_later_does_not_take_the_kernel_of_one_that_waits() -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, size=1, max_kernels=2)
    pool.start()
    first = claim(pool)
    await launcher.detach()
    # The start has ended, but the claim that waits has not had its turn yet.
    second = claim(pool)
    kernel = await first
    assert kernel is launcher.kernels[0]
    assert not second.done()
    await launcher.detach()
    assert (await second) is launcher.kernels[1]
    await close(pool, launcher)


@pytest.mark.parametrize("profile", [BIG, WITH_ENV, OTHER], ids=["limits", "env", "kernelspec"])
async def test_another_profile_never_gets_a_warm_default_kernel(profile: KernelProfile) -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=2)
    await warmed(pool, 2)
    kernel = await pool.claim(profile)
    assert kernel.profile == profile
    assert pool.statistics().warm == 2
    # And what it left is not kept warm for anybody.
    unused = claim(pool, profile)
    await asyncio.sleep(0)
    unused.cancel()
    await asyncio.gather(unused, return_exceptions=True)
    await until(lambda: pool.statistics() == PoolStatistics(2, 0, 1, 0, 0))
    await close(pool, launcher)


async def test_an_unknown_kernelspec_is_refused_and_takes_no_place() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher)
    with pytest.raises(KernelspecNotFound):
        await pool.claim(KernelProfile("fortran"))
    assert pool.statistics() == NOTHING
    await close(pool, launcher)


async def test_without_warm_kernels_claims_are_served_by_new_ones() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=0, burst_size=8)
    pool.start()
    await turns()
    assert launcher.started == []
    for _ in range(3):
        pool.release(await pool.claim(PYTHON3))
        await until(lambda: pool.statistics() == NOTHING)
    assert len(launcher.started) == 3
    await close(pool, launcher)


# ---- claims that end early


async def test_a_claim_that_waits_too_long_is_told_when_to_come_again() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, max_kernels=1, claim_timeout=0.05)
    kernel = await pool.claim(PYTHON3)
    with pytest.raises(PoolExhausted, match="1 kernels") as refusal:
        await pool.claim(PYTHON3)
    assert refusal.value.retry_after == 0.05
    assert pool.statistics() == PoolStatistics(warm=0, starting=0, in_use=1, ending=0, waiting=0)
    pool.release(kernel)
    pool.release(await pool.claim(PYTHON3))
    await close(pool, launcher)


async def test_a_claim_that_gave_up_leaves_its_kernel_to_the_next() -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, max_kernels=1)
    gone = claim(pool)
    await until(lambda: launcher.starting)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    assert pool.statistics() == PoolStatistics(warm=0, starting=1, in_use=0, ending=0, waiting=0)
    following = claim(pool)
    await launcher.detach()
    assert (await following) is launcher.kernels[0]
    await close(pool, launcher)


async def test_a_claim_whose_kernel_is_starting_is_not_refused_and_those_behind_it_are() -> None:
    """It has its place; how long the start may take is the launcher's own affair."""
    launcher = SlowLauncher()
    pool = new_pool(launcher, max_kernels=1, claim_timeout=0.02)
    first, second = claim(pool), claim(pool)
    await until(lambda: launcher.starting)
    for _ in range(2):
        with pytest.raises(PoolExhausted):
            await pool.claim(PYTHON3)
    with pytest.raises(PoolExhausted):
        await second
    assert not first.done()
    await launcher.detach()
    assert (await first) is launcher.kernels[0]
    await close(pool, launcher)


async def test_a_claim_that_takes_over_anothers_start_is_not_refused_either() -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, max_kernels=1, claim_timeout=0.05)
    gone = claim(pool)
    await until(lambda: launcher.starting)
    gone.cancel()
    await asyncio.gather(gone, return_exceptions=True)
    first = claim(pool)
    await turns()
    with pytest.raises(PoolExhausted):
        await pool.claim(PYTHON3)
    assert not first.done()
    await launcher.detach()
    assert (await first).alive
    await close(pool, launcher)


@pytest.mark.parametrize("turn", range(8))
async def test_a_claim_cancelled_around_its_hand_over_leaks_nothing(turn: int) -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, max_kernels=1)
    cancelled = claim(pool)
    await launcher.detach()
    await turns(turn)
    cancelled.cancel()
    ended = (await asyncio.gather(cancelled, return_exceptions=True))[0]
    if isinstance(ended, FakeKernel):
        pool.release(ended)
    following = claim(pool)
    await turns()
    if launcher.starting:
        await launcher.detach()
    async with asyncio.timeout(DEADLINE):
        kernel = await following
    assert kernel.alive
    assert kernel is not ended
    assert pool.statistics() == PoolStatistics(warm=0, starting=0, in_use=1, ending=0, waiting=0)
    await close(pool, launcher)


async def test_a_claim_cancelled_in_the_very_moment_of_its_hand_over_gives_the_kernel_back() -> None:
    """The kernel was given, but the claimer has not seen it and never will."""
    launcher = SlowLauncher()
    pool = new_pool(launcher, max_kernels=1)
    cancelled = claim(pool)
    await launcher.detach()
    while pool.statistics().in_use == 0:  # noqa: ASYNC110 - turn by turn, to be there at the moment
        await asyncio.sleep(0)
    assert not cancelled.done(), "the moment has passed"
    cancelled.cancel()
    with pytest.raises(asyncio.CancelledError):
        await cancelled
    await until(lambda: pool.statistics() == NOTHING)
    assert launcher.kernels[0].discards == 1
    await close(pool, launcher)


# ---- starts that fail


async def test_a_failed_start_is_told_to_the_first_claim_and_the_others_go_on() -> None:
    launcher = FailingLauncher(times=1)
    pool = new_pool(launcher, concurrent_starts=1)
    first, second, third = claim(pool), claim(pool), claim(pool)
    with pytest.raises(KernelStartFailed, match="start 1 failed"):
        await first
    assert (await second) is launcher.kernels[0]
    assert (await third) is launcher.kernels[1]
    await close(pool, launcher)


async def test_if_nothing_starts_every_claim_is_told_and_none_is_tried_twice() -> None:
    launcher = FailingLauncher()
    pool = new_pool(launcher, size=2, max_kernels=2)
    claims = [claim(pool) for _ in range(10)]
    async with asyncio.timeout(DEADLINE):
        ends = await asyncio.gather(*claims, return_exceptions=True)
    assert [type(end) for end in ends] == [KernelStartFailed] * 10
    await turns()
    assert len(launcher.started) <= 12
    assert launcher.existing == 0
    await close(pool, launcher)


async def test_a_claim_holds_back_its_successor_while_others_are_warm() -> None:
    clock = Clock()
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=2, clock=clock, refill_pause=100.0)
    pool.start()
    await until(lambda: pool.statistics().warm == 2)
    first = await pool.claim(PYTHON3)
    await turns()
    assert len(launcher.started) == 2, "a start took the processor from the first cell"
    clock.now += 100
    pool.start()
    await until(lambda: pool.statistics().warm == 2)
    # Whoever takes the last one, or finds none, waits for no pause.
    for kernel in [first, *[await pool.claim(PYTHON3) for _ in range(3)]]:
        pool.release(kernel)
    await close(pool, launcher)


async def test_warm_kernels_are_retried_after_growing_delays_with_a_bound() -> None:
    clock = Clock()
    launcher = FailingLauncher(times=8)
    pool = new_pool(launcher, size=1, clock=clock, retry_delay=100.0)
    pool.start()
    await until(lambda: launcher.started)
    for number, delay in enumerate((100, 200, 400, 800, 800, 800, 800, 800), start=1):
        await turns()
        clock.now += delay - 1
        pool.start()
        await turns()
        assert len(launcher.started) == number, "it was retried too early"
        clock.now += 1
        pool.start()
        await until(lambda: len(launcher.started) == number + 1)  # noqa: B023
    await until(lambda: pool.statistics().warm == 1)
    # The next failure begins with the short delay again.
    launcher.times = len(launcher.started) + 1
    pool.release(await pool.claim(PYTHON3))
    await until(lambda: len(launcher.started) == launcher.times)
    await turns()
    clock.now += 100
    pool.start()
    await until(lambda: pool.statistics().warm == 1)
    await close(pool, launcher)


async def test_a_pool_whose_starts_fail_retries_by_itself_and_is_not_busy() -> None:
    """Real time: between two starts there is at least the delay, and they go on without anybody's help."""
    began: list[float] = []

    class Recording(FailingLauncher):
        async def prepare(self, attempt: Attempt) -> None:
            began.append(time.monotonic())
            await super().prepare(attempt)

    launcher = Recording(times=6)
    pool = new_pool(launcher, size=1, retry_delay=0.01)
    pool.start()
    await until(lambda: pool.statistics().warm == 1)
    gaps = [later - earlier for earlier, later in pairwise(began)]
    assert len(gaps) == 6
    for gap, delay in zip(gaps, (0.01, 0.02, 0.04, 0.08, 0.08, 0.08), strict=True):
        assert gap >= delay
    await close(pool, launcher)


async def test_a_claim_does_not_wait_for_the_retry_of_warm_kernels() -> None:
    launcher = FailingLauncher(times=1)
    pool = new_pool(launcher, size=1, clock=Clock(), retry_delay=1000)
    pool.start()
    await until(lambda: launcher.started)
    await turns()
    assert (await pool.claim(PYTHON3)).alive
    await close(pool, launcher)


async def test_an_error_that_no_launcher_should_raise_is_no_busy_loop_and_reaches_the_claim() -> None:
    """A bug in the launcher, or an error of the system that it did not foresee."""
    launcher = FailingLauncher(times=10, error=OSError)
    pool = new_pool(launcher, size=1, clock=Clock(), claim_timeout=0.5)
    with suppress(PoolExhausted):
        waiting = claim(pool)
        pool.start()
        await until(waiting.done)
        await turns(200)
        assert len(launcher.started) <= 3, "it is retried without a delay"
        assert waiting.exception() is not None
    await close(pool, launcher)


# ---- warm kernels that die


async def test_a_warm_kernel_that_dies_is_replaced_and_never_handed_out() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=2, retry_delay=0.001)
    await warmed(pool, 2)
    dead = launcher.kernels[0]
    dead.die()
    await until(lambda: len(launcher.kernels) == 3)
    await until(lambda: pool.statistics() == PoolStatistics(2, 0, 0, 0, 0))
    claimed = [await pool.claim(PYTHON3), await pool.claim(PYTHON3)]
    assert dead not in claimed
    assert dead.discards == 1
    await close(pool, launcher)


async def test_a_kernel_that_died_this_very_moment_is_not_handed_out() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=1, max_kernels=2)
    await warmed(pool, 1)
    launcher.kernels[0].die()
    # No turn of the loop since: nobody was told of the death yet.
    assert (await pool.claim(PYTHON3)).alive
    await close(pool, launcher)


async def test_kernels_that_die_while_warm_are_replaced_with_a_delay_until_one_lives() -> None:
    launcher = DyingLauncher(times=5)
    pool = new_pool(launcher, size=1, retry_delay=0.001)
    pool.start()
    # Each is warm for a turn or two before it dies.
    await until(lambda: len(launcher.started) == 6)
    await until(lambda: pool.statistics() == PoolStatistics(1, 0, 0, 0, 0))
    await turns()
    assert len(launcher.started) == 6
    assert launcher.most == 1
    await close(pool, launcher)


@pytest.mark.parametrize("tick", [0.0025, 0.005, 0.01, 0.04])
async def test_a_retry_that_is_due_between_two_looks_at_the_clock_is_not_forgotten(tick: float) -> None:
    """Each look takes so long that the next one finds the pause over, at every place in turn."""
    launcher = DyingLauncher(times=5)
    clock = Clock()

    def look() -> float:
        clock.now += tick
        return clock.now

    pool = new_pool(launcher, size=1, clock=look, retry_delay=0.01)
    pool.start()
    await until(lambda: len(launcher.started) == 6)
    await close(pool, launcher)


async def test_kernels_that_die_while_warm_are_no_busy_loop() -> None:
    launcher = DyingLauncher(times=10)
    pool = new_pool(launcher, size=1, clock=Clock(), retry_delay=1000)
    pool.start()
    await until(lambda: launcher.kernels and launcher.existing == 0)
    await turns()
    assert len(launcher.started) == 1
    await close(pool, launcher)


async def test_a_kernel_that_dies_in_use_keeps_its_place_until_it_is_released() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, max_kernels=1)
    kernel = await pool.claim(PYTHON3)
    launcher.kernels[0].die()
    await turns()
    assert pool.statistics().in_use == 1
    pool.release(kernel)
    assert (await pool.claim(PYTHON3)).alive
    await close(pool, launcher)


# ---- bursts and eviction


async def test_after_a_burst_more_kernels_are_warm_and_later_no_more_are_added() -> None:
    clock = Clock()
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=1, burst_size=4, max_kernels=20, clock=clock)
    await warmed(pool, 1)
    for expected in (1, 2, 3, 4, 4):
        pool.release(await pool.claim(PYTHON3))
        await until(lambda: pool.statistics() == PoolStatistics(expected, 0, 0, 0, 0))  # noqa: B023
    clock.now += 60
    # The burst is over: each claim takes a warm kernel away until the ordinary number is reached.
    for expected in (3, 2, 1, 1):
        pool.release(await pool.claim(PYTHON3))
        await until(lambda: pool.statistics() == PoolStatistics(expected, 0, 0, 0, 0))  # noqa: B023
        clock.now += 60
    await close(pool, launcher)


class ForkingLauncher(QuickLauncher):
    """Forks kernels of python3, as long as it can; others are started."""

    can_fork = True

    def forks(self, kernelspec: str) -> bool:
        return self.can_fork and kernelspec == "python3"


async def test_fewer_kernels_are_kept_warm_where_they_are_forked() -> None:
    launcher = ForkingLauncher()
    settings = PoolSettings(max_kernels=20, burst_window=3600)
    pool = KernelPool(launcher, settings, [PYTHON3, OTHER])

    def warm(kernelspec: str) -> int:
        return sum(kernel.profile.kernelspec == kernelspec for kernel in launcher.kernels if kernel.alive)

    await warmed(pool, 3)
    assert (warm("python3"), warm("other")) == (1, 2)
    for profile in (PYTHON3, OTHER):
        for _ in range(10):
            pool.release(await pool.claim(profile))
    await until(lambda: pool.statistics() == PoolStatistics(10, 0, 0, 0, 0))
    assert (warm("python3"), warm("other")) == (2, 8)
    # Forks fail, and kernels are started cold.
    launcher.can_fork = False
    pool.release(await pool.claim(PYTHON3))
    await until(lambda: pool.statistics() == PoolStatistics(16, 0, 0, 0, 0))
    assert (warm("python3"), warm("other")) == (8, 8)
    await close(pool, launcher)


async def test_a_number_that_is_set_holds_for_forked_kernels_too() -> None:
    launcher = ForkingLauncher()
    pool = new_pool(launcher, size=3, burst_size=4, max_kernels=20)
    await warmed(pool, 3)
    for _ in range(6):
        pool.release(await pool.claim(PYTHON3))
    await until(lambda: pool.statistics() == PoolStatistics(4, 0, 0, 0, 0))
    await close(pool, launcher)


async def test_a_pool_is_ready_from_its_first_warm_kernel_on() -> None:
    """Also in the moment after a claim and its release, when the next is still starting."""
    launcher = SlowLauncher()
    pool = new_pool(launcher, size=1)
    pool.start()
    await turns()
    assert not pool.ready
    await launcher.detach()
    await until(lambda: pool.statistics().warm == 1)
    pool.release(await pool.claim(PYTHON3))
    await until(lambda: pool.statistics() == PoolStatistics(0, 1, 0, 0, 0))
    assert pool.ready
    await close(pool, launcher)


async def test_a_pool_is_not_ready_while_no_kernel_can_be_kept_warm() -> None:
    launcher = FailingLauncher()
    pool = new_pool(launcher, size=1, retry_delay=60.0)
    await warmed(pool, 0)
    await until(lambda: launcher.started)
    assert not pool.ready
    await close(pool, launcher)
    assert new_pool(launcher, size=0).ready


async def test_a_burst_fills_no_more_than_the_pool() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=1, burst_size=8, max_kernels=3)
    for _ in range(6):
        pool.release(await pool.claim(PYTHON3))
        await turns()
    await until(lambda: pool.statistics() == PoolStatistics(3, 0, 0, 0, 0))
    assert launcher.most == 3
    await close(pool, launcher)


async def test_a_waiting_claim_takes_the_place_of_anothers_warm_kernel() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=2, max_kernels=2)
    await warmed(pool, 2)
    kernel = await pool.claim(BIG)
    assert kernel.profile == BIG
    assert pool.statistics() == PoolStatistics(warm=1, starting=0, in_use=1, ending=0, waiting=0)
    assert launcher.most == 2
    pool.release(kernel)
    await until(lambda: pool.statistics() == PoolStatistics(2, 0, 0, 0, 0))
    await close(pool, launcher)


async def test_waiting_claims_take_all_warm_kernels_places_one_by_one() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=3, max_kernels=3)
    await warmed(pool, 3)
    kernels = await asyncio.gather(*(pool.claim(BIG) for _ in range(3)))
    assert {kernel.profile for kernel in kernels} == {BIG}
    assert launcher.most == 3
    await close(pool, launcher)


async def test_a_claim_that_waits_gets_a_place_before_the_warm_kernels() -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, size=1, max_kernels=1)
    pool.start()
    waiting = claim(pool, BIG)
    await launcher.detach()
    await until(lambda: launcher.started == [PYTHON3, BIG])
    await launcher.detach()
    assert (await waiting).profile == BIG
    await close(pool, launcher)


# ---- close


async def test_close_ends_all_there_is_and_refuses_all_who_wait() -> None:
    launcher = SlowLauncher()
    pool = new_pool(launcher, size=2, max_kernels=4, concurrent_starts=2)
    pool.start()
    for _ in range(3):
        await launcher.detach()
        await turns()
        if pool.statistics().in_use == 0:
            used = await pool.claim(PYTHON3)
    waiting = [claim(pool, BIG) for _ in range(3)]
    await turns()
    before = pool.statistics()
    assert min(before.warm, before.starting, before.in_use, before.waiting) >= 1
    await close(pool, launcher)
    for refused in waiting:
        with pytest.raises(PoolExhausted, match="shutting down"):
            await refused
    assert not used.alive
    with pytest.raises(PoolExhausted, match="shutting down"):
        await pool.claim(PYTHON3)
    pool.release(used)
    pool.start()
    await turns()
    assert pool.statistics() == NOTHING
    await pool.close()


async def test_a_pool_that_rests_serves_claims_and_warms_nothing() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=2)
    await warmed(pool, 2)
    pool.rest()
    for _ in range(3):
        await pool.claim(PYTHON3)
    await turns()
    assert pool.statistics() == PoolStatistics(0, 0, 3, 0, 0)
    await close(pool, launcher)


async def test_close_waits_for_kernels_that_are_ending() -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher)
    launcher.may_end.clear()
    pool.release(await pool.claim(PYTHON3))
    closing = asyncio.create_task(pool.close())
    await turns()
    assert not closing.done()
    launcher.may_end.set()
    await closing
    await close(pool, launcher)


@pytest.mark.parametrize("turn", range(6))
async def test_close_at_any_moment_of_a_start_leaves_nothing(turn: int) -> None:
    launcher = QuickLauncher()
    pool = new_pool(launcher, size=2)
    waiting = claim(pool)
    await turns(turn)
    await close(pool, launcher)
    await asyncio.gather(waiting, return_exceptions=True)
    assert pool.statistics() == NOTHING


async def test_close_ends_a_start_that_would_never_end() -> None:
    launcher = FakeLauncher(start=never_starts)
    pool = new_pool(launcher, size=2)
    pool.start()
    await until(lambda: launcher.existing == 2)
    await close(pool, launcher)


async def test_a_kernel_whose_start_ignored_the_close_is_ended() -> None:
    class Stubborn(QuickLauncher):
        async def prepare(self, attempt: Attempt) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                await asyncio.sleep(0)

    launcher = Stubborn()
    pool = new_pool(launcher, size=1)
    pool.start()
    await until(lambda: launcher.existing == 1)
    await close(pool, launcher)


async def test_an_end_that_fails_is_logged_and_gives_the_place_back(caplog: pytest.LogCaptureFixture) -> None:
    class Broken(QuickLauncher):
        async def wait_to_end(self, kernel: FakeKernel) -> None:
            raise OSError("the folder can't be removed")

    launcher = Broken()
    pool = new_pool(launcher, max_kernels=1)
    pool.release(await pool.claim(PYTHON3))
    assert (await pool.claim(PYTHON3)).alive
    assert "end kernel-0" in caplog.text
    assert "the folder can't be removed" in caplog.text
    await pool.close()
    assert pool.statistics() == NOTHING
