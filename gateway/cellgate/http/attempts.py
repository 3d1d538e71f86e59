"""How often clients' addresses may show wrong tokens before their answers become slow refusals.

A token bucket per address: a number of failures at once, then one each `EVERY_SECONDS`. It never decides
about a request with a valid token: whoever shares an address with somebody who guesses is not locked out.
Tokens can't be guessed anyway; this limits noise in logs, metrics and the audit trail, and what a broken
client costs. Loopback counts as any address. Monotonic time; memory for `MOST_ADDRESSES`.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

EVERY_SECONDS = 2.0
MOST_ADDRESSES = 4096
"""Addresses that are remembered: those that failed last."""
HOLD_SECONDS = 1.0
MOST_HELD = 64
"""Answers that are held at the same time; further ones leave at once."""


class LoginAttempts:
    """The failures of each address. `burst`: how many an address has at once; 0: no limit."""

    def __init__(self, burst: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._burst = burst
        self._clock = clock
        # For each address, when all its failures will be forgotten.
        self._clear_at: OrderedDict[str, float] = OrderedDict()
        self._held = 0

    def failed(self, origin: str) -> float | None:
        """Count a failure of this address; None, or the seconds to wait if it had too many."""
        if not self._burst:
            return None
        now = self._clock()
        clear_at = max(now, self._clear_at.pop(origin, now)) + EVERY_SECONDS
        excess = clear_at - now - self._burst * EVERY_SECONDS
        if excess > 0:
            # A refused attempt does not put off the next that is taken.
            clear_at -= EVERY_SECONDS
        self._clear_at[origin] = clear_at
        if len(self._clear_at) > MOST_ADDRESSES:
            self._clear_at.popitem(last=False)
        return excess if excess > 0 else None

    def waiting(self, origin: str) -> float | None:
        """Return seconds that this address has to wait because of too many failures; None if it need not."""
        excess = self._clear_at.get(origin, 0.0) - self._clock() - (self._burst - 1) * EVERY_SECONDS
        return excess if self._burst and excess > 0 else None

    async def hold(self) -> None:
        """Let a refusal wait, unless many wait already: clients that ignore Retry-After are slowed too."""
        if self._held >= MOST_HELD:
            return
        self._held += 1
        try:
            await asyncio.sleep(HOLD_SECONDS)
        finally:
            self._held -= 1
