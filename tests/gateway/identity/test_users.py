"""Users by HTTP: what administrators do, what users do for themselves, and what nobody gets by it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from cellgate.client import Conflict, Gateway, GatewayError, NotFound
from tests.conftest import StartGateway, serving
from tests.support.commands import cellgate
from tests.support.postgresql import PostgresServer
from tests.support.server import GatewayProcess, Response, until

VALUE = "s3cret-value-of-the-user"
ME = "/v1/users/me"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with serving(tmp_path_factory.mktemp("users") / "data") as gateway:
        yield gateway


def new_user(gateway: GatewayProcess, name: str, role: str = "user") -> str:
    """A new user's token without limits."""
    assert gateway.post("/v1/users", {"name": name, "role": role}).status == 201
    return new_token(gateway, name)


def new_token(gateway: GatewayProcess, name: str, **limits: str) -> str:
    made = gateway.post(f"/v1/users/{name}/tokens", limits)
    assert made.status == 201, made.body
    return str(made.json()["token"])


def put(gateway: GatewayProcess, path: str, body: object, **options: Any) -> Response:
    return gateway.request("PUT", path, body, **options)


def patch(gateway: GatewayProcess, path: str, body: object, **options: Any) -> Response:
    return gateway.request("PATCH", path, body, **options)


def refused(answer: Response, status: int, reason: str, *words: str) -> None:
    assert (answer.status, answer.reason) == (status, reason), answer.body
    for word in words:
        assert word in answer.json()["detail"]


def acts(gateway: GatewayProcess) -> list[dict[str, Any]]:
    """The acts in the audit trail."""
    entries = gateway.get("/v1/audit?limit=1000").json()["entries"]
    return [each["entry"] for each in entries if each["entry"]["type"] == "act"]


def everything(gateway: GatewayProcess) -> Any:
    """All users with their tokens and secrets, which a refused request must not change."""
    users = gateway.get("/v1/users").json()["users"]
    return users, [
        [gateway.get(f"/v1/users/{each['name']}/{kind}").json() for kind in ("tokens", "secrets")]
        for each in users
    ]


# What administrators do


def life(gateway: GatewayProcess, other: GatewayProcess, *at: str) -> None:
    """A user's life by one gateway, as another one and the commands see it; the other one learns it soon."""

    def seen(status: int, **said: str) -> bool:
        told = other.get("/v1/me", token=token)
        return told.status == status and said.items() <= told.json().items()

    def listed(*words: str) -> Any:
        return json.loads(cellgate(*words, "--json", *at).stdout)

    added = gateway.post("/v1/users", {"name": "ada"})
    assert added.status == 201
    assert added.json() == listed("user", "list")[0]
    assert (added.json()["role"], added.json()["state"]) == ("user", "active")
    refused(gateway.post("/v1/users", {"name": "ada"}), 409, "conflict", "'ada'")
    made = gateway.post("/v1/users/ada/tokens", {"scope": "read,run", "sessions": "agent-", "expires": "1h"})
    assert made.status == 201
    token = made.json().pop("token")
    without = {name: value for name, value in made.json().items() if name != "token"}
    assert without == listed("token", "list", "--user=ada")[0]
    assert (without["scopes"], without["sessions"]) == ("run,read", "agent-*")
    until(lambda: seen(200, principal="ada"), "the other gateway does not know the token", 10)
    set_ = put(gateway, "/v1/users/ada/secrets/KEY", {"value": VALUE})
    assert set_.status == 200
    assert [set_.json()] == listed("secret", "list", "--user=ada")
    assert gateway.get("/v1/users/ada/secrets").json() == {"secrets": [set_.json()]}
    assert patch(gateway, "/v1/users/ada", {"role": "auditor"}).json()["role"] == "auditor"
    until(lambda: seen(200, role="auditor"), "the other gateway does not know the role", 10)
    changed = patch(gateway, "/v1/users/ada", {"role": "user", "disabled": True})
    assert (changed.json()["role"], changed.json()["state"]) == ("user", "disabled")
    until(lambda: seen(401), "the other gateway lets a disabled user in", 10)
    refused(gateway.post("/v1/users/ada/tokens"), 409, "conflict", "disabled")
    assert patch(gateway, "/v1/users/ada", {"disabled": False}).json()["state"] == "active"
    until(lambda: seen(200), "the other gateway refuses an enabled user", 10)
    assert gateway.delete(f"/v1/users/ada/tokens/{without['id']}").status == 204
    until(lambda: seen(401), "the other gateway lets a revoked token in", 10)
    assert gateway.get("/v1/users/ada/tokens").json()["tokens"][0]["revoked_at"] is not None
    assert gateway.delete("/v1/users/ada/secrets/KEY").status == 204
    refused(gateway.delete("/v1/users/ada/secrets/KEY"), 404, "not_found", "'KEY'")
    assert gateway.delete("/v1/users/ada").status == 204
    for path in ("", "/tokens", "/secrets"):
        refused(gateway.get(f"/v1/users/ada{path}"), 404, "not_found", "'ada'")
    nobody = {"users": [], "next": None}
    until(lambda: other.get("/v1/users").json() == nobody, "the other gateway lists a removed user", 10)
    done = [
        "user_added",
        "token_created",
        "secret_set",
        "user_role_changed",
        "user_disabled",
        "user_role_changed",
        "user_enabled",
        "token_revoked",
        "secret_removed",
        "user_removed",
    ]
    until(lambda: sorted(act["act"] for act in acts(other)) == sorted(done), "the trail has the acts", 10)
    assert {(act["user"], act["by"], act["by_address"]) for act in acts(other)} == {
        ("ada", "default", "127.0.0.1")
    }
    assert not any("by_uid" in act for act in acts(other))
    trail = gateway.get("/v1/audit?limit=1000").body
    for kept in (token.encode(), VALUE.encode()):
        assert kept not in trail
        assert kept not in gateway.log.read_bytes()


