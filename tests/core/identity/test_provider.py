"""Fetching a provider's keys: from one that works, and from those that would do harm."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress

import pytest

from cellgate.errors import IdentityUnavailable
from cellgate.identity.fetching import FetchedAnswer, Fetcher
from cellgate.identity.jwks import MOST_BYTES
from cellgate.identity.provider import UrlKeys
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from tests.support.identity import ISSUER, key_set, signer

KEYS = key_set(signer().jwk())
HANG = b"HANG"


class Fetched(Fetcher):
    """Answers by URL, without a network."""

    def __init__(self, answers: Mapping[str, bytes | int]) -> None:
        super().__init__("The provider")
        self.answers = answers
        self.asked: list[str] = []

    async def get(self, url: str, *, most: int, headers: Mapping[str, str] | None = None) -> FetchedAnswer:
        self.asked.append(url)
        found = self.answers.get(url, 404)
        return FetchedAnswer(200, found) if isinstance(found, bytes) else FetchedAnswer(found, b"")


def discovery(issuer: str = ISSUER, jwks_uri: str = "https://keys.example.org/jwks", **more: str) -> bytes:
    return json.dumps({"issuer": issuer, "jwks_uri": jwks_uri, **more}).encode()


WELL_KNOWN = f"{ISSUER}/.well-known/openid-configuration"


async def test_the_discovery_document_says_where_the_keys_are() -> None:
    fetcher = Fetched({WELL_KNOWN: discovery(), "https://keys.example.org/jwks": KEYS})
    source = UrlKeys(ISSUER, fetcher=fetcher)
    keys = await source.read()
    assert keys is not None
    assert [key.name for key in keys.keys] == ["one"]
    assert fetcher.asked == [WELL_KNOWN, "https://keys.example.org/jwks"]
    await source.close()


async def test_a_url_of_keys_needs_no_discovery() -> None:
    fetcher = Fetched({"https://keys.example.org/jwks": KEYS})
    source = UrlKeys(ISSUER, "https://keys.example.org/jwks", fetcher=fetcher)
    assert await source.read() is not None
    assert fetcher.asked == ["https://keys.example.org/jwks"]
    await source.close()


@pytest.mark.parametrize(
    ("document", "what"),
    [
        (b"<html>down for maintenance</html>", "can't be read"),
        (b"[" * 100_000, "can't be read"),
        (b"{}", "can't be read"),
        (discovery(issuer=ISSUER + "/"), "exactly its own name"),
        (discovery(issuer="https://evil.example"), "exactly its own name"),
        (discovery(jwks_uri="http://keys.example.org/jwks"), "must begin with https"),
        (discovery(jwks_uri="file:///etc/passwd"), "must be a URL"),
        (discovery(jwks_uri="https://127.0.0.1/keys"), "address of this machine"),
        (discovery(jwks_uri="http://localhost:8888/v1/sessions"), "address of this machine"),
        (discovery(jwks_uri="https://keys.example.org/\r\nX: y"), "must be a URL"),
    ],
)
async def test_a_discovery_document_that_leads_astray(document: bytes, what: str) -> None:
    fetcher = Fetched({WELL_KNOWN: document})
    source = UrlKeys(ISSUER, fetcher=fetcher)
    with pytest.raises(InvalidInput, match=what):
        await source.read()
    assert fetcher.asked == [WELL_KNOWN]
    await source.close()


async def test_an_answer_of_another_status_is_no_answer() -> None:
    source = UrlKeys(ISSUER, fetcher=Fetched({WELL_KNOWN: 500}))
    with pytest.raises(IdentityUnavailable, match="status 500"):
        await source.read()
    await source.close()


def response(body: bytes, head: str = "200 OK", *more: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {head}", f"Content-Length: {len(body)}", *more, "", ""]).encode() + body


@asynccontextmanager
async def serving(answer: bytes) -> AsyncIterator[tuple[str, list[bytes]]]:
    """A server that answers everything with these bytes, or never; its URL, and what it was asked."""
    asked: list[bytes] = []
    tasks: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            asked.append(await reader.readuntil(b"\r\n\r\n"))
            if answer is HANG:
                await asyncio.Event().wait()
            writer.write(answer)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", asked
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await server.wait_closed()


async def failure(answer: bytes, seconds: float = 10.0) -> tuple[CellgateError, list[bytes]]:
    """How reading keys from a server that answers so fails, and what it was asked."""
    async with serving(answer) as (url, asked):
        source = UrlKeys(url, f"{url}/jwks", fetcher=Fetcher("The provider", seconds=seconds))
        with pytest.raises(CellgateError) as caught:
            await source.read()
        await source.close()
    return caught.value, asked


async def test_keys_over_http() -> None:
    async with serving(response(KEYS)) as (url, asked):
        source = UrlKeys(url, f"{url}/jwks")
        keys = await source.read()
        await source.close()
    assert keys is not None
    assert len(keys.keys) == 1
    assert asked[0].startswith(b"GET /jwks HTTP/1.1\r\n")


async def test_a_provider_that_hangs_costs_a_limited_time() -> None:
    error, asked = await failure(HANG, seconds=0.2)
    assert error.message == "The provider did not answer within 0.2 s"
    assert len(asked) == 1


async def test_a_redirect_leads_nowhere() -> None:
    async with serving(response(KEYS)) as (elsewhere, reached):
        error, asked = await failure(response(b"", "302 Found", f"Location: {elsewhere}/jwks"))
    assert "answered with status 302" in error.message
    assert (len(asked), reached) == (1, [])


async def test_an_answer_without_end_is_broken_off() -> None:
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + b"10000\r\n" + b" " * 65536 + b"\r\n"
    error, _ = await failure(endless + (b"10000\r\n" + b" " * 65536 + b"\r\n") * 16)
    assert error.message == f"The provider answered with more than {MOST_BYTES} bytes"


@pytest.mark.parametrize(
    "answer", [b"", b"HTTP/1.1 200", b"\x00" * 1000, b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"]
)
async def test_what_is_no_http(answer: bytes) -> None:
    error, _ = await failure(answer)
    assert error.message == "The provider can't be reached"


async def test_compressed_keys_are_not_unpacked() -> None:
    """Nobody asked for compression: what comes could be a bomb."""
    error, asked = await failure(response(b"\x1f\x8b\x08", "200 OK", "Content-Encoding: gzip"))
    assert "not a JSON Web Key Set" in error.message
    assert b"accept-encoding" not in asked[0].lower()


async def test_nobody_there(free_port: int) -> None:
    gone = f"http://127.0.0.1:{free_port}"
    source = UrlKeys(gone, f"{gone}/jwks")
    with pytest.raises(IdentityUnavailable, match="can't be reached"):
        await source.read()
    await source.close()


async def test_a_provider_on_a_network_needs_tls() -> None:
    with pytest.raises(InvalidInput, match="must begin with https"):
        UrlKeys(ISSUER, "http://keys.example.org/jwks")
