"""Hands requests on to the gateway of the cluster that has their session: once, and before anything is done.

``base`` asks it when a request's sender is known and its body not yet read; a handler whose body names the
session does so when the registry finds that another gateway has it. The owner checks the token itself.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection
from functools import partial
from typing import ClassVar, Final, Protocol

from tornado.httputil import HTTPHeaders
from tornado.iostream import IOStream

from cellgate.errors import HopRefused, OwnedElsewhere, OwnerLost
from cellgate.http.hop.fields import answer_fields, request_fields
from cellgate.http.hop.peers import Peers
from cellgate.http.hop.signature import GOOD_SECONDS, HopPlace, HopSigner
from cellgate.http.hop.silence_watch import SilenceWatch
from cellgate.http.listener.forwarded import Forwarded
from cellgate.http.listener.streams import ClientStream
from cellgate.http.relayed_request import RelayedHandler, RelayedRequest, RelayWay
from cellgate.ports.exchange import Exchange, ProgramAnswer
from cellgate.ports.headers import Fields
from cellgate.sessions.keys import SessionKeys
from cellgate.wire.models import SESSION_KEY
from cellgate.wire.owner import HOP, NODE_DIGITS
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.tasks import guarded

logger = logging.getLogger(__name__)

TELL_SECONDS: Final = 3600.0
"""Seconds after which the log says again why a gateway's requests are refused."""
OWNER_NAMED: Final = "The gateway that has the session"
EVICTED_SECONDS: Final = 1.0
"""Seconds in which the owner closes a WebSocket, whose login has ended, in its own protocol."""

CLIENT_SILENCE: Final = 600
"""Seconds after which a client that acknowledges nothing is gone."""


class HoppingHandler(RelayedHandler, Protocol):
    """A handler, as far as its request may be handed on; see ``base``."""

    owner: str
    for_port: ClassVar[bool]
    relay: RelayedRequest | None

    def session_wanted(self) -> str | None:
        """Return the key of the session that the request is about, as far as its head says; else None."""

    def made_at(self) -> str | None:
        """Return the first digits of the id of the gateway that made what the request names, if it says."""


