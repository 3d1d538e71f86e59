"""Pauses of a sandbox: the kernels of all its contexts sleep, frozen, until a client connects to it again.

Everything stays as it is, in memory and in the files. Requests to a paused sandbox find none, as there; what
reaches its session by another way wakes the kernel, and then it is paused no more. How a kernel sleeps is
``cellgate_kernels.kernel.asleep``'s business. A pause ends with the gateway that made it.
"""

from __future__ import annotations

from typing import Final

from cellgate.doors.e2b.base import SandboxBusy, Unsupported
from cellgate.doors.e2b.contexts import further_contexts
from cellgate.http.services import Services
from cellgate.sessions.session import Session
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.limits.control_group import ControlGroup

CAN_NOT: Final = (
    "This sandbox can't be paused: it has forks, which share its processes' group, or kernels can't be frozen"
    " here; the operator lets them sleep by --sleep-after, and cellgate doctor says whether they could"
)
IN_USE: Final = "This sandbox is in use: a cell or a program runs in it, or a client is connected; try again"


async def pause(services: Services, sandbox: Session) -> None:
    """Let all kernels of a sandbox sleep, or none.

    Raises SandboxBusy, and Unsupported where kernels can't sleep.
    """
    lane = services.storage.lanes.sleep
    kernels: dict[Session, tuple[Kernel, ControlGroup]] = {}
    for session in _sessions(services, sandbox):
        # A client may ask as soon as it was told that its cell is over.
        await session.recorded()
        kernel = _unused(session)
        group = await lane.run(kernel.control_group)
        if group is None:
            raise Unsupported(CAN_NOT)
        kernels[session] = kernel, group
    try:
        for session, (kernel, group) in kernels.items():
            if _unused(session) is not kernel or not await kernel.sleep(group, lane):
                raise SandboxBusy(IN_USE)
    except BaseException:
        resume(services, sandbox)
        raise
    # From now on until anything wakes it.
    services.sessions.sandboxes.of(sandbox).paused = kernels[sandbox][0].present_sleep


def resume(services: Services, sandbox: Session) -> None:
    """Wake all kernels of a sandbox."""
    for session in _sessions(services, sandbox):
        if session.kernel is not None:
            session.kernel.wake()


def _sessions(services: Services, sandbox: Session) -> list[Session]:
    return [sandbox, *(context.session for context in further_contexts(services, sandbox))]


def _unused(session: Session) -> Kernel:
    """Return the kernel of a session that nobody uses. Raises SandboxBusy."""
    if session.kernel is None or not session.kernel.alive or session.idle_since is None:
        raise SandboxBusy(IN_USE)
    return session.kernel
