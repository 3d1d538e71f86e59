"""What the door's handlers share: sandboxes by their ids, their tokens, and refusals in E2B's two forms.

The control plane's requests have a token of the gateway. Those to a sandbox have one that was derived from it
for this sandbox alone; as there, they may have the gateway's instead.
"""

from __future__ import annotations

import re
from http import HTTPStatus
from types import MappingProxyType
from typing import ClassVar, Final

from cellgate.doors.sandbox.base import SandboxDoorHandler
from cellgate.doors.sandbox.errors import SandboxBusy, Unsupported, status_code
from cellgate.errors import Conflict, InvalidToken
from cellgate.http.access import host_name
from cellgate.http.message import encode
from cellgate.identity.addresses import is_loopback
from cellgate.identity.principal import Ask, Login
from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import CellgateError

DOOR: Final = "e2b"
PORTS: Final = frozenset({"", "49999", "49983"})
"""The ports of a sandbox's two servers; some requests name none."""
DOMAIN_HEADER: Final = "E2b-Domain"
"""In which a proxy says of which domain the name is that was asked for."""
_API = "api."
_LABEL = "(?!-)[a-z0-9-]{1,63}+(?<!-)"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?")
_MOST_DOMAIN = 255

CODES: Final = MappingProxyType(
    {
        HTTPStatus.BAD_REQUEST: "invalid_argument",
        HTTPStatus.UNAUTHORIZED: "unauthenticated",
        HTTPStatus.FORBIDDEN: "permission_denied",
        HTTPStatus.NOT_FOUND: "not_found",
        HTTPStatus.CONFLICT: "failed_precondition",
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "resource_exhausted",
        HTTPStatus.TOO_MANY_REQUESTS: "resource_exhausted",
        HTTPStatus.INSUFFICIENT_STORAGE: "resource_exhausted",
        HTTPStatus.NOT_IMPLEMENTED: "unimplemented",
        HTTPStatus.SERVICE_UNAVAILABLE: "unavailable",
    }
)
"""The names of Connect's errors, by status; all others are internal."""

ABSENT: Final = MappingProxyType(
    {
        "snapshots": "there are no snapshots here, which outlive their sandbox; fork it instead",
        "network": "the operator alone says which network a sandbox has",
        "logs": "there are no logs of a sandbox here; its session's record has what it did",
        "templates": "templates are made by the operator, as environments, whose names sandboxes can give",
        "volumes": "there are no volumes here; upload files into the sandbox",
    }
)
"""Why some of E2B is not there, by the end of its path."""


def domain_of(told: str, host: str) -> str:
    """Return the domain of sandboxes: what a proxy has `told`, or the name by which the gateway was reached.

    It is never left out: clients that build ``49999-ID.DOMAIN`` would take E2B's own, and send it our tokens.
    """
    if len(told) <= _MOST_DOMAIN and _DOMAIN.fullmatch(told.lower()):
        return told.lower()
    host = host.lower() if len(host) <= _MOST_DOMAIN else ""
    name = host_name(host)
    if is_loopback(name) or not name:
        _, colon, port = host.rpartition(":")
        return f"localhost:{port}" if colon and port.isdecimal() else "localhost"
    return host.removeprefix(_API)


class AlreadyThere(Conflict):
    """A folder that was to be made is there."""


class SandboxGone(CellgateError):
    """No sandbox of this id runs: it has ended, or there never was one."""

    reason = "sandbox_gone"


def code_of(error: CellgateError) -> HTTPStatus:
    """Return the status of a refusal."""
    return HTTPStatus.BAD_GATEWAY if isinstance(error, SandboxGone) else status_code(error)


class E2bHandler(SandboxDoorHandler):
    """A handler of the door, whose refusals have the control plane's form."""

    door = DOOR

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        code = code_of(error)
        self.set_status(code)
        self.is_expected = isinstance(error, Unsupported | SandboxGone | SandboxBusy)
        return "application/json; charset=utf-8", encode(self.problem(error, code))

    def problem(self, error: CellgateError, code: HTTPStatus) -> dict[str, object]:
        """Return what is told of a refusal."""
        return {"code": code, "message": error.message}


class SandboxHandler(E2bHandler):
    """A handler of a sandbox's own servers. `connect`: whether it answers as Connect's protocol has it."""

    connect: ClassVar[bool] = False

    @property
    def sandbox_id(self) -> str:
        """The id of the sandbox that the request is for."""
        return self.request.headers.get("E2b-Sandbox-Id", "")

    def session_wanted(self) -> str | None:
        return self.key_of(self.sandbox_id)

    def session(self) -> Session:
        """Return the sandbox. Raises SandboxGone, Unsupported."""
        if self.request.headers.get("E2b-Sandbox-Port", "") not in PORTS:
            raise Unsupported("Ports of programs in a sandbox are not served here")
        session = self.find_sandbox(self.sandbox_id)
        if session is None:
            raise SandboxGone("The sandbox was not found")
        if self.services.sessions.sandboxes.of(session).is_paused:
            raise SandboxGone("The sandbox was not found: it is paused; connect to it first")
        return session

    def _authenticate(self) -> Login | Ask:
        """Return the login that the sandbox's token was made for, or that of a token of the gateway."""
        headers = self.request.headers
        given = headers.get("X-Access-Token") or headers.get("E2B-Traffic-Access-Token")
        if not given:
            return super()._authenticate()
        login = self.services.people.derived_tokens.login(given, self.sandbox_id)
        if login is None:
            raise InvalidToken(
                "This is no token of this sandbox, or no longer: connect to the sandbox again",
                cause="unknown_token",
            )
        return login

    def problem(self, error: CellgateError, code: HTTPStatus) -> dict[str, object]:
        if isinstance(error, SandboxGone):
            # The proxy before a sandbox says so there; SDKs know it by these words.
            return {"sandboxId": self.sandbox_id[:64], "message": error.message, "code": code}
        if self.connect:
            named = "already_exists" if isinstance(error, AlreadyThere) else CODES.get(code, "internal")
            return {"code": named, "message": error.message}
        return super().problem(error, code)


class AbsentHandler(SandboxHandler):
    """Everything of E2B that is not there."""

    def session_wanted(self) -> str | None:
        return None

    async def _absent(self, *_: str) -> None:
        self.check()
        asked = f"{self.request.method} {self.request.path[:80]}"
        why = ABSENT.get(self.request.path.rpartition("/")[2], "this gateway has nothing of E2B there")
        raise Unsupported(f"{asked}: {why}")

    _absent.needs = frozenset()  # type: ignore[attr-defined]
    get = head = post = delete = patch = put = _absent
