"""Every route, and everybody who may ask it: a new route without a row here fails.

Alice owns the session that all requests are about. Who is refused must change nothing, and must not learn
whether there is anything.
"""

from __future__ import annotations

import base64
import io
import os
import time
import uuid
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from cellgate.http.routes import CONSOLE, JUPYTER, TABLE
from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.store.opening import open_users
from tests.conftest import serving
from tests.support.server import GatewayProcess, Response

RUN, READ, FILES, PACKAGES, METRICS, USERS = Permission
WEBSOCKET = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(os.urandom(16)).decode(),
}
CODE = {"code": "1"}


@dataclass(frozen=True)
class Row:
    """A route and its method: what it needs, what to send, and what its answer is to whom may ask.

    `of`: `session` is about a session of somebody, `everybody` is the same for all who may ask, `own` is
    about what the sender has, `users` is for administrators alone. `makes`: it would make a session of the
    sender's own with the same key.
    """

    method: str
    path: str
    needs: tuple[Permission, ...]
    status: int = 200
    of: str = "session"
    body: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    makes: bool = False
    query: str = ""
    ends: bool = False


OF_OPERATORS = {"/metrics", "/v1/audit", "/v1/usage", "/v1/cluster"}
"""What is about everybody, and nothing for a user."""
U = "/v1/users/{user}"
S = "/v1/sessions/{session}"
X = S + "/executions/{execution}"
P = S + "/processes/{process}"
K = "/api/kernels/{kernel}"
PUBLIC = {
    ("GET", "/healthz"),
    ("GET", "/readyz"),
    ("GET", "/openapi.json"),
    ("GET", "/docs"),
    ("GET", "/api/?"),
    ("GET", "/login"),
    ("POST", "/login"),
    ("GET", "/"),
    ("POST", "/"),
    ("GET", "/console/{asset}"),
    ("GET", "/console/sign-in"),
    ("POST", "/console/sign-in"),
    ("GET", "/console/oidc"),
    ("GET", "/console/oidc/callback"),
    ("GET", "/console/hub"),
    ("GET", "/oauth_callback"),
    ("POST", "/console/sign-out"),
}
ROWS = [
    Row("GET", "/metrics", (METRICS,), of="everybody"),
    Row("GET", "/v1/audit", (READ,), of="everybody"),
    Row("GET", "/v1/usage", (READ,), of="everybody"),
    Row("GET", "/v1/usage/sums", (READ,), of="own"),
    Row("GET", "/v1/usage/export", (READ,), of="own"),
    Row("GET", "/v1/cluster", (READ,), of="everybody"),
    Row("GET", "/v1/users", (USERS,), of="users"),
    Row("POST", "/v1/users", (USERS,), 409, of="users", body={"name": "alice"}),
    Row("PATCH", U, (USERS,), 409, of="users", body={"disabled": True}),
    Row("DELETE", U, (USERS,), 409, of="users"),
    Row("GET", U, (USERS,), of="own"),
    Row("GET", U + "/tokens", (USERS,), of="own"),
    Row("POST", U + "/tokens", (USERS,), 201, of="own", body={"expires": "1s"}),
    Row("DELETE", U + "/tokens/{token}", (USERS,), 404, of="own"),
    Row("GET", U + "/secrets", (USERS,), of="own"),
    Row("PUT", U + "/secrets/{secret}", (USERS,), 400, of="own", body={"value": "short"}),
    Row("DELETE", U + "/secrets/{secret}", (USERS,), 404, of="own"),
    Row("GET", "/v1/info", (), of="everybody"),
    Row("GET", "/v1/environments", (), of="everybody"),
    Row("GET", "/v1/environments/{environment}", (), 404, of="everybody"),
    Row("GET", "/v1/me", (), of="own"),
    Row("POST", "/v1/console", (), of="own"),
    Row("POST", "/v1/execute", (RUN,), of="own", body=CODE),
    Row("GET", "/v1/sessions", (READ,), of="own"),
    Row("POST", "/v1/sessions", (RUN,), of="own", body={"session": "{session}"}),
    Row("GET", S, (READ,)),
    Row("POST", S + "/interrupt", (RUN,), 204),
    Row("POST", S + "/restart", (RUN,)),
    Row("POST", S + "/complete", (RUN,), body={"code": "prin"}),
    Row("POST", S + "/inspect", (RUN,), body={"code": "print"}),
    Row("GET", S + "/variables", (RUN,)),
    Row("GET", S + "/variables/{variable}", (RUN,), 409),
    Row("POST", S + "/branch", (RUN,), 409, body={"session": "{session}"}),
    Row("POST", S + "/explore", (RUN,), 200, body={"cells": ["1"]}),
    Row("GET", S + "/tree", (READ,)),
    Row("GET", S + "/checkpoints", (READ,)),
    Row("POST", S + "/checkpoints", (RUN,), 201, body={}, ends=True),
    Row("POST", S + "/rollback", (RUN,), body={}, ends=True),
    Row("POST", S + "/undo", (RUN,), ends=True),
    Row("DELETE", S + "/checkpoints/{checkpoint}", (RUN,), 204, ends=True),
    Row("POST", S + "/execute", (RUN,), body=CODE, makes=True),
    Row(
        "POST",
        S + "/execute-blocks",
        (RUN,),
        body={"blocks": [{"language": "python", "code": "1"}]},
        makes=True,
    ),
    Row("GET", S + "/executions", (READ,)),
    Row("GET", X, (READ,)),
    Row("POST", X + "/cancel", (RUN,), 409),
    Row("POST", X + "/input", (RUN,), 404, body={"value": "x"}),
    Row("GET", X + "/output/{index}", (READ,)),
    Row("GET", S + "/processes", (READ,)),
    Row("POST", S + "/processes", (RUN,), body={"argv": ["true"]}, makes=True),
    Row("GET", P, (READ,)),
    Row("DELETE", P, (RUN,), 204),
    Row("POST", P + "/input", (RUN,), 409, body={"data": "x"}),
    Row("POST", P + "/signal", (RUN,), 409, body={"signal": "SIGINT"}),
    Row("POST", S + "/ports/{port}", (RUN,)),
    Row("GET", S + "/events", (READ,)),
    Row("GET", S + "/ws", (READ,), 101, headers=WEBSOCKET),
    Row("GET", S + "/notebook", (READ,)),
    Row("POST", S + "/replay", (RUN, READ)),
    Row("GET", S + "/bundle", (READ,)),
    Row("GET", S + "/widgets", (READ,)),
    Row("POST", S + "/widgets/{widget}", (RUN,), 404, body={"state": {"value": 1}}),
    Row("GET", S + "/audit", (READ,)),
    Row("GET", S + "/audit/verify", (READ,)),
    Row("GET", S + "/packages", (PACKAGES,)),
    Row("POST", S + "/packages", (PACKAGES,), 403, body={"install": ["six"]}),
    Row("GET", S + "/files", (FILES,)),
    Row(
        "POST",
        S + "/files",
        (FILES,),
        201,
        body=b'--x\r\nContent-Disposition: form-data; name="f"; filename="g.txt"\r\n\r\nhi\r\n--x--\r\n',
        headers={"Content-Type": "multipart/form-data; boundary=x"},
        makes=True,
    ),
    Row("GET", S + "/files/{path}", (FILES,)),
    Row("HEAD", S + "/files/{path}", (FILES,)),
    Row(
        "PUT",
        S + "/files/{path}",
        (FILES,),
        body=b"data",
        headers={"Content-Type": "application/octet-stream"},
        makes=True,
    ),
    Row("POST", S + "/files/{path}", (FILES,), 409, query="mkdir", makes=True),
    Row("DELETE", S + "/files/{path}", (FILES,), 204, ends=True),
    Row("PATCH", S, (RUN,), body={"title": "t"}),
    Row("DELETE", S, (RUN,), 204, ends=True),
]
JUPYTER_ROWS = [
    Row("GET", "/api/status", (READ,), of="own"),
    Row("GET", "/api/kernelspecs", (), of="everybody"),
    Row("GET", "/api/kernelspecs/{name}", (), of="everybody"),
    Row("GET", "/kernelspecs/{name}/{file}", (), 404, of="everybody"),
    Row("GET", "/api/kernels", (READ,), of="own"),
    Row("POST", "/api/kernels", (RUN,), 201, of="own", body={}),
    Row("GET", K, (READ,)),
    Row("POST", K + "/interrupt", (RUN,), 204),
    Row("POST", K + "/restart", (RUN,)),
    Row("GET", K + "/channels", (RUN, READ), 101, headers=WEBSOCKET),
    Row("GET", "/api/sessions", (READ,), of="own"),
    Row("POST", "/api/sessions", (RUN,), 201, of="own", body={"path": "own.ipynb"}),
    Row("GET", "/api/sessions/{session}", (READ,)),
    Row("PATCH", "/api/sessions/{session}", (RUN,), body={"name": "other"}),
    Row("DELETE", "/api/sessions/{session}", (RUN,), 204, ends=True),
    Row("DELETE", K, (RUN,), 204, ends=True),
]


