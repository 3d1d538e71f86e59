"""/v1/sessions/{s}/complete, /inspect, /variables and below it: what a session's idle kernel knows.

No cell is run for it. ``sessions.introspection`` asks the kernel; these handlers only pass requests on.
"""

from __future__ import annotations

from cellgate.errors import Conflict, ShuttingDown
from cellgate.execution.checks import check_session_key
from cellgate.http.base import BaseHandler
from cellgate.http.operation import JSON, READS, Answer, operation
from cellgate.identity.principal import Permission
from cellgate.sessions.introspection import completion, inspection, rows, variables
from cellgate.sessions.session import Session
from cellgate.wire.answers import Completion, Inspection, TableRows, VariableList
from cellgate.wire.models import CompleteBody, InspectBody
from cellgate.wire.queries import RowsQuery
from cellgate_kernels.base.errors import KernelBusy, KernelDied

ASKS = (*READS, ShuttingDown, KernelBusy, KernelDied)
"""Errors of asking a kernel."""


class _SessionHandler(BaseHandler):
    def _session(self, key: str) -> Session:
        return self.services.sessions.manager.live(self.owner, check_session_key(key))


class CompleteHandler(_SessionHandler):
    """Completions of code."""

    @operation(
        "complete_code",
        "Complete code",
        Answer(200, "What may stand at the cursor.", {JSON: Completion}),
        description=(
            "Asks the session's kernel, which must be idle: 409 `busy` while a cell runs or waits. Nothing is"
            " recorded, and no cell is counted."
        ),
        body={JSON: CompleteBody},
        errors=ASKS,
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        body = await self.body(CompleteBody)
        found = await completion(self._session(key), body)
        await self.answer_large(found, sum(map(len, found.matches)))


class InspectHandler(_SessionHandler):
    """What is known of a name."""

    @operation(
        "inspect_code",
        "Look up a name in code",
        Answer(200, "What the kernel knows of the name at the cursor.", {JSON: Inspection}),
        description=(
            "Asks the session's kernel, which must be idle: 409 `busy` while a cell runs or waits. Nothing is"
            " recorded, and no cell is counted."
        ),
        body={JSON: InspectBody},
        errors=ASKS,
        needs=Permission.RUN,
    )
    async def post(self, key: str) -> None:
        body = await self.body(InspectBody)
        found = await inspection(self._session(key), body)
        await self.answer_large(found, len(found.text) + sum(map(len, found.data.values())))


class VariablesHandler(_SessionHandler):
    """A kernel's variables."""

    @operation(
        "list_variables",
        "List a session's variables",
        Answer(200, "Names, types and short summaries.", {JSON: VariableList}),
        description=(
            "Asks the session's kernel, which must be one of Python and idle: 409 `busy` while a cell runs or"
            " waits. Nothing is recorded, and no cell is counted. It counts as a use of the session."
        ),
        errors=(*ASKS, Conflict),
        needs=Permission.RUN,
    )
    async def get(self, key: str) -> None:
        found = await variables(self._session(key))
        sizes = (len(each.name) + len(each.type) + len(each.summary) for each in found.variables)
        await self.answer_large(found, sum(sizes))


class RowsHandler(_SessionHandler):
    """The rows of a table among the variables."""

    @operation(
        "list_rows",
        "List a table's rows",
        Answer(200, "A page of rows, with their columns.", {JSON: TableRows}),
        description=(
            "Asks the session's kernel, which must be one of Python and idle: 409 `busy` while a cell runs or"
            " waits. Tables are data frames, series and arrays of pandas, Polars, PyArrow and NumPy: 409"
            " `conflict` for another variable. The page begins at `offset`; the next one at `offset` and the"
            " number of rows. Nothing is recorded, and no cell is counted. It counts as a use of the session."
        ),
        query=RowsQuery,
        errors=(*ASKS, Conflict),
        needs=Permission.RUN,
    )
    async def get(self, key: str, name: str) -> None:
        found = await rows(self._session(key), name, self.query(RowsQuery))
        # A cell has at most 200 characters, and most have few.
        await self.answer_large(found, 10 * len(found.rows) * len(found.columns))
