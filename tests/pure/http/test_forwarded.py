"""What a proxy says of its client: believed as far as trusted proxies said it, and no further."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellgate.http.listener.forwarded import MOST_HOPS, Forwarded, TrustedProxies, parse_proxies
from cellgate_kernels.base.errors import InvalidInput

PROXY = "10.0.0.1"
PROXIES = parse_proxies(["10.0.0.0/8, 192.0.2.7", "fd00::/8"])


def client(forwarded_for: str) -> str:
    return PROXIES.read(PROXY, {"X-Forwarded-For": forwarded_for}).address


@pytest.mark.parametrize(
    ("address", "trusted"),
    [
        ("10.1.2.3", True),
        ("192.0.2.7", True),
        ("192.0.2.8", False),
        ("fd00::1", True),
        ("fd00::1%eth0", True),
        ("fe80::1", False),
        ("::ffff:10.1.2.3", True),
        ("::ffff:11.1.2.3", False),
        ("", False),
        ("localhost", False),
    ],
)
def test_addresses_and_networks_are_trusted(address: str, trusted: bool) -> None:
    assert PROXIES.trusts(address) is trusted
    assert not TrustedProxies().trusts(address)


@pytest.mark.parametrize(
    "text", ["10.0.0.1/8", "example.org", "10.0.0", "*", "10.0.0.0/33", "10.0.0.0/8;::1"]
)
def test_anything_else_is_refused_by_name(text: str) -> None:
    with pytest.raises(InvalidInput, match="trusted_proxies"):
        parse_proxies(["::1", text])


def test_nothing_given_is_nobody_trusted() -> None:
    assert parse_proxies(["", " , "]) == TrustedProxies()


@pytest.mark.parametrize(
    ("forwarded_for", "address"),
    [
        ("198.51.100.1", "198.51.100.1"),
        ("198.51.100.1, 10.0.0.9, 192.0.2.7", "198.51.100.1"),
        ("198.51.100.1,10.0.0.9", "198.51.100.1"),
        ("10.0.0.8, 10.0.0.9", "10.0.0.8"),
        # Whatever stands left of the nearest untrusted address was said by that one.
        ("127.0.0.1, 198.51.100.1", "198.51.100.1"),
        ("10.0.0.5, 198.51.100.1, 10.0.0.9", "198.51.100.1"),
        ("2001:db8::1", "2001:db8::1"),
        ("[2001:db8::1]:443", "2001:db8::1"),
        ("2001:DB8:0:0::1", "2001:db8::1"),
        ("fe80::1%eth0", "fe80::1"),
        ("198.51.100.1:4711", "198.51.100.1"),
        ("::ffff:198.51.100.1", "198.51.100.1"),
        ("", PROXY),
        (",,,", PROXY),
        ("unknown", PROXY),
        ("198.51.100.1, _hidden", PROXY),
        ("198.51.100.1, nonsense, 10.0.0.9", "10.0.0.9"),
        ("198.51.100.1 198.51.100.2", PROXY),
        ("198.51.100.01", PROXY),
        ("1" * 10_000, PROXY),
    ],
)
def test_the_nearest_untrusted_address_is_the_client_s(forwarded_for: str, address: str) -> None:
    assert client(forwarded_for) == address


def test_a_giant_list_is_read_from_its_end_only() -> None:
    many = "198.51.100.1," * 5000
    assert client(f"{many}203.0.113.9") == "203.0.113.9"
    trusted = ",".join(f"10.0.{n // 250}.{n % 250}" for n in range(1000))
    assert client(f"198.51.100.1,{trusted}") == trusted.split(",")[-MOST_HOPS]


@pytest.mark.parametrize(
    ("headers", "scheme", "host"),
    [
        ({}, None, None),
        ({"X-Forwarded-Proto": "https"}, "https", None),
        ({"X-Forwarded-Proto": "HTTP"}, "http", None),
        ({"X-Forwarded-Proto": "wss"}, "https", None),
        ({"X-Forwarded-Proto": "https, http"}, "http", None),
        ({"X-Forwarded-Proto": "javascript"}, None, None),
        ({"X-Forwarded-Host": "gate.example.org"}, None, "gate.example.org"),
        ({"X-Forwarded-Host": "gate.example.org:8443"}, None, "gate.example.org:8443"),
        ({"X-Forwarded-Host": "[::1]:80"}, None, "[::1]:80"),
        ({"X-Forwarded-Host": "localhost, gate.example.org"}, None, "gate.example.org"),
        ({"X-Forwarded-Host": "gate.example.org/x"}, None, None),
        ({"X-Forwarded-Host": "user@gate.example.org"}, None, None),
        ({"X-Forwarded-Host": "a" * 300}, None, None),
        ({"X-Forwarded-Host": "a\tb"}, None, None),
        ({"X-Forwarded-Host": ""}, None, None),
    ],
)
def test_scheme_and_host_are_checked(headers: dict[str, str], scheme: str | None, host: str | None) -> None:
    assert PROXIES.read(PROXY, headers) == Forwarded(PROXY, scheme, host)


@pytest.mark.parametrize(
    ("value", "scheme"),
    [
        ("https", "https"),
        ("https,http", "https"),
        ("https, http", "https"),
        ("http,http", "http"),
        ("x,https", None),
    ],
)
def test_a_hubs_proxy_adds_its_own_scheme(value: str, scheme: str | None) -> None:
    hub = replace(PROXIES, of_hub=True)
    assert hub.read(PROXY, {"X-Forwarded-Proto": value}).scheme == scheme
    assert hub.read(PROXY, {"X-Scheme": value, "X-Forwarded-Proto": "http"}).scheme == scheme


def test_a_hubs_proxy_passes_on_what_its_client_says_of_the_host() -> None:
    hub = replace(PROXIES, of_hub=True)
    assert hub.read(PROXY, {"X-Forwarded-Host": "evil.example"}).host is None


def test_whoever_connects_may_be_a_hubs_proxy_but_nobody_before_it() -> None:
    anybody = TrustedProxies(of_hub=True, anybody=True)
    assert anybody.trusts("203.0.113.7")
    assert anybody.read("203.0.113.7", {"X-Forwarded-For": "6.6.6.6, 198.51.100.1"}).address == "198.51.100.1"


@given(st.text(max_size=200), st.text(max_size=50), st.text(max_size=300))
def test_no_text_is_an_error(forwarded_for: str, scheme: str, host: str) -> None:
    headers = {"X-Forwarded-For": forwarded_for, "X-Forwarded-Proto": scheme, "X-Forwarded-Host": host}
    forwarded = PROXIES.read(PROXY, headers)
    assert forwarded.scheme in {None, "http", "https"}
    assert len(forwarded.host or "") <= 261
