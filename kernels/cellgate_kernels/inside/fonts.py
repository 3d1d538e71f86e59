"""Makes matplotlib's list of fonts, which takes seconds: a fresh sandbox or container has no time for that.

If a font with Chinese, Japanese and Korean letters is there, a ``matplotlibrc`` makes it the second choice:
matplotlib takes from it what its own font lacks. Run once by the environment's own interpreter, when the
environment or the image is made; ``bootstrap.py`` gives both files to each kernel::

    python fonts.py FOLDER
"""

import os
import shutil
import sys
import tempfile
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

OUTSIDE = ("/usr/share/fonts-droid-fallback/truetype/DroidSansFallback.ttf",)
"""Fonts that matplotlib does not look for: Debian puts the one with Korean letters apart."""

WIDE = (
    "Droid Sans Fallback",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Source Han Sans",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
)
LETTERS = "中日あ한"
WEIGHTS = (400, 700)  # those of matplotlib's own font; it complains when the second choice lacks one
SETTINGS = "matplotlibrc"


def wide_font(fonts):
    """Return the first entry of matplotlib's list with letters of all these languages, if any."""
    from matplotlib.ft2font import FT2Font  # noqa: PLC0415

    for family in WIDE:
        for entry in fonts:
            if entry.name == family:
                font = FT2Font(entry.fname)
                if all(font.get_char_index(ord(letter)) for letter in LETTERS):
                    return entry
    return None


def write_fonts(folder, draft):
    """Make the files in the folder `draft`, then move them."""
    # Nor fonts of this user, whose home folder kernels don't see.
    os.environ.update(dict.fromkeys(("MPLCONFIGDIR", "HOME", "XDG_DATA_HOME"), str(draft)))
    from matplotlib.font_manager import fontManager, json_dump  # noqa: PLC0415

    (listed,) = draft.glob("fontlist-*.json")
    for path in filter(os.path.exists, OUTSIDE):
        fontManager.addfont(path)
    wide = wide_font(fontManager.ttflist)
    if wide is None:
        (folder / SETTINGS).unlink(missing_ok=True)
    else:
        others = [entry for entry in fontManager.ttflist if entry.name != wide.name]
        fontManager.ttflist = others + [replace(wide, weight=weight) for weight in WEIGHTS]
        json_dump(fontManager, listed)
        (draft / SETTINGS).write_text(f"font.family: sans-serif, {wide.name}\n", encoding="utf-8")
    for file in (listed, *draft.glob(SETTINGS)):
        file.chmod(0o644)
        shutil.move(file, folder / file.name)


def main(folder):
    """Write the files, if matplotlib is installed."""
    if find_spec("matplotlib") is None:
        return
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".fonts-") as draft:
        write_fonts(folder, Path(draft))


if __name__ == "__main__":
    main(*sys.argv[1:])
