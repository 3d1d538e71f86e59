"""Output events folded into nbformat outputs, read as text, and kept under caps.

Pure: events in, values out. The rules are Jupyter's own (nbformat 4.5, JupyterLab's output area, nbclient):
adjacent text of one stream is one output, a carriage return rewrites its line, ``clear_output(wait=True)``
takes effect at the next output, a display id names outputs that change later.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

import msgspec

from cellgate_kernels.base.options import BYTES, option
from cellgate_kernels.base.resources import KIB, MIB
from cellgate_kernels.codec.hypertext import HtmlReader
from cellgate_kernels.codec.telling import tell

COMM_EVENTS = frozenset(("comm_open", "comm_msg", "comm_close"))
LEAST_COST = 128
"""The fewest bytes that an event counts for, so that a flood of empty events is limited too."""

_ANSI = (
    r"\x1b\[[0-?]*+[ -/]*+[@-~]"  # colours, cursor movement, erasure
    r"|\x1b[]PX^_][^\x07\x1b]*+(?:\x07|\x1b\\)"  # titles, hyperlinks, graphics
    r"|\x1b[ -/]++[0-~]"  # character sets
    r"|\x1b[0-Z\\^-~]"  # the rest: two characters
)
_ANSI_CODE = re.compile(f"{_ANSI}|\x1b")
_PIECE = re.compile(f"{_ANSI}|\x1b|\b+|[^\x1b\b]+")
_ERASED = re.compile("[^\b\r\n]\b")
_LONG = 64 * KIB
_MANY_PAIRS = 256
"""The characters of a line from which the fast path for backspaces saves more time than it takes."""
_MAKE_OUTPUT = frozenset(("stream", "display_data", "execute_result", "error"))


class KernelEvent(msgspec.Struct, frozen=True):
    """One event of an execution: a `type` of the event vocabulary and the fields of that type."""

    type: str
    content: dict[str, Any]


def strip_ansi(text: str) -> str:
    """Return `text` without terminal escape sequences."""
    if "\x1b" not in text:
        return text
    if len(text) < _LONG:
        return _ANSI_CODE.sub("", text)
    # One by one: `sub` would let no other thread run until the whole text is done.
    kept = []
    at = 0
    for found in _ANSI_CODE.finditer(text):
        if found.start() > at:
            kept.append(text[at : found.start()])
        at = found.end()
    return "".join((*kept, text[at:]))


def render_stream(text: str) -> str:
    r"""Return a stream's text as a screen shows it: ``\r`` erases its line, ``\b`` the character before it.

    A ``\r`` at the end of a line erases nothing, because nothing was written over it (nbclient's rule).
    Linear in the text's length, and colours stay. Rendering the start of a stream first does not change the
    result.
    """
    if "\r" not in text and "\b" not in text:
        return text
    return "\n".join(map(_render_line, text.split("\n")))


def _render_line(line: str) -> str:
    body = line.rstrip("\r")
    end = "\r" if len(body) < len(line) else ""
    body = body[body.rfind("\r") + 1 :].lstrip("\b")
    # Line by line, after its "\r": erasing its last characters first would make the "\r" the line's end.
    if len(body) > _MANY_PAIRS and "\b" in body and "\x1b" not in body:
        body = _without_pairs(body).lstrip("\b")
    return (_erase_backwards(body) if "\b" in body else body) + end


def _without_pairs(text: str) -> str:
    """Remove most characters directly followed by a backspace: a fast path while there are many.

    Not for text with escape sequences: their last characters are no text of the line.
    """
    while True:
        starts = range(0, len(text), _LONG)
        shorter = "".join([_ERASED.sub("", text[start : start + _LONG]) for start in starts])
        if 4 * len(shorter) >= 3 * len(text):
            return shorter
        text = shorter


def _erase_backwards(line: str) -> str:
    """Return one piece at a time without the erased ones: ten million pieces would take gigabytes."""
    pieces: list[str] = []
    left: list[int] = []  # how many characters of each piece are left
    texts: list[int] = []  # indices of pieces of text, not of escape sequences, with characters left
    for found in _PIECE.finditer(line):
        piece = found[0]
        if piece[0] != "\b":
            if piece[0] != "\x1b":
                texts.append(len(pieces))
            pieces.append(piece)
            left.append(len(piece))
            continue
        to_erase = len(piece)
        while to_erase and texts:
            at = texts[-1]
            erased = min(to_erase, left[at])
            to_erase -= erased
            left[at] -= erased
            if not left[at]:
                texts.pop()
                if at == len(pieces) - 1:
                    pieces.pop()
                    left.pop()
    return "".join(piece[:length] for piece, length in zip(pieces, left, strict=True))


def stdout(outputs: Iterable[Mapping[str, Any]]) -> str:
    """Return all text of the stdout streams."""
    return _stream_text(outputs, "stdout")


def stderr(outputs: Iterable[Mapping[str, Any]]) -> str:
    """Return all text of the stderr streams."""
    return _stream_text(outputs, "stderr")


def _stream_text(outputs: Iterable[Mapping[str, Any]], name: str) -> str:
    return "".join(o["text"] for o in outputs if o["output_type"] == "stream" and o["name"] == name)


def text(outputs: Iterable[Mapping[str, Any]]) -> str:
    """Return the outputs' text as a notebook's reader sees it, in order and without ANSI codes.

    Streams, the text of results and displays, tracebacks; each output starts on a new line.
    """
    parts: list[str] = []
    reader = HtmlReader()
    for output in outputs:
        block = strip_ansi(_output_text(output, reader))
        if block and parts and not parts[-1].endswith("\n"):
            parts.append("\n")
        if block:
            parts.append(block)
    return "".join(parts)


def _output_text(output: Mapping[str, Any], reader: HtmlReader) -> str:
    match output["output_type"]:
        case "stream":
            return str(output["text"])
        case "error":
            return "\n".join(output["traceback"]) or f"{output['ename']}: {output['evalue']}"
        case _:
            return tell(output["data"], reader.read)


def plain(outputs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a copy of `outputs` with ANSI codes stripped from every string in them."""
    return [{key: _strip(value) for key, value in output.items()} for output in outputs]


def _strip(value: Any) -> Any:
    if isinstance(value, str):
        return strip_ansi(value)
    if isinstance(value, list):
        return [_strip(item) for item in value]
    if isinstance(value, dict):
        return {key: _strip(item) for key, item in value.items()}
    return value


@dataclass(slots=True)
class _Stream:
    name: str
    parts: list[str]

    def output(self) -> dict[str, Any]:
        return {"output_type": "stream", "name": self.name, "text": render_stream("".join(self.parts))}


@dataclass(slots=True)
class _Bundle:
    shown: tuple[Mapping[str, Any], Mapping[str, Any]]
    """Data and metadata, replaced together: a thread may be reading a copy of the area at the same time."""


@dataclass(slots=True)
class _Display:
    output_type: str
    bundle: _Bundle
    result: dict[str, Any]
    display_id: str | None

    def output(self) -> dict[str, Any]:
        data, metadata = self.bundle.shown
        return {
            "output_type": self.output_type,
            "data": dict(data),
            "metadata": dict(metadata),
            **self.result,
        }


class OutputArea:
    """The outputs of one execution, built from its events: takes well-formed events, returns nbformat 4.5.

    Outputs that share a display id share one bundle, so an update costs the same for any number of outputs.
    """

    def __init__(self) -> None:
        self._shown: list[_Stream | _Display | dict[str, Any]] = []
        self._bundles: dict[str, _Bundle] = {}
        self._last: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
        self._clear_at_next = False

    def apply(self, event_type: str, content: Mapping[str, Any]) -> None:
        """Apply one event. Events without output change nothing, nor does output that a widget shows."""
        if "widget" in content:
            return
        if self._clear_at_next and event_type in _MAKE_OUTPUT:
            self._clear(wait=False)
        match event_type:
            case "stream":
                self._add_text(content["name"], content["text"])
            case "display_data":
                self._shown.append(self._display(event_type, content, {}))
            case "execute_result":
                result = {"execution_count": content["execution_count"]}
                self._shown.append(self._display(event_type, content, result))
            case "error":
                error = {key: content[key] for key in ("ename", "evalue", "traceback")}
                self._shown.append({"output_type": "error", **error})
            case "update_display_data":
                self.update_display(content["display_id"], content["data"], content["metadata"])
            case "clear_output":
                self._clear(wait=content["wait"])

    def update_display(self, display_id: str, data: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
        """Replace the data of all outputs of `display_id`; return False when the area has none.

        In a notebook, a display event with a known display id also changes the outputs of earlier cells,
        whether it is `display_data`, `execute_result` or `update_display_data`: call this for their areas.
        """
        self._last[display_id] = data, metadata
        bundle = self._bundles.get(display_id)
        if bundle is None:
            return False
        bundle.shown = data, metadata
        return True

    def copy(self) -> OutputArea:
        """Return a copy of the outputs for reading, quickly. Its text and displays may still change."""
        made = OutputArea()
        made._shown = list(self._shown)
        made._last = dict(self._last)
        return made

    def outputs(self) -> list[dict[str, Any]]:
        """Return the outputs so far, as new dicts that share JSON values and tracebacks with the events."""
        return [dict(shown) if isinstance(shown, dict) else shown.output() for shown in self._shown]

    def display_ids(self) -> list[str | None]:
        """Return the display id of each output, in order; None for an output without an id."""
        return [shown.display_id if isinstance(shown, _Display) else None for shown in self._shown]

    def last_shown(self) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return, by display id of any cell, the data and metadata that the execution showed last."""
        return dict(self._last)

    def _add_text(self, name: str, text: str) -> None:
        last = self._shown[-1] if self._shown else None
        if isinstance(last, _Stream) and last.name == name:
            last.parts.append(text)
        else:
            self._shown.append(_Stream(name, [text]))

    def _display(self, kind: str, content: Mapping[str, Any], result: dict[str, Any]) -> _Display:
        return _Display(kind, self._bundle(content), result, content.get("display_id"))

    def _bundle(self, content: Mapping[str, Any]) -> _Bundle:
        display_id = content.get("display_id")
        if display_id is None:
            return _Bundle((content["data"], content["metadata"]))
        if not self.update_display(display_id, content["data"], content["metadata"]):
            self._bundles[display_id] = _Bundle((content["data"], content["metadata"]))
        return self._bundles[display_id]

    def _clear(self, *, wait: bool) -> None:
        self._clear_at_next = wait
        if not wait:
            self._shown.clear()
            self._bundles.clear()


@dataclass(frozen=True, slots=True)
class OutputCaps:
    """The most bytes of output of one execution: `text` for streams, and again for errors and for prompts;
    `data` for displays and results.
    """

    text: int = option(10 * MIB, "Text output kept of one cell.", name="text_cap", unit=BYTES)
    data: int = 50 * MIB


@dataclass(slots=True)
class _Budget:
    cap: int
    left: int
    open: bool = True
    dropped: int = 0


class OutputLimiter:
    """Passes the events of one execution while they are under the caps, then cuts output once, with a mark.

    Streams and `clear_output` share the text cap; displays, results and comms share the data cap. Errors have
    a text cap of their own, and so have input requests. So earlier output never hides the reason why a cell
    ended, and a kernel that sends only errors or requests is limited as well. Other types always pass.
    """

    def __init__(self, caps: OutputCaps) -> None:
        self._text = _Budget(caps.text, caps.text)
        self._data = _Budget(caps.data, caps.data)
        self._errors = _Budget(caps.text, caps.text)
        self._prompts = _Budget(caps.text, caps.text)
        displays = ("display_data", "update_display_data", "execute_result", *COMM_EVENTS)
        self._budgets = {
            **dict.fromkeys(("stream", "clear_output"), self._text),
            **dict.fromkeys(displays, self._data),
            "error": self._errors,
            "input_request": self._prompts,
        }
        self._displays: dict[str, int] = {}
        self._clear_at_next = False
        self._left_out = False

    @property
    def truncated(self) -> bool:
        """Whether any output was cut."""
        budgets = (self._text, self._data, self._errors, self._prompts)
        return self._left_out or not all(budget.open for budget in budgets)

    @property
    def dropped_text(self) -> int:
        """Bytes of streams, errors and prompts left out so far."""
        return self._text.dropped + self._errors.dropped + self._prompts.dropped

    @property
    def dropped_data(self) -> int:
        """Bytes of displays and results left out so far."""
        return self._data.dropped

    def wants(self, event_type: str) -> bool:
        """Return whether an event of this type could still pass; if not, `drop` it without decoding."""
        budget = self._budgets.get(event_type)
        return budget is None or budget.open

    def room(self, event_type: str) -> int:
        """Return the number of bytes of a message of this type that could still pass; 0 if none."""
        budget = self._budgets.get(event_type)
        if budget is None:
            return sys.maxsize
        if not budget.open:
            return 0
        # An error that is too long keeps its end, a prompt its start: to find these, all of it must be read.
        return max(1, budget.left) if budget in (self._text, self._data) else sys.maxsize

    def drop(self, event_type: str, size: int) -> None:
        """Count an event of `size` bytes that is left out."""
        self._budgets[event_type].dropped += size

    def leave_out(self, event_type: str, size: int, kinds: Iterable[str] = ()) -> tuple[KernelEvent, ...]:
        """Return events that replace an output of `size` bytes that was too large or too complex to be read.

        `kinds`: the MIME types of the output. It counts as if it had passed, so the marks are limited too.
        """
        budget = self._budgets[event_type]
        self._left_out = True
        budget.dropped += size
        why = f"beyond the cap of {_amount(budget.cap)} per cell"
        if size <= budget.left:
            budget.left -= min(budget.left, max(size, LEAST_COST))
            why = "too complex to be read"
        else:
            budget.open = False
        mark = f"[cellgate: output left out here ({_amount(size)}), {why}]"
        match event_type:
            case "clear_output":
                return ()
            case "stream":
                return (KernelEvent("stream", {"name": "stdout", "text": f"\n{mark}\n"}),)
            case "error":
                return (KernelEvent("error", {"ename": "", "evalue": "", "traceback": [mark]}),)
            case "input_request":
                return (KernelEvent("input_request", {"prompt": "", "password": False}),)
            case _:
                return (_mark(event_type, kinds, size, why),)

    def admit(self, event: KernelEvent, size: int) -> tuple[KernelEvent, ...]:
        """Return the events that pass for one of `size` bytes: itself, a cut one with a mark, or none."""
        budget = self._budgets.get(event.type)
        if budget is None:
            return (event,)
        if not budget.open:
            budget.dropped += size
            return ()
        cost = max(size, LEAST_COST) * self._copies(event)
        if cost <= budget.left:
            budget.left -= cost
            return (event,)
        budget.open = False
        events, kept = self._cut(event, size, budget.left)
        budget.dropped += max(0, size - kept)
        return events

    def _copies(self, event: KernelEvent) -> int:
        """Return the number of outputs that an event writes: with a display id, every output of that id.

        Otherwise one big update of many small displays could make a notebook far larger than the cap.
        """
        if event.type == "clear_output":
            self._clear_at_next = event.content["wait"]
            if not event.content["wait"]:
                self._displays.clear()
            return 1
        if self._clear_at_next and event.type in _MAKE_OUTPUT:
            self._clear_at_next = False
            self._displays.clear()
        display_id = event.content.get("display_id")
        if display_id is None:
            return 1
        known = self._displays.get(display_id, 0)
        if event.type == "update_display_data":
            return max(1, known)
        self._displays[display_id] = known + 1
        return known + 1

    def _cut(self, event: KernelEvent, size: int, room: int) -> tuple[tuple[KernelEvent, ...], int]:
        """Return the events that replace one that crosses a cap, and the bytes that they keep of it."""
        reached = f"the cap of {_amount(self._budgets[event.type].cap)}"
        content = event.content
        match event.type:
            case "error":
                mark = f"[cellgate: traceback cut here, {reached} of errors per cell is reached]"
                return _cut_error(content, room, mark)
            case "input_request":
                prompt = _head(content["prompt"], room)
                return (KernelEvent(event.type, {**content, "prompt": prompt}),), byte_size(prompt)
            case "stream" | "clear_output":
                name = content.get("name", "stdout")
                head = _head(content.get("text", ""), room)
                mark = f"\n[cellgate: output cut here, {reached} of text per cell is reached]\n"
                kept = (KernelEvent("stream", {"name": name, "text": head}),) if head else ()
                return (*kept, KernelEvent("stream", {"name": name, "text": mark})), byte_size(head)
            case _:
                kinds = () if event.type in COMM_EVENTS else content["data"]
                return (_mark(event.type, kinds, size, f"beyond {reached} of data per cell"),), 0


def _mark(event_type: str, kinds: Iterable[str], size: int, why: str) -> KernelEvent:
    """Return a display in the place of an output that is left out."""
    shown = ["widget state"] if event_type in COMM_EVENTS else [kind[:80] for kind in islice(kinds, 8)]
    text = f"[cellgate: {', '.join(shown) or 'output'} left out ({_amount(size)}), {why}]"
    return KernelEvent("display_data", {"data": {"text/plain": text}, "metadata": {}})


def _cut_error(content: Mapping[str, Any], room: int, mark: str) -> tuple[tuple[KernelEvent, ...], int]:
    """Return the error with its name, its value, and the end of its traceback cut to the room left."""
    ename = _head(content["ename"], room)
    evalue = _head(content["evalue"], room - byte_size(ename))
    kept = byte_size(ename) + byte_size(evalue)
    lines: list[str] = []
    for line in reversed(content["traceback"]):
        size = byte_size(line) + len('"",')
        if kept + size > room:
            break
        kept += size
        lines.append(line)
    traceback = [mark, *reversed(lines)]
    return (KernelEvent("error", {"ename": ename, "evalue": evalue, "traceback": traceback}),), kept


def byte_size(text: str) -> int:
    """Return the bytes of `text` as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def _head(text: str, room: int) -> str:
    """Return the longest start of `text` with at most `room` bytes as UTF-8."""
    return text[:room].encode()[:room].decode(errors="ignore")


def _amount(size: int) -> str:
    """Return a number of bytes for people: ``10 MiB``."""
    return f"{size / MIB:.4g} MiB" if size >= MIB else f"{size} bytes"
