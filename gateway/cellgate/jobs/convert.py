"""A notebook as a page, as Markdown or as a script, by nbconvert (the extra ``html``).

As a program (``python -m cellgate.jobs.convert html|markdown|script``) it is the job that converts: stdin to
stdout, in a process of its own, because outputs are user code's and nbconvert is slow. Its exporters run
no cell and fetch nothing. What the wire calls the results is here too.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cellgate.jobs.job_output import give
from cellgate.record.pages import document
from cellgate.wire.errors import NotAcceptable

_NEEDED = ("nbconvert", "nh3", "tinycss2")
_STYLE = re.compile(r"<style[^>]*>([^<]*)</style>")
_BODY = '<body class="jp-Notebook" data-jp-theme-light="true" data-jp-theme-name="JupyterLab Light"><main>'
_EXTENSION = re.compile(r"\.\w{1,10}", re.ASCII)


@dataclass(frozen=True, slots=True)
class ConvertedForm:
    """A form that notebooks are converted to. `extension` of the file, which a script's language decides."""

    media_type: str
    extension: str


FORMS: Mapping[str, ConvertedForm] = {
    "html": ConvertedForm("text/html", ".html"),
    "markdown": ConvertedForm("text/markdown", ".md"),
    "script": ConvertedForm("text/plain", ".py"),
}


def check_form(form: str) -> ConvertedForm:
    """The form of this name. Raises NotAcceptable when there is none, or nbconvert is missing."""
    if form not in FORMS:
        raise NotAcceptable(
            f"format {form[:40]!r} is not available here; choose {', '.join(FORMS)}, or none for .ipynb"
        )
    if missing := [name for name in _NEEDED if importlib.util.find_spec(name) is None]:
        raise NotAcceptable(
            f"This gateway has no {', '.join(missing)}; install it with: pip install 'cellgate[server,html]'"
        )
    return FORMS[form]


def extension_of(form: str, language_info: Mapping[str, Any]) -> str:
    """The extension of a file of this form; a script's is that of its language, as far as it is harmless."""
    told = language_info.get("file_extension")
    if form == "script":
        return told if isinstance(told, str) and _EXTENSION.fullmatch(told) else ".txt"
    return FORMS[form].extension


def convert(notebook: str, form: str) -> str:
    """The text of a notebook of nbformat 4 in this form."""
    import nbformat  # noqa: PLC0415 - slow to load, and only the job needs it

    node = nbformat.reads(notebook, as_version=4)  # type: ignore[no-untyped-call]
    converters: dict[str, Callable[[Any], str]] = {"html": _html, "markdown": _markdown, "script": _script}
    return converters[form](node)


def _html(node: Any) -> str:
    import nbconvert  # noqa: PLC0415
    from nbformat import v4  # noqa: PLC0415

    from cellgate.record import sanitise  # noqa: PLC0415 - nh3 is of the same extra as nbconvert

    found: list[str] = []

    def clean(text: object) -> str:
        """In nbconvert's place: one output's markup, balanced, so that it can't swallow those after it."""
        kept, styles = sanitise.split_styles(str(text))
        if sanitise.too_deep(kept):
            return "<p>[cellgate: this output is nested too deeply to be shown]</p>"
        found.extend(styles)
        return sanitise.markup(kept)

    exporter: Any = nbconvert.HTMLExporter  # untyped
    cells = exporter(template_file="base.html.j2", sanitize_html=True, filters={"clean_html": clean})
    body = sanitise.markup(_text(cells, node))
    # The styles of an empty page are nbconvert's own; those of the outputs come after them, as they did.
    empty = _text(exporter(), v4.new_notebook())  # type: ignore[no-untyped-call]
    styles = [*_STYLE.findall(empty), *map(sanitise.rules, found)]
    return document(_title(node.metadata), "\n".join(styles), f"{_BODY}{body}</main></body>")


def _title(metadata: Mapping[str, Any]) -> str:
    known = metadata.get("cellgate")
    told = known.get("session") if isinstance(known, Mapping) else None
    return told if isinstance(told, str) and told else "Notebook"


def _markdown(node: Any) -> str:
    import nbconvert  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    # One file: pictures in it, and not beside it.
    config = Config({"ExtractOutputPreprocessor": {"enabled": False}})
    exporter: Any = nbconvert.MarkdownExporter  # untyped
    return _text(exporter(config=config), node)


def _script(node: Any) -> str:
    import nbconvert  # noqa: PLC0415

    language = node.metadata.setdefault("language_info", {})
    if language.get("nbconvert_exporter") != "python":
        # It may name any class that can be imported, and it is a kernel that says it.
        language.pop("nbconvert_exporter", None)
    language["file_extension"] = extension_of("script", language)
    exporter: Any = nbconvert.ScriptExporter  # untyped
    return _text(exporter(), node)


def _text(exporter: Any, node: Any) -> str:
    """What an exporter of nbconvert, which is untyped, makes."""
    text, _resources = exporter.from_notebook_node(node)
    return str(text)


def main(arguments: Sequence[str]) -> int:
    """The job: stdin to stdout."""
    return give(convert(sys.stdin.buffer.read().decode(), arguments[0]).encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
