"""What ``cellgate run --json`` prints: a run of a file's cells, for programs.

Values only; ``run`` makes them. A cell's result is the gateway's own, as ``exec --json`` prints it.
"""

from __future__ import annotations

import msgspec

from cellgate.client import Result


class CellReport(msgspec.Struct, frozen=True):
    """A cell that was run: its place among all cells of the file, from 0, and what came of it.

    `may_fail`: it is marked as one whose error does not end the run.
    """

    index: int
    may_fail: bool
    result: Result

    @property
    def failed(self) -> bool:
        """Whether it counts as a failure of the run."""
        return self.result.status != "ok" and not (self.result.status == "error" and self.may_fail)


class RunReport(msgspec.Struct, frozen=True):
    """A run: `status` is ok, or that of the first cell that failed.

    `not_run`: how many cells with code were left when it ended. `notebook`: what ``--output`` has written.
    `brought_back`: the files that were written here, `not_brought_back` those that stay in the session, with
    the reasons. `notices`: what of the file is no cell.
    """

    file: str
    session: str
    status: str
    cells: list[CellReport]
    not_run: int
    notebook: str | None
    brought_back: list[str]
    not_brought_back: list[str]
    notices: list[str]
