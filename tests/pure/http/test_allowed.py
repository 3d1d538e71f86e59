"""What ``--allow-host`` and ``--allow-origin`` take: what could never match is refused at the start."""

from __future__ import annotations

import pytest

from cellgate.http.access import check_hosts, check_origins
from cellgate_kernels.base.errors import InvalidInput


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("https://gateway.example.org", "gateway.example.org"),
        ("gateway.example.org:8443", "gateway.example.org"),
        ("gateway.example.org/", "gateway.example.org"),
        ("https://gateway.example.org:8443/cellgate", "gateway.example.org"),
        ("*.example.org", "gateway.example.org"),
        ("", "gateway.example.org"),
        ("two names", "gateway.example.org"),
        ("bücher.example", "xn--bcher-kva.example"),
        ("[2001:db8::1]:8443", "2001:db8::1"),
    ],
)
def test_a_host_is_a_name_alone(given: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=f"must be a name alone, such as {meant}$"):
        check_hosts([given])


def test_hosts_are_compared_as_requests_name_them() -> None:
    assert check_hosts(["Gateway.Example.org.", "*", "[2001:db8::1]", " 10.0.0.1"]) == {
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
        ("https://notebooks.example.org:443", "https://notebooks.example.org"),
        ("http://notebooks.example.org:80/", "http://notebooks.example.org"),
        ("http://notebooks.example.org:8080/", "http://notebooks.example.org:8080"),
        ("HTTPS://Notebooks.example.org", "https://notebooks.example.org"),
        ("https://me@notebooks.example.org", "https://notebooks.example.org"),
        ("https://bücher.example", "https://xn--bcher-kva.example"),
        ("https://*.example.org", "https://notebooks.example.org"),
        ("", "https://notebooks.example.org"),
    ],
)
def test_an_origin_is_scheme_and_name(given: str, meant: str) -> None:
    with pytest.raises(InvalidInput, match=f"with nothing behind: {meant}$"):
        check_origins([given])


@pytest.mark.parametrize("given", ["file:", "file:///home/me/page.html", "NULL"])
def test_the_origin_of_a_page_in_a_file_is_null(given: str) -> None:
    with pytest.raises(InvalidInput, match=r"must be null, as browsers call a page in a file$"):
        check_origins([given])


def test_origins_as_browsers_send_them_are_taken() -> None:
    given = ["*", "null", "https://notebooks.example.org", "http://localhost:3000", "vscode-webview://abc"]
    given += ["http://[::1]:3000", "http://notebooks.example.org:443", "http://10.0.0.1", "file://"]
    assert check_origins(given) == frozenset(given)
