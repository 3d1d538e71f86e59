"""Users, tokens and secrets as requests read and change them: who may, and the store's work in a thread.

The rules are those of the commands ``user``, ``token`` and ``secret``; these run as the gateway's own system
user, who may do everything, so whose request may do what is decided here. After a change the directory has
read the store, so it counts from the answer on. It knows no HTTP: ``http.v1.users`` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TypeVar

from cellgate.errors import Conflict, Forbidden, NotFound
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.principal import EVERYWHERE, Login, Permission, Reach, Role
from cellgate.identity.secrets import Box, check_secret_name, check_secret_value
from cellgate.identity.store.interface import RESERVED, Token, User, UserStore
from cellgate.identity.store.opening import UsersPlace, open_users_at, secret_key
from cellgate.identity.tokens import (
    check_name,
    check_reach,
    check_scopes,
    parse_expiry,
    parse_scopes,
    scopes_text,
)
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.threads import Lane

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Asker:
    """Who sends a request about users. `address`: the client's."""

    login: Login
    address: str

    @property
    def name(self) -> str:
        """The asker's own name."""
        return self.login.principal.name

    def check_administers(self) -> None:
        """Check that the asker may see all users. Raises Forbidden."""
        if not self.login.principal.admin:
            raise Forbidden("Only administrators may list and change users")
        if self.login.reach != EVERYWHERE:
            raise Forbidden("This token reaches only some sessions, and users are not about sessions")

    def check_concerned(self, name: str) -> None:
        """Check that the asker may ask about the user of this name.

        Raises NotFound for a user who asks about somebody else, as if there were no such user, and Forbidden.
        """
        if name == self.name:
            return
        if not self.login.principal.admin:
            raise unknown(name)
        self.check_administers()

    def check_outranks(self, role: Role) -> None:
        """Check that the asker may have power over users of this role, or give it. Raises Forbidden.

        By a limited token nobody gets what it has not: another administrator's token would be unlimited.
        """
        if role is not Role.USER and not self.login.unlimited:
            raise Forbidden(
                f"This token has scopes or an end, so it can't make, change or use what has the role {role}:"
                " take a token without them, as the gateway's own, or the commands on the gateway's machine"
            )


@dataclass(frozen=True, slots=True)
class TokenWish:
    """A token as it is asked for. None: not limited. `expires_at` in seconds since the epoch."""

    expires_at: float | None = None
    scopes: frozenset[Permission] | None = None
    reach: Reach = EVERYWHERE

    @classmethod
    def parsed(
        cls, expires: str | None, scope: str | None, session: str | None, sessions: str | None, at: float
    ) -> TokenWish:
        """Return the wish in these texts, as the options of the command. Raises InvalidInput with the field.

        `at`: the time now.
        """
        with _naming("expires"):
            expires_at = None if expires is None else parse_expiry(expires, at)
        with _naming("scope"):
            scopes = None if scope is None else parse_scopes(scope)
        with _naming("session" if session is not None else "sessions"):
            if "" in {session, sessions}:
                raise InvalidInput("It must not be empty; leave it out for all sessions")
            reach = check_reach(key=session or "", prefix=sessions or "")
        return cls(expires_at, scopes, reach)

    def beside(self, own: Token) -> TokenWish:
        """Return the wish with the limits of the token that asks, where it names none itself.

        Raises Forbidden for a limit that is wider than that one's.
        """
        if own.expires_at is not None and (self.expires_at or 0.0) > own.expires_at:
            raise Forbidden("expires: a token can't last longer than the one it is made with")
        beyond = frozenset() if own.scopes is None else (self.scopes or frozenset()) - own.scopes
        if beyond:
            raise Forbidden(
                f"scope: the token that this one is made with does not have {scopes_text(beyond)}"
            )
        reach = own.reach if self.reach == EVERYWHERE else self.reach
        if not reach.within(own.reach):
            field = "session" if reach.exact else "sessions"
            raise Forbidden(f"{field}: a token can't reach more sessions than the one it is made with")
        return TokenWish(
            own.expires_at if self.expires_at is None else self.expires_at,
            own.scopes if self.scopes is None else self.scopes,
            reach,
        )


