"""Logins by signed tokens that were verified, until these expire or their key is withdrawn.

What is the same for every issuer: ``oidc`` and ``librechat`` build on it, and verify. ``provider`` keeps the
keys.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, TypeVar

from cellgate.identity.authentication import LoginListener
from cellgate.identity.jwt import JwtLogin
from cellgate.identity.principal import Login
from cellgate.identity.provider import ProviderKeys

MOST_LOGINS: Final = 10_000
"""Tokens that are remembered; above that the oldest is forgotten, and verified again when it comes."""

L = TypeVar("L", bound=JwtLogin)


class VerifiedLogins(Generic[L]):
    """All of an Authenticator but `login`. It owns `keys`.

    `kind`: the class of its logins. One that is built on it is another's.
    """

    prefix = ""

    def __init__(self, kind: type[L], keys: ProviderKeys, clock: Callable[[], float]) -> None:
        self._kind = kind
        self._keys = keys
        self._clock = clock
        self._logins: dict[bytes, L] = {}

    def _remembered(self, given: bytes) -> L | None:
        """Return the login of the token with this digest, if it was verified and still counts."""
        login = self._logins.get(given)
        if login is not None and not self.is_valid(login):
            del self._logins[given]
            return None
        return login

    def _remember(self, given: bytes, login: L) -> L:
        self._logins.pop(given, None)
        if len(self._logins) >= MOST_LOGINS:
            del self._logins[next(iter(self._logins))]
        self._logins[given] = login
        return login

    def is_valid(self, login: Login) -> bool | None:
        """Return whether a login's key and time are still valid; None for another authenticator's."""
        if type(login) is not self._kind:
            return None
        return login.key in self._keys.current.ids and not login.expired(self._clock())

    def follow(self, listener: LoginListener) -> None:
        """Follow the keys. The listener is not called: checks of open connections ask `is_valid`."""
        del listener
        self._keys.follow()

    async def close(self) -> None:
        """Stop following the keys."""
        await self._keys.close()
