"""Pictures of cells: shown in terminals that can, saved as files, or only described.

A cell is not trusted with the terminal: its picture is decoded and encoded again here, within limits, and
only sequences that are made here reach the screen. Three protocols are known: kitty's, iTerm's, and sixel.
Which one a terminal has is told by its variables; otherwise it is asked, once, for at most `PATIENCE`.
"""

from __future__ import annotations

import base64
import binascii
import fcntl
import io
import os
import re
import select
import struct
import termios
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from cellgate_kernels.base.errors import in_brief

if TYPE_CHECKING:
    from PIL.Image import Image

PATIENCE = 0.5
"""Seconds for a terminal to say what it can. Those that say nothing cost this once."""
MOST_PIXELS = 40_000_000
SVG = "image/svg+xml"
SUFFIXES = {
    "image/png": ".png",
    "image/jpeg": ".jpg",
    "image/gif": ".gif",
    "image/webp": ".webp",
    SVG: ".svg",
}
"""The types of pictures that are known, the preferred one first, and the names of their files."""
_FORMATS = ("PNG", "JPEG", "GIF", "WEBP")

_ASKED = b"\x1b_Gi=31,s=1,v=1,a=q,t=d,f=24;AAAA\x1b\\\x1b[c"
"""kitty's question whether pictures are understood, and DA1, which every terminal answers."""
_KITTY_ANSWER = re.compile(rb"\x1b_Gi=31;OK\x1b\\")
_ATTRIBUTES = re.compile(rb"\x1b\[\?([0-9;]*)c")
_SIXEL = b"4"
_KITTY_PIECE = 4096
_SIXEL_COLOURS = 255
_SIXEL_WIDTH = 1000
"""Pixels of a sixel picture where the terminal's own width is not known."""


class Handling(StrEnum):
    """What is done with pictures."""

    SHOW = "show"
    SAVE = "save"
    NONE = "none"


class Protocol(Enum):
    """How a terminal takes pictures."""

    KITTY = "kitty"
    ITERM = "iterm"
    SIXEL = "sixel"


@dataclass(frozen=True, slots=True)
class TerminalPicture:
    """What became of a picture: words about it, and the control sequences that show it, if it is shown."""

    note: str
    sequence: str = ""


class Pictures:
    """Pictures of cells, handled as the user wants.

    `terminal`: the variables of the terminal that pictures may be shown in; None if there is none. Files are
    written to `folder`, which is made when it is needed; no file is ever replaced.
    """

    def __init__(self, handling: Handling, folder: Path, terminal: Mapping[str, str] | None) -> None:
        self._handling = handling
        self._folder = folder
        self._terminal = terminal if handling is Handling.SHOW else None
        self._protocol: Protocol | None = None
        self._asked = False
        self._cell: int | None = None
        self._count = 0

    def prepare(self) -> None:
        """Ask the terminal now, where keys that are typed while a cell runs must not be disturbed."""
        if not self._asked and self._terminal is not None:
            self._asked = True
            self._protocol = terminal_protocol(self._terminal)

    def take(self, mime: str, content: str, cell: int | None) -> TerminalPicture:
        """Show or save the picture of a cell with this prompt number."""
        if self._handling is Handling.NONE:
            return TerminalPicture("")
        self.prepare()
        if cell != self._cell:
            self._cell = cell
            self._count = 0
        try:
            data = content.encode() if mime == SVG else base64.b64decode(content)
        except (binascii.Error, ValueError) as error:
            return TerminalPicture(f"not saved: {error}")
        if self._protocol is not None and mime != SVG and (sequence := draw(data, self._protocol)):
            return TerminalPicture("", sequence)
        return TerminalPicture(self._save(data, SUFFIXES[mime], cell))

    def _save(self, data: bytes, suffix: str, cell: int | None) -> str:
        """Write a file; its name, or why there is none."""
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            while True:
                self._count += 1
                path = self._folder / f"{cell or 0}-{self._count}{suffix}"
                try:
                    with path.open("xb") as file:
                        file.write(data)
                except FileExistsError:
                    continue
                return f"saved: {path}"
        except OSError as error:
            return f"not saved: {in_brief(error)}"


# ---- which protocol ---------------------------------------------------------------------------------------


def terminal_protocol(variables: Mapping[str, str]) -> Protocol | None:
    """Return the protocol by which the process's terminal takes pictures; None if it takes none."""
    term = variables.get("TERM", "")
    if term in {"", "dumb", "linux"}:
        return None
    # A multiplexer passes on its outer terminal's variables, but not its pictures.
    if not variables.get("TMUX") and not term.startswith(("screen", "tmux")):
        program = variables.get("TERM_PROGRAM", "")
        if (
            variables.get("KITTY_WINDOW_ID")
            or term in {"xterm-kitty", "xterm-ghostty"}
            or program == "ghostty"
        ):
            return Protocol.KITTY
        if program in {"iTerm.app", "WezTerm"} or variables.get("LC_TERMINAL") == "iTerm2":
            return Protocol.ITERM
    return _ask()


def _ask() -> Protocol | None:
    """Ask the terminal itself. Nothing is asked in the background, nor when keys wait to be read."""
    try:
        descriptor = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY)
    except OSError:
        return None
    try:
        if os.tcgetpgrp(descriptor) != os.getpgrp():
            return None
        return _question(descriptor)
    except (OSError, termios.error):
        return None
    finally:
        os.close(descriptor)


