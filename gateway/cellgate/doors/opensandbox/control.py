"""The interface that makes sandboxes, tells of them, and ends them.

A sandbox is a session, which lives as long as its `timeout` says. SDKs wait until one is ready; here it is,
once it is made.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from cellgate.doors.base import environment_named
from cellgate.doors.e2b.base import Unsupported, find, session_key
from cellgate.doors.e2b.contexts import further_contexts
from cellgate.doors.e2b.pausing import pause, resume
from cellgate.doors.opensandbox.base import (
    DOOR,
    EGRESS_PORT,
    EXECD,
    EXECD_PORT,
    TOKEN_HEADER,
    OpenSandboxHandler,
)
from cellgate.doors.opensandbox.bodies import NewSandboxBody, RenewBody, resources
from cellgate.errors import Conflict, Forbidden
from cellgate.execution.checks import check_env, check_metadata
from cellgate.execution.limits import check_seconds
from cellgate.http.operation import requires
from cellgate.identity.principal import Permission
from cellgate.ports.origin import check_port
from cellgate.sessions.changing import change_session
from cellgate.sessions.session import Session
from cellgate.wire.models import LimitsBody, SessionBody, SessionChangeBody
from cellgate.wire.owner import made_at
from cellgate_kernels.base.errors import InvalidInput

ID_BYTES: Final = 16
MOST_LISTED: Final = 200
MOST_FILTERS: Final = 50
MOST_DIGITS: Final = 9
PAGE: Final = 20
RUNNING: Final = "Running"
PAUSED: Final = "Paused"


class _Facts(msgspec.Struct):
    """What the metadata of a session says, if it is a sandbox of this door."""

    door: str = ""
    sandbox: str = ""
    image: str = ""
    entrypoint: list[str] = []
    metadata: dict[str, str] = {}


def facts_of(session: Session) -> _Facts:
    """Return what the metadata of a session says; nothing if it is no sandbox of this door."""
    try:
        facts = msgspec.convert(session.row.metadata or {}, _Facts)
    except msgspec.ValidationError:
        return _Facts()  # a session of somebody who has written such metadata
    return facts if facts.door == DOOR else _Facts()


class LifecycleHandler(OpenSandboxHandler):
    """A handler of the interface."""

    def sessions(self, session: Session) -> list[Session]:
        """Return the sandbox's own session, then those of its further contexts."""
        return [session, *(context.session for context in further_contexts(self.services, session))]

    def state(self, session: Session) -> str:
        """Return the state of a sandbox, by OpenSandbox's word."""
        return PAUSED if self.services.sessions.sandboxes.of(session).is_paused else RUNNING

    def told(self, session: Session) -> dict[str, object]:
        """Return what is told of a sandbox."""
        facts = facts_of(session)
        return {
            "id": facts.sandbox,
            "image": {"uri": facts.image},
            "entrypoint": facts.entrypoint,
            "metadata": facts.metadata,
            "status": {"state": self.state(session)},
            "createdAt": session.row.created_at,
            "expiresAt": expiry(session),
        }

    def number(self, name: str, default: int) -> int:
        """Return a number above zero of the request's query. Raises InvalidInput."""
        given = self.get_query_argument(name, str(default))
        if not (given.isascii() and given.isdecimal() and len(given) <= MOST_DIGITS and int(given) > 0):
            raise InvalidInput(f"{name} must be a number above 0")
        return int(given)


class NewSandboxHandler(LifecycleHandler):
    """The collection."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Make a sandbox."""
        body = await self.body(NewSandboxBody)
        body.check()
        env = dict(check_env(body.env))
        if self.login.reach.exact:
            raise Forbidden("This token is for one session, and a sandbox is another")
        wanted = self._wanted(body)
        check_metadata(wanted.metadata)
        session, _ = await self.services.sessions.manager.get_or_create(self.owner, wanted)
        await session.log.commit()
        self.services.sessions.sandboxes.of(session).env = env
        self.answer(self.told(session), 202)

    def _wanted(self, body: NewSandboxBody) -> SessionBody:
        """Return the session that is to be the sandbox. Raises InvalidInput, Unsupported."""
        terms = self.services.sessions.terms
        most = terms.ceilings(self.owner)
        life = most.lifetime if body.timeout is None else check_seconds(body.timeout, "timeout")
        if life > most.lifetime:
            raise InvalidInput(f"timeout: a sandbox lives at most {most.lifetime:.0f} s here")
        cpus, memory = resources(body.limits, most)
        identifier = secrets.token_hex(ID_BYTES)
        if self.node:
            identifier = made_at(self.node, identifier)
        network = body.has_network and terms.reachable(self.owner) is not None
        return SessionBody(
            session=session_key(self.login, identifier, DOOR),
            language="python",
            environment=environment_named(self.services, body.uri),
            limits=LimitsBody(cpus=cpus, memory=memory, lifetime=life, idle_timeout=life, on_idle="end"),
            network="allow" if network else "none",
            metadata={
                "door": DOOR,
                "sandbox": identifier,
                "image": body.uri,
                "entrypoint": body.words,
                "metadata": body.metadata or {},
            },
        )

    @requires(Permission.READ)
    async def get(self) -> None:
        """List sandboxes, the newest first, in pages that are counted from 1."""
        page, size = self.number("page", 1), self.number("pageSize", PAGE)
        if size > MOST_LISTED:
            raise InvalidInput(f"pageSize must be at most {MOST_LISTED}")
        states = {word for given in self.get_query_arguments("state") for word in given.split(",")}
        wanted = _filters(self.get_query_argument("metadata", ""))
        found = [
            session
            for session in self.services.sessions.manager.all_live(self.owner)
            if find(self.services, self.login, (facts := facts_of(session)).sandbox, DOOR) is session
            and (not states or self.state(session) in states)
            and wanted.items() <= facts.metadata.items()
        ]
        found.sort(key=lambda session: session.row.id, reverse=True)
        shown = found[(page - 1) * size : page * size]
        self.answer(
            {
                "items": [self.told(session) for session in shown],
                "pagination": {
                    "page": page,
                    "pageSize": size,
                    "totalItems": len(found),
                    "totalPages": math.ceil(len(found) / size),
                    "hasNextPage": page * size < len(found),
                },
            }
        )


