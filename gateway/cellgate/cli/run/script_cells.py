"""Reads a Python script as cells: split at ``# %%`` lines, as by Jupytext and VS Code.

Both programs write IPython's magics as comments, so that the script runs without IPython: Jupytext as
``# %matplotlib inline`` in files that have its header, VS Code as ``#!%matplotlib inline`` in any. They are
magics again here. Pure but for reading the file; ``notebook_files`` is the user.
"""

from __future__ import annotations

import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from cellgate.cli.run.cells import CellKind, SourceCell

_MARKER = re.compile(r"#\s*%%+(?:\s++(?P<rest>.*))?")
_CELL_TYPE = re.compile(r"\[(markdown|md|raw)\]")
_LANGUAGE = re.compile(r"\blanguage=\"([a-zA-Z0-9]++)\"")
_DOCSTRING = re.compile(r"r?(\"\"\"|''')(?P<text>.*)\1", re.DOTALL)
_OF_JUPYTEXT = re.compile(r"#\s*jupytext:")
_KEPT_AS_COMMENTS = re.compile(r"#\s*comment_magics:\s*false")
_MAGIC = re.compile(r"# (?P<magic>%{1,2}[a-zA-Z].*|![a-zA-Z0-9_./~$].*)")
_MAGIC_OF_VS_CODE = re.compile(r"#!(?P<magic>%{1,2}[a-zA-Z].*)")


def read_script(path: Path) -> tuple[SourceCell, ...]:
    """Return the cells of a script. Raises OSError, UnicodeDecodeError and SyntaxError (of its encoding)."""
    with tokenize.open(path) as file:
        text = file.read().removeprefix("\ufeff")
    lines = text.split("\n")
    begin = _header_length(lines)
    header = "\n".join(lines[:begin])
    magic = _MAGIC_OF_VS_CODE
    if _OF_JUPYTEXT.search(header) and not _KEPT_AS_COMMENTS.search(header):
        magic = _MAGIC
    inside = _lines_in_strings(text)
    lines = [line if number in inside else _uncommented(line, magic) for number, line in enumerate(lines)]
    cells: list[SourceCell] = []
    kind, language, start = CellKind.CODE, None, begin
    # The additional marker ends the last cell.
    for number, line in enumerate([*lines[begin:], "# %%"], begin):
        marker = _MARKER.fullmatch(line) if number not in inside else None
        if marker is None:
            continue
        cells.extend(_cell(kind, language, lines[start:number]))
        rest = marker["rest"] or ""
        named, other = _CELL_TYPE.search(rest), _LANGUAGE.search(rest)
        kind = CellKind.CODE
        if named is not None:
            kind = CellKind.RAW if named[1] == "raw" else CellKind.MARKDOWN
        language = None if other is None or magic is not _MAGIC else other[1]
        start = number + 1
    return tuple(cells)


def _header_length(lines: Sequence[str]) -> int:
    """Number of lines of Jupytext's header, YAML between two ``# ---`` lines: notebook metadata, not code."""
    if lines[:1] == ["# ---"] and "# ---" in lines[1:]:
        return lines.index("# ---", 1) + 1
    return 0


def _lines_in_strings(text: str) -> set[int]:
    """Return the lines (from 0) that start inside a string, where ``# %%`` is text, not a marker.

    IPython's ``%magic`` and ``!command`` lines may stop the tokenizer; strings after that go undetected.
    """
    found: set[int] = set()
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING:
                found.update(range(token.start[0], token.end[0]))
    except (tokenize.TokenError, SyntaxError):
        return found
    return found


def _uncommented(line: str, magic: re.Pattern[str]) -> str:
    code = line.lstrip()
    found = magic.fullmatch(code)
    return line if found is None else line.removesuffix(code) + found["magic"]


def _cell(kind: CellKind, language: str | None, lines: Sequence[str]) -> Iterator[SourceCell]:
    """Yield the cell of these lines, if they hold anything. `language`: that of commented lines of code."""
    source = "\n".join(lines).strip("\n").rstrip()
    if kind is not CellKind.CODE:
        text = _DOCSTRING.fullmatch(source.strip())
        source = text["text"].strip() if text else _without_comments(source)
    elif language is not None and source.strip():
        source = f"%%{language}\n{_without_comments(source)}"
    if source.strip():
        yield SourceCell(kind, source)


def _without_comments(source: str) -> str:
    return re.sub(r"^# ?", "", source, flags=re.MULTILINE)
