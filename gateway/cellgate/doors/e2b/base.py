"""What the door's handlers share: sandboxes by their ids, their tokens, and refusals in E2B's two forms.

The control plane's requests have a token of the gateway. Those to a sandbox have one that was derived from it
for this sandbox alone; as there, they may have the gateway's instead.
"""

from __future__ import annotations

import hashlib
import posixpath
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from types import MappingProxyType
from typing import ClassVar, Final

from cellgate.doors.base import DoorHandler
from cellgate.errors import Conflict, InvalidToken, NotFound, status_of
from cellgate.execution.checks import check_text
from cellgate.files.tree import MAX_PATH, Parts, parse_path
from cellgate.http.access import host_name
from cellgate.http.message import encode
from cellgate.http.services import Services
from cellgate.identity.addresses import is_loopback
from cellgate.identity.principal import Ask, Login
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.tasks import Supervisor

DOOR: Final = "e2b"
PORTS: Final = frozenset({"", "49999", "49983"})
"""The ports of a sandbox's two servers; some requests name none."""
KEY_DIGITS: Final = 32
HOME: Final = "/home/user"
"""What the workspace is called there, and in sandboxes here too."""
OTHER_HOMES: Final = ("/workspace", "/mnt/data")
"""Other names of the workspace, in which programs see it too."""
DOMAIN_HEADER: Final = "E2b-Domain"
"""In which a proxy says of which domain the name is that was asked for."""
_API = "api."
_LABEL = "(?!-)[a-z0-9-]{1,63}+(?<!-)"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL})*(?::[0-9]{{1,5}})?")
_MOST_DOMAIN = 255
_ID = re.compile(r"[a-z0-9_]{1,64}", re.ASCII)

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


def parse_home_path(text: str) -> Parts:
    """Return the names of a path below the home folder; none for the folder itself. Raises NotFound."""
    if len(text) > MAX_PATH:
        raise InvalidInput(f"A path has at most {MAX_PATH} bytes")
    path = HOME + text[1:] if text == "~" or text.startswith("~/") else posixpath.join(HOME, text)
    path = posixpath.normpath(path).replace("//", "/", 1)
    for home in (HOME, *OTHER_HOMES):
        if path == home:
            return ()
        if path.startswith(f"{home}/"):
            return parse_path(path.removeprefix(f"{home}/"))
    raise NotFound(f"{text[:200]!r} is not there: a sandbox has the files below {HOME} here")


def parse_program_path(text: str) -> str:
    """Return a path as programs of a sandbox take it: below the workspace relative to it, elsewhere as it is.

    Raises InvalidInput. Whether anything is there is not known: the gateway sees the workspace alone.
    """
    try:
        return "/".join(parse_home_path(text))
    except NotFound:
        return posixpath.normpath(posixpath.join(HOME, check_text(text, "path", MAX_PATH)))


def program_path(path: str) -> str:
    """Return a path of `parse_program_path` as it is told."""
    return posixpath.join(HOME, path) if path else HOME


def home_path(parts: Parts) -> str:
    """Return the path as it is told."""
    return "/".join((HOME, *parts))


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


class Unsupported(CellgateError):
    """Something of E2B that is not there."""

    reason = "unsupported"


class AlreadyThere(Conflict):
    """A folder that was to be made is there."""


class SandboxGone(CellgateError):
    """No sandbox of this id runs: it has ended, or there never was one."""

    reason = "sandbox_gone"


class SandboxBusy(CellgateError):
    """A sandbox can't be paused, because it is in use."""

    reason = "sandbox_busy"


def session_key(login: Login, sandbox: str, door: str = DOOR) -> str:
    """Return the key of a principal's sandbox; a token for keys with a prefix has sandboxes of its own."""
    return key_of(login.principal.name, sandbox, login.reach.prefix, door)


def key_of(principal: str, sandbox: str, prefix: str = "", door: str = DOOR) -> str:
    """Return the same, of a principal by name. `prefix`: what the keys of its token begin with."""
    told = hashlib.sha256(f"{principal}\0{sandbox}".encode()).hexdigest()
    return f"{prefix}{door}-{told[:KEY_DIGITS]}"


@asynccontextmanager
async def whole_or_deleted(manager: SessionRegistry, session: Session) -> AsyncGenerator[None]:
    """Delete a new session if what has to follow its opening fails: its client has no name for it."""
    try:
        yield
    except BaseException:
        with suppress(NotFound):
            await Supervisor().complete(
                manager.delete(session.account.name, session.row.key), "delete half of a sandbox"
            )
        raise


def find(services: Services, login: Login, sandbox: str, door: str = DOOR) -> Session | None:
    """Return the login's sandbox of this id, and of this door, if it runs."""
    if not _ID.fullmatch(sandbox):
        return None
    key = session_key(login, sandbox, door)
    session = services.sessions.manager.get(login.principal.name, key)
    if session is None or session.ending or not login.reach.covers(key):
        return None
    return session


def status_code(error: CellgateError) -> HTTPStatus:
    """Return the status of a refusal."""
    match error:
        case Unsupported():
            return HTTPStatus.NOT_IMPLEMENTED
        case SandboxGone():
            return HTTPStatus.BAD_GATEWAY
        case SandboxBusy():
            return HTTPStatus.SERVICE_UNAVAILABLE
    return status_of(error)


class E2bHandler(DoorHandler):
    """A handler of the door, whose refusals have the control plane's form."""

    door = DOOR

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        code = status_code(error)
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
        return session_key(self.login, self.sandbox_id)

    def session(self) -> Session:
        """Return the sandbox. Raises SandboxGone, Unsupported."""
        if self.request.headers.get("E2b-Sandbox-Port", "") not in PORTS:
            raise Unsupported("Ports of programs in a sandbox are not served here")
        session = find(self.services, self.login, self.sandbox_id)
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
