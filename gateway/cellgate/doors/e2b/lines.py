"""What a cell does, in E2B's lines: events of the record in, lines of JSON out. Pure.

The forms of a result pass as they are in the record, undecoded: they may be large, and of any kind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Final

import msgspec

from cellgate.doors.e2b.setup import CHART, DATA
from cellgate.doors.sandbox.cell_event import ENDED, CellEvent
from cellgate.http.message import encode
from cellgate.record.rows import EventRow
from cellgate_kernels.protocol.outputs import strip_ansi

NAMES: Final = MappingProxyType(
    {
        "text/plain": "text",
        "text/html": "html",
        "text/markdown": "markdown",
        "image/svg+xml": "svg",
        "image/png": "png",
        "image/jpeg": "jpeg",
        "application/pdf": "pdf",
        "text/latex": "latex",
        "application/json": "json",
        "application/javascript": "javascript",
        DATA: "data",
        CHART: "chart",
    }
)
"""E2B's names of the forms of a result; others are in `extra`."""
IN_BASE64: Final = frozenset({"png", "jpeg", "pdf"})
LINE_FEED: Final = rb"\n"
"""As JSON has it."""
QUOTES: Final = ("'", '"')
NS: Final = 1_000_000_000


class CellLines:
    """The lines of one cell. Call it with its events in their order."""

    def __init__(self) -> None:
        self._decode = msgspec.json.Decoder(CellEvent).decode
        self._raised = False

    def __call__(self, rows: Iterable[EventRow]) -> list[bytes]:
        """Return the lines that follow."""
        return [encode(told) + b"\n" for row in rows for told in self._told(row)]

    def _told(self, row: EventRow) -> Iterable[dict[str, object]]:
        match row.type:
            case "started":
                event = self._decode(row.body)
                yield {"type": "number_of_executions", "execution_count": event.execution_count}
            case "stream":
                event = self._decode(row.body)
                if not event.widget:
                    yield {"type": event.name, "text": event.text, "timestamp": _nanoseconds(event.at)}
            case "display_data" | "execute_result":
                event = self._decode(row.body)
                if not event.widget:
                    yield _result(event.data, is_main=row.type == "execute_result")
            case "error":
                event = self._decode(row.body)
                self._raised = True
                yield _error(event.ename, event.evalue, event.traceback)
            case "finished":
                yield from self._end(self._decode(row.body))

    def _end(self, event: CellEvent) -> Iterable[dict[str, object]]:
        if event.status in ENDED:
            yield from broken_off(*event.why)
            return
        if event.status != "ok" and not self._raised:
            yield _error(*event.why, ())
        yield {"type": "end_of_execution"}


def broken_off(name: str, said: str) -> list[dict[str, object]]:
    """Return what is told of a cell whose end is not its own."""
    return [_error(name, said, ()), {"type": "unexpected_end_of_execution"}, {"type": "end_of_execution"}]


def _error(name: str, value: str, traceback: Iterable[str]) -> dict[str, object]:
    told = strip_ansi("\n".join(traceback)) or f"{name}: {value}"
    return {"type": "error", "name": name, "value": strip_ansi(value), "traceback": told}


def _result(data: Mapping[str, msgspec.Raw], *, is_main: bool) -> dict[str, object]:
    told: dict[str, object] = {"type": "result", "is_main_result": is_main}
    extra = {}
    for kind, content in data.items():
        name = NAMES.get(kind)
        if name is None:
            extra[kind] = content
        elif name in IN_BASE64:
            # IPython ends it, and sometimes each of its lines, with a line feed.
            told[name] = msgspec.Raw(bytes(content).replace(LINE_FEED, b""))
        elif name == "text":
            told[name] = _without_quotes(content)
        else:
            told[name] = content
    if extra:
        told["extra"] = extra
    return told


def _without_quotes(content: msgspec.Raw) -> object:
    """Return a string without the quotes of its repr."""
    text = msgspec.json.decode(content)
    if not isinstance(text, str):
        return content
    quoted = len(text) > 1 and text[0] in QUOTES and text[-1] == text[0]
    return text[1:-1] if quoted else text


def _nanoseconds(at: str) -> int:
    return int(datetime.fromisoformat(at).timestamp() * NS) if at else 0
