"""Where the client goes by itself: to the gateway that has a session, and to nobody else with the token."""

from __future__ import annotations

import pytest

from cellgate.client.transport import Server


@pytest.mark.parametrize(
    ("asked", "told", "goes"),
    [
        ("http://127.0.0.1:8888", "http://127.0.0.1:8889", True),
        ("http://127.0.0.1:8888", "http://127.0.0.1:8888", False),
        # It may be a tunnel's end, and the address one of the network here.
        ("http://127.0.0.1:8888", "http://10.0.0.1:8888", False),
        ("http://gateways.example.org", "http://one.example.org", False),
        ("https://gateways.example.org", "https://one.example.org", True),
        ("https://gateways.example.org", "http://gateways.example.org:8888", False),
        ("https://gateways.example.org", "https://", False),
        ("https://gateways.example.org", "https://[", False),
    ],
)
def test_a_token_goes_to_gateways_alone(asked: str, told: str, goes: bool) -> None:
    assert (Server(asked, "token-of-a-test")._origin_at(told) is not None) == goes
