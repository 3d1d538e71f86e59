"""Compares two runs of a cell: equal, equal after normalising, different and how, or undecidable.

Pure. It compares the text that a terminal shows of stdout, and of stderr (how the two interleave depends on
buffering), and all other outputs in order; execution counts are not compared. ``normalise`` knows the
variations from run to run, ``images`` compares pictures, ``report`` shows the result.
"""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import zip_longest
from typing import Any

from cellgate.replay.images import PixelBudget, compare_pictures
from cellgate.replay.moments import Window
from cellgate.replay.normalise import Context, explain, shown
from cellgate.replay.reading import Output, read_text
from cellgate_kernels.codec.telling import HTML, WIDGET_VIEW, chart_of
from cellgate_kernels.protocol.outputs import render_stream

MOST_LINES = 400
"""The most lines of each text that are compared line by line, and the most lines of a shown diff."""
LONGEST_LINE = 2000
STOPPED = frozenset({"interrupted", "timeout"})
"""The statuses that count as equal: in a replay, the deadline ends a cell that a user had interrupted."""
_TABLE = "application/vnd.dataresource+json"
_PICTURES = frozenset({"image/png", "image/jpeg"})
_MARKUP = frozenset({"text/html", "image/svg+xml"})
_DRAWN = ("application/vnd.vega", "application/vnd.plotly.", WIDGET_VIEW)
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Verdict(StrEnum):
    """The outcome for a cell. `normalised`: equal but for known variations; `unjudged`: undecidable."""

    EQUAL = "equal"
    NORMALISED = "normalised"
    UNJUDGED = "unjudged"
    DIFFERENT = "different"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class CellRun:
    """One run of a cell: its status and its outputs (nbformat).

    `window`: from the start of the whole run to the cell's end, if known.
    """

    status: str
    outputs: Sequence[Output]
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """One part of a cell that differs. `diff`: a unified diff; `picture`: a PNG that shows the difference.

    `judged` is False if it is undecidable whether the result differs.
    """

    part: str
    note: str
    diff: str = ""
    picture: bytes | None = None
    judged: bool = True


@dataclass(frozen=True, slots=True)
class CellComparison:
    """A verdict with its reasons: the `rules` that were needed, and `differences` that no rule explains."""

    verdict: Verdict
    rules: tuple[str, ...] = ()
    differences: tuple[Difference, ...] = ()


@dataclass(slots=True)
class _Findings:
    """The rules and differences found so far while comparing two runs."""

    recorded: CellRun
    replayed: CellRun
    rtol: float
    pixels: PixelBudget
    rules: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)

    def needed(self, *names: str) -> None:
        self.rules += [name for name in names if name not in self.rules]

    def stream(self, name: str, before: str, after: str) -> None:
        """Compare the printed text of two runs, as a terminal shows it: without overwritten parts."""
        if before == after:
            return
        seen = on_screen(before), on_screen(after)
        count = len(self.differences)
        self.text(name, *seen)
        if seen != (before, after) and len(self.differences) == count:
            self.needed("overwritten text")

    def text(self, part: str, before: str, after: str, *, markup: bool = False, drawn: bool = False) -> None:
        """Compare two texts and add their difference."""
        if before == after:
            return
        before, after = _ANSI.sub("", before), _ANSI.sub("", after)
        context = Context(self.recorded.window, self.replayed.window, self.rtol, markup, drawn)
        why = explain(before, after, context)
        if why is None:
            self.differences.append(
                Difference(part, "the text differs", text_diff(*shown(before, after, context)))
            )
        elif why.doubts:
            note = f"it differs in what may change from run to run, or be a result: {', '.join(why.doubts)}"
            diff = text_diff(*shown(before, after, context))
            self.differences.append(Difference(part, note, diff, judged=False))
        else:
            self.needed(*(why.rules or ("colours",)))


def compare_runs(
    recorded: CellRun, replayed: CellRun, *, rtol: float = 0.0, pixels: PixelBudget | None = None
) -> CellComparison:
    """Compare the ends and the outputs of two runs of a cell.

    `rtol`: the largest relative difference of two floating-point numbers. `pixels`: the budget for comparing
    pictures, which is used up.
    """
    found = _Findings(recorded, replayed, rtol, PixelBudget() if pixels is None else pixels)
    if recorded.status != replayed.status and not {recorded.status, replayed.status} <= STOPPED:
        note = f"it ended as {recorded.status!r} and now as {replayed.status!r}"
        found.differences.append(Difference("status", note))
    for name in ("stdout", "stderr"):
        found.stream(name, _printed(recorded.outputs, name), _printed(replayed.outputs, name))
    shown = (list(_shown(recorded.outputs)), list(_shown(replayed.outputs)))
    for number, (before, after) in enumerate(zip_longest(*shown), 1):
        _compare_outputs(found, f"output {number}", before, after)
    if {recorded.status, replayed.status} <= STOPPED:
        # How far a cell got before it was stopped depends on the machine.
        found.differences = [replace(each, judged=False) for each in found.differences]
    if found.differences:
        judged = any(difference.judged for difference in found.differences)
        verdict = Verdict.DIFFERENT if judged else Verdict.UNJUDGED
        return CellComparison(verdict, tuple(found.rules), tuple(found.differences))
    return CellComparison(Verdict.NORMALISED if found.rules else Verdict.EQUAL, tuple(found.rules))


