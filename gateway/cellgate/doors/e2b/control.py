"""The control plane: makes sandboxes, tells of them, and ends them.

A sandbox's `timeout` is its session's life. Its template is any: the kernel is the gateway's for Python.
"""

from __future__ import annotations

import base64
import hashlib
import math
import secrets
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import parse_qsl, unquote

from msgspec import field

from cellgate.doors.base import Asked, environment_named
from cellgate.doors.e2b.base import DOMAIN_HEADER, DOOR, E2bHandler, code_of, domain_of
from cellgate.doors.e2b.metrics import metrics_of
from cellgate.doors.sandbox.control import SandboxControl, end_of, network_of
from cellgate.doors.sandbox.errors import Unsupported
from cellgate.doors.sandbox.keys import session_key, whole_or_deleted
from cellgate.doors.sandbox.pausing import is_paused_at_timeout, pause_at_timeout
from cellgate.errors import NotFound
from cellgate.execution.checks import check_env, check_metadata
from cellgate.execution.limits import check_seconds
from cellgate.http.operation import requires
from cellgate.http.services import Services
from cellgate.identity.principal import Login, Permission
from cellgate.sessions.session import Session
from cellgate.wire.models import LimitsBody, SessionBody
from cellgate.wire.owner import made_at
from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.resources import MIB

ENVD: Final = "0.6.4"
"""The version of the server in a sandbox that this one does as, which decides what SDKs ask of it."""
TIMEOUT: Final = 300.0
"""Seconds that a sandbox lives if its client doesn't say."""
ID_BYTES: Final = 15
MOST_LISTED: Final = 100
MOST_FILTERS: Final = 50
MOST_TEMPLATE: Final = 200
MOST_FORKS: Final = 20
MOST_DIGITS: Final = 17
RUNNING: Final = "running"
PAUSED: Final = "paused"
LEAST: Final = 1.0
"""Seconds that a sandbox lives at least once it is resumed."""
PUBLIC_PORTS: Final = MappingProxyType({"allowPublicTraffic": True})
"""The rules for a network that change nothing here: who may see programs' ports, of which none is shown."""


class CreateBody(Asked, frozen=True):
    """A sandbox to make."""

    template: str = field(name="templateID", default="base")
    metadata: dict[str, Any] | None = None
    env: dict[str, str] | None = field(name="envVars", default=None)
    timeout: float | None = None
    internet: bool | None = field(name="allow_internet_access", default=None)
    auto_pause: bool | None = field(name="autoPause", default=None)
    auto_pause_memory: bool | None = field(name="autoPauseMemory", default=None)
    network: Any = None
    iam: Any = None
    mcp: Any = None
    volumes: Any = field(name="volumeMounts", default=None)

    def check(self) -> None:
        """Raise Unsupported for what would be wrong to pass over."""
        absent = {
            "network": self.network != PUBLIC_PORTS and self.network,
            "iam": self.iam,
            "mcp": self.mcp,
            "volumeMounts": self.volumes,
        }
        for name, wanted in absent.items():
            if wanted:
                raise Unsupported(f"{name} of E2B is not there in this gateway")
        for key, value in (self.metadata or {}).items():
            if not isinstance(value, str):
                raise InvalidInput(f"metadata: the value of '{ascii(key)[1:-1][:40]}' must be a text")
        if len(self.template) > MOST_TEMPLATE:
            raise InvalidInput(f"templateID has at most {MOST_TEMPLATE} characters")

    @property
    def pauses(self) -> bool:
        """Whether it is to be paused at its timeout, with its memory."""
        return self.auto_pause is True and self.auto_pause_memory is not False


class ForkBody(Asked, frozen=True):
    """How many copies of a sandbox to make, and how many seconds they live."""

    count: int = 1
    timeout: float | None = None


ANY: Final = CreateBody()
"""A sandbox of which nothing is said."""


