"""The claims that wait for a kernel: their order, and how long each has waited.

They wait in the fair order of ``turns``: ``pool`` starts a kernel for the claim whose turn it is, whatever
its profile. If there is no place, the claims after it wait too, so a rare profile is not overtaken. A claim's
position in line is reported at most once every `tell_interval` seconds, only if it has changed, and only to
the first `MOST_TOLD`; and at once when it leaves the line for a kernel.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

from cellgate_kernels.base.errors import DeadlinePassed, PoolExhausted
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.turns import Claimant, TurnOrder
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile

ANYBODY = Claimant("")
"""The claimant if the caller names none."""
MOST_TOLD = 1000

Moved = Callable[[int | None], None]
"""Gets the number of claims ahead in line; None once a kernel starts for this one."""


@dataclass(slots=True, eq=False)
class Claim:
    """A waiting claim: in line, and then for the start assigned to it. `position`: as last reported."""

    profile: KernelProfile
    kernel: asyncio.Future[Kernel]
    since: float
    patience: float
    moved: Moved | None
    position: int | None = None
    timer: asyncio.TimerHandle | None = None
    start: Start | None = None


@dataclass(slots=True, eq=False)
class Start:
    """A kernel that is starting. `claim`: the one that will get it, if any."""

    profile: KernelProfile
    claim: Claim | None = None


class Claims:
    """The line of one pool. `changed` is called when a claim has left without a start."""

    def __init__(
        self,
        settings: PoolSettings,
        clock: Callable[[], float],
        tasks: Supervisor,
        changed: Callable[[], None],
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._tasks = tasks
        self._changed = changed
        # All waiting claims, by age; and the claims without a start, in the order of their turns.
        self._all: OrderedDict[Claim, None] = OrderedDict()
        self._line: TurnOrder[Claim] = TurnOrder()
        self._in_line: Counter[KernelProfile] = Counter()
        self._listening = 0
        self._teller: asyncio.TimerHandle | None = None
        self._told_at = -settings.tell_interval

    def __len__(self) -> int:
        return len(self._all)

    @property
    def in_line(self) -> int:
        """The number of claims without a start."""
        return self._in_line.total()

    def longest_wait(self) -> float:
        """Return for how many seconds the oldest claim has waited."""
        oldest = next(iter(self._all), None)
        return 0.0 if oldest is None else max(0.0, self._clock() - oldest.since)

    def add(
        self, profile: KernelProfile, claimant: Claimant, moved: Moved | None, patience: float | None
    ) -> Claim:
        """Return a claim that waits in line, until its patience ends, at most for `claim_timeout`."""
        loop, limit = asyncio.get_running_loop(), self._settings.claim_timeout
        patience = limit if patience is None else min(patience, limit)
        claim = Claim(profile, loop.create_future(), self._clock(), patience, moved)
        claim.timer = loop.call_later(patience, self._tasks.guard(self._expire, "a claim's patience"), claim)
        self._all[claim] = None
        self._line.add(claimant, claim)
        self._in_line[claim.profile] += 1
        self._listening += claim.moved is not None
        return claim

    def served(self, claimant: Claimant) -> None:
        """Count a turn of a claimant who got a kernel without waiting."""
        self._line.served(claimant)

    def _expire(self, claim: Claim) -> None:
        self.answer(claim)
        if not claim.kernel.done():
            claim.kernel.set_exception(self._too_late(claim))
        self._changed()

    def _too_late(self, claim: Claim) -> PoolExhausted:
        if claim.patience < self._settings.claim_timeout:
            return DeadlinePassed(claim.patience)
        return self.exhausted(
            f"All {self._settings.max_kernels} kernels are in use and none came free within"
            f" {self._settings.claim_timeout:g} s. Try again later, or end sessions you don't need."
        )

    def answer(self, claim: Claim) -> None:
        """End a claim's wait: its caller has an answer, or no longer needs one."""
        self._all.pop(claim, None)
        if claim in self._line:
            self._line.remove(claim)
            self._left_line(claim)
        if claim.start is not None:
            claim.start.claim = None
            claim.start = None

    def assign(self, start: Start, claim: Claim) -> None:
        """Assign a starting kernel to a claim: from now on, only the start's timeout applies."""
        self._line.take(claim)
        self._left_line(claim)
        start.claim = claim
        claim.start = start
        if claim.moved is not None:
            self._tasks.guard(claim.moved, "end of a wait in line")(None)

    def _left_line(self, claim: Claim) -> None:
        self._in_line[claim.profile] -= 1
        if not self._in_line[claim.profile]:
            del self._in_line[claim.profile]
        self._listening -= claim.moved is not None
        if claim.timer is not None:
            claim.timer.cancel()

    def first(self) -> Claim | None:
        """Return the claim whose turn it is; those just cancelled leave the line."""
        while (claim := self._line.first()) is not None and claim.kernel.done():
            self.answer(claim)
        return claim

    def first_of(self, profile: KernelProfile) -> Claim | None:
        """Return the first claim in line that a kernel of this profile can serve."""
        if profile not in self._in_line:
            return None
        fitting = (claim for claim in self._line.order() if claim.profile == profile)
        return next((claim for claim in fitting if not claim.kernel.done()), None)

    def exhausted(self, message: str) -> PoolExhausted:
        """Return the error of a claim that gets no kernel."""
        return PoolExhausted(message, retry_after=self._settings.claim_timeout)

    def closed(self) -> PoolExhausted:
        """Return the error of a claim that comes too late."""
        return self.exhausted("The gateway is shutting down.")

    def tell_later(self) -> None:
        """Report positions soon, if they may have changed, but at most every `tell_interval`."""
        if self._teller is None and self._listening:
            loop = asyncio.get_running_loop()
            delay = max(0.0, self._told_at + self._settings.tell_interval - loop.time())
            self._teller = loop.call_later(delay, self._tasks.guard(self._tell, "positions in line"))

    def _tell(self) -> None:
        self._teller = None
        self._told_at = asyncio.get_running_loop().time()
        # A listener may change the line.
        for position, claim in enumerate(list(islice(self._line.order(), MOST_TOLD))):
            if claim.moved is not None and claim.position != position and not claim.kernel.done():
                claim.position = position
                self._tasks.guard(claim.moved, "position in line")(position)

    def close(self) -> None:
        """Refuse all claims."""
        if self._teller is not None:
            self._teller.cancel()
        for claim in tuple(self._all):
            self.answer(claim)
            if not claim.kernel.done():
                claim.kernel.set_exception(self.closed())
