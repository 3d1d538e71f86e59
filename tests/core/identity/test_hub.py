"""Logins by a JupyterHub's tokens: what the Hub says, and for how long it counts."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cellgate.errors import Forbidden, IdentityUnavailable, InvalidToken
from cellgate.http import attempts
from cellgate.http.access import AccessPolicy
from cellgate.http.attempts import LoginAttempts
from cellgate.http.base import BaseHandler
from cellgate.http.operation import requires
from cellgate.identity import hub
from cellgate.identity.administrator import Administrator
from cellgate.identity.authentication import Authentication
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.fetching import FetchedAnswer, Fetcher
from cellgate.identity.hub import (
    CHECK_SECONDS,
    FRESH_SECONDS,
    MOST_ASKING,
    PATIENCE_SECONDS,
    REFUSED_SECONDS,
    HubAuthenticator,
)
from cellgate.identity.hub_settings import hub_settings
from cellgate.identity.principal import DEFAULT, Ask, Login, Permission, Principal, Reach, Role
from cellgate.identity.store.opening import open_users, reader_of_users
from cellgate.identity.tokens import digest
from cellgate_kernels.base.errors import InvalidInput
from tests.support.listening import listening

ACCESS = "access:services!service=cellgate"
SERVICE = {"JUPYTERHUB_API_URL": "http://hub:8081/hub/api/", "JUPYTERHUB_SERVICE_NAME": "cellgate"}


def user(name: str = "ada", *scopes: str, **more: object) -> dict[str, Any]:
    return {"kind": "user", "name": name, "admin": False, "scopes": [ACCESS, *scopes], **more}


class Api(Fetcher):
    """The Hub's API: what it answers to each token. `gate`: while it is closed, it hangs."""

    def __init__(self) -> None:
        super().__init__("The Hub")
        self.users: dict[str, dict[str, Any] | bytes | int] = {"t": user()}
        self.asked: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.down = False

    async def get(self, url: str, *, most: int, headers: Mapping[str, str] | None = None) -> FetchedAnswer:
        assert url == "http://hub:8081/hub/api/user"
        assert headers is not None
        token = headers["Authorization"].removeprefix("token ")
        self.asked.append(token)
        await self.gate.wait()
        if self.down:
            raise IdentityUnavailable("The Hub can't be reached")
        found = self.users.get(token, 403)
        if isinstance(found, int):
            return FetchedAnswer(found, b"")
        return FetchedAnswer(200, found if isinstance(found, bytes) else json.dumps(found).encode())


class Service:
    """The gateway as the Hub's service, at a time that stands still."""

    def __init__(self, environment: Mapping[str, str] = SERVICE) -> None:
        self.api = Api()
        self.now = 1000.0
        self.logins = HubAuthenticator(
            hub_settings(environment), fetcher=self.api, monotonic=lambda: self.now
        )
        self.connected: list[Login] = []

    async def login(self, token: str = "t", origin: str = "10.0.0.1") -> Login:
        found = self.logins.login(token, digest(token))
        assert found is not None
        return found if isinstance(found, Login) else await found(origin)

    def at_once(self, token: str = "t") -> Login:
        found = self.logins.login(token, digest(token))
        assert isinstance(found, Login)
        return found

    # What a LoginListener is

    def open_logins(self) -> Iterable[Login]:
        return self.connected

    def logins_changed(self) -> None: ...

    def end_logins(self) -> None: ...

    def role_changed(self, name: str) -> None: ...

    def user_gone(self, name: str, cause: str) -> None: ...


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    made = Service()
    yield made
    await made.logins.close()


async def test_a_user_of_the_hub(service: Service) -> None:
    login = await service.login()
    assert login.principal == Principal("ada")
    assert login.permissions == set(Permission) - {Permission.METRICS}
    assert login.id.startswith("hub:")
    assert service.logins.is_valid(login)
    assert service.logins.is_valid(DEFAULT) is None
    assert service.at_once() is login
    assert service.api.asked == ["t"]