class TimeoutBody(Asked, frozen=True):
    """How long a sandbox is to live from now on, in seconds. `memory`: False for a start without it."""

    timeout: float = TIMEOUT
    memory: bool | None = None


class PauseBody(Asked, frozen=True):
    """A pause. `memory`: whether it keeps what is in memory, which is so unless it is False."""

    memory: bool | None = None


def sandbox_body(
    services: Services, login: Login, identifier: str, limits: LimitsBody, asked: CreateBody = ANY
) -> SessionBody:
    """Return the session that is to be the login's sandbox of this id."""
    return SessionBody(
        session=session_key(DOOR, login, identifier),
        language="python",
        environment=environment_named(services, asked.template),
        limits=limits,
        # Older SDKs ask for it unless told not to: whoever asks or says nothing has what the operator gives.
        network=network_of(services, login, wanted=asked.internet is not False),
        metadata={
            "door": DOOR,
            "sandbox": identifier,
            "template": asked.template,
            "metadata": asked.metadata or {},
        },
    )


class ControlHandler(E2bHandler, SandboxControl):
    """A handler of the control plane."""

    def domain(self) -> str:
        """Return the domain below which clients look for a sandbox's servers; see `domain_of`."""
        return domain_of(self.request.headers.get(DOMAIN_HEADER, ""), self.request.headers.get("Host", ""))

    def life(self, timeout: float | None) -> float:
        """Return the seconds that a new sandbox lives. Raises InvalidInput."""
        if timeout is None:
            return min(TIMEOUT, self.services.sessions.terms.ceilings(self.owner).lifetime)
        return self.check_life(timeout)

    def random_id(self) -> str:
        """Return an id for a new sandbox, which begins in a cluster as this gateway's, after the letter."""
        word = _word(secrets.token_bytes(ID_BYTES))
        return f"i{made_at(self.node, word)}" if self.node else f"i{word}"

    def state(self, session: Session) -> str:
        """Return the state of a sandbox, by E2B's word."""
        return PAUSED if self.is_paused(session) else RUNNING

    def detail(self, session: Session) -> dict[str, object]:
        """Return what is told of a sandbox to whoever looks at it."""
        identifier, template, metadata = _facts(session)
        resources = session.limits.resources
        return {
            "templateID": template,
            "sandboxID": identifier,
            "clientID": "cellgate",
            "envdVersion": ENVD,
            "startedAt": session.row.created_at,
            "endAt": end_of(session),
            "cpuCount": math.ceil(resources.cpus),
            "memoryMB": resources.memory // MIB,
            "diskSizeMB": resources.disk // MIB,
            "state": self.state(session),
            "metadata": metadata,
            "lifecycle": {
                "autoResume": False,
                "onTimeout": "pause" if is_paused_at_timeout(session) else "kill",
            },
            "domain": self.domain(),
        }

    def told(self, session: Session) -> dict[str, object]:
        """Return what is told of a sandbox that a client is to use, with its tokens."""
        identifier, template, _ = _facts(session)
        token = self.services.people.derived_tokens.make(self.login, identifier)
        return {
            "templateID": template,
            "sandboxID": identifier,
            "clientID": "cellgate",
            "envdVersion": ENVD,
            "envdAccessToken": token,
            # Requests about contexts have this one alone.
            "trafficAccessToken": token,
            "domain": self.domain(),
        }


