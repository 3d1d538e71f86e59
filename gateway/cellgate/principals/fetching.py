"""Asks another service, such as an identity provider: one GET, whose time and size are limited.

httpcore2 follows no redirects and reads nothing from the environment, so an answer comes from the URL that
was asked, or not at all. TLS trusts what Python's default context trusts (``SSL_CERT_FILE`` names another
list). What the answer means is the caller's business.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass

import httpcore2

from cellgate.errors import IdentityUnavailable

CONNECTIONS = 10
ASK_SECONDS = 10.0
"""How long one question may take in all, from the wait for a connection to the answer's last byte."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A complete answer."""

    status: int
    body: bytes


class Fetcher:
    """Connections to one service, which messages call `name`. `close` it at the end."""

    def __init__(self, name: str, *, seconds: float = ASK_SECONDS) -> None:
        self.name = name
        self._seconds = seconds
        self._pool = httpcore2.AsyncConnectionPool(
            ssl_context=ssl.create_default_context(), max_connections=CONNECTIONS, keepalive_expiry=30.0
        )

    async def get(self, url: str, *, most: int, headers: Mapping[str, str] | None = None) -> Answer:
        """The answer of any status, with a body of at most `most` bytes. Raises IdentityUnavailable."""
        sent = {"Accept": "application/json", "User-Agent": "cellgate", **(headers or {})}
        try:
            async with asyncio.timeout(self._seconds):
                return await self._ask(url, sent, most)
        except TimeoutError as error:
            raise IdentityUnavailable(f"{self.name} did not answer within {self._seconds:g} s") from error
        except (httpcore2.NetworkError, httpcore2.ProtocolError, httpcore2.TimeoutException) as error:
            raise IdentityUnavailable(f"{self.name} can't be reached") from error

    async def _ask(self, url: str, headers: Mapping[str, str], most: int) -> Answer:
        async with self._pool.stream("GET", url, headers=list(headers.items())) as response:
            body = b""
            assert isinstance(response.stream, AsyncIterable)
            async for part in response.stream:
                body += part
                if len(body) > most:
                    raise IdentityUnavailable(f"{self.name} answered with more than {most} bytes")
            return Answer(response.status, body)

    async def close(self) -> None:
        """Close all connections."""
        await self._pool.aclose()