def on_screen(text: str) -> str:
    r"""Return the text that a terminal shows of a stream, without a ``\r`` at the end of a line."""
    return render_stream(text).replace("\r\n", "\n").removesuffix("\r")


def text_diff(before: str, after: str) -> str:
    """Return a unified diff for people, limited in length, with a last line that says so if it was cut."""
    old, old_cut = _cut_lines(before)
    new, new_cut = _cut_lines(after)
    lines = list(difflib.unified_diff(old, new, "recorded", "replayed", n=2, lineterm=""))
    kept = lines[:MOST_LINES]
    if old_cut or new_cut or len(lines) > MOST_LINES:
        kept.append("... more is not shown")
    return "\n".join(kept)


def _cut_lines(text: str) -> tuple[list[str], bool]:
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    shortened = [line[:LONGEST_LINE] for line in lines[:MOST_LINES]]
    return shortened, len(lines) > MOST_LINES or any(len(line) > LONGEST_LINE for line in lines[:MOST_LINES])


def _printed(outputs: Sequence[Output], name: str) -> str:
    return "".join(
        read_text(output["text"])
        for output in outputs
        if output["output_type"] == "stream" and output["name"] == name
    )


def _shown(outputs: Sequence[Output]) -> Iterator[Output]:
    return (output for output in outputs if output["output_type"] != "stream")


def _compare_outputs(found: _Findings, part: str, before: Output | None, after: Output | None) -> None:
    if before is None or after is None:
        if before is None:
            there = after
            note = "came now only"
        else:
            there = before
            note = "did not come any more"
        assert there is not None
        what = there.get("ename") if there["output_type"] == "error" else ", ".join(there["data"])
        found.differences.append(Difference(part, f"{there['output_type']} ({what}) {note}"))
    elif "error" in {before["output_type"], after["output_type"]}:
        _compare_errors(found, before, after)
    else:
        _compare_data(found, part, before["data"], after["data"])


def _compare_errors(found: _Findings, before: Output, after: Output) -> None:
    if before["output_type"] != after["output_type"]:
        kinds = f"{before['output_type']} was recorded, {after['output_type']} came"
        found.differences.append(Difference("error", kinds, text_diff(_as_text(before), _as_text(after))))
        return
    found.text("error", _as_text(before), _as_text(after))


def _as_text(output: Output) -> str:
    if output["output_type"] == "error":
        lines = [f"{output['ename']}: {output['evalue']}", *output["traceback"]]
        return _ANSI.sub("", "\n".join(lines))
    value = output["data"].get("text/plain", ", ".join(output["data"]))
    return read_text(value) if _is_text(value) else _as_json(value)


def _compare_data(found: _Findings, part: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
    if (_TABLE in before) != (_TABLE in after):
        # Tables as data are sent only on request; the other types show the same table.
        before = {kind: value for kind, value in before.items() if kind != _TABLE}
        after = {kind: value for kind, value in after.items() if kind != _TABLE}
    if before.keys() != after.keys():
        kinds = f"{', '.join(sorted(before))} was recorded, {', '.join(sorted(after))} came"
        found.differences.append(Difference(part, kinds))
    for kind in sorted(before.keys() & after.keys()):
        _compare_value(found, f"{part}, {kind}", kind, before[kind], after[kind])


def _compare_value(found: _Findings, part: str, kind: str, before: Any, after: Any) -> None:
    if before == after:
        return
    if kind in _PICTURES and _is_text(before) and _is_text(after):
        _compare_pictures(found, part, read_text(before), read_text(after))
    elif not (kind == "application/json" or kind.endswith("+json")) and _is_text(before) and _is_text(after):
        texts = read_text(before), read_text(after)
        drawn = kind.startswith(_DRAWN) or (kind == HTML and all(chart_of({HTML: text}) for text in texts))
        found.text(part, *texts, markup=kind in _MARKUP, drawn=drawn)
    else:
        found.text(part, _as_json(before), _as_json(after), drawn=kind.startswith(_DRAWN))


def _is_text(value: Any) -> bool:
    """Return whether the value is a text in nbformat's forms, or a number in the place of one."""
    parts = value if isinstance(value, list) else [value]
    return not any(isinstance(part, (dict, list)) for part in parts)


def _as_json(value: Any) -> str:
    # Unlike msgspec it writes integers of any size, which notebooks may have.
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False)


def _compare_pictures(found: _Findings, part: str, before: str, after: str) -> None:
    try:
        pictures = base64.b64decode(before), base64.b64decode(after)
    except (binascii.Error, ValueError):
        found.differences.append(Difference(part, "A picture is not in base64"))
        return
    compared = compare_pictures(*pictures, found.pixels)
    if compared.same:
        found.needed(f"pictures as they look: {compared.note}")
    else:
        judged = compared.same is not None
        found.differences.append(Difference(part, compared.note, picture=compared.picture, judged=judged))