def _question(descriptor: int) -> Protocol | None:
    saved = termios.tcgetattr(descriptor)
    attributes = termios.tcgetattr(descriptor)
    attributes[3] &= ~(termios.ICANON | termios.ECHO)
    termios.tcsetattr(descriptor, termios.TCSANOW, attributes)
    try:
        if _readable(descriptor, 0):
            return None
        os.write(descriptor, _ASKED)
        return understood(_answer(descriptor))
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, saved)


def _answer(descriptor: int) -> bytes:
    answer = b""
    deadline = time.monotonic() + PATIENCE
    while _ATTRIBUTES.search(answer) is None:
        left = deadline - time.monotonic()
        if left <= 0 or not _readable(descriptor, left):
            break
        if not (part := os.read(descriptor, 1024)):
            break
        answer += part
    return answer


def understood(answer: bytes) -> Protocol | None:
    """Return the protocol that a terminal's answer tells of."""
    if _KITTY_ANSWER.search(answer):
        return Protocol.KITTY
    found = _ATTRIBUTES.search(answer)
    return Protocol.SIXEL if found is not None and _SIXEL in found[1].split(b";")[1:] else None


def _readable(descriptor: int, seconds: float) -> bool:
    return bool(select.select([descriptor], [], [], seconds)[0])


# ---- drawing ----------------------------------------------------------------------------------------------


def draw(data: bytes, protocol: Protocol) -> str:
    """Return the control sequences that show a picture; empty if it can't be read, or is too large."""
    from PIL import Image, UnidentifiedImageError  # noqa: PLC0415 - slow to import, for pictures only

    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                return ""
            image.load()
            if protocol is Protocol.SIXEL:
                return _sixel(image)
            encoded = io.BytesIO()
            mode = "RGBA" if image.has_transparency_data else "RGB"
            image.convert(mode).save(encoded, "PNG", compress_level=1)
    # Pillow raises these, and SyntaxError, for files that only begin like pictures.
    except (
        OSError,
        ValueError,
        SyntaxError,
        struct.error,
        UnidentifiedImageError,
        Image.DecompressionBombError,
    ):
        return ""
    picture = encoded.getvalue()
    return _kitty(picture, image.width) if protocol is Protocol.KITTY else _iterm(picture)


def _kitty(png: bytes, width: int) -> str:
    """Source: sw.kovidgoyal.net/kitty/graphics-protocol. `q=2`: no answer, which would be read as keys."""
    columns, pixels = _screen()
    # A picture that is wider than the screen is scaled to it; otherwise it has its own size.
    scale = f",c={columns}" if pixels and width > pixels else ""
    encoded = base64.b64encode(png).decode()
    pieces = [encoded[start : start + _KITTY_PIECE] for start in range(0, len(encoded), _KITTY_PIECE)]
    made = []
    for number, piece in enumerate(pieces):
        keys = f"a=T,f=100,q=2{scale}," if number == 0 else ""
        made.append(f"\x1b_G{keys}m={int(number < len(pieces) - 1)};{piece}\x1b\\")
    return "".join(made) + "\n"


def _iterm(png: bytes) -> str:
    """Return iTerm's sequence of a picture. Source: iterm2.com/documentation-images.html."""
    encoded = base64.b64encode(png).decode()
    return f"\x1b]1337;File=inline=1;size={len(png)};preserveAspectRatio=1:{encoded}\x07\n"


def _sixel(image: Image) -> str:
    """Source: VT330/VT340 Programmer Reference Manual, chapter 14. Transparent parts become white."""
    from PIL import Image as Pillow  # noqa: PLC0415

    flat = Pillow.new("RGB", image.size, "white")
    rgba = image.convert("RGBA")
    flat.paste(rgba, mask=rgba.getchannel("A"))
    widest = _screen()[1] or _SIXEL_WIDTH
    if flat.width > widest:
        flat = flat.resize((widest, max(1, flat.height * widest // flat.width)))
    palette = flat.quantize(_SIXEL_COLOURS)
    width, height = palette.size
    rgb = palette.getpalette() or []
    colours = [
        f"#{number};2;{';'.join(str(value * 100 // 255) for value in rgb[3 * number : 3 * number + 3])}"
        for number in range(len(rgb) // 3)
    ]
    lines = "-".join(_sixel_bands(palette.tobytes(), width, height))
    return f'\x1bP0;1;0q"1;1;{width};{height}{"".join(colours)}{lines}\x1b\\\n'


def _sixel_bands(pixels: bytes, width: int, height: int) -> Iterator[str]:
    """Yield each six rows as text: for each of their colours, which of the six pixels of a column have it."""
    for top in range(0, height, 6):
        rows = [pixels[row * width : (row + 1) * width] for row in range(top, min(top + 6, height))]
        parts = []
        for colour in sorted(set().union(*rows)):
            columns = 0
            for bit, row in enumerate(rows):
                marks = bytes(1 << bit if value == colour else 0 for value in range(256))
                columns |= int.from_bytes(row.translate(marks))
            letters = columns.to_bytes(width).translate(_LETTERS).decode("ascii")
            parts.append(f"#{colour}" + _RUNS.sub(_run, letters))
        yield "$".join(parts)


_LETTERS = bytes((value + 63) % 256 for value in range(256))
_RUNS = re.compile(r"(.)\1{3,}")


def _run(found: re.Match[str]) -> str:
    return f"!{len(found[0])}{found[1]}"


def _screen() -> tuple[int, int]:
    """Return the terminal's columns, and its width in pixels; 0 if it does not say."""
    for descriptor in (1, 2):
        try:
            _, columns, width, _ = struct.unpack(
                "HHHH", fcntl.ioctl(descriptor, termios.TIOCGWINSZ, bytes(8))
            )
        except OSError:
            continue
        return columns, width
    return 0, 0
