"""The rows of a table in an idle Python kernel: the question, and its answer as a typed value.

``questions`` asks and ``inside/rows.py`` answers. Cells can forge what it says, so an answer is limited
before it is decoded, checked as a whole, and worth nothing if any part does not fit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Final

import msgspec
from msgspec import structs

from cellgate_kernels.base.resources import MIB
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.kernel.questions import ask
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.protocol.contents import printable

ROWS: Final = "cellgate_rows_request"
"""Named in ``inside/rows.py``, too."""
MOST_BYTES: Final = MIB
"""Most bytes of a page, also as objects in memory."""
MOST_ROWS: Final = 1000
MOST_COLUMNS: Final = 200
"""Columns of a page, those of an index included."""
MOST_TEXT: Final = 200
"""Characters of a cell or a name."""

_EXACT: Final = 2**53
_Count = Annotated[int, msgspec.Meta(ge=0, le=_EXACT)]
_Number = Annotated[int, msgspec.Meta(ge=-_EXACT, le=_EXACT)]
_Text = Annotated[str, msgspec.Meta(max_length=MOST_TEXT)]


class Kind(StrEnum):
    """What the values of a column are."""

    NUMBER = "number"
    TEXT = "text"
    BOOLEAN = "boolean"
    TIME = "time"
    OTHER = "other"


class Refusal(StrEnum):
    """Why a kernel tells no rows."""

    NO_VARIABLE = "no_variable"
    NO_ROWS = "no_rows"
    NO_COLUMN = "no_column"
    BAD_FILTER = "bad_filter"
    NO_ORDER = "no_order"
    TOO_MANY = "too_many"
    TOO_LONG = "too_long"
    FAILED = "failed"


class RowsWanted(msgspec.Struct, frozen=True):
    """A page of a table's rows.

    `sort` and `column` are names of columns: the one orders the rows, the other is what `filter` looks at.
    """

    name: str
    offset: int = 0
    limit: int = 100
    first_column: int = 0
    sort: str | None = None
    descending: bool = False
    filter: str | None = None
    column: str | None = None


class RowsRefused(msgspec.Struct, frozen=True, kw_only=True):
    """No rows, and why."""

    refused: Refusal


class CutCell(msgspec.Struct, frozen=True):
    """A long text: its beginning, and how many characters it has."""

    text: _Text
    length: _Count


Cell = bool | _Number | float | _Text | CutCell | None


class KernelColumn(msgspec.Struct, frozen=True):
    """A column. `type` is the name of its library's type; `index`: whether it is one of the table's index."""

    name: _Text
    type: _Text
    kind: Kind
    index: bool


class KernelRows(msgspec.Struct, frozen=True, kw_only=True):
    """A page of a table. `type`: the name of the table's own.

    `total`: the rows that fit the filter, of `all_rows`. `first_column`: the first of `all_columns` that is
    shown, which do not count those of an index.
    """

    type: _Text
    columns: Annotated[list[KernelColumn], msgspec.Meta(max_length=MOST_COLUMNS)]
    rows: Annotated[list[list[Cell]], msgspec.Meta(max_length=MOST_ROWS)]
    offset: _Count
    total: _Count
    all_rows: _Count
    first_column: _Count
    all_columns: _Count


async def rows(
    connection: KernelConnection,
    exited: asyncio.Future[KernelExit],
    wanted: RowsWanted,
    *,
    texts: bool = True,
) -> KernelRows | RowsRefused | None:
    """Return a page of a table; None if the kernel's answer makes no sense. Raises as `questions.ask`.

    `texts`: whether text may be cut. A secret that the kernel has cut could not be found here.
    """
    question = {**structs.asdict(wanted), "texts": texts}
    content = await ask(connection, exited, ROWS, question, "cellgate_rows_reply", MOST_BYTES)
    return rows_of(content, wanted)


def rows_of(content: Mapping[str, Any], wanted: RowsWanted) -> KernelRows | RowsRefused | None:
    """Return what a reply says; None if it makes no sense as an answer to this question."""
    try:
        if "refused" in content:
            return msgspec.convert(content, RowsRefused)
        told = msgspec.convert(content, KernelRows)
    except msgspec.ValidationError:
        return None
    width = len(told.columns)
    fits = (
        all(len(row) == width for row in told.rows)
        and len(told.rows) <= wanted.limit
        and told.offset + len(told.rows) <= told.total <= told.all_rows
        and told.first_column <= told.all_columns
    )
    if not fits:
        return None
    columns = [
        structs.replace(each, name=printable(each.name, MOST_TEXT), type=printable(each.type, MOST_TEXT))
        for each in told.columns
    ]
    return structs.replace(told, type=printable(told.type, MOST_TEXT), columns=columns)
