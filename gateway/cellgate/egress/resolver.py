"""Resolves names by the gateway's own resolver: in threads of a separate lane, with limits.

A name is resolved once for each connection, and the connection goes to an address of that very answer: later
answers do not matter. Only names that a policy allows come here, so a kernel can't send data out by lookups.
``policy`` checks the addresses.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from ipaddress import ip_address

from cellgate.egress.policy import Address, address_of
from cellgate.errors import QueueFull
from cellgate.fairness.turns import Turns
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane

LOOKUP_SECONDS = 10.0
THREADS = 16
"""Threads of the lane for lookups. One principal's sessions occupy at most three quarters of them."""
MOST_WAITING = 1024
LOOKUPS_AT_ONCE = 2
"""Lookups of one session at once: slow answers keep a thread until the system's resolver gives up."""
LOOKUPS_WAITING = 32
"""Waiting lookups of one session, beside those in progress."""
MOST_ADDRESSES = 8
"""Most addresses of one name."""

GetAddresses = Callable[[str], list[str]]


def system_addresses(name: str) -> list[str]:
    """Return addresses of a name, in the order in which the system prefers them. Raises OSError. Blocking."""
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return [str(sockaddr[0]) for _, _, _, _, sockaddr in found]


class Lookups:
    """The lookups of all sessions. `ask` is called in a thread of `lane`. `close` it at the end."""

    def __init__(self, lane: Lane, ask: GetAddresses = system_addresses) -> None:
        self._lane = lane
        self._ask = ask
        self._turns = Turns(THREADS, MOST_WAITING, LOOKUP_SECONDS, "Too many names are being looked up")
        self._tasks = Supervisor()

    async def texts(self, principal: str, host: str) -> list[str]:
        """Return addresses of a name as texts; none if it is unknown, or if too many lookups wait."""
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        # A separate task: a thread can't be stopped, so it keeps its principal's turn until it is done, even
        # if the asking session has ended.
        self._tasks.start(self._look_up(principal, host, answer), f"look up {host}")
        return await answer

    async def _look_up(self, principal: str, host: str, answer: asyncio.Future[list[str]]) -> None:
        found: list[str] = []
        try:
            async with self._turns.turn(principal):
                if not answer.done():
                    found = await self._lane.run(self._ask, host)
        except (OSError, UnicodeError, QueueFull):
            pass
        finally:
            if not answer.done():
                answer.set_result(found)

    async def close(self) -> None:
        """Stop waiting for lookups."""
        await self._tasks.cancel()


class Resolver:
    """The lookups of one session, which belongs to `principal`."""

    def __init__(self, lookups: Lookups, principal: str) -> None:
        self._lookups = lookups
        self._principal = principal
        self._tasks = Supervisor()
        self._room = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def addresses(self, host: str) -> list[Address]:
        """Return the addresses of a canonical host; none if it is unknown, or the answer late."""
        literal = address_of(host)
        if literal is not None:
            return [literal]
        if len(self._tasks) >= LOOKUPS_AT_ONCE + LOOKUPS_WAITING:
            return []
        # A separate task: a lookup without a waiter still occupies its thread.
        lookup = self._tasks.start(self._look_up(host), f"look up {host}")
        await asyncio.wait([lookup], timeout=LOOKUP_SECONDS)
        return lookup.result() if lookup.done() and not lookup.cancelled() else []

    async def _look_up(self, host: str) -> list[Address]:
        async with self._room:
            texts = await self._lookups.texts(self._principal, host)
        # Link-local addresses come with a scope, which belongs to this machine and not to the name.
        found = dict.fromkeys(ip_address(text.partition("%")[0]) for text in texts)
        return list(found)[:MOST_ADDRESSES]

    async def close(self) -> None:
        """Stop waiting for lookups."""
        await self._tasks.cancel()
