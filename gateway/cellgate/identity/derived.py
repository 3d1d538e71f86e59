"""Tokens for one thing, derived from a login: a bearer may use the thing as the login may.

They are not stored. A token names the login that it was made for and proves, by this process's own key, that
it was made here for this thing. So the same login gets the same token again, the token is valid as long as
the login is, and a restart of the gateway ends all derived tokens. In a cluster the key is that of all its
gateways, and a token has its login in it, so each of them takes it.

A login by a service, such as a Hub, lasts only while the gateway keeps asking about it. The bearer of a
derived token does not show the login's own token. So `logins_in_use` returns the logins to ask about.
"""

from __future__ import annotations

import hmac
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from cellgate.identity.administrator import Administrator
from cellgate.identity.login_bytes import LoginBytes
from cellgate.identity.principal import Login, OwnLogin

MOST_LOGINS: Final = 10_000
"""The most logins that are remembered; the least recently used is dropped, with its tokens."""
IN_USE_SECONDS: Final = 3600.0
"""The seconds after the last use of its tokens for which a login counts as in use."""
KEY_BYTES: Final = 32
NAME_DIGITS: Final = 32
"""The digits in a token that name its login."""
MOST_TOKEN: Final = 1024
"""The most characters of a token; one with its login in it takes about 200."""


@dataclass(frozen=True, slots=True)
class _Used:
    login: Login
    at: float


class DerivedTokens:
    """All derived tokens. `is_valid`: returns whether a login is still valid.

    `key`: that of all gateways of a cluster; None: the tokens are this gateway's own. `administrator`: as of
    `LoginBytes`.
    """

    def __init__(
        self,
        is_valid: Callable[[Login], bool],
        *,
        key: bytes | None = None,
        administrator: Administrator | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._is_valid = is_valid
        self._clock = clock
        self._key = key or secrets.token_bytes(KEY_BYTES)
        self._shared = key is not None
        self._bytes = LoginBytes(administrator)
        self._logins: OrderedDict[str, _Used] = OrderedDict()
        """Logins by their names, the most recently used last."""

    def make(self, login: Login, thing: str) -> str:
        """Return the token for a thing that this login may use."""
        name = self._bytes.write(login).hex() if self._shared else self._hash(*_words(login))[:NAME_DIGITS]
        self._use(name, login)
        return f"{name}.{self._hash(name, thing)}"

    def login(self, token: str, thing: str) -> Login | None:
        """Return the login that a token for this thing was made for; None if either is invalid."""
        if len(token) > MOST_TOKEN or not token.isascii():
            return None
        name, _, proof = token.partition(".")
        used = self._logins.get(name)
        if used is None and not self._shared:
            return None
        if not hmac.compare_digest(proof, self._hash(name, thing)):
            return None
        login = self._bytes.read(bytes.fromhex(name)) if used is None else used.login
        if login is None or not self._is_valid(login):
            return None
        self._use(name, login)
        return login

    def logins_in_use(self) -> Iterator[Login]:
        """Yield the logins whose tokens are in use, even if no connection is open at the moment."""
        since = self._clock() - IN_USE_SECONDS
        for used in reversed(tuple(self._logins.values())):
            if used.at < since:
                return
            yield used.login

    def _use(self, name: str, login: Login) -> None:
        self._logins[name] = _Used(login, self._clock())
        self._logins.move_to_end(name)
        if len(self._logins) > MOST_LOGINS:
            self._logins.popitem(last=False)

    def _hash(self, *words: str) -> str:
        told = b"".join(b"%d:%s" % (len(word), word) for word in (each.encode() for each in words))
        return hmac.digest(self._key, told, "sha256").hex()


def _words(login: Login) -> tuple[str, ...]:
    """Return the words that distinguish a login from all others."""
    reach = login.reach
    return (
        login.principal.name,
        login.principal.role,
        login.id,
        reach.prefix,
        str(reach.exact),
        str(login.expires),
        str(login.change) if isinstance(login, OwnLogin) else "",
        *sorted(login.permissions),
    )
