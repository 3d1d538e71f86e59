"""/v1/sessions: create, list, get, end, interrupt and restart sessions."""

from __future__ import annotations

from msgspec import structs

from cellgate.errors import Conflict, Forbidden, NetworkNotAllowed
from cellgate.execution.checks import check_metadata, check_session_key
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, STARTS, WRITES, Answer, operation
from cellgate.principals.principal import Permission
from cellgate.wire.answers import SessionModel, SessionPage
from cellgate.wire.models import SessionBody
from cellgate.wire.queries import PurgeQuery, SessionQuery, SessionsQuery

EVERYBODY = "*"
"""Stands for the owners of all sessions, in lists."""


class SessionsHandler(BaseHandler):
    """The collection."""

    @operation(
        "List sessions",
        Answer(200, "One page, oldest first.", {JSON: SessionPage}),
        query=SessionsQuery,
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self) -> None:
        """A page of the principal's sessions, oldest first."""
        self.check()
        query = self.query(SessionsQuery)
        models, following = await self.services.archive.models(
            None if self.owner == EVERYBODY else self.owner,
            self.login.reach,
            state=query.state,
            limit=query.limit,
            after=query.after,
        )
        self.answer(SessionPage(sessions=models, next=following))

    @operation(
        "Get or create a session",
        Answer(200, "The session exists already.", {JSON: SessionModel}, {"Location": "The session's path."}),
        Answer(
            201,
            "The session was created, with a kernel.",
            {JSON: SessionModel},
            {"Location": "The session's path."},
        ),
        body={JSON: SessionBody},
        errors=(*STARTS, Conflict, NetworkNotAllowed),
        needs=Permission.RUN,
    )
    async def post(self) -> None:
        """Get or create: 201 if a kernel was started for it, 200 if it existed."""
        self.check()
        body = await self.body(SessionBody)
        check_metadata(body.metadata)
        if self.login.reach.prefix:
            key = self.login.reach.new_key() if body.session is None else body.session
            body = structs.replace(body, session=self.login.reach.check(key))
        session, created = await self.services.manager.get_or_create(self.owner, body)
        self.set_location(f"/v1/sessions/{session.row.key}")
        self.answer(session.to_wire(), 201 if created else 200)


class SessionHandler(BaseHandler):
    """One session."""

    @operation(
        "Get a session",
        Answer(200, "The session.", {JSON: SessionModel}),
        errors=READS,
        query=SessionQuery,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        """Its model."""
        self.check()
        self.answer(await self.services.archive.model(self.owner, key))

    @operation(
        "End a session",
        Answer(204, "The session has ended; with `purge`, its record is gone."),
        Answer(
            202,
            "The session is purged; some of its bytes are still in use by readers.",
            headers={"Location": "The session's path."},
        ),
        description="The kernel and the files are removed. The record stays, unless `purge` is set.",
        query=PurgeQuery,
        errors=WRITES,
        needs=Permission.RUN,
    )
    async def delete(self, key: str) -> None:
        """End it; the record stays, unless an admin purges it."""
        self.check()
        if self.query(PurgeQuery).purge:
            if not self.principal.admin:
                raise Forbidden("Only an admin may purge a record; leave `purge` out to end the session")
            if not await self.services.manager.purge(self.owner, key, by=self.principal.name):
                # The session is gone, but readers of the record still use some of its bytes.
                self.set_location(f"/v1/sessions/{key}")
                self.set_status(202)
                return
        else:
            await self.services.manager.delete(self.owner, key)
        self.set_status(204)


class InterruptHandler(BaseHandler):
    """Interrupt the running cell."""

    @operation(
        "Interrupt the running cell",
        Answer(204, "Interrupted, or nothing was running."),
        errors=READS,
        query=SessionQuery,
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        """204, even if nothing runs."""
        self.check()
        self.services.manager.live(self.owner, check_session_key(key)).interrupt()
        self.set_status(204)


class RestartHandler(BaseHandler):
    """A fresh kernel for the session."""

    @operation(
        "Replace the kernel",
        Answer(200, "The session with its new kernel.", {JSON: SessionModel}),
        description="Variables are lost; files stay.",
        errors=STARTS,
        query=SessionQuery,
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        """The model with the new kernel. The variables are lost, and the record says so."""
        self.check()
        session = self.services.manager.live(self.owner, check_session_key(key))
        await session.restart()
        self.answer(session.to_wire())
