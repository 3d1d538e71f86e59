"""The headers by which gateways name themselves and each other, and ids that name their gateway."""

from __future__ import annotations

import uuid
from typing import Final

OWNER: Final = "Cellgate-Owner"
"""Of an answer: the id of the gateway. Of a request: any other gateway refuses it (421 `not_owner`).

In a cluster the gateways hand requests on to each other, and refuse none because of it.
"""
OWNER_ADDRESS: Final = "Cellgate-Owner-Address"
"""Of an answer: the URL of the gateway, which is one of a cluster."""
HOP: Final = "Cellgate-Hop"
"""Of a request that a gateway of a cluster hands on to another: which one does, and whose it is, signed."""
OURS: Final = "cellgate-"
"""The beginning of all these headers' names, in lower case."""
NODE_DIGITS: Final = 8
"""The first digits of a gateway's id, which ids made by it begin with in a cluster."""

UUID_LENGTH: Final = 36


def new_id(node: str = "") -> str:
    """Return a new UUID. `node`: the id of this gateway, if it is one of a cluster."""
    made = str(uuid.uuid4())
    return made_at(node, made) if node else made


def made_at(node: str, made: str) -> str:
    """Return a UUID that names the gateway with this id by its first digits."""
    return f"{node[:NODE_DIGITS]:0<{NODE_DIGITS}}{made[NODE_DIGITS:]}"


def node_in(made: str) -> str | None:
    """Return the first digits of the id of the gateway that may have made a UUID; None for no UUID."""
    try:
        return made[:NODE_DIGITS] if len(made) == UUID_LENGTH and str(uuid.UUID(made)) == made else None
    except ValueError:
        return None
