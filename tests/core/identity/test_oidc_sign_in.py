"""What the identity provider says about its sign-in: asked rarely, checked, and led nowhere else by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from urllib.parse import parse_qs, urlsplit

import pytest

from cellgate.errors import IdentityUnavailable, InvalidToken
from cellgate.identity.code_exchange import MOST_AT_ONCE, Begun
from cellgate.identity.fetching import FetchedAnswer, Fetcher
from cellgate.identity.oidc_settings import OidcSettings
from cellgate.identity.oidc_sign_in import DISCOVERY_SECONDS, RETRY_SECONDS, ProviderSignIn
from cellgate.identity.provider import ProviderKeys, UrlKeys
from tests.support.identity import AUDIENCE, ISSUER

BACK = "https://gateway.example.org/console/oidc/callback"
GOOD = {
    "issuer": ISSUER,
    "jwks_uri": f"{ISSUER}/keys",
    "authorization_endpoint": f"{ISSUER}/auth?tenant=1",
    "token_endpoint": f"{ISSUER}/token",
}


class Asked(Fetcher):
    """A provider's discovery document, which may be missing; how often it was asked for."""

    def __init__(self) -> None:
        super().__init__("The provider")
        self.document: Mapping[str, str] | None = GOOD
        self.count = 0
        self.codes: asyncio.Queue[str] = asyncio.Queue()
        self.answers = asyncio.Event()

    async def get(self, url: str, *, most: int, headers: Mapping[str, str] | None = None) -> FetchedAnswer:
        del url, most, headers
        self.count += 1
        await asyncio.sleep(0)
        if self.document is None:
            raise IdentityUnavailable("The provider can't be reached")
        return FetchedAnswer(200, json.dumps(self.document).encode())

    async def post(self, url: str, form: Mapping[str, str], *, most: int) -> FetchedAnswer:
        del url, most
        self.codes.put_nowait(form["code"])
        await self.answers.wait()
        return FetchedAnswer(400, b"")


class World:
    """A client of the provider, and a clock."""

    def __init__(self) -> None:
        self.now = 0.0
        self.fetcher = Asked()
        settings = OidcSettings(ISSUER, AUDIENCE, client_id="client", scopes="openid email")
        self.keys = ProviderKeys(UrlKeys(ISSUER, fetcher=self.fetcher))
        self.provider = ProviderSignIn(settings, self.keys, fetcher=self.fetcher, monotonic=lambda: self.now)

    async def question(self) -> str:
        return await self.provider.question(Begun.new(), BACK)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    yield made
    await made.keys.close()
    await made.provider.close()


def test_what_a_browser_keeps_is_new_each_time_and_read_strictly() -> None:
    one, two = Begun.new(), Begun.new()
    assert len({one.state, one.nonce, one.verifier, two.state, two.nonce, two.verifier}) == 6
    assert Begun.read(one.text) == one
    for text in ("", "..", one.text + "x", one.text[1:], one.text.replace(".", ";"), "é" + one.text[1:]):
        assert Begun.read(text) is None


async def test_the_question_keeps_what_the_address_has(world: World) -> None:
    begun = Begun.new()
    parts = urlsplit(await world.provider.question(begun, BACK))
    asked = parse_qs(parts.query)
    assert asked["tenant"] == ["1"]
    assert asked["scope"] == ["openid email"]
    assert asked["redirect_uri"] == [BACK]
    assert (asked["state"], asked["nonce"]) == ([begun.state], [begun.nonce])
    assert begun.verifier not in parts.query


async def test_however_many_begin_the_provider_is_asked_once_in_a_while(world: World) -> None:
    await asyncio.gather(*(world.question() for _ in range(20)))
    assert world.fetcher.count == 1
    world.now += DISCOVERY_SECONDS
    world.fetcher.document = GOOD | {"authorization_endpoint": f"{ISSUER}/other"}
    assert (await world.question()).startswith(f"{ISSUER}/other?")
    assert world.fetcher.count == 2


async def test_a_provider_that_is_down_is_left_in_peace(world: World) -> None:
    world.fetcher.document = None
    failed = await asyncio.gather(*(world.question() for _ in range(20)), return_exceptions=True)
    assert {type(each) for each in failed} == {IdentityUnavailable}
    assert world.fetcher.count == 1
    world.fetcher.document = GOOD
    world.now += RETRY_SECONDS
    assert (await world.question()).startswith(ISSUER)


@pytest.mark.parametrize(
    "changes",
    [
        {"issuer": "https://evil.example"},
        {"authorization_endpoint": ""},
        {"authorization_endpoint": "http://login.example.org/auth"},
        {"authorization_endpoint": "javascript:alert(1)"},
        {"authorization_endpoint": f"{ISSUER}/auth\r\nSet-Cookie: a=b"},
        {"token_endpoint": "http://127.0.0.1:8888/v1/sessions"},
        {"token_endpoint": "https://localhost/token"},
        {"token_endpoint": "file:///etc/passwd"},
    ],
)
async def test_a_document_that_leads_astray_leads_nowhere(world: World, changes: dict[str, str]) -> None:
    world.fetcher.document = GOOD | changes
    with pytest.raises(IdentityUnavailable):
        await world.question()


def test_an_answer_is_to_one_question_of_one_provider(world: World) -> None:
    begun = Begun.new()
    assert world.provider.is_answer(begun, begun.state, None)
    assert world.provider.is_answer(begun, begun.state, ISSUER)
    assert not world.provider.is_answer(begun, begun.state, "https://evil.example")
    for state in ("", Begun.new().state, f"{begun.state}x", "é"):
        assert not world.provider.is_answer(begun, state, ISSUER)


async def test_one_address_leaves_room_for_the_sign_ins_of_others(world: World) -> None:
    """However many codes a stranger sends, the next user's is looked at."""

    async def sign_in(code: str, origin: str) -> object:
        with pytest.raises((InvalidToken, IdentityUnavailable)) as refused:
            await world.provider.login(Begun.new(), code, BACK, origin)
        return refused.type

    floods = [asyncio.create_task(sign_in(f"flood {each}", "192.0.2.1")) for each in range(20)]
    for _ in range(MOST_AT_ONCE * 3 // 4):
        assert (await world.fetcher.codes.get()).startswith("flood")
    refused = [each for each in floods if each.done()]
    assert len(refused) == len(floods) - MOST_AT_ONCE * 3 // 4
    assert {each.result() for each in refused} == {IdentityUnavailable}
    users = [asyncio.create_task(sign_in(name, name)) for name in ("ada", "ben", "cid")]
    assert [await world.fetcher.codes.get() for _ in range(2)] == ["ada", "ben"]
    world.fetcher.answers.set()
    assert await asyncio.gather(*users) == [InvalidToken, InvalidToken, IdentityUnavailable]
    assert set(await asyncio.gather(*floods)) == {InvalidToken, IdentityUnavailable}
    # The places are free again.
    assert await sign_in("later", "192.0.2.1") is InvalidToken