async def test_a_disabled_users_token_is_told_to_the_trail_whatever_the_hub_says(
    service: Service, tmp_path: Path
) -> None:
    """The Hub is asked as about any token that opens nothing here; its answer is what the client reads."""
    with open_users(tmp_path, create=True) as store:
        store.add_user("eve", Role.USER)
        token, text = store.create_token("eve", reach=Reach())
        store.set_disabled("eve", disabled=True)
    both = Authentication(
        PrincipalDirectory(reader_of_users(tmp_path), Administrator("own")), (service.logins,)
    )
    await both.directory.refresh()
    ask = both.login(text)
    assert not isinstance(ask, Login)
    with pytest.raises(InvalidToken, match="neither to the gateway nor to the Hub") as first:
        await ask("10.0.0.1")
    with pytest.raises(InvalidToken, match="neither to the gateway nor to the Hub") as again:
        both.login(text)
    for refused in (first.value, again.value):
        assert (refused.cause, refused.principal, refused.token) == ("disabled_user", "eve", token.id)
    await both.close()


@pytest.mark.parametrize(
    ("model", "role"),
    [
        (user("root", "admin:users", admin=True), Role.ADMIN),
        (user("root", admin=True), Role.USER),
        (user("ada", "admin:users"), Role.USER),
    ],
)
async def test_an_administrator_needs_a_token_that_allows_it(
    service: Service, model: dict[str, Any], role: Role
) -> None:
    service.api.users["t"] = model
    assert (await service.login()).principal.role is role


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (user(scopes=[]), "both its user and the token need"),
        (user(scopes=["access:services!service=other", "self"]), "both its user and the token need"),
        (user("svc", kind="service"), "token of a service"),
        (user("a b"), "can't be a principal"),
        (user(""), "can't be a principal"),
    ],
)
async def test_whom_the_hub_knows_but_gives_no_access(
    service: Service, model: dict[str, Any], what: str
) -> None:
    service.api.users["t"] = model
    with pytest.raises(Forbidden, match=what):
        await service.login()
    with pytest.raises(Forbidden, match=what):
        service.logins.login("t", digest("t"))


@pytest.mark.parametrize(
    "answer", [b"", b"[]", b"<html>", b"{}", b'{"name": 5}', b"[" * 100_000, 500, 302, 429]
)
async def test_an_answer_that_is_none(service: Service, answer: bytes | int) -> None:
    service.api.users["t"] = answer
    with pytest.raises(IdentityUnavailable):
        await service.login()


@pytest.mark.parametrize("token", ["a\r\nX: y", "a b", "é", "x" * 513, "a\x00", "\n", "a%0d%0a"])
async def test_what_can_end_a_header_is_not_sent_on(service: Service, token: str) -> None:
    assert service.logins.login(token, digest(token)) is None
    assert service.api.asked == []


async def test_a_refusal_counts_for_a_moment(service: Service) -> None:
    for _ in range(3):
        with pytest.raises(InvalidToken, match="neither to the gateway nor to the Hub"):
            await service.login("unknown")
    assert service.api.asked == ["unknown"]
    service.api.users["unknown"] = user("new")
    service.now += REFUSED_SECONDS
    assert (await service.login("unknown")).principal.name == "new"


async def test_a_revoked_token_opens_nothing_soon(service: Service) -> None:
    login = await service.login()
    del service.api.users["t"]
    service.now += FRESH_SECONDS - 0.1
    assert service.at_once() is login
    service.now += 0.1
    with pytest.raises(InvalidToken):
        await service.login()
    assert not service.logins.is_valid(login)


async def test_many_requests_with_one_token_are_one_question(service: Service) -> None:
    service.api.gate.clear()
    waiting = [asyncio.ensure_future(service.login()) for _ in range(20)]
    await asyncio.sleep(0)
    service.api.gate.set()
    assert len({login.id for login in await asyncio.gather(*waiting)}) == 1
    assert service.api.asked == ["t"]


