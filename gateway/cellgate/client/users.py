"""The users of a gateway, their tokens and their secrets: as the commands ``user``, ``token``, ``secret``."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from urllib.parse import quote, urlencode

from cellgate.client.blocking import Asynchronous
from cellgate.client.calls import Calls, given
from cellgate.client.errors import InvalidInput
from cellgate.client.sync import SyncUsers
from cellgate.client.values import Pages, decode
from cellgate.wire.answers import (
    NewToken,
    SecretList,
    SecretModel,
    TokenModel,
    TokenPage,
    UserModel,
    UserPage,
)
from cellgate.wire.words import RoleName

_PAGE = 200
ME = "me"
"""The user whose token the client has."""


class Users(Asynchronous):
    """The users of one gateway. Methods raise GatewayError.

    Administrators may ask about everybody, others about themselves: `user` is by default who asks.
    """

    facade = SyncUsers

    def __init__(self, calls: Calls) -> None:
        self._calls = calls

    async def list(self) -> AsyncGenerator[UserModel]:
        """Yield all users, by name."""
        pages = Pages("")
        while pages.after is not None:
            query = urlencode(given(limit=_PAGE, after=pages.after or None))
            page = decode(await self._calls.call("GET", f"/v1/users?{query}"), UserPage)
            for model in page.users:
                yield model
            pages.turn(page.next)

    async def get(self, user: str = ME) -> UserModel:
        """Return the user of this name."""
        return decode(await self._calls.call("GET", _path(user)), UserModel)

    async def add(self, name: str, *, role: RoleName = "user") -> UserModel:
        """Add a user, who needs a token to do anything: `create_token`."""
        return decode(await self._calls.call("POST", "/v1/users", {"name": name, "role": role}), UserModel)

    async def change(
        self, user: str, *, role: RoleName | None = None, disabled: bool | None = None
    ) -> UserModel:
        """Give a user another role, or disable or enable them. Disabling ends their sessions."""
        body = given(role=role, disabled=disabled)
        return decode(await self._calls.call("PATCH", _path(user), body), UserModel)

    async def remove(self, user: str) -> None:
        """Remove a user with their tokens and secrets, and end their sessions; records and files stay."""
        await self._calls.call("DELETE", _path(user))

    async def tokens(self, user: str = ME) -> AsyncGenerator[TokenModel]:
        """Yield a user's tokens, without their texts, oldest first."""
        pages = Pages("")
        while pages.after is not None:
            query = urlencode(given(limit=_PAGE, after=pages.after or None))
            page = decode(await self._calls.call("GET", f"{_path(user, 'tokens')}?{query}"), TokenPage)
            for model in page.tokens:
                yield model
            pages.turn(page.next)

    async def create_token(
        self,
        user: str = ME,
        *,
        expires: str | None = None,
        scope: str | Sequence[str] | None = None,
        session: str | None = None,
        sessions: str | None = None,
    ) -> NewToken:
        """Make a token; its `token` is shown only now.

        `expires`: after ``90s``, ``12h``, ``30d``, or a time such as ``2030-01-31T12:00:00Z``. `scope`: what
        it may do, such as ``run,read``. `session`: the key of its one session; `sessions`: how their keys
        begin. One's own has at least the limits of the token that makes it.
        """
        words = scope if scope is None or isinstance(scope, str) else ",".join(scope)
        body = given(expires=expires, scope=words, session=session, sessions=sessions)
        return decode(await self._calls.call("POST", _path(user, "tokens"), body), NewToken)

    async def revoke_token(self, token: str, user: str = ME) -> None:
        """Revoke a user's token by its id, and those that the user made with it."""
        await self._calls.call("DELETE", _path(user, "tokens", token))

    async def secrets(self, user: str = ME) -> Sequence[SecretModel]:
        """Return a user's secrets, by name, without their values."""
        return decode(await self._calls.call("GET", _path(user, "secrets")), SecretList).secrets

    async def set_secret(self, name: str, value: str, user: str = ME) -> SecretModel:
        """Set a user's secret, which sessions that name it have as a variable."""
        path = _path(user, "secrets", name)
        return decode(await self._calls.call("PUT", path, {"value": value}), SecretModel)

    async def remove_secret(self, name: str, user: str = ME) -> None:
        """Remove a secret of the user."""
        await self._calls.call("DELETE", _path(user, "secrets", name))


def _path(user: str, *more: str) -> str:
    """Return a path below a user; slashes in a part are escaped. Raises InvalidInput."""
    if not all((user, *more)):
        raise InvalidInput("the name of a user or a secret, or a token's id, can't be empty")
    return "/".join(("/v1/users", *(quote(part, safe="~") for part in (user, *more))))
