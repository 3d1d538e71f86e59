"""Reads notebooks, Python scripts and Markdown files as cells, and puts the outputs back in place.

In a Markdown file, fenced blocks in the kernel's language are the cells to run, unless they are marked
``no-run``; ``script_cells`` reads scripts. `weave` makes the notebook of a
run: the file's text with the cells that the gateway recorded. It reads files but talks to no gateway and
prints nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import nbformat
from nbformat import NotebookNode, v4

from cellgate.cli.run.cells import CellFile, CellKind, SourceCell
from cellgate.cli.run.nearly_valid import before_reading, is_id, leave_out_invalid, notice_of
from cellgate.cli.run.notebook_kernel import written_with
from cellgate.cli.run.script_cells import read_script
from cellgate.execution.blocks import cell_of
from cellgate.execution.markdown import fence_language, fences
from cellgate.record.verify.imported import decode_notebook, read_file
from cellgate.record.verify.older import MALFORMED, malformed, newest
from cellgate_kernels.base.errors import InvalidInput, in_brief, near_file
from cellgate_kernels.specs.languages import Language, find_language

_nbformat: Any = nbformat  # untyped
_v4: Any = v4

SUFFIXES: Final = frozenset({".ipynb", ".py", ".md", ".markdown"})
"""Of files that can be run."""
NOT_RUN = "no-run"
"""A word after a block's language: the block is for reading only."""
_OF_A_RUN = frozenset({"cellgate", "execution"})
"""Keys of a cell's metadata that describe one run of it."""
MOST_CELLS = 100_000


def read_cells(path: Path, language: Language = Language.PYTHON, *, mixed: bool = False) -> CellFile:
    """Return the cells of an .ipynb, .py or .md file. Raises InvalidInput with the file and what is wrong.

    `language` is the kernel's: Markdown blocks in it are cells, and with `mixed` those in others too.
    """
    suffix = path.suffix.lower()
    if suffix not in SUFFIXES:
        raise InvalidInput(f"{path}: only .ipynb, .py and .md files can be run")
    markdown = partial(_read_markdown, language=language, mixed=mixed)
    reader: Callable[[Path], CellFile] = {".ipynb": _read_notebook, ".py": _read_script}.get(suffix, markdown)
    try:
        return reader(path)
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {in_brief(error)}{near_file(path)}") from error
    except (UnicodeDecodeError, SyntaxError) as error:  # SyntaxError: a coding comment that names no codec
        raise InvalidInput(f"{path} is not text: {error}") from error


def _read_notebook(path: Path) -> CellFile:
    decoded = decode_notebook(read_file(path), str(path))
    cells = decoded.get("cells")
    if isinstance(cells, list) and len(cells) > MOST_CELLS:
        raise InvalidInput(f"{path} has {len(cells):,} cells; at most {MOST_CELLS:,} can be run")
    converted = newest(before_reading(decoded), str(path))
    left_out: list[str] = []
    try:
        # `nbformat.read` would only log that a notebook is invalid, and warn about missing ids.
        notebook = _with_ids(converted)
        try:
            _nbformat.validate(notebook)
        except nbformat.ValidationError:
            left_out = leave_out_invalid(notebook)
            _nbformat.validate(notebook)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{path} is not a notebook: {error}") from error
    except (nbformat.ValidationError, *MALFORMED) as error:
        raise malformed(str(path), error) from error
    exported = notebook.metadata.get("cellgate")
    # Exports of earlier versions have cells that a rollback undid as code; run, they would take effect.
    by_mark = isinstance(exported, dict) and exported.get("undone") is True
    cells = tuple(_notebook_cell(cell, undone=by_mark and _is_undone(cell)) for cell in notebook.cells)
    notices = (notice_of(left_out),) if left_out else ()
    return CellFile(cells, notebook.metadata, notices, written_with(decoded_metadata(decoded)))


