"""Warm, single-use kernels: claimed once, ended by their user's release, never handed out again.

The pool decides how many kernels exist and which are started next. It does not know what they are used
for, and it does not start them itself: ``kernel.launcher`` does. Every place is reserved before the
first await, so `max_kernels` holds under any concurrency (for what happens otherwise see jupyter
kernel_gateway#341).

Claims that no warm kernel can serve wait in line; see ``claims``. A kernel that was being started for nobody
(a warm one, or one whose claim has gone) goes to the first claim in line for its profile.

Warm kernels: the target of a profile is `size`; after a burst of claims it rises to the number of claims in
the last `burst_window` seconds, at most `burst_size`, and falls back by itself. Unless they are set, both go
by how its kernels start: `STARTED` or `FORKED`. None are kept of kernels that share a container with others
of one principal: they are forked when they are claimed, and it is known whose they are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import (
    CellgateError,
    DeadlinePassed,
    InvalidInput,
    KernelStartFailed,
    PoolExhausted,
)
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.tasks import Supervisor, until
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.kernel.held import HeldFork
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import KernelLauncher
from cellgate_kernels.pool.claims import ANYBODY, Claim, Claims, Moved, Start

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WarmTarget:
    """How many kernels are kept warm: always, and at most after a burst of claims."""

    size: int
    burst_size: int


STARTED = WarmTarget(2, 8)
"""Of kernels that are started as programs, which takes a second with their libraries."""
FORKED = WarmTarget(1, 2)
"""Of kernels that are forked. That takes a tenth of a second, so two cover as many claims as come in one, and
more would cost their memory, and the processor just when the sessions of a burst need it."""


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot: kernels warm, starting, in use and ending; claims that wait, and since how many seconds the
    longest of them has waited. `held`: forks that are held as checkpoints, which are no kernels."""

    warm: int
    starting: int
    in_use: int
    ending: int
    waiting: int
    longest_wait: float = 0.0
    held: int = 0


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


_ENDS: Mapping[type[CellgateError], ClaimEnd] = {
    DeadlinePassed: ClaimEnd.DEADLINE,
    PoolExhausted: ClaimEnd.EXHAUSTED,
}


