"""The common parts of all sessions' proxies: the operator's policy, the limits, and the ways to the network.

Built once, in ``server.assembly``. A test gives it other ways: names that change, hosts that are not there.
"""

from __future__ import annotations

import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from cellgate.egress.dialer import dial, is_own
from cellgate.egress.policy import Address, EgressPolicy
from cellgate.egress.resolver import GetAddresses, Lookups, Resolver, system_addresses
from cellgate.errors import NetworkNotAllowed
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.places import Places
from cellgate_kernels.base.resources import GIB
from cellgate_kernels.base.threads import Lane

PIECES_A_TURN = 32
"""Pieces of all connections that are sent on in one turn. A body's chunks may have a byte each."""

PolicyOf = Callable[[str], EgressPolicy | None]
"""Returns a principal's present policy; None: no network. Called for each connection and each second."""
Pass = Callable[[str, int], Awaitable[None]]
"""Counts a principal's bytes before they are sent on, and waits until they may be sent."""


def nobody(_principal: str) -> EgressPolicy | None:
    """Return None: the operator of this gateway allows no network."""
    return None


async def at_once(_principal: str, _count: int) -> None:
    """Return at once: the pace of a gateway without limits."""


@dataclass(frozen=True, slots=True)
class EgressLimits:
    """`connections`: at once, of one session; `of_all`: of all together; `of_one`: of one
    principal's. `bytes`: both ways, of one session.

    `idle_seconds`: without a byte either way.
    """

    connections: int = 32
    of_all: int = 512
    of_one: int = 384
    bytes: int = GIB
    idle_seconds: float = 300.0


@dataclass(frozen=True, slots=True)
class Ways:
    """The means to reach the network. `ask` resolves a name in a thread; `is_own`: is the address ours?"""

    ask: GetAddresses = system_addresses
    dial: Callable[[Sequence[Address], int], Awaitable[tuple[socket.socket, Address] | None]] = dial
    is_own: Callable[[Address, int], bool] = is_own


@dataclass(slots=True)
class Egress:
    """The shared parts. `lane`: threads for lookups. `pass_bytes`: limits the pace of principals.

    `unfit`: the reason why this gateway's kernels can't have a network through a proxy, if so.
    """

    lane: Lane
    policy_of: PolicyOf = nobody
    limits: EgressLimits = field(default_factory=EgressLimits)
    unfit: str | None = None
    pass_bytes: Pass = at_once
    ways: Ways = field(default_factory=Ways)
    open: Counter[str] = field(default_factory=Counter)
    """Connections now, by principal."""
    places: Places = field(default_factory=lambda: Places(PIECES_A_TURN))
    """Limits the pieces sent on in one turn of the loop."""
    lookups: Lookups = field(init=False)

    def __post_init__(self) -> None:
        """Make the parts that resolve names."""
        self.lookups = Lookups(self.lane, self.ways.ask)

    def check(self, principal: str) -> None:
        """Raise NetworkNotAllowed if the principal's sessions may reach nothing, InvalidInput if `unfit`."""
        policy = self.policy_of(principal)
        if policy is None or not policy.patterns:
            raise NetworkNotAllowed(
                "The operator's policy allows your sessions no network; leave `network` out"
            )
        if self.unfit is not None:
            raise InvalidInput(f"A session can't be given a network here: {self.unfit}")

    def reachable(self, principal: str) -> list[str] | None:
        """Return the patterns of hosts that the principal's sessions may reach; None if there are none."""
        policy = self.policy_of(principal)
        if policy is None or not policy.patterns or self.unfit is not None:
            return None
        return [str(pattern) for pattern in policy.patterns]

    def resolver(self, principal: str) -> Resolver:
        """Return a resolver for one session, whose lookups count to its principal."""
        return Resolver(self.lookups, principal)

    async def close(self) -> None:
        """Stop all lookups. Sessions have ended."""
        await self.lookups.close()

    def closed(self, principal: str) -> None:
        """Count one connection of the principal less."""
        self.open[principal] -= 1
        if not self.open[principal]:
            del self.open[principal]

    def is_full(self, principal: str) -> bool:
        """Return whether all sessions together, or this principal's, have the most connections allowed."""
        return self.open.total() >= self.limits.of_all or self.open[principal] >= self.limits.of_one
