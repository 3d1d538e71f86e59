"""What the door's handlers share: sandboxes by their ids, their tokens, and refusals in OpenSandbox's form.

Requests about sandboxes have a token of the gateway in ``OPEN-SANDBOX-API-KEY``. Those to one have a token
that was derived from it for this sandbox alone, in ``X-EXECD-ACCESS-TOKEN``: its endpoint is told with it.
SDKs that were told to go through the server (``use_server_proxy``) send both.
"""

from __future__ import annotations

from typing import Final

from cellgate.doors.opensandbox.frames import failure, frame
from cellgate.doors.sandbox.base import SandboxDoorHandler
from cellgate.doors.sandbox.errors import SandboxBusy, Unsupported, status_code
from cellgate.errors import Conflict, InvalidToken
from cellgate.http.message import encode
from cellgate.http.operation import Format
from cellgate.identity.principal import Ask, Login
from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import CellgateError

DOOR: Final = "opensandbox"
PREFIX: Final = "/opensandbox"
EXECD: Final = f"{PREFIX}/execd"
"""Where the daemons of all sandboxes are, by the sandboxes' ids."""
EXECD_PORT: Final = 44772
"""The port of a sandbox's daemon, by which clients ask for its address."""
EGRESS_PORT: Final = 18080
"""The port of what filters a sandbox's network. SDKs ask for its address whenever they make a sandbox."""
KEY_HEADER: Final = "Open-Sandbox-Api-Key"
TOKEN_HEADER: Final = "X-Execd-Access-Token"  # noqa: S105 - the name of a header


class OpenSandboxHandler(SandboxDoorHandler):
    """A handler of the door, whose refusals have OpenSandbox's form: a code and a message."""

    door = DOOR

    def _authenticate(self) -> Login | Ask:
        """Return the login of the request's key, which is a token of the gateway."""
        key = self.request.headers.get(KEY_HEADER, "").strip()
        if not key:
            return super()._authenticate()
        return self.services.people.access.authenticate(f"Bearer {key}", None)

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        self.set_status(status_code(error))
        self.is_expected = isinstance(error, Unsupported | SandboxBusy)
        told = {"code": error.reason.upper(), "message": error.message}
        return "application/json; charset=utf-8", encode(told)


class ExecdHandler(OpenSandboxHandler):
    """A handler of a sandbox's daemon. The first part of its paths is the sandbox's id."""

    @property
    def sandbox_id(self) -> str:
        """The id of the sandbox that the request is for."""
        return self.path_args[0]

    def session(self) -> Session:
        """Return the sandbox. Raises NotFound, and Conflict while it is paused."""
        session = self.sandbox(self.sandbox_id)
        if self.services.sessions.sandboxes.of(session).is_paused:
            raise Conflict("The sandbox is paused; resume it first")
        return session

    def _authenticate(self) -> Login | Ask:
        """Return the login that the sandbox's token was made for, or that of a token of the gateway.

        A client that sends both has kept an endpoint, maybe since before a restart of the gateway.
        """
        headers = self.request.headers
        given = headers.get(TOKEN_HEADER, "")
        login = self.services.people.derived_tokens.login(given, self.sandbox_id) if given else None
        if login is not None:
            return login
        if given and not headers.get(KEY_HEADER):
            raise InvalidToken(
                "This is no token of this sandbox, or no longer: ask for the sandbox's endpoint again",
                cause="unknown_token",
            )
        return super()._authenticate()


class FramesHandler(ExecdHandler):
    """A call that is answered with server-sent events."""

    def sign_of_life(self, form: Format) -> bytes:
        return frame("ping", text="pong")

    def write_problem(self, error: CellgateError, form: Format) -> None:
        self.write(failure(error.reason, error.message))
