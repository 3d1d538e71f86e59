"""The addresses of gateways that have handed requests on lately."""

from __future__ import annotations

from cellgate.http.listener.recent_gateways import KNOWN_SECONDS, MOST_KNOWN, RecentGateways


def test_an_address_is_known_for_a_while_after_its_last_request() -> None:
    now = 0.0
    gateways = RecentGateways(clock=lambda: now)
    assert "10.0.0.1" not in gateways
    gateways.add("10.0.0.1")
    now = KNOWN_SECONDS - 1
    assert "10.0.0.1" in gateways
    gateways.add("10.0.0.1")
    now = 2 * KNOWN_SECONDS - 2
    assert "10.0.0.1" in gateways
    now += 1
    assert "10.0.0.1" not in gateways


def test_of_many_addresses_those_of_the_last_requests_are_known() -> None:
    gateways = RecentGateways(clock=lambda: 0.0)
    addresses = [f"10.0.{number // 256}.{number % 256}" for number in range(MOST_KNOWN)]
    for address in [*addresses, addresses[0], "10.9.9.9"]:
        gateways.add(address)
    assert [address for address in addresses if address not in gateways] == [addresses[1]]
    assert "10.9.9.9" in gateways
