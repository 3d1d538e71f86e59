"""A blocking HTTP/1.1 client on one keep-alive connection, so small that it hardly affects a figure.

Not a general client: no redirects, no TLS, no cookies, no retries. It reads bodies by Content-Length or
chunks, which is all that a Tornado server sends. ``channels`` is its counterpart for WebSockets.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

TIMEOUT = 300.0
"""Seconds without a byte from the server after which a request fails."""


class AnswerError(Exception):
    """A server's answer that makes the measurement worthless; the message contains its beginning."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete response."""

    status: int
    body: bytes

    def json(self, *expected: int) -> Any:
        """The decoded body. Raises AnswerError if the status is none of `expected`."""
        if self.status not in expected:
            raise AnswerError(f"HTTP {self.status}: {self.body[:500]!r}")
        return json.loads(self.body) if self.body else None


class HttpClient:
    """One connection with TCP_NODELAY; each request is written by a single call."""

    def __init__(self, url: str, token: str) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._socket = socket.create_connection((parts.hostname, parts.port), timeout=TIMEOUT)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = self._socket.makefile("rb")
        self._head = f"Host: {parts.netloc}\r\nAuthorization: token {token}\r\n"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reader.close()
        self._socket.close()

    def request(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        accept: str = "application/json",
    ) -> Answer:
        """Send a request and read its whole answer."""
        self.send(method, path, content, accept)
        return self.receive()

    def receive(self) -> Answer:
        """The whole answer to a request that was sent."""
        status, headers = self._read_head()
        if status == 204:
            return Answer(status, b"")
        return Answer(status, b"".join(self._read_body(headers)))

    def stream(
        self, method: str, path: str, content: Mapping[str, Any] | None, accept: str
    ) -> Iterator[bytes]:
        """Send a request and yield the lines of the answer's body as they arrive; read all of them."""
        self.send(method, path, content, accept)
        status, headers = self._read_head()
        if status != 200:
            raise AnswerError(f"HTTP {status}: {b''.join(self._read_body(headers))[:500]!r}")
        rest = b""
        for part in self._read_body(headers):
            *lines, rest = (rest + part).split(b"\n")
            yield from lines
        if rest:
            yield rest

    def send(
        self,
        method: str,
        path: str,
        content: Mapping[str, Any] | None = None,
        accept: str = "application/json",
    ) -> None:
        """Send a request without waiting for its answer."""
        body = b"" if content is None else json.dumps(content).encode()
        kind = "Content-Type: application/json\r\n" if body else ""
        head = (
            f"{method} {path} HTTP/1.1\r\n{self._head}Accept: {accept}\r\n{kind}Content-Length: {len(body)}"
        )
        self._socket.sendall(head.encode() + b"\r\n\r\n" + body)

    def _read_head(self) -> tuple[int, dict[bytes, bytes]]:
        start = self._reader.readline()
        if not start:
            raise AnswerError("the server closed the connection without an answer")
        headers = {}
        while (line := self._reader.readline()) not in {b"\r\n", b""}:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        return int(start.split(maxsplit=2)[1]), headers

    def _read_body(self, headers: Mapping[bytes, bytes]) -> Iterator[bytes]:
        if headers.get(b"transfer-encoding") != b"chunked":
            yield self._reader.read(int(headers[b"content-length"]))
            return
        while size := int(self._reader.readline(), 16):
            yield self._reader.read(size)
            self._reader.readline()
        self._reader.readline()