def named(row: Row) -> str:
    return f"{row.method} {row.path}"


def test_every_route_has_a_row() -> None:
    for table, rows in ((TABLE, ROWS), (JUPYTER, JUPYTER_ROWS), (CONSOLE, [])):
        routes = {
            (method, path)
            for path, handler in table
            for method in handler.methods()
            if method != "HEAD" or handler.head is not handler.get
        }
        assert {(row.method, row.path) for row in rows} == routes - PUBLIC


class World:
    """A gateway with users, and Alice's session with a cell, a file and an open document."""

    def __init__(self, gateway: GatewayProcess) -> None:
        self.gateway = gateway
        self.tokens: dict[str, str] = {}
        self._scoped: dict[frozenset[Permission], str] = {}
        with open_users(gateway.data_dir, create=True) as store:
            for name, role in (("alice", "user"), ("bob", "user"), ("olga", "auditor"), ("root", "admin")):
                store.add_user(name, Role(role))
                self.tokens[name] = store.create_token(name, reach=Reach())[1]
            self.tokens["expired"] = store.create_token("alice", expires_at=time.time(), reach=Reach())[1]
            revoked, self.tokens["revoked"] = store.create_token("alice", reach=Reach())
            store.revoke_token(revoked.id)
            self.tokens["elsewhere"] = store.create_token("alice", reach=Reach("elsewhere-"))[1]
            self.tokens["one"] = store.create_token("alice", reach=Reach("one", exact=True))[1]
            for row in [*ROWS, *JUPYTER_ROWS]:
                rest = frozenset(Permission) - frozenset(row.needs)
                if rest not in self._scoped:
                    self._scoped[rest] = store.create_token("alice", scopes=rest, reach=Reach())[1]
        self.values = self.session("alice")

    def without(self, row: Row) -> str:
        """A token of Alice's with all scopes but those that the row needs."""
        return self._scoped[frozenset(Permission) - frozenset(row.needs)]

    def session(self, owner: str) -> dict[str, str]:
        """A session with content; what stands for the placeholders of paths."""
        key = str(uuid.uuid4())  # which is also the id of its kernel for Jupyter's clients
        token = self.tokens[owner]
        assert self.gateway.post("/v1/sessions", {"session": key}, token=token).status == 201
        kept = self.gateway.post(f"/v1/sessions/{key}/checkpoints", {"name": "kept"}, token=token)
        assert kept.status == 201, kept.body
        result = self.gateway.post(
            f"/v1/sessions/{key}/execute", {"code": "print('x' * 5)\n40 + 2"}, token=token
        )
        assert result.status == 200, result.body
        self.put(owner, key)
        ran = self.gateway.post(f"/v1/sessions/{key}/processes", {"argv": ["true"]}, token=token)
        assert ran.status == 200, ran.body
        path = f"{owner}-{key}.ipynb"
        document = self.gateway.post("/api/sessions", {"path": path, "kernel": {"id": key}}, token=token)
        assert document.status == 201, document.body
        return {
            "session": key,
            "kernel": key,
            "execution": result.json()["execution"],
            "index": "0",
            "port": "8000",
            "process": ran.json()["process"],
            "checkpoint": "kept",
            "variable": "In",
            "environment": "none",
            "widget": "none",
            "user": "me",
            "token": "0123456789ab",
            "secret": "MISSING",
            "path": "f.txt",
            "name": "python3",
            "file": "kernel.css",
            "document": document.json()["id"],
        }

    def put(self, owner: str, key: str) -> None:
        """Put the file that the rows are about into a session."""
        answer = self.gateway.request(
            "PUT",
            f"/v1/sessions/{key}/files/f.txt",
            b"x",
            token=self.tokens[owner],
            headers={"Content-Type": "application/octet-stream"},
        )
        assert answer.status in {200, 201}, answer.body

    def ask(
        self, row: Row, token: str | None, *, query: str = "", values: dict[str, str] | None = None
    ) -> Response:
        """Send the row's request with this token."""
        values = values or self.values
        if row.path.startswith("/api/sessions/"):
            values = values | {"session": values["document"]}
        body = row.body
        if isinstance(body, dict):
            body = {
                name: value.format(**values) if isinstance(value, str) else value
                for name, value in body.items()
            }
        asked = "&".join(filter(None, (row.query, query.removeprefix("?"))))
        path = row.path.format(**values) + (f"?{asked}" if asked else "")
        return self.gateway.request(row.method, path, body, token=token, headers=row.headers, timeout=120)

    def state(self) -> tuple[str, str, list[dict[str, Any]]]:
        """What a refused request must not change."""
        alice = self.tokens["alice"]
        model = self.gateway.get(f"/v1/sessions/{self.values['session']}", token=alice).json()
        sessions = self.gateway.get("/v1/sessions", token=alice).json()["sessions"]
        return model["head"], model["kernel_id"], [{**each, "last_activity": ""} for each in sessions]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("access") / "data"
    with serving(folder, ports_port=0, ports_url="https://*.ports.example.org") as gateway:
        yield World(gateway)


