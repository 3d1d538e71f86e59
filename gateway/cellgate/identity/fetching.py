"""Asks another service, such as an identity provider: one GET or POST, whose time and size are limited.

httpcore2 follows no redirects and reads nothing from the environment, so an answer comes from the requested
URL, or not at all. TLS trusts the certificates of Python's default context (``SSL_CERT_FILE`` names another
list), unless the caller brings another context. The caller interprets the answer.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

import httpcore2

from cellgate.errors import IdentityUnavailable

CONNECTIONS = 10
ASK_SECONDS = 10.0
"""The deadline of one question in seconds, from the wait for a connection to the answer's last byte."""


@dataclass(frozen=True, slots=True)
class FetchedAnswer:
    """A complete answer."""

    status: int
    body: bytes


class Fetcher:
    """Connections to one service, called `name` in messages. Call `close` at the end."""

    def __init__(
        self, name: str, *, seconds: float = ASK_SECONDS, context: ssl.SSLContext | None = None
    ) -> None:
        self.name = name
        self._seconds = seconds
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=context or ssl.create_default_context(),
            max_connections=CONNECTIONS,
            keepalive_expiry=30.0,
        )

    async def get(self, url: str, *, most: int, headers: Mapping[str, str] | None = None) -> FetchedAnswer:
        """Return an answer of any status, with at most `most` bytes. Raises IdentityUnavailable."""
        return await self._send("GET", url, headers or {}, None, most)

    async def post(self, url: str, form: Mapping[str, str], *, most: int) -> FetchedAnswer:
        """Send a form; return and raise as `get`."""
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return await self._send("POST", url, kind, urlencode(form).encode(), most)

    async def post_json(
        self, url: str, body: bytes, *, most: int, headers: Mapping[str, str]
    ) -> FetchedAnswer:
        """Send JSON; return and raise as `get`."""
        return await self._send("POST", url, {"Content-Type": "application/json", **headers}, body, most)

    async def _send(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, most: int
    ) -> FetchedAnswer:
        sent = {"Accept": "application/json", "User-Agent": "cellgate", **headers}
        try:
            async with asyncio.timeout(self._seconds):
                return await self._ask(method, url, sent, body, most)
        except TimeoutError as error:
            raise IdentityUnavailable(f"{self.name} did not answer within {self._seconds:g} s") from error
        except (
            *(httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException),
            ssl.SSLError,  # an alert that comes once the connection is made, as TLS 1.3 has them
        ) as error:
            raise IdentityUnavailable(f"{self.name} can't be reached") from error

    async def _ask(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None, most: int
    ) -> FetchedAnswer:
        sent = list(headers.items())
        async with self._pool.stream(method, url, headers=sent, content=body) as response:
            received = b""
            assert isinstance(response.stream, AsyncIterable)
            async for part in response.stream:
                received += part
                if len(received) > most:
                    raise IdentityUnavailable(f"{self.name} answered with more than {most} bytes")
            return FetchedAnswer(response.status, received)

    async def close(self) -> None:
        """Close all connections to the provider."""
        await self._pool.aclose()
