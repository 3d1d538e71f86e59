"""How a display or a result is told in text: the one place that decides it for results and commands.

Pure: a MIME bundle in, a text out. An object's own plain text comes first, unless it only names the object,
as ``<... object at 0x...>`` does, and another type says what is to be read. Charts, which are drawings, are
named as pictures are. ``outputs`` joins the texts of a cell, ``hypertext`` reads HTML.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from cellgate_kernels.codec.hypertext import read_html

HTML, PLAIN = "text/html", "text/plain"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_READABLE = ("text/markdown", "text/latex")
_MEDIA = ("image/", "audio/", "video/", "application/pdf")
_LONGEST_NAME = 500
_NAME = re.compile(r"<IPython\.(?:core|lib)\.display\.\w+ object>|<[^<>\n]{1,400} at 0x[0-9a-fA-F]{1,16}>")
_CHARTS = (
    ("application/vnd.plotly.", "Plotly"),
    ("application/vnd.vegalite.", "Vega-Lite"),
    ("application/vnd.vega.", "Vega"),
)
_OF_VENDORS = "application/vnd."
_ALTAIR = ("alt.", "<VegaLite ")
"""How the plain text of a chart begins that Altair has made."""
_IN_HTML = (('id="altair-viz-', "Altair"), ('class="plotly-graph-div', "Plotly"))


def tell(data: Mapping[str, Any], read: Callable[[str], str] = read_html) -> str:
    """Return what a reader is told of a MIME bundle, "" for an empty one. `read`: the text of HTML."""
    if (chart := chart_of(data)) is not None:
        return f"[{chart} chart]"
    plain = _text(data.get(PLAIN))
    if plain and not is_name(plain):
        return plain
    for mime in _READABLE:
        if mime in data:
            return _text(data[mime]) or ""
    if "application/json" in data:
        return msgspec.json.encode(data["application/json"]).decode()
    if (media := next((mime for mime in data if mime.startswith(_MEDIA)), None)) is not None:
        return f"[{media}]"
    if (html := _text(data.get(HTML))) is not None and (words := read(html)):
        return words
    return plain or "".join(f"[{mime}]" for mime in data if mime != PLAIN)


def is_name(plain: str) -> bool:
    """Return whether a plain text only names its object, as Python's default representation does."""
    bare = plain.strip() if len(plain) < _LONGEST_NAME else ""
    return _NAME.fullmatch(bare) is not None


def chart_of(data: Mapping[str, Any]) -> str | None:
    """Return the library of the chart that this is, by its name; None for anything else."""
    vendors = [mime for mime in data if mime.startswith(_OF_VENDORS)]
    if vendors:
        for begin, library in _CHARTS:
            if any(mime.startswith(begin) for mime in vendors):
                plain = _text(data.get(PLAIN)) or ""
                return "Altair" if library == "Vega-Lite" and plain.startswith(_ALTAIR) else library
    if HTML not in data:
        return None
    html = _text(data[HTML]) or ""
    return next((library for mark, library in _IN_HTML if mark in html), None)


def _text(value: object) -> str | None:
    """Return a text, also one that is a list of its lines, as notebooks have it; None where there is none."""
    if isinstance(value, list) and all(isinstance(line, str) for line in value):
        return "".join(value)
    return None if value is None else str(value)
