"""Opens a connection to one of several addresses that were checked before: never to a name.

The next address is tried when one has failed, or has not answered for a moment (RFC 8305, without races).
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from itertools import chain, zip_longest

from cellgate.egress.policy import Address

CONNECT_SECONDS = 15.0
"""Seconds for all addresses together."""
ATTEMPT_SECONDS = 5.0
"""Seconds for one address, unless it is the last."""


def in_turns(addresses: Sequence[Address]) -> list[Address]:
    """Return addresses of both families in turns, the first one's first: one family may have no route."""
    first = [each for each in addresses if each.version == addresses[0].version]
    second = [each for each in addresses if each.version != addresses[0].version]
    return [each for each in chain.from_iterable(zip_longest(first, second)) if each is not None]


def is_own(address: Address, port: int) -> bool:
    """Return whether this machine itself has the address: its packets would come from the same address.

    Nothing is sent: a datagram socket's connect only chooses a route.
    """
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((str(address), port))
            return str(probe.getsockname()[0]) == str(probe.getpeername()[0])
    except OSError:
        return False  # no route: there will be no connection either


async def dial(addresses: Sequence[Address], port: int) -> tuple[socket.socket, Address] | None:
    """Return a connected socket and its address; None when no address answers."""
    order = in_turns(addresses)
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            for address in order:
                last = address == order[-1]
                connected = await _attempt(address, port, CONNECT_SECONDS if last else ATTEMPT_SECONDS)
                if connected is not None:
                    return connected, address
    except TimeoutError:
        return None
    return None


async def _attempt(address: Address, port: int, seconds: float) -> socket.socket | None:
    try:
        made = socket.socket(socket.AF_INET if address.version == 4 else socket.AF_INET6, socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            async with asyncio.timeout(seconds):
                # a numeric address is not resolved again
                await asyncio.get_running_loop().sock_connect(made, (str(address), port))
        except OSError:  # TimeoutError too
            made.close()
            return None
    except BaseException:
        made.close()
        raise
    return made
