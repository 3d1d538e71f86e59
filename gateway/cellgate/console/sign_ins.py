"""Who is signed in to the console: by a ticket, or by a token that the page's form was given.

A sign-in is worth what its login is worth: it ends when that does, after a day, or when its user signs out.
The connections that it opened end with it; whoever closes them is told by `follow`. ``principals.tickets``
keeps the sign-ins, ``http`` has the cookies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cellgate.identity.principal import Login
from cellgate.identity.tickets import Tickets
from cellgate_kernels.base.tasks import Supervisor

LOOK_SECONDS: Final = 15.0
"""Between two looks for sign-ins that are over by the clock."""
IN_USE_SECONDS: Final = 600.0
"""How long after its last request a sign-in counts as one in use."""


@dataclass(frozen=True, slots=True)
class ConsoleGrant:
    """What was permitted: all that `login` may do."""

    login: Login

    @property
    def is_open(self) -> bool:
        """Always: there is a console as long as there is a gateway."""
        return True


class SignIns:
    """All sign-ins. `is_valid`: whether a login still is. `follow` once, `close` at the end."""

    def __init__(
        self, is_valid: Callable[[Login], bool], *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._kept: Tickets[ConsoleGrant] = Tickets(is_valid, clock=clock)
        self._ended: Callable[[], None] | None = None
        self._tasks = Supervisor()

    def ticket(self, login: Login) -> str:
        """Return a ticket, which signs in as `login` once and not for long."""
        return self._kept.issue(ConsoleGrant(login))

    def peek(self, ticket: str) -> Login | None:
        """Whom a ticket would sign in; it can still be redeemed. None for one that is not good."""
        grant = self._kept.peek(ticket)
        return None if grant is None else grant.login

    def redeem(self, ticket: str) -> tuple[str, Login] | None:
        """Return the secret for a browser and its login; None for a ticket that is not good."""
        redeemed = self._kept.redeem(ticket)
        return None if redeemed is None else (redeemed[0], redeemed[1].login)

    def sign_in(self, login: Login) -> str:
        """Return the secret for a browser whose user has shown a token."""
        return self._kept.sign_in(ConsoleGrant(login))

    def find(self, secrets: Iterable[str]) -> tuple[str, Login] | None:
        """Return a secret of these that is good, and its login; None if there is none.

        Also None if they are of different logins: somebody has added theirs, so that what the user does would
        happen in their name.
        """
        found = [
            (secret, grant.login) for secret in secrets if (grant := self._kept.find(secret)) is not None
        ]
        if not found or any(login != found[0][1] for _, login in found):
            return None
        return found[0]

    def is_good(self, secret: str) -> bool:
        """Return whether a secret is of a sign-in that is not over."""
        return self._kept.find(secret) is not None

    def sign_out(self, secrets: Iterable[str]) -> None:
        """End these sign-ins, and the connections that they opened."""
        ended = [secret for secret in secrets if self._kept.end(secret)]
        if ended and self._ended is not None:
            self._ended()

    def logins_in_use(self) -> Iterator[Login]:
        """Return the logins of sign-ins in use, though no connection may be open at the moment."""
        return (grant.login for grant in self._kept.in_use(IN_USE_SECONDS))

    def follow(self, ended: Callable[[], None]) -> None:
        """Call `ended`, which closes connections and must not raise, whenever a sign-in ends from now on."""
        self._ended = ended
        self._tasks.repeat(self._look, "sign-ins", pause=LOOK_SECONDS)

    async def _look(self) -> float:
        if self._ended is not None:
            self._ended()
        return LOOK_SECONDS

    async def close(self) -> None:
        """Stop removing sign-ins that have run out."""
        await self._tasks.cancel()