def test_a_user_s_life_in_the_data_folder(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    assert gateway.get("/v1/users").json() == {"users": [], "next": None}
    assert gateway.get("/v1/users/me/secrets").json() == {"secrets": []}
    life(gateway, gateway, *gateway.users_at)


def test_a_user_s_life_in_a_cluster(
    start_gateway: StartGateway, postgres_server: PostgresServer, tmp_path: Any
) -> None:
    key, url = tmp_path / "cluster.key", postgres_server.database()
    key.write_bytes(b"0123456789abcdef" * 2)
    options = {"cluster": url, "cluster_key": key, "advertise": "http://127.0.0.1:9"}
    one, two = (start_gateway(tmp_path / name, **options) for name in ("one", "two"))
    life(one, two, f"--data-dir={tmp_path / 'operator'}", f"--cluster={url}")


def test_lists_come_in_pages(gateway: GatewayProcess) -> None:
    names = [f"page-{number}" for number in range(3)]
    for name in names:
        new_user(gateway, name)
    first = gateway.get("/v1/users?limit=2&after=page-").json()
    assert [each["name"] for each in first["users"]] == names[:2]
    assert first["next"] == names[1]
    rest = gateway.get(f"/v1/users?after={first['next']}&limit=1").json()
    assert [each["name"] for each in rest["users"]] == names[2:]
    path = "/v1/users/page-0/tokens"
    ids = [each["id"] for each in gateway.get(path).json()["tokens"]]
    ids += [gateway.post(path).json()["id"] for _ in range(2)]
    found: list[str] = []
    following: str | None = ""
    while following is not None:
        page = gateway.get(f"{path}?limit=1&after={following}").json()
        found += [each["id"] for each in page["tokens"]]
        following = page["next"]
    assert sorted(found) == sorted(ids)
    refused(gateway.get(f"{path}?after=nothing"), 404, "not_found", "'nothing'")


@pytest.mark.parametrize("name", ["a|b:c@example.org+d", "9.9_-"])
def test_names_that_have_to_be_quoted(gateway: GatewayProcess, name: str) -> None:
    async def work() -> None:
        users = Gateway(gateway.url, gateway.token).users
        assert (await users.add(name)).name == name
        own = Gateway(gateway.url, (await users.create_token(name)).token).users
        assert (await own.get()).name == (await own.get(name)).name == name
        await users.remove(name)

    asyncio.run(work())


@pytest.mark.parametrize(
    ("method", "path", "body", "words"),
    [
        ("POST", "", {}, ["name"]),
        ("POST", "", {"name": 1}, ["name"]),
        ("POST", "", {"name": "a/b"}, ["name: 'a/b' can't be a user's name"]),
        ("POST", "", {"name": "../me"}, ["name: "]),
        ("POST", "", {"name": "x\x00"}, ["name: "]),
        ("POST", "", {"name": "default"}, ["'default'"]),
        ("POST", "", {"name": "me"}, ["'me'"]),
        ("POST", "", {"name": "x", "role": "root"}, ["role must be", "auditor"]),
        ("POST", "", {"name": "x", "rule": "admin"}, ["rule"]),
        ("PATCH", "/bea", {}, ["role or disabled"]),
        ("PATCH", "/bea", {"role": "root"}, ["role must be"]),
        ("PATCH", "/bea", {"disabled": "yes"}, ["disabled"]),
        ("PATCH", "/bea", {"name": "eve"}, ["name"]),
        ("POST", "/bea/tokens", {"expires": "soon"}, ["expires: ", "30d"]),
        ("POST", "/bea/tokens", {"expires": "2001-01-01T00:00:00Z"}, ["expires: "]),
        ("POST", "/bea/tokens", {"scope": "root"}, ["scope: There is no scope 'root'"]),
        ("POST", "/bea/tokens", {"scope": ""}, ["scope: "]),
        ("POST", "/bea/tokens", {"scope": "metrics"}, ["scope: bea has the role user"]),
        ("POST", "/bea/tokens", {"sessions": "a/"}, ["sessions: "]),
        ("POST", "/bea/tokens", {"sessions": ""}, ["sessions: "]),
        ("POST", "/bea/tokens", {"session": ""}, ["session: "]),
        ("POST", "/bea/tokens", {"session": "x", "sessions": "x"}, ["session: ", "not both"]),
        ("PUT", "/bea/secrets/a-b", {"value": VALUE}, ["name: 'a-b'"]),
        ("PUT", "/bea/secrets/CELLGATE_X", {"value": VALUE}, ["name: "]),
        ("PUT", "/bea/secrets/KEY", {"value": "short"}, ["value: "]),
        ("PUT", "/bea/secrets/KEY", {"value": VALUE + "\x00"}, ["value: "]),
        ("PUT", "/bea/secrets/KEY", {"value": VALUE * 1000}, ["value: "]),
        ("PUT", "/bea/secrets/KEY", {"value": [VALUE]}, ["value"]),
        ("PUT", "/bea/secrets/KEY", {"values": VALUE}, ["values"]),
        ("PUT", "/bea/secrets/KEY", b'{"value": "' + VALUE.encode(), ["JSON"]),
    ],
)
def test_bad_input_names_the_field_and_changes_nothing(
    gateway: GatewayProcess, method: str, path: str, body: Any, words: list[str]
) -> None:
    if gateway.get("/v1/users/bea").status == 404:
        new_user(gateway, "bea")
    before = everything(gateway)
    answer = gateway.request(method, f"/v1/users{path}", body, headers={"Content-Type": "application/json"})
    refused(answer, 400, "bad_request", *words)
    assert VALUE.encode() not in answer.body
    assert everything(gateway) == before


@pytest.mark.parametrize(
    "path",
    ["nobody", "a%2Fb", "..%2Fusers", "%2e%2e", "x%00", "me%00", "me%2Ftokens", "Me", "%20me", "x" * 300],
)
def test_unknown_users_and_names_that_none_can_have(gateway: GatewayProcess, path: str) -> None:
    before = everything(gateway)
    for method, rest, body in (
        ("GET", "", None),
        ("PATCH", "", {"disabled": True}),
        ("DELETE", "", None),
        ("GET", "/tokens", None),
        ("POST", "/tokens", {}),
        ("DELETE", "/tokens/0123456789ab", None),
        ("GET", "/secrets", None),
        ("PUT", "/secrets/KEY", {"value": VALUE}),
        ("DELETE", "/secrets/KEY", None),
    ):
        refused(gateway.request(method, f"/v1/users/{path}{rest}", body), 404, "not_found")
    assert everything(gateway) == before


def test_nobody_changes_their_own_standing(gateway: GatewayProcess) -> None:
    root = new_user(gateway, "root", "admin")
    before = everything(gateway)
    for name in ("root", "me"):
        for body in ({"role": "user"}, {"disabled": True}):
            refused(patch(gateway, f"/v1/users/{name}", body, token=root), 409, "conflict", "yourself")
        refused(gateway.delete(f"/v1/users/{name}", token=root), 409, "conflict", "yourself")
    for name in ("default", "me"):
        assert patch(gateway, f"/v1/users/{name}", {"role": "user"}).status == 409
        assert gateway.delete(f"/v1/users/{name}").status == 409
    refused(patch(gateway, "/v1/users/default", {"role": "user"}, token=root), 404, "not_found", "own token")
    assert everything(gateway) == before
    assert gateway.get("/v1/me").json()["role"] == "admin"


def test_where_everybody_is_the_administrator_there_are_no_users(start_gateway: StartGateway) -> None:
    gateway = start_gateway(no_auth=True)
    refused(gateway.post("/v1/users", {"name": "ada"}, token=None), 409, "conflict", "--no-auth")
    assert gateway.get("/v1/users", token=None).json()["users"] == []


def test_what_an_administrator_looks_at_is_audited(gateway: GatewayProcess) -> None:
    new_user(gateway, "seen")
    for path in ("tokens", "secrets"):
        assert gateway.get(f"/v1/users/seen/{path}").status == 200

    def noted() -> set[tuple[str, str]]:
        entries = [each["entry"] for each in gateway.get("/v1/audit?limit=1000").json()["entries"]]
        return {(each["route"], each["owner"]) for each in entries if each["type"] == "access"}

    routes = {(f"/v1/users/{{user}}/{path}", "seen") for path in ("tokens", "secrets")}
    until(lambda: routes <= noted(), "the trail has the looks", 10)


# What users do for themselves


def test_a_user_has_tokens_and_secrets_without_an_administrator(gateway: GatewayProcess) -> None:
    async def work(token: str) -> None:
        users = Gateway(gateway.url, token).users
        assert (await users.get()).name == "cleo"
        made = await users.create_token(expires="1h", scope=["run", "read", "users"], sessions="bot-")
        assert (made.user, made.scopes, made.sessions) == ("cleo", "run,read,users", "bot-*")
        await users.set_secret("KEY", VALUE)
        assert [each.name for each in await users.secrets()] == ["KEY"]
        async with Gateway(gateway.url, made.token).session("bot-1", secrets=["KEY"]) as session:
            assert (await session.run("import os; len(os.environ['KEY'])")).text == str(len(VALUE))
            await session.end()
        await users.remove_secret("KEY")
        await users.revoke_token(made.id)
        assert [each.id async for each in users.tokens() if each.revoked_at is not None] == [made.id]
        with pytest.raises(NotFound):
            await users.revoke_token("0123456789ab")
        with pytest.raises(GatewayError, match="Only administrators"):
            await users.add("somebody")

    asyncio.run(work(new_user(gateway, "cleo")))


def test_tokens_end_with_the_one_that_they_were_made_with(gateway: GatewayProcess) -> None:
    async def work(token: str) -> None:
        users = Gateway(gateway.url, token).users
        made = await users.create_token(scope="users,run")
        (own,) = [each.id async for each in users.tokens() if each.id != made.id]
        assert made.made_by == own
        ours = Gateway(gateway.url, made.token).users
        # By mistake nobody is left without a token.
        with pytest.raises(Conflict, match="was made with"):
            await ours.revoke_token(own)
        inner = await ours.create_token(scope="run")
        await users.revoke_token(own)
        for text in (token, made.token, inner.token):
            with pytest.raises(GatewayError) as refused:
                await Gateway(gateway.url, text).me()
            assert refused.value.status == 401

    asyncio.run(work(new_user(gateway, "theo")))
    by_administrator = gateway.get("/v1/users/theo/tokens").json()["tokens"][0]
    assert by_administrator["made_by"] is None


def test_the_blocking_client_has_users_too(gateway: GatewayProcess) -> None:
    with Gateway.sync(gateway.url, gateway.token) as client:
        assert client.users.add("dora", role="auditor").role == "auditor"
        with pytest.raises(Conflict):
            client.users.add("dora")
        assert "dora" in [each.name for each in client.users.list()]
        assert client.users.change("dora", role="user").role == "user"
        assert client.users.create_token("dora").token.startswith("cg_")
        assert len(list(client.users.tokens("dora"))) == 1
        client.users.remove("dora")


def test_a_user_learns_nothing_of_others(gateway: GatewayProcess) -> None:
    eve, _ = new_user(gateway, "eve"), new_user(gateway, "victim")
    assert put(gateway, "/v1/users/victim/secrets/KEY", {"value": VALUE}).status == 200
    ids = [each["id"] for each in gateway.get("/v1/users/victim/tokens").json()["tokens"]]
    before = everything(gateway)
    for method, rest, body in (
        ("GET", "", None),
        ("PATCH", "", {"disabled": True}),
        ("DELETE", "", None),
        ("GET", "/tokens", None),
        ("POST", "/tokens", {}),
        ("DELETE", f"/tokens/{ids[0]}", None),
        ("GET", "/secrets", None),
        ("PUT", "/secrets/KEY", {"value": VALUE + "2"}),
        ("DELETE", "/secrets/KEY", None),
    ):
        details = set()
        for name in ("victim", "default", "nobody"):
            answer = gateway.request(method, f"/v1/users/{name}{rest}", body, token=eve)
            refused(answer, 404, "not_found")
            if name != "default":
                details.add(answer.json()["detail"].replace(name, "NAME"))
        assert len(details) == 1
    # Another's token or secret by one's own name is not there either.
    refused(gateway.delete(f"{ME}/tokens/{ids[0]}", token=eve), 404, "not_found")
    refused(gateway.delete(f"{ME}/secrets/KEY", token=eve), 404, "not_found")
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"name": "friend", "role": "admin"}),
        ("PATCH", "/me", {"role": "admin"}),
        ("PATCH", "/eve", {"disabled": False}),
        ("DELETE", "/me", None),
    ):
        refused(gateway.request(method, f"/v1/users{path}", body, token=eve), 403, "forbidden")
    assert everything(gateway) == before