def reason(answer: Response) -> str:
    return str(answer.json()["reason"]) if answer.body else ""


def refused(world: World, row: Row, status: int, *tokens: str | None, query: str = "") -> None:
    before = world.state()
    for token in tokens:
        answer = world.ask(row, token, query=query)
        assert answer.status == status, (token, answer.body)
        if row.method != "HEAD":
            assert reason(answer) == {401: "not_authenticated", 403: "forbidden", 404: "not_found"}[status]
        assert world.values["session"].encode() not in answer.body or row.of == "session"
    assert world.state() == before


ALL = [pytest.param(row, id=named(row)) for row in [*ROWS, *JUPYTER_ROWS]]
OF_SESSIONS = [pytest.param(row, id=named(row)) for row in [*ROWS, *JUPYTER_ROWS] if row.of == "session"]


@pytest.mark.parametrize("row", ALL)
def test_without_a_token_that_is_valid(world: World, row: Row) -> None:
    refused(
        world, row, 401, None, "cg_0123456789ab_guessed", world.tokens["revoked"], world.tokens["expired"]
    )


@pytest.mark.parametrize("row", [param for param in ALL if param.values[0].needs])  # type: ignore[union-attr]
def test_with_a_token_whose_scopes_lack_what_it_needs(world: World, row: Row) -> None:
    refused(world, row, 403, world.without(row))


