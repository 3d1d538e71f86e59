"""Logins as bytes, by which one gateway tells another with the same key whose login it has let in. Pure.

The bytes alone prove nothing (``text_signer``). Whether the login is still valid is asked where it is read,
as of any other: a token may have been revoked, a user disabled.
"""

from __future__ import annotations

from typing import Final

import msgspec

from cellgate.identity.administrator import Administrator
from cellgate.identity.hub import HubLogin
from cellgate.identity.jwt import JwtLogin
from cellgate.identity.librechat import LibreChatLogin
from cellgate.identity.principal import Login, OwnLogin, Permission, Principal, Reach, Role

_PLAIN: Final = {kind.__name__: kind for kind in (Login, HubLogin)}
_SIGNED: Final = {kind.__name__: kind for kind in (JwtLogin, LibreChatLogin)}


class _Words(msgspec.Struct, frozen=True, array_like=True):
    """A login. `kind`: its class; `key`: of a login by a signed token, or the administrator's mark."""

    kind: str
    name: str
    role: Role
    permissions: list[Permission]
    prefix: str
    exact: bool
    id: str
    expires: float | None
    key: str = ""


_decoder = msgspec.msgpack.Decoder(_Words)


class LoginBytes:
    """Writes and reads logins.

    That of the `administrator` has the mark of the gateway's own token, which no store of users knows, and
    ends with it. Without an administrator there is no mark.
    """

    def __init__(self, administrator: Administrator | None = None) -> None:
        self._administrator = administrator or Administrator(None)

    def write(self, login: Login) -> bytes:
        """Return a login as bytes."""
        reach = login.reach
        words = _Words(
            type(login).__name__,
            login.principal.name,
            login.principal.role,
            sorted(login.permissions),
            reach.prefix,
            reach.exact,
            login.id,
            login.expires,
            self._key_of(login),
        )
        return msgspec.msgpack.encode(words)

    def _key_of(self, login: Login) -> str:
        if isinstance(login, OwnLogin):
            return self._administrator.mark if login == self._administrator.login else ""
        return login.key if isinstance(login, JwtLogin) else ""

    def read(self, value: bytes) -> Login | None:
        """Return the login of these bytes; None for the administrator's by another token.

        Also None for those of a version that knows other logins.
        """
        try:
            words = _decoder.decode(value)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None
        principal, reach = Principal(words.name, words.role), Reach(words.prefix, exact=words.exact)
        parts = (principal, frozenset(words.permissions), reach, words.id, words.expires)
        if words.kind == OwnLogin.__name__:
            # How often each gateway has changed its token is its own count.
            return self._administrator.login if words.key == self._administrator.mark else None
        if (signed := _SIGNED.get(words.kind)) is not None:
            return signed(*parts, key=words.key)
        plain = _PLAIN.get(words.kind)
        return None if plain is None else plain(*parts)