class SandboxesHandler(ControlHandler):
    """The collection."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Make a sandbox."""
        body = await self.body(CreateBody)
        body.check()
        env = dict(check_env(body.env))
        services, manager = self.services, self.services.sessions.manager
        self.check_may_make()
        identifier, life = self._new_id(), self.life(body.timeout)
        limits = self.limits(life, pauses=body.pauses)
        wanted = sandbox_body(services, self.login, identifier, limits, body)
        check_metadata(wanted.metadata)
        session, created = await manager.get_or_create(self.owner, wanted)
        await session.log.commit()
        services.sessions.sandboxes.of(session).env = env
        if limits.on_idle == "sleep":
            await pause_at_timeout(
                session, manager, services.sessions.sandboxes, services.storage.lanes.sleep
            )
        if not created:
            session.record.let_live_longer(life, manager.terms.ceilings(self.owner).lifetime)
        self.answer(self.told(session), 201)

    def limits(self, life: float, *, pauses: bool) -> LimitsBody:
        """Return the limits of a sandbox that is to live for so many seconds. `pauses`: or is paused then."""
        return LimitsBody(lifetime=life, idle_timeout=life, on_idle="sleep" if pauses else "end")

    def _new_id(self) -> str:
        """Return an id for a new sandbox; a request that is repeated with its key gets the same."""
        key = self.idempotency_key()
        if key is not None:
            made = hashlib.sha256(f"{self.owner}\0{key}".encode()).digest()[:ID_BYTES]
            return f"i{_word(made)}"
        return self.random_id()

    @requires(Permission.READ)
    async def get(self) -> None:
        """List sandboxes, the newest first unless the query says otherwise."""
        limit = number_of(self, "limit", MOST_LISTED)
        if not 1 <= limit <= MOST_LISTED:
            raise InvalidInput(f"limit must be from 1 to {MOST_LISTED}")
        states = self.get_query_argument("state", f"{RUNNING},{PAUSED}").split(",")
        newest = self.get_query_argument("order", "desc") != "asc"
        wanted = _filters(self.get_query_argument("metadata", ""))
        last = number_of(self, "nextToken", 0)
        found = [
            session
            for session in self.sandboxes(lambda each: _facts(each)[0])
            if self.state(session) in states
            and wanted.items() <= _facts(session)[2].items()
            and (not last or ((session.row.id < last) == newest and session.row.id != last))
        ]
        found.sort(key=lambda session: session.row.id, reverse=newest)
        page = found[:limit]
        if page and len(page) < len(found):
            self.set_header("X-Next-Token", str(page[-1].row.id))
        self.answer([self.detail(session) for session in page])


class SandboxDetailHandler(ControlHandler):
    """One sandbox."""

    @requires(Permission.READ)
    async def get(self, identifier: str) -> None:
        """Tell of it."""
        self.answer(self.detail(self.sandbox(identifier)))

    @requires(Permission.RUN)
    async def delete(self, identifier: str) -> None:
        """End it, with its files."""
        await self.end(self.sandbox(identifier))
        self.set_status(204)


class ConnectHandler(ControlHandler):
    """Another client for a sandbox."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Tell of it, with its tokens; its life gets longer, never shorter. A paused one is resumed."""
        body = await self.body(TimeoutBody)
        session = self.sandbox(identifier)
        # Clients ask for as long as they would for a new one, which may be more than is left to it.
        most = self.services.sessions.terms.ceilings(self.owner).lifetime
        if not self.is_paused(session):
            session.record.let_live_longer(body.timeout, most)
            self.let_contexts_live(session)
            self.answer(self.told(session))
            return
        if body.memory is False:
            raise Unsupported("A paused sandbox goes on as it was here; start another one to begin anew")
        left = min(check_seconds(body.timeout, "timeout"), session.record.seconds_left)
        self.resume(session)
        session.record.let_live(max(LEAST, left), math.inf)
        self.let_contexts_live(session)
        self.answer(self.told(session), 201)


class ResumeHandler(ConnectHandler):
    """The same for a paused sandbox alone, as older SDKs ask."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Resume it."""
        self.check_paused(self.sandbox(identifier))
        await super().post(identifier)


class PauseHandler(ControlHandler):
    """The pause of a sandbox."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Let it sleep until a client connects to it, for as long as a sandbox may live."""
        body = await self.body(PauseBody) if self.raw_body() else PauseBody()
        session = self.sandbox(identifier)
        self.check_not_paused(session)
        if body.memory is False:
            raise Unsupported("A pause here keeps the memory; one that keeps the files alone is not there")
        await self.pause(session)
        most = self.services.sessions.terms.ceilings(self.owner).lifetime
        session.record.let_live_longer(most, most)
        self.let_contexts_live(session)
        self.set_status(204)


