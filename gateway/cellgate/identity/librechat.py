"""Logins by the tokens that LibreChat makes for its users: one principal for each of them.

With ``CODEAPI_JWT_ENABLED`` LibreChat sends a token with each request to its Code Interpreter, which names
the user and their tenant, ends after five minutes, and is signed with LibreChat's own key. It is told from
those of an identity provider by its issuer, whose name is no URL there. ``jwt`` verifies, ``provider`` keeps
the key.

Everybody is a user here, whatever role they have in LibreChat, and may do what its door needs.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cellgate.errors import IdentityUnavailable, InvalidToken
from cellgate.identity.jwks import parse_public_key
from cellgate.identity.jwt import IssuedTokens, JwtLogin, issuer_of, read_header
from cellgate.identity.principal import Ask, Login, Permission, Principal
from cellgate.identity.provider import FileKeys, ProviderKeys, open_file
from cellgate.identity.tokens import check_name
from cellgate.identity.verified_logins import VerifiedLogins

LIBRECHAT: Final = "LibreChat"
ISSUER: Final = "librechat"
AUDIENCE: Final = "codeapi"
PREFIX: Final = f"{ISSUER}:"
"""The prefix of the names of LibreChat's users here."""
PERMISSIONS: Final = frozenset({Permission.RUN, Permission.FILES})

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@+-]{0,55}")
"""A user's or a tenant's id, between the colons of a principal's name, and so without colons."""


@dataclass(frozen=True, slots=True)
class LibreChatLogin(JwtLogin):
    """A login by a token of LibreChat."""


class LibreChatAuthenticator(VerifiedLogins[LibreChatLogin]):
    """An Authenticator, for LibreChat's tokens. It owns `keys`."""

    prefix = PREFIX

    def __init__(self, keys: ProviderKeys, *, clock: Callable[[], float] = time.time) -> None:
        super().__init__(LibreChatLogin, keys, clock)
        self._issued = IssuedTokens(ISSUER, AUDIENCE)

    def login(self, token: str, given: bytes) -> Login | Ask | None:
        """Return the login of LibreChat's valid token; None for another issuer's."""
        if (login := self._remembered(given)) is not None:
            return login
        if issuer_of(token) != ISSUER:
            return None
        return self._remember(given, self._verified(token, f"librechat:{given.hex()[:16]}"))

    def _verified(self, token: str, name: str) -> LibreChatLogin:
        header = read_header(token)
        keys = self._keys.current
        if not keys.keys:
            raise IdentityUnavailable("LibreChat's key can't be read now; the log says why")
        # Its name in the header is whatever the operator of LibreChat calls it; there is one.
        key = keys.find(None, header.algorithm)
        if key is None:
            raise InvalidToken("This token's algorithm is not that of LibreChat's key")
        claims, known = self._issued.claims(token, header, key, self._clock())
        login = Login.of(Principal(_principal_name(claims.get("tenant_id"), claims.get("sub"))), PERMISSIONS)
        return LibreChatLogin(login.principal, login.permissions, login.reach, name, known.exp, key.id)


def _principal_name(tenant: object, user: object) -> str:
    """Return the principal of a tenant's user; each pair has its own. Raises InvalidToken."""
    for word in (tenant, user):
        if not isinstance(word, str) or not _WORD.fullmatch(word):
            raise InvalidToken(
                "This token's tenant_id and sub can't be part of a principal's name: each is 1 to 56 of A-Z"
                " a-z 0-9 . _ @ + - and begins with a letter or a digit"
            )
    return check_name(f"{PREFIX}{tenant}:{user}")


async def open_librechat(key: Path) -> LibreChatAuthenticator:
    """Return the authenticator for LibreChat's public key, a PEM file read again when it changes.

    Raises InvalidInput for a file that is missing or has no such key.
    """
    return LibreChatAuthenticator(await open_file(FileKeys(key, parse_public_key), LIBRECHAT))
