"""/v1/sessions: create, list, get, end, interrupt and restart sessions."""

from __future__ import annotations

from msgspec import structs

from cellgate.errors import CannotShare, Conflict, FileHeld, Forbidden, NetworkNotAllowed, QuotaExceeded
from cellgate.execution.checks import (
    IDEMPOTENCY_KEY,
    check_idempotency_key,
    check_metadata,
    check_session_key,
)
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, NDJSON, READS, STARTS, WRITES, Answer, Format, operation
from cellgate.http.streaming import StreamingHandler
from cellgate.identity.principal import Permission
from cellgate.sessions.changing import change_session
from cellgate.sessions.model import within
from cellgate.wire.answers import SessionModel, SessionPage, SessionTree
from cellgate.wire.base import Query
from cellgate.wire.models import BranchBody, SessionBody, SessionChangeBody
from cellgate.wire.queries import ModelQuery, PurgeQuery, SessionsQuery
from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace
from cellgate_kernels.base.errors import CannotBranch, KernelBusy

EVERYBODY = "*"
"""Stands for the owners of all sessions, in lists."""
_MODELS = {JSON: SessionModel, NDJSON: SessionModel}
_AT = {"Location": "The session's path."}


class SessionsHandler(StreamingHandler):
    """The collection."""

    @operation(
        "list_sessions",
        "List sessions",
        Answer(200, "One page, oldest first unless `newest` is set.", {JSON: SessionPage}),
        query=SessionsQuery,
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self) -> None:
        query = self.query(SessionsQuery)
        models, following = await self.services.sessions.archive.models(
            None if self.owner == EVERYBODY else self.owner,
            self.login.reach,
            query,
            is_gone=lambda: self.disconnected,
        )
        told = [within(self.login.reach, model) for model in models]
        self.answer(SessionPage(sessions=told, next=following))

    @operation(
        "create_session",
        "Get or create a session",
        Answer(200, "The session exists already.", _MODELS, _AT),
        Answer(201, "The session was created, with a kernel.", _MODELS, _AT),
        description=(
            "As NDJSON, lines of type `keepalive` tell its position while it waits in line for a kernel; the"
            " status is 200 then, and the last line is the session."
        ),
        headers={
            "Idempotency-Key": (
                "Of a request that names no session: a repeat with the same key gets the first one's session."
            )
        },
        body={JSON: SessionBody},
        errors=(*STARTS, Conflict, CannotShare, NetworkNotAllowed),
        needs=Permission.RUN,
        query=Query,
    )
    async def post(self) -> None:
        body = await self.body(SessionBody)
        check_metadata(body.metadata)
        reach = self.login.reach
        asked = check_idempotency_key(self.request.headers.get(IDEMPOTENCY_KEY))
        if body.session is None and asked is not None:
            body = structs.replace(body, session=reach.key_of(asked))
        if reach.prefix:
            key = reach.new_key(self.node) if body.session is None else body.session
            body = structs.replace(body, session=reach.check(key))
            if body.workspace_of is not None:
                reach.check(body.workspace_of)
        # Any other Accept is answered with JSON, as by every resource with a single form.
        lines = Format.NDJSON in self.request.headers.get("Accept", "")
        form = Format.NDJSON if lines else Format.JSON
        async with self.waiting(form) as moved:
            session, created = await self.services.sessions.manager.get_or_create(
                self.owner, body, moved=moved, exact=True
            )
            await session.log.commit()
        self.set_location(f"/v1/sessions/{session.row.key}")
        self.answer_last(within(reach, session.to_wire()), form, 201 if created else 200)


class SessionHandler(BaseHandler):
    """One session."""

    @operation(
        "get_session",
        "Get a session",
        Answer(200, "The session.", {JSON: SessionModel}),
        errors=READS,
        query=ModelQuery,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        usage = self.query(ModelQuery).usage
        model = await self.services.sessions.archive.model(self.owner, key, usage=usage)
        self.answer(within(self.login.reach, model))

    @operation(
        "end_session",
        "End a session",
        Answer(204, "The session has ended; with `purge`, its record is gone."),
        Answer(202, "The session is purged; some of its bytes are still in use by readers.", headers=_AT),
        description="The kernel and the files are removed. The record stays, unless `purge` is set.",
        query=PurgeQuery,
        errors=WRITES,
        needs=Permission.RUN,
    )
    async def delete(self, key: str) -> None:
        if self.query(PurgeQuery).purge:
            if not self.principal.admin:
                raise Forbidden("Only an admin may purge a record; leave `purge` out to end the session")
            if not await self.services.sessions.manager.purger.purge(self.owner, key, by=self.principal.name):
                # The session is gone, but readers of the record still use some of its bytes.
                self.set_location(f"/v1/sessions/{key}")
                self.set_status(202)
                return
        else:
            await self.services.sessions.manager.delete(self.owner, key)
        self.set_status(204)

    @operation(
        "change_session",
        "Change a session",
        Answer(200, "The session.", {JSON: SessionModel}),
        description="Its title, its metadata, and the times of its limits, while it is live.",
        body={JSON: SessionChangeBody},
        errors=(*WRITES, Conflict),
        needs=Permission.RUN,
    )
    async def patch(self, key: str) -> None:
        sessions = self.services.sessions
        session = sessions.manager.live(self.owner, check_session_key(key))
        change_session(session, sessions.terms, await self.body(SessionChangeBody))
        await session.log.commit()
        self.answer(within(self.login.reach, session.to_wire()))


class InterruptHandler(BaseHandler):
    """Interrupt the running cell."""

    @operation(
        "interrupt_session",
        "Interrupt the running cell",
        Answer(204, "Interrupted, or nothing was running."),
        errors=READS,
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        session = self.services.sessions.manager.live(self.owner, check_session_key(key))
        session.interrupt(self.principal.name)
        self.set_status(204)


class BranchHandler(BaseHandler):
    """A second session that goes on with a copy of the kernel."""

    @operation(
        "branch_session",
        "Branch a session",
        Answer(201, "The new session.", {JSON: SessionModel}, {"Location": "The new session's path."}),
        description=(
            "The new session has every variable of this one at this moment. Only idle sessions of Python"
            " kernels in a sandbox or container can be branched."
        ),
        body={JSON: BranchBody},
        errors=(*STARTS, Conflict, FileHeld, KernelBusy, CannotBranch, QuotaExceeded),
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        body = await self.body(BranchBody)
        branch = self.login.reach.branch_key(body.session, self.node)
        spec = BranchSpec(BranchWorkspace(body.workspace), body.seed, body.anyway)
        manager = self.services.sessions.manager
        session = await manager.branch(self.owner, check_session_key(key), branch, spec)
        # Its first row and the one in its parent's record are in one commit.
        await session.log.commit()
        self.set_location(f"/v1/sessions/{session.row.key}")
        self.answer(within(self.login.reach, session.to_wire()), 201)


class TreeHandler(BaseHandler):
    """Where a session comes from, and its branches."""

    @operation(
        "get_tree",
        "Get a session's ancestors and branches",
        Answer(200, "The tree.", {JSON: SessionTree}),
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        self.answer(await self.services.sessions.archive.tree(self.owner, key, self.login.reach))


class RestartHandler(BaseHandler):
    """A fresh kernel for the session."""

    @operation(
        "restart_session",
        "Replace the kernel",
        Answer(200, "The session with its new kernel.", {JSON: SessionModel}),
        description="Variables are lost; files stay.",
        errors=STARTS,
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        session = self.services.sessions.manager.live(self.owner, check_session_key(key))
        await session.restart()
        await session.log.commit()
        self.answer(within(self.login.reach, session.to_wire()))
