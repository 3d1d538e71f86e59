"""The audit trail over HTTP and by command, and wrong tokens that become slow refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellgate.identity.principal import Permission, Reach, Role
from cellgate.identity.store.opening import open_users
from cellgate.identity.store.user_file import PRINCIPALS
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.location import RECORD
from tests.conftest import StartGateway
from tests.support.commands import cellgate
from tests.support.server import GatewayProcess, Response, until

UPGRADE = {
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}
ROLES = {"ada": Role.USER, "olga": Role.AUDITOR, "root": Role.ADMIN}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


@pytest.fixture
def tokens(data: Path) -> dict[str, str]:
    """A token of a user, an auditor and an administrator, and one of the latter that reaches little."""
    data.mkdir(mode=0o700)
    made = {}
    with open_users(data, create=True) as store:
        for name, role in ROLES.items():
            store.add_user(name, role)
            made[name] = store.create_token(name, reach=Reach())[1]
        made["narrow"] = store.create_token("root", reach=Reach("a-"))[1]
        made["files"] = store.create_token("ada", scopes=frozenset({Permission.FILES}), reach=Reach())[1]
    return made


def trail(gateway: GatewayProcess, token: str, *kinds: str) -> list[dict[str, Any]]:
    """The entries of these types, page by page."""
    found: list[dict[str, Any]] = []
    after: int | None = 0
    while after is not None:
        page = gateway.get(f"/v1/audit?limit=3&after={after}", token=token).json()
        found += [each["entry"] for each in page["entries"]]
        after = page["next"]
    assert [entry["seq"] for entry in found] == list(range(1, len(found) + 1))
    return [entry for entry in found if entry["type"] in kinds]


def test_what_was_done_and_refused_is_in_the_trail(
    start_gateway: StartGateway, data: Path, tokens: dict[str, str]
) -> None:
    gateway = start_gateway(data)
    olga = tokens["olga"]
    until(lambda: len(trail(gateway, olga, "act")) == 8, "acts before the start")
    with open_users(data) as store:
        store.set_disabled("ada", disabled=True)
    until(lambda: trail(gateway, olga, "act")[-1]["act"] == "user_disabled", "an act while it serves")

    wrong = "a-secret-that-opens-nothing"
    assert gateway.get("/v1/sessions", token=wrong).status == 401
    assert gateway.get(f"/v1/sessions?token={wrong}", token=None).status == 401
    assert gateway.get("/v1/sessions", token=None).status == 401
    assert gateway.get("/v1/sessions", headers={"Host": "evil.example"}).status == 403
    assert gateway.get("/v1/sessions", headers={"Origin": "https://evil.example"}).status == 403
    assert gateway.post("/v1/execute", {"code": "'a-cell-s-code'"}, token=olga).status == 403
    assert gateway.get("/v1/sessions/nobodys?principal=ada", token=olga).status == 404
    assert gateway.delete("/v1/sessions/nobodys?principal=ada", token=tokens["root"]).status == 404
    assert gateway.get("/v1/sessions?principal=*", token=olga).status == 200
    # A token where a session's key belongs.
    assert gateway.get(f"/v1/sessions/{tokens['root']}?principal=ada", token=olga).status == 404
    until(lambda: len(trail(gateway, olga, "access")) == 4, "accesses")
    until(lambda: len(trail(gateway, olga, "refused")) == 5, "refusals")

    access = [
        (each["principal"], each["method"], each["route"], each["owner"], each.get("session"))
        for each in trail(gateway, olga, "access")
    ]
    assert access == [
        ("olga", "GET", "/v1/sessions/{session}", "ada", "nobodys"),
        ("root", "DELETE", "/v1/sessions/{session}", "ada", "nobodys"),
        ("olga", "GET", "/v1/sessions", "*", None),
        ("olga", "GET", "/v1/sessions/{session}", "ada", "..."),
    ]
    refused = trail(gateway, olga, "refused")
    assert {each["address"] for each in refused} == {"127.0.0.1"}
    assert [(each["reason"], each["cause"], each.get("principal")) for each in refused] == [
        ("not_authenticated", "unknown_token", None),
        ("not_authenticated", "no_token", None),
        ("forbidden", "host", None),
        ("forbidden", "origin", None),
        ("forbidden", "permission", "olga"),
    ]
    assert refused[-1]["token"] in olga
    gateway.stop()
    written = b"".join(path.read_bytes() for path in data.glob(f"{RECORD}*"))
    for text in (wrong, "a-cell-s-code", "evil.example", *tokens.values()):
        assert text.encode() not in written
    assert all(found.valid for found in check_record(data / RECORD))
    printed = cellgate("record", "trail", "--after", "8", f"--data-dir={data}").stdout
    assert "  act  number=9" in printed
    assert 'act="user_disabled"' in printed
    lines = [
        json.loads(line)
        for line in cellgate("record", "trail", "--json", f"--data-dir={data}").stdout.splitlines()
    ]
    # The second wrong token was a repeat of the first: it is counted at the end.
    assert [(line["entry"]["cause"], line["entry"]["count"]) for line in lines[-1:]] == [("unknown_token", 1)]
    assert all(len(line["hash"]) == 64 for line in lines)

    assert "next start" not in printed
    with open_users(data) as store:
        store.set_disabled("ada", disabled=False)
        store.add_user("zoe", Role.USER)
    *entries, last = cellgate("record", "trail", "--after", "8", f"--data-dir={data}").stdout.splitlines()
    assert entries == printed.splitlines()
    assert (
        last == "2 acts wait for the next start of the gateway; one that serves enters them within a second"
    )
    assert len(cellgate("record", "trail", "--json", f"--data-dir={data}").stdout.splitlines()) == len(lines)
    (data / PRINCIPALS).write_bytes(b"this is no database" * 1000)
    unknown = cellgate("record", "trail", "--after", "8", f"--data-dir={data}")
    assert (unknown.returncode, unknown.stdout) == (0, printed)
    assert unknown.stderr.startswith("cellgate: how many acts wait is not known: ")


def test_only_administrators_and_auditors_read_the_trail(
    start_gateway: StartGateway, data: Path, tokens: dict[str, str]
) -> None:
    gateway = start_gateway(data)
    statuses = {
        name: gateway.get("/v1/audit", token=token).status for name, token in {**tokens, "none": None}.items()
    }
    assert statuses == {"ada": 403, "olga": 200, "root": 200, "narrow": 403, "files": 403, "none": 401}


def test_a_disabled_users_token_is_told_from_an_unknown_one(
    start_gateway: StartGateway, data: Path, tokens: dict[str, str]
) -> None:
    """In the trail alone, also once there were too many: its bearer reads what they would of a guess."""
    with open_users(data) as store:
        store.set_disabled("ada", disabled=True)
    gateway = start_gateway(data, login_attempts=2)
    unknown = gateway.get("/v1/sessions", token="cg_0123456789ab_nobodys")
    disabled = gateway.get("/v1/sessions", token=tokens["ada"])
    assert unknown.status == disabled.status == 401
    assert unknown.json() == disabled.json()
    assert unknown.headers["WWW-Authenticate"] == disabled.headers["WWW-Authenticate"]
    until(lambda: gateway.get("/v1/info", token=tokens["ada"]).status == 429, "too many attempts")
    until(lambda: len(trail(gateway, tokens["olga"], "refused")) >= 3, "refusals")
    told = {
        (each["reason"], each["cause"], each.get("principal"), each.get("token"))
        for each in trail(gateway, tokens["olga"], "refused")
    }
    ada = tokens["ada"].split("_")[1]
    assert told == {
        ("not_authenticated", "unknown_token", None, None),
        ("not_authenticated", "disabled_user", "ada", ada),
        ("too_many_attempts", "disabled_user", "ada", ada),
    }


# ---- wrong tokens ------------------------------------------------------------------------------------------


def test_wrong_tokens_are_slowed_and_right_ones_are_not(start_gateway: StartGateway) -> None:
    """A failure is forgotten after two seconds, so on a slow machine an attempt may have to be repeated."""
    gateway = start_gateway(login_attempts=2)

    def slowed(ask: Callable[[], Response]) -> Response:
        def refused() -> Response | None:
            answer = ask()
            assert answer.reason in {"not_authenticated", "too_many_attempts"}
            return answer if answer.status == 429 else None

        return until(refused, "an answer that is slow")

    assert gateway.get("/v1/info", token="wrong").status == 401
    for ask in (
        lambda: gateway.get("/v1/info", token="wrong"),
        lambda: gateway.get("/v1/info?token=wrong", token=None),
        lambda: gateway.request("PUT", "/v1/sessions/s/files/x", b"x" * 100, token="wrong"),
        lambda: gateway.get("/v1/sessions/s/ws?token=wrong", token=None, headers=UPGRADE),
        lambda: gateway.get("/v1/nothing", token="wrong"),
    ):
        assert int(slowed(ask).headers["Retry-After"]) >= 1
    # From the same address: a right token, and none at all, as clients begin that wait to be asked.
    assert gateway.get("/v1/info").status == 200
    assert gateway.get("/v1/info", token=None).status == 401
