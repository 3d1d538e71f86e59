"""Quotas of principals on a real gateway: what is refused, how, and what `GET /v1/me` says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tornado.httpclient import HTTPRequest

from cellgate.identity.principal import Reach, Role
from cellgate.identity.store.opening import open_users
from cellgate.quotas.usage import COUNTED
from tests.conftest import NO_ENGINE, serving
from tests.support.commands import refusal
from tests.support.requirements import require
from tests.support.server import TOKEN, GatewayProcess, Response, together, until
from tests.support.websockets import websocket

QUOTAS = """
[roles.user]
max_memory = "512m"
max_cell_timeout = 30

[roles.auditor]
requests_per_minute = 5

[principals.five]
sessions = 5

[principals.turns]
running = 1
queued = 1

[principals.widget]
running = 1
queued = 1

[principals.quick]
requests_per_minute = 5

[principals.socket]
requests_per_minute = 3

[principals.bytes]
bytes_per_minute = "64k"
"""
USERS = ("five", "turns", "widget", "quick", "socket", "bytes", "reader", "changes", "seen")
MIB = 1024 * 1024


class Limited:
    """A gateway with quotas, and a token of each user."""

    def __init__(self, gateway: GatewayProcess, file: Path, tokens: dict[str, str]) -> None:
        self.gateway = gateway
        self.file = file
        self.tokens = tokens

    def get(self, who: str, path: str) -> Response:
        return self.gateway.get(path, token=self.tokens[who])

    def post(self, who: str, path: str, body: object) -> Response:
        return self.gateway.post(path, body, token=self.tokens[who], timeout=120)

    def used(self, who: str, quota: str) -> dict[str, float | None]:
        answer: dict[str, float | None] = self.get(who, "/v1/me").json()["quotas"][quota]
        return answer


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Limited]:
    """One for all tests; each has a user of its own."""
    folder = tmp_path_factory.mktemp("limited")
    data = folder / "data"
    data.mkdir()
    tokens = {"default": TOKEN}
    with open_users(data, create=True) as store:
        for name in USERS:
            store.add_user(name, Role.AUDITOR if name == "reader" else Role.USER)
            tokens[name] = store.create_token(name, reach=Reach())[1]
    file = folder / "quotas.toml"
    file.write_text(QUOTAS)
    with serving(data, "auto", docker_url=NO_ENGINE, quotas=file, max_kernels=20) as gateway:
        yield Limited(gateway, file, tokens)


def refused(answer: Response, status: int, quota: str, limit: float, used: float) -> None:
    assert (answer.status, answer.reason) == (status, "quota_exceeded")
    problem = answer.json()
    assert {name: problem[name] for name in ("quota", "limit", "used")} == {
        "quota": quota,
        "limit": limit,
        "used": used,
    }
    assert f"quota {quota} is" in problem["detail"]
    assert ("Retry-After" in answer.headers) == (status == 429)
    if status == 429:
        assert int(answer.headers["Retry-After"]) >= 1


def test_thirty_sessions_at_once_at_a_quota_of_five_give_exactly_five(limited: Limited) -> None:
    answers = together(30, lambda number: limited.post("five", "/v1/sessions", {"session": f"s{number}"}))
    statuses = [answer.status for answer in answers]
    assert (statuses.count(201), statuses.count(403)) == (5, 25)
    refused(next(answer for answer in answers if answer.status == 403), 403, "sessions", 5, 5)
    assert limited.used("five", "sessions") == {"limit": 5, "used": 5}
    assert limited.used("five", "memory") == {"limit": None, "used": 5 * 512 * MIB}
    first = limited.get("five", "/v1/sessions").json()["sessions"][0]["session"]
    assert limited.gateway.delete(f"/v1/sessions/{first}", token=limited.tokens["five"]).status == 204
    assert limited.post("five", "/v1/sessions", {"session": "another"}).status == 201
    one_shot = limited.post("five", "/v1/execute", {"code": "1"})
    refused(one_shot, 403, "sessions", 5, 5)
    jupyter = limited.post("five", "/api/kernels", {})
    assert (jupyter.status, jupyter.json()["quota"]) == (403, "sessions")


def test_me_tells_the_role_and_what_is_used(limited: Limited) -> None:
    me = limited.get("default", "/v1/me").json()
    assert (me["principal"], me["role"]) == ("default", "admin")
    assert me["scopes"] == ["files", "metrics", "packages", "read", "run", "users"]
    assert list(me["quotas"]) == list(COUNTED)
    assert {use["limit"] for use in me["quotas"].values()} == {None}
    reader = limited.get("reader", "/v1/me").json()
    assert (reader["role"], reader["scopes"]) == ("auditor", ["metrics", "read", "users"])
    assert reader["quotas"]["requests_per_minute"]["limit"] == 5


def test_what_everybody_uses_is_told_in_pages_to_who_may_know(limited: Limited) -> None:
    assert limited.post("seen", "/v1/sessions", {}).status == 201
    told, after = [], ""
    while True:
        page = limited.get("default", f"/v1/usage?limit=1&after={after}").json()
        told += page["principals"]
        if not page["next"]:
            break
        after = page["next"]
    names = [each["principal"] for each in told]
    assert names == sorted(set(names))
    (seen,) = [each for each in told if each["principal"] == "seen"]
    assert (seen["role"], list(seen["quotas"])) == ("user", list(COUNTED))
    assert seen["quotas"]["sessions"] == {"limit": None, "used": 1}
    assert limited.get("seen", "/v1/usage").status == 403
    assert limited.get("default", "/v1/usage?limit=0").status == 400


def test_ceilings_are_the_requesters_own(limited: Limited) -> None:
    info = limited.get("changes", "/v1/info").json()
    assert (info["ceilings"]["memory"], info["ceilings"]["cell_timeout"]) == (512 * MIB, 30)
    assert (info["limits"]["memory"], info["limits"]["cell_timeout"]) == (512 * MIB, 30)
    assert limited.get("default", "/v1/info").json()["ceilings"]["cell_timeout"] == 86400
    greedy = limited.post("changes", "/v1/sessions", {"limits": {"memory": "513m"}})
    assert (greedy.status, greedy.reason) == (400, "bad_request")
    assert "above the principal's ceiling max_memory" in greedy.json()["detail"]
    slow = limited.post("changes", "/v1/sessions/s/execute", {"code": "1", "timeout": 31})
    assert (slow.status, slow.reason) == (400, "bad_request")
    assert "above the principal's ceiling max_cell_timeout" in slow.json()["detail"]


def test_cells_above_running_wait_and_too_many_are_refused(limited: Limited) -> None:
    body = {"code": "input()", "wait": False}
    for key in "abc":
        assert limited.post("turns", "/v1/sessions", {"session": key}).status == 201
    first = limited.post("turns", "/v1/sessions/a/execute", body).json()["execution"]
    second = limited.post("turns", "/v1/sessions/b/execute", {"code": "1", "wait": False})
    assert second.status == 202
    assert limited.used("turns", "running") == {"limit": 1, "used": 1}
    assert limited.used("turns", "queued") == {"limit": 1, "used": 1}
    refused(limited.post("turns", "/v1/sessions/c/execute", body), 429, "queued", 1, 1)
    path = f"/v1/sessions/a/executions/{first}/input"
    until(lambda: limited.post("turns", path, {"value": ""}).status == 204, "the cell asks for nothing")
    path = f"/v1/sessions/b/executions/{second.json()['execution']}"
    until(lambda: limited.get("turns", path).json()["status"] == "ok", "the second cell has no turn")
    until(lambda: limited.used("turns", "running")["used"] == 0, "its place stays taken")


def test_requests_above_the_quota_are_told_when_to_come_back(limited: Limited) -> None:
    for _ in range(5):
        assert limited.get("quick", "/v1/sessions").status == 200
    answer = limited.get("quick", "/v1/me")
    refused(answer, 429, "requests_per_minute", 5, 5)
    assert int(answer.headers["Retry-After"]) <= 65
    assert limited.get("five", "/v1/me").status == 200
    metrics = limited.get("default", "/metrics").body.decode()
    assert 'cellgate_quota_refusals_total{quota="requests_per_minute"} ' in metrics
    assert 'cellgate_quota_refusals_total{quota="record"} 0.0' in metrics


def test_bytes_are_counted_both_ways(limited: Limited) -> None:
    token = limited.tokens["bytes"]
    path = "/v1/sessions/s/files/f.bin"
    assert limited.gateway.request("PUT", path, bytes(30_000), token=token).status == 201
    used = limited.used("bytes", "bytes_per_minute")["used"]
    assert used is not None
    assert 30_000 < used < 32_000
    assert len(limited.gateway.get(path, token=token).body) == 30_000
    used = limited.used("bytes", "bytes_per_minute")["used"]
    assert used is not None
    assert 60_000 < used < 64_000
    too_large = limited.gateway.request("PUT", path, bytes(100_000), token=token)
    assert (too_large.status, too_large.json()["quota"]) == (403, "bytes_per_minute")
    later = limited.gateway.request("PUT", path, bytes(30_000), token=token)
    assert (later.status, later.json()["quota"]) == (429, "bytes_per_minute")
    assert int(later.headers["Retry-After"]) >= 1
    connection = limited.gateway.connect()
    try:
        headers = {"Authorization": f"Bearer {token}"}
        connection.request("PUT", path, iter([bytes(4_000)] * 10), headers, encode_chunked=True)
        answer = connection.getresponse()
        problem = json.loads(answer.read())
        assert (answer.status, problem["reason"], problem["quota"]) == (
            429,
            "quota_exceeded",
            "bytes_per_minute",
        )
    finally:
        connection.close()


async def test_each_command_on_a_websocket_is_a_request(limited: Limited) -> None:
    token = limited.tokens["socket"]
    assert limited.post("socket", "/v1/sessions", {"session": "s"}).status == 201
    url = limited.gateway.url.replace("http", "ws") + "/v1/sessions/s/ws?after=1000"
    request = HTTPRequest(url, headers={"Authorization": f"Bearer {token}"})
    answers = []
    async with websocket(request) as opened:
        for number in range(2):
            await opened.write_message(json.dumps({"interrupt": True, "id": number}))
            text = await opened.read_message()
            assert text is not None
            answers.append(json.loads(text))
    assert [answer["type"] for answer in answers] == ["accepted", "problem"]
    assert (answers[1]["status"], answers[1]["quota"]) == (429, "requests_per_minute")


def test_a_changed_file_applies_and_a_bad_one_does_not(limited: Limited) -> None:
    def limit() -> float | None:
        return limited.used("changes", "sessions")["limit"]

    assert limit() is None
    try:
        limited.file.write_text(QUOTAS + "[principals.changes]\nsessions = 7\n")
        until(lambda: limit() == 7, "the change does not apply")
        limited.file.write_text(QUOTAS + "[principals.changes]\nsessions = -7\n")
        until(
            lambda: "The gateway keeps the former quotas" in limited.gateway.log.read_text(),
            "the mistake is not logged",
        )
        assert limit() == 7
    finally:
        limited.file.write_text(QUOTAS)
    until(lambda: limit() is None, "the change back does not apply")
    assert limited.gateway.log.read_text().count("The gateway keeps the former quotas") == 1


def test_a_bad_file_is_a_usage_error(tmp_path: Path) -> None:
    file = tmp_path / "quotas.toml"
    file.write_text("[roles.user]\nsesions = 5\n")
    code, said = refusal("--backend=process", f"--data-dir={tmp_path / 'data'}", f"--quotas={file}")
    assert code == 2
    assert f"{file}: [roles.user] sesions is no quota (did you mean sessions?)" in said
    code, said = refusal("--backend=process", f"--data-dir={tmp_path / 'data'}", f"--quotas={tmp_path}/none")
    assert code == 2
    assert f"{tmp_path}/none can't be read: No such file or directory" in said


BUTTON = """
import pathlib, time, ipywidgets
button = ipywidgets.Button()
button.on_click(lambda _: (pathlib.Path("begun").touch(), time.sleep(600)))
button
"""


def with_button(limited: Limited, session: str) -> str:
    """Show a button whose work goes on until it is interrupted; return the address of its messages."""
    result = limited.post("widget", f"/v1/sessions/{session}/execute", {"code": BUTTON}).json()
    if "No module named 'ipywidgets'" in result["text"]:
        require("ipywidgets", "the kernel environment has no ipywidgets")
    models = limited.get("widget", f"/v1/sessions/{session}/widgets").json()["widgets"]
    (button,) = (each for each, model in models.items() if model["model_name"] == "ButtonModel")
    return f"/v1/sessions/{session}/widgets/{button}"


def test_work_on_a_widgets_message_counts_as_a_cell_that_runs(limited: Limited) -> None:
    one, two = (with_button(limited, session) for session in ("w1", "w2"))
    pressed = {"content": {"event": "click"}}
    with ThreadPoolExecutor(1) as threads:
        pressing = threads.submit(limited.post, "widget", one, pressed)
        until(lambda: any(limited.gateway.workspaces.glob("*/begun")), "the work has not begun")
        assert limited.used("widget", "running") == {"limit": 1, "used": 1}
        cell = limited.post("widget", "/v1/sessions/w3/execute", {"code": "1 + 1", "wait": False})
        assert cell.status == 202
        until(lambda: limited.used("widget", "queued")["used"] == 1, "the cell does not wait")
        refused(limited.post("widget", two, pressed), 429, "queued", 1, 1)
        refused(limited.post("widget", "/v1/sessions/w4/execute", {"code": "1"}), 429, "queued", 1, 1)
        assert limited.post("widget", "/v1/sessions/w1/interrupt", None).status == 204
        answer = pressing.result()
    assert (answer.status, answer.json()["late"]) == (200, False)
    path = f"/v1/sessions/w3/executions/{cell.json()['execution']}"
    until(lambda: limited.get("widget", path).json()["status"] == "ok", "the cell had no turn")
    until(lambda: limited.used("widget", "running")["used"] == 0, "a place was not given back")
