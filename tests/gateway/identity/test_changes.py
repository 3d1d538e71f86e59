"""Users and tokens that change while a gateway serves: by the commands, without a restart."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import time
from pathlib import Path

import pytest

from tests.conftest import StartGateway
from tests.support.channels import channels, kinds, raw_socket, text_frame
from tests.support.commands import cellgate, refusal
from tests.support.server import GatewayProcess, until
from tests.support.users import create_token


def user(gateway: GatewayProcess, *words: str) -> None:
    done = cellgate("user", *words, f"--data-dir={gateway.data_dir}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def authorization(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def drain(stream: http.client.HTTPResponse) -> None:
    """Read until the gateway closes the connection, in the middle of a chunked body."""
    with pytest.raises((http.client.IncompleteRead, ConnectionResetError)):
        stream.read()


def test_the_token_is_alone_on_stdout_and_its_id_on_stderr(tmp_path: Path) -> None:
    folder = f"--data-dir={tmp_path}"
    cellgate("user", "add", "ada", folder)
    made = cellgate("token", "create", "--user=ada", folder)
    assert re.fullmatch(r"cg_([0-9a-f]{12})_\S{43}\n", made.stdout)
    assert made.stdout.split("_")[1] in made.stderr
    assert made.stdout.strip() not in made.stderr
    listed = cellgate("token", "list", folder)
    assert made.stdout.split("_")[1] in listed.stdout
    assert made.stdout.strip() not in listed.stdout


def test_a_token_gets_no_scope_that_its_user_s_role_has_not(tmp_path: Path) -> None:
    folder = f"--data-dir={tmp_path}"
    cellgate("user", "add", "ada", folder)
    refused = cellgate("token", "create", "--user=ada", "--scope=run,metrics", folder)
    assert refused.returncode == 2
    assert refused.stderr == (
        "cellgate: ada has the role user, which does not include metrics;"
        " choose from run, read, files, packages, users\n"
    )
    assert cellgate("token", "list", folder).stdout == "No tokens.\n"
    cellgate("user", "role", "ada", "auditor", folder)
    assert cellgate("token", "create", "--user=ada", "--scope=metrics", folder).returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("user", "add", "a b"), "can't be a user's name"),
        (("user", "add", "ada", "--role=root"), "role"),
        (("user", "ad", "ada"), "did you mean add?"),
        (("user", "add"), "usage: cellgate user add NAME"),
        (("user", "remove", "eve"), "cellgate user add makes one"),
        (("user", "role", "eve"), "usage: cellgate user role NAME user|admin|auditor"),
        (("user", "role", "eve", "root"), "there is no role 'root'; choose from user, admin, auditor"),
        (("token", "create"), "--user NAME"),
        (("token", "create", "--user=ada", "--expires=soon"), "90s, 12h, 30d"),
        (("token", "create", "--user=ada", "--scope=root"), "There is no scope 'root'"),
    ],
)
def test_what_can_not_be_done_is_said(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    done = cellgate(*words, f"--data-dir={tmp_path}")
    assert done.returncode in {1, 2}
    assert said in done.stderr


async def test_a_revoked_token_closes_what_it_opened(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    user(gateway, "add", "ada")
    name, text = create_token(gateway, "ada")
    _, kept = create_token(gateway, "ada")
    assert gateway.post("/v1/sessions/s/execute", {"code": "x = 1"}, token=text).status == 200
    with gateway.stream("GET", "/v1/sessions/s/events", **authorization(text)) as events:
        async with (
            channels(gateway, "s", headers=authorization(text)) as closing,
            channels(gateway, "s", headers=authorization(kept)) as other,
        ):
            cellgate("token", "revoke", name, f"--data-dir={gateway.data_dir}")
            assert await closing.closed() == (1008, "The token has ended, or its role has changed")
            drain(events)
            answer = gateway.get("/v1/sessions/s", token=text)
            assert (answer.status, answer.reason) == (401, "not_authenticated")
            # Another token of the same user is not affected, nor is the session.
            assert "execute_result" in kinds(await other.run("x"))
    result = gateway.post("/v1/sessions/s/execute", {"code": "x"}, token=kept).json()
    assert result["text"] == "1"


def test_a_token_ends_when_its_time_is_over(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    user(gateway, "add", "ada")
    _, lasting = create_token(gateway, "ada")
    assert gateway.post("/v1/sessions", {"session": "s"}, token=lasting).status == 201
    _, text = create_token(gateway, "ada", "--expires=6s")
    with gateway.stream("GET", "/v1/sessions/s/events", **authorization(text)) as events:
        drain(events)
    answer = gateway.get("/v1/sessions/s", token=text)
    assert answer.status == 401
    assert "expired" in answer.json()["detail"]


def test_the_sessions_of_a_disabled_user_end_and_the_record_stays(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    user(gateway, "add", "ada")
    user(gateway, "add", "bob")
    _, text = create_token(gateway, "ada")
    _, of_bob = create_token(gateway, "bob")
    for each in (text, of_bob):
        assert gateway.post("/v1/sessions/s/execute", {"code": "6 * 7"}, token=each).status == 200
    user(gateway, "disable", "ada")
    assert gateway.get("/v1/sessions/s", token=text).status == 401

    def ended() -> bool:
        model = gateway.get("/v1/sessions/s?principal=ada").json()
        return (model["state"], model["cause"]) == ("ended", "user_disabled")

    until(ended, "the session has not ended")
    assert gateway.get("/v1/sessions/s/notebook?principal=ada").status == 200
    assert gateway.get("/v1/sessions/s", token=of_bob).json()["state"] == "idle"
    user(gateway, "enable", "ada")
    assert gateway.get("/v1/sessions/s", token=text).status == 200
    result = gateway.post("/v1/sessions/s/execute", {"code": "1"}, token=text).json()
    assert result["status"] == "ok"


def test_what_a_removed_user_runs_queues_and_waits_for_ends_with_them(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=0, max_kernels=1, claim_timeout=60)
    user(gateway, "add", "ada")
    _, text = create_token(gateway, "ada")
    sleeping = {"argv": ["sleep", "600"], "wait": False}
    process = gateway.post("/v1/sessions/s/processes", sleeping, token=text).json()["process"]
    with contextlib.ExitStack() as stack:
        waiting = []
        for path, body in (
            ("/v1/sessions/s/execute", {"code": "import time; time.sleep(600)"}),
            ("/v1/sessions/s/execute", {"code": "2"}),
            ("/v1/sessions/next/execute", {"code": "in line"}),
        ):
            headers = {"Accept": "application/x-ndjson", **authorization(text)}
            connection = gateway.connect()
            stack.callback(connection.close)
            connection.request(
                "POST", path, json.dumps(body), {"Content-Type": "application/json", **headers}
            )
            waiting.append(connection.getresponse())
            assert waiting[-1].status == 200
        assert json.loads(waiting[-1].readline())["waiting_for"] == "kernel"
        used = gateway.get("/v1/me", token=text).json()["quotas"]
        assert [used[name]["used"] for name in ("sessions", "running", "queued")] == [2, 1, 1]
        user(gateway, "remove", "ada")
        for stream in waiting:
            drain(stream)

    def ended() -> bool:
        model = gateway.get("/v1/sessions/s?principal=ada").json()
        return (model["state"], model["cause"]) == ("ended", "user_removed")

    until(ended, "the session has not ended")
    page = gateway.get("/v1/sessions/s/events?principal=ada").json()["events"]
    ends = [
        (event["type"], event["cause"]) for event in page if event["type"] in {"process_exited", "finished"}
    ]
    assert sorted(ends) == [
        ("finished", "user_removed"),
        ("finished", "user_removed"),
        ("process_exited", "user_removed"),
    ]
    assert next(event["process"] for event in page if event["type"] == "process_exited") == process
    assert gateway.get("/v1/sessions/next?principal=ada").status == 404, "it waited, and was not made"
    assert gateway.post("/v1/sessions", {"session": "mine"}).status == 201, "the kernel's place is free"
    assert "Traceback" not in gateway.log.read_text()


async def test_another_role_is_that_of_a_users_tokens_at_once(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    user(gateway, "add", "ada", "--role=admin")
    _, text = create_token(gateway, "ada")
    run = "/v1/sessions/s/execute"
    assert gateway.post(run, {"code": "x = 1"}, token=text).status == 200
    assert gateway.get("/v1/sessions?principal=*", token=text).status == 200
    with gateway.stream("GET", "/v1/sessions/s/events", **authorization(text)) as events:
        async with channels(gateway, "s", headers=authorization(text)) as closing:
            user(gateway, "role", "ada", "user")
            assert await closing.closed() == (1008, "The token has ended, or its role has changed")
            drain(events)
    # It is the same token, of a user now, and the session goes on.
    assert gateway.get("/v1/sessions?principal=*", token=text).status == 404
    assert gateway.get("/metrics", token=text).status == 403
    assert gateway.post(run, {"code": "x"}, token=text).json()["text"] == "1"
    user(gateway, "role", "ada", "auditor")
    assert gateway.post(run, {"code": "x"}, token=text).status == 403
    assert gateway.get("/metrics", token=text).status == 200
    assert gateway.get("/v1/sessions/s", token=text).json()["state"] == "idle"

    def recorded() -> bool:
        trail = [each["entry"] for each in gateway.get("/v1/audit?limit=1000").json()["entries"]]
        acts = [entry for entry in trail if entry.get("act") == "user_role_changed"]
        return [(act["user"], act["role"]) for act in acts] == [("ada", "user"), ("ada", "auditor")]

    until(recorded, "the changes are not in the audit trail")


def test_what_a_command_has_changed_counts_when_it_returns(start_gateway: StartGateway) -> None:
    """Each request is the first after a command, whether or not the gateway has looked at the file since."""
    gateway = start_gateway()
    user(gateway, "add", "ada")
    for _ in range(3):
        name, text = create_token(gateway, "ada")
        user(gateway, "disable", "ada")
        assert gateway.get("/v1/me", token=text).status == 401
        user(gateway, "enable", "ada")
        assert gateway.get("/v1/me", token=text).status == 200
        cellgate("token", "revoke", name, f"--data-dir={gateway.data_dir}")
        assert gateway.get("/v1/me", token=text).status == 401


def test_users_may_be_there_before_the_gateway(tmp_path: Path, start_gateway: StartGateway) -> None:
    data = tmp_path / "data"
    cellgate("user", "add", "ada", f"--data-dir={data}")
    text = cellgate("token", "create", "--user=ada", f"--data-dir={data}").stdout.strip()
    gateway = start_gateway(data)
    assert gateway.get("/v1/sessions", token=text).status == 200
    # The gateway's own token stays that of its administrator.
    assert gateway.get("/v1/sessions?principal=*").status == 200


@pytest.mark.parametrize("words", [("--no-auth",), ("--e2b-debug", "--doors=e2b")])
def test_a_gateway_without_tokens_does_not_start_over_users(tmp_path: Path, words: tuple[str, ...]) -> None:
    data = tmp_path / "data"
    cellgate("user", "add", "ada", f"--data-dir={data}")
    code, said = refusal(*words, "--port=0", f"--data-dir={data}", "--backend=process")
    assert code == 2
    assert f"{words[0]} would make everybody the administrator" in said


def test_a_token_without_packages_installs_none_by_a_cell_either(start_gateway: StartGateway) -> None:
    gateway = start_gateway(packages=["*"])
    user(gateway, "add", "ada")
    _, text = create_token(gateway, "ada", "--scope=run")
    path = "/v1/sessions/s/execute"
    result = gateway.post(path, {"code": "%pip install six"}, token=text).json()
    assert result["error"]["ename"] == "PackagesNotAllowed"
    answer = gateway.post(path, {"code": "1", "packages": "auto"}, token=text)
    assert (answer.status, answer.reason) == (403, "packages_not_allowed")
    assert gateway.post(path, {"code": "1"}, token=text).json()["status"] == "ok"
    # A replay of the refused cell is refused again, not run with more than its sender may do.
    _, reader = create_token(gateway, "ada", "--scope=run,read")
    report = gateway.post("/v1/sessions/s/replay", {}, token=reader).json()
    assert (report["verdict"], report["different"]) == ("equal", 0), report


def test_a_token_without_files_gets_the_order_of_none(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    user(gateway, "add", "ada")
    _, text = create_token(gateway, "ada", "--scope=run,read")
    assert gateway.post("/v1/sessions/s/execute", {"code": "1"}, token=text).status == 200
    answer = gateway.get("/v1/sessions/s/notebook?order=page&file=a.ipynb", token=text)
    assert (answer.status, answer.reason) == (403, "forbidden")
    assert gateway.get("/v1/sessions/s/notebook", token=text).status == 200


def test_a_websocket_that_does_not_answer_the_end_of_its_token_is_not_heard(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway()
    user(gateway, "add", "ada")
    name, text = create_token(gateway, "ada")
    _, kept = create_token(gateway, "ada")
    assert gateway.post("/v1/sessions", {"session": "s"}, token=kept).status == 201
    with raw_socket(gateway, "s", token=text) as connection:
        cellgate("token", "revoke", name, f"--data-dir={gateway.data_dir}")
        assert gateway.get("/v1/me", token=text).status == 401
        connection.settimeout(60)
        # It never answers the close frame, and goes on sending until the connection is gone.
        header = {
            "msg_id": "a",
            "msg_type": "execute_request",
            "username": "",
            "session": "",
            "version": "5.3",
        }
        message = {"header": header, "parent_header": {}, "metadata": {}, "content": {"code": "x = 1"}}
        cell = text_frame(json.dumps({**message, "channel": "shell"}))
        with contextlib.suppress(OSError):
            while True:
                connection.sendall(cell)
                time.sleep(0.05)
    assert gateway.get("/v1/sessions/s/executions", token=kept).json()["executions"] == []
