"""Warm, single-use kernels: claimed once, ended by their user's release, never handed out again.

The pool decides how many kernels exist and which are started next. It does not know what they are used
for, and it does not start them itself: ``kernel.KernelLauncher`` does. Every place is reserved before the
first await, so `max_kernels` holds under any concurrency (for what happens otherwise see jupyter
kernel_gateway#341).

Claims that no warm kernel can serve wait in line, in the fair order of ``turns``: whenever a kernel can be
started, it is started for the claim whose turn it is, whatever its profile, and belongs to that claim. If
there is no place, the claims after it wait too, so a rare profile is not overtaken by common ones.
A kernel that was being started for nobody (a warm one, or one whose claim has gone) goes to the first claim
in line for its profile.

A claim is told its position in line: at most once every `tell_interval` seconds, only if it has changed, and
only while it is among the first `MOST_TOLD`. It is told at once when it leaves the line for a kernel.

Warm kernels: the target of a kernelspec is `size`; after a burst of claims it rises to the number of claims
in the last `burst_window` seconds, at most `burst_size`, and falls back by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import islice
from typing import Protocol

from cellgate_kernels.errors import CellgateError, DeadlinePassed, KernelStartFailed, PoolExhausted
from cellgate_kernels.kernel import Kernel, KernelLauncher, KernelProfile
from cellgate_kernels.tasks import Supervisor
from cellgate_kernels.turns import Claimant, Turns

logger = logging.getLogger(__name__)

ANYBODY = Claimant("")
"""Who claims if the caller makes no difference."""
MOST_TOLD = 1000

Moved = Callable[[int | None], None]
"""Is told how many claims are ahead in line; None once a kernel starts for this one."""


@dataclass(frozen=True, slots=True)
class PoolSettings:
    """Limits of a pool. Durations in seconds.

    `claim_timeout`: how long a claim waits in line until its kernel starts. `tell_interval`: see the module.
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
    tell_interval: float = 1.0


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot: kernels warm, starting, in use and ending; claims that wait, and since how many seconds the
    longest of them has waited."""

    warm: int
    starting: int
    in_use: int
    ending: int
    waiting: int
    longest_wait: float = 0.0


class ClaimEnd(StrEnum):
    """How a claim ended: with a warm kernel at once, with one that it waited for, or without any.

    `EXHAUSTED`: nothing became free in time. `DEADLINE`: the claim's own patience ended first.
    """

    WARM = "warm"
    WAITED = "waited"
    EXHAUSTED = "exhausted"
    DEADLINE = "deadline"
    FAILED = "failed"
    CANCELLED = "cancelled"


class PoolObserver(Protocol):
    """Told what happens in a pool. It must be quick and raise nothing."""

    def claimed(self, end: ClaimEnd, seconds: float, kernel: str | None) -> None:
        """A claim has ended after `seconds`, in its caller's task."""

    def started(self, seconds: float) -> None:
        """A kernel has become ready after `seconds`."""

    def start_failed(self) -> None:
        """A kernel did not start."""

    def died_warm(self, cause: str) -> None:
        """A kernel ended before anybody used it."""


class Unobserved:
    """Nobody is told."""

    def claimed(self, end: ClaimEnd, seconds: float, kernel: str | None) -> None:
        """Does nothing."""

    def started(self, seconds: float) -> None:
        """Does nothing."""

    def start_failed(self) -> None:
        """Does nothing."""

    def died_warm(self, cause: str) -> None:
        """Does nothing."""


@dataclass(slots=True, eq=False)
class _Claim:
    """A claim that waits: in line, and then for the start that belongs to it. `position`: as it was told."""

    profile: KernelProfile
    kernel: asyncio.Future[Kernel]
    since: float
    patience: float
    moved: Moved | None
    position: int | None = None
    timer: asyncio.TimerHandle | None = None
    start: _Start | None = None


