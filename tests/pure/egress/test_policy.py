"""What sessions may reach: hosts, and the addresses that are never reached, as tables of hostile ones."""

from __future__ import annotations

from ipaddress import ip_address

import pytest

from cellgate.egress.policy import EgressPolicy, canonical_host, split_authority
from cellgate.identity.host_patterns import parse_host_pattern


def policy(*patterns: str, allow_private: bool = False) -> EgressPolicy:
    """A policy of these patterns."""
    return EgressPolicy(tuple(map(parse_host_pattern, patterns)), allow_private)


@pytest.mark.parametrize(
    ("host", "port", "allowed"),
    [
        ("pypi.org", 443, True),
        ("pypi.org", 80, False),
        ("files.pypi.org", 443, False),
        ("a.example.org", 443, True),
        ("a.b.example.org", 443, True),
        ("example.org", 443, False),
        ("badexample.org", 443, False),
        ("example.org.evil.net", 443, False),
        ("9.9.9.9", 53, True),
        ("9.9.9.10", 53, False),
    ],
)
def test_a_pattern_means_its_host_and_port_only(host: str, port: int, allowed: bool) -> None:
    found = policy("pypi.org:443", "*.example.org:443", "9.9.9.9:53").pattern_for(host, port)
    assert (found is not None) is allowed


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("PyPI.org", "pypi.org"),
        ("pypi.org.", "pypi.org"),
        ("1.2.3.4", "1.2.3.4"),
        ("2620:FE:0::FE", "2620:fe::fe"),
        ("xn--exmple-cua.org", "xn--exmple-cua.org"),
        ("0x7f.example", "0x7f.example"),
    ],
)
def test_hosts_have_one_form(text: str, canonical: str) -> None:
    assert canonical_host(text) == canonical


@pytest.mark.parametrize(
    "text",
    [
        "0177.0.0.1",
        "0x7f.0.0.1",
        "0x7f000001",
        "2130706433",
        "017700000001",
        "127.1",
        "127.0.1",
        "1.2.3.4.5",
        "256.1.1.1",
        "example.0x",
        "example.1",
        "::1%lo",
        "pypi.org..",
        ".pypi.org",
        "pypi.org\x00.evil.net",
        "pypi.org evil.net",
        "pypi.org@evil.net",
        "\u217cocalhost",
        "\uff11\uff12\uff17.0.0.1",
        "",
    ],
)
def test_numbers_in_disguise_and_odd_names_are_no_hosts(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        canonical_host(text)


@pytest.mark.parametrize(
    "text", ["pypi.org", "[::1", "[pypi.org]:443", "[::1]443", "a:b", ":443", "pypi.org:-1"]
)
def test_what_is_no_authority_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        split_authority(text)


PUBLIC = ["9.9.9.9", "1.1.1.1", "93.184.216.34", "2620:fe::fe", "2a00:1450::1"]
PRIVATE = (
    "10.1.2.3 172.16.0.1 172.31.255.255 192.168.0.1 100.64.0.1 127.0.0.1 127.255.0.1 ::1 fc00::1 fd12:3456::1"
)
METADATA = (
    "169.254.169.254 169.254.170.2 100.100.100.200 168.63.129.16 192.0.0.192 fd00:ec2::254 fd00:42::42 "
    "169.254.0.23 169.254.1.1 169.254.42.42 fe80::1"
)
NEVER = (
    "0.0.0.0 0.1.2.3 192.0.0.1 192.0.2.1 192.88.99.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 "
    "239.255.255.250 240.0.0.1 255.255.255.255 :: ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:9.9.9.9 "
    "64:ff9b::9.9.9.9 64:ff9b::a00:1 64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1::1 "
    "2002:909:909::1 3fff::1 4000::1 5f00::1 fec0::1 ff02::1 ff0e::1"
)


@pytest.mark.parametrize("address", PUBLIC)
def test_public_addresses_are_reached(address: str) -> None:
    assert policy("h.example:443").admits("h.example", 443, ip_address(address))


@pytest.mark.parametrize("address", f"{PRIVATE} {METADATA} {NEVER}".split())
def test_no_other_address_is_reached(address: str) -> None:
    assert not policy("h.example:443").admits("h.example", 443, ip_address(address))
    literal = f"[{ip_address(address)}]:443" if ":" in address else f"{address}:443"
    assert not policy(literal).admits(str(ip_address(address)), 443, ip_address(address))


@pytest.mark.parametrize("address", PRIVATE.split())
def test_private_addresses_are_reached_where_that_is_allowed(address: str) -> None:
    assert policy("h.example:443", allow_private=True).admits("h.example", 443, ip_address(address))


@pytest.mark.parametrize("address", f"{METADATA} {NEVER}".split())
def test_private_addresses_are_not_all_the_others(address: str) -> None:
    assert not policy("h.example:443", allow_private=True).admits("h.example", 443, ip_address(address))


def test_metadata_is_reached_only_where_its_address_is_named() -> None:
    named = policy("169.254.169.254:80", allow_private=True)
    assert named.admits("169.254.169.254", 80, ip_address("169.254.169.254"))
    assert not named.admits("169.254.169.254", 80, ip_address("169.254.170.2"))


def test_an_allowed_address_of_another_host_is_not_reached() -> None:
    assert not policy("h.example:443").admits("other.example", 443, ip_address("9.9.9.9"))
    assert not policy("h.example:443").admits("h.example", 80, ip_address("9.9.9.9"))
    assert not EgressPolicy().admits("h.example", 443, ip_address("9.9.9.9"))
