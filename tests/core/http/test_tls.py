"""The listener under TLS, in this process: handshakes, renewals, and what is sent in the place of TLS."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import warnings
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from cellgate.client import ConnectionFailed, Gateway
from cellgate.errors import IdentityUnavailable
from cellgate.http.listener.certificate import Certificate, TlsFiles
from cellgate.http.listener.settings import ListenerSettings
from cellgate.identity.fetching import Fetcher
from cellgate.identity.hub_settings import HubTls
from cellgate_kernels.base import regular
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.threads import Lane
from tests.support.certificates import Authority, replace, serial_in, serial_of
from tests.support.listening import Plain, listening
from tests.support.server import until

HOST = "127.0.0.1"
GET = b"GET /?size=5 HTTP/1.1\r\nHost: test\r\n\r\n"


class Handler(Plain):
    """GET answers with so many bytes, POST with the body's size."""

    def get(self) -> None:
        self.set_header("Scheme", self.request.protocol)
        self.finish(b"x" * int(self.get_query_argument("size")))

    def post(self) -> None:
        self.finish(str(len(self.request.body)))


class Secure:
    """A listener with a certificate; `closed` counts why it closed connections."""

    def __init__(self, folder: Path, certificate: Certificate, files: tuple[Path, Path]) -> None:
        self.folder = folder
        self.certificate = certificate
        self.files = files
        self.closed: Counter[str] = Counter()
        self.renewals = asyncio.Semaphore(0)
        self.port = 0

    async def renewed(self) -> None:
        self.renewals.release()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def serving(
    authority: Authority, lane: Lane, settings: ListenerSettings | None = None
) -> AsyncIterator[Secure]:
    """It looks at its files as often as it can."""
    files = authority.issue("served")
    secure = Secure(authority.folder, await Certificate.open(TlsFiles(*files), lane), files)
    served = listening(
        {"/": Handler},
        settings=settings,
        closed_by_us=lambda reason: secure.closed.update([reason]),
        certificate=secure.certificate,
        most=64 * MIB,
    )
    async with served as (secure.port, _):
        secure.certificate.start(secure.renewed, pause=0.01)
        try:
            yield secure
        finally:
            await secure.certificate.close()


@asynccontextmanager
async def connected(
    secure: Secure, context: ssl.SSLContext | None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(HOST, secure.port, ssl=context)
    try:
        yield reader, writer
    finally:
        writer.close()
        # The test may have made the other side close it.
        with suppress(OSError):
            await writer.wait_closed()


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
    )
    return head, await reader.readexactly(length)


async def shown(secure: Secure, authority: Authority) -> int:
    """The serial number of the certificate that a new client is shown."""
    return await asyncio.to_thread(serial_of, authority.context(), HOST, secure.port)


