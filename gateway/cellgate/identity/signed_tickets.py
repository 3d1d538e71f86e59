"""Tickets and sign-ins of a cluster: signed texts, good at each of its gateways (``tickets`` has one's own).

Nothing is kept of them but what ended early: a ticket that was used, a sign-in that its user ended. That
``SharedSignIns`` notes for all gateways, and the users' store tells each (`is_ended`). Nothing here knows
HTTP or cookies.
"""

from __future__ import annotations

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import msgspec

from cellgate.identity.administrator import Administrator
from cellgate.identity.login_bytes import LoginBytes
from cellgate.identity.principal import Login
from cellgate.identity.store.interface import SignInLedger
from cellgate.identity.text_signer import TextSigner
from cellgate.identity.tickets import MARK, MOST, SIGN_IN_SECONDS, TICKET_SECONDS, Grant
from cellgate.identity.tokens import digest
from cellgate_kernels.base.threads import Lane

TICKET: Final = "ticket"
SIGN_IN: Final = "sign-in"
NONCE_BYTES: Final = 16

G = TypeVar("G", bound=Grant)


class SignInLife(msgspec.Struct, frozen=True, array_like=True):
    """A sign-in without its secret: the digest, and when it expires, in seconds since the epoch."""

    value: bytes
    until: float


class _Body(msgspec.Struct, frozen=True, array_like=True):
    """What a text says. `about`: of the grant; `until`: when it expires, in seconds since the epoch."""

    login: bytes
    about: bytes
    until: float
    nonce: bytes


_decoder = msgspec.msgpack.Decoder(_Body)


@dataclass(slots=True)
class _Read(Generic[G]):
    """What was read from a text, the text's digest, and when it was last used."""

    grant: G
    until: float
    value: bytes
    used: float


@dataclass(frozen=True, slots=True)
class GrantForm(Generic[G]):
    """How grants of one kind are told in a text, besides their logins.

    `thing`: what they are for, in a word. `read` returns None for a grant that can't be understood here.
    """

    thing: str
    write: Callable[[G], bytes]
    read: Callable[[Login, bytes], G | None]


class SharedSignIns:
    """What the gateways of a cluster share: the key, and what ended early. `close` it at the end.

    `is_ended`: whether the store of users says that a sign-in, given by its digest, was ended.
    `administrator`: as of `LoginBytes`.
    """

    def __init__(
        self,
        key: bytes,
        ledger: SignInLedger,
        is_ended: Callable[[bytes], bool],
        *,
        administrator: Administrator | None = None,
    ) -> None:
        self.signer = TextSigner(key)
        self.logins = LoginBytes(administrator)
        self.is_ended = is_ended
        self._ledger = ledger
        self._lane = Lane("sign-ins", 1)

    async def use(self, ticket: str) -> bool:
        """Note that a ticket is used; return whether it was the first time anywhere. Raises StorageError."""
        until = time.time() + TICKET_SECONDS
        return await self._lane.run(self._ledger.use_ticket, digest(ticket), until)

    async def end(self, texts: Iterable[str]) -> None:
        """Have sign-ins ended at all gateways. Raises StorageError."""
        until = time.time() + SIGN_IN_SECONDS
        await self._lane.run(self._ledger.end_sign_ins, [digest(text) for text in texts], until)

    def is_good(self, life: SignInLife) -> bool:
        """Return whether a sign-in is not over."""
        return life.until > time.time() and not self.is_ended(life.value)

    async def close(self) -> None:
        """Disconnect from what is noted."""
        await self._lane.run(self._ledger.close)
        self._lane.close()


