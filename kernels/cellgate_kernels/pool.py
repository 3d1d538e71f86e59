"""Warm, single-use kernels: claimed once, ended by their user's release, never handed out again.

The pool decides how many kernels exist and which are started next. It does not know what they are used
for, and it does not start them itself: ``kernel.KernelLauncher`` does. Every place is reserved before the
first await, so `max_kernels` holds under any concurrency (for what happens otherwise see jupyter
kernel_gateway#341).

Demand is one number per profile: waiting claims, plus the warm target, minus kernels that are warm or
starting. The target of a kernelspec is `size`; after a burst of claims it rises to the number of claims in
the last `burst_window` seconds, at most `burst_size`, and falls back by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from cellgate_kernels.errors import CellgateError, KernelStartFailed, PoolExhausted
from cellgate_kernels.kernel import Kernel, KernelLauncher, KernelProfile
from cellgate_kernels.tasks import Supervisor

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Limits of a pool. Durations in seconds.

    `refill_pause`: how long after a claim the next warm kernel's start is delayed while others are warm. A
    start would compete for a processor just when the first cell runs.
    """

    size: int = 2
    burst_size: int = 8
    burst_window: float = 10.0
    max_kernels: int = 64
    concurrent_starts: int = 2
    claim_timeout: float = 30.0
    refill_pause: float = 0.0
    retry_delay: float = 1.0
    max_retry_delay: float = 60.0


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot: kernels warm, starting, in use and ending, and waiting claims."""

    warm: int
    starting: int
    in_use: int
    ending: int
    waiting: int


@dataclass(slots=True, eq=False)
class _Claim:
    profile: KernelProfile
    kernel: asyncio.Future[Kernel]
    patience: asyncio.Timeout | None = None


@dataclass(slots=True)
class _Shelf:
    """What the pool keeps for one warm profile."""

    warm: deque[Kernel] = field(default_factory=deque)
    claimed_at: deque[float] = field(default_factory=lambda: deque(maxlen=256))
    failures: int = 0
    retry_at: float = 0.0
    paused_until: float = 0.0

    @property
    def start_at(self) -> float:
        """When the next warm kernel may be started, at the earliest."""
        return max(self.retry_at, self.paused_until)


class KernelPool:
    """Hands out ready kernels. `start`, then `claim` and `release`, then `close`."""

    def __init__(
        self,
        launcher: KernelLauncher,
        settings: PoolSettings,
        warm: Sequence[KernelProfile],
        *,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.settings = settings
        self._launcher = launcher
        self._clock = asyncio.get_running_loop().time if clock is None else clock
        self._shelves = {profile: _Shelf() for profile in warm}
        self._claims: deque[_Claim] = deque()
        self._starting: dict[asyncio.Task[None], KernelProfile] = {}
        self._in_use: set[Kernel] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._tasks = Supervisor()
        self._timer: asyncio.TimerHandle | None = None
        self._resting = self._closed = False

    def start(self) -> None:
        """Start warming kernels; returns at once."""
        self._balance()

    def statistics(self) -> PoolStatistics:
        """How many kernels there are now, by state."""
        return PoolStatistics(
            warm=sum(len(shelf.warm) for shelf in self._shelves.values()),
            starting=len(self._starting),
            in_use=len(self._in_use),
            ending=len(self._ending),
            waiting=len(self._claims),
        )

    async def claim(self, profile: KernelProfile) -> Kernel:
        """A ready kernel of this profile, which belongs to the caller until `release`.

        Waits in line at most `claim_timeout` seconds. Raises PoolExhausted when no place became free by
        then, KernelStartFailed or KernelspecNotFound when the kernel can't be started.
        """
        shelf = self._shelves.get(profile)
        if shelf is not None:
            shelf.claimed_at.append(self._clock())
        kernel = self._take_warm(profile)
        if kernel is None:
            self._launcher.catalog.get_kernel_spec(profile.kernelspec)
            kernel = await self._wait_in_line(profile)
        if shelf is not None:
            shelf.paused_until = self._clock() + self.settings.refill_pause if shelf.warm else 0.0
        self._balance()
        return kernel

    def _take_warm(self, profile: KernelProfile) -> Kernel | None:
        shelf = self._shelves.get(profile)
        while not self._closed and shelf is not None and shelf.warm:
            kernel = shelf.warm.popleft()
            if kernel.alive:
                self._in_use.add(kernel)
                return kernel
            self._end(kernel)
        return None

    async def _wait_in_line(self, profile: KernelProfile) -> Kernel:
        if self._closed:
            raise self._exhausted("The gateway is shutting down.")
        claim = _Claim(profile, asyncio.get_running_loop().create_future())
        self._claims.append(claim)
        self._balance()
        try:
            async with asyncio.timeout(self.settings.claim_timeout) as claim.patience:
                self._reassure()
                return await claim.kernel
        except BaseException as error:
            self._withdraw(claim)
            if isinstance(error, TimeoutError):
                raise self._exhausted(
                    f"All {self.settings.max_kernels} kernels are in use and none came free within"
                    f" {self.settings.claim_timeout:g} s. Try again later, or end sessions you don't need."
                ) from None
            raise

    def _withdraw(self, claim: _Claim) -> None:
        if claim in self._claims:
            self._claims.remove(claim)
        future = claim.kernel
        if future.done() and not future.cancelled() and future.exception() is None:
            # The kernel was handed over at the moment of the timeout or of the caller's cancellation.
            self.release(future.result())

    def _exhausted(self, message: str) -> PoolExhausted:
        return PoolExhausted(message, retry_after=self.settings.claim_timeout)

    def release(self, kernel: Kernel, *, spare_files: bool = False) -> None:
        """End a claimed kernel in the background; its place becomes free when it is gone.

        With `spare_files` its workspace is kept.
        """
        if kernel in self._in_use:
            self._in_use.discard(kernel)
            self._end(kernel, spare_files=spare_files)

    def adopt(self, kernel: Kernel) -> None:
        """Add a kernel that an earlier gateway started; it counts as in use until `release`."""
        self._in_use.add(kernel)

    def detach(self, kernel: Kernel) -> None:
        """Let a claimed kernel outlive the pool."""
        self._in_use.discard(kernel)
        kernel.detach()

    def _end(self, kernel: Kernel, *, spare_files: bool = False) -> None:
        ending = kernel.discard(spare_files=spare_files)
        task = self._tasks.start(ending, f"end {kernel.id}", kernel=kernel.id)
        self._ending.add(task)
        task.add_done_callback(self._tasks.guard(self._ended, "count of kernels"))

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        self._balance()

    @property
    def _places(self) -> int:
        used = len(self._starting) + len(self._in_use) + len(self._ending)
        return self.settings.max_kernels - used - sum(len(shelf.warm) for shelf in self._shelves.values())

    def _target(self, shelf: _Shelf) -> int:
        if self.settings.size == 0 or self._resting:
            return 0
        since = self._clock() - self.settings.burst_window
        while shelf.claimed_at and shelf.claimed_at[0] < since:
            shelf.claimed_at.popleft()
        return max(self.settings.size, min(len(shelf.claimed_at), self.settings.burst_size))

    def _balance(self) -> None:
        """Start what is wanted and fits; called after every change, and by one timer."""
        if self._closed:
            return
        while len(self._starting) < self.settings.concurrent_starts:
            profile = self._wanted_by_claims() or self._wanted_warm()
            if profile is None or (self._places < 1 and not self._evict(profile)):
                break
            task = self._tasks.start(self._start(profile), f"start {profile.kernelspec}")
            self._starting[task] = profile
            # A task that is cancelled before its first step never does this itself.
            task.add_done_callback(lambda done: self._starting.pop(done, None))
        self._reassure()
        self._set_timer()

    def _reassure(self) -> None:
        """A claim whose kernel is starting has its place: from then on only the start's timeout applies."""
        starting = list(self._starting.values())
        for claim in self._claims:
            if claim.profile in starting:
                starting.remove(claim.profile)
                if claim.patience is not None:
                    claim.patience.reschedule(None)

    def _wanted_by_claims(self) -> KernelProfile | None:
        starting = list(self._starting.values())
        for claim in self._claims:
            if claim.profile not in starting:
                return claim.profile
            starting.remove(claim.profile)
        return None

    def _wanted_warm(self) -> KernelProfile | None:
        now = self._clock()
        starting = list(self._starting.values())
        for profile, shelf in self._shelves.items():
            claims = sum(claim.profile == profile for claim in self._claims)
            coming = len(shelf.warm) + starting.count(profile) - claims
            if self._places >= 1 and coming < self._target(shelf) and now >= shelf.start_at:
                return profile
        return None

    def _evict(self, wanted: KernelProfile) -> bool:
        """Free a place for a waiting claim by ending an idle warm kernel of another profile.

        The place becomes free when that kernel is gone, so this returns False; its end calls `_balance`.
        """
        if not self._ending:
            for profile, shelf in self._shelves.items():
                if profile != wanted and shelf.warm:
                    self._end(shelf.warm.popleft())
                    break
        return False

    def _set_timer(self) -> None:
        """Look again when a failed profile may be retried, or a pause is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now = self._clock()
        delays = [shelf.start_at - now for shelf in self._shelves.values() if shelf.start_at > now]
        if delays:
            self._timer = asyncio.get_running_loop().call_later(
                min(delays) + 0.01, self._tasks.guard(self._balance, "refill")
            )

    async def _start(self, profile: KernelProfile) -> None:
        task = asyncio.current_task()
        assert task is not None
        try:
            kernel = await self._launcher.start(profile)
        except CellgateError as error:
            self._starting.pop(task, None)
            self._failed(profile, error)
        except BaseException as error:
            self._starting.pop(task, None)
            if not isinstance(error, asyncio.CancelledError):
                # An internal error: report it to the waiting claim, and delay so that it does not repeat
                # at full speed.
                self._failed(profile, KernelStartFailed("The kernel could not be started; the log says why."))
            raise
        else:
            self._starting.pop(task, None)
            self._started(profile, kernel)
        finally:
            self._balance()

    def _started(self, profile: KernelProfile, kernel: Kernel) -> None:
        shelf = self._shelves.get(profile)
        if shelf is not None:
            shelf.failures = 0
            shelf.retry_at = 0.0
        claim = next((c for c in self._claims if c.profile == profile and not c.kernel.done()), None)
        if claim is not None and not self._closed:
            self._claims.remove(claim)
            self._in_use.add(kernel)
            claim.kernel.set_result(kernel)
        elif shelf is not None and not self._closed:
            shelf.warm.append(kernel)
            died = self._tasks.guard(
                lambda _: self._died_warm(shelf, kernel), "death of a warm kernel", kernel=kernel.id
            )
            kernel.exited.add_done_callback(died)
        else:
            self._end(kernel)

    def _died_warm(self, shelf: _Shelf, kernel: Kernel) -> None:
        if kernel in shelf.warm:
            shelf.warm.remove(kernel)
            logger.warning("A warm kernel ended before it was used: %s", kernel.exited.result().message)
            self._back_off(shelf)
            self._end(kernel)

    def _failed(self, profile: KernelProfile, error: CellgateError) -> None:
        """Fail the first waiting claim; the warm target is retried with a growing delay."""
        logger.warning("A kernel did not start: %s", error.message)
        shelf = self._shelves.get(profile)
        if shelf is not None:
            self._back_off(shelf)
        claim = next((c for c in self._claims if c.profile == profile and not c.kernel.done()), None)
        if claim is not None:
            self._claims.remove(claim)
            claim.kernel.set_exception(error)

    def _back_off(self, shelf: _Shelf) -> None:
        delay = min(self.settings.retry_delay * 2**shelf.failures, self.settings.max_retry_delay)
        shelf.failures = min(shelf.failures + 1, 16)
        shelf.retry_at = self._clock() + delay

    def rest(self) -> None:
        """Stop warming kernels; claims are still served. For a gateway that is about to stop."""
        self._resting = True

    async def close(self) -> None:
        """End every kernel, refuse every claim, and return when nothing is left. Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        for claim in self._claims:
            if not claim.kernel.done():
                claim.kernel.set_exception(self._exhausted("The gateway is shutting down."))
        self._claims.clear()
        for task in tuple(self._starting):
            task.cancel()
        if self._starting:
            await asyncio.wait(tuple(self._starting))
        for shelf in self._shelves.values():
            while shelf.warm:
                self._end(shelf.warm.popleft())
        for kernel in tuple(self._in_use):
            self.release(kernel)
        await self._tasks.finished()
