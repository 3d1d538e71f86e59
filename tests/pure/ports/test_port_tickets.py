"""Tickets for ports: once, not for long, no more than there may be, and only while their login is valid."""

from __future__ import annotations

import gc
from dataclasses import replace
from weakref import ref

import pytest

from cellgate.identity.principal import DEFAULT, Login, Principal
from cellgate.identity.tickets import MOST_OF_PRINCIPAL, SIGN_IN_SECONDS, TICKET_SECONDS, Tickets
from cellgate.ports.grants import PortGrant
from cellgate.ports.origin import PortPlace, PortsOrigin, check_port, parse_path, parse_ports_url
from cellgate.ports.table import PortCounts, SessionPorts
from cellgate_kernels.base.errors import InvalidInput


class World:
    """A clock, and logins that end."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ended: set[str] = set()
        self.tickets: Tickets[PortGrant] = Tickets(
            lambda login: login.id not in self.ended, clock=lambda: self.now
        )
        self.ports = SessionPorts(None, PortCounts(), "somebody")  # type: ignore[arg-type]

    def grant(self, login: Login = DEFAULT, port: int = 80) -> PortGrant:
        return PortGrant(login, login.principal.name, "s", port, PortPlace(f"/s/{port}"), ref(self.ports))


@pytest.fixture
def world() -> World:
    return World()


def test_a_ticket_works_once_and_not_for_long(world: World) -> None:
    first, second = (world.tickets.issue(world.grant()) for _ in range(2))
    redeemed = world.tickets.redeem(first)
    assert redeemed is not None
    secret, grant = redeemed
    assert grant == world.grant()
    assert world.tickets.redeem(first) is None
    world.now += TICKET_SECONDS
    assert world.tickets.redeem(second) is None
    # Neither is the other: a secret is no ticket, and a ticket no secret.
    assert world.tickets.redeem(secret) is None
    assert world.tickets.find(second) is None
    assert world.tickets.find(secret) == grant
    world.now += SIGN_IN_SECONDS
    assert world.tickets.find(secret) is None


def test_what_a_browser_asked_for_ends_when_it_signs_out(world: World) -> None:
    signed_in = [True]
    grant = replace(world.grant(), signed_in=lambda: signed_in[0])
    unused = world.tickets.issue(grant)
    redeemed = world.tickets.redeem(world.tickets.issue(grant))
    assert redeemed is not None
    assert world.tickets.find(redeemed[0]) is grant
    signed_in[0] = False
    assert world.tickets.find(redeemed[0]) is None
    assert world.tickets.redeem(unused) is None


def test_what_a_login_opened_ends_with_it(world: World) -> None:
    login = Login.of(Principal("alice"), token="t1")
    redeemed = world.tickets.redeem(world.tickets.issue(world.grant(login)))
    unused = world.tickets.issue(world.grant(login))
    assert redeemed is not None
    world.ended.add("t1")
    assert world.tickets.find(redeemed[0]) is None
    assert world.tickets.redeem(unused) is None


def test_a_new_ticket_looks_at_no_grant_of_others(world: World) -> None:
    """There may be thousands, and everybody waits meanwhile."""
    looked_at: list[str] = []

    def issue(name: str) -> str:
        def signed_in() -> bool:
            looked_at.append(name)
            return True

        grant = world.grant(Login.of(Principal(name), token=name))
        return world.tickets.issue(replace(grant, signed_in=signed_in))

    for number in range(1000):
        issue(f"user-{number}")
    issue("alice")
    looked_at.clear()
    issue("alice")
    assert set(looked_at) == {"alice"}


async def test_what_was_opened_of_a_session_ends_with_it(world: World) -> None:
    redeemed = world.tickets.redeem(world.tickets.issue(world.grant()))
    unused = world.tickets.issue(world.grant())
    assert redeemed is not None
    await world.ports.close()
    assert world.tickets.find(redeemed[0]) is None
    assert world.tickets.redeem(unused) is None


def test_what_was_permitted_keeps_no_session_that_is_over(world: World) -> None:
    """A browser may stay signed in for a day; the session must not stay in memory for that."""
    redeemed = world.tickets.redeem(world.tickets.issue(world.grant()))
    unused = world.tickets.issue(world.grant())
    assert redeemed is not None
    assert world.tickets.find(redeemed[0]) is not None
    gone = ref(world.ports)
    del world.ports
    gc.collect()
    assert gone() is None
    assert world.tickets.find(redeemed[0]) is None
    assert world.tickets.redeem(unused) is None


def test_a_principal_has_so_many_and_takes_nobody_elses_place(world: World) -> None:
    others = world.tickets.issue(world.grant(Login.of(Principal("alice"))))
    mine = [world.tickets.issue(world.grant()) for _ in range(MOST_OF_PRINCIPAL + 1)]
    assert world.tickets.redeem(mine[0]) is None
    assert world.tickets.redeem(mine[1]) is not None
    assert world.tickets.redeem(others) is not None


def test_a_name_is_for_one_port_of_one_session_of_one_owner() -> None:
    origin = parse_ports_url("https://*.ports.example.org:8443/")
    assert origin == PortsOrigin("https", 8443, "ports.example.org", wild=True)
    keys = ["work", "Work", "work.", "work-", "x" * 128, "x" * 127, "_~."]
    places = [origin.place(owner, key, port) for owner in "ab" for key in keys for port in (1, 65535)]
    names = {str(place.host) for place in places}
    assert len(names) == len(places)
    for name in names:
        label = name.removesuffix(".ports.example.org")
        assert len(label) <= 63
        assert label.strip("-") == label
        assert set(label) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
        assert origin.is_name(name)
    assert origin.url(places[0], "ignored").startswith("https://1-work-")


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("http://localhost", "http://localhost/work/80/"),
        ("https://ports.example.org:443", "https://ports.example.org/work/80/"),
        ("http://10.0.0.1:8080/", "http://10.0.0.1:8080/work/80/"),
    ],
)
def test_one_origin_for_all_ports(given: str, url: str) -> None:
    origin = parse_ports_url(given)
    assert origin.url(origin.place("owner", "work", 80), "ignored") == url


def test_by_default_the_name_is_that_of_the_request() -> None:
    origin = PortsOrigin("http", 8889)
    assert origin.url(origin.place("owner", "work", 80), "::1") == "http://[::1]:8889/work/80/"
    assert origin.described("0.0.0.0") == "http://127.0.0.1:8889/"


@pytest.mark.parametrize(
    "given",
    [
        "",
        "ports.example.org",
        "ftp://ports.example.org",
        "http://",
        "http://*",
        "http://*.",
        "http://a*.example.org",
        "http://ports.example.org/path",
        "http://ports.example.org?query",
        "http://user@ports.example.org",
        "http://ports.example.org:99999",
        "http://ports example.org",
    ],
)
def test_what_is_no_origin_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput, match="ports_url must be"):
        parse_ports_url(given)


@pytest.mark.parametrize("given", ["", "0", "65536", "-1", "+1", "1.0", "\u0661", "9" * 5000])
def test_what_is_no_port_is_refused(given: str) -> None:
    with pytest.raises(InvalidInput):
        check_port(given)


@pytest.mark.parametrize(
    "path", ["", "/", "/a", "/a/", "/a/b/", "//a/80/", "/a/80x/", "/a b/80/", "/\\a/80/"]
)
def test_a_path_that_names_no_port(path: str) -> None:
    assert parse_path(path) is None
