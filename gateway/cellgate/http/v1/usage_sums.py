"""GET /v1/usage/sums and /v1/usage/export: what cells used together, over a time, from the record.

``v1.usage`` has what everybody uses of their quotas now.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator
from datetime import UTC, datetime

from cellgate.errors import QueueFull, TooLarge
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, Answer, operation
from cellgate.http.v1.download import EXPORTS, DownloadHandler
from cellgate.http.v1.sessions import EVERYBODY
from cellgate.identity.principal import Permission
from cellgate.record.events import now
from cellgate.record.export.usage_file import MOST_SUMS, SummedTime
from cellgate.record.store.summing import PlacedSum, SumBy, SumQuestion
from cellgate.wire.queries import CellsQuery, UsageExportQuery, UsageSumsQuery
from cellgate.wire.usage import UsageSums
from cellgate_kernels.base.errors import InvalidInput

CSV = "text/csv"
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d(T\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d))?", re.ASCII)
_SESSION_ID = re.compile(r"\d{1,18}", re.ASCII)


def moment_of(text: str, name: str) -> str:
    """Return a day's first moment, or a time, in the form of the record's. Raises InvalidInput."""
    if _MOMENT.fullmatch(text):
        try:
            found = datetime.fromisoformat(text)
            moment = found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)
            return moment.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
        except (ValueError, OverflowError):
            pass
    raise InvalidInput(
        f"{name} must be a day as 2026-11-30, which begins at midnight in UTC, or a time as"
        " 2026-11-30T12:00:00Z; in a URL, + is written %2B"
    )


def times_of(query: CellsQuery, present: str) -> tuple[str, str]:
    """Return the times from which and before which cells count. Raises InvalidInput."""
    begin = f"{present[:8]}01" if query.begin is None else query.begin
    since, until = moment_of(begin, "from"), moment_of(present if query.end is None else query.end, "to")
    if since >= until:
        raise InvalidInput(f"from ({since}) must be before to ({until})")
    return since, until


class _SumsHandler(BaseHandler):
    """Asks the record for sums of the cells that a login may read."""

    async def sums(
        self, query: CellsQuery, times: tuple[str, str], limit: int, after: str = ""
    ) -> list[PlacedSum]:
        """Return up to `limit` sums of the cells between these times."""
        by = SumBy(query.by)
        if after and by is SumBy.SESSION and not _SESSION_ID.fullmatch(after):
            raise InvalidInput("after must be what the last page's `next` says")
        reach = self.login.reach
        journal = self.services.storage.journal
        # What is being written has ended before this was asked.
        await journal.commit()
        return await journal.reads.sums(
            SumQuestion(
                by,
                *times,
                principal=None if self.owner == EVERYBODY else self.owner,
                prefix=reach.prefix,
                exact=reach.exact,
                limit=limit,
                after=after,
            )
        )


class UsageSumsHandler(_SumsHandler):
    """The sums, in pages."""

    @operation(
        "list_usage_sums",
        "Sum what cells used",
        Answer(200, "One page, in order of what the sums are of.", {JSON: UsageSums}),
        description="Of the cells in the record that ended in a time, by principal, session or day. What was"
        " purged is not counted.",
        query=UsageSumsQuery,
        errors=(*READS, QueueFull),
        needs=Permission.READ,
    )
    async def get(self) -> None:
        query = self.query(UsageSumsQuery)
        times = times_of(query, now())
        found = await self.sums(query, times, query.limit + 1, query.after)
        page = found[: query.limit]
        following = page[-1].place if len(found) > len(page) else None
        begin, end = times
        told = [each.sum for each in page]
        self.answer(UsageSums(begin=begin, end=end, by=query.by, sums=told, next=following))


class UsageExportHandler(DownloadHandler, _SumsHandler):
    """All sums as a file."""

    @operation(
        "get_usage_export",
        "Download what cells used",
        Answer(
            200,
            "A table as CSV (RFC 4180), or a zip file with it, its hash and the gateway's signature.",
            {CSV: None, "application/zip": None},
            {"Content-Disposition": "The file name."},
        ),
        description=f"As `list_usage_sums`, all in one file, of at most {MOST_SUMS:,} sums.",
        query=UsageExportQuery,
        errors=(*EXPORTS, TooLarge),
        needs=Permission.READ,
    )
    async def get(self) -> None:
        await self.while_there(self._export())

    async def _export(self) -> None:
        query = self.query(UsageExportQuery)
        begin, end = times_of(query, now())
        kind = f"{CSV}; charset=utf-8" if query.format == "csv" else "application/zip"
        name = f"usage-by-{query.by}-{begin[:10]}-{end[:10]}.{query.format}"
        if self.is_head:
            await self.send_head(kind=kind, name=name)
            return
        found = await self.sums(query, (begin, end), MOST_SUMS + 1)
        if len(found) > MOST_SUMS:
            raise TooLarge(f"These are more than {MOST_SUMS:,} sums: ask for a shorter time, or by=day")
        told = SummedTime(begin, end, query.by, self.owner, now())
        make = self.services.sessions.archive.exports.usage
        made = await self.services.storage.lanes.texts.run(
            make, [each.sum for each in found], told, query.format
        )
        self.set_header("Content-Length", len(made))
        await self.send(_in_one(made), kind=kind, name=name)


async def _in_one(made: bytes) -> AsyncGenerator[bytes, None]:
    yield made