class Hop:
    """This gateway's way to the others. `keys`: the sessions here, and who has the others.

    `nodes`: returns the ids of all gateways of the cluster. `clock`: the monotonic one.
    """

    def __init__(
        self,
        place: HopPlace,
        keys: SessionKeys,
        nodes: Callable[[], Collection[str]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.signer = HopSigner(place)
        self.address = place.address
        self._place = place
        self._keys = keys
        self._nodes = nodes
        self._clock = clock
        self._watch = SilenceWatch()
        self._peers = Peers(self._watch)
        # When the log said of a node, "" for all unknown ones, that clocks are apart, or signatures bad.
        self._told: dict[tuple[str, bool], float] = {}

    def client_of(self, method: str, target: str, headers: HTTPHeaders) -> Forwarded | None:
        """Return whose a request is that another gateway hands on; None for any other request.

        Raises HopRefused; at most once an hour for each gateway, the log says what to do.
        """
        try:
            return self.signer.read(method, target, headers)
        except HopRefused as error:
            self._tell(error)
            raise

    def _tell(self, error: HopRefused) -> None:
        # A node that the cluster does not have may be anybody's invention: all of these count as one.
        node = error.node if error.node != self._place.node and error.node in self._nodes() else ""
        now = self._clock()
        self._told = {fault: at for fault, at in self._told.items() if now - at < TELL_SECONDS}
        fault = node, error.apart is None
        if fault in self._told:
            return
        self._told[fault] = now
        if error.apart is not None:
            logger.error(
                "Refused a request that the node %s hands on: the clocks are %.0f s apart, and %d s are"
                " allowed. Set the clocks of both machines, as by NTP",
                error.node,
                error.apart,
                GOOD_SECONDS,
            )
        elif node:
            logger.error(
                "Refused a request that the node %s hands on: its signature is not good here. Both gateways"
                " need the same --cluster-key, this one its own --advertise, and whatever is between them"
                " must leave paths and queries as they are",
                node,
            )
        else:
            logger.warning("Refused a request whose header Cellgate-Hop no gateway of the cluster has sent")

    def look(self, handler: HoppingHandler) -> Awaitable[None] | None:
        """Return how to hand a request on, if another gateway may have its session; None if it is here."""
        key = handler.session_wanted()
        if key is not None:
            use = self._keys.uses.get((handler.owner, key))
            if use is not None and use.open:
                return None
        made_at = handler.made_at()
        return None if key is None and made_at is None else self._look(handler, key, made_at)

    async def _look(self, handler: HoppingHandler, key: str | None, made_at: str | None) -> None:
        owner = None
        if key is not None and SESSION_KEY.fullmatch(key):
            owner = await self._keys.ownership.find(handler.owner, key)
        address = None if owner is None else owner.address
        if owner is None and made_at is not None and made_at != self._place.node[:NODE_DIGITS]:
            address = self._keys.ownership.address_of(made_at)
        if address is not None:
            await self.hand_on(handler, address)

    async def hand_on(self, handler: HoppingHandler, address: str, body: bytes | None = None) -> None:
        """Begin the request at the gateway with this URL. `body`: all of it, if it has been read already.

        Raises OwnedElsewhere if it was handed on already, OwnerUnreachable, and InvalidInput.
        """
        request = handler.request
        if (stream := handler.client_stream) is not None and stream.is_handed_on:
            raise OwnedElsewhere(
                "The gateways disagree on which of them has the session, as while it moves: try again"
            )
        target = request.uri or ""
        if not target.startswith("/"):
            raise InvalidInput("The request must name a path")
        method = request.method or ""
        upgrade = request.headers.get("Upgrade", "").lower() == "websocket" and method == "GET"
        fields = request_fields(request.headers.get_all(), request.headers.get("Host", ""))
        fields += _framing(handler, body, upgrade=upgrade)
        client = Forwarded(request.remote_ip or "", request.protocol, for_port=handler.for_port)
        fields.append((HOP, self.signer.sign(address, method, target, client)))
        connection = await self._peers.connect(address)
        if handler.disconnected:
            connection.close()
            return
        exchange = Exchange(connection, OWNER_NAMED, limited=False, failure=OwnerLost)
        way = RelayWay(_answer_fields, kept=partial(self._peers.keep, connection), joined=self._joined)
        relay = RelayedRequest(handler, connection, exchange, way)
        if body is not None:
            # It has come, so the client waits for no word to send it.
            request.headers.pop("Expect", None)
        await relay.begin(method, target, fields)
        handler.relay = relay
        if body:
            await relay.pass_on(body)

    async def close(self) -> None:
        """Close the waiting connections to other gateways."""
        await self._peers.close()
        await self._watch.close()

    def _joined(self, client: IOStream) -> None:
        """Prepare a client's connection that has become a WebSocket."""
        if not isinstance(client, ClientStream) or client.closed():
            return
        # The owner sees our system acknowledge its pings, so we look at the client's.
        client.is_joined = True
        self._watch.add(client.socket, CLIENT_SILENCE, client.drop)
        loop = asyncio.get_running_loop()
        client.evict = lambda: loop.call_later(EVICTED_SECONDS, guarded(client.drop, "evicted WebSocket"))


def _framing(handler: HoppingHandler, body: bytes | None, *, upgrade: bool) -> Fields:
    """Return the fields that frame the request's body. Raises InvalidInput."""
    headers = handler.request.headers
    length = headers.get("Content-Length")
    if upgrade:
        if "Transfer-Encoding" in headers or (length or "0") != "0":
            # After the switch both the body's rest and the client's words would come over one connection.
            raise InvalidInput("A request for a WebSocket can't have a body")
        return [("Connection", "Upgrade"), ("Upgrade", "websocket")]
    if body is not None and (body or length is not None or "Transfer-Encoding" in headers):
        return [("Content-Length", str(len(body)))]
    if "Transfer-Encoding" in headers:
        return [("Transfer-Encoding", "chunked")]
    return [] if length is None else [("Content-Length", length)]


def _answer_fields(answer: ProgramAnswer) -> Fields:
    return answer_fields(answer.fields, switches=answer.switches)
