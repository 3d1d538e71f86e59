"""What is done with a sandbox as a whole: made for a time, paused, and ended, each with all its contexts."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from cellgate.doors.sandbox.base import SandboxDoorHandler
from cellgate.doors.sandbox.contexts import further_contexts
from cellgate.doors.sandbox.pausing import pause, resume
from cellgate.errors import Conflict, Forbidden
from cellgate.execution.limits import check_seconds
from cellgate.http.services import Services
from cellgate.identity.principal import Login
from cellgate.sessions.session import Session
from cellgate.wire.words import NetworkAccess
from cellgate_kernels.base.errors import InvalidInput


class SandboxControl(SandboxDoorHandler):
    """A handler that makes sandboxes, tells of them, or ends them."""

    def check_may_make(self) -> None:
        """Check that the token may have one sandbox more. Raises Forbidden."""
        if self.login.reach.exact:
            raise Forbidden("This token is for one session, and a sandbox is another")

    def check_life(self, timeout: float) -> float:
        """Return the seconds that a new sandbox is to live. Raises InvalidInput."""
        most = self.services.sessions.terms.ceilings(self.owner).lifetime
        if check_seconds(timeout, "timeout") > most:
            raise InvalidInput(f"timeout: a sandbox lives at most {most:.0f} s here")
        return timeout

    def sandboxes(self, id_of: Callable[[Session], str]) -> list[Session]:
        """Return the login's sandboxes that run. `id_of`: returns the id of a session that may be one."""
        live = self.services.sessions.manager.all_live(self.owner)
        return [session for session in live if self.find_sandbox(id_of(session)) is session]

    def sessions(self, sandbox: Session) -> list[Session]:
        """Return the sandbox's own session, then those of its further contexts."""
        return [sandbox, *(context.session for context in further_contexts(self.services, sandbox))]

    def is_paused(self, sandbox: Session) -> bool:
        """Return whether a client has paused the sandbox."""
        return self.services.sessions.sandboxes.of(sandbox).is_paused

    async def end(self, sandbox: Session) -> None:
        """End a sandbox, with its files."""
        for each in reversed(self.sessions(sandbox)):
            await self.services.sessions.manager.delete(self.owner, each.row.key)

    def let_live(self, sandbox: Session, seconds: float) -> None:
        """Let a sandbox live for so many seconds from now on. Raises InvalidInput."""
        sandbox.record.let_live(seconds, self.services.sessions.terms.ceilings(self.owner).lifetime)
        self.let_contexts_live(sandbox)

    def let_contexts_live(self, sandbox: Session) -> None:
        """Let a sandbox's further contexts live as long as it does."""
        left = max(1.0, sandbox.record.seconds_left)
        for each in self.sessions(sandbox)[1:]:
            each.record.let_live(left, math.inf)

    async def pause(self, sandbox: Session) -> None:
        """Let a sandbox sleep until anything wakes it. Raises Conflict if it does, and what `pause` does."""
        self.check_not_paused(sandbox)
        asleep = await pause(self.sessions(sandbox), self.services.storage.lanes.sleep)
        self.services.sessions.sandboxes.of(sandbox).paused = asleep

    def check_not_paused(self, sandbox: Session) -> None:
        """Raise Conflict if a sandbox is paused."""
        if self.is_paused(sandbox):
            raise Conflict("The sandbox is paused already")

    def check_paused(self, sandbox: Session) -> None:
        """Raise Conflict unless a sandbox is paused."""
        if not self.is_paused(sandbox):
            raise Conflict("The sandbox is not paused")

    def resume(self, sandbox: Session) -> None:
        """Wake a sandbox. Raises Conflict if it is not paused."""
        self.check_paused(sandbox)
        resume(self.sessions(sandbox))


def network_of(services: Services, login: Login, *, wanted: bool) -> NetworkAccess:
    """Return a new sandbox's network: what the operator gives, if that is wanted."""
    reachable = services.sessions.terms.reachable(login.principal.name)
    return "allow" if wanted and reachable is not None else "none"


def end_of(sandbox: Session) -> str:
    """Return the time at which a sandbox ends, in RFC 3339's form."""
    end = datetime.now(UTC) + timedelta(seconds=max(0.0, sandbox.record.seconds_left))
    return end.isoformat(timespec="milliseconds").replace("+00:00", "Z")
