"""Two pictures by their pixels: the same, or a third picture that shows where they are not.

Pillow reads them; the bytes are of user code, so only PNG and JPEG are read, and nothing that is huge. It
runs where a crash or a long time costs nobody else anything: in a job's own process, or in the command.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

from PIL import Image, ImageChops

MOST_PIXELS = 40_000_000
WIDEST = 1600
"""Pixels that the picture of the difference is wide, at most."""
_GAP = 8


@dataclass(frozen=True, slots=True)
class PictureComparison:
    """`same`: all pixels are. Else `note` says what is not, and `picture` (PNG) shows it where it can.

    The picture has the recorded one, the replayed one, and the differing pixels in red on a pale copy.
    """

    same: bool
    note: str = ""
    picture: bytes | None = None


def compare_pictures(recorded: bytes, replayed: bytes) -> PictureComparison:
    """Compare two pictures; one that can't be read makes them different, with a note that says so."""
    try:
        before, after = _read(recorded), _read(replayed)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Warning) as error:
        return PictureComparison(same=False, note=f"A picture can't be read: {error}")
    if before.size != after.size:
        note = f"{before.width} x {before.height} pixels were recorded, {after.width} x {after.height} came"
        return PictureComparison(same=False, note=note, picture=_side_by_side(before, after))
    changed = _changed(before, after)
    count = sum(changed.histogram()[255:])
    if count == 0:
        return PictureComparison(same=True)
    total = before.size[0] * before.size[1]
    note = f"{count} of {total} pixels differ ({count / total:.2%})"
    return PictureComparison(same=False, note=note, picture=_side_by_side(before, after, changed))


def _read(data: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            if image.size[0] * image.size[1] > MOST_PIXELS:
                raise ValueError(f"{image.size[0]} x {image.size[1]} pixels are too many")
            return image.convert("RGBA")


def _changed(before: Image.Image, after: Image.Image) -> Image.Image:
    """A mask: 255 where any channel of a pixel differs, else 0."""
    bands = ImageChops.difference(before, after).split()
    mask = bands[0]
    for band in bands[1:]:
        mask = ImageChops.lighter(mask, band)
    return mask.point(lambda value: 255 if value else 0)


def _side_by_side(before: Image.Image, after: Image.Image, changed: Image.Image | None = None) -> bytes:
    panels = [_on_white(before), _on_white(after)]
    if changed is not None:
        pale = Image.blend(panels[0].convert("L").convert("RGB"), Image.new("RGB", before.size, "white"), 0.6)
        pale.paste((214, 0, 28), mask=changed)
        panels.append(pale)
    width = sum(panel.width for panel in panels) + _GAP * (len(panels) - 1)
    sheet = Image.new("RGB", (width, max(panel.height for panel in panels)), (120, 120, 120))
    left = 0
    for panel in panels:
        sheet.paste(panel, (left, 0))
        left += panel.width + _GAP
    if sheet.width > WIDEST:
        height = max(1, sheet.height * WIDEST // sheet.width)
        sheet = sheet.resize((WIDEST, height), Image.Resampling.BOX)
    written = io.BytesIO()
    sheet.save(written, "PNG", optimize=True)
    return written.getvalue()


def _on_white(image: Image.Image) -> Image.Image:
    sheet = Image.new("RGB", image.size, "white")
    sheet.paste(image, mask=image.getchannel("A"))
    return sheet
