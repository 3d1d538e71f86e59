"""The pictures among a cell's outputs, as bytes that a program can use, or save. Pure otherwise."""

from __future__ import annotations

import base64
import binascii
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ENCODED = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""The types of pictures that a MIME bundle has in base64, the best first."""
SVG = "image/svg+xml"


@dataclass(frozen=True, slots=True, repr=False)
class Image:
    """A picture that a cell has shown: the content of a file of this `type`, such as ``image/png``."""

    type: str
    data: bytes

    def __repr__(self) -> str:
        return f"Image({self.type!r}, {len(self.data)} bytes)"

    @property
    def base64(self) -> str:
        """The content in base64, as APIs of models and pages take it."""
        return base64.b64encode(self.data).decode()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the image to a file, replacing an existing one. Raises OSError."""
        Path(path).write_bytes(self.data)


def images_in(outputs: Iterable[Mapping[str, Any]]) -> list[Image]:
    """Return pictures of the outputs, one of each output that has any; what can't be decoded is left out."""
    found = (_image(output.get("data")) for output in outputs)
    return [image for image in found if image is not None]


def _image(data: object) -> Image | None:
    if not isinstance(data, dict):
        return None
    for kind in ENCODED:
        if isinstance(encoded := data.get(kind), str):
            try:
                return Image(kind, base64.b64decode(encoded))
            except (binascii.Error, ValueError):  # ValueError: of characters that are not ASCII
                return None
    if isinstance(drawing := data.get(SVG), str):
        return Image(SVG, drawing.encode("utf-8", errors="replace"))
    return None
