"""Sessions that fall asleep instead of ending when they were not used for too long, and give way to others.

A session sleeps where its kernel can be frozen and gives its memory back. It goes on with its next use, as
after any sleep (``sleep`` has those that operators ask for before this time). Beyond its idle time it is the
first to give way: when a kernel has no place, or its principal's quotas have no room, it ends. So nobody is
refused, and nobody waits, because others sleep. The end of its lifetime ends a session as ever.

One task lets kernels fall asleep one after the other, as they share the disk for their memory. ``registry``
ends sessions, ``kernels.pool`` asks for places. Sleep is not recorded, ends are.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Final
from weakref import WeakKeyDictionary, WeakSet

from cellgate.quotas.cluster_uses import NOTHING, Sums
from cellgate.quotas.session_sums import sums_of
from cellgate.quotas.usage import Account
from cellgate.record.rows import SessionRow
from cellgate.sessions.parts import SleepWays
from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.asleep import Sleep
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.limits.control_group import mounts_here
from cellgate_kernels.pool.pool import KernelPool

logger = logging.getLogger(__name__)

IDLE: Final = "idle_timeout"
"""The cause of the end of a session that can't sleep."""
ROOM_NEEDED: Final = "room_needed"
"""The cause of the end of a session that slept beyond its idle time and gave way."""


class Sleepers:
    """The sessions of one gateway that are idle for too long. `ways`: None if sessions always end then.

    `sessions` returns all live ones, `end` begins the end of one for a cause. `look`, then `start`; `close`
    it before the sessions.
    """

    def __init__(
        self,
        sessions: Callable[[], list[Session]],
        end: Callable[[Session, str], None],
        pool: KernelPool,
        ways: SleepWays | None,
        draining: Callable[[], bool],
    ) -> None:
        self._sessions = sessions
        self._end = end
        self._pool = pool
        pool.let_yield(self.give_way)
        self._ways = ways
        self._draining = draining
        self._tasks = Supervisor()
        self._restless: WeakSet[Kernel] = WeakSet()
        # The session with which each of these ends.
        self._leaders: WeakKeyDictionary[Session, Session] = WeakKeyDictionary()
        self._pause = 0.0

    def start(self, pause: float) -> None:
        """Let sessions fall asleep from now on, looking at them every `pause` seconds."""
        self._pause = pause
        if self._ways is not None:
            self._tasks.repeat(self._put_to_sleep, "sleepers", pause=pause)

    async def close(self) -> None:
        """Let no more sessions fall asleep. Those that sleep go on sleeping."""
        await self._tasks.cancel()

    # Falling asleep

    async def look(self, sessions: Iterable[Session] | None = None) -> None:
        """Note whether idle sessions could sleep now; by default of all."""
        ways = self._ways
        if ways is None:
            return
        looked_at = self._sessions() if sessions is None else sessions
        idle = {session: session.kernel for session in looked_at if session.idle_since is not None}
        kernels = [kernel for kernel in idle.values() if kernel is not None]
        can = set() if self._draining() else await ways.looks.run(_able, kernels, ways.swap)
        for session, kernel in idle.items():
            session.record.can_sleep = kernel is not None and session.kernel is kernel and kernel.id in can

    async def _put_to_sleep(self) -> float:
        """Let the sessions fall asleep whose time has come, or end them; return the seconds until the next
        look.
        """
        for session in self._sessions():
            if _is_overdue(session) and session.kernel is not None:
                await self._settle(session, session.kernel)
                # Somebody may wait for a place already.
                self._pool.look_for_places()
        return self._pause

    async def _settle(self, session: Session, kernel: Kernel) -> None:
        assert self._ways is not None
        asleep = await self._sleep_of(kernel, self._ways.sleeps)
        # Whoever used it meanwhile has woken it, or will.
        if not _is_overdue(session) or session.kernel is not kernel:
            return
        if asleep is None or asleep.over:
            # Something may have woken it that is no use of its session: it gets a second chance.
            sleeps = kernel not in self._restless
            self._restless.add(kernel)
        else:
            self._restless.discard(kernel)
            # Somebody else may be putting it to sleep just now.
            sleeps = not asleep.deep or await self._ways.sleeps.run(_gave_back, asleep)
        if not sleeps and _is_overdue(session) and session.kernel is kernel:
            self._end(session, IDLE)

    async def _sleep_of(self, kernel: Kernel, lane: Lane) -> Sleep | None:
        """Return the sleep of a kernel, which begins now unless it sleeps already; None if it can't sleep."""
        group = await lane.run(kernel.control_group)
        return None if group is None else await kernel.sleep(group, lane)

    # Giving way

    def join(self, session: Session, leader: Session) -> None:
        """Let a session give way with its `leader` alone, which would wake without it."""
        self._leaders[session] = leader

    def give_way(self, count: int) -> list[Kernel]:
        """End at most `count` sleeping sessions for kernels of anybody; return their kernels.

        The one that has slept longest is first, of the principal who then has the most of them: a principal
        with many can't cost one with few the only one.
        """
        sleepers: defaultdict[str, list[Session]] = defaultdict(list)
        for session in self._by_age(self._sessions()):
            sleepers[session.account.name].append(session)
        found: list[Kernel] = []
        while sleepers and len(found) < count:
            # Of equals, the one whose sleeper is the oldest.
            most = min(sleepers, key=lambda name: (-len(sleepers[name]), _deadline(sleepers[name][0])))
            session = sleepers[most].pop(0)
            if not sleepers[most]:
                del sleepers[most]
            kernels = [self._give_way(each) for each in self._group(session)]
            found += [kernel for kernel in kernels if kernel is not None]
        return found

    async def make_room(
        self,
        account: Account,
        limits: ResourceLimits,
        sharer: SessionRow | None = None,
        reserved: Sums = NOTHING,
    ) -> None:
        """End as many of the principal's own sleeping sessions as its quotas need for one with these limits,
        and return when they are over. Ends none if that would not suffice.

        `sharer`: a session whose workspace it shares. Those that do are spared, and have reserved its disk.
        `reserved`: what has been reserved for it already.
        """
        without_disk, folder = sharer is not None, None if sharer is None else sharer.folder
        while not account.has_room(limits, reserved, without_disk=without_disk):
            mine = (each for each in self._sessions() if each.account is account)
            own = [each for each in mine if each.row.folder != folder]
            # Those that end already come first, whatever they end for: their room may be enough.
            leaving = [each for each in own if each.ending and not each.over.done()]
            victims: list[Session] = []
            freed = reserved
            for session in (*leaving, *self._by_age(own)):
                if account.has_room(limits, freed, without_disk=without_disk):
                    break
                for each in self._group(session):
                    if each not in victims:
                        victims.append(each)
                        freed = freed.plus(_freed_by(each))
            if not victims or not account.has_room(limits, freed, without_disk=without_disk):
                return
            for session in victims:
                self._give_way(session)
            await asyncio.wait([session.over for session in victims])

    def _give_way(self, session: Session) -> Kernel | None:
        """Begin the end of a session unless it has begun; return its kernel."""
        kernel = session.kernel
        if not session.ending:
            self._end(session, ROOM_NEEDED)
        return kernel

    def _by_age(self, sessions: Iterable[Session]) -> list[Session]:
        """Return the sessions that sleep beyond their idle time, the one that has slept longest first."""
        found = [each for each in sessions if _is_overdue(each) and each.kernel and each.kernel.asleep]
        return sorted((each for each in found if not self._follows(each)), key=_deadline)

    def _follows(self, session: Session) -> bool:
        leader = self._leaders.get(session)
        return leader is not None and not leader.ending

    def _group(self, session: Session) -> list[Session]:
        """Return the session and those that give way with it."""
        return [session, *(each for each, leader in self._leaders.items() if leader is session)]


