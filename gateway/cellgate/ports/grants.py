"""Grants of a browser's ticket and cookie for a port: one port of one session.

``identity.tickets`` keeps both or, in a cluster, ``identity.signed_tickets`` makes them good at each of its
gateways. They keep no session in memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from cellgate.identity.principal import Login
from cellgate.identity.signed_tickets import GrantForm, SharedSignIns, SignedTickets, SignInLife
from cellgate.identity.tickets import Tickets
from cellgate.ports.origin import PortPlace
from cellgate.ports.table import SessionPorts


@dataclass(frozen=True, slots=True)
class PortGrant:
    """A permission: `login` may reach `port` of a session at `place`, while its ports are open.

    `ports` returns these, or None once the session is gone: a weak reference, as a grant outlives its
    session. `signed_in`: whether the sign-in of the asking browser still holds; None if a token asked.
    `life`: in a cluster, when that sign-in ends; then any gateway may have the session.
    """

    login: Login
    owner: str
    session: str
    port: int
    place: PortPlace
    ports: Callable[[], SessionPorts | None]
    signed_in: Callable[[], bool] | None = None
    life: SignInLife | None = None

    @property
    def open_ports(self) -> SessionPorts | None:
        """The session's ports; None once it is over, or if another gateway has it."""
        ports = self.ports()
        return None if ports is None or ports.closed else ports

    @property
    def is_open(self) -> bool:
        """Whether the session is not over, and its user has not signed out."""
        return self.open_ports is not None and (self.signed_in is None or self.signed_in())


class SharedPortGrant(PortGrant):
    """A grant that any gateway of a cluster has read, whichever has the session."""

    __slots__ = ()

    @property
    def is_open(self) -> bool:
        """Whether its user has not signed out; whether the session is over, the gateway that has it knows."""
        return self.signed_in is None or self.signed_in()


@dataclass(frozen=True, slots=True)
class SharedPorts:
    """What the gateways of a cluster share about ports: their sign-ins, and the places of ports.

    `ports_of`: returns the ports of a session that is live here, by its owner and key.
    """

    sign_ins: SharedSignIns
    place: Callable[[str, str, int], PortPlace]
    ports_of: Callable[[str, str], SessionPorts | None]


class _About(msgspec.Struct, frozen=True, array_like=True):
    """A grant in a signed text, without its login."""

    owner: str
    session: str
    port: int
    life: SignInLife | None


_decoder = msgspec.msgpack.Decoder(_About)


class PortTickets:
    """The tickets and sign-ins of ports. `is_valid`: whether a login still is.

    `shared`: what the gateways of a cluster share; without it, all are this gateway's own.
    """

    def __init__(
        self,
        is_valid: Callable[[Login], bool],
        shared: SharedPorts | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._shared = None if shared is None else shared.sign_ins
        self._kept: Tickets[PortGrant] | SignedTickets[PortGrant] = (
            Tickets(is_valid, clock=clock)
            if shared is None
            else SignedTickets(shared.sign_ins, _form(shared), is_valid)
        )

    def issue(self, grant: PortGrant) -> str:
        """Return a ticket, which works once and not for long."""
        return self._kept.issue(grant)

    async def redeem(self, ticket: str) -> tuple[str, PortGrant] | None:
        """Return the secret for a browser and its grant; None for an invalid ticket. Raises StorageError."""
        if self._shared is not None and (
            self._kept.peek(ticket) is None or not await self._shared.use(ticket)
        ):
            return None
        return self._kept.redeem(ticket)

    def find(self, secret: str) -> PortGrant | None:
        """Return what a browser's secret grants; None for an unknown or expired one."""
        return self._kept.find(secret)


def _form(shared: SharedPorts) -> GrantForm[PortGrant]:
    def write(grant: PortGrant) -> bytes:
        # Its place follows from these: a cookie must not be long.
        return msgspec.msgpack.encode(_About(grant.owner, grant.session, grant.port, grant.life))

    def read(login: Login, given: bytes) -> PortGrant | None:
        try:
            about = _decoder.decode(given)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        place, life = shared.place(about.owner, about.session, about.port), about.life

        def ports() -> SessionPorts | None:
            return shared.ports_of(about.owner, about.session)

        signed_in = None if life is None else lambda: shared.sign_ins.is_good(life)
        return SharedPortGrant(login, about.owner, about.session, about.port, place, ports, signed_in, life)

    return GrantForm("port", write, read)