class UserKeeper:
    """The users at `place`. `close` it at the end.

    `tokenless`: the option by which requests without a token are the administrator's; "" for none.
    All methods raise StorageError, Forbidden, and NotFound for an unknown user.
    """

    def __init__(
        self,
        place: UsersPlace,
        directory: PrincipalDirectory,
        *,
        tokenless: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._place = place
        self._directory = directory
        self._tokenless = tokenless
        self._clock = clock
        self._lane = Lane("users", 1)

    def close(self) -> None:
        """Release the thread of all reading and changing."""
        self._lane.close()

    # Users

    async def users(self, asker: Asker, after: str, limit: int) -> tuple[list[User], bool]:
        """Return the users whose names come after this one, and whether there are more."""
        asker.check_administers()
        try:
            found = await self._read(lambda store: store.users())
        except NotFound:
            found = []  # nobody has been added yet
        later = [user for user in found if user.name > after]
        return later[:limit], len(later) > limit

    async def user(self, asker: Asker, name: str) -> User:
        """Return the user of this name."""
        asker.check_concerned(name)
        return await self._read(lambda store: _user(store, name))

    async def add(self, asker: Asker, name: str, role: Role) -> User:
        """Add a user. Raises Conflict if there is one of this name, InvalidInput with the field."""
        asker.check_administers()
        with _naming("name"):
            check_name(name)
        asker.check_outranks(role)
        if self._tokenless:
            raise Conflict(
                f"{self._tokenless} makes everybody the administrator: to have users, start the gateway"
                " without it"
            )
        return await self._change(asker, lambda store: store.add_user(name, role), create=True)

    async def change(self, asker: Asker, name: str, *, role: Role | None, disabled: bool | None) -> User:
        """Give a user another role, or disable or enable them. Raises Conflict for the asker's own."""
        if role is None and disabled is None:
            raise InvalidInput("Nothing is to be changed: give role or disabled")
        self._check_other(asker, name, "change the role or the state of")

        def work(store: UserStore) -> User:
            known = _user(store, name)
            asker.check_outranks(known.role)
            asker.check_outranks(role or known.role)
            if disabled is not None and disabled != known.disabled:
                store.set_disabled(name, disabled=disabled)
            if role is not None and role is not known.role:
                store.set_role(name, role)
            return store.user(name)

        return await self._change(asker, work)

    async def remove(self, asker: Asker, name: str) -> None:
        """Remove a user with their tokens and secrets. Raises Conflict for the asker."""
        self._check_other(asker, name, "remove")

        def work(store: UserStore) -> None:
            asker.check_outranks(_user(store, name).role)
            store.remove_user(name)

        await self._change(asker, work)

    def _check_other(self, asker: Asker, name: str, action: str) -> None:
        """Check that the asker administers and means somebody else. Raises Forbidden, NotFound, Conflict."""
        asker.check_concerned(name)
        asker.check_administers()
        if name == asker.name:
            raise Conflict(
                f"You can't {action} yourself, so that nobody loses their standing by mistake: another"
                " administrator can, or the gateway's own token, or cellgate user on the gateway's machine"
            )

    # Tokens

    async def tokens(self, asker: Asker, name: str, after: str, limit: int) -> tuple[list[Token], bool]:
        """Return a user's tokens after the one with this id, oldest first, and whether there are more.

        A token that reaches only some sessions sees those within its reach.
        """
        asker.check_concerned(name)
        found = await self._read(lambda store: _tokens(store, asker, name))
        if after:
            ids = [token.id for token in found]
            if after not in ids:
                raise NotFound(f"There is no token {after[:40]!r} to begin after")
            found = found[ids.index(after) + 1 :]
        return found[:limit], len(found) > limit

    async def create_token(self, asker: Asker, name: str, wish: TokenWish) -> tuple[Token, str]:
        """Return a new token of the user, and its text. Raises Conflict, InvalidInput, Forbidden.

        One's own has at least the limits of the token that asks for it.
        """
        asker.check_concerned(name)

        def work(store: UserStore) -> tuple[Token, str]:
            known = _user(store, name)
            with _naming("scope"):
                check_scopes(name, known.role, wish.scopes)
            narrowed = wish
            if name == asker.name:
                narrowed = wish.beside(_own_token(store, asker.login, self._clock()))
            else:
                asker.check_outranks(known.role)
            return store.create_token(
                name,
                expires_at=narrowed.expires_at,
                scopes=narrowed.scopes,
                reach=narrowed.reach,
                # Those that others vouch for, or that the gateway was started with, are not in the store.
                made_by=(asker.login.id or None) if type(asker.login) is Login else None,
            )

        return await self._change(asker, work)

    async def revoke_token(self, asker: Asker, name: str, token: str) -> None:
        """Revoke a user's token by its id, and those made with it. Revoking one again changes nothing.

        Raises Conflict if the token that asks would end without being named.
        """
        asker.check_concerned(name)

        def work(store: UserStore) -> None:
            if token not in {each.id for each in _tokens(store, asker, name)}:
                raise NotFound(f"User {name[:40]!r} has no token {token[:40]!r}")
            if token in _makers(store.tokens(name), asker.login.id):
                raise Conflict(
                    f"The token that asks was made with {token}, and would end with it: ask with that one, or"
                    " let an administrator revoke it"
                )
            if name != asker.name:
                asker.check_outranks(_user(store, name).role)
            store.revoke_token(token)

        await self._change(asker, work)

    # Secrets

    async def secrets(self, asker: Asker, name: str) -> list[Box]:
        """Return a user's secrets, by name, encrypted."""
        _check_secrets(asker, name)
        try:
            return await self._read(lambda store: _secrets(store, name))
        except NotFound:
            if name != RESERVED:
                raise
            return []

    async def set_secret(self, asker: Asker, name: str, secret: str, value: str) -> Box:
        """Set a user's secret. Raises Conflict, and InvalidInput that does not show the value."""
        _check_secrets(asker, name)
        with _naming("name"):
            check_secret_name(secret)
        with _naming("value"):
            check_secret_value(value)

        def work(store: UserStore) -> Box:
            _check_power(store, asker, name)
            store.set_secret(name, secret, secret_key(self._place).seal(name, secret, value))
            return next(box for box in store.secrets(name) if box.name == secret)

        return await self._change(asker, work, create=name == RESERVED)

    async def remove_secret(self, asker: Asker, name: str, secret: str) -> None:
        """Remove a user's secret with all its values."""
        _check_secrets(asker, name)

        def work(store: UserStore) -> None:
            _check_power(store, asker, name)
            if secret not in {box.name for box in store.secrets(name)}:
                raise NotFound(f"User {name[:40]!r} has no secret {secret[:40]!r}")
            store.remove_secret(name, secret)

        await self._change(asker, work)

    # The store

    async def _read(self, work: Callable[[UserStore], T]) -> T:
        return await self._lane.run(self._work, work, {}, create=False)

    async def _change(self, asker: Asker, work: Callable[[UserStore], T], *, create: bool = False) -> T:
        login = asker.login
        named = {"by": asker.name, "by_token": login.id, "by_address": asker.address}
        by = {field: value for field, value in named.items() if value}
        try:
            return await self._lane.run(self._work, work, by, create=create)
        finally:
            await self._directory.catch_up()

    def _work(self, work: Callable[[UserStore], T], by: dict[str, str], *, create: bool) -> T:
        with ExitStack() as stack:
            try:
                store = stack.enter_context(open_users_at(self._place, create=create, by=by))
            except NotFound as error:
                # Its message is for the operator: it names the file.
                raise NotFound("There are no users yet") from error
            return work(store)


def unknown(name: str) -> NotFound:
    """Return the error for a user that does not exist, or is none of the asker's business."""
    if name == RESERVED:
        return NotFound(f"{RESERVED!r} is the administrator with the gateway's own token, and no user")
    return NotFound(f"There is no user {name[:40]!r}")


def _user(store: UserStore, name: str) -> User:
    try:
        return store.user(name)
    except NotFound as error:
        raise unknown(name) from error


def _tokens(store: UserStore, asker: Asker, name: str) -> list[Token]:
    _user(store, name)
    return [token for token in store.tokens(name) if token.reach.within(asker.login.reach)]


def _secrets(store: UserStore, name: str) -> list[Box]:
    if name != RESERVED:
        _user(store, name)
    return store.secrets(name)


def _makers(tokens: list[Token], token: str) -> set[str]:
    """Return the ids of the tokens with which a user's token was made, directly or not."""
    made_by = {each.id: each.made_by for each in tokens}
    found: set[str] = set()
    while (maker := made_by.get(token)) is not None and maker not in found:
        found.add(maker)
        token = maker
    return found


def _own_token(store: UserStore, login: Login, at: float) -> Token:
    """Return the token of a login by this gateway, as it is kept. Raises Forbidden for another's.

    What others vouch for ends when they say so, which a token made here would outlive.
    """
    own = next((token for token in store.tokens(login.principal.name) if token.id == login.id), None)
    if type(login) is not Login or own is None:
        raise Forbidden("Only a token that this gateway has made can make another one for oneself")
    if own.revoked_at is not None or login.expired(at):
        raise Forbidden("The token that asks was revoked, or is over")
    return own


def _check_secrets(asker: Asker, name: str) -> None:
    """Check that the asker may see the names of a user's secrets. Raises Forbidden, NotFound."""
    asker.check_concerned(name)
    if asker.login.reach != EVERYWHERE:
        raise Forbidden("This token reaches only some sessions, and secrets are for all")


def _check_power(store: UserStore, asker: Asker, name: str) -> None:
    """Check that the asker may set the secrets of a user. Raises Forbidden, NotFound."""
    if name != asker.name:
        asker.check_outranks(Role.ADMIN if name == RESERVED else _user(store, name).role)
    elif name != RESERVED:
        _user(store, name)


@contextmanager
def _naming(field: str) -> Iterator[None]:
    """Let an InvalidInput from inside begin with the field that it is about."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{field}: {error.message}") from error