def test_a_token_makes_none_that_may_do_more(gateway: GatewayProcess) -> None:
    new_user(gateway, "finn")
    narrow = new_token(gateway, "finn", scope="read,users", sessions="agent-", expires="1h")
    before = everything(gateway)
    late = (datetime.now(UTC) + timedelta(hours=2)).isoformat()
    for wider, field in (
        ({"scope": "run"}, "scope: "),
        ({"scope": "read,users,files"}, "scope: "),
        ({"sessions": "agent"}, "sessions: "),
        ({"sessions": "other-"}, "sessions: "),
        ({"session": "other"}, "session: "),
        ({"expires": "2h"}, "expires: "),
        ({"expires": late}, "expires: "),
    ):
        refused(gateway.post(f"{ME}/tokens", wider, token=narrow), 403, "forbidden", field)
    assert everything(gateway) == before
    own = gateway.get(f"{ME}/tokens", token=narrow).json()["tokens"]
    assert [each["sessions"] for each in own] == ["agent-*"]
    made = gateway.post(f"{ME}/tokens", token=narrow).json()
    limits = ("scopes", "sessions", "expires_at")
    assert [made[name] for name in limits] == [own[0][name] for name in limits]
    narrower = gateway.post(
        f"{ME}/tokens", {"scope": "users", "session": "agent-7", "expires": "1m"}, token=narrow
    ).json()
    assert (narrower["scopes"], narrower["sessions"]) == ("users", "agent-7")
    for wider in ({"session": "agent-8"}, {"sessions": "agent-7"}, {"scope": "read"}):
        assert gateway.post(f"{ME}/tokens", wider, token=narrower["token"]).status == 403


