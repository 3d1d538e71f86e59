"""What one gateway of a cluster may use by itself of a principal's quotas: the rule, and the seam. Pure.

Sums of sessions are reserved one by one (``cluster_uses``). Cells and requests come too often for that, so
each gateway holds a part of these quotas in advance, its allotment: what it uses, and some to spare. Together
the parts are never more than the quota: the database sees to that, through ``cluster.allotments``. A
gateway that lacks some asks at once; others give back what they don't use within a beat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

Five = tuple[int, int, int, int, int]
"""An amount for each `Flow`, in its order."""
Limits = tuple[int | None, ...]
"""The quota of each `Flow`, in its order; None: no limit."""

ZERO: Final[Five] = (0, 0, 0, 0, 0)
KEEP_SECONDS: Final = 60.0
"""How long a gateway keeps its allotment of a principal that uses nothing."""
PAUSE_SECONDS: Final = 0.5
"""The shortest time between two attempts to get more, if there was none."""


class Flow(IntEnum):
    """The quotas that are allotted. All bytes between sessions and hosts keep a pace instead of a sum."""

    RUNNING = 0
    QUEUED = 1
    REQUESTS = 2
    BYTES = 3
    NETWORK = 4


SUMMED: Final = (Flow.RUNNING, Flow.QUEUED, Flow.REQUESTS, Flow.BYTES)
"""Those whose parts together are at most the quota."""
AHEAD: Final = {Flow.RUNNING: 1 / 2, Flow.QUEUED: 0, Flow.REQUESTS: 1 / 8, Flow.BYTES: 1 / 8}
"""The part of what is free that a gateway takes ahead. A cell that is to run waits for more, what is to be
queued is let in without, and of a minute's amounts too much ahead would be refused elsewhere.
"""


@dataclass(frozen=True, slots=True)
class HeldPart:
    """What a gateway uses and `held`, at least as much; in `short`, 1 for what it lacks, otherwise 0."""

    used: Five = ZERO
    held: Five = ZERO
    short: Five = ZERO


@dataclass(frozen=True, slots=True)
class AskedPart:
    """A gateway's next part, and the quotas in which it must fit with the others'; none: it always fits."""

    part: HeldPart
    most: Limits


@dataclass(frozen=True, slots=True)
class OwnUse:
    """What a gateway uses, what it lacks beyond that, and what it has held."""

    used: Five = ZERO
    lacking: Five = ZERO
    held: Five = ZERO


def part_of(
    limits: Limits, own: OwnUse, others: Sequence[HeldPart], *, may_begin: bool = True
) -> tuple[HeldPart, Five]:
    """Return a gateway's next part, and what it may use with it: less, where it is to give some up.

    As long as no other gateway lacks some, it keeps what it has held, and takes a part of what is free ahead.
    Otherwise each has its even share, and gives up what is above as it becomes free. If there is less than
    one for each, they take turns: who had one gives it up, and takes another only if it `may_begin`.
    """
    found = [
        _one(limit, (own.used[flow], own.lacking[flow], own.held[flow]), flow, others, may_begin)
        for flow, limit in zip(SUMMED, limits, strict=False)
    ]
    held, may_use, short = zip(*found, (own.used[Flow.NETWORK], 0, 0), strict=True)
    return HeldPart(own.used, held, short), may_use


def _one(
    limit: int | None, own: tuple[int, int, int], flow: Flow, others: Sequence[HeldPart], may_begin: bool
) -> tuple[int, int, int]:
    used, lacking, held = own
    if limit is None:
        return used, used, 0
    most = max(0, limit - sum(part.held[flow] for part in others))
    free = max(0, most - used)
    if not any(part.short[flow] for part in others):
        ahead = int(free * AHEAD[flow])
        if not (used or lacking):
            ahead = min(ahead, held)
        spare = min(free, max(lacking, ahead))
        return used + spare, min(used + spare, most), int(lacking > spare)
    lacking_there = [part.held[flow] for part in others if part.short[flow]]
    fair = limit // (1 + sum(1 for part in others if part.held[flow] or part.short[flow]))
    if not (used or lacking):
        share = 0
    elif fair:
        # What nobody who lacks some would get as their share goes to whoever asks first.
        share = max(fair, most - sum(max(0, fair - held_there) for held_there in lacking_there))
    else:
        share = int(may_begin and not used and not held)
    if used > share:
        return used, min(share, most), int(lacking > 0)
    spare = min(free, share - used, max(lacking, fair - used))
    return used + spare, min(used + spare, most), int(lacking > spare)


class Allotment:
    """A principal's at this gateway. `beat`: the longest time between two looks at the others' parts, in
    seconds. Times are by any clock that never goes back.
    """

    def __init__(self, beat: float) -> None:
        self.exchanging = asyncio.Lock()
        """Held while the part is changed in the database."""
        self.others: Sequence[HeldPart] = ()
        """The parts of the other gateways, as last seen."""
        self.known = False
        """Whether the database has a part of this gateway's."""
        self.is_alone = False
        """Whether the database can't be asked: then all of the quotas are here, as without a cluster."""
        self._beat = beat
        self._held = ZERO
        self.may_use: Five = ZERO
        """What may be used here now."""
        self._keep_until = float("-inf")
        self._no_more_until: dict[Flow, float] = {}
        self._gave_up_at = float("-inf")
        self._wanted: dict[Flow, tuple[int, float]] = {}

    def is_wanted(self, flow: Flow) -> bool:
        """Return whether another gateway lacks what this one could give up."""
        return any(part.short[flow] for part in self.others)

    def most(self, flow: Flow, limit: int) -> int:
        """Return what may be used here now of a quota."""
        return limit if self.is_alone else min(limit, self.may_use[flow])

    def most_at_once(self, flow: Flow, limit: int) -> int:
        """Return what may be used by what can't wait until more is asked for, such as a WebSocket's command.

        It is let in as long as no other gateway holds the rest, as far as is known, or lacks some.
        """
        most = self.most(flow, limit)
        return most if self.is_wanted(flow) else max(most, self.free(flow, limit))

    def free(self, flow: Flow, limit: int) -> int:
        """Return the part of a quota that no other gateway holds, as far as is known."""
        return limit if self.is_alone else max(0, limit - sum(part.held[flow] for part in self.others))

    def used_by_others(self, flow: Flow) -> int:
        """Return what other gateways use, as last seen."""
        return sum(part.used[flow] for part in self.others)

    def pace(self, limit: int) -> float:
        """Return the even share of bytes a minute of each gateway that sends some."""
        return limit / (1 + sum(1 for part in self.others if part.used[Flow.NETWORK]))

    def lacks(self, limits: Limits, used: Five, more: Five, now: float) -> bool:
        """Return whether there is too little for a request that may use `more`, and may be more to get."""
        return not self.is_alone and any(
            limit is not None
            and bool(more[flow])
            and used[flow] + more[flow] > self.may_use[flow]
            and not self.is_pausing(flow, now)
            for flow, limit in zip(SUMMED, limits, strict=False)
        )

    def is_low(self, flow: Flow, limit: int, used: int) -> bool:
        """Return whether more is to be asked for ahead: a quarter is left at most, and there may be more."""
        may_use = self.may_use[flow]
        return 4 * used >= 3 * may_use and may_use < self.free(flow, limit)

    def want(self, flow: Flow, amount: int, now: float) -> None:
        """Note what is lacking. Other gateways are told for two beats, so that each has seen it."""
        former, until = self._wanted.get(flow, (0, now))
        self._wanted[flow] = max(amount, former if now < until else 0), now + 2 * self._beat

    def touch(self, now: float) -> None:
        """Keep the allotment for a while: it is in use."""
        self._keep_until = now + KEEP_SECONDS

    def is_over(self, now: float) -> bool:
        """Return whether it has not been used for so long that it is to be given back."""
        return now > self._keep_until

    def is_pausing(self, flow: Flow, now: float) -> bool:
        """Return whether there was no more to get a moment ago."""
        return now < self._no_more_until.get(flow, now)

    def propose(self, limits: Limits, used: Five, line: int, now: float) -> tuple[HeldPart, Five]:
        """Return the next part, and what may be used with it. `line`: the number of cells without a turn."""
        wanted = {flow: amount for flow, (amount, until) in self._wanted.items() if now < until}
        lacking = (line, *(wanted.get(flow, 0) for flow in SUMMED[1:]), 0)
        may_begin = now >= self._gave_up_at + self._beat
        own = OwnUse(used, lacking, self._held)  # type: ignore[arg-type]
        return part_of(limits, own, self.others, may_begin=may_begin)

    def begin(self, may_use: Five) -> None:
        """Use no more than this from now on: the database is about to know of a smaller part."""
        self.may_use = tuple(map(min, self.may_use, may_use))  # type: ignore[assignment]

    def set(self, part: HeldPart, may_use: Five, now: float) -> None:
        """Note the part that the database has now."""
        self.known, self.is_alone = True, False
        if self._held[Flow.RUNNING] and not part.held[Flow.RUNNING]:
            self._gave_up_at = now
        self._held, self.may_use = part.held, may_use
        self._wanted = {flow: each for flow, each in self._wanted.items() if now < each[1]}
        self._no_more_until = {flow: now + PAUSE_SECONDS for flow in SUMMED if part.short[flow]}

    def forget(self) -> None:
        """Note that the database has no part of this gateway's any more."""
        self.known = self.is_alone = False
        self._held, self.may_use, self.others = ZERO, ZERO, ()
        self._wanted.clear()


class ClusterAllotments(Protocol):
    """Keeps the parts of all gateways of a cluster. All methods belong to one event loop."""

    beat: float
    """The longest time between two looks at the others' parts, in seconds."""

    async def replace(self, asked: Mapping[str, AskedPart]) -> Mapping[str, tuple[bool, Sequence[HeldPart]]]:
        """Replace this gateway's part of each principal, unless the parts of all would exceed a quota.

        Return for each principal whether it was replaced, and the parts of the others. It is one statement:
        if it fails, nothing was replaced. Raises StorageError.
        """

    async def remove(self, principals: Sequence[str]) -> None:
        """Give this gateway's parts of principals back. Raises StorageError."""

    async def of_others(self, principals: Sequence[str]) -> Mapping[str, Sequence[HeldPart]]:
        """Return the parts of all other gateways, of principals that have some there. Raises StorageError."""

    def soon(self, principal: str) -> None:
        """Have the principal's part looked at soon. Returns at once, and raises nothing."""


class AsksForMore(Protocol):
    """Asks `cluster` for this gateway's parts."""

    cluster: ClusterAllotments

    def ask_for_more(self, name: str, length: int) -> Awaitable[None] | None:
        """Await the result, if any, before a principal's request with a body of this length is counted."""
