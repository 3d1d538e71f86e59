"""POST /v1/sessions/{s}/replay: run the recorded cells again, and report what differs."""

from __future__ import annotations

import asyncio
from typing import Any

from tornado.iostream import StreamClosedError

from cellgate.errors import EnvironmentDiffers, JobFailed, NotAcceptable, stream_problem_of
from cellgate.http.message import encode
from cellgate.http.operation import HTML, JSON, NDJSON, PACKAGES, RUNS, Answer, Format, operation
from cellgate.http.streaming import KEEP_ALIVE, StreamingHandler
from cellgate.identity.principal import Permission
from cellgate.pages.html_frame import PAGE_POLICY
from cellgate.replay.cells import RecordedCell
from cellgate.replay.numbers import check_rtol
from cellgate.replay.report import NewRun
from cellgate.replay.service import ReplayOptions
from cellgate.wire.answers import ReplayedCell, ReplayReport
from cellgate.wire.models import ReplayBody
from cellgate.wire.queries import ReplayQuery
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.tasks import Supervisor


class ReplayHandler(StreamingHandler):
    """Replay a session."""

    @operation(
        "replay_session",
        "Replay a session",
        Answer(
            200,
            "The report; as NDJSON, one line for each cell once it has run, then the report.",
            {JSON: ReplayReport, NDJSON: None, HTML: None},
        ),
        description="Runs the recorded cells in a fresh kernel and compares. The session stays as it is.",
        query=ReplayQuery,
        body={JSON: ReplayBody},
        errors=(*RUNS, NotAcceptable, EnvironmentDiffers, JobFailed, *PACKAGES),
        needs=(Permission.RUN, Permission.READ),
    )
    async def post(self, key: str) -> None:
        form = self.query(ReplayQuery).format
        if form not in {"json", "html"}:
            raise NotAcceptable(f"format {form[:40]!r} is not available here; choose json or html")
        # For the page the Accept header is ignored: browsers send anything.
        streamed = form != "html" and self.accepted() is Format.NDJSON
        body = await self.body(ReplayBody)
        rtol = check_rtol(body.rtol)
        options = ReplayOptions(
            form,
            body.anyway,
            rtol,
            installs=Permission.PACKAGES in self.login.permissions,
            reach=self.login.reach,
        )
        replay = Supervisor().share(
            self.services.sessions.replayer.replay(
                self.owner, key, options, listen=self._tell if streamed else _ignore
            ),
            f"replay {key}",
            session=key,
        )
        try:
            report = await self._report(replay, keep_alive=streamed)
        except CellgateError as error:
            if not self._headers_written:
                raise
            report = encode(stream_problem_of(error))
        finally:
            replay.cancel()
            await asyncio.gather(replay, return_exceptions=True)
        if report is not None:
            self._answer(report, key, form, streamed=streamed)

    async def _report(self, replay: asyncio.Task[bytes], *, keep_alive: bool) -> bytes | None:
        """Return the report; None if the client has gone by then."""
        while not self.disconnected:
            waiting: set[asyncio.Future[Any]] = {replay, self._gone}
            pause = self.services.front.keep_alive
            await asyncio.wait(waiting, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
            if replay.done():
                return None if self.disconnected else replay.result()
            if keep_alive and not self.disconnected:
                await self._write_line(KEEP_ALIVE[Format.NDJSON])
        return None

    async def _tell(self, cell: RecordedCell, run: NewRun | None) -> None:
        status = None if run is None else run.status
        line = ReplayedCell(cell=cell.number, execution=cell.execution, status=status)
        await self._write_line(encode(line) + b"\n")

    async def _write_line(self, line: bytes) -> None:
        self.set_header_once("Content-Type", f"{Format.NDJSON}; charset=utf-8")
        self.write(line)
        try:
            await self.flush()
        except StreamClosedError:
            self.on_connection_close()

    def set_header_once(self, name: str, value: str) -> None:
        """Set a header unless the headers have been sent."""
        if not self._headers_written:
            self.set_header(name, value)

    def _answer(self, report: bytes, key: str, form: str, *, streamed: bool) -> None:
        if streamed:
            self.set_header_once("Content-Type", f"{Format.NDJSON}; charset=utf-8")
            line = report if report.startswith(b'{"type":') else b'{"type":"report",' + report.strip()[1:]
            self.finish(line.rstrip() + b"\n")
            return
        if form == "html":
            self.set_header("Content-Type", "text/html; charset=utf-8")
            self.set_header("Content-Security-Policy", f"sandbox; {PAGE_POLICY}")
            self.set_header("Content-Disposition", f'attachment; filename="{key}-replay.html"')
        else:
            self.set_header("Content-Type", "application/json; charset=utf-8")
        self.finish(report)


async def _ignore(_cell: RecordedCell, _run: NewRun | None) -> None:
    """Listener for requests that get the report only."""
