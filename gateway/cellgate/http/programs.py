"""Requests to programs inside sessions, on a listener and at an origin of their own.

The gateway's own interfaces are not served here, nor programs there. A request is let in by a cookie that
came from a ticket, or by a token; then its head and body go to the program, and the answer comes back, both
as they arrive. ``ports`` has the rules and the parser; this module connects the two sides.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus

from tornado.httputil import HTTPHeaders, HTTPInputError, HTTPOutputError
from tornado.iostream import IOStream, StreamClosedError

from cellgate.errors import BadProgramAnswer, Forbidden, NotAuthenticated, NotFound, status_of
from cellgate.execution.checks import check_session_key
from cellgate.http.access import host_name, origin_host
from cellgate.http.base import BaseHandler
from cellgate.http.listener.streams import PART, ClientStream
from cellgate.http.plain_page import POLICY, plain_page
from cellgate.http.services import Services
from cellgate.identity.principal import Login, Permission
from cellgate.ports.exchange import Exchange, ProgramAnswer
from cellgate.ports.grants import PortGrant
from cellgate.ports.headers import (
    Passing,
    answer_fields,
    cookie_field,
    request_fields,
    secrets_in,
    ticket_in,
    without_our_parameters,
)
from cellgate.ports.origin import PortPlace, parse_path
from cellgate.ports.table import PortConnection, SessionPorts
from cellgate_kernels.base.errors import CellgateError, InvalidInput, PortUnanswered
from cellgate_kernels.base.tasks import Supervisor

OWN_PAGES = frozenset({"same-origin", "none"})
"""The browser's values for requests that a page of this origin, or its user, has made."""
IDLE_SECONDS = 3600.0
"""Seconds after which a WebSocket without a byte either way is closed."""
BROKEN = (OSError, StreamClosedError)
PROGRAM_FAILURES = (CellgateError, *BROKEN)
"""Failures of a program's answer, which are reported to the waiting client."""
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


