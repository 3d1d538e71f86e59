"""What a client says of the gateway's address."""

from __future__ import annotations

import pytest

from cellgate.client.transport import Server


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("http://127.0.0.1:8888", "127.0.0.1:8888"),
        ("https://example.org/prefix", "example.org"),
        ("http://[::1]:8888", "[::1]:8888"),
        ("http://bücher.example:80", "xn--bcher-kva.example:80"),
    ],
)
def test_a_header_can_hold_the_host_of_any_address(url: str, host: str) -> None:
    assert Server(url, "token")._headers["Host"] == host


@pytest.mark.parametrize("end", ["/v1", "/v1/"])
@pytest.mark.parametrize("base", ["http://127.0.0.1:8888", "http://example.org/team"])
def test_an_address_may_end_as_those_of_its_requests_begin(base: str, end: str) -> None:
    server = Server(base + end, "token")
    assert server.url == base
    assert server._prefix == ("/team" if base.endswith("team") else "")
