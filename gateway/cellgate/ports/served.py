"""The two listeners' common parts for ports: their places, and the permissions."""

from __future__ import annotations

from dataclasses import dataclass

from cellgate.ports.grants import PortTickets
from cellgate.ports.origin import PortsOrigin


@dataclass(frozen=True, slots=True)
class ServedPorts:
    """The gateway serves ports: at `origin`, to holders of tickets in `tickets` or of a token.

    `listens_on`: the port on this machine, which is that of `origin` unless there is a proxy.
    """

    origin: PortsOrigin
    listens_on: int
    tickets: PortTickets
