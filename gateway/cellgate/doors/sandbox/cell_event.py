"""An event of a cell in the record, as doors with sandboxes read it. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

ENDED: Final = frozenset({"died", "timeout", "cancelled"})
"""How a cell ends that could not come to its own end."""


class CellFailure(msgspec.Struct):
    """Why a cell failed, in the event of its end."""

    evalue: str = ""


class CellEvent(msgspec.Struct):
    """The fields of events of any type. The forms of a result stay undecoded: they may be large."""

    at: str = ""
    name: str = ""
    text: str = ""
    data: dict[str, msgspec.Raw] = {}
    execution_count: int | None = None
    ename: str = ""
    evalue: str = ""
    traceback: list[str] = []
    status: str = ""
    cause: str | None = None
    duration_ms: float | None = None
    error: CellFailure | None = None
    widget: str = ""

    @property
    def why(self) -> tuple[str, str]:
        """The name and the words of a failure that no event of an error has told, of the event of an end."""
        return self.cause or self.status, "" if self.error is None else self.error.evalue
