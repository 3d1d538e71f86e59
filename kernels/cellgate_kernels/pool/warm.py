"""The warm kernels of a pool, which are not claimed yet, and the choice of the next one to start.

The target of a profile is `size`; after a burst of claims it rises to the number of claims in the last
`burst_window` seconds, at most `burst_size`, and falls back on its own. By default both depend on how its
kernels start. Kernels that share a container with others of one principal are not kept warm: they are forked
when they are claimed. ``pool`` starts and ends kernels.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cellgate_kernels.base.settings import PoolSettings

if TYPE_CHECKING:
    from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
    from cellgate_kernels.kernel.launcher import KernelLauncher


STARTED: Final = (2, 8)
"""Numbers of warm kernels, always and after a burst of claims, if they are started as programs, which takes a
second with their libraries.
"""
FORKED: Final = (1, 2)
"""The same numbers for forked kernels. A fork takes a tenth of a second, so two kernels cover the claims of
that time. More would cost memory, and the processor just when the sessions of a burst need it.
"""


@dataclass(slots=True)
class _Shelf:
    """The state of one warm profile."""

    warm: deque[Kernel] = field(default_factory=deque)
    claimed_at: deque[float] = field(default_factory=lambda: deque(maxlen=256))
    failures: int = 0
    retry_at: float = 0.0
    paused_until: float = 0.0

    @property
    def start_at(self) -> float:
        """The earliest time at which the next warm kernel may be started."""
        return max(self.retry_at, self.paused_until)


class WarmKernels:
    """The warm kernels of one pool. `resting`: whether no more are wanted."""

    def __init__(
        self,
        launcher: KernelLauncher,
        settings: PoolSettings,
        profiles: Sequence[KernelProfile],
        clock: Callable[[], float],
    ) -> None:
        self.resting = False
        self._launcher = launcher
        self._settings = settings
        self._clock = clock
        self._shelves = {profile: _Shelf() for profile in profiles}
        self._starts_work = False

    def __len__(self) -> int:
        return sum(len(shelf.warm) for shelf in self._shelves.values())

    def __iter__(self) -> Iterator[Kernel]:
        return (kernel for shelf in self._shelves.values() for kernel in shelf.warm)

    @property
    def ready(self) -> bool:
        """Whether the last warm kernel became ready, or none is kept."""
        keeps_any = any(self._launcher.keeps_warm(profile) for profile in self._shelves)
        return self._starts_work or self._settings.size == 0 or not keeps_any

    def claimed(self, profile: KernelProfile) -> None:
        """Count a claim for a kernel of this profile."""
        if (shelf := self._shelves.get(profile)) is not None:
            shelf.claimed_at.append(self._clock())

    def served(self, profile: KernelProfile) -> None:
        """Pause the refill after a claim, whose first cell needs the processor, unless none is left."""
        if (shelf := self._shelves.get(profile)) is not None:
            shelf.paused_until = self._clock() + self._settings.refill_pause if shelf.warm else 0.0

    def take(self, profile: KernelProfile) -> Kernel | None:
        """Take out the oldest kernel of this profile."""
        shelf = self._shelves.get(profile)
        return shelf.warm.popleft() if shelf is not None and shelf.warm else None

    def take_other(self, than: KernelProfile | None = None) -> Kernel | None:
        """Take out a kernel of a profile other than `than`."""
        others = (shelf.warm for profile, shelf in self._shelves.items() if profile != than)
        return next((warm.popleft() for warm in others if warm), None)

    def take_unwanted(self) -> Iterator[Kernel]:
        """Take out the kernels that no claim would get: these share containers again."""
        for profile, shelf in self._shelves.items():
            if shelf.warm and not self._launcher.keeps_warm(profile):
                while shelf.warm:
                    yield shelf.warm.popleft()

    def wanted(self, now: float, coming: Counter[KernelProfile]) -> KernelProfile | None:
        """Return the profile of the kernel to start next; `coming`: kernels that start without a claim."""
        for profile, shelf in self._shelves.items():
            total = len(shelf.warm) + coming[profile]
            if total < self._target(profile, shelf) and now >= shelf.start_at:
                return profile
        return None

    def _target(self, profile: KernelProfile, shelf: _Shelf) -> int:
        if self._settings.size == 0 or self.resting or not self._launcher.keeps_warm(profile):
            return 0
        size, burst_size = FORKED if self._launcher.forks(profile.kernelspec) else STARTED
        size = size if self._settings.size is None else self._settings.size
        burst_size = burst_size if self._settings.burst_size is None else self._settings.burst_size
        since = self._clock() - self._settings.burst_window
        while shelf.claimed_at and shelf.claimed_at[0] < since:
            shelf.claimed_at.popleft()
        return max(size, min(len(shelf.claimed_at), burst_size))

    def pause(self, now: float) -> float | None:
        """Return the seconds until a failed profile may be retried, or a pause is over."""
        delays = (shelf.start_at - now for shelf in self._shelves.values() if shelf.start_at > now)
        return min(delays, default=None)

    def started(self, profile: KernelProfile) -> None:
        """Take note that a kernel has become ready, so the next failure is a first one."""
        if (shelf := self._shelves.get(profile)) is not None:
            self._starts_work = True
            shelf.failures = 0
            shelf.retry_at = 0.0

    def keep(self, kernel: Kernel, profile: KernelProfile) -> bool:
        """Keep a kernel until it is claimed; return False for a profile that is not kept warm."""
        if (shelf := self._shelves.get(profile)) is not None:
            shelf.warm.append(kernel)
        return shelf is not None

    def drop(self, kernel: Kernel, profile: KernelProfile) -> bool:
        """Remove a warm kernel that has ended, as a failure; return whether it was still here."""
        warm = self._shelves[profile].warm
        if kernel not in warm:
            return False
        warm.remove(kernel)
        self.back_off(profile)
        return True

    def back_off(self, profile: KernelProfile) -> None:
        """Start no kernel of the profile for a while after a failure, longer each time."""
        if (shelf := self._shelves.get(profile)) is not None:
            self._starts_work = False
            delay = min(self._settings.retry_delay * 2**shelf.failures, self._settings.max_retry_delay)
            shelf.failures = min(shelf.failures + 1, 16)
            shelf.retry_at = self._clock() + delay
