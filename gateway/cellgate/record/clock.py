"""The time as the record and the wire give it."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from functools import lru_cache


def now() -> str:
    """The current time as RFC 3339 UTC with six decimals and `Z`, which every client can parse."""
    seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_second(seconds)}.{microseconds:06}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    # A cell has about six events, mostly within one second: format its date only once.
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
