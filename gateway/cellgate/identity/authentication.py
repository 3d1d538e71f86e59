"""The owner of a request's token, found by trying each way of authentication in turn.

First come the gateway's own token and the tokens of its users, then the services that vouch for others: an
identity provider (``oidc``), JupyterHub (``hub``), LibreChat (``librechat``). `http.access` calls this for
each request. Known tokens are answered at once; only a token that needs a question to a service has to wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Protocol

from cellgate.errors import InvalidToken, NotAuthenticated
from cellgate.identity.directory import LOOK_SECONDS, DirectoryListener, PrincipalDirectory
from cellgate.identity.principal import DEFAULT, Ask, Login, Principal, Role
from cellgate.identity.tokens import digest
from cellgate_kernels.base.tasks import Supervisor

MOST_ROLES = 10_000
"""The most principals of other services whose roles are remembered."""


class LoginListener(DirectoryListener, Protocol):
    """The gateway's reactions to logins that end. No method may raise."""

    def open_logins(self) -> Iterable[Login]:
        """Yield the logins of open connections, and the logins behind browsers or derived tokens."""

    def end_logins(self) -> None:
        """Check the open connections alone, because this is called often."""

    def role_changed(self, name: str) -> None:
        """Note that a principal's role has changed."""


class Authenticator(Protocol):
    """A service that vouches for the bearers of tokens.

    Its logins are of a class of its own, by which it recognises them.
    """

    @property
    def prefix(self) -> str:
        """The prefix of all its principals' names, and of no others; "" if they may be any."""

    def login(self, token: str, given: bytes) -> Login | Ask | None:
        """Return a token's login, or the question for it; None if the token is not of the service's kind.

        `given`: the token's digest. Both may raise NotAuthenticated, Forbidden and IdentityUnavailable.
        """

    def is_valid(self, login: Login) -> bool | None:
        """Return whether a request with this login would still be served; None if another service made it."""

    def follow(self, listener: LoginListener) -> None:
        """Report changes to the listener from now on."""

    async def close(self) -> None:
        """Stop following, and close connections."""


class Authentication:
    """All ways to log in. `follow` once, `close` at the end; both include the directory."""

    def __init__(self, directory: PrincipalDirectory, others: tuple[Authenticator, ...] = ()) -> None:
        self.directory = directory
        self._others = others
        self._roles: dict[str, Role] = {}
        self._listener: LoginListener | None = None
        self._tasks = Supervisor()

    def login(self, token: str) -> Login | Ask:
        """Return the login that this token gives, or how to ask for it; an empty string: no token.

        Raises NotAuthenticated, Forbidden for a principal without a role, and IdentityUnavailable.
        """
        if not token:
            if self.directory.is_open:
                return DEFAULT
            raise NotAuthenticated(
                "A token is needed: send 'Authorization: Bearer TOKEN'. The operator makes one with"
                " cellgate token create; the gateway's own was given at its start, or is in its gateway.json",
                cause="no_token",
            )
        given = digest(token)
        login = self.directory.login(given)
        if login is not None:
            return login
        with self._telling_of_disabled(given):
            for other in self._others:
                found = other.login(token, given)
                if isinstance(found, Login):
                    return self.admitted(found)
                if found is not None:
                    return Ask(partial(self._later, found, given), found.known)
            raise InvalidToken("This token is not known to the gateway", cause="unknown_token")

    def has_users_of(self, prefix: str) -> bool:
        """Return whether a service vouches for principals whose names have this prefix."""
        return any(other.prefix == prefix for other in self._others)

    @property
    def is_shared(self) -> bool:
        """Whether there may be other principals than the administrator, so that the acting one matters."""
        return bool(self._others) or self.directory.has_users

    async def _later(self, ask: Ask, given: bytes, origin: str) -> Login:
        with self._telling_of_disabled(given):
            return self.admitted(await ask(origin))

    @contextmanager
    def _telling_of_disabled(self, given: bytes) -> Iterator[None]:
        """Name the user of a refused token in the audit trail, if the refusal is because they are disabled.

        The response is the same as for an unknown token. `given`: the token's digest.
        """
        try:
            yield
        except InvalidToken as error:
            token = self.directory.of_disabled(given)
            if token is None:
                raise
            raise InvalidToken(
                error.message, cause="disabled_user", token=token.id, principal=token.user
            ) from error

    def admitted(self, login: Login) -> Login:
        """Return another service's login, unless no service may vouch for it. Raises InvalidToken."""
        name = login.principal.name
        if name == DEFAULT.principal.name:
            raise InvalidToken(f"{name!r} is the administrator with the gateway's own token, and nobody else")
        for other in self._others:
            if other.prefix and name.startswith(other.prefix) and other.is_valid(login) is None:
                raise InvalidToken(f"A name that begins with {other.prefix!r} is vouched for by nobody else")
        if self.directory.is_disabled(name):
            raise InvalidToken(
                "This user is disabled at this gateway", cause="disabled_user", token=login.id, principal=name
            )
        if self._roles.get(name) is not login.principal.role:
            self._remember(login.principal)
        return login

    def _remember(self, principal: Principal) -> None:
        """Store the role that a service gave a principal last: sessions know only their owner's name."""
        former = self.role_of(principal.name)
        self._roles.pop(principal.name, None)
        if len(self._roles) >= MOST_ROLES:
            del self._roles[next(iter(self._roles))]
        self._roles[principal.name] = principal.role
        if principal.role is not former and self._listener is not None:
            self._listener.role_changed(principal.name)

    def role_of(self, name: str) -> Role:
        """Return the role of a principal, who may have no request at hand; `user` if it is unknown."""
        role = self._roles.get(name)
        return self.directory.role_of(name) if role is None else role

    def is_valid(self, login: Login) -> bool:
        """Return whether a request with this login would still be served."""
        for other in self._others:
            valid = other.is_valid(login)
            if valid is not None:
                return valid and not self.directory.is_disabled(login.principal.name)
        return self.directory.is_valid(login)

    def follow(self, listener: LoginListener) -> None:
        """Watch for changes from now on, and notify the listener."""
        self._listener = listener
        self.directory.follow(listener)
        for other in self._others:
            other.follow(listener)
        if self._others:
            self._tasks.repeat(lambda: self._look(listener), "logins by others", pause=LOOK_SECONDS)

    async def _look(self, listener: LoginListener) -> float:
        """Check all logins in use: logins of other services also end by the clock."""
        listener.end_logins()
        return LOOK_SECONDS

    async def close(self) -> None:
        """Stop following logins, and close the authenticators."""
        await self._tasks.cancel()
        for other in self._others:
            await other.close()
        await self.directory.close()