@pytest.mark.parametrize("row", OF_SESSIONS)
def test_a_token_for_other_sessions_of_the_same_user(world: World, row: Row) -> None:
    refused(world, row, 404, world.tokens["elsewhere"], world.tokens["one"])


@pytest.mark.parametrize("record", [None, False, True])
@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson", "text/event-stream"])
def test_a_token_for_one_session_runs_no_one_shot(world: World, record: bool | None, accept: str) -> None:
    """Recorded or not, it is another session."""
    body = CODE if record is None else CODE | {"record": record}
    row = Row("POST", "/v1/execute", (RUN,), of="own", body=body, headers={"Accept": accept})
    refused(world, row, 403, world.tokens["one"])


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions", {}),
        ("/v1/sessions", {"session": "one"}),
        ("/api/kernels", {}),
        ("/api/sessions", {"path": "of-one.ipynb"}),
    ],
)
def test_whatever_a_token_for_one_session_makes_is_that_session(
    world: World, path: str, body: dict[str, str]
) -> None:
    def sessions() -> set[str]:
        listed = world.gateway.get("/v1/sessions?state=live", token=world.tokens["alice"]).json()["sessions"]
        return {each["session"] for each in listed}

    before = sessions()
    made = world.gateway.post(path, body, token=world.tokens["one"], timeout=120)
    assert made.status == 201, made.body
    assert sessions() - before == {"one"}
    for alternative in ("branch", "explore"):
        asked = {"cells": ["1"]} if alternative == "explore" else {}
        answer = world.gateway.post(f"/v1/sessions/one/{alternative}", asked, token=world.tokens["one"])
        assert (answer.status, answer.reason) == (403, "forbidden"), answer.body
    assert world.gateway.delete("/v1/sessions/one", token=world.tokens["one"]).status == 204


@pytest.mark.parametrize("row", [param for param in OF_SESSIONS if param.values[0].path.startswith("/v1")])  # type: ignore[union-attr]
def test_another_user_who_names_the_owner(world: World, row: Row) -> None:
    refused(world, row, 404, world.tokens["bob"], query="?principal=alice")