class OneSandboxHandler(LifecycleHandler):
    """One sandbox."""

    @requires(Permission.READ)
    async def get(self, identifier: str) -> None:
        """Tell of it."""
        self.answer(self.told(self.sandbox(identifier)))

    @requires(Permission.RUN)
    async def delete(self, identifier: str) -> None:
        """End it, with its files."""
        for each in reversed(self.sessions(self.sandbox(identifier))):
            await self.services.sessions.manager.delete(self.owner, each.row.key)
        self.set_status(204)


class SandboxMetadataHandler(LifecycleHandler):
    """What a client has noted of a sandbox."""

    @requires(Permission.RUN)
    async def patch(self, identifier: str) -> None:
        """Replace some of it; without what is set to null."""
        changes = await self.body(dict[str, str | None])
        session = self.sandbox(identifier)
        merged: dict[str, str | None] = {**facts_of(session).metadata, **changes}
        kept = {name: value for name, value in merged.items() if value is not None}
        body = SessionChangeBody(metadata={**(session.row.metadata or {}), "metadata": kept})
        check_metadata(body.metadata)
        change_session(session, self.services.sessions.terms, body)
        await session.log.commit()
        self.answer(self.told(session))


class RenewHandler(LifecycleHandler):
    """The life of a sandbox."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Let it end at another time."""
        body = await self.body(RenewBody)
        session = self.sandbox(identifier)
        session.record.let_live(body.seconds(), self.services.sessions.terms.ceilings(self.owner).lifetime)
        left = max(1.0, session.record.seconds_left)
        for each in self.sessions(session)[1:]:
            each.record.let_live(left, math.inf)
        self.answer({"expiresAt": expiry(session)})


class EndpointHandler(LifecycleHandler):
    """Where a port of a sandbox is."""

    @requires(Permission.RUN)
    async def get(self, identifier: str, port: str) -> None:
        """Tell the address, and which headers requests to it must have.

        The address has no scheme: clients use that of this interface's own.
        """
        session, number = self.sandbox(identifier), check_port(port)
        if self.get_query_argument("expires", ""):
            raise Unsupported("There are no signed endpoints here; requests to an endpoint have its headers")
        if number in {EXECD_PORT, EGRESS_PORT}:
            token = self.services.people.derived_tokens.make(self.login, identifier)
            # What is asked of the filter is refused by name: the daemon has nothing of it.
            path = f"{self.services.front.base_url}{EXECD}/{identifier}"
            self.answer({"endpoint": f"{self.request.host}{path}", "headers": {TOKEN_HEADER: token}})
            return
        ports = self.services.front.ports
        if ports is None:
            raise Unsupported("This gateway serves no ports: its operator starts it with --ports-port")
        place = ports.origin.place(self.owner, session.row.key, number)
        url = urlsplit(ports.origin.url(place, urlsplit(f"//{self.request.host}").hostname or ""))
        self.answer({"endpoint": f"{url.netloc}{url.path.rstrip('/')}", "headers": {}})


class SleepHandler(LifecycleHandler):
    """The pause of a sandbox. Its time goes on."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Let it sleep until it is resumed."""
        session = self.sandbox(identifier)
        if self.state(session) == PAUSED:
            raise Conflict("The sandbox is paused already")
        asleep = await pause(self.sessions(session), self.services.storage.lanes.sleep)
        # From now on until anything wakes it.
        self.services.sessions.sandboxes.of(session).paused = asleep
        self.set_status(202)


class ResumedHandler(LifecycleHandler):
    """The end of a pause."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Wake it."""
        session = self.sandbox(identifier)
        if self.state(session) == RUNNING:
            raise Conflict("The sandbox is not paused")
        resume(self.sessions(session))
        self.set_status(202)


class LatencyHandler(OpenSandboxHandler):
    """Where SDKs tell how long it took them to make a sandbox."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Take it, and keep nothing of it."""
        self.set_status(202)


def expiry(session: Session) -> str:
    """Return the time at which a sandbox ends."""
    end = datetime.now(UTC) + timedelta(seconds=max(0.0, session.record.seconds_left))
    return end.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _filters(text: str) -> Mapping[str, str]:
    """Return the metadata of sandboxes to list. Raises InvalidInput."""
    try:
        return dict(parse_qsl(text, max_num_fields=MOST_FILTERS, keep_blank_values=True))
    except ValueError as error:
        raise InvalidInput(f"metadata has more than {MOST_FILTERS} words to look for") from error
