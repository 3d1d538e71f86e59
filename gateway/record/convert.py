"""A notebook as a page, as Markdown or as a script, by nbconvert (the extra ``html``).

As a program (``python -m gateway.record.convert html|markdown|script``) it is the job that converts: stdin to
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

from gateway.errors import NotAcceptable

PAGE_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:"
"""What an exported page may load: nothing, and no script runs."""
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
            f"format {form[:40]!r} is not offered here; there are {', '.join(FORMS)}, and .ipynb without one"
        )
    if importlib.util.find_spec("nbconvert") is None:
        raise NotAcceptable("This gateway has no nbconvert; install it with: pip install 'cellgate[html]'")
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

    text = _export(nbconvert.HTMLExporter, node)
    # The header of the answer is gone once the page is a file; this stays in it.
    policy = f'<meta http-equiv="Content-Security-Policy" content="{PAGE_POLICY}">'
    return re.sub(r"<head>", f"<head>{policy}", text, count=1)


def _markdown(node: Any) -> str:
    import nbconvert  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    # One file: pictures in it, and not beside it.
    config = Config({"ExtractOutputPreprocessor": {"enabled": False}})
    return _export(nbconvert.MarkdownExporter, node, config=config)


def _script(node: Any) -> str:
    import nbconvert  # noqa: PLC0415

    language = node.metadata.setdefault("language_info", {})
    if language.get("nbconvert_exporter") != "python":
        # It may name any class that can be imported, and it is a kernel that says it.
        language.pop("nbconvert_exporter", None)
    language["file_extension"] = extension_of("script", language)
    return _export(nbconvert.ScriptExporter, node)


def _export(exporter: Any, node: Any, **options: Any) -> str:
    """What an exporter of nbconvert, which is untyped, makes."""
    text, _resources = exporter(**options).from_notebook_node(node)
    return str(text)


def main(arguments: Sequence[str]) -> int:
    """The job: stdin to stdout."""
    sys.stdout.buffer.write(convert(sys.stdin.buffer.read().decode(), arguments[0]).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
