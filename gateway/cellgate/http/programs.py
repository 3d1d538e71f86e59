"""Requests to programs inside sessions, on a listener and at an origin of their own.

The gateway's own interfaces are not served here, nor programs there. A request is let in by a cookie that
came from a ticket, or by a token; then its head and body go to the program, and the answer comes back, both
as they arrive. ``ports`` has the rules and the parser; this module connects the two sides.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from tornado.httputil import HTTPHeaders, HTTPServerRequest
from tornado.routing import Matcher

from cellgate.errors import Forbidden, NotAuthenticated, NotFound, status_of
from cellgate.execution.checks import check_session_key
from cellgate.http.access import host_name, origin_host
from cellgate.http.base import BaseHandler, count_request
from cellgate.http.listener.streams import ClientStream
from cellgate.http.message import was_handed_on
from cellgate.http.plain_page import POLICY, plain_page
from cellgate.http.relayed_request import RelayedRequest, RelayWay
from cellgate.http.services import Services
from cellgate.identity.principal import Login, Permission
from cellgate.ports.exchange import Exchange, ProgramAnswer
from cellgate.ports.grants import PortGrant
from cellgate.ports.headers import (
    Fields,
    Passing,
    answer_fields,
    cookie_field,
    request_fields,
    secrets_in,
    ticket_in,
    without_our_parameters,
)
from cellgate.ports.origin import PortPlace, parse_path
from cellgate.ports.table import SessionPorts
from cellgate_kernels.base.errors import CellgateError, InvalidInput, PortUnanswered

OWN_PAGES = frozenset({"same-origin", "none"})
"""The browser's values for requests that a page of this origin, or its user, has made."""
IDLE_SECONDS = 3600.0
"""Seconds after which a WebSocket without a byte either way is closed."""
AGAIN_SECONDS = "2"


@dataclass(frozen=True, slots=True)
class _Target:
    """The port of a request. `path`: the program's own."""

    ports: SessionPorts
    port: int
    prefix: str
    path: str


def _check_page(headers: HTTPHeaders) -> None:
    """Raise Forbidden for a request by a page of any other origin, by the browser's headers.

    Cookies are no proof: they are the same for all ports of a host.
    """
    site = headers.get("Sec-Fetch-Site", "none")
    if site not in OWN_PAGES:
        raise Forbidden(
            "Another origin's page asks for this: open it by an address of its own, which has a ticket",
            cause="origin",
        )
    origin = headers.get("Origin")
    own = headers.get("Host", "").lower()
    if origin is not None and origin_host(origin) != own:
        raise Forbidden("Pages of other origins may not ask for this", cause="origin")


class ForPort(Matcher):
    """Matches what another gateway of the cluster hands on to a program, at our own listener."""

    def match(self, request: HTTPServerRequest) -> dict[str, Any] | None:
        """Return no arguments for the handler; None for a request to our own interfaces."""
        stream = getattr(request.connection, "stream", None)
        handed_on = stream.handed_on if isinstance(stream, ClientStream) else None
        return {} if handed_on is not None and handed_on.for_port else None


