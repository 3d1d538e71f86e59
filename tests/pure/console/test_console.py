"""The console's cookie and sign-ins, and whose requests the cookie counts for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cellgate.console.cookies import MOST_LENGTH, CookiePlace, Purpose
from cellgate.console.sign_ins import IN_USE_SECONDS, SignIns
from cellgate.http.access import is_own_page
from cellgate.http.console import frame_policy, page_policy
from cellgate.identity.principal import DEFAULT, Login, Principal
from cellgate.identity.tickets import MOST_OF_PRINCIPAL, SIGN_IN_SECONDS, TICKET_SECONDS
from cellgate.ports.headers import Passing, answer_fields, request_fields

ALICE = Login.of(Principal("alice"), token="a1")
BOB = Login.of(Principal("bob"), token="b1")

PLACES = [
    (CookiePlace("localhost:8888", secure=False), "cellgate-console-8888", "/"),
    (CookiePlace("[::1]:8888", secure=False), "cellgate-console-8888", "/"),
    (CookiePlace("example.org", secure=False, base_url="/cellgate"), "cellgate-console", "/cellgate/"),
    (CookiePlace("example.org", secure=True), "__Host-cellgate-console", "/"),
    (CookiePlace("example.org:8443", secure=True), "__Host-cellgate-console-8443", "/"),
    (CookiePlace("example.org", secure=True, base_url="/a/b"), "__Secure-cellgate-console", "/a/b/"),
    (CookiePlace("example.org", secure=True, base_url="/a/b;c/d"), "__Secure-cellgate-console", "/a"),
    (CookiePlace("example.org", secure=True, base_url="/b;c"), "__Host-cellgate-console", "/"),
    (CookiePlace("example.org:port", secure=False), "cellgate-console", "/"),
]


@pytest.mark.parametrize(("place", "name", "path"), PLACES)
def test_a_cookie_is_for_one_gateway_and_its_paths(place: CookiePlace, name: str, path: str) -> None:
    secure = "; Secure" if place.secure else ""
    kept = f"{name}=s; Path={path}; HttpOnly; SameSite=Strict{secure}"
    assert place.field("s") == kept
    assert place.field("") == f"{name}=; Path={path}; HttpOnly; SameSite=Strict{secure}; Max-Age=0"
    assert place.secrets([kept]) == ["s"]


def test_by_tls_no_other_host_sets_the_cookie_of_who_asks_a_provider() -> None:
    place = CookiePlace("example.org", secure=True, base_url="/a", purpose=Purpose.ASKING)
    assert place.name.startswith("__Host-cellgate-sign-in-")
    assert place.field("s").startswith(f"{place.name}=s; Path=/; HttpOnly; SameSite=Lax; Secure")
    # Gateways below other paths of the host get it, too, and have others.
    assert replace(place, base_url="/b").name != place.name
    assert replace(place, base_url="").name == "__Host-cellgate-sign-in"


@pytest.mark.parametrize("place", [place for place, _, _ in PLACES])
def test_no_program_at_a_port_gets_it_or_sets_it(place: CookiePlace) -> None:
    passing = Passing("http", "localhost:8890", "/s/80", is_ours=lambda _: False)
    sent = request_fields([("Cookie", f"a=1; {place.name}=secret; b=2")], passing)
    assert ("Cookie", "a=1; b=2") in sent
    assert answer_fields([("Set-Cookie", place.field("planted"))], passing) == []


def test_cookies_of_other_names_and_sizes_are_none() -> None:
    place = CookiePlace("localhost:1", secure=False)
    name = place.name
    other = [
        f"{name}x=1",
        f"x{name}=1",
        name,
        f"{name}=",
        f"{name}={'x' * (MOST_LENGTH + 1)}",
        "=1",
        ";;",
        "",
    ]
    assert place.secrets([f"__Host-{name}=1", f"{name.upper()}=1", "; ".join(other)]) == []
    assert place.secrets([f"a=b; {name}=1 ;{name}=2", f"{name}=1;{name}=a=b"]) == ["1", "2"]
    many = [f"{name}={number}" for number in range(1000)]
    assert place.secrets(["; ".join(many)]) == list(map(str, range(1000))), "others can hide none"


class World:
    """A clock, and logins that end."""

    def __init__(self) -> None:
        self.now = 0.0
        self.over: set[str] = set()
        self.sign_ins = SignIns(lambda login: login.id not in self.over, clock=lambda: self.now)

    async def entered(self, login: Login) -> str:
        """The secret of somebody who has opened a ticket."""
        redeemed = await self.sign_ins.redeem(self.sign_ins.ticket(login))
        assert redeemed is not None
        assert redeemed[1] is login
        return redeemed[0]


@pytest.fixture
def world() -> World:
    return World()


async def test_a_sign_in_is_over_after_a_day_or_with_its_login_or_when_its_user_signs_out(
    world: World,
) -> None:
    first, second, third = (
        await world.entered(ALICE),
        await world.entered(BOB),
        world.sign_ins.sign_in(DEFAULT),
    )
    ticket = world.sign_ins.ticket(ALICE)
    assert world.sign_ins.find([first]) == (first, ALICE)
    world.over.add(ALICE.id)
    assert world.sign_ins.find([first]) is None
    assert await world.sign_ins.redeem(ticket) is None
    await world.sign_ins.end([third, "unknown"])
    assert world.sign_ins.find([third]) is None
    world.now += SIGN_IN_SECONDS - 1
    assert world.sign_ins.is_good(second)
    world.now += 1
    assert not world.sign_ins.is_good(second)


async def test_a_ticket_works_once_and_for_a_minute(world: World) -> None:
    tickets = [world.sign_ins.ticket(ALICE) for _ in range(2)]
    redeemed = await world.sign_ins.redeem(tickets[0])
    assert redeemed is not None
    assert await world.sign_ins.redeem(tickets[0]) is None
    assert world.sign_ins.find(tickets) is None
    assert await world.sign_ins.redeem(redeemed[0]) is None
    world.now += TICKET_SECONDS
    assert await world.sign_ins.redeem(tickets[1]) is None


async def test_one_token_signs_none_out_that_others_have_signed_in(world: World) -> None:
    owner = await world.entered(ALICE)
    narrow = replace(ALICE, id="narrow")
    secrets = [await world.entered(narrow) for _ in range(MOST_OF_PRINCIPAL + 1)]
    assert world.sign_ins.is_good(owner)
    assert [world.sign_ins.is_good(each) for each in secrets[:3]] == [False, False, True]


async def test_nobody_acts_in_the_name_of_who_adds_a_cookie(world: World) -> None:
    """A neighbouring host can add one of its own: then it is not clear whose the request is."""
    alices, bobs = await world.entered(ALICE), await world.entered(BOB)
    assert world.sign_ins.find([bobs, alices]) is None
    assert world.sign_ins.find([alices, "unknown"]) == (alices, ALICE)
    assert world.sign_ins.find([alices, await world.entered(ALICE)]) == (alices, ALICE)
    await world.sign_ins.end([bobs])
    assert world.sign_ins.find([bobs, alices]) == (alices, ALICE)


async def test_who_has_signed_out_has_no_connections(world: World) -> None:
    told: list[str] = []
    secret = await world.entered(ALICE)
    world.sign_ins.follow(lambda: told.append("ended"))
    assert not await world.sign_ins.end(["unknown"])
    assert await world.sign_ins.end([secret])
    assert told == []
    world.sign_ins.close_connections()
    assert told == ["ended"]
    await world.sign_ins.close()


async def test_a_sign_in_is_in_use_while_it_asks(world: World) -> None:
    secret = await world.entered(ALICE)
    world.now += IN_USE_SECONDS
    assert list(world.sign_ins.logins_in_use()) == [ALICE]
    assert world.sign_ins.is_good(secret)
    world.now += IN_USE_SECONDS
    assert list(world.sign_ins.logins_in_use()) == [ALICE]
    world.now += 1
    assert list(world.sign_ins.logins_in_use()) == []


HOST = {"Host": "localhost:8888"}
OWN = "http://localhost:8888"


@pytest.mark.parametrize(
    ("headers", "reads", "writes"),
    [
        ({"Sec-Fetch-Site": "same-origin"}, True, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": OWN}, True, True),
        ({"Sec-Fetch-Site": "same-origin", "Referer": "http://elsewhere/"}, True, True),
        ({"Origin": OWN}, True, True),
        ({"Origin": "http://LOCALHOST:8888"}, True, True),
        ({"Referer": f"{OWN}/"}, True, False),
        ({"Referer": f"{OWN}/#/sessions/s"}, True, False),
        ({}, False, False),
        ({"Sec-Fetch-Site": "none"}, False, False),
        ({"Sec-Fetch-Site": "same-site"}, False, False),
        ({"Sec-Fetch-Site": "same-site", "Origin": OWN, "Referer": OWN}, False, False),
        ({"Sec-Fetch-Site": "cross-site", "Referer": OWN}, False, False),
        ({"Sec-Fetch-Site": "same-origin,same-site"}, False, False),
        ({"Sec-Fetch-Site": ""}, False, False),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "null"}, False, False),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://localhost:8890"}, False, False),
        ({"Origin": "http://localhost"}, False, False),
        ({"Origin": "http://localhost:8888.evil.example"}, False, False),
        ({"Origin": "http://localhost:8888@evil.example"}, False, False),
        ({"Origin": "http://[::1"}, False, False),
        ({"Referer": "http://localhost:8890/"}, False, False),
        ({"Referer": "http://evil.example/localhost:8888"}, False, False),
        ({"Referer": "/"}, False, False),
        ({"Host": "", "Origin": "null"}, False, False),
        ({"Host": "", "Referer": "/"}, False, False),
    ],
)
def test_a_cookie_counts_for_our_own_page_alone(headers: dict[str, str], reads: bool, writes: bool) -> None:
    assert is_own_page(HOST | headers, "http", reads=True) is reads
    assert is_own_page(HOST | headers, "http", reads=False) is writes


def test_a_page_without_tls_is_none_of_a_gateway_with_it() -> None:
    for field in ("Origin", "Referer"):
        assert not is_own_page(HOST | {field: OWN}, "https", reads=True)
        assert is_own_page(HOST | {field: OWN.replace("http", "https")}, "https", reads=True)


def test_policies_name_no_source_but_our_files() -> None:
    files = "http://localhost:8888/console/"
    for policy in (page_policy(files), frame_policy(files)):
        directives = dict(part.strip().partition(" ")[::2] for part in policy.split(";"))
        assert directives["default-src"] == "'none'"
        assert directives["base-uri"] == "'none'"
        sources = {
            word for name, words in directives.items() if name.endswith("-src") for word in words.split()
        }
        known = {"'self'", "'none'", "blob:", "data:", "'unsafe-inline'", "'unsafe-eval'", files}
        assert sources <= known
    page = page_policy(files)
    assert "unsafe" not in page
    assert f"script-src {files};" in page
    assert "sandbox allow-scripts;" in frame_policy(files)
    assert "allow-same-origin" not in frame_policy(files)