def decoded_metadata(notebook: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the metadata of a decoded notebook, whatever is left out of it; empty if it has none."""
    found = notebook.get("metadata")
    return found if isinstance(found, dict) else {}


def _is_undone(cell: NotebookNode) -> bool:
    known = cell.metadata.get("cellgate")
    return isinstance(known, dict) and bool(known.get("undone"))


def _with_ids(notebook: NotebookNode) -> NotebookNode:
    """Return the notebook as nbformat 4.5, in which every cell has a unique id."""
    seen: set[str] = set()
    for cell in notebook.cells:
        if not is_id(cell.get("id")) or cell.id in seen:
            cell.id = _v4.new_raw_cell().id
        seen.add(cell.id)
    notebook.nbformat_minor = max(5, notebook.nbformat_minor)
    return notebook


def _notebook_cell(cell: NotebookNode, *, undone: bool) -> SourceCell:
    kind = CellKind.RAW if undone else CellKind(cell.cell_type)
    return SourceCell(kind, cell.source, cell.id, cell.metadata, cell.get("attachments"))


def _read_script(path: Path) -> CellFile:
    return CellFile(read_script(path))


def _read_markdown(path: Path, *, language: Language, mixed: bool) -> CellFile:
    text = path.read_text(encoding="utf-8-sig")
    lines = text.split("\n")
    cells: list[SourceCell] = []
    skipped: dict[str, list[int]] = {}
    shown: list[int] = []
    done = 0
    for fence in fences(text):
        assert fence.map is not None
        first, end = fence.map
        named = fence_language(fence.info)
        block = find_language(named)
        own = block is not None and block.kernel_language == language.kernel_language
        if block is None or not (own or mixed):
            skipped.setdefault(named or "no language", []).append(first + 1)
            continue
        if NOT_RUN in fence.info.split()[1:]:
            shown.append(first + 1)
            continue
        cells.extend(_text_cell(lines[done:first]))
        code = cell_of(block, fence.content.rstrip("\n"), language.kernel_language)
        cells.append(SourceCell(CellKind.CODE, code))
        done = end
    cells.extend(_text_cell(lines[done:]))
    notices = list(_skip_notices(skipped, language))
    if shown:
        notices.append(f"not run, because marked {NOT_RUN}: line {', '.join(map(str, shown))}")
    return CellFile(tuple(cells), notices=tuple(notices))


def _text_cell(lines: Sequence[str]) -> Iterator[SourceCell]:
    if source := "\n".join(lines).strip("\n").rstrip():
        yield SourceCell(CellKind.MARKDOWN, source)


def _skip_notices(skipped: Mapping[str, Sequence[int]], wanted: Language) -> Iterator[str]:
    for language, lines in skipped.items():
        where = ", ".join(map(str, lines))
        yield f"not run, because not marked as {wanted.title()}: {language} (line {where})"


def weave(source: CellFile, exported: NotebookNode, executions: Sequence[str | None]) -> NotebookNode:
    """Return the notebook of a run: `source`'s cells in order, the code cells with their recorded outputs.

    `exported` is the gateway's notebook of the session. `executions` has for each cell of `source` the
    execution that ran it, or None for a cell that did not run. The result is not the file that the gateway
    sealed, so it has no seal: neither that one nor one that `source` had.
    """
    recorded = {
        cell.metadata.get("cellgate", {}).get("execution"): cell
        for cell in exported.cells
        if cell.cell_type == CellKind.CODE
    }
    cells = [
        _woven_cell(cell, recorded.get(execution) if execution else None)
        for cell, execution in zip(source.cells, executions, strict=True)
    ]
    metadata = {**source.metadata, **exported.metadata}
    metadata["cellgate"] = {
        name: value for name, value in metadata.get("cellgate", {}).items() if name != "seal"
    }
    return _with_ids(_v4.new_notebook(metadata=metadata, cells=cells))


def _woven_cell(cell: SourceCell, recorded: NotebookNode | None) -> NotebookNode:
    makers = {
        CellKind.CODE: _v4.new_code_cell,
        CellKind.MARKDOWN: _v4.new_markdown_cell,
        CellKind.RAW: _v4.new_raw_cell,
    }
    # Metadata of an earlier run does not apply to this one.
    kept = {name: value for name, value in cell.metadata.items() if name not in _OF_A_RUN}
    woven: NotebookNode = makers[cell.kind](cell.source, metadata=_nbformat.from_dict(kept))
    if cell.id is not None:
        woven.id = cell.id
    if cell.attachments is not None:
        woven.attachments = cell.attachments
    if recorded is not None:
        woven.execution_count = recorded.execution_count
        woven.outputs = recorded.outputs
        woven.metadata.update(recorded.metadata)
    return woven
