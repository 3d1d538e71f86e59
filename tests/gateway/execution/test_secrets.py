"""Secrets through a real gateway: cells have them, and nobody sees a whole value anywhere."""

from __future__ import annotations

import asyncio
import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

import pytest

from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.location import RECORD
from tests.conftest import StartGateway
from tests.support.channels import channels, is_idle
from tests.support.commands import cellgate
from tests.support.server import GatewayProcess, until

KEY = "sk-live-0123456789"
CERTIFICATE = '-----BEGIN "X"-----\nline é🔑 \\ <two>\n-----END-----'
CODE = """
import os, sys, time
from IPython.display import display, HTML
key, cert = os.environ["API_KEY"], os.environ["CERT"]
print(key, cert)
for letter in key:
    sys.stdout.write(letter); sys.stdout.flush(); time.sleep(0.05)
print(file=sys.stderr, end=key)
display({"application/json": {key: [cert]}, "text/plain": cert}, raw=True)
display(HTML(f"<b>{key}</b>" + "x" * 200_000 + cert))
print("y" * 200_000 + cert)
get_ipython().set_next_input(key)
(key, cert)
"""


def put(data: Path, name: str, value: str) -> None:
    done = cellgate("secret", "set", name, "--user", "default", f"--data-dir={data}", stdin=f"{value}\n")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.fixture
def gateway(start_gateway: StartGateway, tmp_path: Path) -> GatewayProcess:
    data = tmp_path / "data"
    put(data, "API_KEY", KEY)
    put(data, "CERT", CERTIFICATE)
    return start_gateway(data, log_level="DEBUG")


def open_session(gateway: GatewayProcess, *names: str, **fields: Any) -> dict[str, Any]:
    answer = gateway.post("/v1/sessions", {"session": "s", "secrets": list(names), **fields}, timeout=120)
    assert answer.status == 201, answer.body
    model = answer.json()
    assert isinstance(model, dict)
    return model


def forms(value: str) -> list[bytes]:
    """The value as files and answers may hold it."""
    quoted = [value, repr(value)[1:-1], json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1]]
    return [each.encode() for each in [*quoted, json.dumps(quoted[1])[1:-1]]]


def assert_no_value(*contents: bytes) -> None:
    for value in (KEY, CERTIFICATE):
        for form in forms(value):
            assert not any(form in content for content in contents), form


def test_an_answer_is_recorded_without_a_secret(gateway: GatewayProcess) -> None:
    open_session(gateway, "API_KEY")
    execution = gateway.hold("s", "len(input('key? '))")
    gateway.answer("s", execution, f"it is {KEY}.")
    assert gateway.ended("s", execution)["text"] == str(len(KEY) + 7)
    (reply,) = [event for event in gateway.recorded("s") if event["type"] == "input_reply"]
    assert (reply["prompt"], reply["value"]) == ("key? ", "it is [secret API_KEY].")


async def frames_of(gateway: GatewayProcess, code: str) -> list[bytes]:
    """What a Jupyter client gets, as it comes, while it and others run cells."""
    frames: list[bytes] = []
    async with channels(gateway, "s") as client:
        first = await client.execute(code)
        result = await asyncio.to_thread(gateway.execute, "s", CODE)
        last = await client.execute("raise ValueError(key + cert)", user_expressions={"a": "key"})
        while True:
            frame = await client.frame()
            assert frame is not None
            frames.append(frame if isinstance(frame, bytes) else frame.encode())
            if is_idle(json.loads(frames[-1]), last):
                break
    assert any(first.encode() in frame for frame in frames)
    return [*frames, json.dumps(result).encode()]


