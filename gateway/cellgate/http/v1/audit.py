"""GET /v1/sessions/{s}/audit and /audit/verify: the hash chain of a session's rows, and its verification."""

from __future__ import annotations

from cellgate.http.operation import JSON, NDJSON, Answer, operation
from cellgate.http.v1.download import EXPORTS, IF_NONE_MATCH, NOT_MODIFIED, DownloadHandler
from cellgate.identity.principal import Permission
from cellgate.wire.answers import ChainCheck


class AuditHandler(DownloadHandler):
    """The rows."""

    @operation(
        "get_audit",
        "Download the rows of a session's record",
        Answer(
            200,
            "One JSON object per line, `hash` and `row`; `row` holds exactly the bytes that were hashed.",
            {NDJSON: None},
        ),
        NOT_MODIFIED,
        headers=IF_NONE_MATCH,
        errors=EXPORTS,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        await self.while_there(self._audit(key))

    async def _audit(self, key: str) -> None:
        moment = await self.services.sessions.archive.moment(self.owner, key)
        if not self.known(moment.head.hex()):
            parts = self.services.sessions.archive.exports.audit(moment)
            await self.send(parts, kind="application/x-ndjson", name=f"{key}.audit.ndjson")


class AuditVerifyHandler(DownloadHandler):
    """The check of the rows."""

    @operation(
        "verify_audit",
        "Check the hash chain of a session's record",
        Answer(200, "The result of the check.", {JSON: ChainCheck}),
        errors=EXPORTS,
        needs=Permission.READ,
    )
    async def get(self, key: str) -> None:
        await self.while_there(self._verify(key))

    async def _verify(self, key: str) -> None:
        archive = self.services.sessions.archive
        moment = await archive.moment(self.owner, key)
        if self.is_head:
            await self.send_head(kind="application/json; charset=utf-8")
            return
        self.answer(await archive.exports.verify(moment))
