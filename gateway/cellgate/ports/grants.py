"""Grants of a browser's ticket and cookie for a port: one port of one session.

``principals.tickets`` keeps both. They keep no session in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from cellgate.identity.principal import Login
from cellgate.identity.tickets import Tickets
from cellgate.ports.origin import PortPlace
from cellgate.ports.table import SessionPorts


@dataclass(frozen=True, slots=True)
class PortGrant:
    """A permission: `login` may reach `port` of a session at `place`, while its ports are open.

    `ports` returns these, or None once the session is gone: a weak reference, as a grant outlives its
    session. `signed_in`: whether the sign-in of the asking browser still holds; None if a token asked.
    """

    login: Login
    owner: str
    session: str
    port: int
    place: PortPlace
    ports: Callable[[], SessionPorts | None]
    signed_in: Callable[[], bool] | None = None

    @property
    def open_ports(self) -> SessionPorts | None:
        """The session's ports; None once it is over."""
        ports = self.ports()
        return None if ports is None or ports.closed else ports

    @property
    def is_open(self) -> bool:
        """Whether the session is not over, and its user has not signed out."""
        return self.open_ports is not None and (self.signed_in is None or self.signed_in())


PortTickets = Tickets[PortGrant]