def test_a_token_without_the_scope_does_nothing_here(gateway: GatewayProcess) -> None:
    new_user(gateway, "gail")
    token = new_token(gateway, "gail", scope="run,read,files,packages")
    for method, path, body in (
        ("GET", ME, None),
        ("GET", f"{ME}/tokens", None),
        ("POST", f"{ME}/tokens", {}),
        ("PUT", f"{ME}/secrets/KEY", {"value": VALUE}),
    ):
        refused(gateway.request(method, path, body, token=token), 403, "forbidden", "users")


def test_a_token_for_some_sessions_reaches_no_secrets_and_no_other_tokens(gateway: GatewayProcess) -> None:
    wide = new_user(gateway, "hugo")
    one = new_token(gateway, "hugo", session="report")
    ids = [each["id"] for each in gateway.get(f"{ME}/tokens", token=wide).json()["tokens"]]
    assert len(ids) == 2
    listed = gateway.get(f"{ME}/tokens", token=one).json()["tokens"]
    assert [each["sessions"] for each in listed] == ["report"]
    (hidden,) = set(ids) - {listed[0]["id"]}
    refused(gateway.delete(f"{ME}/tokens/{hidden}", token=one), 404, "not_found")
    for method, path, body in (
        ("GET", f"{ME}/secrets", None),
        ("PUT", f"{ME}/secrets/KEY", {"value": VALUE}),
        ("DELETE", f"{ME}/secrets/KEY", None),
    ):
        refused(gateway.request(method, path, body, token=one), 403, "forbidden")
    assert gateway.delete(f"{ME}/tokens/{listed[0]['id']}", token=one).status == 204
    assert gateway.get("/v1/me", token=one).status == 401


