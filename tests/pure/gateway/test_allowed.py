"""What ``--allow-host`` and ``--allow-origin`` take: what could never match is refused at the start."""

from __future__ import annotations

import pytest

from cellgate.http.access import check_hosts, check_origins
from cellgate_kernels.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("https://gateway.example.org", "gateway.example.org"),
        ("gateway.example.org:8443", "gateway.example.org"),
        ("gateway.example.org/", "gateway.example.org"),
        ("https://gateway.example.org:8443/cellgate", "gateway.example.org"),
    ],
)
def test_a_host_is_a_name_alone(given: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=f"must be a name alone, such as {meant}$"):
        check_hosts([given])


def test_hosts_are_compared_as_requests_name_them() -> None:
    assert check_hosts(["Gateway.Example.org.", "*", "[2001:db8::1]", "10.0.0.1"]) == {
        "gateway.example.org",
        "*",
        "2001:db8::1",
        "10.0.0.1",
    }


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("notebooks.example.org", "https://notebooks.example.org"),
        ("https://notebooks.example.org/", "https://notebooks.example.org"),
        ("https://notebooks.example.org/page", "https://notebooks.example.org"),
    ],
)
def test_an_origin_is_scheme_and_name(given: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=f"with nothing behind: {meant}$"):
        check_origins([given])


def test_origins_as_browsers_send_them_are_taken() -> None:
    given = ["*", "null", "https://notebooks.example.org", "http://localhost:3000", "vscode-webview://abc"]
    assert check_origins(given) == frozenset(given)
