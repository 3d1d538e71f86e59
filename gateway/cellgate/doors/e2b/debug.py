"""The door as E2B's SDKs expect it with `E2B_DEBUG`: at three ports of their own machine, without any token.

There is one sandbox, which the first request for it makes; the ids and tokens of requests don't count.
Whoever reaches the ports is the administrator there. So they are on loopback addresses alone, open only if
the operator says so, and only while no one but the administrator can log in. Requests by browsers are
refused, because any page can make some. It adds nothing to the door's answers; ``server.assembly`` listens.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import ClassVar, Final, cast

from cellgate.doors.e2b.base import AbsentHandler, E2bHandler
from cellgate.doors.e2b.control import TIMEOUT, ControlHandler, SandboxesHandler, sandbox_body
from cellgate.doors.e2b.routes import PREFIX, ROUTES
from cellgate.errors import Forbidden
from cellgate.http.access import host_name
from cellgate.http.base import BaseHandler
from cellgate.http.routes import Route, pattern
from cellgate.http.services import Services
from cellgate.identity.addresses import is_loopback
from cellgate.identity.principal import Login
from cellgate.wire.models import LimitsBody
from cellgate_kernels.base.errors import CellgateError

SANDBOX: Final = "debug_sandbox_id"
"""What SDKs call the sandbox then."""
DEBUG_PORTS: Final = (3000, 49983, 49999)
"""Where SDKs ask for a sandbox (until 2.6.0), its files and programs, and its cells."""
FROM_BROWSERS: Final = ("Origin", "Sec-Fetch-Site")
"""Headers at least one of which all requests of a browser's pages have, and none of a program."""


MAKES_NONE: Final = (ControlHandler, AbsentHandler)
"""Handlers whose requests need no sandbox."""


class DebugHandler(E2bHandler):
    """What differs from the door's other handlers, before which it stands in the order of classes."""

    sandbox_id: ClassVar[str] = SANDBOX

    def session_wanted(self) -> str | None:
        """Return None: these requests are for this machine alone."""

    async def _prepare(self) -> None:
        """See `BaseHandler`; when a request has been let in, its sandbox is there."""
        checked = super()._prepare()
        if checked is not None:
            await checked
        if self._refused is not None or not self._needs_token or isinstance(self, MAKES_NONE):
            return
        try:
            await self._make_sandbox()
        except CellgateError as error:
            self._refuse_request(error)

    def _authenticate(self) -> Login:
        """Return the administrator's login, for programs of this machine. Raises Forbidden."""
        headers, authentication = self.request.headers, self.services.people.access.authentication
        for name in FROM_BROWSERS:
            if name in headers:
                raise Forbidden("Browsers' requests are refused where no token is asked for", cause="origin")
        if not is_loopback(host_name(headers.get("Host", ""))):
            raise Forbidden("Only names of this machine are taken where no token is asked for", cause="host")
        if authentication.is_shared:
            raise Forbidden("This gateway has users, so a token is needed: E2B_DEBUG sends none")
        return authentication.directory.administrator.login

    async def _make_sandbox(self) -> None:
        """Make the sandbox, unless it is there. It ends when it has been idle for as long as others live."""
        if self.find_sandbox(SANDBOX) is not None:
            return
        body = sandbox_body(
            self.services, self.login, SANDBOX, LimitsBody(idle_timeout=TIMEOUT, on_idle="end")
        )
        session, _ = await self.services.sessions.manager.get_or_create(self.owner, body)
        await session.log.commit()


class DebugSandboxesHandler(DebugHandler, SandboxesHandler):
    """The collection, of one."""

    def limits(self, life: float, *, pauses: bool) -> LimitsBody:
        """See `SandboxesHandler`. No client makes it live longer: it ends when it is idle for so long."""
        return LimitsBody(idle_timeout=life, on_idle="end")

    def _new_id(self) -> str:
        return SANDBOX


def _debug(handler: type[E2bHandler]) -> type[E2bHandler]:
    """Return the same handler for requests without a token."""
    if handler is SandboxesHandler:
        return DebugSandboxesHandler
    return cast(type[E2bHandler], type(f"Debug{handler.__name__}", (DebugHandler, handler), {}))


_ROUTES: Final = MappingProxyType({path.removeprefix(PREFIX): _debug(handler) for path, handler in ROUTES})


def debug_routes(services: Services) -> list[Route]:
    """Return the routes at the three ports, all of which serve the same."""
    return [(pattern(path), handler, {"services": services}) for path, handler in _ROUTES.items()]


def debug_paths() -> dict[type[BaseHandler], str]:
    """Return the path of each handler, as the audit trail and logs call it."""
    return {handler: path for path, handler in _ROUTES.items()}
