"""Converts a notebook to HTML, Markdown or a script with nbconvert (the extra ``html``).

As a program (``python -m cellgate.jobs.convert html|markdown|script``) it is the conversion job: stdin to
stdout, in its own process, because outputs come from user code and nbconvert is slow. The exporters run no
cells and fetch nothing. The media types and file extensions of the forms are defined here too.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellgate.errors import NotAcceptable
from cellgate.jobs.formulas import Formulas
from cellgate.jobs.job_output import give
from cellgate.pages.html_frame import document

_NEEDED = ("nbconvert", "nh3", "tinycss2")
_STYLE = re.compile(r"<style[^<>]*+>([^<]*+)</style>")
_BODY = '<body class="jp-Notebook" data-jp-theme-light="true" data-jp-theme-name="JupyterLab Light"><main>'
_SHOWN = (".jp-OutputArea-output",)
"""The parts of nbconvert's page that have styles of their own: outputs of cells."""
_KEPT_IN_PLACE = ".jp-Cell, .jp-Cell-outputWrapper, .jp-OutputArea-child { contain: layout paint !important }"
"""Keeps a cell's output in its place, however it is positioned: it covers no code and no other cell."""
_PRINTED = """@media print {
  body { margin: 0 !important }
  pre { overflow-wrap: anywhere; white-space: pre-wrap !important }
  thead { display: table-header-group }
  img, svg, tr { break-inside: avoid }
  img, svg, table { max-width: 100% !important }
  .jp-OutputArea-output { overflow: visible !important }
}"""
"""On paper nothing can be scrolled, and neither a picture nor a row is cut by the end of a sheet."""
_TICKS = re.compile("`+")
_EXTENSION = re.compile(r"\.\w{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ConvertedForm:
    """A form that notebooks are converted to. `extension` of the file; a script's depends on its language."""

    media_type: str
    extension: str


FORMS: Mapping[str, ConvertedForm] = {
    "html": ConvertedForm("text/html", ".html"),
    "markdown": ConvertedForm("text/markdown", ".md"),
    "script": ConvertedForm("text/plain", ".py"),
}


def missing() -> list[str]:
    """Return the packages of the extra ``html`` that are not installed."""
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def check_form(form: str) -> ConvertedForm:
    """Return the form with this name. Raises NotAcceptable if there is none or nbconvert is missing."""
    if form not in FORMS:
        raise NotAcceptable(
            f"format {form[:40]!r} is not available here; choose {', '.join(FORMS)}, or none for .ipynb"
        )
    if absent := missing():
        raise NotAcceptable(
            f"This gateway has no {', '.join(absent)}; install it with: pip install 'cellgate[server,html]'"
        )
    return FORMS[form]


def extension_of(form: str, language_info: Mapping[str, Any]) -> str:
    """Return the file extension of this form; for a script, that of its language if it is harmless."""
    told = language_info.get("file_extension")
    if form == "script":
        return told if isinstance(told, str) and _EXTENSION.fullmatch(told) else ".txt"
    return FORMS[form].extension


def convert(notebook: str, form: str) -> str:
    """Return an nbformat 4 notebook as text in this form."""
    import nbformat  # noqa: PLC0415 - slow to load, and only the job needs it

    node = nbformat.reads(notebook, as_version=4)  # type: ignore[no-untyped-call]
    if form != "script":
        _show_what_did_not_run(node)
    if form == "html":
        return _html(node)
    if form == "markdown":
        return _markdown(node)
    return _script(node)


def _show_what_did_not_run(node: Any) -> None:
    """Show a reader which cells a rollback undid, and what is an author's; a script is without the former."""
    cells = []
    for cell in node.cells:
        known = cell.metadata.get("cellgate")
        known = known if isinstance(known, Mapping) else {}
        if cell.cell_type == "raw" and (known.get("undone") or known.get("from_file")):
            # As text: nbconvert would take a raw cell for markup, which could look like any cell.
            fence = "`" * (3 + max(map(len, _TICKS.findall(cell.source)), default=0))
            said = "Undone by a rollback" if known.get("undone") else "A raw cell of the file"
            cell.cell_type = "markdown"
            cell.source = f"*{said}:*\n\n{fence}\n{cell.source}\n{fence}"
        elif cell.cell_type == "code" and known.get("from_file"):
            changed = known.get("changed_since")
            cells.append(_note("Other code than what ran here:" if changed else "This cell did not run:"))
        cells.append(cell)
    known = node.metadata.get("cellgate")
    if isinstance(known, Mapping) and isinstance(order := known.get("order"), Mapping):
        said = "The order of the cells and their texts are those of a file, outputs are the record's"
        left_out = order.get("cells_left_out")
        told = f"; cells of the record that are left out: {left_out}" if left_out else ""
        cells.insert(0, _note(f"{said}{told}."))
    node.cells = cells


def _note(text: str) -> Any:
    """Return a cell with a note of ours."""
    from nbformat import v4  # noqa: PLC0415

    return v4.new_markdown_cell(f"*{text}*")  # type: ignore[no-untyped-call]


def _make_still(node: Any, form: str, typeset: Callable[[str], str | None] = lambda _: None) -> None:
    """Reduce each output to the type that the form shows; nbconvert ignores types that it does not know."""
    import nbformat  # noqa: PLC0415

    from cellgate.record.export.stills import still  # noqa: PLC0415
    from cellgate.record.export.widgets import saved_states  # noqa: PLC0415

    states = saved_states(node.metadata)
    node.metadata.pop("widgets", None)  # nbconvert takes its shape for granted
    for cell in node.cells:
        if cell.cell_type == "code":
            seen = (still(output, form, states.get, typeset) for output in cell.outputs)
            cell.outputs = [nbformat.from_dict(output) for output in seen if output is not None]  # type: ignore[no-untyped-call]


def _html(node: Any) -> str:
    import nbconvert  # noqa: PLC0415
    from nbformat import v4  # noqa: PLC0415

    from cellgate.jobs.markdown_filter import markdown_filter  # noqa: PLC0415 - nbconvert, too
    from cellgate.pages import sanitise  # noqa: PLC0415 - nh3 is in the same extra as nbconvert

    found: list[str] = []
    formulas = Formulas()
    _make_still(node, "html", formulas.of_output)

    def clean(text: object) -> str:
        """Replace nbconvert's filter: one output's markup, balanced so that it can't swallow later ones."""
        kept, styles = sanitise.split_styles(str(text))
        if sanitise.too_deep(kept):
            return "<p>[cellgate: this output is nested too deeply to be shown]</p>"
        found.extend(styles)
        return sanitise.markup(kept)

    exporter: Any = nbconvert.HTMLExporter  # untyped
    filters = {"clean_html": clean, "markdown2html": markdown_filter(formulas)}
    cells = exporter(template_file="base.html.j2", sanitize_html=True, filters=filters)
    body = formulas.filled(sanitise.markup(_text(cells, node)))
    # The styles of an empty page are nbconvert's own; those of the outputs follow, as in the original page.
    empty = _text(exporter(), v4.new_notebook())  # type: ignore[no-untyped-call]
    # Limited to outputs of cells: otherwise they could hide other parts of the page, or undo that limit.
    limited = (sanitise.rules(css, _SHOWN) for css in found)
    styles = [*_STYLE.findall(empty), _KEPT_IN_PLACE, _PRINTED, *limited]
    return document(_title(node.metadata), "\n".join(styles), f"{_BODY}{body}</main></body>")


def _title(metadata: Mapping[str, Any]) -> str:
    known = metadata.get("cellgate")
    if not isinstance(known, Mapping):
        return "Notebook"
    own = known.get("metadata")
    for told in (own.get("title") if isinstance(own, Mapping) else None, known.get("session")):
        if isinstance(told, str) and told.strip():
            return told
    return "Notebook"


def _markdown(node: Any) -> str:
    import nbconvert  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    _make_still(node, "markdown")
    # Keep pictures inside the file instead of extracting them into separate files.
    config = Config({"ExtractOutputPreprocessor": {"enabled": False}})
    exporter: Any = nbconvert.MarkdownExporter  # untyped
    return _text(exporter(config=config), node)


def _script(node: Any) -> str:
    import nbconvert  # noqa: PLC0415

    language = node.metadata.setdefault("language_info", {})
    if language.get("nbconvert_exporter") != "python":
        # The kernel sets this name, and it could be any importable class.
        language.pop("nbconvert_exporter", None)
    language["file_extension"] = extension_of("script", language)
    exporter: Any = nbconvert.ScriptExporter  # untyped
    return _text(exporter(), node)


def _text(exporter: Any, node: Any) -> str:
    """Return the result of an nbconvert exporter, which is untyped."""
    text, _resources = exporter.from_notebook_node(node)
    return str(text)


def main(arguments: Sequence[str]) -> int:
    """Return the job: stdin to stdout."""
    return give(convert(sys.stdin.buffer.read().decode(), arguments[0]).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
