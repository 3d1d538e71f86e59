"""Keeps the keys of an issuer of tokens: read again from time to time, and when a token names a new one.

While the provider is down, or its file is damaged, the former keys stay for a while. Whoever waits for new
keys shares one reading of them, and strangers who make up names of keys cause one every few seconds at most.
``jwks`` checks the keys; ``oidc`` and ``librechat`` use them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import msgspec

from cellgate.errors import IdentityUnavailable, ShuttingDown
from cellgate.identity.addresses import check_url, is_local
from cellgate.identity.fetching import Fetcher
from cellgate.identity.jwks import MOST_BYTES, KeySet, parse_keys
from cellgate.identity.oidc_settings import OidcSettings
from cellgate_kernels.base.errors import CellgateError, InvalidInput, in_brief
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.base.threads import Lane

logger = logging.getLogger(__name__)

REFRESH_SECONDS = 300.0
"""Between two readings of keys from a URL."""
RENEW_SECONDS = 5.0
"""Between two readings at most, however many tokens name unknown keys."""
LOOK_SECONDS = 1.0
"""Between two looks at a file of keys."""
RETRY_SECONDS = 15.0
"""Between two readings while they fail."""
KEEP_SECONDS = 3600.0
"""How long keys are used that can't be read again."""
DISCOVERY = "/.well-known/openid-configuration"
PROVIDER = "The identity provider"
MOST_DOCUMENT = 256 * 1024


class KeySource(Protocol):
    """Where keys come from. `refresh`: seconds between two readings; `renew`: between two at the shortest."""

    refresh: float
    renew: float

    async def read(self) -> KeySet | None:
        """Return the keys, or None if unchanged. Raises IdentityUnavailable, InvalidInput."""

    async def close(self) -> None:
        """Close what it has open."""


class FileKeys(KeySource):
    """Keys in a file, which is read again when it has changed."""

    refresh = LOOK_SECONDS
    renew = LOOK_SECONDS

    def __init__(self, path: Path, parse: Callable[[bytes], KeySet] = parse_keys) -> None:
        self._path = path
        self._parse = parse
        self._seen: tuple[int, int, int, int] | None = None
        self._lane = Lane("keys", 1)

    async def read(self) -> KeySet | None:
        """Read the keys if the file has changed; None if it has not. Raises InvalidInput."""
        return await self._lane.run(self._read)

    def _read(self) -> KeySet | None:
        try:
            found = self._path.stat()
            seen = (found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size)
            if seen == self._seen:
                return None
            body = read_regular(self._path, MOST_BYTES + 1)
        except OSError as error:
            raise InvalidInput(f"{self._path} can't be read: {in_brief(error)}") from error
        try:
            keys = self._parse(body)
        except InvalidInput as error:
            raise InvalidInput(f"{self._path}: {error.message}") from error
        self._seen = seen
        return keys

    async def close(self) -> None:
        self._lane.close()


class UrlKeys(KeySource):
    """Keys at a URL: at that of `jwks`, or without one where the issuer's discovery document says."""

    refresh = REFRESH_SECONDS
    renew = RENEW_SECONDS

    def __init__(self, issuer: str, jwks: str = "", *, fetcher: Fetcher | None = None) -> None:
        self._issuer = issuer
        self._jwks = check_url(jwks, "The key set's URL") if jwks else ""
        self._fetcher = fetcher or Fetcher(PROVIDER)
        self._lane = Lane("keys", 1)

    async def read(self) -> KeySet | None:
        """Read the keys at the provider's URL, which its configuration names."""
        url = self._jwks or await self._discover()
        body = await _read_at(self._fetcher, url, MOST_BYTES)
        # In a thread: a hundred keys take a while.
        return await self._lane.run(parse_keys, body)

    async def _discover(self) -> str:
        """Return the URL of the keys."""
        found = await discover(self._fetcher, self._issuer)
        return check_endpoint(found.jwks_uri, "jwks_uri", self._issuer)

    async def close(self) -> None:
        self._lane.close()
        await self._fetcher.close()