async def test_requests_are_served_on_a_kept_connection(authority: Authority, lane: Lane) -> None:
    async with serving(authority, lane) as secure, connected(secure, authority.context()) as (reader, writer):
        for _ in range(3):
            writer.write(GET)
            head, body = await answer(reader)
            assert b"Scheme: https" in head
            assert body == b"xxxxx"
        session = writer.get_extra_info("ssl_object")
        assert session.version() == "TLSv1.3"
        size = 20 * MIB + 1
        writer.write(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: %d\r\n\r\n" % size + bytes(size))
        assert (await answer(reader))[1] == b"%d" % size
        writer.write(GET.replace(b"5", b"%d" % size))
        assert len((await answer(reader))[1]) == size
    assert not secure.closed


async def test_an_orderly_end_is_announced(authority: Authority, lane: Lane) -> None:
    """Asyncio raises where a connection ends without TLS's own end."""
    async with serving(authority, lane) as secure, connected(secure, authority.context()) as (reader, writer):
        writer.write(GET.replace(b"1.1", b"1.0"))
        assert (await reader.read()).endswith(b"\r\n\r\nxxxxx")


@pytest.mark.parametrize("newest", [ssl.TLSVersion.TLSv1_1, ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_old_versions_are_refused(authority: Authority, lane: Lane, newest: ssl.TLSVersion) -> None:
    context = authority.context()
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        context.minimum_version = ssl.TLSVersion.TLSv1
        context.maximum_version = newest
    context.set_ciphers("ALL:@SECLEVEL=0")
    async with serving(authority, lane) as secure:
        if newest < ssl.TLSVersion.TLSv1_2:
            with pytest.raises(ssl.SSLError):
                await asyncio.open_connection(HOST, secure.port, ssl=context)
            assert secure.closed == {"tls_handshake": 1}
        else:
            async with connected(secure, context) as (reader, writer):
                writer.write(GET)
                assert (await answer(reader))[1] == b"xxxxx"


async def test_a_plain_request_is_told_to_come_by_https(
    authority: Authority, lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(authority, lane) as secure:
        async with connected(secure, None) as (reader, writer):
            writer.write(GET)
            said = await reader.read()
        assert said.startswith(b"HTTP/1.1 400 Bad request\r\n")
        assert b"https://" in said
        assert secure.closed == {"tls_handshake": 1}
    assert not caplog.records


@pytest.mark.parametrize(
    "sent",
    [os.urandom(2000), b"\x16\x03\x01\x02\x00\x01" + bytes(600), b"\x80" * 100],
    ids=["noise", "half a hello", "SSL 2"],
)
async def test_what_is_no_handshake_ends_the_connection_and_is_not_logged(
    authority: Authority, lane: Lane, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    async with serving(authority, lane) as secure:
        for _ in range(5):
            async with connected(secure, None) as (reader, writer):
                writer.write(sent)
                with suppress(ConnectionResetError):
                    assert b"HTTP" not in await reader.read()
        assert await shown(secure, authority) == serial_in(secure.files[0])
    assert not caplog.records


async def test_what_is_no_record_ends_the_connection_and_is_not_logged(
    authority: Authority, lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    """After a whole handshake, on the bare socket below TLS."""

    def spoil() -> bytes:
        with socket.create_connection((HOST, secure.port), timeout=60) as plain:
            tls = authority.context().wrap_socket(plain, server_hostname=HOST)
            tls.sendall(GET)
            assert tls.recv(12) == b"HTTP/1.1 200"
            bare = socket.socket(fileno=tls.detach())
            with bare:
                bare.settimeout(60)
                bare.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
                try:
                    while part := bare.recv(65536):
                        last = part
                except ConnectionResetError:
                    last = b""
                return last

    async with serving(authority, lane) as secure:
        await asyncio.to_thread(spoil)
        assert await shown(secure, authority) == serial_in(secure.files[0])
    assert not caplog.records


async def test_a_client_that_leaves_in_its_handshake_is_nothing(
    authority: Authority, lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(authority, lane) as secure:
        for sent in (b"", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc"):
            async with connected(secure, None) as (_, writer):
                writer.write(sent)
        assert await shown(secure, authority) == serial_in(secure.files[0])
        assert not secure.closed
    assert not caplog.records


async def test_a_handshake_that_never_ends_is_cut_off(authority: Authority, lane: Lane) -> None:
    settings = ListenerSettings(head_timeout=0.5)
    async with serving(authority, lane, settings) as secure:
        async with connected(secure, None) as (silent, _), connected(secure, None) as (half, writer):
            writer.write(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc")
            assert await asyncio.gather(silent.read(), half.read()) == [b"", b""]
        assert secure.closed == {"head_timeout": 2}


async def test_half_open_handshakes_make_room(authority: Authority, lane: Lane) -> None:
    async with serving(authority, lane, ListenerSettings(connections=64)) as secure:
        halves = [await asyncio.open_connection(HOST, secure.port) for _ in range(200)]
        async with connected(secure, authority.context()) as (reader, writer):
            writer.write(GET)
            assert (await answer(reader))[1] == b"xxxxx"
        assert secure.closed["evicted"] >= 200 - 64
        for _, half in halves:
            half.close()


async def test_when_there_is_no_place_a_tls_client_hears_no_plain_text(
    authority: Authority, lane: Lane
) -> None:
    async with serving(authority, lane, ListenerSettings(connections=1, per_address=0)) as secure:
        async with connected(secure, None) as (reader, _):
            assert await reader.read() == b""
        assert secure.closed["refused"] == 1


# ---- renewal


async def test_a_renewed_certificate_is_for_new_connections(authority: Authority, lane: Lane) -> None:
    async with serving(authority, lane) as secure, connected(secure, authority.context()) as (reader, writer):
        first = await shown(secure, authority)
        for name in ("second", "third"):
            replace(secure.files, authority.issue(name))
            async with asyncio.timeout(60):
                await secure.renewals.acquire()
            serial = await shown(secure, authority)
            assert serial == serial_in(secure.files[0]) != first
            assert secure.certificate.leaf in secure.files[0].read_text()
            writer.write(GET)
            assert (await answer(reader))[1] == b"xxxxx"


@pytest.mark.parametrize("broken", ["no certificate", "no key", "mismatch", "missing", "encrypted"])
async def test_what_can_t_be_used_is_logged_once_and_changes_nothing(
    authority: Authority, lane: Lane, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(authority, lane) as secure:
        first = await shown(secure, authority)
        certificate, key = authority.issue("other", passphrase=b"x" if broken == "encrypted" else None)
        match broken:
            case "no certificate":
                secure.files[0].write_text("nothing")
            case "no key":
                secure.files[1].write_bytes(b"\0" * 1000)
            case "mismatch":
                secure.files[1].write_bytes(key.read_bytes())
            case "missing":
                secure.files[1].unlink()
            case "encrypted":
                replace(secure.files, (certificate, key))
        await asyncio.to_thread(until, lambda: caplog.records, "nothing is logged")
        await asyncio.sleep(0.2)  # for many more looks
        assert await shown(secure, authority) == first
        assert len(caplog.records) == 1
        assert caplog.records[0].getMessage().startswith("The certificate stays as it was: ")
        assert str(secure.folder) in caplog.records[0].getMessage()
        replace(secure.files, authority.issue("mended"))
        async with asyncio.timeout(60):
            await secure.renewals.acquire()
        assert await shown(secure, authority) == serial_in(secure.files[0]) != first


async def test_what_could_not_be_read_is_tried_again(
    authority: Authority, lane: Lane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Files whose rights are put right do not look changed; nor when too many files were open before."""
    caplog.set_level(logging.WARNING)

    def refuse(path: Path, most: int) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    async with serving(authority, lane) as secure:
        with monkeypatch.context() as patched:
            patched.setattr(regular, "read_regular", refuse)
            replace(secure.files, authority.issue("renewed"))
            await asyncio.to_thread(until, lambda: caplog.records, "nothing is logged")
            await asyncio.sleep(0.1)  # for many more looks
        async with asyncio.timeout(60):
            await secure.renewals.acquire()
        assert await shown(secure, authority) == serial_in(secure.files[0])
        assert len(caplog.records) == 1


# ---- files


async def refused(files: tuple[Path, Path], lane: Lane) -> str:
    with pytest.raises(InvalidInput) as raised:
        await Certificate.open(TlsFiles(*files), lane)
    return raised.value.message


async def test_files_that_can_t_be_used_are_named(authority: Authority, lane: Lane, tmp_path: Path) -> None:
    certificate, key = authority.issue("good")
    _, other = authority.issue("other")
    _, locked = authority.issue("locked", passphrase=b"secret")
    pipe, large, text = tmp_path / "pipe", tmp_path / "large", tmp_path / "text"
    os.mkfifo(pipe)
    large.write_bytes(bytes(2 * MIB))
    text.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    missing = tmp_path / "missing.pem"
    assert await refused((missing, key), lane) == f"{missing} can't be read: No such file or directory"
    assert "it is no regular file" in await refused((certificate, pipe), lane)
    assert str(tmp_path) in await refused((tmp_path, key), lane)
    assert "larger than" in await refused((large, key), lane)
    assert "There is no certificate in" in await refused((key, key), lane)
    assert f"The key in {other} is not that of the certificate in {certificate}" == await refused(
        (certificate, other), lane
    )
    assert f"The key in {locked} is encrypted" in await refused((certificate, locked), lane)
    assert str(text) in await refused((text, key), lane)
    assert "can't be used" in await refused((certificate, certificate), lane)


async def test_who_begins_tls_where_there_is_none_is_told_at_once(authority: Authority) -> None:
    closed: Counter[str] = Counter()
    async with listening({"/": Handler}, closed_by_us=lambda reason: closed.update([reason])) as (port, _):
        with pytest.raises(ssl.SSLError, match=r"WRONG_VERSION|HTTP_REQUEST|RECORD_LAYER"):
            await asyncio.open_connection(HOST, port, ssl=authority.context(), ssl_handshake_timeout=5)
        with pytest.raises(ConnectionFailed, match="its address begins with http://"):
            await Gateway(f"https://{HOST}:{port}").info()
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(GET)
        assert (await answer(reader))[1] == b"xxxxx"
        writer.close()
        await writer.wait_closed()
    assert closed == {"tls_handshake": 2}


async def test_with_a_hubs_files_only_clients_with_its_certificate_are_answered(tmp_path: Path) -> None:
    """As JupyterHub's own servers do with internal_ssl; what we ask of the Hub has the same files."""
    authority, foreign = Authority(tmp_path), Authority(tmp_path, "foreign")
    certificate, key = authority.issue("server")
    files = HubTls(key, certificate, authority.file)
    others = foreign.issue("other")
    lane = Lane("files", 1)
    opened = await Certificate.open(TlsFiles(certificate, key, authority.file), lane)
    trusting = authority.context()
    stranger = authority.context()
    stranger.load_cert_chain(*others)
    async with listening({"/": Handler}, certificate=opened) as (port, _):
        url = f"https://{HOST}:{port}/?size=5"
        for context in (trusting, stranger):
            fetcher = Fetcher("The server", context=context)
            with pytest.raises(IdentityUnavailable):
                await fetcher.get(url, most=10)
            await fetcher.close()
        fetcher = Fetcher("The server", context=files.context())
        assert (await fetcher.get(url, most=10)).body == b"xxxxx"
        await fetcher.close()
    lane.close()


async def test_files_of_a_hub_that_can_not_be_used(tmp_path: Path) -> None:
    certificate, key = Authority(tmp_path).issue("server")
    nothing = tmp_path / "nothing.pem"
    for files in (HubTls(nothing, certificate, certificate), HubTls(key, certificate, nothing)):
        with pytest.raises(InvalidInput, match="internal_ssl can't be used"):
            files.context()
    lane = Lane("files", 1)
    with pytest.raises(InvalidInput, match=r"The certificates in .* can't be used"):
        await Certificate.open(TlsFiles(certificate, key, nothing), lane)
    lane.close()
