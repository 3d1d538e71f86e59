"""The messages of HTTP, as any handler reads and writes them: queries, bodies, answers, problem+json errors.

It does not check access: ``base`` does. Streaming answers are in ``streaming``. Errors follow RFC 9457.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from functools import cache
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec
from tornado.iostream import StreamClosedError
from tornado.web import HTTPError, RequestHandler, stream_request_body
from tornado.websocket import WebSocketHandler

from cellgate import errors
from cellgate.http.described import IsToken, described, nothing_known
from cellgate.http.listener.streams import ClientStream
from cellgate.http.malformed import malformed, not_text
from cellgate.http.operation import Format, Operation, operation_of
from cellgate.http.queries import read_query
from cellgate.http.relayed_request import RelayingHandler
from cellgate.http.unfit import unfit
from cellgate.identity.principal import Login
from cellgate.wire.base import Query
from cellgate.wire.owner import OWNER
from cellgate.wire.problems import QuotaState
from cellgate_kernels.base.errors import CellgateError, GatewayFault, InvalidInput
from cellgate_kernels.codec.decoding import json_decoder
from cellgate_kernels.codec.encoding import encode_in_steps
from cellgate_kernels.codec.structure import INLINE_BYTES, is_heavy, weigh

if TYPE_CHECKING:
    from cellgate.http.services import Services

logger = logging.getLogger(__name__)

T = TypeVar("T")
Q = TypeVar("Q", bound=Query)

KIND_SIZE = 64 * 1024
STEP = 256 * 1024
"""Bytes of an answer written in one step."""
MAX_JSON_BODY = 16 * 1024 * 1024
MAX_DRAINED_BODY = 128 * 1024 * 1024
RETRY_AFTER = "Retry-After"
FULL = "Cellgate-Full"
"""Tells a proxy to send a request that opens a session to another gateway."""

_JSON = frozenset({"", "*/*", "application/*", Format.JSON})
_NDJSON = frozenset({Format.NDJSON, "application/ndjson", "application/jsonl"})
_MOST_OF_NOTHING = 64
"""Most bytes of a body that may turn out to be an empty value."""
_CODINGS = frozenset({"gzip", "x-gzip", "deflate", "br", "zstd", "compress", "x-compress"})
"""Codings that change a body. Other values in `Content-Encoding`, such as utf-8, leave it unchanged."""
_UNQUOTABLE = re.compile(r"[^ !#-\[\]-~]")
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

encode = msgspec.json.Encoder().encode


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return json_decoder(kind)


def decode(body: bytes, kind: type[T]) -> T:
    """Return `body` as `kind`; an empty body is an empty object. Raises InvalidInput that names the field."""
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


class AnswersHead(RequestHandler):
    """A handler that answers HEAD wherever it answers GET, except where GET changes something."""

    is_get_safe: ClassVar[bool] = True
    """Whether GET changes nothing (RFC 9110, section 9.2.1); a link that signs in does change something."""

    def __init_subclass__(cls) -> None:
        """Let HEAD do what GET does, without the body (RFC 9110, section 9.3.2); a class may have its own."""
        super().__init_subclass__()
        if "get" in vars(cls) and "head" not in vars(cls) and cls._has_head():
            cls.head = cls.get

    @classmethod
    def _has_head(cls) -> bool:
        return cls.is_get_safe and not issubclass(cls, WebSocketHandler)

    async def send_head_alone(self) -> None:
        """Answer HEAD where GET answers with a stream: with no length, as only the stream's end tells it."""
        if self.request.version == "HTTP/1.1":
            # As for GET; otherwise tornado would say that it is empty.
            self.set_header("Transfer-Encoding", "chunked")
        try:
            await self.flush()
        except StreamClosedError:
            self.on_connection_close()


