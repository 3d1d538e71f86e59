"""Questions to a session's kernel besides cells, as the wire has them: completions, names, variables, rows.

``cellgate_kernels.kernel.questions`` and ``rows`` ask and check the answers; ``session`` decides when to ask.
"""

from __future__ import annotations

from msgspec import UNSET

from cellgate.errors import Conflict, NotFound
from cellgate.execution.checks import check_text
from cellgate.sessions.session import Session
from cellgate.wire.answers import (
    Completion,
    CutText,
    Inspection,
    TableColumn,
    TableRows,
    VariableList,
    VariableModel,
)
from cellgate.wire.models import MOST_ASKED_BYTES, CompleteBody, InspectBody
from cellgate.wire.queries import RowsQuery
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.kernel import questions
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.kernel.rows import Cell, CutCell, KernelRows, Refusal, RowsRefused, RowsWanted
from cellgate_kernels.kernel.rows import rows as rows_of_kernel
from cellgate_kernels.protocol.outputs import strip_ansi

TEXT = "text/plain"
MOST_NAME = 200
"""Characters of a variable's name."""
MOST_SOUGHT = 1000
"""Bytes of a column's name or a filter."""


async def completion(session: Session, body: CompleteBody) -> Completion:
    """Ask for completions at the cursor. Raises InvalidInput, and the errors of `SessionHolds.ask`."""
    code, cursor = _checked(body)

    async def ask(kernel: Kernel) -> questions.KernelCompletion:
        return await questions.complete(kernel.connection, kernel.exited, code, cursor)

    found = await session.holds.ask(ask)
    return Completion(
        matches=found.matches,
        start=found.start,
        end=found.end,
        types=found.types or UNSET,
        truncated=found.truncated,
    )


async def inspection(session: Session, body: InspectBody) -> Inspection:
    """Inspect the name at the cursor. Raises InvalidInput, and the errors of `SessionHolds.ask`."""
    code, cursor = _checked(body)

    async def ask(kernel: Kernel) -> questions.KernelInspection:
        return await questions.inspect(kernel.connection, kernel.exited, code, cursor, body.detail)

    data = (await session.holds.ask(ask)).data
    return Inspection(found=bool(data), text=strip_ansi(data.get(TEXT, "")), data=data)


async def variables(session: Session) -> VariableList:
    """Return the kernel's variables. Raises Conflict if it can't list them, and as `SessionHolds.ask`."""

    async def ask(kernel: Kernel) -> questions.KernelVariables:
        _check_tells(kernel)
        texts = session.slot.secrets is None
        return await questions.variables(kernel.connection, kernel.exited, texts=texts)

    found = await session.holds.ask(ask)
    return VariableList(
        variables=[
            VariableModel(
                name=each.name,
                type=each.type,
                summary=each.summary,
                size=UNSET if each.size is None else each.size,
                rows=UNSET if each.rows is None else each.rows,
            )
            for each in found.variables
        ],
        truncated=found.truncated,
    )


def _check_tells(kernel: Kernel) -> None:
    """Check that the kernel is one that tells of variables. Raises Conflict."""
    if not kernel.facts.tells_variables:
        raise Conflict(
            f"Kernels of {kernel.profile.kernelspec!r} tell of no variables; those of Python do that were"
            " started by this version"
        )


async def rows(session: Session, name: str, query: RowsQuery) -> TableRows:
    """Return a page of the rows of a variable.

    Raises NotFound and Conflict if there is no such variable or it is no table, InvalidInput, and the errors
    of `SessionHolds.ask`.
    """
    if not name.isidentifier() or len(name) > MOST_NAME:
        raise InvalidInput("The name of a variable is one that Python can have")
    for each in ("sort", "filter", "column"):
        check_text(getattr(query, each) or "", each, MOST_SOUGHT)
    wanted = RowsWanted(
        name=name,
        offset=query.offset,
        limit=query.limit,
        first_column=query.first_column,
        sort=query.sort,
        descending=query.descending,
        filter=query.filter,
        column=query.column,
    )

    async def ask(kernel: Kernel) -> KernelRows | RowsRefused | None:
        _check_tells(kernel)
        texts = session.slot.secrets is None
        return await rows_of_kernel(kernel.connection, kernel.exited, wanted, texts=texts)

    found = await session.holds.ask(ask)
    if found is None:
        raise Conflict(
            "The kernel gave no answer that makes sense: it was started by an older version, or its cells"
            " have changed what answers. Restart the session to read rows"
        )
    if isinstance(found, RowsRefused):
        raise _refusal(found.refused, wanted)
    return TableRows(
        name=name,
        type=found.type,
        columns=[
            TableColumn(name=each.name, type=each.type, kind=each.kind.value, index=each.index)
            for each in found.columns
        ],
        rows=[[_cell(each) for each in row] for row in found.rows],
        offset=found.offset,
        total=found.total,
        all_rows=found.all_rows,
        first_column=found.first_column,
        all_columns=found.all_columns,
    )


def _cell(cell: Cell) -> bool | int | float | str | CutText | None:
    return CutText(text=cell.text, length=cell.length) if isinstance(cell, CutCell) else cell


def _refusal(refused: Refusal, wanted: RowsWanted) -> CellgateError:
    """Return the error that tells why there are no rows."""
    match refused:
        case Refusal.NO_VARIABLE:
            return NotFound(f"The session has no variable {wanted.name!r}")
        case Refusal.NO_ROWS:
            return Conflict(
                f"{wanted.name!r} has no rows to read: those of pandas, Polars, PyArrow and NumPy have some"
            )
        case Refusal.NO_COLUMN:
            named = " or ".join(repr(each) for each in (wanted.sort, wanted.column) if each is not None)
            return InvalidInput(f"{wanted.name!r} has no column {named}")
        case Refusal.BAD_FILTER:
            return InvalidInput(
                f"filter: {wanted.filter!r} can't be compared with values of {wanted.column!r}"
            )
        case Refusal.NO_ORDER:
            return Conflict(f"The values of {wanted.sort!r} have no order; sort by another column")
        case Refusal.TOO_MANY:
            return Conflict(
                f"{wanted.name!r} has too many rows to be sorted or filtered here; do it in a cell"
            )
        case Refusal.TOO_LONG:
            return Conflict(
                "The filter takes too long here; name the column that it is about, or filter in a cell"
            )
        case Refusal.FAILED:
            return Conflict(f"{wanted.name!r} can't be read: it raised an error when it was asked for rows")


def _checked(body: CompleteBody | InspectBody) -> tuple[str, int]:
    """Return the code and the position of the cursor in it. Raises InvalidInput."""
    code = check_text(body.code, "code", MOST_ASKED_BYTES)
    cursor = len(code) if body.cursor is None else body.cursor
    if cursor > len(code):
        raise InvalidInput(f"cursor must be at most {len(code)}, the length of the code in code points")
    return code, cursor
