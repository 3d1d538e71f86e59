"""The base of every handler: five checks of access before each method.

It holds no state beyond the request's. ``message`` reads requests and writes answers, ``sender`` identifies
the sender; the handlers of the resources do the rest.
"""

from __future__ import annotations

from collections.abc import Awaitable, Iterable, Mapping
from functools import partial

from tornado.httputil import HTTPServerRequest

from cellgate import errors
from cellgate.http.described import masked, method_of
from cellgate.http.handed_on import HandedOnHandler
from cellgate.http.listener.streams import RETRY_SECONDS, TOO_MANY_OF_ONE
from cellgate.http.message import MAX_DRAINED_BODY, was_handed_on
from cellgate.http.near_path import near_path
from cellgate.http.operation import needs_of, operation_of, requires
from cellgate.http.sender import Sender
from cellgate.http.services import Services
from cellgate.http.tracing import RequestSpan
from cellgate.http.unfit import shown
from cellgate.identity.principal import Ask, Login, Principal
from cellgate.wire.owner import OWNER
from cellgate_kernels.base.errors import CellgateError, GatewayFault
from cellgate_kernels.base.threads import work_for

MOST_DIGITS = 19
FORBIDDEN = 403
FOR_PAGE = "sandbox; default-src 'none'; frame-ancestors 'none'"
"""The policy of answers to a browser that is signed in: none of them is a page of our origin."""
READ_BY_PAGES = f"Accept-Ranges, {OWNER}, Content-Disposition, Content-Range, ETag, Location, Retry-After"
"""Headers of answers that scripts of an allowed foreign origin may read, besides CORS's own short list."""
SENT_BY_PAGES = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID")
"""Headers that such scripts may send with any request; an operation's own are added to them."""

_SHOWN_OWNER = 64


