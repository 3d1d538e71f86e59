"""Signing in at an identity provider with a browser: the authorization code flow, with PKCE, no secret.

OpenID Connect Core 1.0, section 3.1; RFC 7636 and 9207. The data that binds the answer to the asking browser
is stored by that browser alone (`Begun`), so sign-ins that strangers begin cost nothing. The ID token is
checked like any token of the provider, but is for the client and answers this very question. ``http.console``
has the redirects and the cookie, ``provider`` the keys.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final
from urllib.parse import urlencode

import msgspec

from cellgate.errors import IdentityUnavailable
from cellgate.identity.code_exchange import Begun, CodeExchange
from cellgate.identity.fetching import Fetcher
from cellgate.identity.jwt import JwtLogin, Verifier, read_header
from cellgate.identity.oidc_settings import OidcSettings
from cellgate.identity.provider import PROVIDER, ProviderKeys, check_endpoint, discover
from cellgate.identity.tokens import digest
from cellgate_kernels.base.errors import InvalidInput

SIGN_IN_SECONDS: Final = 8 * 3600.0
"""The seconds that such a login lasts: an ID token names the user, but no duration."""
DISCOVERY_SECONDS: Final = 300.0
RETRY_SECONDS: Final = 5.0
"""The seconds between two questions to a provider that does not name its endpoints."""


class _Tokens(msgspec.Struct):
    id_token: str


class ProviderSignIn:
    """Sign-ins at the provider of `settings` under our client id. The owner of `keys` closes them."""

    def __init__(
        self,
        settings: OidcSettings,
        keys: ProviderKeys,
        *,
        fetcher: Fetcher | None = None,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._keys = keys
        self._fetcher = fetcher or Fetcher(PROVIDER)
        self._clock = clock
        self._verifier = Verifier(replace(settings, audience=settings.client_id))
        self._monotonic = monotonic
        self._known: tuple[str, str] | None = None
        self._asks_again = float("-inf")
        self._reading = asyncio.Lock()
        self._codes = CodeExchange(self._fetcher, "oidc")

    async def question(self, begun: Begun, back: str) -> str:
        """Return the provider's URL to ask the user, who returns to `back`. Raises IdentityUnavailable."""
        endpoint, _ = await self._endpoints()
        asked = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": back,
            "scope": self._settings.scopes,
            "state": begun.state,
            "nonce": begun.nonce,
            "code_challenge": begun.challenge,
            "code_challenge_method": "S256",
        }
        return f"{endpoint}{'&' if '?' in endpoint else '?'}{urlencode(asked)}"

    def is_answer(self, begun: Begun, state: str, issuer: str | None) -> bool:
        """Return whether an answer is to this question, and of this provider if it names an issuer."""
        ours = hmac.compare_digest(begun.state.encode(), state.encode())
        return ours and issuer in {None, self._settings.issuer}

    async def login(self, begun: Begun, code: str, back: str, origin: str) -> JwtLogin:
        """Return the login of the user for whom the provider gave this code. `origin`: the user's address.

        Raises InvalidToken, IdentityUnavailable, and Forbidden for a user without a role.
        """

        async def asked() -> tuple[str, dict[str, str]]:
            _, endpoint = await self._endpoints()
            client = self._settings.client_id
            return endpoint, {"redirect_uri": back, "client_id": client, "code_verifier": begun.verifier}

        answer = await self._codes.exchange(code, origin, _Tokens, asked)
        return await self._verified(answer.id_token, begun.nonce)

    async def _verified(self, token: str, nonce: str) -> JwtLogin:
        header = read_header(token)
        key = self._keys.current.find(header.key, header.algorithm)
        if key is None and self._keys.may_renew:
            await self._keys.renew()
            key = self._keys.current.find(header.key, header.algorithm)
        if key is None:
            raise IdentityUnavailable(f"{PROVIDER} signs with a key that it does not publish")
        now = self._clock()
        name = f"oidc:{digest(token).hex()[:16]}"
        login = self._verifier.verify(token, header, key, now, name, nonce=nonce)
        return replace(login, expires=now + SIGN_IN_SECONDS)

    async def _endpoints(self) -> tuple[str, str]:
        """Return the provider's two endpoints, read anew from time to time. Raises IdentityUnavailable."""
        async with self._reading:  # however many strangers begin, the provider gets one request
            now = self._monotonic()
            if now < self._asks_again:
                if self._known is None:
                    raise IdentityUnavailable(f"{PROVIDER} could not be asked a moment ago: try again")
                return self._known
            self._known = None
            self._asks_again = now + RETRY_SECONDS
            self._known = await self._discover()
            self._asks_again = now + DISCOVERY_SECONDS
            return self._known

    async def _discover(self) -> tuple[str, str]:
        issuer = self._settings.issuer
        try:
            found = await discover(self._fetcher, issuer)
            asks = check_endpoint(found.authorization_endpoint, "authorization_endpoint", issuer)
            gives = check_endpoint(found.token_endpoint, "token_endpoint", issuer)
        except InvalidInput as error:
            raise IdentityUnavailable(error.message) from error
        return asks, gives

    async def close(self) -> None:
        """Close all connections to the provider."""
        await self._fetcher.close()
