"""The base of every handler: access checks, bodies, problem+json answers.

It holds no state beyond the request's. Streaming answers are in ``streaming``; the handlers of the
resources decide what a request means. Errors follow RFC 9457.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from functools import cache, partial
from typing import Any, ClassVar, TypeVar

import msgspec
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler, stream_request_body

from cellgate.console.cookies import CookiePlace
from cellgate.errors import (
    MethodNotAllowed,
    NotAcceptable,
    NotAuthenticated,
    NotFound,
    NotOwner,
    PrincipalQuotaExceeded,
    TooLarge,
    TooManyAttempts,
    TooManyConnections,
    UnsupportedMedia,
    problem_of,
    status_of,
)
from cellgate.http.access import is_own_page, misplaced, token_of
from cellgate.http.described import IsToken, described, masked, method_of, nothing_known
from cellgate.http.listener.server import origin_of
from cellgate.http.listener.streams import RETRY_SECONDS, TOO_MANY_OF_ONE, ClientStream
from cellgate.http.malformed import malformed, not_text
from cellgate.http.near_path import near_path
from cellgate.http.operation import Format, Operation, needs_of, operation_of, requires
from cellgate.http.queries import read_query
from cellgate.http.services import Services
from cellgate.http.tracing import RequestSpan
from cellgate.http.unfit import shown, unfit
from cellgate.identity.principal import Ask, Login, Principal
from cellgate.wire.base import Query
from cellgate.wire.owner import OWNER
from cellgate.wire.queries import EventsQuery
from cellgate_kernels.base.errors import CellgateError, GatewayFault, InvalidInput
from cellgate_kernels.base.threads import work_for
from cellgate_kernels.codec.decoding import json_decoder
from cellgate_kernels.codec.structure import is_heavy, weigh

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q", bound=Query)

KIND_SIZE = 64 * 1024
STEP = 256 * 1024
"""Bytes of an answer written in one step."""
MOST_DIGITS = 19
MAX_JSON_BODY = 16 * 1024 * 1024
MAX_DRAINED_BODY = 128 * 1024 * 1024
RETRY_AFTER = "Retry-After"
FORBIDDEN = 403
READING = frozenset({"GET", "HEAD"})
RUN_BY_BROWSERS = frozenset(
    {"script", "style", "worker", "sharedworker", "serviceworker", "audioworklet", "paintworklet", "xslt"}
    | {"iframe", "frame", "fencedframe", "object", "embed"}
)
"""What `Sec-Fetch-Dest` says of things that would run, or be shown as pages, with our origin."""
FOR_PAGE = "sandbox; default-src 'none'; frame-ancestors 'none'"
"""The policy of answers to a browser that is signed in: whatever they hold, none is a page of our origin."""
READ_BY_PAGES = f"Accept-Ranges, {OWNER}, Content-Disposition, Content-Range, ETag, Location, Retry-After"
"""Headers of answers that scripts of an allowed foreign origin may read, besides CORS's own short list."""
SENT_BY_PAGES = ("Authorization", "Content-Type", "Idempotency-Key", "Last-Event-ID")
"""Headers that such scripts may send with any request; an operation's own are added to them."""

