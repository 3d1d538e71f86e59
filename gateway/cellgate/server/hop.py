"""Opens this gateway's way to the others of its cluster, which requests are handed on by."""

from __future__ import annotations

from contextlib import AsyncExitStack

from cellgate.http.hop.hop import Hop
from cellgate.http.hop.signature import HopPlace
from cellgate.http.services import Storage
from cellgate.server.settings import GatewaySettings
from cellgate.sessions.keys import SessionKeys


def open_hop(
    settings: GatewaySettings, storage: Storage, keys: SessionKeys, stack: AsyncExitStack
) -> Hop | None:
    """Return the way to the other gateways; None without a cluster."""
    if settings.cluster is None or storage.cluster is None:
        return None
    member = storage.cluster.membership
    hop = Hop(HopPlace(member.node, settings.cluster.advertise, member.hop_key), keys)
    stack.push_async_callback(hop.close)
    return hop
