"""Mends notebooks that every other program opens, and that nbformat's schema refuses in some detail.

Pure. Only what no run needs is left out: outputs of an earlier run, and fields of metadata that the schema
does not allow. What is left out of the notebook that will be written is named. Whatever else is wrong stays,
for the caller to refuse. ``notebook_files`` is the user.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from nbformat import NotebookNode, validator

from cellgate.cli.run.cells import CellKind

_MAJOR: Final = 4
_MINOR: Final = 5
MOST_NOTICES: Final = 5
_COMMON: Final = frozenset({"id", "cell_type", "metadata", "source"})
_OF_KIND: Final = {
    CellKind.CODE: _COMMON,
    CellKind.MARKDOWN: _COMMON | {"attachments"},
    CellKind.RAW: _COMMON | {"attachments"},
}
"""The fields of each kind of cell that are kept; outputs and counts of an earlier run are not among them."""
_ID: Final = re.compile(r"[a-zA-Z0-9_-]{1,64}")

_validator: Any = validator  # untyped


def before_reading(notebook: Mapping[str, Any]) -> dict[str, Any]:
    """Return a decoded notebook of format 4 with only those fields that a run needs, and the others as given.

    A notebook of another format is returned as it is.
    """
    if notebook.get("nbformat") != _MAJOR:
        return dict(notebook)
    minor = notebook.get("nbformat_minor")
    cells = notebook.get("cells")
    metadata = notebook.get("metadata")
    return {
        "nbformat": _MAJOR,
        "nbformat_minor": minor if type(minor) is int and minor >= 0 else _MINOR,
        "metadata": metadata if isinstance(metadata, dict) else {},
        "cells": [_cell(cell) for cell in cells] if isinstance(cells, list) else cells,
    }


def _cell(cell: object) -> object:
    if not isinstance(cell, dict) or cell.get("cell_type") not in tuple(CellKind):
        return cell
    kind = CellKind(cell["cell_type"])
    kept = {name: value for name, value in cell.items() if name in _OF_KIND[kind]}
    if not isinstance(kept.get("metadata"), dict):
        kept["metadata"] = {}
    if kept.get("source") is None:
        kept["source"] = ""
    if "attachments" in kept:
        kept["attachments"] = _attachments(kept["attachments"])
    if not is_id(kept.get("id")):
        kept.pop("id", None)
    if kind is CellKind.CODE:
        kept |= {"outputs": [], "execution_count": None}
    return kept


def _attachments(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        return {}
    return {name: bundle for name, bundle in found.items() if isinstance(bundle, dict)}


def is_id(found: object) -> bool:
    """Return whether a cell may have this id (nbformat 4.5)."""
    return isinstance(found, str) and _ID.fullmatch(found) is not None


def leave_out_invalid(notebook: NotebookNode) -> list[str]:
    """Remove the metadata and attachments that the schema refuses; return the names of what was removed."""
    removed = [f"metadata.{name}" for name in _refused(notebook.metadata, partial(_fits_notebook, notebook))]
    for name in removed:
        del notebook.metadata[name.removeprefix("metadata.")]
    for number, cell in enumerate(notebook.cells):
        if cell.get("cell_type") not in _OF_KIND or _fits(cell, f"{cell.cell_type}_cell"):
            continue
        for name in _refused(cell.metadata, partial(_fits_cell, cell)):
            del cell.metadata[name]
            removed.append(f"metadata.{name} of cell {number}")
        if "attachments" in cell and not _fits_cell(cell, {}, attachments=cell.attachments):
            del cell["attachments"]
            removed.append(f"attachments of cell {number}")
    return removed


def _refused(metadata: Mapping[str, Any], fits: Callable[[Mapping[str, Any]], bool]) -> list[str]:
    return [name for name, value in metadata.items() if not fits({name: value})]


def _fits_notebook(notebook: NotebookNode, metadata: Mapping[str, Any]) -> bool:
    return _fits({**notebook, "cells": [], "metadata": metadata})


def _fits_cell(cell: NotebookNode, metadata: Mapping[str, Any], **more: Any) -> bool:
    empty = {name: value for name, value in cell.items() if name != "attachments"}
    return _fits({**empty, "source": "", "metadata": metadata, **more}, f"{cell.cell_type}_cell")


def _fits(found: Mapping[str, Any], definition: str | None = None) -> bool:
    """Return whether the schema allows a notebook, or a part of one by the name of its definition."""
    return bool(_validator.isvalid(found, ref=definition, version=_MAJOR, version_minor=_MINOR))


def notice_of(removed: list[str]) -> str:
    """Return a remark about what was left out."""
    more = f" and {len(removed) - MOST_NOTICES} more" if len(removed) > MOST_NOTICES else ""
    return f"not quite a valid notebook, so left out: {', '.join(removed[:MOST_NOTICES])}{more}"
