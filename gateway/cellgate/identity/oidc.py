"""Logins by tokens of an identity provider (OpenID Connect, or any issuer of signed JWTs).

A token is verified once and remembered by its digest until it expires or its key is withdrawn, so that each
further request costs a look-up. For a token with an unknown key, the provider's keys are fetched once more.
``jwt`` verifies, ``provider`` keeps the keys.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from cellgate.errors import IdentityUnavailable, InvalidToken
from cellgate.identity.jwks import Key
from cellgate.identity.jwt import JwtLogin, TokenHeader, Verifier, is_jwt, read_header
from cellgate.identity.oidc_settings import OidcSettings
from cellgate.identity.principal import Ask, Login
from cellgate.identity.provider import ProviderKeys
from cellgate.identity.verified_logins import VerifiedLogins
from cellgate_kernels.base.errors import CellgateError


class OidcAuthenticator(VerifiedLogins[JwtLogin]):
    """An Authenticator, for tokens in the form of JWTs. It owns `keys`."""

    def __init__(
        self, settings: OidcSettings, keys: ProviderKeys, *, clock: Callable[[], float] = time.time
    ) -> None:
        super().__init__(JwtLogin, keys, clock)
        self._verifier = Verifier(settings)

    def login(self, token: str, given: bytes) -> Login | Ask | None:
        """Return a valid JWT's login, or the question to its provider; None for other tokens."""
        if (login := self._remembered(given)) is not None:
            return login
        if not is_jwt(token):
            return None
        header = read_header(token)
        key = self._find(header)
        if key is not None:
            return self._verified(token, given, header, key)
        if self._keys.may_renew:
            return Ask(partial(self._with_new_keys, token, given, header))
        raise self._unknown()

    async def _with_new_keys(self, token: str, given: bytes, header: TokenHeader, _: str) -> Login:
        await self._keys.renew()
        key = self._find(header)
        if key is None:
            raise self._unknown()
        return self._verified(token, given, header, key)

    def _find(self, header: TokenHeader) -> Key | None:
        return self._keys.current.find(header.key, header.algorithm)

    def _unknown(self) -> CellgateError:
        if not self._keys.current.keys:
            return IdentityUnavailable("The identity provider's keys can't be read now; the log says why")
        return InvalidToken(
            "This token is signed with a key that the identity provider does not publish: get a new token"
        )

    def _verified(self, token: str, given: bytes, header: TokenHeader, key: Key) -> Login:
        name = f"jwt:{given.hex()[:16]}"
        return self._remember(given, self._verifier.verify(token, header, key, self._clock(), name))