@stream_request_body
class MessageHandler(AnswersHead, RelayingHandler):
    """A handler whose body is read in pieces, so that a refused request is never held in memory."""

    SUPPORTED_METHODS = ("GET", "HEAD", "POST", "DELETE", "PATCH", "PUT", "OPTIONS")
    public: ClassVar[bool] = False
    reads_body: ClassVar[bool] = False
    """Whether a public handler reads its requests' bodies."""
    keeps_body = True
    """Whether `raw_body` returns the whole body once the method is called."""
    max_body: ClassVar[int] = MAX_JSON_BODY
    body_types: ClassVar[frozenset[str]] = frozenset(
        {"application/json", "application/x-www-form-urlencoded"}
    )

    services: Services
    login: Login
    """The login of the request's token or sign-in; only for handlers that are not `public`."""
    disconnected = False
    refusal: str | None = None
    quota: QuotaState | None = None
    """The reason of the error that was answered, if any."""
    _refused: CellgateError | None = None

    def initialize(self, services: Services) -> None:
        """Tornado's hook: receives what the application passes to every handler."""
        self.services = services
        self._body: list[bytes] = []
        self._body_size = 0
        self._query = Query()

    def set_default_headers(self) -> None:
        """Set the headers of every answer. Tornado calls this before `initialize`."""
        self.set_header("Server", "cellgate")
        if owner := self.application.settings.get("owner"):
            self.set_header(OWNER, owner)
        self.set_header("X-Content-Type-Options", "nosniff")
        self.set_header("Cache-Control", "no-store")

    @property
    def client_address(self) -> str:
        """The client's IP address: by a trusted proxy's word, otherwise the connection's."""
        return self.request.remote_ip or ""

    @property
    def is_token(self) -> IsToken:
        """The function that recognises the gateway's tokens."""
        known: IsToken = self.application.settings.get("is_token", nothing_known)
        return known

    def described(self) -> str:
        """Return the request's name for logs: without a token in its path."""
        return described(self.request, self.is_token)

    @classmethod
    def methods(cls) -> tuple[str, ...]:
        """Return the methods of the resource, without OPTIONS, which every resource has."""
        unimplemented = RequestHandler._unimplemented_method
        names = [name for name in cls.SUPPORTED_METHODS if name != "OPTIONS"]
        return tuple(name for name in names if getattr(cls, name.lower()) is not unimplemented)

    @property
    def client_stream(self) -> ClientStream | None:
        """The client's connection; None once it was detached."""
        stream = getattr(self.request.connection, "stream", None)
        return stream if isinstance(stream, ClientStream) else None

    @property
    def _needs_token(self) -> bool:
        return not self.public and self.request.method != "OPTIONS"

    @property
    def _under_v1(self) -> bool:
        """Whether this is our own interface, whose rules are stricter than Jupyter's."""
        return self.request.path.startswith(f"{self.services.front.base_url}/v1/")

    # The request

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
        raise errors.NotAcceptable(f"Accept must name one of {', '.join(Format)}")

    def _check_body(self) -> None:
        headers = self.request.headers
        length = headers.get("Content-Length", "0")
        if length.isdecimal() and int(length) > self.max_body:
            raise too_large(self.max_body)
        if "Transfer-Encoding" in headers:
            length = "unknown"
        kind = headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind and length != "0" and kind not in self.body_types:
            raise errors.UnsupportedMedia(
                f"Content-Type {kind[:80]!r} is not read here; send application/json"
            )
        coding = headers.get("Content-Encoding", "").lower()
        if coding and length != "0" and not _CODINGS.isdisjoint(map(str.strip, coding.split(","))):
            raise errors.UnsupportedMedia(
                f"Content-Encoding {coding[:80]!r} is not read here; send the body as it is"
            )

    def data_received(self, chunk: bytes) -> Awaitable[None] | None:
        """Keep the piece, unless the request has been refused already or its body is an empty value.

        If another server answers the request, the piece is that one's.
        """
        if self.relay is not None:
            self.count_body(len(chunk))
            return None if self._refused is not None else self.relay.pass_on(chunk)
        self._body_size += len(chunk)
        if self._refused is None and self._body_size > self.max_body:
            self._refused = too_large(self.max_body)
        self.count_body(len(chunk))
        if self._refused is None and (self._needs_token or self.reads_body):
            self._body.append(chunk)
            if (stream := self.client_stream) is not None:
                stream.memory.hold(len(chunk))
        else:
            self._body.clear()
            if self._body_size > MAX_DRAINED_BODY and self.request.connection is not None:
                self.request.connection.stream.close()  # type: ignore[attr-defined]
        return None

    def count_body(self, size: int) -> None:
        """Count bytes of the body, and refuse the request above its principal's limit."""
        if self._refused is None and self._needs_token and not was_handed_on(self):
            try:
                self.services.people.usage.account(self.login.principal.name).receive(size)
            except errors.PrincipalQuotaExceeded as error:
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
            # A client that sends a body expects it to have an effect.
            raise InvalidInput("This request takes no body, so nothing in it would count; leave it out")

    # The answer

    def on_connection_close(self) -> None:
        """Note that the client has gone, and stop waiting for the rest of its body."""
        super().on_connection_close()
        self.disconnected = True
        self.leave_relay()

    def set_location(self, path: str) -> None:
        """Name a resource of this gateway in the answer's Location; `path` as in the table of paths."""
        self.set_header("Location", self.services.front.base_url + path)

    def answer(self, model: Any, status: int = 200) -> None:
        """Answer a model as JSON."""
        self.set_status(status)
        self.set_header("Content-Type", "application/json; charset=utf-8")
        body = encode(model)
        # A trailing newline is kind to terminals, but not worth copying a large body.
        self.finish(body + b"\n" if len(body) < KIND_SIZE else body)

    async def answer_large(self, model: Any, size: int, status: int = 200) -> None:
        """Answer a model with `size` characters of text as JSON; a large one is encoded in a thread."""
        if size > INLINE_BYTES:
            texts = self.services.storage.lanes.texts
            await self.answer_parts(await texts.run(encode_in_steps, model), status)
        else:
            self.answer(model, status)

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
        stream = self.client_stream
        with nullcontext() if stream is None else stream.memory.owing(sum(map(len, parts))):
            for number, step in enumerate(_steps(parts)):
                if number:
                    await asyncio.sleep(0)  # a fast client would otherwise never yield this turn of the loop
                self.write(step)
                await self.flush()

    def send_error(self, status_code: int = 500, **kwargs: Any) -> None:
        """Answer a failure; within an answer, which only a reset of the connection can report.

        Tornado would end the body in an orderly way, and half an answer would look complete.
        """
        if not self._headers_written:
            super().send_error(status_code, **kwargs)
            return
        error = kwargs.get("exc_info", (None, None, None))[1]
        logger.warning("%s was broken off: %s", self.described(), error)
        if (stream := self.client_stream) is not None:
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
        self.set_status(errors.status_of(error))
        if self._refused is not None:
            error = self._refused
            self.set_status(errors.status_of(error))
        self.refusal, self.quota = error.reason, errors.quota_of(error)
        self.refuses(error)
        _set_headers(self, error)
        kind, body = self.problem_body(error)
        self.set_header("Content-Type", kind)
        self.finish(body)

    def refuses(self, error: CellgateError) -> None:
        """Note an error that is about to be answered; headers may still be set."""

    def problem_body(self, error: CellgateError) -> tuple[str, bytes]:
        """Return the media type and the body of a refusal."""
        return "application/problem+json", encode(errors.problem_of(error))