class ProgramHandler(BaseHandler):
    """One request, whatever its path."""

    _own: bytes | None = None
    """The body of our own answer, sent once the request is read."""
    _exchange: Exchange | None = None
    _connection: PortConnection | None = None
    _answering: asyncio.Task[None] | None = None

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        assert services.front.ports is not None
        self._served = services.front.ports
        self._tasks = Supervisor()
        self._upgrade = False

    async def _prepare(self) -> None:
        """Let the request in, and pass its head on to the program."""
        try:
            self._check_name()
            if self._redirect() or self._redeem():
                return
            target = await self._find_target()
            self._trace()
            self._count_request()
            await self._begin(target)
        except CellgateError as error:
            held = self._refuse_request(error)
            if held is not None:
                await held

    # Who is let in

    def _check_name(self) -> None:
        """Check the Host, as on the main listener. Raises Forbidden, and InvalidInput for an invalid path."""
        name = host_name(self.request.headers.get("Host", ""))
        if not self._served.origin.is_name(name):
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

    def _redeem(self) -> bool:
        """Answer a request with a ticket; return whether it was one. Raises NotAuthenticated."""
        ticket = ticket_in(self.request.query)
        if ticket is None or self.request.method != "GET":
            return False
        redeemed = self._served.tickets.redeem(ticket)
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

    async def _find_target(self) -> _Target:
        """Find the request's login and port. Raises NotAuthenticated, Forbidden and NotFound."""
        for secret in secrets_in(self.request.headers.get_list("Cookie")):
            grant = self._served.tickets.find(secret)
            if grant is not None and self._is_here(grant.place):
                return self._by_cookie(grant)
        return await self._by_token()

    def _by_cookie(self, grant: PortGrant) -> _Target:
        """Return a browser's target: only for its user's acts and this origin's pages. Raises Forbidden."""
        _check_page(self.request.headers)
        self._enter(grant.login, grant.signed_in)
        ports = grant.open_ports
        if ports is None:
            raise NotFound("This session has ended")
        return _Target(ports, grant.port, grant.place.prefix, self._path_below(grant.place.prefix))

    async def _by_token(self) -> _Target:
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
        session = self.services.sessions.manager.live(login.principal.name, key)
        return _Target(session.ports, path.port, path.prefix, self._path_below(path.prefix))

    def _enter(self, login: Login, signed_in: Callable[[], bool] | None = None) -> None:
        self.login = login
        self._count_for(login)
        if (stream := self._stream()) is not None:
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
        """Connect to the program, send it the head, and wait for its answer beside the body."""
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
        self._connection = await target.ports.connect(target.port)
        if self.disconnected:
            self._connection.close()
            return
        self._exchange = Exchange(self._connection)
        try:
            with suppress(*BROKEN):  # it may have answered all the same
                await self._exchange.begin(self.request.method or "", target.path, fields)
        except BaseException:
            self._connection.close()
            raise
        self._ask_for_body()
        self._answering = self._tasks.share(
            self._answer(self._exchange), "answer of a program", PROGRAM_FAILURES
        )

    def _ask_for_body(self) -> None:
        """Ask a waiting client to send the body, unless an answer may have begun.

        Tornado would do so later, and write into the program's answer.
        """
        expected = self.request.headers.pop("Expect", "").lower() == "100-continue"
        stream = self._stream()
        if expected and stream is not None and self.request.version == "HTTP/1.1":
            with suppress(*BROKEN):
                stream.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:  # type: ignore[override]
        """Pass a piece of the body on; a refused request's body is drained."""
        if self._own is not None:
            return None
        if self._exchange is None or self._answering is None:
            super().data_received(chunk)
            return None
        self.count_body(len(chunk))
        return self._pass_on(self._exchange, self._answering, chunk)

    async def _pass_on(self, exchange: Exchange, answering: asyncio.Task[None], chunk: bytes | None) -> None:
        """Send a piece, or for None the end, unless the program has answered and reads no more."""
        if answering.done() or self._refused is not None:
            return
        work = exchange.finish() if chunk is None else exchange.send(chunk)
        sending = self._tasks.share(work, "body to a program", BROKEN)
        await asyncio.wait({sending, answering}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done():
            with suppress(*BROKEN):
                sending.result()
        else:
            sending.cancel()

    async def _handle(self, *_: str) -> None:
        """Handle the end of the body, with which tornado calls this."""
        try:
            self.check()
            if self._own is not None:
                self.finish(self._own)
            elif self._exchange is not None and self._answering is not None:
                await self._pass_on(self._exchange, self._answering, None)
                self.check()
                await self._answered(self._answering)
        finally:
            await self._leave()

    async def _answered(self, answering: asyncio.Task[None]) -> None:
        """Return when the answer is sent. Raises the reason why it can't be, if the client still listens."""
        await asyncio.wait({answering})
        error = answering.exception()
        if error is not None and not self.disconnected and not isinstance(error, BROKEN):
            raise error

    async def _leave(self) -> None:
        if self._connection is not None:
            self._connection.close()
        await self._tasks.cancel()

    get = head = post = delete = patch = put = options = _handle

    def on_connection_close(self) -> None:
        super().on_connection_close()
        if self._connection is not None:
            self._connection.close()

    # The answer

    async def _answer(self, exchange: Exchange) -> None:
        """Send the program's answer to the client. Raises BadProgramAnswer, and StreamClosedError."""
        answer = await exchange.answer()
        try:
            self._write_head(answer)
            if not answer.switches:
                await self._pass_back(exchange)
                return
            self.finish()
        except (HTTPInputError, HTTPOutputError) as error:
            # Tornado's rules are stricter.
            raise BadProgramAnswer(f"The program's answer can't be passed on: {error}") from None
        await self._relay(exchange)

    async def _pass_back(self, exchange: Exchange) -> None:
        """Send the head and, as it arrives, the body."""
        await self.flush()
        async for data in exchange.body():
            self.write(data)
            await self.flush()
        self.finish()

    def _write_head(self, answer: ProgramAnswer) -> None:
        """Write the program's own head, without any header of the gateway's."""
        self._headers = HTTPHeaders()
        self.set_status(answer.status, answer.reason or None)
        for name, value in answer_fields(answer.fields, self._passing, switches=answer.switches):
            self.add_header(name, value)

    async def _relay(self, exchange: Exchange) -> None:
        """Relay a WebSocket's bytes in both directions, until either side ends it."""
        client = self.detach()
        assert self._connection is not None
        client.set_close_callback(self._connection.close)
        try:
            with suppress(*BROKEN):  # a TimeoutError, too
                if rest := exchange.rest():
                    await client.write(rest)
                async with asyncio.timeout(IDLE_SECONDS) as idle:
                    await self._both_ways(client, self._connection, idle)
        finally:
            client.close()

    async def _both_ways(self, client: IOStream, program: PortConnection, idle: asyncio.Timeout) -> None:
        clock = asyncio.get_running_loop().time

        async def to_program() -> None:
            while True:
                if isinstance(client, ClientStream):
                    client.begins_message()
                data = await client.read_bytes(PART, partial=True)
                if isinstance(client, ClientStream):
                    client.pace.ends_message()
                idle.reschedule(clock() + IDLE_SECONDS)
                await program.write(data)

        async def to_client() -> None:
            while data := await program.read():
                idle.reschedule(clock() + IDLE_SECONDS)
                await client.write(data)

        tasks = Supervisor()
        up = tasks.share(to_program(), "to a program", BROKEN)
        down = tasks.share(to_client(), "from a program", BROKEN)
        try:
            await asyncio.wait({up, down}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await tasks.cancel()

    # Errors

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        if "text/html" not in self.request.headers.get("Accept", ""):
            return super().problem_body(error)
        status = status_of(error)
        again = isinstance(error, PortUnanswered) and self.request.method == "GET"
        page = self._page(f"{status.value} {status.phrase}", error.message, AGAIN_SECONDS if again else "")
        return "text/html; charset=utf-8", page
