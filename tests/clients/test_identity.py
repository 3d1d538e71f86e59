"""A gateway that takes a real identity provider's word for who sends a request: npm's oidc-provider."""

from __future__ import annotations

import base64
import json
import re
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urljoin

import pytest
from tornado.httpclient import HTTPRequest

from tests.clients.processes import serving_program
from tests.conftest import StartGateway, serving
from tests.support.identity import forged
from tests.support.server import GatewayProcess, Response, until
from tests.support.websockets import websocket

AUDIENCE = "cellgate"


class Provider:
    """The provider, as its clients and its administrator see it."""

    def __init__(self, issuers: list[str]) -> None:
        self.issuer, self.other_issuer = issuers

    def token(
        self, client: str = "ada", resource: str = "urn:cellgate", *, scope: str = "", issuer: str = ""
    ) -> str:
        """A JWT access token that this client gets by its own credentials."""
        wanted = {"grant_type": "client_credentials", "resource": resource, "scope": scope}
        secret = base64.b64encode(f"{client}:secret-of-{client}".encode()).decode()
        headers = {"Authorization": f"Basic {secret}"}
        answer = self._ask(f"{issuer or self.issuer}/token", urlencode(wanted).encode(), headers)
        return str(json.loads(answer)["access_token"])

    def jwks(self) -> bytes:
        return self._ask(f"{self.issuer}/jwks")

    def rotate(self, *, keep: bool) -> None:
        """Sign with a new key from now on; publish the old ones too, or withdraw them."""
        self._ask(f"{self.issuer}/test/rotate?keep={'1' if keep else ''}", b"")

    def set_roles(self, client: str, *roles: str) -> None:
        self._ask(f"{self.issuer}/test/roles?{urlencode({'client': client, 'roles': ','.join(roles)})}", b"")

    def set_back(self, address: str) -> None:
        self._ask(f"{self.issuer}/test/back?{urlencode({'uri': address})}", b"")

    @staticmethod
    def _ask(url: str, body: bytes | None = None, headers: dict[str, str] | None = None) -> bytes:
        request = urllib.request.Request(url, body, headers or {})
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())


@pytest.fixture
def provider(tmp_path: Path) -> Iterator[Provider]:
    with serving_program("provider.js", tmp_path) as happened:
        yield Provider(happened["issuers"])


@pytest.fixture
def trusting(provider: Provider, tmp_path: Path) -> Iterator[GatewayProcess]:
    """A gateway that trusts the provider."""
    with serving(
        tmp_path / "data",
        oidc_issuer=provider.issuer,
        oidc_audience=AUDIENCE,
        oidc_role_claim="realm_access.roles",
    ) as gateway:
        yield gateway


def refused(answer: Response, why: str) -> None:
    """The answer is 401 and says why, in its body and for machines, and repeats no token."""
    assert (answer.status, answer.reason) == (401, "not_authenticated")
    assert why in answer.json()["detail"]
    challenge = answer.headers["WWW-Authenticate"]
    assert challenge.startswith('Bearer realm="cellgate", error="invalid_token", error_description="')
    assert "eyJ" not in challenge + answer.body.decode()


def parts(token: str) -> list[dict[str, Any]]:
    """Header and claims of a token."""
    return [json.loads(base64.urlsafe_b64decode(part + "===")) for part in token.split(".")[:2]]


def test_tokens_of_a_real_provider(trusting: GatewayProcess, provider: Provider) -> None:
    """Who is let in, as whom, and with which of their permissions."""
    ada, root = provider.token(), provider.token("root")
    cell = {"code": "6 * 7"}
    assert trusting.post("/v1/sessions/x/execute", cell, token=ada).json()["text"] == "42"
    assert trusting.get("/v1/sessions/x", token=root).status == 404
    assert trusting.get("/v1/sessions/x?principal=ada", token=root).json()["principal"] == "ada"
    assert trusting.get("/v1/sessions/x").status == 404, "nor is it the gateway's own administrator's"
    # An upload's handler begins before its body.
    uploaded = trusting.request("PUT", "/v1/sessions/x/files/a.txt", b"hello", token=provider.token())
    assert uploaded.status == 201
    # The claim `scope` limits a token.
    reading = provider.token(scope="cellgate:read")
    assert trusting.get("/v1/sessions/x", token=reading).status == 200
    assert trusting.post("/v1/sessions/x/execute", cell, token=reading).reason == "forbidden"

    refused(trusting.get("/v1/sessions", token=provider.token(resource="urn:other")), "another audience")
    foreign = provider.token(issuer=provider.other_issuer)
    refused(trusting.get("/v1/sessions", token=foreign), "another issuer")
    header, claims = parts(ada)
    for alg in ("none", "None", "HS256"):
        stranger = forged({**header, "alg": alg}, {**claims, "sub": "root"}, provider.jwks())
        refused(trusting.get("/v1/sessions", token=stranger), "algorithm is not accepted")
    changed = ada.split(".")
    changed[1] = forged({}, {**claims, "sub": "root"}).split(".")[1]
    refused(trusting.get("/v1/sessions", token=".".join(changed)), "signature is not valid")
    refused(trusting.get("/v1/sessions", token="eyJ." + "x" * 20_000 + "."), "longer than")

    # A role that the provider takes away is gone with the next token.
    provider.set_roles("ada", "something-else")
    gone = trusting.get("/v1/sessions", token=provider.token())
    assert (gone.status, gone.reason) == (403, "forbidden")
    assert "realm_access.roles has none of cellgate-admin" in gone.json()["detail"]


