"""Pauses of a sandbox: the kernels of all its contexts sleep, frozen, until a client connects to it again.

Everything stays as it is, in memory and in the files. Requests to a paused sandbox find none, as there; what
reaches its session by another way wakes the kernel, and then it is paused no more. How a kernel sleeps is
``cellgate_kernels.kernel.asleep``'s business. A pause ends with the gateway that made it.

A sandbox whose client asked for it is paused at its timeout instead of being ended, where that gives memory
back, also by the gateway that has adopted its kernel. It is the first to go when its place is needed
(``sessions.sleepers``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from cellgate.doors.sandbox.errors import SandboxBusy, Unsupported
from cellgate.doors.sandbox.keys import key_of
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.sandboxes import Sandboxes
from cellgate.sessions.session import Session
from cellgate.sessions.state import ends
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.asleep import Sleep
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.limits.control_group import ControlGroup

CAN_NOT: Final = (
    "This sandbox can't be paused: it has forks, which share its processes' group, or kernels can't be frozen"
    " here; the operator lets them sleep by --sleep-after, and cellgate doctor says whether they could"
)
MOST_TRIES: Final = 3
"""Attempts to pause a sandbox that nobody uses."""
IN_USE: Final = "This sandbox is in use: a cell or a program runs in it, or a client is connected; try again"


async def pause(sessions: Sequence[Session], lane: Lane) -> Sleep:
    """Let all kernels of a sandbox sleep, or none; return the sleep of the first one.

    `sessions`: its own, then those of its contexts. `lane`: threads to wait in. Raises SandboxBusy, and
    Unsupported where kernels can't sleep.
    """
    kernels: dict[Session, tuple[Kernel, ControlGroup]] = {}
    for session in sessions:
        # A client may ask as soon as it was told that its cell is over.
        await session.recorded()
        kernel = _unused(session)
        group = await lane.run(kernel.control_group)
        if group is None:
            raise Unsupported(CAN_NOT)
        kernels[session] = kernel, group
    sleeps: list[Sleep] = []
    try:
        for session, (kernel, group) in kernels.items():
            sleep = await kernel.sleep(group, lane) if _unused(session) is kernel else None
            if sleep is None:
                raise SandboxBusy(IN_USE)
            sleeps.append(sleep)
    except BaseException:
        resume(sessions)
        raise
    return sleeps[0]


def resume(sessions: Iterable[Session]) -> None:
    """Wake the kernels of these sessions."""
    for session in sessions:
        if session.kernel is not None:
            session.kernel.wake()


class AutoPause:
    """The pause of one sandbox at its timeout. `lane`: threads to wait in."""

    def __init__(self, session: Session, manager: SessionRegistry, sandboxes: Sandboxes, lane: Lane) -> None:
        self._session = session
        self._manager = manager
        self._sandbox = sandboxes.of(session)
        self._lane = lane
        self._task: asyncio.Task[None] | None = None
        self._tries = MOST_TRIES

    def is_to_go_on(self) -> bool:
        """Return whether the sandbox goes on at its timeout: it is being paused, or is still in use."""
        if self._sandbox.is_paused or not (self._tries and self._session.record.can_sleep):
            return False
        if self._task is None or self._task.done():
            self._task = self._session.tasks.start(self._pause(), "pause at a timeout")
        return True

    async def _pause(self) -> None:
        sessions = [self._session, *self._sandbox.further.values()]
        try:
            asleep = await pause([each for each in sessions if not each.ending], self._lane)
        except SandboxBusy:
            # It is asked again; what nobody uses can't be frozen.
            self._tries -= all(each.idle_since is not None for each in sessions)
            return
        except Unsupported:
            self._tries = 0
            return
        most = self._manager.terms.ceilings(self._session.account.name).lifetime
        self._sandbox.paused = asleep
        self._tries = MOST_TRIES
        for each in sessions:
            each.record.let_sleep(most)
        self._session.report("A sandbox is paused at its timeout")


async def pause_at_timeout(
    session: Session, manager: SessionRegistry, sandboxes: Sandboxes, lane: Lane
) -> None:
    """Let a sandbox be paused instead of ended at its timeout, if its kernel can sleep here."""
    await manager.sleepers.look([session])
    if session.record.can_sleep:
        session.record.instead_of_end = AutoPause(session, manager, sandboxes, lane).is_to_go_on


def recover_pauses(manager: SessionRegistry, sandboxes: Sandboxes, lane: Lane) -> None:
    """Let sandboxes that a former gateway has left be paused at their timeouts, as their clients asked.

    Whether their kernels can sleep is seen later, before the first of them ends.
    """
    for session in manager.everybodys():
        told = session.row.metadata or {}
        if "door" not in told or "sandbox" not in told or session.limits.on_idle != "sleep":
            continue
        # A session of somebody who has written such metadata has another key.
        if session.row.key.endswith(key_of(str(told["door"]), session.row.principal, str(told["sandbox"]))):
            session.record.instead_of_end = AutoPause(session, manager, sandboxes, lane).is_to_go_on


def is_paused_at_timeout(session: Session) -> bool:
    """Return whether a sandbox is paused at its timeout, as far as is known."""
    return session.record.instead_of_end is not ends and session.record.can_sleep


def _unused(session: Session) -> Kernel:
    """Return the kernel of a session that nobody uses. Raises SandboxBusy."""
    if session.kernel is None or not session.kernel.alive or session.idle_since is None:
        raise SandboxBusy(IN_USE)
    return session.kernel