class BaseHandler(HandedOnHandler):
    """A handler whose methods run only after the access checks. `sender`: where the request comes from."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self.sender = Sender(self.request, services)
        self._span: RequestSpan | None = None

    @property
    def principal(self) -> Principal:
        """The principal that sent the request."""
        return self.login.principal

    def prepare(self) -> Awaitable[None] | None:
        """Check Host, Origin, token and the body's type; a refusal waits until the body has been drained.

        Await it where a command has just changed permissions, for a token that another service must check,
        and for a refusal that is held back.
        """
        directory = self.services.people.access.authentication.directory
        return self._prepare_after(directory.catch_up()) if directory.is_behind() else self._prepare()

    async def _prepare_after(self, caught_up: Awaitable[None]) -> None:
        await caught_up
        later = self._prepare()
        if later is not None:
            await later

    def _prepare(self) -> Awaitable[None] | None:
        try:
            self._check_sender()
            if not self._needs_token:
                self._check_request()
                return None
            login = self._authenticate()
            if not isinstance(login, Login):
                self.sender.check_attempts(login)
                return self._prepare_later(self._let_in_later(login))
            elsewhere = self._let_in(login)
        except CellgateError as error:
            return self._refuse_request(error)
        return None if elsewhere is None else self._prepare_later(elsewhere)

    def _let_in(self, login: Login) -> Awaitable[None] | None:
        """Check the login's share and permissions, and the request's content.

        Await the result where the cluster must allot more of a quota, or where another gateway may have the
        session, which the request is then handed on to.
        """
        self.login = login
        self.name_address()
        self._count_for(login)
        self._trace()
        # A request that is handed on counts at the gateway that the client has asked.
        if not was_handed_on(self):
            asking = _ask_for_more(self)
            if asking is not None:
                return self._let_in_after(asking)
            _begin_request(self)
        return self._let_in_counted()

    async def _let_in_after(self, asking: Awaitable[None]) -> None:
        await asking
        _begin_request(self)
        elsewhere = self._let_in_counted()
        if elsewhere is not None:
            await elsewhere

    def _let_in_counted(self) -> Awaitable[None] | None:
        self._check_permissions()
        self._check_request()
        hop = self.services.front.hop
        if hop is None:
            return None
        # A method that the resource does not have is refused here: nothing would pass the body on.
        return hop.look(self) if needs_of(self, self.request.method or "") is not None else None

    def _authenticate(self) -> Login | Ask:
        """Return the login of the request's token or, without a token, of the browser's sign-in."""
        login = self.sender.login(self.get_query_argument("token", None))
        if self.sender.signed_in is not None:
            if (stream := self.client_stream) is not None:
                stream.signed_in = self.sender.signed_in
            self.set_header("Content-Security-Policy", FOR_PAGE)
            self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        return login

    async def _let_in_later(self, ask: Ask) -> None:
        elsewhere = self._let_in(await ask(self.sender.origin))
        if elsewhere is not None:
            await elsewhere

    async def _prepare_later(self, rest: Awaitable[None]) -> None:
        try:
            await rest
        except CellgateError as error:
            held = self._refuse_request(error)
            if held is not None:
                await held

    def _refuse_request(self, error: CellgateError) -> Awaitable[None] | None:
        """Refuse the request once its body has been drained; await the returned wait, if any.

        Raises the error at once if draining the body would take too much.
        """
        self._refused = error = self.sender.counted(error)
        length = self.request.headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > MAX_DRAINED_BODY:
            # Tornado closes the connection after an early answer.
            raise error
        return self.services.people.attempts.hold() if isinstance(error, errors.TooManyAttempts) else None

    def _check_sender(self) -> None:
        """Check the request's origin and host. Raises Forbidden."""
        self.sender.check_place(is_handed_on=was_handed_on(self))
        self._allow_origin()

    def _check_request(self) -> None:
        """Check the request's parameters, the owner of its sessions, and its body."""
        self._read_query()
        self._find_owner()
        self._note_access()
        self._check_body()

    def _count_for(self, login: Login) -> None:
        """Count the connection and its work towards its principal from now on. Raises TooManyConnections."""
        work_for(login.principal.name)
        stream = self.client_stream
        if stream is None:
            return
        if not stream.let_in(login):
            raise errors.TooManyConnections(TOO_MANY_OF_ONE, retry_after=RETRY_SECONDS)
        if not stream.is_handed_on:
            stream.passed = partial(self.services.people.usage.pass_bytes, login.principal.name)

    def _trace(self) -> None:
        """Begin the request's span; strangers and probes get none, so they can't choose what is traced."""
        self._span = self.services.front.tracer.request(self.request, self.principal.name, self.is_token)

    def on_finish(self) -> None:
        """Tornado's hook: the answer has been sent, or a WebSocket was opened."""
        self._end_span(self.refusal)

    def _end_span(self, reason: str | None) -> None:
        if self._span is not None:
            self._span.end(self.get_status(), reason)
            self._span = None

    def _check_permissions(self) -> None:
        """Check that the login has the method's permissions. Raises Forbidden, OwnedElsewhere."""
        method = self.request.method or ""
        needed = needs_of(self, method)
        if needed is not None:
            self.login.check(needed)
        elif method in self.methods():
            raise GatewayFault(f"{method} of this resource declares no permissions")
        self._check_owner()

    def _check_owner(self) -> None:
        """Refuse a request meant for another gateway behind the same address. Raises OwnedElsewhere.

        Not in a cluster, whose gateways hand requests on to each other.
        """
        if self.services.front.hop is not None:
            return
        meant = self.request.headers.get(OWNER, "")
        own = self.application.settings.get("owner", "")
        if meant and own and meant != own:
            raise errors.OwnedElsewhere(
                f"This is the gateway {own}, and the request is for {meant[:_SHOWN_OWNER]!r}: requests for"
                " one session must reach one gateway"
            )

    def _find_owner(self) -> None:
        """Find the owner of the request's sessions. Raises NotFound if the login doesn't reach them."""
        if not self._needs_token:
            return
        self.owner = self.login.owner(getattr(self._query, "principal", None))
        if self.path_args and self._under_v1 and self.names_session:
            self.login.reach.check(self.path_args[0])

    def _note_access(self) -> None:
        """Note in the audit trail that somebody else than their owner asks for sessions.

        Of a request that is handed on, the gateway notes it that the sender has asked.
        """
        if was_handed_on(self):
            return
        if self._needs_token and self.owner != self.principal.name:
            self.services.storage.trail.accessed(
                {
                    **self._who(),
                    **self._what(),
                    "owner": self.owner,
                    "session": masked(self.path_args[0], self.is_token) if self.path_args else "",
                }
            )

    def _who(self) -> dict[str, str]:
        """Return the audit trail's fields for the sender: never a token, only its id."""
        login: Login | None = getattr(self, "login", None)
        return {
            "principal": "" if login is None else login.principal.name,
            "token": "" if login is None else login.id,
            "address": self.client_address,
        }

    def _what(self) -> dict[str, str]:
        """Return the audit trail's fields for the request: never a query or a body."""
        paths: Mapping[type[BaseHandler], str] = self.application.settings["paths"]
        return {"method": method_of(self.request), "route": paths.get(type(self), "")}

    def note_refusal(self, error: CellgateError) -> None:
        """Note a refused access in the audit trail."""
        note = self._who() | {"reason": error.reason, "cause": getattr(error, "cause", "")}
        if isinstance(error, (errors.NotAuthenticated, errors.TooManyAttempts)):
            note |= {"token": error.token, "principal": error.principal or note["principal"]}
        elif errors.status_of(error) != FORBIDDEN:
            return
        self.services.storage.trail.refused(note, first=self._what())

    def refuses(self, error: CellgateError) -> None:
        self.note_refusal(error)
        self._allow_origin()

    def on_connection_close(self) -> None:
        super().on_connection_close()
        self._end_span("client_disconnected")

    def _allow_origin(self) -> None:
        """Let the pages of an allowed foreign origin read the answer.

        Credentials are never allowed: cookies count for our own page alone, other pages send the token.
        """
        if self.services.people.access.allowed_origins:
            self.set_header("Vary", "Origin")
        if self.sender.allowed_origin is not None:
            self.set_header("Access-Control-Allow-Origin", self.sender.allowed_origin)
            self.set_header("Access-Control-Expose-Headers", READ_BY_PAGES)

    async def options(self, *_: str) -> None:
        """Answer a preflight of an allowed origin (CORS) with the methods and headers of this resource."""
        self.check()
        methods = self.methods()
        self.set_header("Allow", ", ".join((*methods, "OPTIONS")))
        if self.sender.allowed_origin is not None:
            self.set_header("Access-Control-Allow-Methods", ", ".join(methods))
            self.set_header("Access-Control-Allow-Headers", ", ".join(self._sent_headers(methods)))
            self.set_header("Access-Control-Max-Age", "600")
            self.set_header("Vary", "Origin, Access-Control-Request-Method, Access-Control-Request-Headers")
        self.set_status(204)

    def _sent_headers(self, methods: Iterable[str]) -> dict[str, None]:
        """Return the headers that requests to this resource may have, each once and in a fixed order."""
        known = dict.fromkeys(SENT_BY_PAGES)
        for method in methods:
            if (declared := operation_of(self, method)) is not None:
                known |= dict.fromkeys(declared.headers)
        return known


