"""/v1/sessions: make, list, look at, end, interrupt and restart sessions."""

from __future__ import annotations

from cellgate.http.base import BaseHandler
from cellgate.wire.errors import Forbidden
from cellgate.wire.models import SessionBody, check_metadata, check_session_key

MAX_PAGE = 1000


class SessionsHandler(BaseHandler):
    """The collection."""

    async def get(self) -> None:
        """A page of the principal's sessions, oldest first."""
        self.check()
        models, following = await self.services.archive.models(
            self.principal.name,
            state=self.get_query_argument("state", None),
            limit=self.number("limit", 100, least=1, most=MAX_PAGE) or 100,
            after=self.get_query_argument("after", None),
        )
        self.answer({"sessions": models, "next": following})

    async def post(self) -> None:
        """Get or create: 201 when a kernel was started for it, 200 when it was there."""
        self.check()
        body = await self.body(SessionBody)
        check_metadata(body.metadata)
        session, created = await self.services.manager.get_or_create(self.principal.name, body)
        self.set_header("Location", f"/v1/sessions/{session.row.key}")
        self.answer(session.to_wire(), 201 if created else 200)


class SessionHandler(BaseHandler):
    """One session."""

    async def get(self, key: str) -> None:
        """Its model."""
        self.check()
        self.answer(await self.services.archive.model(self.principal.name, key))

    async def delete(self, key: str) -> None:
        """End it; the record stays, unless an admin wants it purged."""
        self.check()
        if self.flag("purge"):
            if not self.principal.admin:
                raise Forbidden("Only an admin may purge a record; leave `purge` out to end the session")
            if not await self.services.manager.purge(self.principal.name, key):
                # The session is gone; its bytes are still in use by readers of the record.
                self.set_header("Location", f"/v1/sessions/{key}")
                self.set_status(202)
                return
        else:
            await self.services.manager.delete(self.principal.name, key)
        self.set_status(204)


class InterruptHandler(BaseHandler):
    """Interrupt what runs."""

    async def post(self, key: str) -> None:
        """204, also when nothing runs."""
        self.check()
        self.services.manager.live(self.principal.name, check_session_key(key)).interrupt()
        self.set_status(204)


class RestartHandler(BaseHandler):
    """A fresh kernel for the session."""

    async def post(self, key: str) -> None:
        """The model with the new kernel. The variables are lost, and the record says so."""
        self.check()
        session = self.services.manager.live(self.principal.name, check_session_key(key))
        await session.restart()
        self.answer(session.to_wire())
