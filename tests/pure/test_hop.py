"""The signed header of a request that is handed on."""

from __future__ import annotations

import logging

import pytest
from tornado.httputil import HTTPHeaders

from cellgate.errors import HopRefused
from cellgate.http.hop.hop import TELL_SECONDS, Hop
from cellgate.http.hop.signature import GOOD_SECONDS, HopPlace, HopSigner
from cellgate.http.listener.forwarded import Forwarded
from cellgate.sessions.keys import SessionKeys
from cellgate.sessions.ownership import Alone
from cellgate.wire.owner import HOP, made_at, new_id, node_in

KEY = b"k" * 32
CLIENT = Forwarded("2001:db8::1", "https")
NODE = "0123456789abcdef"


def signer(node: str, *, key: bytes = KEY, at: float = 1000.0) -> HopSigner:
    return HopSigner(HopPlace(node, f"http://{node}", key), lambda: at)


def test_a_signed_header_tells_whose_the_request_is() -> None:
    signed = signer("one").sign("http://other", "GET", "/v1/me?a=b", CLIENT)
    headers = HTTPHeaders({HOP: signed})
    assert signer("other", at=1000 + GOOD_SECONDS).read("GET", "/v1/me?a=b", headers) == CLIENT
    assert HOP not in headers
    assert signer("other").read("GET", "/v1/me", HTTPHeaders()) is None


def test_a_request_for_a_port_is_told_from_others() -> None:
    client = Forwarded("9.9.9.9", "http", for_port=True)
    signed = signer("one").sign("http://other", "GET", "/", client)
    assert signer("other").read("GET", "/", HTTPHeaders({HOP: signed})) == client
    with pytest.raises(HopRefused):
        signer("other").read("GET", "/", HTTPHeaders({HOP: signed.replace(" port ", " ")}))


@pytest.mark.parametrize(
    ("reader", "method", "target"),
    [
        (signer("third"), "GET", "/"),
        (signer("other", key=b"other"), "GET", "/"),
        (signer("other", at=1001 + GOOD_SECONDS), "GET", "/"),
        (signer("other", at=999 - GOOD_SECONDS), "GET", "/"),
        (signer("other"), "POST", "/"),
        (signer("other"), "GET", "/v1/me"),
    ],
)
def test_a_header_for_another_request_is_refused(reader: HopSigner, method: str, target: str) -> None:
    headers = HTTPHeaders({HOP: signer("one").sign("http://other", "GET", "/", CLIENT)})
    with pytest.raises(HopRefused) as refused:
        reader.read(method, target, headers)
    assert refused.value.node == "one"
    assert HOP not in headers


@pytest.mark.parametrize(("at", "apart"), [(1061, 61), (939, 61), (5000, 4000)])
def test_clocks_that_are_apart_are_told_of(at: float, apart: float) -> None:
    headers = HTTPHeaders({HOP: signer("one").sign("http://other", "GET", "/", CLIENT)})
    with pytest.raises(HopRefused) as refused:
        signer("other", at=at).read("GET", "/", headers)
    assert (refused.value.node, refused.value.apart) == ("one", apart)


@pytest.mark.parametrize("given", ["", " ", "a", "a b c d e", "one 1000 ::1 http ", "\xff", "a" * 10_000])
def test_what_is_no_signature_is_refused(given: str) -> None:
    headers = HTTPHeaders({HOP: given, "X": "y"})
    with pytest.raises(HopRefused) as refused:
        signer("other").read("GET", "/", headers)
    assert refused.value.apart is None
    assert dict(headers.get_all()) == {"X": "y"}


def test_a_client_without_an_address_is_refused() -> None:
    headers = HTTPHeaders({HOP: signer("one").sign("http://other", "GET", "/", Forwarded("", "http"))})
    with pytest.raises(HopRefused):
        signer("other").read("GET", "/", headers)


def test_two_headers_are_none() -> None:
    signed = signer("one").sign("http://other", "GET", "/", CLIENT)
    headers = HTTPHeaders({HOP: signed})
    headers.add(HOP, signed)
    with pytest.raises(HopRefused):
        signer("other").read("GET", "/", headers)


async def test_the_log_says_again_after_an_hour_why_requests_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Somebody who only names a gateway would otherwise keep the log from ever saying that of itself."""
    now = 0.0
    place = HopPlace("one", "http://one", KEY)
    hop = Hop(place, SessionKeys(Alone()), lambda: {"one", NODE}, lambda: now)

    def errors_after(seconds: float, *named: str) -> list[str]:
        """The nodes that errors in the log are about, when requests have named these."""
        nonlocal now
        now += seconds
        caplog.clear()
        for node in named:
            with pytest.raises(HopRefused):
                hop.client_of("GET", "/", HTTPHeaders({HOP: f"{node} 1000 ::1 http bad"}))
        errors = [record for record in caplog.records if record.levelno == logging.ERROR]
        return [str(record.args[0]) for record in errors if isinstance(record.args, tuple)]

    others = [NODE[:8], NODE[:15], f"{NODE}0", "one", "", "f" * 32]
    assert errors_after(0, NODE, *others, NODE) == [NODE]
    assert errors_after(TELL_SECONDS - 1, NODE, *others) == []
    assert errors_after(1, *others, NODE, NODE) == [NODE]
    await hop.close()


def test_ids_name_the_gateway_that_made_them() -> None:
    made = new_id(NODE)
    assert node_in(made) == NODE[:8]
    assert made_at("ab", made)[:8] == "ab000000"
    assert node_in(new_id()) not in {None, NODE[:8]}
    for other in ("", "s", NODE, made.upper(), made[1:], f"{made}0"):
        assert node_in(other) is None
