"""GET /v1/audit: the installation's audit trail, for administrators and auditors.

``v1.audit`` has the rows of one session's record instead.
"""

from __future__ import annotations

from msgspec import Raw

from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, Answer, operation
from cellgate.identity.principal import Permission
from cellgate.wire.answers import TrailEntry, TrailPage
from cellgate.wire.queries import TrailQuery


class TrailHandler(BaseHandler):
    """The entries of the trail."""

    @operation(
        "list_trail",
        "List the audit trail",
        Answer(200, "One page, oldest first.", {JSON: TrailPage}),
        description="What administrators did, who was refused, and which records were begun and purged; for"
        " administrators and auditors whose token reaches all sessions.",
        query=TrailQuery,
        errors=READS,
        needs=Permission.READ,
    )
    async def get(self) -> None:
        self.login.check_for_all("the entries of the audit trail")
        query = self.query(TrailQuery)
        rows, more = await self.services.storage.journal.reads.trail(query.after, query.limit)
        entries = [TrailEntry(hash=row.hash.hex(), entry=Raw(row.body)) for row in rows]
        self.answer(TrailPage(entries=entries, next=rows[-1].seq if more else None))