@pytest.mark.parametrize("limits", [{"scope": "users"}, {"expires": "1d"}])
def test_a_limited_administrator_s_token_signs_up_users_and_no_equals(
    gateway: GatewayProcess, limits: dict[str, str]
) -> None:
    word = next(iter(limits))
    for name, role in ((f"boss-{word}", "admin"), (f"peer-{word}", "admin"), (f"olga-{word}", "auditor")):
        new_user(gateway, name, role)
    shop = new_token(gateway, f"boss-{word}", **limits)
    customer = f"customer-{word}"
    assert gateway.post("/v1/users", {"name": customer}, token=shop).status == 201
    made = gateway.post(f"/v1/users/{customer}/tokens", {"scope": "run,read"}, token=shop)
    assert (made.status, made.json()["expires_at"]) == (201, None)
    before = everything(gateway)
    for method, path, body in (
        ("POST", "", {"name": "other", "role": "admin"}),
        ("POST", "", {"name": "other", "role": "auditor"}),
        ("PATCH", f"/{customer}", {"role": "admin"}),
        *(
            (method, f"/{name}-{word}{rest}", body)
            for name in ("peer", "olga")
            for method, rest, body in (
                ("PATCH", "", {"role": "user"}),
                ("PATCH", "", {"disabled": True}),
                ("DELETE", "", None),
                ("POST", "/tokens", {}),
                ("POST", "/tokens", {"scope": "users", "expires": "1m"}),
                ("PUT", "/secrets/KEY", {"value": VALUE}),
            )
        ),
        ("PUT", "/default/secrets/KEY", {"value": VALUE}),
    ):
        refused(gateway.request(method, f"/v1/users{path}", body, token=shop), 403, "forbidden")
    wider = {"scope": "run"} if word == "scope" else {"expires": "2d"}
    refused(gateway.post(f"{ME}/tokens", wider, token=shop), 403, "forbidden", f"{word}: ")
    assert everything(gateway) == before
    again = gateway.post(f"{ME}/tokens", token=shop).json()
    assert (again["scopes"], again["expires_at"] is None) == (limits.get("scope"), "expires" not in limits)


