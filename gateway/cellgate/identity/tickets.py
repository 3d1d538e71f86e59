"""How a browser is let in without a token: a ticket, which works once, then a secret, kept in a cookie.

A ticket is asked for with a token, and stands for a grant: the login of that token, and what it was asked
for. Ticket and secret are worth something only while that login is valid and the grant is open. Kept in
memory: a restart of the gateway is the end of all of them. What a grant is for is the business of ``ports``
and ``console``; nothing here knows HTTP or cookies.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from cellgate.identity.principal import Login

TICKET_SECONDS: Final = 60.0
SIGN_IN_SECONDS: Final = 24 * 3600.0
MOST_OF_PRINCIPAL: Final = 256
"""Tickets, and as many sign-ins, of one principal; a new one takes the place of an old one.

Of the login that has most: a token for one session can't have its owner signed out.
"""
MOST: Final = 16_384
MARK: Final = "cgticket-"
"""Tickets begin with this, so that a program's own parameter of this name is not taken for one."""


class Grant(Protocol):
    """What was permitted to whom."""

    @property
    def login(self) -> Login:
        """The login that it was permitted to."""

    @property
    def is_open(self) -> bool:
        """Whether there still is what it is for."""


G = TypeVar("G", bound=Grant)


@dataclass(slots=True)
class _Entry(Generic[G]):
    """A grant, when it is over, and when it was last used."""

    grant: G
    until: float
    used: float


class _Kept(Generic[G]):
    """Grants by their secrets, for so many seconds; the oldest first."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._clock = clock
        self._entries: OrderedDict[str, _Entry[G]] = OrderedDict()
        self._owned: dict[str, dict[str, str]] = {}
        """The secrets of each principal, the oldest first, and the ids of the logins that they are for."""

    def put(self, secret: str, grant: G) -> None:
        now = self._clock()
        while self._entries and next(iter(self._entries.values())).until <= now:
            self._remove(next(iter(self._entries)))
        name = grant.login.principal.name
        for each in tuple(self._owned.get(name, ())):
            if not self._entries[each].grant.is_open:
                self._remove(each)
        own = self._owned.get(name, {})
        if len(own) >= MOST_OF_PRINCIPAL:
            ((largest, _),) = Counter(own.values()).most_common(1)
            self._remove(next(each for each, login in own.items() if login == largest))
        if len(self._entries) >= MOST:
            self._remove(next(iter(self._entries)))
        self._entries[secret] = _Entry(grant, now + self._seconds, now)
        self._owned.setdefault(name, {})[secret] = grant.login.id

    def _remove(self, secret: str) -> None:
        name = self._entries.pop(secret).grant.login.principal.name
        own = self._owned[name]
        del own[secret]
        if not own:
            del self._owned[name]

    def find(self, secret: str) -> G | None:
        entry = self._entries.get(secret)
        now = self._clock()
        if entry is None or entry.until <= now:
            return None
        entry.used = now
        return entry.grant

    def take(self, secret: str) -> G | None:
        grant = self.find(secret)
        if secret in self._entries:
            self._remove(secret)
        return grant

    def used_since(self, seconds: float) -> Iterator[G]:
        now = self._clock()
        for entry in self._entries.values():
            if entry.until > now and entry.used >= now - seconds:
                yield entry.grant


class Tickets(Generic[G]):
    """All tickets of one kind, and all sign-ins that came of them. `is_valid`: whether a login still is."""

    def __init__(
        self, is_valid: Callable[[Login], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._is_valid = is_valid
        self._tickets: _Kept[G] = _Kept(TICKET_SECONDS, clock)
        self._sign_ins: _Kept[G] = _Kept(SIGN_IN_SECONDS, clock)

    def issue(self, grant: G) -> str:
        """Return a ticket, which works once and not for long."""
        ticket = MARK + secrets.token_urlsafe(32)
        self._tickets.put(ticket, grant)
        return ticket

    def peek(self, ticket: str) -> G | None:
        """Return what a ticket grants without using it up; None for an unknown or expired one."""
        return self._good(self._tickets.find(ticket))

    def redeem(self, ticket: str) -> tuple[str, G] | None:
        """Return the secret for a browser and its purpose; None if the ticket is not, or no longer, good."""
        grant = self._good(self._tickets.take(ticket))
        return None if grant is None else (self.sign_in(grant), grant)

    def sign_in(self, grant: G) -> str:
        """Return the secret for a browser that needs no ticket."""
        secret = secrets.token_urlsafe(32)
        self._sign_ins.put(secret, grant)
        return secret

    def find(self, secret: str) -> G | None:
        """Return what a browser's secret grants; None for an unknown or expired one."""
        return self._good(self._sign_ins.find(secret))

    def end(self, secret: str) -> bool:
        """End a sign-in. Returns whether there was one."""
        return self._sign_ins.take(secret) is not None

    def in_use(self, seconds: float) -> Iterator[G]:
        """Yield the grants of browsers that have shown their secret in the last `seconds`."""
        return self._sign_ins.used_since(seconds)

    def _good(self, grant: G | None) -> G | None:
        if grant is None or not grant.is_open or not self._is_valid(grant.login):
            return None
        return grant
