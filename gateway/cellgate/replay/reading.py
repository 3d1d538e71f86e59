"""The outputs and the source of a notebook's cell as the comparison needs them, whoever wrote the notebook.

Pure. Old writers and converters leave fields out, write a text as a list of its lines or as a number, and
null for an empty one: all of that is read as what it means. What means nothing is refused for its cell alone,
so that the others are still compared. ``cells`` reads the rest of a cell.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Output = Mapping[str, Any]

_LONGEST_NAME = 80


class Unreadable(Exception):
    """Part of a cell has no meaning as nbformat; `reason` says which, for people."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_outputs(told: object) -> list[Output]:
    """Return the outputs with all fields that the comparison needs. Raises Unreadable."""
    if told is None:
        return []
    if not isinstance(told, list):
        raise Unreadable("they are no list")
    return [_output(number, output) for number, output in enumerate(told, 1)]


def read_text(told: object) -> str:
    """Return a text that may be a list of its lines, a number, or null. Raises Unreadable for an object."""
    if isinstance(told, str):
        return told
    if isinstance(told, list):
        return "".join(map(_scalar, told))
    return _scalar(told)


def _scalar(told: object) -> str:
    if isinstance(told, str):
        return told
    if told is None:
        return ""
    if isinstance(told, (int, float)):
        try:
            return str(told)
        except ValueError:  # Python writes no integer of thousands of digits
            raise Unreadable("a number stands where a text belongs, and is too long for one") from None
    raise Unreadable("there is a list or an object where a text belongs")


def _output(number: int, output: object) -> Output:
    if not isinstance(output, dict):
        raise Unreadable(f"output {number} is no object")
    kind = output.get("output_type")
    try:
        match kind:
            case "stream":
                return {
                    "output_type": kind,
                    "name": "stderr" if output.get("name") == "stderr" else "stdout",
                    "text": read_text(output.get("text")),
                }
            case "error":
                lines = output.get("traceback")
                traceback = [*map(_scalar, lines)] if isinstance(lines, list) else [read_text(lines)]
                return {
                    "output_type": kind,
                    "ename": read_text(output.get("ename")),
                    "evalue": read_text(output.get("evalue")),
                    "traceback": traceback if any(traceback) else [],
                }
            case "display_data" | "execute_result":
                return {"output_type": kind, "data": _data(output.get("data"))}
    except Unreadable as error:
        raise Unreadable(f"output {number}: {error.reason}") from None
    shown = kind[:_LONGEST_NAME] if isinstance(kind, str) else "none"
    raise Unreadable(f"output {number} is of a kind that nbformat 4 does not have ({shown})")


def _data(told: object) -> Mapping[str, Any]:
    if told is None:
        return {}
    if not isinstance(told, dict):
        raise Unreadable("its data are no object")
    return told
