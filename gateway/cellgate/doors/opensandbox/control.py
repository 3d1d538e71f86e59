"""The interface that makes sandboxes, tells of them, and ends them.

A sandbox is a session, which lives as long as its `timeout` says. SDKs wait until one is ready; here it is,
once it is made.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from cellgate.doors.base import environment_named
from cellgate.doors.opensandbox.base import (
    DOOR,
    EGRESS_PORT,
    EXECD,
    EXECD_PORT,
    TOKEN_HEADER,
    OpenSandboxHandler,
)
from cellgate.doors.opensandbox.bodies import NewSandboxBody, RenewBody, resources
from cellgate.doors.sandbox.control import SandboxControl, end_of, network_of
from cellgate.doors.sandbox.errors import Unsupported
from cellgate.execution.checks import check_env, check_metadata
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


class LifecycleHandler(OpenSandboxHandler, SandboxControl):
    """A handler of the interface."""

    def state(self, session: Session) -> str:
        """Return the state of a sandbox, by OpenSandbox's word."""
        return PAUSED if self.is_paused(session) else RUNNING

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
            "expiresAt": end_of(session),
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
        self.check_may_make()
        wanted = self._wanted(body)
        check_metadata(wanted.metadata)
        session, _ = await self.services.sessions.manager.get_or_create(self.owner, wanted)
        await session.log.commit()
        self.services.sessions.sandboxes.of(session).env = env
        self.answer(self.told(session), 202)

    def _wanted(self, body: NewSandboxBody) -> SessionBody:
        """Return the session that is to be the sandbox. Raises InvalidInput, Unsupported."""
        most = self.services.sessions.terms.ceilings(self.owner)
        life = most.lifetime if body.timeout is None else self.check_life(body.timeout)
        cpus, memory = resources(body.limits, most)
        identifier = secrets.token_hex(ID_BYTES)
        if self.node:
            identifier = made_at(self.node, identifier)
        return SessionBody(
            session=self.key_of(identifier),
            language="python",
            environment=environment_named(self.services, body.uri),
            limits=LimitsBody(cpus=cpus, memory=memory, lifetime=life, idle_timeout=life, on_idle="end"),
            network=network_of(self.services, self.login, wanted=body.has_network),
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
            for session in self.sandboxes(lambda each: facts_of(each).sandbox)
            if (not states or self.state(session) in states)
            and wanted.items() <= facts_of(session).metadata.items()
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
        await self.end(self.sandbox(identifier))
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
        self.let_live(session, body.seconds())
        self.answer({"expiresAt": end_of(session)})


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
        await self.pause(self.sandbox(identifier))
        self.set_status(202)


class ResumedHandler(LifecycleHandler):
    """The end of a pause."""

    @requires(Permission.RUN)
    async def post(self, identifier: str) -> None:
        """Wake it."""
        self.resume(self.sandbox(identifier))
        self.set_status(202)


class LatencyHandler(OpenSandboxHandler):
    """Where SDKs tell how long it took them to make a sandbox."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Take it, and keep nothing of it."""
        self.set_status(202)


def _filters(text: str) -> Mapping[str, str]:
    """Return the metadata of sandboxes to list. Raises InvalidInput."""
    try:
        return dict(parse_qsl(text, max_num_fields=MOST_FILTERS, keep_blank_values=True))
    except ValueError as error:
        raise InvalidInput(f"metadata has more than {MOST_FILTERS} words to look for") from error
