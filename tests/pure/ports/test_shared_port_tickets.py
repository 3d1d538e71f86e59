"""Tickets for ports in a cluster: signed, good at each gateway, over with the sign-in that asked for them."""

from __future__ import annotations

import time

from cellgate.console.sign_ins import SignIns
from cellgate.identity.principal import Login, Principal
from cellgate.identity.signed_tickets import SharedSignIns
from cellgate.identity.text_signer import MOST_TEXT
from cellgate.identity.tickets import MARK
from cellgate.ports.grants import PortGrant, PortTickets, SharedPorts
from cellgate.ports.origin import PortPlace, PortsOrigin
from cellgate.ports.table import PortCounts, SessionPorts
from tests.pure.identity.test_text_signer import KEY, LOGINS, Ledger

ADA = Login.of(Principal("ada"), token="t1")


class World:
    """Two gateways: `one` has the session, `other` does not."""

    def __init__(self, key: bytes = KEY) -> None:
        self.ledger = Ledger()
        self.over: set[str] = set()
        self.live: SessionPorts | None = SessionPorts(None, PortCounts(), "ada")  # type: ignore[arg-type]
        self.shared = SharedSignIns(key, self.ledger, self.ledger.ended.__contains__)
        self.sign_ins = SignIns(self._is_valid, shared=self.shared)
        place = PortsOrigin("http", 80).place
        self.one = PortTickets(self._is_valid, SharedPorts(self.shared, place, lambda *_: self.live))
        self.other = PortTickets(self._is_valid, SharedPorts(self.shared, place, lambda *_: None))

    def _is_valid(self, login: Login) -> bool:
        return login.id not in self.over

    def grant(self, login: Login = ADA, secret: str | None = None) -> PortGrant:
        life = None if secret is None else self.sign_ins.life(secret)
        return PortGrant(login, "ada", "s", 80, PortPlace("/s/80"), lambda: self.live, None, life)


async def test_a_ticket_is_redeemed_once_and_its_cookie_is_good_at_each_gateway() -> None:
    world = World()
    ticket = world.one.issue(world.grant())
    assert ticket.startswith(MARK)
    redeemed = await world.other.redeem(ticket)
    assert redeemed is not None
    assert await world.one.redeem(ticket) is await world.other.redeem(ticket) is None
    secret, _ = redeemed
    for gateway, ports in ((world.one, world.live), (world.other, None)):
        grant = gateway.find(secret)
        assert grant is not None
        assert (grant.login, grant.owner, grant.session, grant.port) == (ADA, "ada", "s", 80)
        assert (grant.place, grant.open_ports) == (PortPlace("/s/80"), ports)
    assert world.one.find(ticket) is None, "a ticket is no cookie"
    assert await world.one.redeem(secret) is None, "nor is a cookie a ticket"
    assert World(b"other" * 8).one.find(secret) is None
    assert world.sign_ins.find([secret]) is None, "it is good for no console"
    assert world.one.find(world.sign_ins.sign_in(ADA)) is None, "nor is the console's for a port"


async def test_it_ends_with_its_login_and_with_the_browsers_sign_in() -> None:
    world = World()
    signed_in, other = world.sign_ins.sign_in(ADA), world.sign_ins.sign_in(ADA)
    redeemed = await world.one.redeem(world.one.issue(world.grant(secret=signed_in)))
    assert redeemed is not None
    assert await world.sign_ins.end([other])
    assert world.other.find(redeemed[0]) is not None
    assert await world.sign_ins.end([signed_in])
    assert world.one.find(redeemed[0]) is world.other.find(redeemed[0]) is None
    ticket = world.one.issue(world.grant())
    world.over.add("t1")
    assert await world.other.redeem(ticket) is None


async def test_it_is_over_when_the_sign_in_would_be() -> None:
    world = World()
    life = world.sign_ins.life(world.sign_ins.sign_in(ADA))
    assert life is not None
    assert world.shared.is_good(life)
    assert not world.shared.is_good(type(life)(life.value, time.time()))
    assert SignIns(lambda _: True).life("any") is None, "without a cluster it is known here"


def test_a_grant_fits_into_a_cookie() -> None:
    world = World()
    for login in LOGINS:
        place = PortPlace(host="h" * 253)
        life = world.sign_ins.life(world.sign_ins.sign_in(login))
        grant = PortGrant(login, "a" * 128, "s" * 128, 65535, place, lambda: None, None, life)
        assert len(world.one.issue(grant)) < MOST_TEXT