class SignedTickets(Generic[G]):
    """The tickets and sign-ins of a cluster, for one thing. `is_valid`: whether a login still is.

    A ticket that was used is good until its time is over, so whoever redeems it asks `SharedSignIns` first.
    """

    def __init__(
        self,
        shared: SharedSignIns,
        form: GrantForm[G],
        is_valid: Callable[[Login], bool],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._shared = shared
        self._form = form
        self._is_valid = is_valid
        self._clock = clock
        self._known: OrderedDict[str, _Read[G]] = OrderedDict()
        """Sign-ins that were read here, the most recently used last: a cache, so each is verified once."""
        self._ended: OrderedDict[bytes, None] = OrderedDict()
        """Digests of those that were ended here: the store says so a moment later."""

    def issue(self, grant: G) -> str:
        """Return a ticket, which works once and not for long."""
        return MARK + self._sign(TICKET, grant, TICKET_SECONDS)

    def peek(self, ticket: str) -> G | None:
        """Return what a ticket grants; None for an invalid or expired one."""
        read = self._read(TICKET, ticket.removeprefix(MARK)) if ticket.startswith(MARK) else None
        return None if read is None else self._good(read.grant)

    def redeem(self, ticket: str) -> tuple[str, G] | None:
        """Return the secret for a browser and its purpose; None if the ticket is not, or no longer, good."""
        grant = self.peek(ticket)
        return None if grant is None else (self.sign_in(grant), grant)

    def sign_in(self, grant: G) -> str:
        """Return the secret for a browser that needs no ticket."""
        return self._sign(SIGN_IN, grant, SIGN_IN_SECONDS)

    def find(self, secret: str) -> G | None:
        """Return what a browser's secret grants; None for one that is invalid, expired or ended."""
        known = self._known.get(secret) or self._read(SIGN_IN, secret)
        if known is None:
            return None
        self._known[secret] = known
        self._known.move_to_end(secret)
        if len(self._known) > MOST:
            self._known.popitem(last=False)
        known.used = self._clock()
        if known.until <= known.used or known.value in self._ended or self._shared.is_ended(known.value):
            return None
        return self._good(known.grant)

    def life(self, secret: str) -> SignInLife | None:
        """Return the life of a sign-in; None for one that is invalid or expired."""
        read = self._read(SIGN_IN, secret)
        return None if read is None else SignInLife(read.value, read.until)

    def end(self, secret: str) -> bool:
        """End a sign-in at this gateway. Returns whether it is one that the store does not have as ended."""
        read = self._read(SIGN_IN, secret)
        if read is None or self._shared.is_ended(read.value):
            return False
        self._ended[read.value] = None
        if len(self._ended) > MOST:
            self._ended.popitem(last=False)
        self._known.pop(secret, None)
        return True

    def in_use(self, seconds: float) -> Iterator[G]:
        """Yield the grants of browsers that have shown their secret here in the last `seconds`."""
        now = self._clock()
        for known in reversed(tuple(self._known.values())):
            if known.used < now - seconds:
                return
            if known.until > now and not self._shared.is_ended(known.value):
                yield known.grant

    def _good(self, grant: G) -> G | None:
        return grant if grant.is_open and self._is_valid(grant.login) else None

    def _sign(self, purpose: str, grant: G, seconds: float) -> str:
        until, nonce = self._clock() + seconds, secrets.token_bytes(NONCE_BYTES)
        body = _Body(self._shared.logins.write(grant.login), self._form.write(grant), until, nonce)
        return self._shared.signer.sign(f"{self._form.thing} {purpose}", msgspec.msgpack.encode(body))

    def _read(self, purpose: str, text: str) -> _Read[G] | None:
        """Return what a text of ours says; None for any other, and one whose time is over."""
        given = self._shared.signer.read(f"{self._form.thing} {purpose}", text)
        if given is None:
            return None
        try:
            body = _decoder.decode(given)
        except msgspec.MsgspecError:
            return None
        login, now = self._shared.logins.read(body.login), self._clock()
        grant = None if login is None else self._form.read(login, body.about)
        if grant is None or body.until <= now:
            return None
        return _Read(grant, body.until, digest(text), now)