async def test_no_door_shows_a_value(gateway: GatewayProcess) -> None:
    def get(path: str) -> bytes:
        answer = gateway.get(f"/v1{path}", timeout=120)
        assert answer.status == 200, (path, answer.body)
        return answer.body

    def post(code: str, **fields: Any) -> bytes:
        body = {"code": code, **fields}
        accept = {"Accept": "application/x-ndjson"}
        answer = gateway.post("/v1/sessions/s/execute", body, headers=accept, timeout=120)
        assert answer.status == 200
        return answer.body

    answers = [json.dumps(open_session(gateway, "API_KEY", "CERT")).encode()]
    answers += await frames_of(gateway, "print(__import__('os').environ['API_KEY'])")
    result = json.loads(answers[-1])
    assert result["status"] == "ok", result
    stdout = "".join(o["text"] for o in result["outputs"] if o.get("name") == "stdout")
    assert stdout.startswith("[secret API_KEY] [secret CERT]\n[secret API_KEY]")
    assert stdout.endswith("yyy[secret CERT]\n")
    shown = [o for o in result["outputs"] if o["output_type"] == "execute_result"]
    assert shown[0]["data"]["text/plain"] == "('[secret API_KEY]', '[secret CERT]')"
    answers.append(post("print(key[:5], end=''); print(key[5:]); input(key); 1/0", stdin=["an answer"]))
    assert answers[-1].count(b"[secret API_KEY]") >= 2
    failed = gateway.execute("s", "raise ValueError(key + cert)")
    assert failed["error"]["evalue"] == "[secret API_KEY][secret CERT]"
    answers.append(json.dumps(failed).encode())
    named = gateway.execute("s", "open('cache-' + key, 'w').close()")
    assert [file["path"] for file in named["files"]] == ["cache-[secret API_KEY]"]
    answers.append(json.dumps(named).encode())
    removed = gateway.execute("s", "os = __import__('os'); os.remove('cache-' + key)")
    assert removed["status"] == "ok"
    answers.append(json.dumps(removed).encode())
    for path in ("", "/notebook", "/notebook?format=html", "/events", "/executions", "/audit"):
        answers.append(get(f"/sessions/s{path}"))
    with zipfile.ZipFile(io.BytesIO(get("/sessions/s/bundle"))) as bundle:
        answers += [bundle.read(name) for name in bundle.namelist()]
    answers += [get("/audit?limit=1000"), get("/info")]
    assert_no_value(*answers)
    gateway.stop()
    files = [each for each in gateway.data_dir.rglob("*") if each.is_file()]
    assert_no_value(gateway.log.read_bytes(), *(each.read_bytes() for each in files))
    record = gateway.data_dir / RECORD
    assert all(found.valid for found in check_record(record))
    assert b"[secret API_KEY]" in record.read_bytes()
    assert {path.name for path in gateway.data_dir.iterdir()} >= {"secrets.key", "principals.sqlite"}


def test_names_are_checked_and_nothing_is_made(gateway: GatewayProcess) -> None:
    for body in (
        {"secrets": ["API_KEY", "UNKNOWN"]},
        {"secrets": ["not a name"]},
        {"secrets": ["API_KEY"], "env": {"API_KEY": "x"}},
        {"secrets": "API_KEY"},
    ):
        answer = gateway.post("/v1/sessions", {"session": "s", **body})
        assert (answer.status, answer.reason) == (400, "bad_request")
    assert re.search("UNKNOWN", gateway.post("/v1/sessions", {"secrets": ["UNKNOWN"]}).json()["detail"])
    assert gateway.get("/v1/sessions").json()["sessions"] == []


def test_a_changed_secret_is_for_the_next_kernel(gateway: GatewayProcess) -> None:
    open_session(gateway, "API_KEY")
    show = "import os; k = os.environ.get('API_KEY', ''); print(k, len(k)); open('old', 'a').write(k)"
    assert gateway.execute("s", show)["stdout"] == f"[secret API_KEY] {len(KEY)}\n"
    put(gateway.data_dir, "API_KEY", "another-value")
    assert gateway.execute("s", show)["stdout"] == f"[secret API_KEY] {len(KEY)}\n"
    # The gateway has noticed when it takes a new secret.
    put(gateway.data_dir, "NEW", "some-new-value")
    other = gateway.post("/v1/sessions", {"session": "t", "secrets": ["NEW"]}, timeout=120)
    assert other.status == 201, other.body
    assert gateway.post("/v1/sessions/s/restart", timeout=120).status == 200
    assert gateway.execute("s", show)["stdout"] == "[secret API_KEY] 13\n"
    # Both values are masked: the session's files have the former one.
    assert gateway.execute("s", "print(open('old').read())")["stdout"] == "[secret API_KEY]" * 3 + "\n"


def test_a_lost_key_refuses_sessions_by_name_until_the_secrets_are_set_again(gateway: GatewayProcess) -> None:
    (gateway.data_dir / "secrets.key").unlink()

    def refused() -> str | None:
        gateway.delete("/v1/sessions/s", timeout=120)
        answer = gateway.post("/v1/sessions", {"session": "s", "secrets": ["API_KEY", "CERT"]}, timeout=120)
        return None if answer.status == 201 else f"{answer.status} {answer.reason} {answer.json()['detail']}"

    first = until(refused, "the gateway does not notice")
    assert first.startswith("503 storage_error secrets.key is missing")
    assert "API_KEY, CERT of default" in first
    done = cellgate(
        "secret", "set", "API_KEY", "--user", "default", f"--data-dir={gateway.data_dir}", stdin=KEY
    )
    assert (done.returncode, "CERT of default" in done.stderr) == (0, True)
    until(lambda: "read: CERT of default" in (refused() or ""), "the gateway does not notice")
    put(gateway.data_dir, "CERT", CERTIFICATE)
    until(lambda: refused() is None, "the gateway does not notice")
    shown = gateway.execute("s", "import os; print(os.environ['API_KEY'], os.environ['CERT'])")
    assert shown["stdout"] == "[secret API_KEY] [secret CERT]\n"
    assert "Traceback" not in gateway.log.read_text()
