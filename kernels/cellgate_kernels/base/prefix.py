"""Where this interpreter's environment of kernels is: below a folder that stays.

``uvx`` and ``pipx run`` put programs into a cache, which others clear, and in which uv makes no environment.
``specs`` makes the environment and finds it there.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import platformdirs

_TAG = "CACHEDIR.TAG"
"""The file that marks a folder as a cache (Cache Directory Tagging Specification), also uv's."""
_BUCKETS = ("archive-v", "environments-v")
"""How the names of folders begin in which uv's cache has environments."""


def own_prefix() -> Path:
    """Return the interpreter's prefix, or, if that is in uv's or pipx's cache, a folder of the user's data.

    Each version of Cellgate and of Python has a folder of its own there: another one may be serving.
    """
    prefix = Path(sys.prefix)
    if not (_is_in_cache_of_uv(prefix) or platformdirs.user_cache_path("pipx") in prefix.parents):
        return prefix
    name = f"{version('cellgate')}-python{sys.version_info.major}.{sys.version_info.minor}"
    return platformdirs.user_data_path("cellgate-kernels") / name


def _is_in_cache_of_uv(prefix: Path) -> bool:
    return any(
        (parent / _TAG).is_file() and prefix.relative_to(parent).parts[0].startswith(_BUCKETS)
        for parent in prefix.parents
    )
