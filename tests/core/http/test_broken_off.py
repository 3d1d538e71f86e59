"""Answers that fail in the middle: no client takes what it got for the whole, whatever the failure was."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from cellgate.client import Gateway, GatewayError
from cellgate.errors import RecordGone
from cellgate.http.base import BaseHandler
from cellgate.http.v1.download import DownloadHandler
from cellgate_kernels.base.resources import MIB
from tests.support.listening import listening

Failure = type[Exception]
FAILURES = {"gone": RecordGone("purged"), "mistake": ZeroDivisionError("a mistake of ours")}


class Download(DownloadHandler):
    """Some megabytes and then a failure, as a download or as any other answer in parts."""

    public = True

    async def get(self, failure: str) -> None:
        await self.while_there(self.send(_parts(FAILURES[failure]), kind="text/plain", name="x.ipynb"))


class Plain(BaseHandler):
    """The same by any other handler."""

    public = True

    async def get(self, failure: str) -> None:
        async for part in _parts(FAILURES[failure]):
            self.write(part)
            await self.flush()


async def _parts(failure: Exception) -> AsyncGenerator[bytes, None]:
    for _ in range(3):
        yield bytes(MIB)
        await asyncio.sleep(0)
    raise failure


HANDLERS = {r"/v1/sessions/(\w+)/notebook": Download, r"/v1/sessions/(\w+)/bundle": Plain}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Where both are served."""
    async with listening(HANDLERS) as (port, _):
        yield port


def whole_answer(port: int, kind: str, failure: str, version: str) -> bytes:
    """All that comes until the connection ends, by whichever end."""
    request = f"GET /v1/sessions/{failure}/{kind} HTTP/{version}\r\nHost: localhost\r\n\r\n"
    received = b""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
        client.sendall(request.encode())
        while part := client.recv(MIB):
            received += part
            assert not received.endswith(b"\r\n0\r\n\r\n"), "it ends as a whole answer would"
    return received


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("kind", ["notebook", "bundle"])
async def test_a_failure_in_the_middle_resets_the_connection(
    port: int, kind: str, failure: str, version: str
) -> None:
    """An ordinary end would be the regular one of a body to HTTP/1.0, whose clients know no chunks."""
    with pytest.raises(ConnectionResetError):
        await asyncio.to_thread(whole_answer, port, kind, failure, version)


async def test_of_a_head_nothing_is_made(port: int) -> None:
    """Else the failure in the middle would be its, too. The next answer follows in its place."""

    def ask(connection: HTTPConnection) -> tuple[int, dict[str, str], bytes]:
        connection.request("HEAD", "/v1/sessions/gone/notebook")
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read()

    def ask_twice() -> list[tuple[int, dict[str, str], bytes]]:
        with closing(HTTPConnection("127.0.0.1", port, timeout=60)) as connection:
            first, before = ask(connection), connection.sock
            second = ask(connection)
            assert connection.sock is before
            return [first, second]

    for status, fields, body in await asyncio.to_thread(ask_twice):
        assert (status, body, fields["Transfer-Encoding"]) == (200, b"", "chunked")
        assert fields["Content-Disposition"] == 'attachment; filename="x.ipynb"'
        assert "Content-Length" not in fields


async def test_an_old_client_gets_a_head_without_a_length(port: int) -> None:
    def ask() -> bytes:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
            client.sendall(b"HEAD /v1/sessions/gone/notebook HTTP/1.0\r\nHost: localhost\r\n\r\n")
            with client.makefile("rb") as told:
                return told.read()

    head, _, rest = (await asyncio.to_thread(ask)).partition(b"\r\n\r\n")
    assert (head.split()[1], rest) == (b"200", b"")
    assert not {b"content-length", b"transfer-encoding"} & {
        line.partition(b":")[0].lower() for line in head.split(b"\r\n")
    }


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("kind", ["notebook", "bundle"])
async def test_our_client_says_so_and_leaves_what_was_there(
    port: int, kind: str, failure: str, tmp_path: Path
) -> None:
    target = tmp_path / "exported"
    target.write_text("as it was")
    async with Gateway(f"http://127.0.0.1:{port}") as gateway:
        with pytest.raises(GatewayError, match="ended early") as raised:
            await (gateway.notebook if kind == "notebook" else gateway.bundle)(failure, target)
    assert raised.value.reason == "connection_lost"
    assert (os.listdir(tmp_path), target.read_text()) == (["exported"], "as it was")  # noqa: PTH208
