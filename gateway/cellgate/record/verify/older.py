"""Notebooks of nbformat 1 to 3 as notebooks of nbformat 4, converted by nbformat.

Pure. Refuses notebooks that nbformat can't convert or would make enormous. ``imported`` reads and bounds the
files; the caller checks whether the result is valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import nbformat
from nbformat import NotebookNode

from cellgate_kernels.base.errors import InvalidInput, in_words

_nbformat: Any = nbformat  # untyped

HEADING_LEVELS = (1, 2, 3, 4, 5, 6)
MALFORMED = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError)
"""nbformat's errors when converting from an older format; NameError: from an unset variable."""


def newest(decoded: Mapping[str, Any], what: str) -> NotebookNode:
    """Return a notebook of any format as one of nbformat 4. Raises InvalidInput, which begins with `what`."""
    if not all(level in HEADING_LEVELS for level in _levels(decoded)):
        raise InvalidInput(f"{what} is not a valid notebook: the level of a heading is not 1 to 6")
    try:
        major, minor = _nbformat.reader.get_version(decoded)
        known = _nbformat.versions[major].to_notebook_json(decoded, minor=minor)
        made: NotebookNode = _nbformat.convert(known, 4)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{what} is not a notebook: {error}") from error
    except (nbformat.ValidationError, *MALFORMED) as error:
        raise malformed(what, error) from error
    return made


def malformed(what: str, error: BaseException) -> InvalidInput:
    """Return the refusal of a notebook with which nbformat failed."""
    reason = (
        str(getattr(error, "message", ""))
        or f"its cells are malformed ({type(error).__name__}: {in_words(error)})"
    )
    return InvalidInput(f"{what} is not a valid notebook: {reason[:200]}")


def _levels(decoded: Mapping[str, Any]) -> Iterator[object]:
    """Yield the levels of a format 3 notebook's headings; nbformat makes as many `#` of each."""
    sheets = decoded.get("worksheets")
    for sheet in sheets if isinstance(sheets, list) else ():
        cells = sheet.get("cells") if isinstance(sheet, dict) else None
        for cell in cells if isinstance(cells, list) else ():
            if isinstance(cell, dict) and "level" in cell:
                yield cell["level"]