_SHOWN_OWNER = 64
_JSON = frozenset({"", "*/*", "application/*", Format.JSON})
_NDJSON = frozenset({Format.NDJSON, "application/ndjson", "application/jsonl"})
_MOST_OF_NOTHING = 64
"""Bytes of a body that may turn out to say nothing."""
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress"})
"""What changes a body. What else clients name in `Content-Encoding`, such as utf-8, leaves it as it is."""
_UNQUOTABLE = re.compile(r"[^ !#-\[\]-~]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

encode = msgspec.json.Encoder().encode


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return json_decoder(kind)


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as `kind`; an empty body is an empty object. Raises InvalidInput that names the field."""
    try:
        decoded: T = _decoder(kind).decode(body or b"{}")  # type: ignore[arg-type]  # a class is hashable
        return decoded
    except msgspec.ValidationError as error:
        raise InvalidInput(unfit(str(error), kind)) from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"The request body is not valid JSON: {not_text(body)}") from error
    except msgspec.DecodeError as error:
        # msgspec calls a lone surrogate at the end of a string truncated data.
        paired = "; surrogate escapes must come in pairs" if _SURROGATE.search(body) else ""
        why = malformed(body, str(error))
        raise InvalidInput(f"The request body is not valid JSON: {why}{paired}") from error
    except RecursionError as error:
        raise InvalidInput("The request body is nested too deeply") from error


def decode_heavy(body: bytes, kind: type[T]) -> T:
    """Like `decode`, for use in a thread. Refuses bodies of too many objects: these would hold the GIL."""
    if weigh(body) is None:
        raise InvalidInput("The request body has too many parts, or too many long numbers")
    return decode(body, kind)


def says_nothing(body: bytes) -> bool:
    """Return whether `body` is empty or an empty value, which some clients send with any POST."""
    body = body.strip()
    if len(body) > _MOST_OF_NOTHING:
        return False
    try:
        return decode(body, object) in ({}, None, [], "")
    except InvalidInput:
        return False


@stream_request_body
class BaseHandler(RequestHandler):
    """A handler whose body is read in pieces, so that a refused request is never held in memory."""

    SUPPORTED_METHODS = ("GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OPTIONS")
    public: ClassVar[bool] = False
    reads_body: ClassVar[bool] = False
    """Of a public handler: whether it reads its requests' bodies."""
    max_body: ClassVar[int] = MAX_JSON_BODY
    body_types: ClassVar[frozenset[str]] = frozenset(
        {"application/json", "application/x-www-form-urlencoded"}
    )

    services: Services
    login: Login
    """What the request's token or sign-in gives; only of handlers that are not `public`."""
    owner: str
    """The principal whose sessions the request is about."""

    def initialize(self, services: Services) -> None:
        """Tornado's hook: receives what the application passes to every handler."""
        self.services = services
        self._body: list[bytes] = []
        self._body_size = 0
        self._refused: CellgateError | None = None
        self._allowed_origin: str | None = None
        self._query = Query()
        self.disconnected = False
        self.refusal: str | None = None
        """The reason of the error that was answered, if any."""
        self.is_expected = False
        """Whether an answer of 500 or above is no failure: it comes with a start or an end."""
        self.signed_in: Callable[[], bool] | None = None
        """Whether the sign-in still holds by whose cookie the request was let in; None for any other."""
        self._span: RequestSpan | None = None

    def set_default_headers(self) -> None:
        """Headers of every answer. Tornado calls this before `initialize`."""
        self.set_header("Server", "cellgate")
        if owner := self.application.settings.get("owner"):
            self.set_header(OWNER, owner)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    def prepare(self) -> Awaitable[None] | None:
        """Check Host, Origin, token and the body's type; a refusal waits until the body has been drained.

        It must be awaited where a command has just changed who may do what, for a token that somebody else
        has to be asked about, and for a refusal that is held back.
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
                self._check_request(None)
                return None
            login = self._authenticate()
            if not isinstance(login, Login):
                self._check_attempts(login)
                return self._prepare_later(login)
            self._check_request(login)
        except CellgateError as error:
            return self._refuse_request(error)
        return None

    def _authenticate(self) -> Login | Ask:
        """Return the login of the request's token or, without a token, of the browser's sign-in."""
        authorization = self.request.headers.get("Authorization", "")
        token = self.get_query_argument("token", None)
        if "Cookie" in self.request.headers and not token_of(authorization, token):
            login = self._signed_in()
            if login is not None:
                return login
        try:
            return self.services.people.access.authenticate(authorization, token)
        except NotAuthenticated as error:
            where = misplaced(self.request.headers, self.request.query_arguments)
            if error.is_attempt or not where:
                raise
            raise NotAuthenticated(f"{where}. {error.message}", cause=error.cause) from error

    def _signed_in(self) -> Login | None:
        """Return the login of the browser's sign-in, if it counts: for requests of our own page alone.

        Not for what the page would run or show as a page: outputs of sessions are among what can be asked.
        """
        request = self.request
        if not is_own_page(request.headers, request.protocol, reads=request.method in READING):
            return None
        if request.headers.get("Sec-Fetch-Dest", "") in RUN_BY_BROWSERS:
            return None
        found = self.services.people.sign_ins.find(self.secrets())
        if found is None:
            return None
        secret, login = found
        self.signed_in = partial(self.services.people.sign_ins.is_good, secret)
        if (stream := self._stream()) is not None:
            stream.signed_in = self.signed_in
        self.set_header("Content-Security-Policy", FOR_PAGE)
        self.set_header("Cross-Origin-Resource-Policy", "same-origin")
        return login

    @property
    def cookie_place(self) -> CookiePlace:
        """The place of cookies for this gateway, as the browser sees it."""
        request = self.request
        return CookiePlace(request.host, request.protocol == "https", self.services.front.base_url)

    def secrets(self) -> list[str]:
        """Return the secrets of sign-ins that the request brings in cookies, good or not."""
        return self.cookie_place.secrets(self.request.headers.get_list("Cookie"))

    async def _prepare_later(self, ask: Ask) -> None:
        try:
            self._check_request(await ask(self.client_origin))
        except CellgateError as error:
            held = self._refuse_request(error)
            if held is not None:
                await held

    def _refuse_request(self, error: CellgateError) -> Awaitable[None] | None:
        """Refuse the request once its body has been drained, and after the wait that is returned, if any.

        Raises the error at once if the body would be too much to drain.
        """
        self._refused = error = self._counted(error)
        length = self.request.headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > MAX_DRAINED_BODY:
            # Tornado closes the connection after an early answer.
            raise error
        return self.services.people.attempts.hold() if isinstance(error, TooManyAttempts) else None

    def _counted(self, error: CellgateError) -> CellgateError:
        """Return the error or, for one wrong token too many of the same address, a refusal that says so."""
        if not isinstance(error, NotAuthenticated) or not error.is_attempt:
            return error
        wait = self.services.people.attempts.failed(self.client_origin)
        if wait is None:
            return error
        return _too_many(wait, error)

    def _check_attempts(self, ask: Ask | None = None) -> None:
        """Check this before somebody else is asked about a token. Raises TooManyAttempts.

        Who sent too many wrong ones does not make us ask about the next one. `ask`: the question; one about a
        token that was good lately is asked in any case, as others may come from the same address.
        """
        if ask is not None and ask.known:
            return
        wait = self.services.people.attempts.waiting(self.client_origin)
        if wait is not None:
            raise _too_many(wait)

    def _check_sender(self) -> None:
        """Check where the request comes from. Raises Forbidden."""
        policy = self.services.people.access
        host = self.request.headers.get("Host", "")
        policy.check_host(host)
        origin = self.request.headers.get("Origin")
        self._allowed_origin = origin if policy.check_origin(origin, host) else None
        self._allow_origin()

    def _check_request(self, login: Login | None) -> None:
        """Check what the request asks for. `login`: what its token gives; None if it needs no token."""
        if login is not None:
            self.login = login
            self._count_for(login)
            self._trace()
            self._count_request()
            self._check_permissions()
            self._check_owner()
        self._read_query()
        self._find_owner()
        self._check_body()

    def _count_for(self, login: Login) -> None:
        """Count the connection and its work for its principal from now on. Raises TooManyConnections."""
        work_for(login.principal.name)
        stream = self._stream()
        if stream is None:
            return
        if not stream.let_in(login):
            raise TooManyConnections(TOO_MANY_OF_ONE, retry_after=RETRY_SECONDS)
        stream.passed = partial(self.services.people.usage.pass_bytes, login.principal.name)

    def _count_request(self) -> None:
        """Raise PrincipalQuotaExceeded if the principal may send no more now, or not so much."""
        length = self.request.headers.get("Content-Length", "0")
        known = int(length) if length.isdecimal() and len(length) < MOST_DIGITS else 0
        self.services.people.usage.account(self.principal.name).begin_request(known)

    def _trace(self) -> None:
        """Begin the request's span; strangers and probes have none, so they can't choose what is traced."""
        self._span = self.services.front.tracer.request(self.request, self.principal.name, self.is_token)

    def on_finish(self) -> None:
        """Tornado's hook: the answer has been sent, or a WebSocket was opened."""
        self._end_span(self.refusal)

    def _end_span(self, reason: str | None) -> None:
        if self._span is not None:
            self._span.end(self.get_status(), reason)
            self._span = None

    def _check_permissions(self) -> None:
        """Raise Forbidden unless the login has what the method needs."""
        method = self.request.method or ""
        needed = needs_of(self, method)
        if needed is not None:
            self.login.check(needed)
        elif method in self.methods():
            raise GatewayFault(f"{method} of this resource declares no permissions")

    @property
    def _under_v1(self) -> bool:
        """Whether this is our own interface, in which the first part of a path that varies is a session."""
        return self.request.path.startswith(f"{self.services.front.base_url}/v1/")

    def _check_owner(self) -> None:
        """Refuse a request that is meant for another gateway behind the same address. Raises NotOwner."""
        meant = self.request.headers.get(OWNER, "")
        own = self.application.settings.get("owner", "")
        if meant and own and meant != own:
            raise NotOwner(
                f"This is the gateway {own}, and the request is for {meant[:_SHOWN_OWNER]!r}: requests for"
                " one session must reach one gateway"
            )

    def _find_owner(self) -> None:
        """Find the owner of the request's sessions. Raises NotFound if the login doesn't reach them."""
        if not self._needs_token:
            return
        self.owner = self.login.owner(getattr(self._query, "principal", None))
        if self.path_args and self._under_v1:
            self.login.reach.check(self.path_args[0])
        if self.owner != self.principal.name:
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
        if not isinstance(error, (NotAuthenticated, TooManyAttempts)) and status_of(error) != FORBIDDEN:
            return
        note = self._who() | {"reason": error.reason, "cause": getattr(error, "cause", "")}
        if isinstance(error, (NotAuthenticated, TooManyAttempts)):
            note |= {"token": error.token, "principal": error.principal or note["principal"]}
        self.services.storage.trail.refused(note, first=self._what())

    @property
    def principal(self) -> Principal:
        """The principal that sent the request."""
        return self.login.principal

    def _read_query(self) -> None:
        """Read the declared parameters. Any other is refused under `/v1`, but not elsewhere.

        JupyterLab adds parameters of its own under `/api`, and probes may add theirs to `/healthz`.
        """
        declared = operation_of(self, self.request.method or "")
        if declared is not None and self._under_v1:
            self._query = read_query(self.request.query_arguments, declared.query)

    def query(self, kind: type[Q]) -> Q:
        """Return the query parameters, as the method's `operation` declares them."""
        assert isinstance(self._query, kind)
        return self._query

    def accepted(self) -> Format:
        """Return the first format of the Accept header that is known here. Raises NotAcceptable."""
        accept = self.request.headers.get("Accept", "*/*")
        for part in accept.split(","):
            kind = part.partition(";")[0].strip().lower()
            if kind in _JSON:
                return Format.JSON
            if kind in _NDJSON:
                return Format.NDJSON
            if kind == Format.SSE:
                return Format.SSE
        raise NotAcceptable(f"Accept must name one of {', '.join(Format)}")

    @property
    def client_address(self) -> str:
        """The IP address of the client: what a trusted proxy says of it, otherwise the connection's."""
        return self.request.remote_ip or ""

    @property
    def client_origin(self) -> str:
        """The key under which requests of the client's address count together."""
        return origin_of((self.client_address,))

    @property
    def _needs_token(self) -> bool:
        return not self.public and self.request.method != "OPTIONS"

    def _stream(self) -> ClientStream | None:
        stream = getattr(self.request.connection, "stream", None)
        return stream if isinstance(stream, ClientStream) else None

    def _allow_origin(self) -> None:
        """Let the pages of an allowed foreign origin read the answer.

        Nothing allows credentials: cookies count for our own page alone, others send the token themselves.
        """
        if self.services.people.access.allowed_origins:
            self.set_header("Vary", "Origin")
        if self._allowed_origin is not None:
            self.set_header("Access-Control-Allow-Origin", self._allowed_origin)
            self.set_header("Access-Control-Expose-Headers", READ_BY_PAGES)

    def _check_body(self) -> None:
        headers = self.request.headers
        length = headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > self.max_body:
            raise self._too_large()
        if "Transfer-Encoding" in headers:
            length = "unknown"
        kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind and length != "0" and kind not in self.body_types:
            raise UnsupportedMedia(f"Content-Type {kind[:80]!r} is not read here; send application/json")
        coding = headers.get("Content-Encoding", "").lower()
        if coding and length != "0" and not _CODINGS.isdisjoint(map(str.strip, coding.split(","))):
            raise UnsupportedMedia(
                f"Content-Encoding {coding[:80]!r} is not read here; send the body as it is"
            )

    def _too_large(self) -> TooLarge:
        return TooLarge(f"The body is larger than the {self.max_body} bytes that are accepted here")

    def data_received(self, chunk: bytes) -> None:
        """Keep the piece, unless the request has been refused already or its body says nothing."""
        self._body_size += len(chunk)
        if self._refused is None and self._body_size > self.max_body:
            self._refused = self._too_large()
        self.count_body(len(chunk))
        if self._refused is None and (self._needs_token or self.reads_body):
            self._body.append(chunk)
            if (stream := self._stream()) is not None:
                stream.hold(len(chunk))
        else:
            self._body.clear()
            if self._body_size > MAX_DRAINED_BODY and self.request.connection is not None:
                self.request.connection.stream.close()  # type: ignore[attr-defined]

    def count_body(self, size: int) -> None:
        """Count bytes of the body, and refuse the request when there are more than its principal may send."""
        if self._refused is None and self._needs_token:
            try:
                self.services.people.usage.account(self.principal.name).receive(size)
            except PrincipalQuotaExceeded as error:
                self._refused = error

    async def body(self, kind: type[T]) -> T:
        """Return the request's JSON body. Raises InvalidInput."""
        body = self.raw_body()
        if is_heavy(body):
            return await self.services.storage.lanes.texts.run(decode_heavy, body, kind)
        return decode(body, kind)

    def raw_body(self) -> bytes:
        """Return the request's body as received."""
        return b"".join(self._body)

    def check(self) -> None:
        """Raise the refusal of `prepare` or of the body, if any. `requires` calls it before the method."""
        if self._refused is not None:
            raise self._refused
        if not self._body or self.request.method != "POST":
            return
        declared = getattr(self.post, "operation", None)
        if not isinstance(declared, Operation) or declared.body or not self._under_v1:
            return
        if not says_nothing(self.raw_body()):
            # What somebody writes there is meant to have an effect.
            raise InvalidInput("This request takes no body, so nothing in it would count; leave it out")

    async def options(self, *_: str) -> None:
        """Answer a preflight of an allowed origin (CORS) with the methods and headers of this resource."""
        self.check()
        methods = self.methods()
        self.set_header("Allow", ", ".join((*methods, "OPTIONS")))
        if self._allowed_origin is not None:
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

    def set_location(self, path: str) -> None:
        """Name a resource of this gateway in the answer's Location; `path` as in the table of paths."""
        self.set_header("Location", self.services.front.base_url + path)

    def on_connection_close(self) -> None:
        """Remember that the client has gone, and stop waiting for the rest of its body."""
        super().on_connection_close()
        self.disconnected = True
        self._end_span("client_disconnected")

    def answer(self, model: Any, status: int = 200) -> None:
        """Answer a model as JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json; charset=utf-8")
        body = encode(model)
        # A trailing newline is kind to terminals, but not worth copying a large body.
        self.finish(body + b"\n" if len(body) < KIND_SIZE else body)

    async def answer_parts(self, parts: Sequence[bytes], status: int = 200) -> None:
        """Answer with JSON that is already encoded."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json; charset=utf-8")
        await self.finish_parts(parts)

    async def finish_parts(self, parts: Sequence[bytes]) -> None:
        """Finish the answer with this body; a large one is written in steps."""
        size = sum(map(len, parts))
        if size <= STEP:
            self.finish(b"".join(parts))
            return
        self.set_header("Content-Length", size)
        try:
            await self.write_parts(parts)
        except StreamClosedError:
            self.on_connection_close()
            return
        self.finish()

    async def write_parts(self, parts: Sequence[bytes]) -> None:
        """Write all parts, each step once the client has taken the one before.

        Until it has taken the last, all of them count as memory held for it. Raises StreamClosedError.
        """
        stream = self._stream()
        with nullcontext() if stream is None else stream.owing(sum(map(len, parts))):
            for number, step in enumerate(_steps(parts)):
                if number:
                    await asyncio.sleep(0)  # a fast client would otherwise never yield this turn of the loop
                self.write(step)
                await self.flush()

    def event_position(self) -> int:
        """Return the seq after which to send events: `after` or Last-Event-ID, or 0. Raises InvalidInput.

        The later of both: a browser's EventSource that connects again sends the address of the first time.
        """
        after = self.query(EventsQuery).after or 0
        last = self.request.headers.get("Last-Event-ID")
        if last is None:
            return after
        if not (last.isascii() and last.isdecimal() and len(last) < 17):
            raise InvalidInput("Last-Event-ID must be the seq of an event")
        return max(after, int(last))

    # Errors

    def described(self) -> str:
        """Return the request, as logs name it: without a token that is in its path."""
        return described(self.request, self.is_token)

    @property
    def is_token(self) -> IsToken:
        """The function that recognises the gateway's tokens."""
        known: IsToken = self.application.settings.get("is_token", nothing_known)
        return known

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer a failure; in the middle of an answer only resetting the connection can report it.

        Tornado would end the body in an orderly way, and half an answer would look like a whole one.
        """
        if not self._headers_written:
            super().send_error(status_code, **kwargs)
            return
        error = kwargs.get("exc_info", (None, None, None))[1]
        logger.warning("%s was broken off: %s", self.described(), error)
        if (stream := self._stream()) is not None:
            stream.reset()

    def log_exception(self, typ: Any, value: BaseException | None, tb: Any) -> None:
        """Log internal errors only; a client's mistake is just a line of the access log."""
        if not isinstance(value, (CellgateError, HTTPError, StreamClosedError)):
            logger.error("%s failed", self.described(), exc_info=value)

    def write_error(self, status_code: int, **kwargs: Any) -> None:
        """Answer an exception as a problem; no traceback leaves the server."""
        error = kwargs.get("exc_info", (None, None, None))[1]
        if isinstance(error, HTTPError):
            error = _from_tornado(error, self.methods())
        if not isinstance(error, CellgateError):
            error = GatewayFault("The gateway failed at this request; its log says why")
        self.set_status(status_of(error))
        if self._refused is not None:
            error = self._refused
            self.set_status(status_of(error))
        self.refusal = error.reason
        self.note_refusal(error)
        self._allow_origin()
        self._error_headers(error)
        kind, body = self.problem_body(error)
        self.set_header("Content-Type", kind)
        self.finish(body)

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        """Return the media type and the body of a refusal."""
        return "application/problem+json", encode(problem_of(error))

    def _error_headers(self, error: CellgateError) -> None:
        if isinstance(error, NotAuthenticated):
            self.set_header("WWW-Authenticate", _challenge(error))
        if (seconds := getattr(error, "retry_after", None)) is not None:
            self.set_header(RETRY_AFTER, str(max(1, math.ceil(seconds))))
        if isinstance(error, MethodNotAllowed):
            self.set_header("Allow", ", ".join(error.allowed))

    @classmethod
    def methods(cls) -> tuple[str, ...]:
        """Return the methods that the resource has, without OPTIONS, which every one has."""
        unimplemented = RequestHandler._unimplemented_method
        names = [name for name in cls.SUPPORTED_METHODS if name != "OPTIONS"]
        return tuple(name for name in names if getattr(cls, name.lower()) is not unimplemented)