class Discovery(msgspec.Struct):
    """What a provider says about itself (OpenID Connect Discovery 1.0, section 3), unchecked."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str = ""
    token_endpoint: str = ""


async def discover(fetcher: Fetcher, issuer: str) -> Discovery:
    """Return the discovery document of this issuer (section 4). Raises IdentityUnavailable, InvalidInput."""
    body = await _read_at(fetcher, issuer.rstrip("/") + DISCOVERY, MOST_DOCUMENT)
    try:
        found = msgspec.json.decode(body, type=Discovery)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{PROVIDER}'s discovery document can't be read: {error}") from error
    if found.issuer != issuer:
        raise InvalidInput(
            f"{PROVIDER} calls itself {found.issuer[:200]!r}, and not {issuer!r}: the issuer"
            " must be exactly its own name"
        )
    return found


def check_endpoint(url: str, name: str, issuer: str) -> str:
    """Return an issuer's address, on this machine only if the issuer is. Raises InvalidInput."""
    check_url(url, f"{PROVIDER}'s {name}")
    if is_local(url) and not is_local(issuer):
        raise InvalidInput(f"{PROVIDER}'s {name} is an address of this machine, where it is not")
    return url


async def _read_at(fetcher: Fetcher, url: str, most: int) -> bytes:
    answer = await fetcher.get(url, most=most)
    if answer.status != 200:
        raise IdentityUnavailable(f"{PROVIDER} answered with status {answer.status} at {url}")
    return answer.body


class ProviderKeys:
    """The keys as they are now. `follow` them, `close` at the end. `whose`: in words of the log."""

    def __init__(
        self,
        source: KeySource,
        keys: KeySet | None = None,
        *,
        whose: str = PROVIDER,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.current = keys or KeySet()
        self._source = source
        self._whose = whose
        self._monotonic = monotonic
        self._asked_at = float("-inf")
        self._read_at = monotonic()
        self._told = ""
        self._tasks = Supervisor()
        self._reading: asyncio.Task[None] | None = None

    @property
    def may_renew(self) -> bool:
        """Whether a token with an unknown key is a reason to read the keys now, or to wait for them."""
        return self._reading is not None or self._monotonic() - self._asked_at >= self._source.renew

    async def renew(self) -> None:
        """Read the keys again, or wait for the reading that has begun; failures are logged only."""
        if self._reading is None:
            self._reading = self._tasks.share(self._read(), "keys of the identity provider")
        await outcome(self._reading, lambda: ShuttingDown("The gateway is shutting down"))

    async def _read(self) -> None:
        self._asked_at = self._monotonic()
        try:
            keys = await self._source.read()
        except CellgateError as error:
            self._failed(error)
        else:
            self._read_at = self._monotonic()
            self._told = ""
            if keys is not None:
                self.current = keys
        finally:
            self._reading = None

    def _failed(self, error: CellgateError) -> None:
        if error.message != self._told:
            logger.error("%s's keys can't be read: %s", self._whose, error.message)
            self._told = error.message
        if self._monotonic() - self._read_at > KEEP_SECONDS and self.current.keys:
            logger.error("%s's keys could not be read for too long and are not used now", self._whose)
            self.current = KeySet()

    def follow(self) -> None:
        """Read the keys now and from time to time."""
        self._tasks.repeat(self._look, "identity provider", pause=RETRY_SECONDS)

    async def _look(self) -> float:
        await self.renew()
        return min(RETRY_SECONDS, self._source.refresh) if self._told else self._source.refresh

    async def close(self) -> None:
        """Stop reading keys, and close the source."""
        await self._tasks.cancel()
        await self._source.close()


async def open_keys(settings: OidcSettings) -> ProviderKeys:
    """Return the keys of these settings. Raises InvalidInput for a file of keys that is missing or damaged.

    A provider that is down is no reason not to serve: its keys are read later.
    """
    jwks = settings.jwks
    if not jwks or "://" in jwks:
        return ProviderKeys(UrlKeys(settings.issuer, jwks))
    return await open_file(FileKeys(Path(jwks)))


async def open_file(source: FileKeys, whose: str = PROVIDER) -> ProviderKeys:
    """Return the keys in a file. Raises InvalidInput for one that is missing or damaged."""
    try:
        return ProviderKeys(source, await source.read(), whose=whose)
    except BaseException:
        await source.close()
        raise
