"""Removes all that is recorded of one principal, by the gateway that serves, for ``cellgate record purge``.

The gateway ends the sessions that live, removes files and rows, and leaves a tombstone of each in the trail.
"""

from __future__ import annotations

from collections.abc import Callable

from cellgate.client import Gateway

PURGING = "purging"


async def sessions_of(gateway: Gateway) -> list[str]:
    """Return the keys of the sessions that `gateway`'s principal has in the record. Raises GatewayError."""
    return [model.session async for model in gateway.sessions() if model.state != PURGING]


async def purge(gateway: Gateway, sessions: list[str], tell: Callable[[str], object]) -> None:
    """Purge sessions, one after the other; `tell` is called with each. A purge that readers delay goes on.

    Raises GatewayError at the first failure.
    """
    for session in sessions:
        await gateway.purge_session(session)
        tell(session)
