"""The sign-ins to the console: by a ticket, or by a token entered in the page's form.

A sign-in lasts as long as its login, at most a day, or until its user signs out. The connections that it
opened end with it; the callback given to `follow` closes them. ``identity.tickets`` keeps the sign-ins or,
in a cluster, ``identity.signed_tickets`` makes them good at each of its gateways; ``http`` has the cookies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from cellgate.identity.principal import Login
from cellgate.identity.signed_tickets import GrantForm, SharedSignIns, SignedTickets, SignInLife
from cellgate.identity.tickets import Tickets
from cellgate_kernels.base.tasks import Supervisor

LOOK_SECONDS: Final = 15.0
"""The seconds between two checks for expired sign-ins."""
IN_USE_SECONDS: Final = 600.0
"""The seconds after its last request for which a sign-in counts as in use."""


@dataclass(frozen=True, slots=True)
class ConsoleGrant:
    """A grant of all permissions of `login`."""

    login: Login

    @property
    def is_open(self) -> bool:
        """Whether the grant is open: always, as the console exists as long as the gateway."""
        return True


CONSOLE: Final[GrantForm[ConsoleGrant]] = GrantForm(
    "console", lambda _: b"", lambda login, _: ConsoleGrant(login)
)


class SignIns:
    """All sign-ins. `is_valid`: whether a login still is. Call `follow` once, `close` at the end.

    `shared`: what the gateways of a cluster share; without it the sign-ins are this gateway's own.
    """

    def __init__(
        self,
        is_valid: Callable[[Login], bool],
        *,
        shared: SharedSignIns | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.shared = shared
        self._kept: Tickets[ConsoleGrant] | SignedTickets[ConsoleGrant] = (
            Tickets(is_valid, clock=clock) if shared is None else SignedTickets(shared, CONSOLE, is_valid)
        )
        self._ended: Callable[[], None] | None = None
        self._tasks = Supervisor()

    def ticket(self, login: Login) -> str:
        """Return a ticket that signs in as `login` once, and soon expires."""
        return self._kept.issue(ConsoleGrant(login))

    def peek(self, ticket: str) -> Login | None:
        """Return the login that a ticket would give, without redeeming it; None for an invalid ticket."""
        grant = self._kept.peek(ticket)
        return None if grant is None else grant.login

    async def redeem(self, ticket: str) -> tuple[str, Login] | None:
        """Return the secret for a browser and its login; None for an invalid ticket. Raises StorageError."""
        if self.shared is not None and (self.peek(ticket) is None or not await self.shared.use(ticket)):
            return None
        redeemed = self._kept.redeem(ticket)
        return None if redeemed is None else (redeemed[0], redeemed[1].login)

    def sign_in(self, login: Login) -> str:
        """Return the secret for a browser whose user has shown a token."""
        return self._kept.sign_in(ConsoleGrant(login))

    def find(self, secrets: Iterable[str]) -> tuple[str, Login] | None:
        """Return the valid secret among these, and its login; None without one.

        Also None if they are of different logins: then somebody has added their own, to have the user act in
        their name.
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

    def life(self, secret: str) -> SignInLife | None:
        """Return how long a sign-in lasts, for other gateways of a cluster; None without one."""
        return self._kept.life(secret) if isinstance(self._kept, SignedTickets) else None

    async def end(self, secrets: Iterable[str]) -> bool:
        """End these sign-ins; return whether there were any, whose connections are then to be closed.

        They have ended here even if this raises StorageError: then other gateways do not know of it.
        """
        ended = [secret for secret in secrets if self._kept.end(secret)]
        if ended and self.shared is not None:
            await self.shared.end(ended)
        return bool(ended)

    def close_connections(self) -> None:
        """Close the connections that sign-ins have opened which are over."""
        if self._ended is not None:
            self._ended()

    def logins_in_use(self) -> Iterator[Login]:
        """Return the logins of sign-ins in use, though no connection may be open at the moment."""
        return (grant.login for grant in self._kept.in_use(IN_USE_SECONDS))

    def follow(self, ended: Callable[[], None]) -> None:
        """Call `ended`, which closes connections and must not raise, whenever a sign-in ends from now on."""
        self._ended = ended
        self._tasks.repeat(self._look, "sign-ins", pause=LOOK_SECONDS)

    async def _look(self) -> float:
        self.close_connections()
        return LOOK_SECONDS

    async def close(self) -> None:
        """Stop removing expired sign-ins."""
        await self._tasks.cancel()