def _deadline(session: Session) -> float:
    """Return the end of an idle session's idle time."""
    return (session.idle_since or 0.0) + session.limits.idle_timeout


def _is_overdue(session: Session) -> bool:
    """Return whether a session was not used for too long, and is to sleep instead of ending."""
    if session.ending or session.idle_since is None or not session.record.sleeps:
        return False
    return asyncio.get_running_loop().time() > _deadline(session)


def _freed_by(session: Session) -> Sums:
    """Return what the end of a session frees of its principal's quotas."""
    return sums_of(session.limits.resources, without_disk=bool(session.slot.sharers))


def _able(kernels: list[Kernel], swap: Callable[[], bool]) -> set[str]:
    """Return the ids of the kernels that could sleep and give their memory back. Blocking."""
    if not kernels or not swap():
        return set()
    try:
        mounts = mounts_here()
    except OSError as error:
        logger.debug("Nobody knows whether kernels could sleep: %s", in_words(error))
        return set()
    return {kernel.id for kernel in kernels if kernel.control_group(mounts) is not None}


def _gave_back(asleep: Sleep) -> bool:
    """Return whether a sleeping kernel holds hardly any memory. Blocking."""
    try:
        return asleep.gave_back()
    except OSError as error:
        logger.debug("A sleeping kernel's memory can't be measured: %s", in_words(error))
        return False