@dataclass(slots=True, eq=False)
class _Start:
    """A kernel that is starting. `claim`: whose it will be, if anybody's."""

    profile: KernelProfile
    claim: _Claim | None = None


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
        observer: PoolObserver | None = None,
    ) -> None:
        self.settings = settings
        self._observer = Unobserved() if observer is None else observer
        self._launcher = launcher
        self._clock = asyncio.get_running_loop().time if clock is None else clock
        self._shelves = {profile: _Shelf() for profile in warm}
        # All that wait, by age; and those of them that no start belongs to yet, in the order of their turns.
        self._claims: OrderedDict[_Claim, None] = OrderedDict()
        self._line: Turns[_Claim] = Turns()
        self._in_line: Counter[KernelProfile] = Counter()
        self._listening = 0
        self._starting: dict[asyncio.Task[None], _Start] = {}
        self._in_use: set[Kernel] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._tasks = Supervisor()
        self._timer: asyncio.TimerHandle | None = None
        self._teller: asyncio.TimerHandle | None = None
        self._told_at = -settings.tell_interval
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
            longest_wait=self._longest_wait(),
        )

    def _longest_wait(self) -> float:
        oldest = next(iter(self._claims), None)
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest.since)

    def processes(self) -> list[int]:
        """The first processes of the kernels that are warm or in use, as far as they are known."""
        kernels = [*self._in_use, *(kernel for shelf in self._shelves.values() for kernel in shelf.warm)]
        return [process for kernel in kernels if (process := kernel.process) is not None]

    async def claim(
        self,
        profile: KernelProfile,
        claimant: Claimant = ANYBODY,
        moved: Moved | None = None,
        *,
        patience: float | None = None,
    ) -> Kernel:
        """A ready kernel of this profile, which belongs to the caller until `release`.

        If there is none, the claim waits in line, where claimants take turns, until its kernel starts: at
        most `patience` and at most `claim_timeout` seconds. `moved` is told its position. Raises
        PoolExhausted when no place became free by then (DeadlinePassed if it was `patience` that ended),
        KernelStartFailed or KernelspecNotFound when the kernel can't be started. A caller that is cancelled
        leaves the line.
        """
        began = self._clock()
        kernel: Kernel | None = None
        end = ClaimEnd.CANCELLED
        try:
            kernel, end = await self._claim(profile, claimant, moved, patience)
        except DeadlinePassed:
            end = ClaimEnd.DEADLINE
            raise
        except PoolExhausted:
            end = ClaimEnd.EXHAUSTED
            raise
        except CellgateError:
            end = ClaimEnd.FAILED
            raise
        finally:
            self._observer.claimed(end, self._clock() - began, None if kernel is None else kernel.id)
        return kernel

    async def _claim(
        self, profile: KernelProfile, claimant: Claimant, moved: Moved | None, patience: float | None
    ) -> tuple[Kernel, ClaimEnd]:
        shelf = self._shelves.get(profile)
        if shelf is not None:
            shelf.claimed_at.append(self._clock())
        kernel = self._take_warm(profile)
        end = ClaimEnd.WARM
        if kernel is None:
            self._launcher.catalog.get_kernel_spec(profile.kernelspec)
            limit = self.settings.claim_timeout
            kernel = await self._wait(
                _Claim(
                    profile,
                    asyncio.get_running_loop().create_future(),
                    self._clock(),
                    limit if patience is None else min(patience, limit),
                    moved,
                ),
                claimant,
            )
            end = ClaimEnd.WAITED
        else:
            self._line.served(claimant)
        if shelf is not None:
            shelf.paused_until = self._clock() + self.settings.refill_pause if shelf.warm else 0.0
        self._balance()
        return kernel, end

    def _take_warm(self, profile: KernelProfile) -> Kernel | None:
        shelf = self._shelves.get(profile)
        while not self._closed and shelf is not None and shelf.warm:
            kernel = shelf.warm.popleft()
            if kernel.alive:
                self._in_use.add(kernel)
                return kernel
            self._end(kernel)
        return None

    async def _wait(self, claim: _Claim, claimant: Claimant) -> Kernel:
        if self._closed:
            raise self._exhausted("The gateway is shutting down.")
        claim.timer = asyncio.get_running_loop().call_later(
            claim.patience, self._tasks.guard(self._expire, "claim that waited too long"), claim
        )
        self._claims[claim] = None
        self._line.add(claimant, claim)
        self._in_line[claim.profile] += 1
        self._listening += claim.moved is not None
        self._balance()
        try:
            return await claim.kernel
        except asyncio.CancelledError:
            self._withdraw(claim)
            raise

    def _expire(self, claim: _Claim) -> None:
        self._answer(claim)
        if not claim.kernel.done():
            claim.kernel.set_exception(self._too_late(claim))
        self._balance()

    def _too_late(self, claim: _Claim) -> PoolExhausted:
        if claim.patience < self.settings.claim_timeout:
            return DeadlinePassed(claim.patience)
        return self._exhausted(
            f"All {self.settings.max_kernels} kernels are in use and none came free within"
            f" {self.settings.claim_timeout:g} s. Try again later, or end sessions you don't need."
        )

    def _withdraw(self, claim: _Claim) -> None:
        """Its caller was cancelled: if a kernel is starting for it, the next in line gets that."""
        self._answer(claim)
        future = claim.kernel
        if not future.cancelled() and future.exception() is None:
            # The kernel was handed over at the moment of the caller's cancellation.
            self.release(future.result())
        self._balance()

    def _answer(self, claim: _Claim) -> None:
        """The claim waits no longer: its caller has an answer, or wants none."""
        self._claims.pop(claim, None)
        if claim in self._line:
            self._line.remove(claim)
            self._left_line(claim)
        if claim.start is not None:
            claim.start.claim = None
            claim.start = None

    def _assign(self, start: _Start, claim: _Claim) -> None:
        """The kernel that starts will be this claim's: from now on, only the start's timeout applies."""
        self._line.take(claim)
        self._left_line(claim)
        start.claim = claim
        claim.start = start
        if claim.moved is not None:
            self._tasks.guard(claim.moved, "end of a wait in line")(None)

    def _left_line(self, claim: _Claim) -> None:
        self._in_line[claim.profile] -= 1
        if not self._in_line[claim.profile]:
            del self._in_line[claim.profile]
        self._listening -= claim.moved is not None
        if claim.timer is not None:
            claim.timer.cancel()

    def _first(self) -> _Claim | None:
        """The claim whose turn it is; those just cancelled leave the line."""
        while (claim := self._line.first()) is not None and claim.kernel.done():
            self._answer(claim)
        return claim

    def _first_of(self, profile: KernelProfile) -> _Claim | None:
        """The first claim in line that a kernel of this profile can serve."""
        if profile not in self._in_line:
            return None
        fitting = (claim for claim in self._line.order() if claim.profile == profile)
        return next((claim for claim in fitting if not claim.kernel.done()), None)

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
        self._assign_starts()
        while len(self._starting) < self.settings.concurrent_starts:
            claim = self._first()
            profile = self._wanted_warm() if claim is None else claim.profile
            if profile is None or (self._places < 1 and not self._evict(profile)):
                break
            start = _Start(profile)
            if claim is not None:
                self._assign(start, claim)
            task = self._tasks.start(self._start(start), f"start {profile.kernelspec}")
            self._starting[task] = start
            # A task that is cancelled before its first step never does this itself.
            task.add_done_callback(lambda done: self._starting.pop(done, None))
        self._set_timer()
        self._tell_later()

    def _assign_starts(self) -> None:
        """Give the kernels that are starting for nobody to claims that can use them."""
        for start in self._starting.values():
            if start.claim is None and (claim := self._first_of(start.profile)) is not None:
                self._assign(start, claim)

    def _wanted_warm(self) -> KernelProfile | None:
        now = self._clock()
        for profile, shelf in self._shelves.items():
            coming = [start for start in self._starting.values() if start.claim is None]
            total = len(shelf.warm) + sum(start.profile == profile for start in coming)
            if self._places >= 1 and total < self._target(shelf) and now >= shelf.start_at:
                return profile
        return None

    def _evict(self, wanted: KernelProfile) -> bool:
        """Free a place for a waiting claim by ending an idle warm kernel of another profile.

        The place becomes free when that kernel is gone, so this returns False; its end calls `_balance`,
        which gives the place to the claim whose turn it is then.
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

    def _tell_later(self) -> None:
        """Tell positions soon, if they may have changed, but not more often than every `tell_interval`."""
        if self._teller is None and self._listening:
            loop = asyncio.get_running_loop()
            delay = max(0.0, self._told_at + self.settings.tell_interval - loop.time())
            self._teller = loop.call_later(delay, self._tasks.guard(self._tell, "positions in line"))

    def _tell(self) -> None:
        self._teller = None
        self._told_at = asyncio.get_running_loop().time()
        # A listener may change the line.
        for position, claim in enumerate(list(islice(self._line.order(), MOST_TOLD))):
            if claim.moved is not None and claim.position != position and not claim.kernel.done():
                claim.position = position
                self._tasks.guard(claim.moved, "position in line")(position)

    async def _start(self, start: _Start) -> None:
        task = asyncio.current_task()
        assert task is not None
        began = self._clock()
        try:
            kernel = await self._launcher.start(start.profile)
        except CellgateError as error:
            self._starting.pop(task, None)
            self._failed(start, error)
        except BaseException as error:
            self._starting.pop(task, None)
            if not isinstance(error, asyncio.CancelledError):
                # An internal error: report it to the waiting claim, and delay so that it does not repeat
                # at full speed.
                self._failed(start, KernelStartFailed("The kernel could not be started; the log says why."))
            raise
        else:
            self._starting.pop(task, None)
            self._observer.started(self._clock() - began)
            self._started(start, kernel)
        finally:
            self._balance()

    def _started(self, start: _Start, kernel: Kernel) -> None:
        shelf = self._shelves.get(start.profile)
        if shelf is not None:
            shelf.failures = 0
            shelf.retry_at = 0.0
        if start.claim is None or start.claim.kernel.done():
            # Its claim was cancelled just now.
            claim = self._first_of(start.profile)
            if claim is not None:
                self._assign(start, claim)
        claim = start.claim
        if claim is not None and not claim.kernel.done() and not self._closed:
            self._in_use.add(kernel)
            claim.kernel.set_result(kernel)
            self._answer(claim)
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
            ended = kernel.exited.result()
            self._observer.died_warm(ended.cause)
            ids = {"kernel": kernel.id, "cause": ended.cause}
            logger.warning("A warm kernel ended before it was used: %s", ended.message, extra=ids)
            self._back_off(shelf)
            self._end(kernel)

    def _failed(self, start: _Start, error: CellgateError) -> None:
        """Fail the claim that the start belongs to; the warm target is retried with a growing delay."""
        self._observer.start_failed()
        # What a kernel says before its end may repeat the variables that its session gave it.
        why = f"its session was told ({error.reason})" if start.profile.env else error.message
        logger.warning("A kernel did not start: %s", why, extra={"reason": error.reason})
        shelf = self._shelves.get(start.profile)
        if shelf is not None:
            self._back_off(shelf)
        claim = start.claim
        if claim is not None and not claim.kernel.done():
            claim.kernel.set_exception(error)
            self._answer(claim)

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
        for timer in (self._timer, self._teller):
            if timer is not None:
                timer.cancel()
        for claim in tuple(self._claims):
            self._answer(claim)
            if not claim.kernel.done():
                claim.kernel.set_exception(self._exhausted("The gateway is shutting down."))
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