@pytest.mark.parametrize("row", [param for param in OF_SESSIONS if not param.values[0].makes])  # type: ignore[union-attr]
def test_another_user_who_knows_the_key(world: World, row: Row) -> None:
    if row.needs == (PACKAGES,) and row.method == "POST":
        # This gateway allows no packages, which is said before anything is looked for.
        assert world.ask(row, world.tokens["bob"]).json()["reason"] == "packages_not_allowed"
        return
    refused(world, row, 404, world.tokens["bob"])


@pytest.mark.parametrize("row", [param for param in OF_SESSIONS if param.values[0].makes])  # type: ignore[union-attr]
def test_a_key_is_each_users_own(world: World, row: Row) -> None:
    values = world.session("alice")
    path = f"/v1/sessions/{values['session']}"
    before = world.gateway.get(path, token=world.tokens["alice"]).json()
    assert world.ask(row, world.tokens["bob"], values=values).status in {row.status, 201}
    assert world.gateway.delete(path, token=world.tokens["bob"]).status == 204
    assert world.gateway.get(path, token=world.tokens["alice"]).json() == before
    assert world.gateway.delete(path, token=world.tokens["alice"]).status == 204


def allowed(world: World, row: Row, who: str, query: str) -> None:
    values = world.session("alice") if row.ends else None
    answer = world.ask(row, world.tokens[who], query=query, values=values)
    # A session of the sender's own may have to be made first.
    made = row.of == "own" and row.path == "/v1/sessions" and who != "alice"
    assert answer.status == (201 if made and row.method == "POST" else row.status), answer.body
    if made and row.method == "POST":
        # Else the sender would have a session with the key that is Alice's in all other tests.
        ended = world.gateway.delete(f"/v1/sessions/{world.values['session']}", token=world.tokens[who])
        assert ended.status == 204, ended.body
    if row.status in {400, 403, 404, 409}:
        # Allowed, but there is nothing to do: no refusal of access.
        assert reason(answer) not in {"forbidden", "not_authenticated"}
    if row.path == S + "/restart" or row.path.endswith("/files/{path}"):
        world.put("alice", world.values["session"])
    if values is not None and not row.path.startswith("/api"):
        world.gateway.delete(f"/v1/sessions/{values['session']}", token=world.tokens["alice"])


@pytest.mark.parametrize("row", [param for param in ALL if param.values[0].path not in OF_OPERATORS])  # type: ignore[union-attr]
def test_its_owner(world: World, row: Row) -> None:
    if row.of == "users":
        refused(world, row, 403, world.tokens["alice"])
    else:
        allowed(world, row, "alice", "")


@pytest.mark.parametrize("row", [param for param in ALL if param.values[0].path.startswith("/v1")])  # type: ignore[union-attr]
def test_an_administrator(world: World, row: Row) -> None:
    allowed(world, row, "root", "?principal=alice" if row.of == "session" else "")


@pytest.mark.parametrize("row", [param for param in ALL if param.values[0].path.startswith("/v1")])  # type: ignore[union-attr]
def test_an_auditor(world: World, row: Row) -> None:
    query = "?principal=alice" if row.of == "session" else ""
    if set(row.needs) <= {READ, METRICS, USERS} and row.of != "users":
        allowed(world, row, "olga", query)
    else:
        refused(world, row, 403, world.tokens["olga"], query=query)


@pytest.mark.parametrize("row", [param for param in OF_SESSIONS if param.values[0].path.startswith("/api")])  # type: ignore[union-attr]
def test_jupyters_interface_knows_nobody_elses_for_an_administrator(world: World, row: Row) -> None:
    """Nobody can be named there."""
    refused(world, row, 404, world.tokens["root"])


@pytest.mark.parametrize("row", [param for param in OF_SESSIONS if param.values[0].path.startswith("/api")])  # type: ignore[union-attr]
def test_jupyters_interface_knows_nobody_elses_for_an_auditor(world: World, row: Row) -> None:
    refused(world, row, 404 if set(row.needs) <= {READ} else 403, world.tokens["olga"])


@pytest.mark.parametrize("path", sorted(OF_OPERATORS))
def test_what_is_about_everybody_is_for_who_runs_the_gateway(world: World, path: str) -> None:
    people = ("alice", "olga", "root")
    statuses = {who: world.gateway.get(path, token=world.tokens[who]).status for who in people}
    assert statuses == {"alice": 403, "olga": 200, "root": 200}


