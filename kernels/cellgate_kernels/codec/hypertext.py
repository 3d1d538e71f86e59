"""HTML in text, for those who see no pages: its words, and its tables in columns.

Pure, and no parser of all of HTML: the text is from user code and may be anything, so it is read once, from
tag to tag, and what is written of it is bounded. ``telling`` decides when HTML is read.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

LONGEST = 256 * 1024
"""Characters of HTML that are read, and a limit of those that are written."""
MOST = 1024 * 1024
"""Characters of HTML that are read of all outputs of a cell: at the worst a second's work for a thread."""
_WIDEST = 60
"""Columns are as wide as their widest cell, up to so many characters."""
_MOST_SPANNED = 32
"""Columns in which cells that span several rows or columns count."""
_CUT = "[cellgate: there is more in the HTML]"

_TAG_NAME = re.compile(r"/?[a-zA-Z][a-zA-Z0-9]{0,20}")
_SPAN = re.compile(r"\b(row|col)span=[\"']?(\d{1,4})")
_UNSEEN = frozenset({"script", "style", "template", "title", "head", "textarea"})
_LINE = re.compile(
    r"address|article|aside|blockquote|br|caption|d[dlt]|details|div|fig(?:caption|ure)|footer|form|h[1-6]|header"
    r"|hr|li|main|nav|[ou]l|p|pre|section|summary|table|t(?:body|foot|head|r)"
)
"""Tags before and behind which a line ends."""
_LONGEST_TAG = 200
"""Characters of a tag in which its spans are looked for."""


@dataclass(slots=True)
class HtmlReader:
    """Reads the HTML of one cell, up to a limit for all its outputs together."""

    left: int = MOST

    def read(self, text: str) -> str:
        """Return a page's text as `read_html` does; empty when the limit is reached."""
        taken = text[: min(self.left, LONGEST)]
        self.left -= len(taken)
        return read_html(taken) if len(taken) == len(text) else _cut(read_html(taken))


def _cut(shown: str) -> str:
    return shown if not shown or shown.endswith(_CUT) else f"{shown}\n{_CUT}"


def read_html(text: str) -> str:
    """Return the words of HTML, line by line, its tables with aligned columns. Empty if it has none."""
    page = _Page()
    for words, tag in _pieces(text[:LONGEST]):
        page.words(words)
        page.tag(tag)
    page.end()
    lines = [line.rstrip() for line in page.lines]
    shown = "\n".join(line for line in lines if line)
    return _cut(shown) if page.full or len(text) > LONGEST else shown


def _pieces(text: str) -> Iterator[tuple[str, str]]:
    """Yield the words before each tag, and what is between its angle brackets; at the end the tag is empty.

    What is never seen, such as scripts, is left out. Each place is looked at once.
    """
    lowered = text.lower()
    if len(lowered) != len(text):
        lowered = text  # a letter that becomes longer would shift all places after it
    at = 0
    while (start := text.find("<", at)) >= 0:
        name = _TAG_NAME.match(text, start + 1)
        if name is None and not text.startswith("!", start + 1):
            yield text[at : start + 1], ""
            at = start + 1
            continue
        comment = text.startswith("!--", start + 1)
        end = text.find("-->" if comment else ">", start + 1)
        if end < 0:
            break
        yield text[at:start], "" if name is None else text[start + 1 : end]
        at = end + (3 if comment else 1)
        if name is not None and name[0].lower() in _UNSEEN:
            closed = lowered.find(f"</{name[0].lower()}", at)
            if closed < 0:
                return
            at = closed
    else:
        yield text[at:], ""


@dataclass(slots=True)
class _Page:
    """What has been read so far: finished lines, the line or cell that is read now, and a table's rows.

    A table in a cell of another is read as if the outer one went on behind it.
    """

    lines: list[str] = field(default_factory=list)
    full: bool = False
    _size: int = 0
    _parts: list[str] = field(default_factory=list)
    _rows: list[list[str]] = field(default_factory=list)
    _spans: dict[int, int] = field(default_factory=dict)
    _in_table: bool = False
    _in_cell: bool = False
    _column: int = 0

    def words(self, words: str) -> None:
        """Add words to the line or cell."""
        if words and (self._in_cell or not self._in_table or words.strip()):
            self._parts.append(words)

    def tag(self, tag: str) -> None:
        """Do what a tag does to the lines."""
        found = _TAG_NAME.match(tag)
        name = "" if found is None else found[0].lower()
        match name:
            case "td" | "th":
                self._end_cell()
                self._begin_cell(tag[:_LONGEST_TAG])
            case "/td" | "/th":
                self._end_cell()
            case "tr" | "/tr":
                self._end_cell()
                if name == "tr":
                    self._begin_row()
            case "table" | "/table":
                self._end_cell()
                self._end_line()
                self._end_table()
                self._in_table = name == "table"
            case _ if _LINE.fullmatch(name.removeprefix("/")):
                if self._in_cell:
                    self._parts.append(" ")
                else:
                    self._end_line()

    def end(self) -> None:
        """Finish what is open."""
        self._end_cell()
        self._end_line()
        self._end_table()

    def _taken(self) -> str:
        taken = "".join(self._parts)
        self._parts.clear()
        # A number with thousands of digits names no character, and Python refuses to read it.
        with suppress(ValueError):
            taken = html.unescape(taken)
        return " ".join(taken.split())

    def _end_line(self) -> None:
        if self._in_cell or not self._parts:
            return
        self._add(self._taken())

    def _add(self, line: str) -> None:
        self._size += len(line)
        if self._size > LONGEST:
            self.full = True
        else:
            self.lines.append(line)

    def _begin_row(self) -> None:
        self._end_line()
        self._in_table = True
        row: list[str] = []
        self._rows.append(row)
        self._fill(row)

    def _fill(self, row: list[str]) -> None:
        """Leave out the columns that a cell of an earlier row spans."""
        while (left := self._spans.get(len(row), 0)) > 0:
            self._spans[len(row)] = left - 1
            row.append("")

    def _begin_cell(self, tag: str) -> None:
        if not self._rows:
            self._begin_row()
        self._parts.clear()
        self._in_cell = True
        row = self._rows[-1]
        spans = {kind: int(count) for kind, count in _SPAN.findall(tag.lower())}
        column = len(row)
        columns = max(1, min(spans.get("col", 1), _MOST_SPANNED - column))
        if column < _MOST_SPANNED and (rows := spans.get("row", 1)) > 1:
            self._spans.update(dict.fromkeys(range(column, column + columns), rows - 1))
        row.extend([""] * columns)
        self._column = column

    def _end_cell(self) -> None:
        if not self._in_cell:
            return
        self._in_cell = False
        row = self._rows[-1]
        row[self._column] = self._taken()
        self._fill(row)

    def _end_table(self) -> None:
        widths: list[int] = []
        for row in self._rows:
            widths.extend([0] * (len(row) - len(widths)))
            for column, cell in enumerate(row):
                widths[column] = max(widths[column], min(len(cell), _WIDEST))
        for row in self._rows:
            self._add("  ".join(cell.ljust(widths[column]) for column, cell in enumerate(row)).rstrip())
            if self.full:
                break
        self._rows.clear()
        self._spans.clear()
        self._in_table = False
