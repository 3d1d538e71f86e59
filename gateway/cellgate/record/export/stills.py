"""Reduces outputs to their static forms, for pages and Markdown that notebooks are converted to.

Pure: an output in; out the same with its one type to show, a line about what can't be shown, or None if it
shows nothing anywhere. A page has every picture inside, and SVG as a picture: browsers run no script in one,
and load nothing for it. ``jobs.convert`` gives the outputs to nbconvert; ``sanitise`` reduces markup.
"""

from __future__ import annotations

import base64
import html
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cellgate.pages import sanitise
from cellgate.record.export.widget_text import State, model_of, widget_text
from cellgate_kernels.codec.telling import HTML, PLAIN, chart_of, is_name

_MARKDOWN, _LATEX, _SVG = "text/markdown", "text/latex", "image/svg+xml"
_OF_NBCONVERT = ("image/png", "image/jpeg")
"""Pictures that nbconvert shows in a page on its own, apart from SVG."""
_OTHER_PICTURES = ("image/webp", "image/gif", "image/bmp", "image/avif")
_BASE64 = re.compile(r"[A-Za-z0-9+/=\s]+")
_ROOT = re.compile(r"<svg(?=[\s/>])")
_NAMESPACE = re.compile(r"\sxmlns\s*+=")
_OF_IPYTHON = "<IPython."
"""The beginning of the text of an object that only carries content; the text means nothing to a reader."""
_TAG = re.compile(r"<[^<>]*+>")
_DRAWN = re.compile(r"<(?:svg|input|hr)\b|\ssrc=\"data:image/")
_ACTIVE = re.compile(r"<(script|audio|video|canvas|iframe|object|embed|img)\b([^<>]*+)", re.IGNORECASE)
_FETCHES = re.compile(
    r"<script\b[^<>]*\ssrc=[\"']https?://|[\"']https?://[^\"'\s<>]{1,200}/npm/", re.IGNORECASE
)
"""Marks of charts whose pages load the library that draws them."""
_ODD = re.compile(r"[^\w.+/;= -]", re.ASCII)
_LONGEST_NAME = 80
_MOST_NAMES = 8
_SIZES = ("width", "height")
_LONGEST_SIZE = 100_000
"""Most pixels of a picture's size; larger numbers are ignored."""


def still(
    output: Mapping[str, Any],
    form: str,
    widgets: Callable[[str], State | None] = lambda _: None,
    typeset: Callable[[str], str | None] = lambda _: None,
) -> dict[str, Any] | None:
    """Return the output's static form for ``html`` or ``markdown``; None if there is nothing to show.

    `widgets`: returns the last state of a widget's model. `typeset`: markup for LaTeX in a page, if any.
    """
    kind = output.get("output_type")
    if kind == "stream":
        return dict(output) if output.get("text") else None
    if kind not in {"display_data", "execute_result"}:
        return dict(output)
    told = output.get("data")
    data = told if isinstance(told, Mapping) else {}
    if (model := model_of(data)) is not None and (last := widget_text(model, widgets)):
        data = {**data, PLAIN: last}
    for mime, value in _pieces(data, output.get("metadata"), form, typeset):
        return {**output, "data": {mime: value}, "metadata": _size(output.get("metadata"), mime)}
    if unseen := [mime for mime in data if _has_more(mime, data[mime])]:
        return {**output, "data": {PLAIN: _remark("this output", unseen)}, "metadata": {}}
    styles = _text(data.get(HTML))
    if styles is not None and styles.strip():
        # The output shows nothing itself, and so needs no prompt; its styles may be for other outputs.
        return {"output_type": "display_data", "data": {HTML: styles}, "metadata": {}}
    return None


def _pieces(
    data: Mapping[str, Any], metadata: object, form: str, typeset: Callable[[str], str | None]
) -> Iterator[tuple[str, str]]:
    """Yield the forms to show, best first, each of a type that nbconvert can show in this form."""
    markup = _text(data.get(HTML))
    if markup is not None and _is_seen(markup):
        yield HTML, markup + _left_out(markup) if form == "html" else markup
    yield from _texts(data, _MARKDOWN)
    drawing = _text(data.get(_SVG))
    if drawing is not None and (whole := _drawing(drawing)) is not None:
        encoded = base64.b64encode(whole.encode("utf-8", "replace")).decode()
        yield (_SVG, whole) if form == "html" else (_MARKDOWN, _linked(_SVG, encoded))
    for mime, formula in _texts(data, _LATEX):
        if form == "html":
            # LaTeX that can't be typeset is shown as text.
            escaped = html.escape(formula, quote=False)
            yield HTML, typeset(formula) or f'<pre class="math">{escaped}</pre>'
        else:
            yield mime, formula
    for mime, encoded in _pictures(data):
        if form == "markdown":
            yield _MARKDOWN, _linked(mime, encoded)
        elif mime in _OF_NBCONVERT:
            yield mime, encoded
        else:
            sizes = "".join(f' {name}="{value}"' for name, value in _size(metadata, mime).items())
            yield HTML, f'<img src="data:{mime};base64,{encoded}"{sizes}>'
    if (chart := chart_of(data)) is not None:
        yield PLAIN, f"[{chart} chart: {_shown_by(data)}]"
    yield from _plain_texts(data)