def test_a_list_holds_ones_own_sessions_only(world: World) -> None:
    def keys(who: str, query: str = "") -> set[tuple[str, str]]:
        answer = world.gateway.get(f"/v1/sessions{query}", token=world.tokens[who])
        assert answer.status == 200, answer.body
        return {(each["principal"], each["session"]) for each in answer.json()["sessions"]}

    of_alice = ("alice", world.values["session"])
    assert of_alice in keys("alice")
    assert {owner for owner, _ in keys("alice")} == {"alice"}
    assert of_alice not in keys("bob") | keys("olga") | keys("root")
    assert of_alice in keys("olga", "?principal=alice") & keys("root", "?principal=*")
    assert keys("elsewhere") == set()
    for query in ("?principal=alice", "?principal=*"):
        assert world.gateway.get(f"/v1/sessions{query}", token=world.tokens["bob"]).reason == "not_found"


def test_a_page_begins_after_no_session_that_is_out_of_reach(world: World) -> None:
    for key in (world.values["session"], "nobody-has-this"):
        path = f"/v1/sessions?after={key}"
        assert world.gateway.get(path, token=world.tokens["elsewhere"]).reason == "not_found"
    assert world.gateway.get(
        f"/v1/sessions?after={world.values['session']}", token=world.tokens["alice"]
    ).json()


def test_a_bundle_holds_files_for_who_may_read_files(world: World) -> None:
    def names(token: str, query: str = "") -> set[str]:
        answer = world.gateway.get(f"/v1/sessions/{world.values['session']}/bundle{query}", token=token)
        return set(zipfile.ZipFile(io.BytesIO(answer.body)).namelist())

    whole = names(world.tokens["alice"])
    files = {name for name in whole if name.endswith("f.txt")}
    assert len(files) == 1
    reader = world.without(next(row for row in ROWS if row.path == S + "/files" and row.method == "GET"))
    assert not files & names(reader)
    assert not files & names(world.tokens["olga"], "?principal=alice")
    assert files <= names(world.tokens["root"], "?principal=alice")


def test_the_list_of_everybodys_sessions_comes_in_pages(world: World) -> None:
    found = []
    query = "/v1/sessions?principal=*&limit=1"
    following: str | None = ""
    while following is not None:
        page = world.gateway.get(
            query + (f"&after={following}" if following else ""), token=world.tokens["root"]
        ).json()
        found += [(each["principal"], each["session"]) for each in page["sessions"]]
        following = page["next"]
    assert len(found) == len(set(found))
    assert ("alice", world.values["session"]) in found


def test_an_idempotency_key_is_each_users_own(world: World) -> None:
    ids = {}
    for who in ("alice", "bob"):
        answer = world.gateway.post(
            "/v1/sessions/twins/execute",
            {"code": f"'{who}'"},
            token=world.tokens[who],
            headers={"Idempotency-Key": "the-same"},
        )
        assert answer.json()["text"] == f"'{who}'"
        ids[who] = answer.json()["execution"]
    assert ids["alice"] != ids["bob"]
    for who in ("alice", "bob"):
        assert world.gateway.delete("/v1/sessions/twins", token=world.tokens[who]).status == 204


def test_a_session_that_a_repeat_finds_is_within_the_tokens_reach_and_each_users_own(world: World) -> None:
    """The key is made of `Idempotency-Key`, so one user must not find another's."""
    found = {}
    for who in ("alice", "bob", "one"):
        answers = [
            world.gateway.post(
                "/v1/sessions", {}, token=world.tokens[who], headers={"Idempotency-Key": "known to all"}
            )
            for _ in range(2)
        ]
        assert [answer.status for answer in answers] == [201, 200]
        first, second = (answer.json()["session"] for answer in answers)
        assert first == second
        found[who] = first
        assert world.gateway.delete(f"/v1/sessions/{first}", token=world.tokens[who]).status == 204
    assert found["one"] == "one"


def test_sessions_are_counted_for_who_asks(world: World) -> None:
    def live(who: str) -> int:
        return sum(world.gateway.get("/v1/info", token=world.tokens[who]).json()["sessions"].values())

    assert live("alice") >= 1
    assert live("bob") == 0
    assert live("root") >= live("alice")


def test_only_an_administrator_purges(world: World) -> None:
    values = world.session("alice")
    path = f"/v1/sessions/{values['session']}?purge=true"
    assert world.gateway.delete(path, token=world.tokens["alice"]).reason == "forbidden"
    assert world.gateway.delete(f"{path}&principal=alice", token=world.tokens["root"]).status in {202, 204}
    answer = world.gateway.get(f"/v1/sessions/{values['session']}", token=world.tokens["alice"])
    assert answer.status == 404 or answer.json()["state"] == "purging"