class ForkHandler(ControlHandler):
    """Copies of a sandbox as it is now."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Make copies: branches of its session, one after the other. If the first can't be, none is made."""
        body = await self.body(ForkBody)
        if not 1 <= body.count <= MOST_FORKS:
            raise InvalidInput(f"count must be from 1 to {MOST_FORKS}")
        self.check_may_make()
        life = self.life(body.timeout)
        if self.is_paused(self.sandbox(identifier)):
            raise NotFound(f"Sandbox {identifier[:64]!r} is paused; connect to it first")
        made: list[dict[str, object]] = []
        for _ in range(body.count):
            try:
                made.append({"sandbox": self.told(await self._fork(self.sandbox(identifier), life))})
            except CellgateError as error:
                if not made:
                    raise
                made.append({"error": self.problem(error, code_of(error))})
        self.answer(made, 201)

    async def _fork(self, parent: Session, life: float) -> Session:
        """Return a new sandbox that goes on as its parent's default context, with a copy of its files."""
        manager, sandboxes = self.services.sessions.manager, self.services.sessions.sandboxes
        identifier = self.random_id()
        session = await manager.branch(
            self.owner,
            parent.row.key,
            self.key_of(identifier),
            BranchSpec(BranchWorkspace.COPY),
            metadata={**(parent.row.metadata or {}), "sandbox": identifier},
        )
        async with whole_or_deleted(manager, session):
            # What the copy took counts too: a life that is the longest possible is this much shorter.
            most = manager.terms.ceilings(self.owner).lifetime
            session.record.let_live(min(life, most - session.record.age), math.inf)
            sandboxes.of(session).env = sandboxes.of(parent).env
            await session.log.commit()
        return session


class SandboxMetricsHandler(ControlHandler):
    """How much a sandbox uses."""

    @requires(Permission.READ)
    async def get(self, identifier: str) -> None:
        """Tell of it as it is now, unless the query asks for other times alone."""
        session = self.sandbox(identifier)
        now, start, end = time.time(), number_of(self, "start", 0), number_of(self, "end", 0)
        if start > now or 0 < end < math.floor(now):
            self.answer([])
            return
        self.answer([await metrics_of(self.services, session)])


class TimeoutHandler(ControlHandler):
    """The life of a sandbox."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Let it end so many seconds from now."""
        body = await self.body(TimeoutBody)
        self.let_live(self.sandbox(identifier), body.timeout)
        self.set_status(204)


def number_of(handler: ControlHandler, name: str, default: int) -> int:
    """Return a number of the request's query. Raises InvalidInput."""
    given = handler.get_query_argument(name, "")
    if not given:
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < MOST_DIGITS):
        raise InvalidInput(f"{name} must be a number")
    return int(given)


def _word(made: bytes) -> str:
    return base64.b32encode(made).decode().lower()


def _facts(session: Session) -> tuple[str, str, Mapping[str, object]]:
    """Return the id, the template and the client's metadata of a session that may be a sandbox."""
    told = session.row.metadata or {}
    if told.get("door") != DOOR:
        return "", "", {}
    metadata = told.get("metadata")
    return (
        str(told.get("sandbox", "")),
        str(told.get("template", "")),
        metadata if isinstance(metadata, dict) else {},
    )


def _filters(text: str) -> dict[str, str]:
    """Return the metadata of sandboxes to list; SDKs encode each word, and then all of them again."""
    try:
        pairs = parse_qsl(text, max_num_fields=MOST_FILTERS)
    except ValueError as error:
        raise InvalidInput(f"metadata has more than {MOST_FILTERS} words to look for") from error
    return {unquote(name): unquote(value) for name, value in pairs}
