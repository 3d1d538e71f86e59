"""A cell's outputs as one MIME bundle that a notebook can display.

The code that made them is not trusted: its HTML is shown in a sandboxed frame without scripts, its pictures
as images, where no scripts run either, so that a result can't affect the notebook that shows it. Pure.
"""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Mapping
from typing import Any

from cellgate.client.images import ENCODED, SVG
from cellgate_kernels.codec.telling import tell


def display_bundle(outputs: Iterable[Mapping[str, Any]], text: str, note: str = "") -> dict[str, str]:
    """Return a MIME bundle of all outputs, HTML if any is more than text. A `note` comes first."""
    parts = [f"<p>{html.escape(note)}</p>"] if note else []
    rich = False
    for output in outputs:
        data = output.get("data", {})
        if shown := _picture(data) or _page(data):
            rich = True
        parts.append(shown or _pre(output))
    bundle = {"text/plain": "\n".join(filter(None, (note, text)))}
    if rich:
        bundle["text/html"] = "\n".join(parts)
    return bundle


def _picture(data: Mapping[str, Any]) -> str:
    for mime in ENCODED:
        if isinstance(data.get(mime), str):
            return _image(mime, data[mime].replace("\n", ""))
    if isinstance(svg := data.get(SVG), str):
        return _image(SVG, base64.b64encode(svg.encode()).decode())
    return ""


def _image(mime: str, encoded: str) -> str:
    return f'<img src="data:{mime};base64,{html.escape(encoded)}">'


def _page(data: Mapping[str, Any]) -> str:
    if not isinstance(page := data.get("text/html"), str):
        return ""
    style = "width:100%;height:24em;border:0"
    return f'<iframe sandbox="" srcdoc="{html.escape(page)}" style="{style}"></iframe>'


def _pre(output: Mapping[str, Any]) -> str:
    match output.get("output_type"):
        case "stream":
            text = output.get("text", "")
        case "error":
            text = f"{output.get('ename')}: {output.get('evalue')}"
        case _:
            text = tell(output.get("data", {}))
    return f"<pre>{html.escape(str(text))}</pre>"