class UntaggedHandler(BaseHandler):
    """A handler without tornado's hash of the body: its ETag comes from the body's source, or is missing."""

    def compute_etag(self) -> None:
        """Return no tag of the body."""


class BaseUrlHandler(BaseHandler):
    """The base URL without its last slash, where relative links of a page would lead outside."""

    public = True

    async def get(self) -> None:
        """Redirect to the base URL with a slash."""
        self.check()
        self.set_location(f"/?{self.request.query}" if self.request.query else "/")
        self.set_status(302)


class NotFoundHandler(BaseHandler):
    """Every path without a resource. `known`: the existing paths, one of which may have been meant."""

    def initialize(self, services: Services, known: tuple[str, ...] = ()) -> None:
        super().initialize(services)
        self._known = known

    def _check_body(self) -> None:
        """Refuse, but only after the access checks: a stranger can't probe for paths."""
        super()._check_body()
        base_url = self.services.front.base_url
        beside = base_url and not self.request.path.startswith(f"{base_url}/")
        if beside:
            hint = f"this gateway serves below {base_url}/"
        elif (near := near_path(self.request.path.removeprefix(base_url), self._known)) is not None:
            hint = f"did you mean {base_url}{shown(near)}?"
        else:
            hint = f"{base_url}/docs has all there are"
        raise errors.NotFound(f"There is nothing at this path; {hint}")

    @requires()
    async def _nothing(self, *_: str) -> None:
        """Do nothing: every such request has been refused."""

    get = head = post = delete = patch = put = options = _nothing


async def count_request(handler: BaseHandler) -> None:
    """Count a request, or raise PrincipalQuotaExceeded if its principal may send no more now."""
    asking = _ask_for_more(handler)
    if asking is not None:
        await asking
    _begin_request(handler)


def _ask_for_more(handler: BaseHandler) -> Awaitable[None] | None:
    usage = handler.services.people.usage
    return usage.ask_for_more(handler.principal.name, _announced(handler.request))


def _begin_request(handler: BaseHandler) -> None:
    account = handler.services.people.usage.account(handler.principal.name)
    account.begin_request(_announced(handler.request))


def _announced(request: HTTPServerRequest) -> int:
    """Return the length of a request's body, as far as it is known."""
    length = request.headers.get("Content-Length", "0")
    return int(length) if length.isdecimal() and len(length) < MOST_DIGITS else 0
