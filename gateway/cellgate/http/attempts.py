"""Limits wrong tokens by client address; beyond the limit the answers become slow refusals.

A token bucket per address: a number of failures at once, then one each `EVERY_SECONDS`. It never decides
about a request with a valid token: a guesser locks out nobody who shares the address. Tokens can't be guessed
anyway; this limits noise in logs, metrics and the audit trail, and the cost of a broken client. Loopback
counts as any address. Monotonic time; memory for `MOST_ADDRESSES`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

EVERY_SECONDS = 2.0
MOST_ADDRESSES = 4096
"""Most addresses that are remembered: the ones that failed last."""
HOLD_SECONDS = 1.0
MOST_HELD = 64
"""Most answers that are held at the same time; further ones leave at once."""


class LoginAttempts:
    """The failures of each address. `burst`: failures that an address may have at once; 0: no limit."""

    def __init__(self, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        # For each address, the time when all its failures will be forgotten.
        self._clear_at: OrderedDict[str, float] = OrderedDict()
        self._held = 0

    def failed(self, origin: str) -> float | None:
        """Count a failure of this address; return None, or the seconds to wait after too many."""
        if not self._burst:
            return None
        now = self._clock()
        clear_at = max(now, self._clear_at.pop(origin, now)) + EVERY_SECONDS
        excess = clear_at - now - self._burst * EVERY_SECONDS
        if excess > 0:
            # A refused attempt does not delay the next accepted one.
            clear_at -= EVERY_SECONDS
        self._clear_at[origin] = clear_at
        if len(self._clear_at) > MOST_ADDRESSES:
            self._clear_at.popitem(last=False)
        return excess if excess > 0 else None

    def waiting(self, origin: str) -> float | None:
        """Return the seconds that this address must wait after too many failures; None if it need not."""
        excess = self._clear_at.get(origin, 0.0) - self._clock() - (self._burst - 1) * EVERY_SECONDS
        return excess if self._burst and excess > 0 else None

    async def hold(self) -> None:
        """Delay a refusal, unless many wait already: this slows clients that ignore Retry-After, too."""
        if self._held >= MOST_HELD:
            return
        self._held += 1
        try:
            await asyncio.sleep(HOLD_SECONDS)
        finally:
            self._held -= 1
