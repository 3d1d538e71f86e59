"""Signed tickets, sign-ins and derived tokens: good wherever the key is, and nobody else can make one."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import pytest

from cellgate.console.sign_ins import CONSOLE, ConsoleGrant, SignIns
from cellgate.errors import StorageError
from cellgate.identity.administrator import Administrator
from cellgate.identity.derived import DerivedTokens
from cellgate.identity.hub import HubLogin
from cellgate.identity.jwt import JwtLogin
from cellgate.identity.librechat import LibreChatLogin
from cellgate.identity.login_bytes import LoginBytes
from cellgate.identity.principal import DEFAULT, Login, Permission, Principal, Reach, Role
from cellgate.identity.secrets import SecretKey
from cellgate.identity.signed_tickets import SharedSignIns, SignedTickets
from cellgate.identity.store.interface import SignInLedger
from cellgate.identity.text_signer import MOST_TEXT, TextSigner
from cellgate.identity.tickets import SIGN_IN_SECONDS, TICKET_SECONDS

KEY = b"k" * 32
LOGIN_BYTES = LoginBytes()
ADA = Login.of(Principal("ada"), {Permission.RUN}, reach=Reach("a-"), token="t1", expires=9e9)
LOGINS = [
    DEFAULT,
    ADA,
    Login.of(Principal("a|" + "b" * 126, Role.AUDITOR), reach=Reach("x" * 128, exact=True), token="t2"),
    JwtLogin(ADA.principal, ADA.permissions, ADA.reach, "jwt", 8e9, "key-1"),
    LibreChatLogin(ADA.principal, ADA.permissions, ADA.reach, "lc", 8e9, "key-2"),
    HubLogin(ADA.principal, ADA.permissions, ADA.reach, "hub:1"),
]


class Ledger(SignInLedger):
    """What gateways note, in memory."""

    def __init__(self) -> None:
        self.used: set[bytes] = set()
        self.ended: set[bytes] = set()
        self.writes = 0

    def use_ticket(self, digest: bytes, until: float) -> bool:
        first = digest not in self.used
        self.used.add(digest)
        return first

    def end_sign_ins(self, digests: Collection[bytes], until: float) -> None:
        self.writes += 1
        self.ended.update(digests)

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize("login", LOGINS)
def test_a_login_comes_back_as_it_was(login: Login) -> None:
    back = LOGIN_BYTES.read(LOGIN_BYTES.write(login))
    assert back == login
    assert type(back) is type(login)
    assert (back is DEFAULT) == (login is DEFAULT)


@pytest.mark.parametrize(
    "value", [b"", b"\x00", b"\x90", b"\x93\xa1x\xa1y\xa1z", LOGIN_BYTES.write(ADA)[:-1]]
)
def test_what_is_no_login_is_none(value: bytes) -> None:
    assert LOGIN_BYTES.read(value) is None
    assert LOGIN_BYTES.read(LOGIN_BYTES.write(ADA).replace(b"Login", b"Magic")) is None


async def test_another_token_of_the_administrator_ends_what_was_given_for_the_former_one() -> None:
    ledger, users = Ledger(), LOGINS[1:]
    tokens = [Administrator(token, SecretKey(KEY)) for token in ("former", "now")]
    former, now = (
        SignIns(lambda _: True, shared=SharedSignIns(KEY, ledger, lambda _: False, administrator=each))
        for each in tokens
    )
    secret, ticket = former.sign_in(DEFAULT), former.ticket(DEFAULT)
    assert former.find([secret]) == (secret, DEFAULT)
    assert now.find([secret]) is now.peek(ticket) is await now.redeem(ticket) is None
    one, two = (DerivedTokens(lambda _: True, key=KEY, administrator=each) for each in tokens)
    assert one.login(one.make(DEFAULT, "thing"), "thing") is DEFAULT
    assert two.login(one.make(DEFAULT, "thing"), "thing") is None
    for login in users:
        secret = former.sign_in(login)
        assert now.find([secret]) == (secret, login)
        assert two.login(one.make(login, "thing"), "thing") == login


def test_a_text_is_for_one_purpose_and_one_key() -> None:
    signer = TextSigner(KEY)
    text = signer.sign("one", b"body")
    assert signer.read("one", text) == b"body"
    assert signer.read("two", text) is None
    assert TextSigner(b"other" * 8).read("one", text) is None
    assert signer.read("ne", signer.sign("o", b"ne" + b"body")) is None


def test_no_other_text_is_read() -> None:
    signer = TextSigner(KEY)
    text = signer.sign("one", b"body!")
    encoded, _, proof = text.partition(".")
    changed = [
        text[:place] + ("A" if text[place] != "A" else "B") + text[place + 1 :] for place in range(len(text))
    ]
    wrong = [
        *changed,
        "",
        ".",
        encoded,
        f"{encoded}.",
        f".{proof}",
        f"{text}.",
        f"{text}=",
        f"{encoded}=.{proof}",
    ]
    assert [each for each in wrong if signer.read("one", each) is not None] == []
    assert signer.read("one", "ä" + text) is None
    assert signer.read("one", signer.sign("one", b"x" * MOST_TEXT)) is None


def test_keys_for_other_purposes_say_nothing_of_each_other() -> None:
    key = SecretKey(KEY)
    found = {key.derived("one"), key.derived("two"), KEY, bytes.fromhex(key.mark)}
    assert len(found) == 4
    assert key.derived("one") == SecretKey(KEY).derived("one")


def test_every_login_fits_into_a_cookie() -> None:
    shared = SharedSignIns(KEY, Ledger(), lambda _: False)
    tickets = SignedTickets(shared, CONSOLE, lambda _: True)
    for login in LOGINS:
        secret = tickets.sign_in(ConsoleGrant(login))
        assert len(secret) < MOST_TEXT
        found = tickets.find(secret)
        assert found is not None
        assert found.login == login


class World:
    """Two gateways of a cluster, and logins that end."""

    def __init__(self) -> None:
        self.over: set[str] = set()
        self.ledger = Ledger()
        self.one, self.two = self.gateway(KEY), self.gateway(KEY)

    def gateway(self, key: bytes) -> SignIns:
        shared = SharedSignIns(key, self.ledger, lambda digest: digest in self.ledger.ended)
        return SignIns(lambda login: login.id not in self.over, shared=shared)


async def test_a_sign_in_of_one_gateway_is_good_at_another_until_it_ends_at_either() -> None:
    world = World()
    secret, other = world.one.sign_in(ADA), world.two.sign_in(ADA)
    assert world.two.find([secret]) == world.one.find([secret]) == (secret, ADA)
    assert world.gateway(b"other" * 8).find([secret]) is None
    assert await world.two.end([secret])
    assert not world.one.is_good(secret)
    assert not world.two.is_good(secret)
    assert world.one.is_good(other)
    world.over.add(ADA.id)
    assert not world.one.is_good(other)


async def test_what_has_ended_or_never_was_is_not_ended_again() -> None:
    world = World()
    secret = world.one.sign_in(ADA)
    assert not await world.one.end(
        ["", "unknown", world.one.ticket(ADA), world.gateway(b"x" * 32).sign_in(ADA)]
    )
    assert world.ledger.writes == 0
    assert await world.one.end([secret])
    assert not await world.one.end([secret, secret])
    assert not await world.two.end([secret])
    assert world.ledger.writes == 1


async def test_it_has_ended_here_even_if_others_can_not_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    secret = world.one.sign_in(ADA)

    def away(*_: object) -> None:
        raise StorageError("PostgreSQL is away")

    with monkeypatch.context() as patch:
        patch.setattr(world.ledger, "end_sign_ins", away)
        with pytest.raises(StorageError, match="away"):
            await world.one.end([secret])
    assert not world.one.is_good(secret)
    assert world.two.is_good(secret)
    assert await world.one.end([secret]), "it can be tried again"
    assert not world.two.is_good(secret)


async def test_a_ticket_is_redeemed_once_at_any_gateway() -> None:
    world = World()
    ticket = world.one.ticket(ADA)
    assert world.two.peek(ticket) == ADA
    redeemed = await world.two.redeem(ticket)
    assert redeemed is not None
    assert world.one.find([redeemed[0]]) == (redeemed[0], ADA)
    assert await world.one.redeem(ticket) is None
    assert await world.two.redeem(ticket) is None
    assert world.one.find([ticket]) is None, "a ticket is no sign-in"
    assert await world.one.redeem(redeemed[0]) is None, "nor is a sign-in a ticket"
    assert await world.one.redeem("cgticket-unknown.text") is None
    assert len(world.ledger.used) == 1, "what is none leaves no trace in the database"


def test_times_are_over() -> None:
    now = 1000.0
    shared = SharedSignIns(KEY, Ledger(), lambda _: False)
    tickets = SignedTickets(shared, CONSOLE, lambda _: True, clock=lambda: now)
    ticket, secret, unread = (
        tickets.issue(ConsoleGrant(ADA)),
        tickets.sign_in(ConsoleGrant(ADA)),
        tickets.sign_in(ConsoleGrant(ADA)),
    )
    now += TICKET_SECONDS
    assert tickets.peek(ticket) is None
    assert tickets.find(secret) is not None
    assert [grant.login for grant in tickets.in_use(60.0)] == [ADA]
    now += SIGN_IN_SECONDS - TICKET_SECONDS
    assert tickets.find(secret) is tickets.find(unread) is None
    assert list(tickets.in_use(1e9)) == []


def test_a_derived_token_of_a_cluster_is_good_at_each_gateway() -> None:
    over: set[str] = set()
    one, two = (DerivedTokens(lambda login: login.id not in over, key=KEY) for _ in range(2))
    for login in LOGINS:
        made = one.make(login, "thing")
        assert two.make(login, "thing") == made
        assert len(made) <= 1024
        fresh = DerivedTokens(lambda _: True, key=KEY)
        assert fresh.login(made, "thing") == login
        assert list(fresh.logins_in_use()) == [login]
        assert fresh.login(made, "other") is None
        assert DerivedTokens(lambda _: True, key=b"other" * 8).login(made, "thing") is None
        assert DerivedTokens(lambda _: True).login(made, "thing") is None
    made = one.make(ADA, "thing")
    forged = LOGIN_BYTES.write(replace(ADA, id="t9")).hex() + made[made.index(".") :]
    assert two.login(forged, "thing") is None
    over.add(ADA.id)
    assert two.login(made, "thing") is None
