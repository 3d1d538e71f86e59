"""Logins by tokens of a JupyterHub that runs the gateway, as one of its services or as a user's server.

A question to the Hub is sent with the token itself (`GET /user` of its API), as its services do. The Hub
answers with the user and the token's scopes; one scope must be access to this gateway. The answer is valid
for some seconds, so a revoked token soon opens nothing. The tokens of open connections are checked again and
again while they are open. Tokens are stored in memory for that, and nowhere else.

Anybody can send unknown tokens. Their cost must not fall on users: tokens that the Hub knew are checked over
separate connections, however many questions about other tokens wait.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Container
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus

import msgspec

from cellgate.errors import Forbidden, IdentityUnavailable, InvalidToken, ShuttingDown
from cellgate.fairness.shares import Shares
from cellgate.identity.authentication import Authenticator, LoginListener
from cellgate.identity.fetching import CONNECTIONS, Fetcher
from cellgate.identity.hub_settings import HubSettings
from cellgate.identity.principal import Ask, Login, Principal, Role
from cellgate.identity.tokens import check_name, digest
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.tasks import Supervisor, outcome

HUB = "The Hub"
ADMIN_SCOPE = "admin:users"
"""The scope of a Hub administrator's token with which its bearer is an administrator of the gateway."""
FRESH_SECONDS = 10.0
"""The seconds for which an answer is valid for requests."""
CHECK_SECONDS = 20.0
"""The age in seconds at which the answer about an open connection's token is renewed."""
PATIENCE_SECONDS = 60.0
"""The seconds for which an answer is valid while the Hub gives no other, as during its restart."""
REFUSED_SECONDS = 5.0
"""The seconds for which a refusal is valid."""
LOOK_SECONDS = 5.0
MOST_LOGINS = 10_000
MOST_OF_ONE = 1000
"""The most tokens of one user whose logins are remembered: more would push out other users' logins."""
MOST_REFUSED = 1000
MOST_ASKING = 100
"""The most tokens that the Hub is asked about at once, of known ones and of others. One address may use three
quarters of them; a request with one more is told to come again."""
MOST_ANSWER = 256 * 1024

_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]{1,512}")
"""The tokens that are sent on to the Hub: no character can end a header."""


@dataclass(frozen=True, slots=True)
class HubLogin(Login):
    """A login by a Hub's token."""


class _User(msgspec.Struct):
    """The Hub's description of a token."""

    name: str
    kind: str = "user"
    admin: bool = False
    scopes: list[str] = []


_Refusal = InvalidToken | Forbidden


@dataclass(frozen=True, slots=True)
class _Entry:
    token: str
    login: HubLogin
    asked_at: float


class _Questions:
    """Waiting questions to the Hub, with their own connections; each address has a share."""

    def __init__(self, fetcher: Fetcher) -> None:
        self.fetcher = fetcher
        self._asking: dict[bytes, asyncio.Task[HubLogin]] = {}
        self._places = Shares(MOST_ASKING)

    def ask(
        self, given: bytes, origin: str, begin: Callable[[], asyncio.Task[HubLogin]]
    ) -> asyncio.Task[HubLogin]:
        """Return the question about a token, started unless one is waiting. Raises IdentityUnavailable."""
        task = self._asking.get(given)
        if task is None:
            if (place := self._places.take(origin)) is None:
                raise IdentityUnavailable(f"{HUB} is being asked about too many tokens; try again later")
            task = self._asking[given] = begin()
            task.add_done_callback(lambda _: self._asking.pop(given, None))
            task.add_done_callback(lambda _: place.release())
        return task


def hub_fetcher(settings: HubSettings) -> Fetcher:
    """Return connections to the Hub, by its certificates if it has ``internal_ssl``. Raises InvalidInput."""
    return Fetcher(HUB, context=None if settings.tls is None else settings.tls.context())