def _shown_by(data: Mapping[str, Any]) -> str:
    """Return the library that shows a chart without a picture; its page may need the network."""
    if any(mime.startswith("application/vnd.") for mime in data):
        return "the console shows it, or a program for notebooks that draws such charts"
    if _FETCHES.search(_text(data.get(HTML)) or ""):
        return "a browser shows it that runs its scripts and may fetch others"
    return "the console shows it, or a program for notebooks, such as JupyterLab"


def _pictures(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for mime in (*_OF_NBCONVERT, *_OTHER_PICTURES):
        written = _text(data.get(mime))
        if written is not None and _BASE64.fullmatch(written) and (encoded := "".join(written.split())):
            yield mime, encoded


def _plain_texts(data: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    plain = _text(data.get(PLAIN))
    if plain is not None and not plain.strip():
        plain = None
    named = plain is not None and is_name(plain)
    if plain is not None and not named:
        yield PLAIN, plain
    if data.get("application/json") is not None:
        yield PLAIN, json.dumps(data["application/json"], indent=1, ensure_ascii=False)
    for mime in data:
        if mime.startswith("text/") and mime not in {HTML, PLAIN} and "script" not in mime:
            yield from ((PLAIN, text) for _, text in _texts(data, mime))
    if plain is not None and named and not plain.lstrip().startswith(_OF_IPYTHON):
        yield PLAIN, plain


def _texts(data: Mapping[str, Any], mime: str) -> Iterator[tuple[str, str]]:
    text = _text(data.get(mime))
    if text is not None and text.strip():
        yield mime, text


def _text(value: object) -> str | None:
    """Return a value as text: a text, a list of lines or a number; None for anything else."""
    if isinstance(value, str):
        return value
    if isinstance(value, (int, float)):
        return json.dumps(value)
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return None


def _is_seen(markup: str) -> bool:
    """Return whether a page without scripts would show any of the markup."""
    if not markup.strip():
        return False
    kept, _ = sanitise.split_styles(markup)
    if sanitise.too_deep(kept):
        return True  # the page says so in its place
    left = sanitise.markup(kept)
    return _DRAWN.search(left) is not None or bool(_TAG.sub("", left).replace("&nbsp;", "").strip())


def _left_out(markup: str) -> str:
    """Return a paragraph about the parts that are left out; scripts are most often aids."""
    parts = sorted(_active(markup) - {"script"})
    if not parts:
        return ""
    return f"<p>{_remark('part of this output', parts, 'element')}</p>"


def _active(markup: str) -> set[str]:
    """Return the names of the elements that run, play or load something: a page shows none of them."""
    return {
        name
        for found in _ACTIVE.finditer(markup)
        if (name := found[1].lower()) != "img" or "data:image/" not in found[2]
    }


def _drawing(text: str) -> str | None:
    """Return SVG as a separate file, which needs a namespace, unlike in a page. None if it is no SVG."""
    root = _ROOT.search(text)
    if root is None:
        return text if "<svg:" in text else None
    end = text.find(">", root.end())
    if _NAMESPACE.search(text, root.end(), end if end >= 0 else len(text)):
        return text
    return f'{text[: root.end()]} xmlns="http://www.w3.org/2000/svg"{text[root.end() :]}'


def _linked(mime: str, encoded: str) -> str:
    """Return a picture in Markdown, in a paragraph of its own."""
    name = mime.removeprefix("image/").removesuffix("+xml")
    return f"\n![{name}](data:{mime};base64,{encoded})\n"


def _size(metadata: object, mime: str) -> dict[str, int]:
    """Return the width and height for a picture. Other metadata is ignored."""
    told = metadata if isinstance(metadata, Mapping) else {}
    own = told.get(mime)
    known = {**told, **own} if isinstance(own, Mapping) else told
    return {
        name: int(value)
        for name in _SIZES
        if isinstance(value := known.get(name), (int, float)) and 0 < value < _LONGEST_SIZE
    }


def _has_more(mime: str, value: Any) -> bool:
    """Return whether another program might show the value, of which a page shows nothing."""
    if mime == PLAIN or value is None:
        return False
    text = _text(value)
    if mime == HTML and text is not None:
        return bool(_active(text))
    return text is None or bool(text.strip())


def _remark(what: str, names: list[str], kind: str = "MIME type") -> str:
    shown = [_ODD.sub("?", name[:_LONGEST_NAME]) for name in names[:_MOST_NAMES]]
    more = ", ..." if len(names) > _MOST_NAMES else ""
    several = "s" if len(names) > 1 else ""
    return (
        f"[cellgate: {what} can only be shown by a program for notebooks, such as JupyterLab:"
        f" {kind}{several} {', '.join(shown)}{more}]"
    )
