"""The script of ``load``: which cells are run, in which order, and what their outcomes must be. Pure.

All is drawn from a seed, so two runs send the same cells in the same order. Each cell prints a mark of its
own, so that one cell's outcome can't be taken for another's, and short cells count in their kernel, so that a
lost or foreign kernel is noticed.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Any

TIMEOUT = 2.0
PNG = b"\x89PNG\r\n\x1a\n"


class Kind(StrEnum):
    """Kinds of cells."""

    SHORT = "short"
    PLOT = "plot"
    LONG = "long"
    ERROR = "error"
    TIMEOUT = "timeout"


SHARES = {Kind.SHORT: 60, Kind.PLOT: 20, Kind.LONG: 10, Kind.ERROR: 5, Kind.TIMEOUT: 5}
"""Per cent of all cells."""

CODE = {
    Kind.SHORT: """
count = globals().get("count", 0) + 1
print("MARK", count)
2 * count
""",
    Kind.PLOT: """
import matplotlib.pyplot as plt
figure, axes = plt.subplots(figsize=(4, 3))
axes.plot([(7 * n) % 11 for n in range(100)])
axes.set_title("MARK")
plt.show()
print("MARK")
""",
    Kind.LONG: """
import time
time.sleep(SECONDS)
total = sum(n * n for n in range(2_000_000))
print("MARK")
""",
    Kind.ERROR: """
print("MARK")
raise ValueError("MARK")
""",
    Kind.TIMEOUT: """
import time
print("MARK", flush=True)
while True:
    time.sleep(0.05)
""",
}


@dataclass(frozen=True, slots=True)
class Cell:
    """One cell. `timeout` None: that of the session."""

    kind: Kind
    mark: str
    code: str
    timeout: float | None

    @property
    def body(self) -> dict[str, Any]:
        """The request's body."""
        body: dict[str, Any] = {"code": self.code}
        return body if self.timeout is None else {**body, "timeout": self.timeout}


@dataclass(slots=True)
class Outcome:
    """What a client learned of one cell, by any interface; `data`: of results and displays, in order."""

    execution: str = ""
    status: str = ""
    cause: str | None = None
    replaced: bool = False
    stdout: str = ""
    stderr: str = ""
    data: list[Mapping[str, Any]] = field(default_factory=list)
    error: Mapping[str, Any] | None = None

    def add_event(self, event: Mapping[str, Any]) -> bool:
        """Take one event of the execution; returns whether it was the last one."""
        self.execution = event["execution"]
        match event["type"]:
            case "stream" if event["name"] == "stdout":
                self.stdout += event["text"]
            case "stream":
                self.stderr += event["text"]
            case "display_data" | "execute_result":
                self.data.append(event["data"])
            case "finished":
                self._end(event)
                return True
        return False

    @classmethod
    def of_result(cls, result: Mapping[str, Any]) -> Outcome:
        """The outcome that a result in one piece tells."""
        outcome = cls(result["execution"], stdout=result["stdout"], stderr=result["stderr"])
        outcome.data = [output["data"] for output in result["outputs"] if "data" in output]
        outcome._end(result)
        return outcome

    def _end(self, told: Mapping[str, Any]) -> None:
        self.status = told["status"]
        self.cause = told["cause"]
        self.error = told["error"]
        self.replaced = told["kernel"]["replaced"]


def cells(seed: str) -> Iterator[Cell]:
    """The cells of one client, without end."""
    random = Random(seed)
    kinds = list(SHARES)
    number = 0
    while True:
        kind = random.choices(kinds, list(SHARES.values()))[0]
        mark = f"{seed}.{number}"
        code = CODE[kind].replace("MARK", mark).replace("SECONDS", f"{random.uniform(1, 3):.2f}")
        yield Cell(kind, mark, code, TIMEOUT if kind is Kind.TIMEOUT else None)
        number += 1


class Kernel:
    """What one session's kernel must know: how many short cells it has run."""

    def __init__(self) -> None:
        self._count = 0

    def problems(self, cell: Cell, outcome: Outcome) -> list[str]:
        """What is wrong with the outcome; nothing if it is what was asked for."""
        if outcome.replaced:
            self._count = 0
        if cell.kind is Kind.SHORT:
            self._count += 1
        status = {Kind.ERROR: "error", Kind.TIMEOUT: "timeout"}.get(cell.kind, "ok")
        cause = "cell_timeout" if cell.kind is Kind.TIMEOUT else None
        printed = f"{cell.mark} {self._count}\n" if cell.kind is Kind.SHORT else f"{cell.mark}\n"
        checks: Sequence[tuple[str, object, object]] = (
            ("status", outcome.status, status),
            ("cause", outcome.cause, cause),
            ("stdout", outcome.stdout, printed),
            ("stderr", outcome.stderr, ""),
            ("error", _error_of(outcome), cell.mark if cell.kind is Kind.ERROR else None),
            ("data", *_data(cell, outcome, self._count)),
        )
        return [
            f"{cell.kind} {cell.mark}: {what} is {found!r}, not {right!r}; {outcome.error}"
            for what, found, right in checks
            if found != right
        ]


def _error_of(outcome: Outcome) -> object:
    """The message of a ValueError; the interrupt at a deadline is none of the cell's own."""
    error = outcome.error
    if error is None or outcome.status == "timeout":
        return None
    return error["evalue"] if error["ename"] == "ValueError" else error


def _data(cell: Cell, outcome: Outcome, count: int) -> tuple[object, object]:
    if cell.kind is Kind.PLOT:
        return [_is_picture(each) for each in outcome.data], [True]
    shown = [each.get("text/plain") for each in outcome.data]
    return shown, [str(2 * count)] if cell.kind is Kind.SHORT else []


def _is_picture(data: Mapping[str, Any]) -> bool:
    try:
        return base64.b64decode(data.get("image/png", "")).startswith(PNG)
    except binascii.Error:
        return False
