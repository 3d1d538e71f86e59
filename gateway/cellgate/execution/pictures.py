"""Handles single outputs of a result: images removed or replaced by URLs, and an output as bytes.

Pure. ``results`` builds results; handlers know what was requested.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

from cellgate.errors import NotFound

_TEXT_IMAGE = "image/svg+xml"
_BINARY = ("image/", "audio/", "video/", "application/pdf")


class Images(StrEnum):
    """Where a result has its images: inline, at URLs, or nowhere."""

    INLINE = "inline"
    URL = "url"
    NONE = "none"


def without_images(output: dict[str, Any], address: str | None) -> dict[str, Any]:
    """Return the output without its images; if `address` is given, the metadata says where each image is.

    ``metadata[mime]["url"]`` is added to Jupyter's own metadata there, an image's width and height.
    """
    data = output.get("data", {})
    images = [mime for mime in data if mime.startswith("image/")]
    if not images:
        return output
    rest = {mime: value for mime, value in data.items() if mime not in images}
    metadata = dict(output["metadata"])
    if address is not None:
        for mime in images:
            query = f"?type={quote(mime, safe='/')}" if len(images) > 1 else ""
            known = metadata.get(mime)
            if not isinstance(known, Mapping):
                known = {}
            metadata[mime] = {**known, "url": address + query}
    return {**output, "data": rest or {"text/plain": f"[{images[0]}]"}, "metadata": metadata}


def output_bytes(output: Mapping[str, Any], mime: str | None = None) -> tuple[str, bytes]:
    """Return the media type and bytes of an nbformat output: its image, otherwise its whole text.

    `mime` selects one of a display's representations. Raises NotFound when there is none of this type.
    """
    match output["output_type"]:
        case "stream":
            data = {"text/plain": output["text"]}
        case "error":
            data = {"text/plain": "\n".join(output["traceback"]) or f"{output['ename']}: {output['evalue']}"}
        case _:
            data = output["data"]
    if mime is None:
        mime = _preferred(data)
    if mime is None or mime not in data:
        raise NotFound(f"This output has {', '.join(data) or 'nothing'}")
    return mime, _decode(mime, data[mime])


def _preferred(data: Mapping[str, Any]) -> str | None:
    """Return the type of the first image, otherwise plain text, otherwise the first type."""
    images = [mime for mime in data if mime.startswith("image/")]
    if images:
        return images[0]
    if "text/plain" in data:
        return "text/plain"
    return next(iter(data), None)


def _decode(mime: str, value: Any) -> bytes:
    if not isinstance(value, str):
        return msgspec.json.encode(value)
    if mime.startswith(_BINARY) and mime != _TEXT_IMAGE:
        try:
            return base64.b64decode(value)
        except binascii.Error:
            # The kernel claims a binary type but sent no base64: return the text as it is.
            return value.encode()
    return value.encode()
