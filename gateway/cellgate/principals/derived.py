"""Tokens for one thing, derived from a login: whoever has one may use that thing as the login may.

Nothing keeps them. A token names the login that it was made for and proves, by this process's own key, that
it was made here for this thing. So the same login gets the same token again, it holds for as long as the
login does, and a restart of the gateway is the end of all of them.
"""

from __future__ import annotations

import hmac
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from cellgate.principals.principal import Login

MOST_LOGINS: Final = 10_000
"""Logins that are remembered; the one that was used least lately is forgotten, with its tokens."""
KEY_BYTES: Final = 32
NAME_DIGITS: Final = 32
"""Of the part of a token that names its login."""
PROOF_DIGITS: Final = 64


class DerivedTokens:
    """All derived tokens. `is_valid`: whether a login still is."""

    def __init__(self, is_valid: Callable[[Login], bool]) -> None:
        self._is_valid = is_valid
        self._key = secrets.token_bytes(KEY_BYTES)
        self._logins: OrderedDict[str, Login] = OrderedDict()

    def make(self, login: Login, thing: str) -> str:
        """Return the token for a thing that this login may use."""
        name = self._hash(*_words(login))[:NAME_DIGITS]
        self._logins[name] = login
        self._logins.move_to_end(name)
        if len(self._logins) > MOST_LOGINS:
            self._logins.popitem(last=False)
        return f"{name}.{self._hash(name, thing)}"

    def login(self, token: str, thing: str) -> Login | None:
        """Return the login that a token for this thing was made for; None if it is not good, or no longer."""
        if len(token) != NAME_DIGITS + 1 + PROOF_DIGITS or not token.isascii():
            return None
        name, _, proof = token.partition(".")
        login = self._logins.get(name)
        if login is None or not hmac.compare_digest(proof, self._hash(name, thing)):
            return None
        self._logins.move_to_end(name)
        return login if self._is_valid(login) else None

    def _hash(self, *words: str) -> str:
        told = b"".join(b"%d:%s" % (len(word), word) for word in (each.encode() for each in words))
        return hmac.digest(self._key, told, "sha256").hex()


def _words(login: Login) -> tuple[str, ...]:
    """What distinguishes a login from all others."""
    reach = login.reach
    return (
        login.principal.name,
        login.principal.role,
        login.id,
        reach.prefix,
        str(reach.exact),
        str(login.expires),
        *sorted(login.permissions),
    )
