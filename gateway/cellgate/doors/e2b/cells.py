"""A sandbox's cells: runs code, one line of JSON for each thing that it does.

A cell that names no context is run in the default one of its language, so variables stay between calls. Where
such a context can't be, or can't give the cell variables of its own, the cell is a program of its language.
"""

from __future__ import annotations

from contextlib import aclosing

from cellgate.doors.base import Asked
from cellgate.doors.e2b.base import SandboxGone, SandboxHandler
from cellgate.doors.e2b.contexts import ContextMaker
from cellgate.doors.e2b.lines import CellLines, broken_off
from cellgate.doors.e2b.setup import SETUP
from cellgate.doors.sandbox.contexts import CodeContext, default_of, find_context
from cellgate.errors import ShuttingDown
from cellgate.execution.run import ExecutionRun
from cellgate.http.message import encode
from cellgate.http.operation import Format, requires
from cellgate.http.services import Services
from cellgate.identity.principal import Permission
from cellgate.record.rows import EventRow
from cellgate.wire.models import ExecuteBody
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.specs.languages import Language, parse_language


class CellBody(Asked, frozen=True):
    """A cell to run."""

    code: str
    context_id: str | None = None
    language: str | None = None
    env_vars: dict[str, str] | None = None


class CellHandler(ContextMaker):
    """Run a cell."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._lines = CellLines()

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Run a cell and stream its lines. It is interrupted when its client leaves."""
        self.session()
        body = await self.body(CellBody)
        if body.context_id is not None and body.language is not None:
            raise InvalidInput("Only one of context_id and language may be given")
        context = await self._context(body)
        session = context.session
        run, asked = self._submit(context, body)
        self.interrupt_when_gone(session, run, asked)
        async with aclosing(session.log.follow_execution(run.id, run.record.first_seq - 1)) as batches:
            await self.stream(batches, Format.NDJSON)

    async def _context(self, body: CellBody) -> CodeContext:
        sandbox = self.session()
        if body.context_id is not None:
            return find_context(self.services, sandbox, body.context_id)
        language = parse_language(body.language or Language.PYTHON)
        # A kernel of another language takes no variables of single cells.
        if body.env_vars:
            return default_of(sandbox)
        return await self.context_of(language)

    def _submit(self, context: CodeContext, body: CellBody) -> tuple[ExecutionRun, ExecuteBody]:
        try:
            return self.submit(context, body.code, body.language, env=body.env_vars, setup=SETUP)
        except ShuttingDown as error:
            if not context.session.ending:
                raise
            raise SandboxGone("The sandbox was not found") from error

    async def encoded(self, rows: list[EventRow], form: Format) -> list[bytes]:
        assert form is Format.NDJSON
        return await self.encoded_by(self._lines, rows)

    def write_problem(self, error: CellgateError, form: Format) -> None:
        assert form is Format.NDJSON
        for told in broken_off(error.reason, error.message):
            self.write(encode(told) + b"\n")


class E2bHealthHandler(SandboxHandler):
    """Whether a sandbox runs."""

    @requires(Permission.READ)
    async def get(self) -> None:
        """Answer without a body if the sandbox runs."""
        self.session()
        self.set_status(204)
