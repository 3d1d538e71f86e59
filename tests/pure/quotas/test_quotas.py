"""The file of quotas: what is taken, and that each mistake in it is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from cellgate.identity.host_patterns import HostPattern, normal_host, parse_host_pattern
from cellgate.quotas.quotas import CHECKS, ROLES, Quotas, parse_quotas
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import GIB, MIB

EVERYTHING = """
[roles.user]
sessions = 5
running = 3
queued = 100
memory = "4g"
cpus = 2.5
disk = "10g"
record = "1g"
requests_per_minute = 600
bytes_per_minute = "1g"
network_bytes_per_minute = "500m"
max_memory = "2g"
max_cpus = 2
max_pids = 512
max_disk = 1073741824
max_cell_timeout = 600
max_lifetime = 3600.5
weight = 2
network = ["example.org:443", "*.EXAMPLE.org:443", "example.org:443"]
allow_private = true

[principals.ada]
sessions = 20

[principals."ada@example.org"]
running = 1
"""


def test_every_key_is_read() -> None:
    quotas = parse_quotas(EVERYTHING.encode(), "q.toml").of("bob", "user")
    assert quotas == Quotas(
        sessions=5,
        running=3,
        queued=100,
        memory=4 * GIB,
        cpus=2.5,
        disk=10 * GIB,
        record=GIB,
        requests_per_minute=600,
        bytes_per_minute=GIB,
        network_bytes_per_minute=500 * MIB,
        max_memory=2 * GIB,
        max_cpus=2.0,
        max_pids=512,
        max_disk=GIB,
        max_cell_timeout=600.0,
        max_lifetime=3600.5,
        weight=2.0,
        network=(HostPattern("example.org", 443), HostPattern("example.org", 443, wildcard=True)),
        allow_private=True,
    )


def test_a_principals_section_overrides_its_roles_key_by_key() -> None:
    policy = parse_quotas(EVERYTHING.encode(), "q.toml")
    assert policy.of("ada", "user").sessions == 20
    assert policy.of("ada", "user").running == 3
    assert policy.of("ada", "admin") == Quotas(sessions=20)
    assert policy.of("ada@example.org", "user").running == 1
    assert policy.of("bob", "admin") == Quotas()


def test_looking_quotas_up_makes_nothing_anew() -> None:
    policy = parse_quotas(EVERYTHING.encode(), "q.toml")
    assert policy.of("ada", "user") is policy.of("ada", "user")
    assert policy.of("bob", "user") is policy.of("eve", "user")


def test_an_empty_file_limits_nothing() -> None:
    assert parse_quotas(b"", "q.toml").of("ada", "user") == Quotas()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("[roles.user]\nmemroy = 1", "q.toml: [roles.user] memroy is no quota (did you mean memory?)"),
        ("[roles.user]\nzzz = 1", "q.toml: [roles.user] zzz is no quota; quotas are sessions, running"),
        ("[roles.usr]\n", "q.toml: [roles.usr] is no role (did you mean user?)"),
        ("[role.user]\n", "q.toml: role is no section (did you mean roles?)"),
        ("sessions = 3", "q.toml: sessions is no section; sections are [roles.NAME]"),
        ("roles = 3", "q.toml: roles must have sections such as [roles.NAME], not 3"),
        ("[roles]\nuser = 3", "q.toml: [roles.user] must be a section with keys, not 3"),
        ("[principals.ada.org]\nsessions = 1", "[principals.ada] org is no quota; a name with dots goes in"),
        ('[principals.""]\n', "can't be a user's name"),
        ('[principals."a\\nb"]\n', "can't be a user's name"),
        ("[roles.user", "q.toml: this is not TOML"),
        ("[roles.user]\nsessions = 1\nsessions = 2", "q.toml: this is not TOML"),
        ("x = " + "9" * 5000, "q.toml: this is not TOML"),
        ("x = " + "[" * 100_000, "q.toml: this is nested too deeply"),
    ],
)
def test_a_mistake_in_the_file_is_named(content: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_quotas(content.encode(), "q.toml")
    assert said in caught.value.message


def test_a_file_that_is_not_text_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"q\.toml: this is not UTF-8, at byte 2"):
        parse_quotas(b"# \xff", "q.toml")


WHOLE = ["sessions", "running", "queued", "requests_per_minute", "max_pids"]
SIZES = ["memory", "disk", "record", "bytes_per_minute", "network_bytes_per_minute", "max_memory", "max_disk"]
NUMBERS = ["cpus", "max_cpus", "max_cell_timeout", "max_lifetime", "weight"]
BAD_NUMBERS = ["0", "-1", "nan", "inf", "-inf", "1" + "0" * 30, "true", "[1]", "2020-01-01", "{}"]


@pytest.mark.parametrize("key", [*WHOLE, *SIZES, *NUMBERS])
@pytest.mark.parametrize("value", BAD_NUMBERS)
def test_a_number_out_of_range_or_of_another_type_is_refused(key: str, value: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_quotas(f"[roles.user]\n{key} = {value}".encode(), "q.toml")
    message = caught.value.message
    assert message.startswith(f"q.toml: [roles.user] {key} must be a ")
    assert " from " in message
    assert len(message) < 300


@pytest.mark.parametrize("key", [*WHOLE, *NUMBERS])
def test_a_number_in_quotes_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match=rf"{key} must be .*, not '1'"):
        parse_quotas(f'[roles.user]\n{key} = "1"'.encode(), "q.toml")


@pytest.mark.parametrize("key", WHOLE)
def test_counts_are_whole(key: str) -> None:
    with pytest.raises(InvalidInput, match=f"{key} must be a whole number"):
        parse_quotas(f"[roles.user]\n{key} = 20.5".encode(), "q.toml")


@pytest.mark.parametrize("key", SIZES)
@pytest.mark.parametrize("value", ['"much"', '"1025t"', '"0.1"', '"-1g"', '""', "1.5"])
def test_a_size_must_be_one(key: str, value: str) -> None:
    with pytest.raises(InvalidInput, match=f"{key} must be a size such as"):
        parse_quotas(f"[roles.user]\n{key} = {value}".encode(), "q.toml")


def test_less_than_a_kernel_needs_is_refused() -> None:
    for key, value in {"memory": "63m", "max_memory": "63m", "disk": "1023k", "max_disk": "1023k"}.items():
        with pytest.raises(InvalidInput, match=f"{key} must be .* from (64|1)m to 1024t"):
            parse_quotas(f'[roles.user]\n{key} = "{value}"'.encode(), "q.toml")
    assert parse_quotas(b'[roles.user]\nmemory = "64m"', "q").of("a", "user").memory == 64 * MIB


@pytest.mark.parametrize("value", ["1", '"yes"', "[true]"])
def test_allow_private_is_true_or_false(value: str) -> None:
    with pytest.raises(InvalidInput, match="allow_private must be true or false"):
        parse_quotas(f"[roles.user]\nallow_private = {value}".encode(), "q.toml")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ('"example.org:443"', "must be a list of texts"),
        ("[443]", "must be a list of texts"),
        ('["example.org"]', "'example.org' is not HOST:PORT"),
        ("[" + '"a.org:1",' * 1001 + "]", "has 1001 entries; at most 1000"),
    ],
)
def test_network_is_a_list_of_patterns(value: str, said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_quotas(f"[roles.user]\nnetwork = {value}".encode(), "q.toml")
    assert caught.value.message.startswith("q.toml: [roles.user] network ")
    assert said in caught.value.message


def test_the_keys_are_those_of_the_quotas() -> None:
    assert list(CHECKS) == list(Quotas.__dataclass_fields__)
    assert ROLES == ("user", "admin", "auditor")


def test_the_example_of_the_documentation_is_valid() -> None:
    page = (Path(__file__).parents[3] / "docs" / "reference" / "quotas.md").read_text()
    (example,) = re.findall(r"<!-- test: quotas -->\n```toml\n(.*?)```", page, re.DOTALL)
    policy = parse_quotas(example.encode(), "quotas.md")
    assert policy.of("bob", "user").sessions == 5
    assert policy.of("alice", "user").weight == 2
    assert policy.of("ci@example.org", "user").network[1].wildcard
    described = set(re.findall(r"`(\w+)`", page))
    assert set(CHECKS) <= described


# Hosts


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("example.org:443", HostPattern("example.org", 443)),
        ("Example.ORG:1", HostPattern("example.org", 1)),
        ("*.example.org:65535", HostPattern("example.org", 65535, wildcard=True)),
        ("straße.de:443", HostPattern("xn--strae-oqa.de", 443)),
        ("XN--STRAE-OQA.de:443", HostPattern("xn--strae-oqa.de", 443)),
        ("intranet:80", HostPattern("intranet", 80)),
        ("192.0.2.1:80", HostPattern("192.0.2.1", 80)),
        ("[2001:DB8:0::1]:443", HostPattern("2001:db8::1", 443)),
    ],
)
def test_a_pattern_is_read(text: str, pattern: HostPattern) -> None:
    assert parse_host_pattern(text) == pattern
    assert parse_host_pattern(str(pattern)) == pattern


NO_PATTERNS = (
    ": :443 example.org example.org: example.org:0 example.org:65536 example.org:443x example.org:٤ "
    "example.org:+1 example.org.:443 example..org:443 -a.org:443 a_b.org:443 xn--a.org:443 "
    "https://example.org:443 user@example.org:443 example.org/path:443 *:443 **.example.org:443 "
    "*example.org:443 a.*.org:443 *.192.0.2.1:443 *.[2001:db8::1]:443 2001:db8::1:443 [192.0.2.1]:443 "
    "[2001:db8::1%eth0]:443 [nonsense]:443 192.0.2:80 0x7f000001:80 2130706433:80"
)
ODD = ["", "a b.org:443", "a.org:443\n", "a" * 64 + ".org:443", "a." * 200 + "org:443", "a" * 10_000]


@pytest.mark.parametrize("text", [*NO_PATTERNS.split(), *ODD])
def test_what_is_no_pattern_is_refused(text: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_host_pattern(text)
    assert len(caught.value.message) < 700


def test_a_wildcard_covers_the_names_below_and_not_itself() -> None:
    pattern = parse_host_pattern("*.example.org:443")
    assert pattern.matches("a.example.org", 443)
    assert pattern.matches("a.b.example.org", 443)
    assert not pattern.matches("example.org", 443)
    assert not pattern.matches("badexample.org", 443)
    assert not pattern.matches("a.example.org", 80)
    assert parse_host_pattern("example.org:443").matches(normal_host("EXAMPLE.org"), 443)
    assert not parse_host_pattern("example.org:443").matches("a.example.org", 443)
