"""Signing in at an identity provider, from a browser: who comes back as whom, and who does not."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.conftest import StartGateway, serving
from tests.gateway.console.conftest import Browser
from tests.support.commands import cellgate, refusal
from tests.support.fake_provider import CLIENT, Provider, serving_provider
from tests.support.server import GatewayProcess, Response
from tests.support.users import add_user

Pair = tuple[GatewayProcess, Provider]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """A gateway, and the provider that it sends its users to."""
    with serving_provider() as provider:
        options = {
            "oidc_issuer": provider.issuer,
            "oidc_audience": "cellgate",
            "oidc_client_id": CLIENT,
            "oidc_role_claim": "groups",
            "oidc_scopes": "openid email",
        }
        with serving(tmp_path_factory.mktemp("provider") / "data", **options) as gateway:
            yield gateway, provider


@pytest.fixture
def provider(pair: Pair) -> Iterator[Provider]:
    """As it was made."""
    yield pair[1]
    fresh = Provider(pair[1].issuer, claims={"groups": ["cellgate-user"]})
    vars(pair[1]).update(vars(fresh))


@pytest.fixture
def gateway(pair: Pair) -> GatewayProcess:
    pair[1].claims = {"groups": ["cellgate-user"]}
    return pair[0]


def asked(browser: Browser) -> str:
    """The address at which the browser is sent to the provider."""
    answer = browser.visit("/console/oidc", "same-origin")
    assert answer.status == 303, answer.body
    assert answer.headers["Cache-Control"] == "no-store"
    cookie = answer.headers["Set-Cookie"]
    assert "; HttpOnly; SameSite=Lax" in cookie
    assert "; Max-Age=600" in cookie
    return str(answer.headers["Location"])


def come_back(browser: Browser, address: str, **changes: str | None) -> Response:
    """Open the address that the provider sends the browser to, with other parameters."""
    parts = urlsplit(address)
    query = {name: values[0] for name, values in parse_qs(parts.query).items()} | changes
    kept = "&".join(f"{name}={value}" for name, value in query.items() if value is not None)
    return browser.visit(f"{parts.path}?{kept}", "cross-site")


def test_somebody_is_signed_in_as_whom_the_provider_names(
    gateway: GatewayProcess, provider: Provider
) -> None:
    assert gateway.get("/console/sign-in", token=None).json()["provider"] is True
    browser = Browser(gateway)
    question = asked(browser)
    address = provider.sign_in(question)
    assert address.startswith(f"{gateway.url}/console/oidc/callback?")
    answer = come_back(browser, address)
    assert (answer.status, answer.headers["Location"], answer.body) == (303, "/", b"")
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert list(browser.cookies) == [f"cellgate-console-{gateway.host.partition(':')[2]}"]
    me = browser.ask("GET", "/v1/me").json()
    assert (me["principal"], me["role"]) == ("ada", "user")
    verifier = provider.exchanged[-1]["code_verifier"]
    assert len(verifier) >= 43
    assert verifier not in question
    # The code and the browser's question are used up.
    assert come_back(browser, address).status == 401


def test_a_role_is_what_the_provider_says(gateway: GatewayProcess, provider: Provider) -> None:
    provider.claims = {"groups": "cellgate-auditor"}
    browser = Browser(gateway)
    assert come_back(browser, provider.sign_in(asked(browser))).status == 303
    assert browser.ask("GET", "/v1/me").json()["role"] == "auditor"
    for groups in ("others", None):
        provider.claims = {"groups": groups}
        stranger = Browser(gateway)
        refused = come_back(stranger, provider.sign_in(asked(stranger)))
        assert (refused.status, stranger.me()) == (403, 401)


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "x"},
        {"state": None},
        {"code": "x"},
        {"code": None, "error": "access_denied"},
        {"code": "x" * 5000},
        {"iss": "https://evil.example"},
    ],
)
def test_another_answer_signs_nobody_in(
    gateway: GatewayProcess, provider: Provider, changes: dict[str, str | None]
) -> None:
    browser = Browser(gateway)
    refused = come_back(browser, provider.sign_in(asked(browser)), **changes)
    assert (refused.status, refused.headers["Content-Type"]) == (401, "text/html; charset=utf-8")
    assert browser.me() == 401


def test_an_answer_is_for_the_browser_that_asked(gateway: GatewayProcess, provider: Provider) -> None:
    """Nobody signs another in as themselves by sending them to the address that they came back to."""
    victim, attacker = Browser(gateway), Browser(gateway)
    address = provider.sign_in(asked(attacker))
    assert come_back(victim, address).status == 401
    asked(victim)
    assert come_back(victim, address).status == 401
    assert victim.me() == 401
    assert provider.exchanged == []
    assert come_back(attacker, address).status == 303


def test_with_a_planted_question_no_answer_counts(gateway: GatewayProcess, provider: Provider) -> None:
    victim, attacker = Browser(gateway), Browser(gateway)
    address = provider.sign_in(asked(attacker))
    asked(victim)
    ((name, own),) = victim.cookies.items()
    planted = f"{name}={attacker.cookies[name]}; {name}={own}"
    parts = urlsplit(address)
    refused = victim.visit(f"{parts.path}?{parts.query}", "cross-site", Cookie=planted)
    assert (refused.status, provider.exchanged) == (401, [])


@pytest.mark.parametrize(
    "claims",
    [
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "cellgate"},
        {"aud": [CLIENT, "another"]},
        {"azp": "another"},
        {"iss": "https://evil.example"},
        {"exp": 1},
        {"sub": None},
        {"sub": "default"},
        {"sub": "a b"},
    ],
)
def test_another_token_signs_nobody_in(
    gateway: GatewayProcess, provider: Provider, claims: dict[str, object]
) -> None:
    provider.claims |= claims
    browser = Browser(gateway)
    assert come_back(browser, provider.sign_in(asked(browser))).status == 401
    assert browser.me() == 401


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (400, b"{}", 401),
        (500, b"", 503),
        (302, b"", 503),
        (200, b"<html>", 503),
        (200, b'{"access_token": "x"}', 503),
        (200, b'{"id_token": "x"}', 401),
        (200, b" " * 300_000, 503),
    ],
)
def test_a_provider_that_fails_signs_nobody_in(
    gateway: GatewayProcess, provider: Provider, status: int, answer: bytes, told: int
) -> None:
    browser = Browser(gateway)
    address = provider.sign_in(asked(browser))
    provider.status, provider.answer = status, answer
    assert come_back(browser, address).status == told
    assert browser.me() == 401


def test_a_key_that_is_not_published_signs_nobody_in(gateway: GatewayProcess, provider: Provider) -> None:
    provider.signer = "two"
    browser = Browser(gateway)
    assert come_back(browser, provider.sign_in(asked(browser))).status == 503
    assert browser.me() == 401


def test_who_is_disabled_here_is_not_let_in(gateway: GatewayProcess, provider: Provider) -> None:
    provider.claims |= {"sub": "eve"}
    browser = Browser(gateway)
    assert come_back(browser, provider.sign_in(asked(browser))).status == 303
    assert browser.me() == "eve"
    add_user(gateway, "eve")
    assert cellgate("user", "disable", "eve", "--data-dir", gateway.data_dir).returncode == 0
    assert browser.me() == 401
    again = Browser(gateway)
    assert come_back(again, provider.sign_in(asked(again))).status == 401


def test_nobody_else_begins_or_ends_there(gateway: GatewayProcess) -> None:
    browser = Browser(gateway)
    assert browser.visit("/console/oidc", Sec_Purpose="prefetch").status == 403
    assert browser.ask("GET", "/console/oidc", Sec_Fetch_Dest="image").status == 403
    assert browser.visit("/console/oidc", "cross-site").status == 403
    assert browser.visit("/console/oidc", "same-site").status == 403
    assert browser.visit("/console/oidc/callback").status == 401
    assert browser.cookies == {}


def test_without_a_client_id_nobody_signs_in_there(start_gateway: StartGateway) -> None:
    gateway = start_gateway(oidc_issuer="https://login.example.org", oidc_audience="cellgate")
    none = {"provider": False, "hub": False, "out": ""}
    assert gateway.get("/console/sign-in", token=None).json() == none
    for path in ("/console/oidc", "/console/oidc/callback?code=x&state=y"):
        assert Browser(gateway).visit(path).status == 404


def test_wrong_settings_are_refused() -> None:
    code, said = refusal("--oidc-client-id", "x")
    assert (code, "--oidc-client-id needs --oidc-issuer" in said) == (2, True)
    words = ("--oidc-issuer", "https://login.example.org", "--oidc-audience", "cellgate")
    code, said = refusal(*words, "--backend=process", "--ServeApp.oidc_scopes=email")
    assert (code, "openid" in said) == (2, True)
