"""What a test needs from its machine: missing, it skips; missing although demanded, it fails.

CELLGATE_REQUIRE is a comma-separated list of what must be there (``sandbox``, ``docker``, ``browser``, ...).
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def require(name: str, reason: str) -> NoReturn:
    """Call it when `name` is missing. Fails the test if CELLGATE_REQUIRE names it, and skips it otherwise."""
    if name in os.environ.get("CELLGATE_REQUIRE", "").split(","):
        pytest.fail(f"{name} is required here: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}")
