"""Single outputs of a result apart from it: images left out or named by an address, and an output as bytes.

Pure. Results are ``results``; who asks for what is the handlers' affair.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from enum import StrEnum
from typing import Any
from urllib.parse import quote

import msgspec

from cellgate.wire.errors import NotFound

_TEXT_IMAGE = "image/svg+xml"
_BINARY = ("image/", "audio/", "video/", "application/pdf")


class Images(StrEnum):
    """Where a result has its images: in it, behind addresses, or nowhere."""

    INLINE = "inline"
    URL = "url"
    NONE = "none"


def without_images(output: dict[str, Any], address: str | None) -> dict[str, Any]:
    """The output without its images; where `address` is given, the metadata of each says where it is.

    ``metadata[mime]["url"]`` is beside what Jupyter keeps there, an image's width and height.
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
            metadata[mime] = {**(known if isinstance(known, Mapping) else {}), "url": address + query}
    return {**output, "data": rest or {"text/plain": f"[{images[0]}]"}, "metadata": metadata}


def output_bytes(output: Mapping[str, Any], mime: str | None = None) -> tuple[str, bytes]:
    """An nbformat output as a media type and its bytes: its image if it has one, else its whole text.

    `mime` names one of a display's representations. Raises NotFound when it has none of this type.
    """
    match output["output_type"]:
        case "stream":
            data = {"text/plain": output["text"]}
        case "error":
            data = {"text/plain": "\n".join(output["traceback"]) or f"{output['ename']}: {output['evalue']}"}
        case _:
            data = output["data"]
    if mime is None:
        images = [each for each in data if each.startswith("image/")]
        mime = next(iter([*images, *(["text/plain"] if "text/plain" in data else data)]), None)
    if mime is None or mime not in data:
        raise NotFound(f"This output has {', '.join(data) or 'nothing'}")
    return mime, _decode(mime, data[mime])


def _decode(mime: str, value: Any) -> bytes:
    if not isinstance(value, str):
        return msgspec.json.encode(value)
    if mime.startswith(_BINARY) and mime != _TEXT_IMAGE:
        try:
            return base64.b64decode(value)
        except binascii.Error:
            # The kernel says that it is an image; what it sent is all there is.
            return value.encode()
    return value.encode()