async def test_a_flood_of_tokens_does_not_pile_up_nor_take_others_places(service: Service) -> None:
    service.api.gate.clear()
    names = [(f"x{number}", f"10.0.0.{number // MOST_ASKING}") for number in range(2 * MOST_ASKING)]
    waiting = [asyncio.ensure_future(service.login(*each)) for each in names]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(service.api.asked) == MOST_ASKING
    service.api.gate.set()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    refused = [type(each) is IdentityUnavailable for each in outcomes]
    assert (sum(refused[:MOST_ASKING]), sum(refused)) == (MOST_ASKING // 4, MOST_ASKING)


async def test_a_flood_of_tokens_is_not_in_the_way_of_those_that_the_hub_knew(service: Service) -> None:
    """Even after a time in which nobody used them."""
    await service.login()
    service.now += PATIENCE_SECONDS
    await service.logins._look(service)
    service.api.gate.clear()
    strangers = [asyncio.ensure_future(service.login(f"x{number}")) for number in range(MOST_ASKING)]
    asked = asyncio.ensure_future(service.login())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    service.api.gate.set()
    assert (await asked).principal.name == "ada"
    await asyncio.gather(*strangers, return_exceptions=True)


async def test_whose_token_was_good_lately_guesses_nothing(service: Service) -> None:
    def ask(token: str) -> Ask:
        found = service.logins.login(token, digest(token))
        assert isinstance(found, Ask)
        return found

    assert not ask("t").known
    await service.login()
    service.now += 1000 * PATIENCE_SECONDS
    await service.logins._look(service)
    assert ask("t").known
    del service.api.users["t"]
    with pytest.raises(InvalidToken):
        await ask("t")("10.0.0.1")
    service.now += REFUSED_SECONDS
    assert not ask("t").known


class Whoami(BaseHandler):
    """Tells who asks."""

    @requires(Permission.READ)
    async def get(self) -> None:
        self.answer({"name": self.principal.name})


async def test_wrong_tokens_of_an_address_do_not_lock_out_others_at_it(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a proxy that everybody comes from."""
    monkeypatch.setattr(attempts, "HOLD_SECONDS", 0.0)
    both = Authentication(
        PrincipalDirectory(reader_of_users(tmp_path), Administrator("own")), (service.logins,)
    )
    await both.directory.refresh()
    services = {
        "access": AccessPolicy(both),
        "attempts": LoginAttempts(2, clock=lambda: service.now),
        "trail": SimpleNamespace(refused=lambda *_, **__: None),
        "base_url": "",
    }
    async with listening({"/v1/whoami": Whoami}, **services) as (port, _):

        async def status(token: str) -> int:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(
                b"GET /v1/whoami HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
                b"Authorization: token %s\r\n\r\n" % token.encode()
            )
            answer = await reader.read()
            writer.close()
            return int(answer.split()[1])

        assert await status("t") == 200
        assert [await status(f"x{number}") for number in range(4)] == [401, 401, 429, 429]
        service.now += FRESH_SECONDS
        service.api.users["new"] = user("new")
        while await status(f"y{len(service.api.asked)}") != 429:
            pass
        assert await status("t") == 200
        assert await status("new") == 429, "it might be a guess"
    assert "new" not in service.api.asked


async def test_one_users_tokens_do_not_have_others_be_forgotten(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hub, "MOST_LOGINS", 10)
    monkeypatch.setattr(hub, "MOST_OF_ONE", 3)
    login = await service.login()
    for number in range(20):
        service.api.users[f"e{number}"] = user("eve")
        await service.login(f"e{number}")
    assert service.logins.is_valid(login)
    assert service.at_once() is login


async def test_what_is_remembered_has_limits(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "MOST_LOGINS", 3)
    monkeypatch.setattr(hub, "MOST_REFUSED", 3)
    for number in range(10):
        service.api.users[f"u{number}"] = user(f"u{number}")
        await service.login(f"u{number}")
        with pytest.raises(InvalidToken):
            await service.login(f"x{number}")
    assert (len(service.logins._entries), len(service.logins._by_id), len(service.logins._refused)) == (
        3,
        3,
        3,
    )


async def test_the_hub_may_be_down_for_a_moment(service: Service) -> None:
    login = await service.login()
    service.api.down = True
    service.now += FRESH_SECONDS
    assert await service.login() == login
    service.now += PATIENCE_SECONDS - FRESH_SECONDS
    with pytest.raises(IdentityUnavailable):
        await service.login()
    with pytest.raises(IdentityUnavailable):
        await service.login("stranger")


async def test_open_connections_are_asked_about(service: Service) -> None:
    """One that is used through them only, and one that nobody uses."""
    service.api.users["other"] = user("eve")
    login, other = await service.login(), await service.login("other")
    service.connected = [login]
    service.now += CHECK_SECONDS
    await service.logins._look(service)
    assert service.api.asked == ["t", "other", "t"]
    assert service.logins.is_valid(login)
    # Its scopes have changed, which the connection must not outlive.
    service.api.users["t"] = user("root", "admin:users", admin=True)
    service.now += CHECK_SECONDS
    await service.logins._look(service)
    assert not service.logins.is_valid(login)
    service.now += CHECK_SECONDS
    await service.logins._look(service)
    assert service.logins.is_valid(other) is False, "forgotten"


async def test_open_connections_end_with_a_revoked_token_and_outlive_a_restart(service: Service) -> None:
    login = await service.login()
    service.connected = [login]
    service.api.down = True
    service.now += PATIENCE_SECONDS - 1
    await service.logins._look(service)
    assert service.logins.is_valid(login)
    service.api.down = False
    await service.logins._look(service)
    assert service.logins.is_valid(login)
    del service.api.users["t"]
    service.now += CHECK_SECONDS
    await service.logins._look(service)
    assert not service.logins.is_valid(login)


async def test_a_hub_that_stays_away_ends_its_logins(service: Service) -> None:
    login = await service.login()
    service.connected = [login]
    service.api.down = True
    service.now += PATIENCE_SECONDS
    await service.logins._look(service)
    assert not service.logins.is_valid(login)


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        (
            {"JUPYTERHUB_API_URL": "", "JUPYTERHUB_SERVICE_NAME": ""},
            "^JUPYTERHUB_API_URL and JUPYTERHUB_SERVICE_NAME are missing",
        ),
        ({"JUPYTERHUB_API_URL": ""}, "^JUPYTERHUB_API_URL is missing"),
        ({"JUPYTERHUB_SERVICE_NAME": ""}, "^JUPYTERHUB_SERVICE_NAME is missing"),
        ({"JUPYTERHUB_API_URL": "hub:8081"}, "must be a URL"),
        ({"JUPYTERHUB_OAUTH_ACCESS_SCOPES": "x"}, "not a list of scopes"),
    ],
)
def test_an_environment_that_no_hub_makes(changed: dict[str, str], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        hub_settings(SERVICE | changed)


def test_the_scopes_that_give_access() -> None:
    assert hub_settings(SERVICE).scopes == {"access:services", ACCESS}
    named = SERVICE | {"JUPYTERHUB_OAUTH_ACCESS_SCOPES": '["custom:cellgate"]'}
    assert hub_settings(named).scopes == {"custom:cellgate"}
    named = SERVICE | {"JUPYTERHUB_OAUTH_ACCESS_SCOPES": '["access:services!service=cellgate"]'}
    assert hub_settings(named).scopes == {"access:services", ACCESS}


SERVER = {
    "JUPYTERHUB_API_URL": "http://hub:8081/hub/api",
    "JUPYTERHUB_API_TOKEN": "the-servers-token",
    "JUPYTERHUB_SERVICE_URL": "http://:8888/user/ada/lab/",
    "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/lab/",
    "JUPYTERHUB_BASE_URL": "/",
    "JUPYTERHUB_USER": "ada",
    "JUPYTERHUB_SERVER_NAME": "lab",
    "JUPYTERHUB_ACTIVITY_URL": "http://hub:8081/hub/api/users/ada/activity",
    "JUPYTERHUB_OAUTH_ACCESS_SCOPES": '["access:servers!server=ada/lab", "access:servers!user=ada"]',
}


def test_a_spawned_server_is_told_apart_by_its_environment() -> None:
    found = hub_settings(SERVER)
    assert (found.is_spawned, found.user, found.server) == (True, "ada", "lab")
    assert found.scopes == {"access:servers", "access:servers!server=ada/lab", "access:servers!user=ada"}
    assert (found.client_id, found.callback) == ("jupyterhub-user-ada-lab", "/user/ada/lab/oauth_callback")
    assert (found.pages, found.activity_interval, found.tls) == ("/hub/", 300.0, None)
    assert "the-servers-token" not in repr(found)
    without = {name: value for name, value in SERVER.items() if "SCOPES" not in name}
    assert hub_settings(without).scopes == found.scopes
    own = {"JUPYTERHUB_CLIENT_ID": "c", "JUPYTERHUB_OAUTH_CALLBACK_URL": "/b", "JUPYTERHUB_SERVER_NAME": ""}
    named = hub_settings(SERVER | own | {"JUPYTERHUB_HOST": "https://hub.example.org"})
    assert (named.client_id, named.callback, named.pages) == ("c", "/b", "https://hub.example.org/hub/")
    assert hub_settings(SERVER | own | {"JUPYTERHUB_CLIENT_ID": ""}).client_id == "jupyterhub-user-ada"
    # A service that a Hub starts as some user of the system has both.
    service = hub_settings(SERVER | {"JUPYTERHUB_SERVICE_NAME": "cellgate"})
    assert (service.is_spawned, service.server, service.activity_url) == (False, "", "")


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"JUPYTERHUB_USER": ""}, "^JUPYTERHUB_SERVICE_NAME is missing"),
        ({"JUPYTERHUB_API_TOKEN": ""}, "^JUPYTERHUB_API_TOKEN is missing"),
        (
            {"JUPYTERHUB_API_TOKEN": "", "JUPYTERHUB_SERVICE_URL": "", "JUPYTERHUB_SERVICE_PREFIX": ""},
            "^JUPYTERHUB_API_TOKEN, JUPYTERHUB_SERVICE_URL and JUPYTERHUB_SERVICE_PREFIX are missing",
        ),
        ({"JUPYTERHUB_ACTIVITY_URL": "x"}, "JUPYTERHUB_ACTIVITY_URL must be a URL"),
        ({"JUPYTERHUB_ACTIVITY_INTERVAL": "0"}, "JUPYTERHUB_ACTIVITY_INTERVAL must be"),
        ({"JUPYTERHUB_ACTIVITY_INTERVAL": "soon"}, "JUPYTERHUB_ACTIVITY_INTERVAL must be"),
        ({"JUPYTERHUB_SSL_KEYFILE": "/key"}, "are needed together"),
    ],
)
def test_an_environment_of_a_server_that_no_hub_makes(changed: dict[str, str], what: str) -> None:
    with pytest.raises(InvalidInput, match=what):
        hub_settings(SERVER | changed)


@pytest.mark.parametrize(
    ("model", "role"),
    [
        (user("ada", scopes=["access:servers!server=ada/lab"]), Role.ADMIN),
        (user("bob", scopes=["access:servers!server=ada/lab"]), Role.USER),
        (user("bob", scopes=["access:servers!user=ada"]), Role.USER),
        (user("root", scopes=["access:servers", "admin:users"], admin=True), Role.USER),
    ],
)
async def test_the_user_of_a_server_is_its_administrator(model: dict[str, Any], role: Role) -> None:
    service = Service(SERVER)
    service.api.users["t"] = model
    assert (await service.login()).principal == Principal(model["name"], role)
    await service.logins.close()


@pytest.mark.parametrize(
    "scopes", [[], ["access:servers!server=ada/"], ["access:servers!user=bob"], ["self"]]
)
async def test_a_stranger_at_a_server(scopes: list[str]) -> None:
    service = Service(SERVER)
    service.api.users["t"] = user("bob", scopes=scopes)
    with pytest.raises(Forbidden, match="access:servers"):
        await service.login()
    await service.logins.close()


async def test_a_hub_that_hangs_keeps_no_login_for_longer(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each question takes time: logins that nobody has asked about yet grow too old meanwhile."""
    monkeypatch.setattr(hub, "CONNECTIONS", 2)
    for number in range(7):
        service.api.users[f"u{number}"] = user(f"u{number}")
        service.connected.append(await service.login(f"u{number}"))
    asked = len(service.api.asked)
    service.now += CHECK_SECONDS

    async def hangs(*_: object, **__: object) -> FetchedAnswer:
        # Two at once wait for this long.
        service.now += 10
        raise IdentityUnavailable("The Hub did not answer within 20 s")

    monkeypatch.setattr(service.api, "get", hangs)
    await service.logins._look(service)
    assert service.now - 1000 < CHECK_SECONDS + PATIENCE_SECONDS + 20
    assert len(service.api.asked) == asked
    assert not service.logins._entries
    assert not any(service.logins.is_valid(login) for login in service.connected)


async def test_a_login_is_too_old_before_anybody_looks(service: Service) -> None:
    login = await service.login()
    service.now += PATIENCE_SECONDS - 1
    assert service.logins.is_valid(login)
    service.now += 1
    assert not service.logins.is_valid(login)