def _too_many(wait: float, last: NotAuthenticated | None = None) -> TooManyAttempts:
    return TooManyAttempts(
        "Too many wrong tokens came from this address: wait, and send the right one",
        retry_after=wait,
        last=last,
    )


def _challenge(error: NotAuthenticated) -> str:
    """Return the challenge and, for a token that was sent, its fault (RFC 6750, section 3)."""
    challenge = 'Bearer realm="cellgate"'
    if error.is_attempt:
        challenge += f', error="invalid_token", error_description="{_UNQUOTABLE.sub("?", error.message)}"'
    return challenge


def _steps(parts: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the same bytes in pieces of at most STEP: short parts joined, long ones cut."""
    short: list[bytes] = []
    size = 0
    for part in parts:
        if size + len(part) > STEP and short:
            yield b"".join(short)
            short = []
            size = 0
        if len(part) <= STEP:
            short.append(part)
            size += len(part)
            continue
        for start in range(0, len(part), STEP):
            yield part[start : start + STEP]
    if short:
        yield b"".join(short)


def _from_tornado(error: HTTPError, methods: tuple[str, ...]) -> CellgateError:
    if error.status_code == 404:
        return NotFound("There is nothing at this path")
    if error.status_code == 405:
        return MethodNotAllowed(f"This resource takes {', '.join(methods) or 'no requests'}", allowed=methods)
    if error.status_code == 413:
        return TooLarge("The body is too large")
    if 400 <= error.status_code < 500:
        return InvalidInput(error.log_message or "The request can't be read")
    return GatewayFault("The gateway failed at this request; its log says why")


class BaseUrlHandler(BaseHandler):
    """The base URL without its last slash: relative links of a page there would lead out of it."""

    public = True

    async def get(self) -> None:
        """Redirect to the base URL with a slash."""
        self.check()
        query = f"?{self.request.query}" if self.request.query else ""
        self.set_location(f"/{query}")
        self.set_status(302)


class NotFoundHandler(BaseHandler):
    """Every path without a resource. `known`: those with one, which may have been meant."""

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
        raise NotFound(f"There is nothing at this path; {hint}")

    @requires()
    async def _nothing(self, *_: str) -> None:
        """Do nothing: every such request has been refused."""

    get = head = post = delete = patch = put = options = _nothing
