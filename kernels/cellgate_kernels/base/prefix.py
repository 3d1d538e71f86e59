"""Where this interpreter's environment of kernels is: below a folder that stays.

``uvx`` and ``pipx run`` put programs into a cache, which others clear, and in which uv makes no environment.
``specs`` makes the environment and finds it there; clients ask only whether there is one.
"""

from __future__ import annotations

import sys
from pathlib import Path

import platformdirs

_TAG = "CACHEDIR.TAG"
"""The file that marks a folder as a cache (Cache Directory Tagging Specification)."""


def own_prefix() -> Path:
    """Return the interpreter's prefix, or a folder of the user's data if that prefix is in a cache."""
    prefix = Path(sys.prefix)
    cache = platformdirs.user_cache_path()
    if any(parent == cache or (parent / _TAG).is_file() for parent in prefix.parents):
        return platformdirs.user_data_path("cellgate-kernels")
    return prefix