class ProgramHandler(BaseHandler):
    """One request, whatever its path."""

    for_port = True

    _own: bytes | None = None
    """The body of our own answer, sent once the request is read."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        assert services.front.ports is not None
        self._served = services.front.ports
        self._upgrade = False

    async def _prepare(self) -> None:
        """Let the request in, and pass its head on to the program."""
        try:
            self._check_name()
            if self._redirect() or await self._redeem():
                return
            target = await self._find_target()
            self._trace()
            if not was_handed_on(self):
                # The gateway that the client has asked counts the request and its bytes.
                await count_request(self)
            if isinstance(target, str):
                assert self.services.front.hop is not None
                await self.services.front.hop.hand_on(self, target)
            else:
                await self._begin(target)
        except CellgateError as error:
            held = self._refuse_request(error)
            if held is not None:
                await held

    # Who is let in

    def _check_name(self) -> None:
        """Check the Host, as on the main listener. Raises Forbidden, and InvalidInput for an invalid path."""
        name = host_name(self.request.headers.get("Host", ""))
        if not was_handed_on(self) and not self._served.origin.is_name(name):
            self.services.people.access.check_host(self.request.headers.get("Host", ""))
        if not self._uri.startswith("/"):
            raise InvalidInput("The request must name a path")

    @property
    def _uri(self) -> str:
        return self.request.uri or ""

    def _redirect(self) -> bool:
        """Redirect a port's path without the slash that relative links need; return whether it was one."""
        if self._at_own_name:
            return False
        path = parse_path(self._uri)
        if path is None or path.complete:
            return False
        _, mark, query = self._uri.partition("?")
        self.set_header("Location", f"{path.prefix}/{mark}{query}")
        self.set_status(HTTPStatus.PERMANENT_REDIRECT)
        self._own = b""
        return True

    @property
    def _at_own_name(self) -> bool:
        return self._served.origin.is_wild(self._name)

    @property
    def _name(self) -> str:
        return host_name(self.request.headers.get("Host", ""))

    def _is_here(self, place: PortPlace) -> bool:
        """Return whether the request came to this place, for which the permission was given."""
        if place.host is not None:
            return self._name == place.host
        return not self._at_own_name and self._uri.startswith(f"{place.prefix}/")

    async def _redeem(self) -> bool:
        """Answer a request with a ticket; return whether it was one.

        Raises NotAuthenticated, and in a cluster StorageError.
        """
        ticket = ticket_in(self.request.query)
        if ticket is None or self.request.method != "GET":
            return False
        redeemed = await self._served.tickets.redeem(ticket)
        if redeemed is None or not self._is_here(redeemed[1].place):
            raise NotAuthenticated(
                "This address works once, within a minute. Get a new one with"
                " `cellgate session port SESSION PORT`",
                cause="ticket",
            )
        secret, grant = redeemed
        secure = self.request.protocol == "https"
        self.set_header("Set-Cookie", cookie_field(secret, grant.place.prefix, secure=secure))
        self.set_header("Referrer-Policy", "no-referrer")
        query = without_our_parameters(self.request.query, self._is_our_token)
        path = f"/{self.request.path.lstrip('/')}"
        location = path + (f"?{query}" if query else "")
        if self.request.headers.get("Sec-Fetch-Site", "none") in OWN_PAGES:
            self.set_header("Location", location)
            self.set_status(HTTPStatus.SEE_OTHER)
            self._own = b""
        else:
            # After a link on another site a browser does not send a strict cookie, redirected or not; after
            # this page it does.
            self._own = self._page("Opening", "", f"0; url={location}")
        return True

    def _page(self, title: str, text: str, refresh: str = "") -> bytes:
        """Return our own page. `refresh`: delay and target, in HTML's form."""
        self.set_header("Content-Type", "text/html; charset=utf-8")
        self.set_header("Content-Security-Policy", POLICY)
        return plain_page(title, text, refresh=refresh)

    async def _find_target(self) -> _Target | str:
        """Find the request's login and port, or the address of the gateway that has the session.

        Raises NotAuthenticated, Forbidden, NotFound, and in a cluster StorageError.
        """
        for secret in secrets_in(self.request.headers.get_list("Cookie")):
            grant = self._served.tickets.find(secret)
            if grant is not None and self._is_here(grant.place):
                return await self._by_cookie(grant)
        return await self._by_token()

    async def _elsewhere(self, owner: str, key: str) -> str:
        """Return the address of another gateway that has a session. Raises NotFound if none has."""
        if self.services.front.hop is not None and not was_handed_on(self):
            found = await self.services.sessions.manager.keys.ownership.find(owner, key)
            if found is not None and found.address is not None:
                return found.address
        raise NotFound(f"No live session {key!r}")

    async def _by_cookie(self, grant: PortGrant) -> _Target | str:
        """Return a browser's target: only for its user's acts and this origin's pages. Raises Forbidden."""
        _check_page(self.request.headers)
        self._enter(grant.login, grant.signed_in)
        ports = grant.open_ports
        if ports is None:
            return await self._elsewhere(grant.owner, grant.session)
        return _Target(ports, grant.port, grant.place.prefix, self._path_below(grant.place.prefix))

    async def _by_token(self) -> _Target | str:
        """Return a program's target: its token is in the Authorization field, the session in the path."""
        _check_page(self.request.headers)
        given = self.request.headers.get("Authorization", "")
        try:
            found = self.services.people.access.authenticate(given, None)
        except NotAuthenticated as error:
            if error.is_attempt:
                raise
            raise NotAuthenticated(
                "Open this port by a new address (cellgate session port, or a POST to"
                " /v1/sessions/SESSION/ports/PORT), or send a token",
                cause=error.cause,
            ) from None
        if isinstance(found, Login):
            login = found
        else:
            self.sender.check_attempts(found)
            login = await found(self.sender.origin)
        path = None if self._at_own_name else parse_path(self._uri)
        if path is None:
            raise NotFound("A path begins with /SESSION/PORT/")
        login.check(frozenset({Permission.RUN}))
        key = check_session_key(path.session)
        self._enter(login)
        login.reach.check(key)
        session = self.services.sessions.manager.get(login.principal.name, key)
        if session is None:
            return await self._elsewhere(login.principal.name, key)
        return _Target(session.ports, path.port, path.prefix, self._path_below(path.prefix))

    def _enter(self, login: Login, signed_in: Callable[[], bool] | None = None) -> None:
        self.login = login
        self._count_for(login)
        if (stream := self.client_stream) is not None:
            # When the sign-in ends, so do the connections that it let in.
            stream.signed_in = signed_in

    def _path_below(self, prefix: str) -> str:
        """Return the path and query that the program gets."""
        path, _, query = self._uri.removeprefix(prefix).partition("?")
        query = without_our_parameters(query, self._is_our_token)
        return f"{path}?{query}" if query else path

    def _is_our_token(self, word: str) -> bool:
        """Return whether a word, or the Authorization field with one, lets somebody in here, or might."""
        return self.services.people.access.may_know(word)

    # The request

    async def _begin(self, target: _Target) -> None:
        """Connect to the program, and send it the head."""
        headers = self.request.headers
        self._upgrade = headers.get("Upgrade", "").lower() == "websocket" and self.request.method == "GET"
        if self._upgrade and ("Transfer-Encoding" in headers or headers.get("Content-Length", "0") != "0"):
            # After the switch both the body's rest and the client's words would come over one connection.
            raise InvalidInput("A request for a WebSocket can't have a body")
        self._passing = Passing(
            scheme=self.request.protocol,
            host=headers.get("Host", ""),
            prefix=target.prefix,
            is_ours=self._is_our_token,
            upgrade=self._upgrade,
        )
        fields = request_fields(headers.get_all(), self._passing)
        if "Transfer-Encoding" in headers:
            fields.append(("Transfer-Encoding", "chunked"))
        elif (length := headers.get("Content-Length")) is not None:
            fields.append(("Content-Length", length))
        connection = await target.ports.connect(target.port)
        if self.disconnected:
            connection.close()
            return
        relay = RelayedRequest(
            self, connection, Exchange(connection), RelayWay(self._answer_fields, idle=IDLE_SECONDS)
        )
        await relay.begin(self.request.method or "", target.path, fields)
        self.relay = relay

    def _answer_fields(self, answer: ProgramAnswer) -> Fields:
        return answer_fields(answer.fields, self._passing, switches=answer.switches)

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Pass a piece of the body on; a refused request's body is drained."""
        return None if self._own is not None else super().data_received(chunk)

    async def _handle(self, *_: str) -> None:
        """Handle the end of the body, with which tornado calls this."""
        if self.relay is not None:
            await self.relay.finish()
            return
        self.check()
        if self._own is not None:
            self.finish(self._own)

    get = head = post = delete = patch = put = options = _handle

    # Errors

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        if "text/html" not in self.request.headers.get("Accept", ""):
            return super().problem_body(error)
        status = status_of(error)
        again = isinstance(error, PortUnanswered) and self.request.method == "GET"
        page = self._page(f"{status.value} {status.phrase}", error.message, AGAIN_SECONDS if again else "")
        return "text/html; charset=utf-8", page