def test_an_administrator_s_token_for_some_sessions_is_about_no_other_users(gateway: GatewayProcess) -> None:
    new_user(gateway, "ivan", "admin")
    new_user(gateway, "jack")
    token = new_token(gateway, "ivan", sessions="agent-")
    for method, path, body in (
        ("GET", "", None),
        ("POST", "", {"name": "other"}),
        ("GET", "/jack", None),
        ("POST", "/jack/tokens", {}),
        ("DELETE", "/jack", None),
    ):
        refused(gateway.request(method, f"/v1/users{path}", body, token=token), 403, "forbidden")


def test_a_scoped_token_of_a_user_who_rises_makes_none_without_scopes(gateway: GatewayProcess) -> None:
    """All scopes of a role are fewer than those of the next one."""
    new_user(gateway, "kate")
    token = new_token(gateway, "kate", scope="run,read,files,packages,users")
    made = gateway.post(f"{ME}/tokens", token=token).json()
    assert made["scopes"] == "run,read,files,packages,users"
    assert patch(gateway, "/v1/users/kate", {"role": "admin"}).status == 200
    assert "metrics" not in gateway.get("/v1/me", token=made["token"]).json()["scopes"]


def test_a_lowered_administrator_s_token_is_a_user_s_at_once(gateway: GatewayProcess) -> None:
    token = new_user(gateway, "lara", "admin")
    assert gateway.get("/v1/users", token=token).status == 200
    assert patch(gateway, "/v1/users/lara", {"role": "user"}).status == 200
    assert gateway.get("/v1/users", token=token).status == 403
