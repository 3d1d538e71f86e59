"""The files of the console's page, in the form that browsers receive.

The files are listed once, at the start: a request names a file in that table, or none, so that no path is
ever made from a request. A file is read, hashed and compressed at its first request, in a thread, and then
kept. ``http.console`` sends the files, with their policies.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cellgate.errors import NotFound, StorageError
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.base.threads import Lane

STATIC: Final = Path(__file__).with_name("static")
PAGE: Final = "index.html"
FRAME: Final = "frame.html"
"""The page that shows outputs: hostile, so it has an origin and a policy of its own."""
MOST_FILES: Final = 4096
MOST_BYTES: Final = 16 * 1024 * 1024
"""The most bytes of one file."""
TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".ttf": "font/ttf",
    ".txt": "text/plain; charset=utf-8",
    ".woff": "font/woff",
    ".woff2": "font/woff2",
}
"""The types of served files; others, such as notes for developers, are left out."""
_NAME: Final = re.compile(r"[A-Za-z0-9._/@+-]+")
_PACKED: Final = frozenset({".png", ".woff", ".woff2"})
_VERSION: Final = re.compile(r".-[0-9]")
_FOR_FRAMES: Final = ("frame/", "vendor/")
_LEVEL: Final = 9
_LEAST_GAIN: Final = 0.95


@dataclass(frozen=True, slots=True)
class Asset:
    """A file. `zipped`: its compressed form, None if that is no smaller. `tag`: for both forms."""

    name: str
    kind: str
    body: bytes
    zipped: bytes | None
    tag: str

    @property
    def is_fixed(self) -> bool:
        """Whether the file's name has its version, so that browsers may cache it for ever."""
        folder, _, rest = self.name.partition("/")
        package, _, file = rest.partition("/")
        return folder == "vendor" and file != "" and _VERSION.search(package) is not None

    @property
    def is_for_frames(self) -> bool:
        """Whether a page of another origin may load the file: the frames of outputs do."""
        return self.name.startswith(_FOR_FRAMES)


class Assets:
    """All files below `folder`, read in `lane`."""

    def __init__(self, folder: Path, lane: Lane) -> None:
        self._lane = lane
        self._paths = dict(_listed(folder))
        self._read: dict[str, Asset] = {}
        self._reading = asyncio.Lock()

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    async def get(self, name: str) -> Asset:
        """Return the file of this name, such as ``app/main.js``. Raises NotFound, StorageError."""
        asset = self._read.get(name)
        if asset is not None:
            return asset
        path = self._paths.get(name)
        if path is None:
            raise NotFound("The console has no such file")
        async with self._reading:  # one after another, so that no file is compressed twice
            if name not in self._read:
                self._read[name] = await self._lane.run(_load, name, path)
        return self._read[name]


def _listed(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the served files, by name; links are not followed."""
    found = 0
    for where, _, files in os.walk(folder):
        for file in sorted(files):
            path = Path(where) / file
            name = path.relative_to(folder).as_posix()
            if path.suffix not in TYPES or not _NAME.fullmatch(name) or path.is_symlink():
                continue
            found += 1
            if found > MOST_FILES:
                return
            yield name, path


def _load(name: str, path: Path) -> Asset:
    """Read and compress a file. Raises StorageError."""
    try:
        body = read_regular(path, MOST_BYTES + 1, follow=False)
    except OSError as error:
        raise StorageError(f"{path} can't be read: {in_brief(error)}") from error
    if len(body) > MOST_BYTES:
        raise StorageError(f"{path} is larger than {MOST_BYTES} bytes")
    zipped = None
    if path.suffix not in _PACKED:
        smaller = gzip.compress(body, _LEVEL, mtime=0)
        zipped = smaller if len(smaller) < _LEAST_GAIN * len(body) else None
    # A weak tag, as it names both forms.
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return Asset(name, TYPES[path.suffix], body, zipped, tag)