class PoolObserver:
    """The reports of a pool, which nobody reads. Overriding methods must be quick and raise nothing."""

    def claimed(self, end: ClaimEnd, seconds: float, kernel: str | None) -> None:
        """Take note that a claim has ended after `seconds`, in its caller's task."""

    def started(self, seconds: float) -> None:
        """Take note that a kernel has become ready after `seconds`."""

    def start_failed(self) -> None:
        """Take note that a kernel did not start."""

    def died_warm(self, cause: str) -> None:
        """Take note that a kernel ended before anybody used it."""


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
        """The earliest time at which the next warm kernel may be started."""
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
        self._observer = PoolObserver() if observer is None else observer
        self._launcher = launcher
        self._clock = asyncio.get_running_loop().time if clock is None else clock
        self._shelves = {profile: _Shelf() for profile in warm}
        self._starting: dict[asyncio.Task[None], Start] = {}
        self._in_use: set[Kernel] = set()
        # Claimed too, but another kernel has their place, or is about to take it.
        self._replaced: set[Kernel] = set()
        self._held: set[HeldFork] = set()
        self._branching = 0
        self._ending: set[asyncio.Task[None]] = set()
        self._tasks = Supervisor()
        self._claims = Claims(settings, self._clock, self._tasks, self._balance)
        self._timer: asyncio.TimerHandle | None = None
        self._starts_work = False
        # Wakes those that wait for room for a branch; they look again.
        self._changed = asyncio.Event()
        self._resting = self._closed = False

    def start(self) -> None:
        """Start warming kernels; returns at once."""
        self._balance()

    def statistics(self) -> PoolStatistics:
        """Count the kernels by state."""
        return PoolStatistics(
            warm=sum(len(shelf.warm) for shelf in self._shelves.values()),
            starting=len(self._starting) + self._branching,
            in_use=len(self._in_use),
            ending=len(self._ending),
            waiting=len(self._claims),
            longest_wait=self._claims.longest_wait(),
            held=len(self._held),
        )

    @property
    def ready(self) -> bool:
        """Whether a claim may expect a kernel: the last one to be kept warm became ready, or none is kept."""
        there = self._in_use or any(shelf.warm for shelf in self._shelves.values())
        keeps_any = any(self._launcher.keeps_warm(profile) for profile in self._shelves)
        return bool(there) or self._starts_work or self.settings.size == 0 or not keeps_any

    def processes(self) -> list[int]:
        """Return the first processes of the kernels that are warm or in use, as far as they are known."""
        warm = (kernel for shelf in self._shelves.values() for kernel in shelf.warm)
        kernels = [*self._in_use, *self._replaced, *warm]
        # Kernels that share a sandbox have the same.
        return list({process for kernel in kernels if (process := kernel.process) is not None})

    async def claim(
        self,
        profile: KernelProfile,
        claimant: Claimant = ANYBODY,
        moved: Moved | None = None,
        *,
        patience: float | None = None,
    ) -> Kernel:
        """Return a ready kernel of this profile, which belongs to the caller until `release`.

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
        except CellgateError as error:
            end = _ENDS.get(type(error), ClaimEnd.FAILED)
            raise
        finally:
            self._observer.claimed(end, self._clock() - began, None if kernel is None else kernel.id)
        return kernel

    async def _claim(
        self, profile: KernelProfile, claimant: Claimant, moved: Moved | None, patience: float | None
    ) -> tuple[Kernel, ClaimEnd]:
        profile = self._launcher.placed(profile, claimant.name)
        shelf = self._shelves.get(profile)
        if shelf is not None:
            shelf.claimed_at.append(self._clock())
        kernel, end = self._take_warm(profile), ClaimEnd.WARM
        if kernel is None:
            self._launcher.catalog.get_kernel_spec(profile.kernelspec)
            if self._closed:
                raise self._claims.closed()
            claim = self._claims.add(profile, claimant, moved, patience)
            kernel, end = await self._wait(claim), ClaimEnd.WAITED
        else:
            self._claims.served(claimant)
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

    async def _wait(self, claim: Claim) -> Kernel:
        self._balance()
        try:
            return await claim.kernel
        except asyncio.CancelledError:
            self._withdraw(claim)
            raise

    def _withdraw(self, claim: Claim) -> None:
        """Take back a cancelled caller's claim: a kernel that starts for it goes to the next in line."""
        self._claims.answer(claim)
        future = claim.kernel
        if not future.cancelled() and future.exception() is None:
            # The kernel was handed over at the moment of the caller's cancellation.
            self.release(future.result())
        self._balance()

    async def branch(self, kernel: Kernel, spec: BranchSpec) -> Kernel:
        """Return a branch of a claimed kernel, the caller's until `release`; see `Kernel.branch`.

        It needs a place as every kernel does, but does not wait in line for one: whoever asks for it keeps a
        kernel idle. Raises PoolExhausted at once where no place is free for it after all claims in line, or
        can be made by ending a warm kernel, and as `Kernel.branch` does.
        """
        return await self._one_more(lambda: kernel.branch(spec))

    async def _one_more(self, fork: Callable[[], Awaitable[Kernel]]) -> Kernel:
        """Return a kernel that is forked, in a place of its own. Raises PoolExhausted, and as `fork`."""
        making_room = self._make_room()
        self._branching += 1
        try:
            if making_room is not None:
                await asyncio.wait([making_room])
            kernel = await fork()
            self._in_use.add(kernel)
        finally:
            self._branching -= 1
            self._balance()
        return self._unless_closed(kernel)

    def _unless_closed(self, kernel: Kernel) -> Kernel:
        if self._closed:
            self.release(kernel)
            raise self._claims.closed()
        return kernel

    async def checkpoint(self, kernel: Kernel, *, anyway: bool = False) -> HeldFork:
        """Return a claimed kernel as it is now, kept until the caller closes it or `close`.

        It has no place in the pool: how much memory such forks may take is the caller's to decide. Raises as
        `Kernel.checkpoint`, and PoolExhausted when the pool is closed.
        """
        held = await kernel.checkpoint(anyway=anyway)
        if self._closed:
            held.close()
            raise self._claims.closed()
        self._held.add(held)
        forget = self._tasks.guard(lambda _: self._held.discard(held), "end of a held fork")
        held.ended.add_done_callback(forget)
        return held

    async def restore(
        self,
        held: HeldFork,
        spec: BranchSpec,
        *,
        instead_of: Kernel | None = None,
        beside: asyncio.Future[None] | None = None,
    ) -> Kernel:
        """Return a live kernel made of a held fork, which belongs to the caller until `release`.

        It needs a place as a branch does, unless it is made instead of a claimed kernel of the same sandbox:
        then it takes over that one's place, so this works in a full pool too. That one may run a cell, or
        hang. It is still the caller's, who releases it; the sandbox and its held forks stay for the new one.
        Files that are shared (`BranchWorkspace.SHARED`) are those of `instead_of`, and without it those of
        the kernel that was forked. `beside`: what must have gone well too, and goes on meanwhile.

        Raises KernelDied when the held fork has ended, KernelStartFailed when the kernel does not come up,
        InvalidInput when the other kernel is not one that it can replace, and as `beside`. Then nothing has
        changed.
        """

        async def fork() -> Kernel:
            made = await self._launcher.restore(held, spec, like=instead_of)
            try:
                if beside is not None:
                    await beside
            except BaseException:
                # Nobody has its place.
                self._end(made, {made.workspace}, has_place=False)
                raise
            return made

        if instead_of is None:
            return await self._one_more(fork)
        if instead_of not in self._in_use:
            raise InvalidInput("This kernel is not in use, or another takes its place already")
        # The place is the new one's from here on, whatever happens to the other meanwhile.
        self._in_use.discard(instead_of)
        self._replaced.add(instead_of)
        self._branching += 1
        try:
            kernel = await fork()
            self._in_use.add(kernel)
        except BaseException:
            if instead_of in self._replaced:
                self._replaced.discard(instead_of)
                self._in_use.add(instead_of)
            raise
        finally:
            self._branching -= 1
            self._balance()
        return self._unless_closed(kernel)

    def _make_room(self) -> asyncio.Task[None] | None:
        """End a warm kernel for a branch; return that task, None if there is room. Raises PoolExhausted."""
        waiting = self._claims.in_line
        if not self._closed and self._places > waiting:
            return None
        warm = next((shelf.warm for shelf in self._shelves.values() if shelf.warm), None)
        if self._closed or waiting or warm is None:
            raise self._no_room()
        return self._end(warm.popleft())

    async def room_for_branch(self, patience: float) -> None:
        """Return once `branch` would find a place; the place is not reserved.

        Waits at most `patience` seconds, without a turn of its own: claims in line come first. Raises
        PoolExhausted.
        """
        try:
            async with asyncio.timeout(patience):
                await until(lambda: self._closed or self._has_room_for_branch, self._changed)
        except TimeoutError:
            raise self._no_room() from None
        if self._closed:
            raise self._claims.closed()

    @property
    def _has_room_for_branch(self) -> bool:
        waiting = self._claims.in_line
        return self._places > waiting or (not waiting and any(each.warm for each in self._shelves.values()))

    def _no_room(self) -> PoolExhausted:
        return self._claims.exhausted(
            f"All {self.settings.max_kernels} kernels are in use, and a branch is one more. Try again"
            " later, or end sessions you don't need."
        )

    def release(self, kernel: Kernel, *, spared: Collection[Path] = ()) -> None:
        """End a claimed kernel in the background; its place becomes free when it is gone, unless another
        took it over.

        These of its folders stay.
        """
        if kernel in self._in_use:
            self._in_use.discard(kernel)
            self._end(kernel, spared)
        elif kernel in self._replaced:
            self._replaced.discard(kernel)
            self._end(kernel, spared, has_place=False)

    def shares_workspaces(self) -> bool:
        """Return whether a kernel can be started in another's workspace; see ``KernelProfile.workspace``."""
        return self._launcher.shares_workspaces()

    def adopt(self, kernel: Kernel) -> None:
        """Add a kernel that an earlier gateway started; it counts as in use until `release`."""
        self._in_use.add(kernel)

    def detach(self, kernel: Kernel) -> None:
        """Let a claimed kernel outlive the pool."""
        self._in_use.discard(kernel)
        self._replaced.discard(kernel)
        kernel.detach()

    def _end(
        self, kernel: Kernel, spared: Collection[Path] = (), *, has_place: bool = True
    ) -> asyncio.Task[None]:
        ending = kernel.discard(spared=spared)
        task = self._tasks.start(ending, f"end {kernel.id}", kernel=kernel.id)
        if has_place:
            self._ending.add(task)
            task.add_done_callback(self._tasks.guard(self._ended, "count of kernels"))
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        self._balance()

    @property
    def _places(self) -> int:
        used = len(self._starting) + self._branching + len(self._in_use) + len(self._ending)
        return self.settings.max_kernels - used - sum(len(shelf.warm) for shelf in self._shelves.values())

    def _target(self, profile: KernelProfile, shelf: _Shelf) -> int:
        if self.settings.size == 0 or self._resting or not self._launcher.keeps_warm(profile):
            return 0
        usual = FORKED if self._launcher.forks(profile.kernelspec) else STARTED
        size = usual.size if self.settings.size is None else self.settings.size
        burst_size = usual.burst_size if self.settings.burst_size is None else self.settings.burst_size
        since = self._clock() - self.settings.burst_window
        while shelf.claimed_at and shelf.claimed_at[0] < since:
            shelf.claimed_at.popleft()
        return max(size, min(len(shelf.claimed_at), burst_size))

    def _balance(self) -> None:
        """Start what is wanted and fits; called after every change, and by one timer."""
        self._changed.set()
        if self._closed:
            return
        # One moment for all: a retry that is due between two looks at the clock would get no timer.
        now = self._clock()
        self._assign_starts()
        self._end_unwanted()
        while len(self._starting) < self.settings.concurrent_starts:
            claim = self._claims.first()
            profile = self._wanted_warm(now) if claim is None else claim.profile
            if profile is None or (self._places < 1 and not self._evict(profile)):
                break
            start = Start(profile)
            if claim is not None:
                self._claims.assign(start, claim)
            task = self._tasks.start(self._start(start), f"start {profile.kernelspec}")
            self._starting[task] = start
            # A task that is cancelled before its first step never does this itself.
            task.add_done_callback(lambda done: self._starting.pop(done, None))
        self._set_timer(now)
        self._claims.tell_later()

    def _end_unwanted(self) -> None:
        """End warm kernels that nobody would get: their claims share containers again."""
        for profile, shelf in self._shelves.items():
            if shelf.warm and not self._launcher.keeps_warm(profile):
                while shelf.warm:
                    self._end(shelf.warm.popleft())

    def _assign_starts(self) -> None:
        """Give the kernels that are starting for nobody to claims that can use them."""
        for start in self._starting.values():
            if start.claim is None and (claim := self._claims.first_of(start.profile)) is not None:
                self._claims.assign(start, claim)

    def _wanted_warm(self, now: float) -> KernelProfile | None:
        for profile, shelf in self._shelves.items():
            coming = [start for start in self._starting.values() if start.claim is None]
            total = len(shelf.warm) + sum(start.profile == profile for start in coming)
            if self._places >= 1 and total < self._target(profile, shelf) and now >= shelf.start_at:
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

    def _set_timer(self, now: float) -> None:
        """Look again when a failed profile may be retried, or a pause is over."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        delays = [shelf.start_at - now for shelf in self._shelves.values() if shelf.start_at > now]
        if delays:
            self._timer = asyncio.get_running_loop().call_later(
                min(delays) + 0.01, self._tasks.guard(self._balance, "refill")
            )

    async def _start(self, start: Start) -> None:
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

    def _started(self, start: Start, kernel: Kernel) -> None:
        shelf = self._shelves.get(start.profile)
        if shelf is not None:
            self._starts_work = True
            shelf.failures = 0
            shelf.retry_at = 0.0
        if start.claim is None or start.claim.kernel.done():
            # Its claim was cancelled just now.
            claim = self._claims.first_of(start.profile)
            if claim is not None:
                self._claims.assign(start, claim)
        claim = start.claim
        if claim is not None and not claim.kernel.done() and not self._closed:
            self._in_use.add(kernel)
            claim.kernel.set_result(kernel)
            self._claims.answer(claim)
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

    def _failed(self, start: Start, error: CellgateError) -> None:
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
            self._claims.answer(claim)

    def _back_off(self, shelf: _Shelf) -> None:
        self._starts_work = False
        delay = min(self.settings.retry_delay * 2**shelf.failures, self.settings.max_retry_delay)
        shelf.failures = min(shelf.failures + 1, 16)
        shelf.retry_at = self._clock() + delay

    def rest(self) -> None:
        """Stop warming kernels; claims are still served. For a gateway that is about to stop."""
        self._resting = True

    async def close(self) -> None:
        """End every kernel, refuse every claim, and return when nothing is left. Idempotent."""
        self._closed = True
        self._changed.set()
        if self._timer is not None:
            self._timer.cancel()
        self._claims.close()
        for task in tuple(self._starting):
            task.cancel()
        if self._starting:
            await asyncio.wait(tuple(self._starting))
        for shelf in self._shelves.values():
            while shelf.warm:
                self._end(shelf.warm.popleft())
        for kernel in (*self._in_use, *self._replaced):
            self.release(kernel)
        for held in tuple(self._held):
            held.close()
        await self._tasks.finished()