class HubAuthenticator(Authenticator):
    """An Authenticator, for any other token: only the Hub can tell whether one is its own."""

    prefix = ""

    def __init__(
        self,
        settings: HubSettings,
        *,
        fetcher: Fetcher | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._of_known = _Questions(fetcher or hub_fetcher(settings))
        self._of_others = _Questions(fetcher or hub_fetcher(settings))
        self._monotonic = monotonic
        self._entries: dict[bytes, _Entry] = {}
        self._by_id: dict[str, bytes] = {}
        # Digests of tokens that the Hub knew when asked last, however long ago.
        self._known: dict[bytes, None] = {}
        self._of_one: dict[str, dict[bytes, None]] = {}
        self._refused: dict[bytes, tuple[float, _Refusal]] = {}
        self._tasks = Supervisor()

    def login(self, token: str, given: bytes) -> Login | Ask | None:
        entry = self._entries.get(given)
        now = self._monotonic()
        if entry is not None and now - entry.asked_at < FRESH_SECONDS:
            return entry.login
        if (refused := self._refused.get(given)) is not None:
            at, refusal = refused
            if now - at < REFUSED_SECONDS:
                # A new exception of its kind: one that is raised again and again grows.
                raise type(refusal)(refusal.message, cause=refusal.cause)
            del self._refused[given]
        if not _TOKEN.fullmatch(token):
            return None
        return Ask(partial(self._current, token, given), given in self._known)

    async def confirmed(self, token: str, origin: str) -> HubLogin:
        """Return the login of a token that the Hub has just issued. Raises as the question about it."""
        if not _TOKEN.fullmatch(token):
            raise IdentityUnavailable(f"{HUB} gave out something that is no token")
        return await self._ask(token, digest(token), origin)

    async def _current(self, token: str, given: bytes, origin: str) -> HubLogin:
        """Return the Hub's present login or, while the Hub gives no answer, its recent one."""
        try:
            return await self._ask(token, given, origin)
        except IdentityUnavailable:
            entry = self._entries.get(given)
            if entry is None or self._monotonic() - entry.asked_at >= PATIENCE_SECONDS:
                raise
            return entry.login

    async def _ask(self, token: str, given: bytes, origin: str = "") -> HubLogin:
        """Ask the Hub once for all callers with this token. `origin`: the address of the request, if any."""
        questions = self._of_known if given in self._known else self._of_others

        def begin() -> asyncio.Task[HubLogin]:
            return self._tasks.share(self._answer(token, given, questions.fetcher), "question to the Hub")

        task = questions.ask(given, origin, begin)
        return await outcome(task, lambda: ShuttingDown("The gateway is shutting down"))

    async def _answer(self, token: str, given: bytes, fetcher: Fetcher) -> HubLogin:
        try:
            login = self._login(await self._user(token, fetcher), f"hub:{given.hex()[:16]}")
        except (InvalidToken, Forbidden) as error:
            self._forget(given)
            self._known.pop(given, None)
            if len(self._refused) >= MOST_REFUSED:
                del self._refused[next(iter(self._refused))]
            self._refused[given] = (self._monotonic(), error)
            raise
        self._remember(given, _Entry(token, login, self._monotonic()))
        return login

    def _remember(self, given: bytes, entry: _Entry) -> None:
        self._forget(given)
        name = entry.login.principal.name
        if len(own := self._of_one.get(name, {})) >= MOST_OF_ONE:
            oldest = next(iter(own))
            self._forget(oldest)
            self._known.pop(oldest, None)
        if len(self._entries) >= MOST_LOGINS:
            self._forget(next(iter(self._entries)))
        self._entries[given] = entry
        self._by_id[entry.login.id] = given
        self._of_one.setdefault(name, {})[given] = None
        self._known.pop(given, None)
        if len(self._known) >= MOST_LOGINS:
            del self._known[next(iter(self._known))]
        self._known[given] = None

    def _forget(self, given: bytes) -> None:
        entry = self._entries.pop(given, None)
        if entry is None:
            return
        del self._by_id[entry.login.id]
        name = entry.login.principal.name
        del self._of_one[name][given]
        if not self._of_one[name]:
            del self._of_one[name]

    async def _user(self, token: str, fetcher: Fetcher) -> _User:
        headers = {"Authorization": f"token {token}"}
        answer = await fetcher.get(f"{self._settings.api_url}/user", most=MOST_ANSWER, headers=headers)
        if answer.status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND}:
            raise InvalidToken(
                "This token is known neither to the gateway nor to the Hub", cause="unknown_token"
            )
        if answer.status != HTTPStatus.OK:
            raise IdentityUnavailable(f"{HUB} answered with status {answer.status}")
        try:
            return msgspec.json.decode(answer.body, type=_User)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise IdentityUnavailable(f"{HUB} answered with something that is no user") from error

    def _login(self, user: _User, name: str) -> HubLogin:
        if user.kind != "user":
            raise Forbidden("This is the token of a service of the Hub; the gateway takes those of users")
        if not self._settings.scopes.intersection(user.scopes):
            raise Forbidden(
                "The Hub gives this token no access to this gateway: both its user and the token need the"
                f" scope {' or '.join(sorted(self._settings.scopes))}"
            )
        try:
            login = Login.of(Principal(check_name(user.name), self._role(user)))
        except InvalidInput as error:
            raise Forbidden(f"The Hub's user can't be a principal: {error.message}") from error
        return HubLogin(login.principal, login.permissions, login.reach, name)

    def _role(self, user: _User) -> Role:
        if self._settings.is_spawned:
            return Role.ADMIN if user.name == self._settings.user else Role.USER
        # `admin` describes the user, but their token may be limited, as a notebook server's is.
        return Role.ADMIN if user.admin and ADMIN_SCOPE in user.scopes else Role.USER

    def is_valid(self, login: Login) -> bool | None:
        if not isinstance(login, HubLogin):
            return None
        given = self._by_id.get(login.id)
        if given is None:
            return False
        entry = self._entries[given]
        return entry.login == login and self._monotonic() - entry.asked_at < PATIENCE_SECONDS

    def follow(self, listener: LoginListener) -> None:
        self._tasks.repeat(lambda: self._look(listener), "tokens of the Hub", pause=LOOK_SECONDS)

    async def _look(self, listener: LoginListener) -> float:
        in_use = {login.id for login in listener.open_logins() if isinstance(login, HubLogin)}
        # Each batch may wait for a Hub that hangs: logins that are too old afterwards are dropped.
        asked: set[bytes] = set()
        while batch := self._due(in_use, asked):
            asked.update(given for given, _ in batch)
            # `is_valid` reports the result, whatever it is.
            await asyncio.gather(*(self._ask(token, given) for given, token in batch), return_exceptions=True)
        return LOOK_SECONDS

    def _due(self, in_use: Container[str], asked: Container[bytes]) -> list[tuple[bytes, str]]:
        """Forget the logins that the Hub has not confirmed for too long, and return the next to check."""
        now = self._monotonic()
        due = []
        for given, entry in tuple(self._entries.items()):
            age = now - entry.asked_at
            if age >= PATIENCE_SECONDS:
                self._forget(given)
            elif age >= CHECK_SECONDS and entry.login.id in in_use and given not in asked:
                due.append((given, entry.token))
        return due[:CONNECTIONS]

    async def close(self) -> None:
        await self._tasks.cancel()
        for questions in (self._of_known, self._of_others):
            await questions.fetcher.close()
