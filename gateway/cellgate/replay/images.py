"""Compares two pictures visually: they look the same, or a third picture shows where they differ.

Pillow reads them. The bytes come from user code, so only PNG and JPEG are read, and nothing huge. It runs
where a crash or a long run time affects nobody else: in a job's own process, or in the command.
"""

from __future__ import annotations

import io
import warnings
from dataclasses import dataclass

from PIL import Image, ImageChops, ImageFilter, ImageOps

from cellgate_kernels.base.errors import in_words

MOST_PIXELS = 40_000_000
WIDEST = 1600
"""Maximum width of the picture of the difference, in pixels."""
_GAP = 8

LARGEST_UNSEEN = 2.0
"""Percent of full brightness by which a spot of 3 x 3 pixels may differ without being visible."""
MOST_IN_ALL = 400_000_000


@dataclass(slots=True)
class PixelBudget:
    """Pixels that one report may still compare: a notebook can have any number of large pictures."""

    left: int = MOST_IN_ALL

    def take(self, pixels: int) -> bool:
        """Use up so many pixels; returns False, using none, if fewer are left."""
        if pixels > self.left:
            return False
        self.left -= pixels
        return True


@dataclass(frozen=True, slots=True)
class PictureComparison:
    """`same`: no difference is visible; None: not determined. `note` says by how much they differ.

    `distance`: the largest difference of a spot of 3 x 3 pixels, in percent of full brightness. `picture`
    (PNG) shows the recorded one, the replayed one, and the differing pixels in red on a pale copy.
    """

    same: bool | None
    note: str = ""
    picture: bytes | None = None
    distance: float = 0.0


def compare_pictures(recorded: bytes, replayed: bytes, budget: PixelBudget) -> PictureComparison:
    """Compare two pictures; one that can't be read makes them different, with a note that says so."""
    try:
        pixels = max(_pixels(recorded), _pixels(replayed))
        if not budget.take(2 * pixels):
            note = f"one report compares {MOST_IN_ALL // 1_000_000} million pixels, and they are used up"
            return PictureComparison(same=None, note=note)
        before, after = _read(recorded), _read(replayed)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Warning) as error:
        return PictureComparison(same=False, note=f"A picture can't be read: {in_words(error)}")
    if before.size != after.size:
        note = f"{before.width} x {before.height} pixels were recorded, {after.width} x {after.height} came"
        return PictureComparison(same=False, note=note, picture=_side_by_side(before, after))
    difference = _difference(before, after)
    count = sum(difference.histogram()[1:])
    if count == 0:
        return PictureComparison(same=True, note="the same pixels")
    distance = _distance(difference)
    total = before.size[0] * before.size[1]
    note = (
        f"{count} of {total} pixels differ ({count / total:.2%}),"
        f" by up to {distance:.1f} % of brightness in a spot; {LARGEST_UNSEEN:g} % can't be seen"
    )
    if distance <= LARGEST_UNSEEN:
        return PictureComparison(same=True, note=note, distance=distance)
    changed = difference.point(lambda value: 255 if value else 0)
    return PictureComparison(False, note, _side_by_side(before, after, changed), distance)


def _pixels(data: bytes) -> int:
    """Return the header's number of pixels. Raises Pillow's errors, and ValueError for a bomb."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            width, height = image.size
    if width * height > MOST_PIXELS:
        raise ValueError(f"{width} x {height} pixels are too many")
    return width * height


def _read(data: bytes) -> Image.Image:
    with warnings.catch_warnings():
        warnings.simplefilter("error", Image.DecompressionBombWarning)
        with Image.open(io.BytesIO(data), formats=("PNG", "JPEG")) as image:
            return image.convert("RGBA")


def _difference(before: Image.Image, after: Image.Image) -> Image.Image:
    """Return each pixel's difference, from 0 to 255, in the channel that differs most.

    Compared on white and on black, so that invisible differences in transparent areas don't count.
    """
    found = None
    for ground in ("white", "black"):
        bands = ImageChops.difference(_on(ground, before), _on(ground, after)).split()
        for band in bands:
            found = band if found is None else ImageChops.lighter(found, band)
    assert found is not None
    return found


def _distance(difference: Image.Image) -> float:
    """Return the largest mean of 3 x 3 pixels, in percent: high for a moved edge, low for a smoothed one."""
    padded = ImageOps.expand(difference, border=2)
    largest = padded.filter(ImageFilter.BoxBlur(1)).getextrema()[1]
    assert isinstance(largest, (int, float))
    return largest / 255 * 100


def _side_by_side(before: Image.Image, after: Image.Image, changed: Image.Image | None = None) -> bytes:
    panels = [_on("white", before), _on("white", after)]
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


def _on(ground: str, image: Image.Image) -> Image.Image:
    sheet = Image.new("RGB", image.size, ground)
    sheet.paste(image, mask=image.getchannel("A"))
    return sheet
