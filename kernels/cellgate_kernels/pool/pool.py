"""Warm, single-use kernels: claimed once, ended by their user's release, never handed out again.

The pool decides how many kernels exist and which start next; ``kernel.launcher`` starts them. Every place is
reserved before the first await, so `max_kernels` holds under any concurrency (see jupyter
kernel_gateway#341). ``warm`` has the unclaimed kernels, ``claims`` the line of claims that none of these
serves, ``roster`` the places, ``forks`` the places of forks. A kernel that starts without a claim (a warm
one, or one whose claim has gone) goes to the first claim in line for its profile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import CellgateError, DeadlinePassed, KernelStartFailed, PoolExhausted
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.kernel.held import HeldFork
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import KernelLauncher
from cellgate_kernels.pool.claims import ANYBODY, Claim, Claims, Moved, Start
from cellgate_kernels.pool.forks import ForkPlaces
from cellgate_kernels.pool.roster import Roster, Yielding
from cellgate_kernels.pool.warm import WarmKernels

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class PoolStatistics:
    """A snapshot: kernels warm, starting, in use and ending; waiting claims, and the longest wait in seconds.
    `held`: forks that are held as checkpoints, which are not kernels.
    """

    warm: int
    starting: int
    in_use: int
    ending: int
    waiting: int
    longest_wait: float = 0.0
    held: int = 0


class ClaimEnd(StrEnum):
    """The end of a claim: with a warm kernel at once, with a kernel after a wait, or without any.

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
    """The reports of a pool; here they go nowhere. Overriding methods must be quick and raise nothing."""

    def claimed(self, end: ClaimEnd, seconds: float, kernel: str | None) -> None:
        """Take note that a claim has ended after `seconds`, in its caller's task."""

    def started(self, seconds: float) -> None:
        """Take note that a kernel has become ready after `seconds`."""

    def start_failed(self) -> None:
        """Take note that a kernel did not start."""

    def died_warm(self, cause: str) -> None:
        """Take note that a kernel ended before anybody used it."""


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
        self._tasks = Supervisor()
        self._warm = WarmKernels(launcher, settings, warm, self._clock)
        self._roster = Roster(settings.max_kernels, self._warm, self._tasks, self._balance)
        self._claims = Claims(settings, self._clock, self._tasks, self._balance)
        self._forks = ForkPlaces(self._roster, self._warm, self._claims, self._tasks)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start warming kernels; returns at once."""
        self._balance()

    def statistics(self) -> PoolStatistics:
        """Count the kernels by state."""
        roster = self._roster
        return PoolStatistics(
            warm=len(self._warm),
            starting=len(roster.starting) + roster.forking,
            in_use=len(roster.in_use),
            ending=len(roster.ending),
            waiting=len(self._claims),
            longest_wait=self._claims.longest_wait(),
            held=len(self._forks.held),
        )

    @property
    def ready(self) -> bool:
        """Whether a claim may expect a kernel: the last warm one became ready, or none is kept warm."""
        return bool(self._roster.in_use) or len(self._warm) > 0 or self._warm.ready

    def room(self) -> int:
        """Return how many more claims would wait for no other's release; negative if some wait for one."""
        roster = self._roster
        unclaimed = sum(start.claim is None for start in roster.starting.values())
        return roster.free + len(self._warm) + unclaimed + len(roster.ending) - self._claims.in_line

    def processes(self) -> list[int]:
        """Return the first processes of the warm and claimed kernels, as far as they are known."""
        kernels = [*self._roster.in_use, *self._roster.replaced, *self._warm]
        # Kernels that share a sandbox have the same first process.
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

        Without one, the claim waits in line, where claimants take turns, until its kernel starts: at most
        `patience` and at most `claim_timeout` seconds. `moved` gets its position. Raises PoolExhausted if no
        place became free by then (DeadlinePassed after `patience`), KernelStartFailed or KernelspecNotFound
        if the kernel can't be started. Cancel the call to leave the line.
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
        self._warm.claimed(profile)
        kernel, end = self._take_warm(profile), ClaimEnd.WARM
        if kernel is None:
            self._launcher.catalog.get_kernel_spec(profile.kernelspec)
            if self._roster.closed:
                raise self._claims.closed()
            claim = self._claims.add(profile, claimant, moved, patience)
            kernel, end = await self._wait(claim), ClaimEnd.WAITED
        else:
            self._claims.served(claimant)
        self._warm.served(profile)
        self._balance()
        return kernel, end

    def _take_warm(self, profile: KernelProfile) -> Kernel | None:
        while not self._roster.closed and (kernel := self._warm.take(profile)) is not None:
            if kernel.alive and self._launcher.is_current(kernel):
                self._roster.in_use.add(kernel)
                return kernel
            self._roster.end(kernel)
        return None

    async def _wait(self, claim: Claim) -> Kernel:
        self._balance()
        try:
            return await claim.kernel
        except asyncio.CancelledError:
            # The kernel that starts for this claim goes to the next one in line.
            self._claims.answer(claim)
            if not claim.kernel.cancelled() and claim.kernel.exception() is None:
                # The kernel was handed over at the moment of the caller's cancellation.
                self.release(claim.kernel.result())
            self._balance()
            raise

    async def branch(self, kernel: Kernel, spec: BranchSpec) -> Kernel:
        """Return a branch of a claimed kernel, the caller's until `release`; see `Kernel.branch`.

        It needs a place like every kernel, but does not wait in line for one, because its caller keeps a
        kernel idle. Raises PoolExhausted at once if no place is free after all claims in line, and none can
        be freed by ending a warm kernel, and as `Kernel.branch` does.
        """
        return await self._forks.fill(lambda: kernel.branch(spec))

    async def checkpoint(self, kernel: Kernel, *, anyway: bool = False) -> HeldFork:
        """Return a held fork of a claimed kernel, kept until the caller closes it or `close`.

        It has no place in the pool: the caller limits the memory of such forks. Raises as
        `Kernel.checkpoint`, and PoolExhausted when the pool is closed.
        """
        return self._forks.hold(await kernel.checkpoint(anyway=anyway))

    async def restore(
        self,
        held: HeldFork,
        spec: BranchSpec,
        *,
        instead_of: Kernel | None = None,
        beside: asyncio.Future[None] | None = None,
    ) -> Kernel:
        """Return a live kernel made from a held fork, which belongs to the caller until `release`.

        It needs a place like a branch, unless it replaces a claimed kernel of the same sandbox, `instead_of`:
        then it takes over that kernel's place, even in a full pool. The replaced kernel may run a cell, or
        hang. The caller still releases it; the sandbox and its held forks stay for the new kernel. Shared
        files (`BranchWorkspace.SHARED`) are those of `instead_of`, or of the forked kernel. `beside`: a
        concurrent task that must succeed too. Raises KernelDied if the held fork has ended, KernelStartFailed
        if the kernel does not come up, InvalidInput for a kernel that can't be replaced, and as `beside`.
        """

        async def fork() -> Kernel:
            made = await self._launcher.restore(held, spec, like=instead_of)
            try:
                if beside is not None:
                    await beside
            except BaseException:
                # Nobody has its place.
                self._roster.end(made, {made.workspace}, has_place=False)
                raise
            return made

        return await self._forks.fill(fork, instead_of)

    async def room_for_branch(self, patience: float) -> None:
        """Return once `branch` would find a place; the place is not reserved.

        Waits at most `patience` seconds: claims in line come first. Raises PoolExhausted.
        """
        await self._forks.wait_for_room(patience)

    def release(self, kernel: Kernel, *, spared: Collection[Path] = ()) -> None:
        """End a claimed kernel but not its `spared` folders; free its place, if it still has one."""
        self._roster.release(kernel, spared)

    def shares_workspaces(self) -> bool:
        """Return whether a kernel can be started in another's workspace; see ``KernelProfile.workspace``."""
        return self._launcher.shares_workspaces()

    def adopt(self, kernel: Kernel) -> None:
        """Add a kernel that an earlier gateway started; it counts as in use until `release`."""
        self._roster.in_use.add(kernel)

    def detach(self, kernel: Kernel) -> None:
        """Let a claimed kernel outlive the pool."""
        self._roster.detach(kernel)
        kernel.detach()

    def let_yield(self, yielding: Yielding) -> None:
        """Call `yielding` when claims or forks lack places: it ends the users of at most so many kernels that
        sleep for long, and returns these kernels, which it must release soon. It must not raise.
        """
        self._roster.yielding = yielding

    def look_for_places(self) -> None:
        """Let kernels that sleep for long give way if claims lack places; call it when one more sleeps."""
        self._roster.make_way(-self.room() - len(self._roster.leaving))

    def _balance(self) -> None:
        """Start all wanted kernels that fit; called after every change, and by one timer."""
        self._forks.changed.set()
        roster = self._roster
        if roster.closed:
            return
        # One time for all: a retry that is due between two readings of the clock would get no timer.
        now = self._clock()
        # Kernels that start without a claim go to claims that can use them.
        for start in roster.starting.values():
            if start.claim is None and (claim := self._claims.first_of(start.profile)) is not None:
                self._claims.assign(start, claim)
        for unwanted in self._warm.take_unwanted():
            roster.end(unwanted)
        while len(roster.starting) < self.settings.concurrent_starts:
            claim = self._claims.first()
            profile = self._wanted_warm(now) if claim is None else claim.profile
            if profile is None:
                break
            if roster.free < 1:
                # Its end calls this again, and the place goes to the first claim in line by then.
                if not roster.ending and (idle := self._warm.take_other(profile)) is not None:
                    roster.end(idle)
                break
            start = Start(profile)
            if claim is not None:
                self._claims.assign(start, claim)
            task = self._tasks.start(self._start(start), f"start {profile.kernelspec}")
            roster.starting[task] = start
            # A task that is cancelled before its first step never does this itself.
            task.add_done_callback(lambda done: roster.starting.pop(done, None))
        self.look_for_places()
        self._set_timer(now)
        self._claims.tell_later()

    def _wanted_warm(self, now: float) -> KernelProfile | None:
        coming = Counter(start.profile for start in self._roster.starting.values() if start.claim is None)
        return self._warm.wanted(now, coming) if self._roster.free >= 1 else None

    def _set_timer(self, now: float) -> None:
        """Set the timer for the retry of a failed profile, or the end of a pause."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if (pause := self._warm.pause(now)) is not None:
            self._timer = asyncio.get_running_loop().call_later(
                pause + 0.01, self._tasks.guard(self._balance, "refill")
            )

    async def _start(self, start: Start) -> None:
        task = asyncio.current_task()
        assert task is not None
        began = self._clock()
        try:
            kernel = await self._launcher.start(start.profile)
        except CellgateError as error:
            self._roster.starting.pop(task, None)
            self._failed(start, error)
        except BaseException as error:
            self._roster.starting.pop(task, None)
            if not isinstance(error, asyncio.CancelledError):
                # An internal error: report it to the waiting claim, and delay so that it does not repeat
                # at full speed.
                self._failed(start, KernelStartFailed("The kernel could not be started; the log says why."))
            raise
        else:
            self._roster.starting.pop(task, None)
            self._observer.started(self._clock() - began)
            self._started(start, kernel)
        finally:
            self._balance()

    def _started(self, start: Start, kernel: Kernel) -> None:
        self._warm.started(start.profile)
        if start.claim is None or start.claim.kernel.done():
            # Its claim was cancelled just now.
            claim = self._claims.first_of(start.profile)
            if claim is not None:
                self._claims.assign(start, claim)
        claim = start.claim
        if claim is not None and not claim.kernel.done() and not self._roster.closed:
            self._roster.in_use.add(kernel)
            claim.kernel.set_result(kernel)
            self._claims.answer(claim)
        elif not self._roster.closed and self._warm.keep(kernel, start.profile):
            died = self._tasks.guard(
                lambda _: self._died_warm(kernel, start.profile), "death of a warm kernel", kernel=kernel.id
            )
            kernel.exited.add_done_callback(died)
        else:
            self._roster.end(kernel)

    def _died_warm(self, kernel: Kernel, profile: KernelProfile) -> None:
        if self._warm.drop(kernel, profile):
            ended = kernel.exited.result()
            self._observer.died_warm(ended.cause)
            ids = {"kernel": kernel.id, "cause": ended.cause}
            logger.warning("A warm kernel ended before it was used: %s", ended.message, extra=ids)
            self._roster.end(kernel)

    def _failed(self, start: Start, error: CellgateError) -> None:
        """Fail the claim that the start belongs to; the warm target is retried with a growing delay."""
        self._observer.start_failed()
        # A kernel's last words may repeat the variables that its session gave it.
        why = f"its session was told ({error.reason})" if start.profile.env else error.message
        logger.warning("A kernel did not start: %s", why, extra={"reason": error.reason})
        self._warm.back_off(start.profile)
        claim = start.claim
        if claim is not None and not claim.kernel.done():
            claim.kernel.set_exception(error)
            self._claims.answer(claim)

    def rest(self) -> None:
        """Stop warming kernels; claims are still served. For a gateway that is about to stop."""
        self._warm.resting = True

    async def close(self) -> None:
        """End every kernel, refuse every claim, and return when nothing is left. Idempotent."""
        self._roster.closed = True
        self._forks.changed.set()
        if self._timer is not None:
            self._timer.cancel()
        self._claims.close()
        starting = tuple(self._roster.starting)
        for task in starting:
            task.cancel()
        if starting:
            await asyncio.wait(starting)
        while (kernel := self._warm.take_other()) is not None:
            self._roster.end(kernel)
        for kernel in (*self._roster.in_use, *self._roster.replaced):
            self.release(kernel)
        for held in tuple(self._forks.held):
            held.close()
        await self._tasks.finished()
