"""Opens this gateway's way to the others of its cluster, which requests are handed on by."""

from __future__ import annotations

from contextlib import AsyncExitStack

from cellgate.http.hop.hop import Hop
from cellgate.http.hop.signature import HopPlace
from cellgate.http.services import Storage
from cellgate.identity.store.opening import ClusterUsers
from cellgate.sessions.keys import SessionKeys

HOP_PURPOSE = "hop"


def open_hop(
    storage: Storage, users: ClusterUsers | None, keys: SessionKeys, stack: AsyncExitStack
) -> Hop | None:
    """Return the way to the other gateways, which have the same users' key; None without a cluster."""
    if storage.cluster is None or users is None:
        return None
    member = storage.cluster.membership
    place = HopPlace(member.node, member.settings.advertise, users.key.derived(HOP_PURPOSE))
    hop = Hop(place, keys, lambda: member.nodes)
    stack.push_async_callback(hop.close)
    return hop
