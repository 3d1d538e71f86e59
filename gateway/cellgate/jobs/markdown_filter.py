"""Markdown of notebooks as HTML with formulas: nbconvert's own renderer, which knows where formulas are.

A Markdown cell is its author's, who may write any HTML. None of it may look like a cell that ran, so what
only the page itself has is left out (``pages.sanitise``). Imports nbconvert, so only the job that converts
imports this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jinja2 import pass_context
from jinja2.runtime import Context
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath

from cellgate.jobs.formulas import Formulas, environment
from cellgate.pages import sanitise


class _Renderer(IPythonRenderer):
    """nbconvert's renderer leaves formulas to scripts; this one typesets them where possible."""

    def __init__(self, formulas: Formulas, attachments: Any) -> None:
        super().__init__(escape=False, attachments=attachments)
        self._formulas = formulas

    def inline_math(self, body: str) -> str:
        """Return a formula in a line."""
        return self._formulas.place(body, block=False) or super().inline_math(body)

    def block_math(self, body: str) -> str:
        """Return a formula in a line of its own."""
        return self._formulas.place(body, block=True) or super().block_math(body)

    def latex_environment(self, name: str, body: str) -> str:
        """Return an environment, which is a formula or something else of LaTeX."""
        found = environment(f"\\begin{{{name}}}{body}\\end{{{name}}}")
        place = None if found is None else self._formulas.place(found, block=True)
        return place or super().latex_environment(name, body)


def markdown_filter(formulas: Formulas) -> Callable[[Context, str], str]:
    """Return the filter of nbconvert's templates that makes HTML of Markdown, with these formulas."""

    @pass_context
    def markdown2html(context: Context, source: str) -> str:
        cell = context.get("cell", {})
        renderer = _Renderer(formulas, cell.get("attachments", {}))
        made = str(MarkdownWithMath(renderer=renderer).render(source))
        # An output in Markdown is one of a cell that ran. The filter that follows tells what is too deep.
        if cell.get("cell_type") != "markdown" or sanitise.too_deep(made):
            return made
        return sanitise.authors_markup(made)

    return markdown2html