def too_large(most: int) -> errors.TooLarge:
    """Return the refusal of a body of more bytes than these."""
    return errors.TooLarge(f"The body is larger than the {most} bytes that are accepted here")


def _set_headers(handler: RequestHandler, error: CellgateError) -> None:
    if isinstance(error, errors.NotAuthenticated):
        handler.set_header("WWW-Authenticate", _challenge(error))
    if (seconds := getattr(error, "retry_after", None)) is not None:
        handler.set_header(RETRY_AFTER, str(max(1, math.ceil(seconds))))
    if isinstance(error, errors.Draining | errors.NodeFull | errors.TakesNoWork):
        handler.set_header(FULL, "1")
    if isinstance(error, errors.MethodNotAllowed):
        handler.set_header("Allow", ", ".join(error.allowed))


def _challenge(error: errors.NotAuthenticated) -> str:
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
        return errors.NotFound("There is nothing at this path")
    if error.status_code == 405:
        return errors.MethodNotAllowed(
            f"This resource takes {', '.join(methods) or 'no requests'}", allowed=methods
        )
    if error.status_code == 413:
        return errors.TooLarge("The body is too large")
    if 400 <= error.status_code < 500:
        return InvalidInput(error.log_message or "The request can't be read")
    return GatewayFault("The gateway failed at this request; its log says why")


def was_handed_on(handler: MessageHandler) -> bool:
    """Return whether another gateway of the cluster has let the request in, and hands it on."""
    stream = handler.client_stream
    return stream is not None and stream.is_handed_on