def test_new_and_withdrawn_keys(trusting: GatewayProcess, provider: Provider) -> None:
    old = provider.token()
    assert trusting.get("/v1/sessions", token=old).status == 200

    def accepted(token: str) -> bool:
        """A key that is new is looked for at most every few seconds."""
        return trusting.get("/v1/sessions", token=token).status == 200

    def uploaded(token: str) -> bool:
        """An upload waits for the keys before its body is read."""
        path = "/v1/sessions/x/files/a.txt"
        return trusting.request("PUT", path, b"hello" * 100_000, token=token).status == 201

    provider.rotate(keep=True)
    new = provider.token()
    assert parts(new)[0]["kid"] != parts(old)[0]["kid"]
    until(lambda: uploaded(new), "the new key is not found")
    assert accepted(old)

    provider.rotate(keep=False)
    newest = provider.token()
    until(lambda: accepted(newest), "the newest key is not found")
    for withdrawn in (old, new):
        refused(
            trusting.get("/v1/sessions", token=withdrawn), "key that the identity provider does not publish"
        )


def test_somebody_signs_in_to_the_console(provider: Provider, tmp_path: Path) -> None:
    """As a browser does it: through the provider's own pages, and back."""
    with serving(
        tmp_path / "data",
        oidc_issuer=provider.issuer,
        oidc_audience=AUDIENCE,
        oidc_role_claim="realm_access.roles",
        oidc_client_id="cellgate-console",
    ) as gateway:
        provider.set_back(f"{gateway.url}/console/oidc/callback")
        browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())

        def opened(url: str, form: dict[str, str] | None = None, **headers: str) -> tuple[str, str]:
            body = None if form is None else urlencode(form).encode()
            request = urllib.request.Request(url, body, {n.replace("_", "-"): v for n, v in headers.items()})
            with browser.open(request, timeout=60) as answer:
                return answer.url, answer.read().decode()

        url, page = opened(f"{gateway.url}/console/oidc")
        for prompt in ({"prompt": "login", "login": "root", "password": "any"}, {"prompt": "consent"}):
            action = re.search(r'action="([^"]+)"', page)
            assert action is not None, (url, page)
            url, page = opened(urljoin(url, action[1]), prompt)
        assert url == f"{gateway.url}/"
        me = json.loads(opened(f"{gateway.url}/v1/me", Sec_Fetch_Site="same-origin")[1])
        assert (me["principal"], me["role"]) == ("root", "admin")


async def test_an_expired_token_and_its_open_websocket(trusting: GatewayProcess, provider: Provider) -> None:
    assert trusting.post("/v1/sessions", {"session": "x"}, token=provider.token()).status == 201
    short = provider.token(resource="urn:cellgate:short")
    url = f"ws://{trusting.host}/v1/sessions/x/ws"
    async with websocket(HTTPRequest(url, headers={"Authorization": f"Bearer {short}"})) as opened:
        while await opened.read_message() is not None:
            pass
        ended = (opened.close_code, opened.close_reason)
    assert ended == (1008, "The token has ended, or its role has changed")
    refused(trusting.get("/v1/sessions", token=short), "has expired: get a new one")


def test_a_file_of_keys_needs_no_provider(
    start_gateway: StartGateway, provider: Provider, tmp_path: Path
) -> None:
    """The gateway never asks the provider, whose keys an administrator has saved."""
    keys = tmp_path / "keys.json"
    keys.write_bytes(provider.jwks())
    gateway = start_gateway(oidc_issuer=provider.issuer, oidc_audience=AUDIENCE, oidc_jwks=keys)
    assert gateway.get("/v1/sessions", token=provider.token("root")).status == 200
    assert gateway.get("/metrics", token=provider.token("root")).reason == "forbidden", "everybody is a user"
