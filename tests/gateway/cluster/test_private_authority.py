"""Gateways of a cluster that reach each other by HTTPS, with certificates of an authority of their own."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

from cellgate.client import Gateway, Trust
from tests.support.certificates import Authority
from tests.support.nodes import OWNER, Pair, pair_of
from tests.support.server import TOKEN, GatewayProcess


def secured(folder: Path, authority: Authority) -> dict[str, object]:
    """The options of a pair with a certificate of this authority."""
    certificate, key = authority.issue("nodes")
    return {"scheme": "https", "tls_cert": certificate, "tls_key": key, "folder": folder}


async def test_gateways_and_clients_trust_what_ssl_cert_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may also name the file itself: it then trusts each gateway of the cluster by it."""
    authority = Authority(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    with pair_of(**secured(tmp_path, authority)) as pair:
        monkeypatch.delenv("SSL_CERT_FILE")
        owner = own_there(pair, "mine")
        assert pair.other.get("/v1/sessions/mine").headers[OWNER] == owner
        await runs_there(pair, Gateway(pair.other.url, TOKEN, trust=Trust(ca_file=authority.file)), "named")
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
        await runs_there(pair, Gateway(pair.other.url, TOKEN), "by-environment")


def own_there(pair: Pair, key: str) -> str:
    """Let the pair's first gateway have a session's key; return its id."""
    owner = pair.node(pair.one)
    pair.own(key, owner)
    return owner


async def runs_there(pair: Pair, client: Gateway, key: str) -> None:
    """Run cells by a client that is given the other gateway: it asks that once, and then the owner itself."""
    own_there(pair, key)
    before = answers(pair.other)
    async with client.session(key) as session:
        assert [(await session.run(f"{number} + 1")).text for number in range(3)] == ["1", "2", "3"]
    # The session was made, and the answers were counted.
    assert answers(pair.other) - before == {"201": 1, "200": 1}


def answers(gateway: GatewayProcess) -> Counter[str]:
    """How many requests a gateway has answered, by status, before this one."""
    text = gateway.get("/metrics").body.decode()
    found = re.findall(r'cellgate_http_responses_total\{status="(\d+)"\} (\d+)', text)
    return Counter({status: int(count) for status, count in found})


def test_a_gateway_that_trusts_no_such_authority_says_what_to_set(tmp_path: Path) -> None:
    with pair_of(**secured(tmp_path, Authority(tmp_path))) as pair:
        own_there(pair, "s")
        refused = pair.other.get("/v1/sessions/s")
        assert (refused.status, refused.reason) == (503, "owner_unreachable")
        assert "SSL_CERT_FILE" in refused.json()["detail"]
