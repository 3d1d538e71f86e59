"""The certificate of a gateway that speaks TLS itself: two files, read at the start and when they change.

Each reading makes a new TLS context, for new connections only: loading into the present one would leave it
without a key if the files don't match, as during their replacement. So a change counts once two looks in a
row have found the same files. Unusable files change nothing and are logged once, but tried again at each
look: their permissions may have been wrong, or too many files open. It knows no sockets: ``listener.server``
uses the context.
"""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from cellgate_kernels.base.errors import InvalidInput, in_words
from cellgate_kernels.base.regular import read_given
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
MOST_BYTES = MIB
_FIRST = re.compile(
    r"-----BEGIN (?:TRUSTED )?CERTIFICATE-----[^-]*+-----END (?:TRUSTED )?CERTIFICATE-----\n?"
)

Mark = tuple[int, int, int, int] | None
"""Marks of a file's state: device, inode, time of change, size; None if there is no file."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """A certificate, followed by its signers', and its private key, both in PEM files.

    `clients`: the authorities that may sign each client's certificate; None: clients need none.
    """

    certificate: Path
    key: Path
    clients: Path | None = None


@dataclass(frozen=True, slots=True)
class _Loaded:
    context: ssl.SSLContext
    leaf: str
    expires: float


class Certificate:
    """`open` it before serving, `start` to follow changes of the files, `close` at the end."""

    def __init__(self, files: TlsFiles, lane: Lane, marks: tuple[Mark, Mark], loaded: _Loaded) -> None:
        self._files = files
        self._lane = lane
        self._used = self._seen = marks
        self._loaded = loaded
        self._told: tuple[tuple[Mark, Mark], str] | None = None
        self._tasks = Supervisor()

    @classmethod
    async def open(cls, files: TlsFiles, lane: Lane) -> Certificate:
        """Return the certificate of these files. Raises InvalidInput if they can't be used."""
        marks = await lane.run(_marks, files)
        return cls(files, lane, marks, await lane.run(_load, files))

    @property
    def context(self) -> ssl.SSLContext:
        """The TLS context for the next connection."""
        return self._loaded.context

    @property
    def leaf(self) -> str:
        """The certificate itself, as PEM, without its signers'."""
        return self._loaded.leaf

    @property
    def expires(self) -> float:
        """The certificate's end, in seconds since the epoch; 0 if its form does not tell."""
        return self._loaded.expires

    def start(self, renewed: Callable[[], Awaitable[object]], *, pause: float = LOOK_SECONDS) -> None:
        """Look at the files every `pause` seconds; `renewed` is called after each change."""

        async def look() -> float:
            if await self._look():
                await renewed()
            return pause

        self._tasks.repeat(look, "certificate", pause=pause)

    async def close(self) -> None:
        """Stop looking for changes."""
        await self._tasks.cancel()

    async def _look(self) -> bool:
        """Return whether a new certificate was loaded."""
        marks = await self._lane.run(_marks, self._files)
        settled = marks == self._seen
        self._seen = marks
        if marks == self._used or not settled:
            return False
        try:
            self._loaded = await self._lane.run(_load, self._files)
        except InvalidInput as error:
            if self._told != (marks, error.message):
                logger.error("The certificate stays as it was: %s", error.message)
                self._told = marks, error.message
            return False
        self._used = marks
        self._told = None
        logger.info("The certificate was renewed from %s", self._files.certificate)
        return True


def _marks(files: TlsFiles) -> tuple[Mark, Mark]:
    return _mark(files.certificate), _mark(files.key)


def _mark(path: Path) -> Mark:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _load(files: TlsFiles) -> _Loaded:
    """Return a server's context with the certificate of these files. Blocks. Raises InvalidInput."""
    certificate = _pem(files.certificate)
    _pem(files.key)
    leaf = _FIRST.search(certificate)
    if leaf is None:
        raise InvalidInput(f"There is no certificate in {files.certificate}; it must be a PEM file")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])

    def passphrase() -> NoReturn:
        # Without this, OpenSSL would ask at the terminal.
        raise InvalidInput(f"The key in {files.key} is encrypted; give one without a passphrase")

    try:
        context.load_cert_chain(files.certificate, files.key, password=passphrase)
    except ssl.SSLError as error:
        raise InvalidInput(_reason(files, error)) from error
    except OSError as error:
        raise InvalidInput(
            f"The files {files.certificate} and {files.key} can't be read: {in_words(error)}"
        ) from error
    if files.clients is not None:
        _ask_clients(context, files.clients)
    return _Loaded(context, leaf[0], _end_of(leaf[0]))


def _end_of(leaf: str) -> float:
    """Return when a certificate ends, in seconds since the epoch; 0 for OpenSSL's own "trusted" form."""
    # Imported late: it takes 7 MB of memory, and most gateways have no certificate.
    from cryptography.x509 import load_pem_x509_certificate  # noqa: PLC0415

    try:
        return load_pem_x509_certificate(leaf.encode()).not_valid_after_utc.timestamp()
    except ValueError:
        return 0.0


def _ask_clients(context: ssl.SSLContext, signers: Path) -> None:
    """Require of each client a certificate signed by one of these. Raises InvalidInput."""
    try:
        context.load_verify_locations(signers)
    except OSError as error:
        raise InvalidInput(f"The certificates in {signers} can't be used: {in_words(error)}") from error
    context.verify_mode = ssl.CERT_REQUIRED


def _pem(path: Path) -> str:
    return read_given(path, MOST_BYTES, "a certificate or a key").decode("ascii", "replace")


def _reason(files: TlsFiles, error: ssl.SSLError) -> str:
    if error.reason == "KEY_VALUES_MISMATCH":
        return f"The key in {files.key} is not that of the certificate in {files.certificate}"
    why = (error.reason or in_words(error)).replace("_", " ").lower()
    return f"The certificate in {files.certificate} and the key in {files.key} can't be used: {why}"
