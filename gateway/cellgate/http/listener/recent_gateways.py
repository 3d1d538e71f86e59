"""The addresses from which other gateways of the cluster have handed requests on lately.

``server`` counts new connections from them for nobody until their heads are read. An address may be that of a
router, with strangers behind it, or become another machine's: so each is forgotten after some minutes.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

KNOWN_SECONDS: Final = 300.0
"""Seconds for which an address is known after the last request that was handed on from it."""
MOST_KNOWN: Final = 1024
"""Most addresses that are known: the ones of the last requests."""


class RecentGateways:
    """A bounded set of addresses, each with the time of its last request that was handed on."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._last: OrderedDict[str, float] = OrderedDict()

    def add(self, address: str) -> None:
        """Note that a request has been handed on from an address just now."""
        self._last[address] = self._clock()
        self._last.move_to_end(address)
        if len(self._last) > MOST_KNOWN:
            self._last.popitem(last=False)

    def __contains__(self, address: str) -> bool:
        last = self._last.get(address)
        if last is None:
            return False
        if self._clock() - last < KNOWN_SECONDS:
            return True
        del self._last[address]
        return False
