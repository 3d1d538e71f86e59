"""Names to addresses, by the gateway's own resolver: in threads of a lane of their own, with limits.

A name is resolved once for each connection, and the connection goes to an address of that very answer: what
the name says a moment later does not matter. Only names that a policy allows come here, so a kernel can't use
lookups to tell anybody anything. ``policy`` judges the addresses.
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
"""Of the lane for lookups. One principal's sessions occupy three quarters of them at most."""
MOST_WAITING = 1024
LOOKUPS_AT_ONCE = 2
"""Of one session: slow answers keep a thread until the system's resolver gives up."""
LOOKUPS_WAITING = 32
"""Of one session, beside those in progress."""
MOST_ADDRESSES = 8
"""Of one name."""

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
        """Return addresses of a name as texts; none when it is not known, or when too many are asked for."""
        answer: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        # A task of its own: a thread can't be stopped, so it keeps its principal's turn until it is done,
        # even if the session that asked has ended.
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
        """Wait for nothing any more."""
        await self._tasks.cancel()


class Resolver:
    """The lookups of one session, which belongs to `principal`."""

    def __init__(self, lookups: Lookups, principal: str) -> None:
        self._lookups = lookups
        self._principal = principal
        self._tasks = Supervisor()
        self._room = asyncio.Semaphore(LOOKUPS_AT_ONCE)

    async def addresses(self, host: str) -> list[Address]:
        """Return the addresses of a canonical host; none when it is not known, or not in time."""
        literal = address_of(host)
        if literal is not None:
            return [literal]
        if len(self._tasks) >= LOOKUPS_AT_ONCE + LOOKUPS_WAITING:
            return []
        # A task of its own: a lookup that nobody waits for any more still occupies its thread.
        lookup = self._tasks.start(self._look_up(host), f"look up {host}")
        await asyncio.wait([lookup], timeout=LOOKUP_SECONDS)
        return lookup.result() if lookup.done() and not lookup.cancelled() else []

    async def _look_up(self, host: str) -> list[Address]:
        async with self._room:
            texts = await self._lookups.texts(self._principal, host)
        # Link-local addresses come with a scope, which is of this machine and not of the name.
        found = dict.fromkeys(ip_address(text.partition("%")[0]) for text in texts)
        return list(found)[:MOST_ADDRESSES]

    async def close(self) -> None:
        """Wait for nothing any more."""
        await self._tasks.cancel()
