"""What the two listeners share about ports: where they are found, and who was let in."""

from __future__ import annotations

from dataclasses import dataclass

from cellgate.ports.grants import PortTickets
from cellgate.ports.origin import PortsOrigin


@dataclass(frozen=True, slots=True)
class ServedPorts:
    """The gateway serves ports: at `origin`, to those that `tickets` knows, and to whoever has a token.

    `listens_on`: the port of this machine, which is that of `origin` unless a proxy is in between.
    """

    origin: PortsOrigin
    listens_on: int
    tickets: PortTickets
