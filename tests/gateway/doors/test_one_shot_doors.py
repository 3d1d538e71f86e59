"""The doors whose requests have a session each, called as the clients of those systems call them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.support.commands import refusal
from tests.support.server import IN_TIME, PATIENCE, TOKEN, GatewayProcess, until

DOORS = {
    "/agentrun/v1/run": "agentrun",
    "/replit": "replit",
    "/dify/v1/sandbox/run": "dify",
    "/terrarium": "terrarium",
    "/piston/api/v2/execute": "piston",
}
SCRIPT = {"code": "print(6)", "language": "python3", "files": [{"content": "print(6)"}]}
SCRIPTS = dict.fromkeys(DOORS, SCRIPT) | {
    "/replit": SCRIPT | {"files": {}},
    "/terrarium": SCRIPT | {"files": []},
}
NEWEST = "/v1/sessions?newest=true&limit="


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with all doors."""
    folder = tmp_path_factory.mktemp("doors") / "data"
    with serving(folder, "sandbox", doors="all", docker_url=NO_ENGINE) as process:
        yield process


@pytest.fixture(scope="module")
def hasty(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with all doors, for what takes too long."""
    folder = tmp_path_factory.mktemp("hasty") / "data"
    with serving(folder, "sandbox", doors="all", cell_timeout=1, docker_url=NO_ENGINE) as process:
        yield process


def run(gateway: GatewayProcess, body: object) -> Any:
    """As AgentRun's README calls it: by requests, which has no token of its own, with a slash at the end."""
    url = f"http://cellgate:{TOKEN}@{gateway.host}/agentrun/v1/run/"
    return requests.post(url, json=body, timeout=PATIENCE)


def evaluate(gateway: GatewayProcess, **body: object) -> Any:
    """As the package replit-code-exec does."""
    headers = {"Authorization": f"Bearer {TOKEN}"}
    return requests.post(f"{gateway.url}/replit", json=body, headers=headers, timeout=PATIENCE)


def node(gateway: GatewayProcess, code: str, language: str = "python3", **more: object) -> Any:
    """As Dify runs the code of a node."""
    body = {"language": language, "code": code, "preload": "", "enable_network": True, **more}
    url, headers = f"{gateway.url}/dify/v1/sandbox/run", {"X-Api-Key": TOKEN}
    answer = requests.post(url, json=body, headers=headers, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["code"]) == (200, 0), answer.text
    return answer.json()["data"]


def khoj(gateway: GatewayProcess, code: str, files: dict[str, bytes] | None = None) -> Any:
    """As Khoj runs code: its client has no token but that of the address."""
    sent = [
        {"filename": name, "b64_data": base64.b64encode(content).decode()}
        for name, content in (files or {}).items()
    ]
    url = f"http://cellgate:{TOKEN}@{gateway.host}/terrarium"
    answer = requests.post(url, json={"code": code, "files": sent}, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    assert answer.text.index("\n") == len(answer.text) - 1
    return answer.json()


# ---- AgentRun ----------------------------------------------------------------------------------------------


def test_agentrun_gives_the_output_of_a_script(gateway: GatewayProcess) -> None:
    code = """
import sys
print('one', flush=True)
print('two', file=sys.stderr, flush=True)
print('three')
6 * 7
"""
    assert run(gateway, {"code": code}).json() == {"output": "one\ntwo\nthree\n"}
    failed = run(gateway, {"code": "print('before')\n1/0"}).json()["output"]
    assert failed.startswith("before\n")
    assert failed.endswith("ZeroDivisionError: division by zero\n")
    assert "\x1b" not in failed


def test_agentrun_begins_anew_each_time(gateway: GatewayProcess) -> None:
    assert run(gateway, {"code": "x = 1; print(x)"}).json() == {"output": "1\n"}
    assert "NameError" in run(gateway, {"code": "print(x)"}).json()["output"]


def test_agentrun_says_in_its_words_what_took_too_long_or_died(
    gateway: GatewayProcess, hasty: GatewayProcess
) -> None:
    slow = run(hasty, {"code": "print('begun')\nimport time; time.sleep(60)"})
    assert (slow.status_code, slow.json()) == (200, {"output": "Execution timed out."})
    died = run(gateway, {"code": "print('last')\nimport os; os._exit(3)"}).json()["output"]
    assert died.startswith("last\n")
    assert "KernelDied" in died


@pytest.mark.parametrize("body", [{}, {"code": 1}, [], "text"])
def test_agentrun_refuses_what_has_no_code(gateway: GatewayProcess, body: object) -> None:
    answer = run(gateway, body)
    assert answer.status_code == 422
    assert answer.json()["detail"][0]["loc"] == ["body"]


def test_agentrun_is_healthy_without_a_token(gateway: GatewayProcess) -> None:
    answer = requests.get(f"{gateway.url}/agentrun/v1/health/", timeout=PATIENCE)
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


# ---- Replit ------------------------------------------------------------------------------------------------


def test_replit_answers_with_a_text(gateway: GatewayProcess) -> None:
    answer = evaluate(gateway, code="print('Grüße')\n6 * 7", strace=False)
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.text == "Grüße\n"
    assert evaluate(gateway, code="print(1)\n6 * 7", interpreter_mode=True).text.split() == ["1", "42"]
    assert "ZeroDivisionError" in evaluate(gateway, code="1/0").text


def test_replit_brings_files(gateway: GatewayProcess) -> None:
    files = {"folder/data.txt": "three", "plain.py": "x = 5"}
    code = "import plain; print(open('folder/data.txt').read(), plain.x)"
    assert evaluate(gateway, code=code, files=files).text == "three 5\n"
    refused = evaluate(gateway, code="1", files={"../outside": "x"})
    assert (refused.status_code, refused.json()["reason"]) == (400, "bad_request")
    refused = evaluate(gateway, code="1", files={f"{number}.txt": "x" for number in range(201)})
    assert (refused.status_code, refused.json()["reason"]) == (400, "bad_request")


# ---- Dify --------------------------------------------------------------------------------------------------


def test_dify_gets_all_that_its_code_prints(gateway: GatewayProcess) -> None:
    long = node(gateway, "print('<<RESULT>>' + 'x' * 2_000_000 + '<<RESULT>>')")
    assert (len(long["stdout"]), long["error"], long["exit_code"]) == (2_000_021, "", 0)
    noisy = node(gateway, "import sys; print('hm', file=sys.stderr)")
    assert (noisy["stderr"], noisy["error"]) == ("hm\n", "")
    failed = node(gateway, "print('before'); 1/0")
    assert (failed["stdout"], failed["exit_code"]) == ("before\n", 1)
    assert failed["error"].endswith("ZeroDivisionError: division by zero\n")
    assert not failed["error"].startswith("before")
    assert node(gateway, "print(y)", preload="y = 2")["stdout"] == "2\n"


def test_difys_templates_and_scripts_of_node_run(gateway: GatewayProcess) -> None:
    template = "import jinja2\nprint(jinja2.Template('Hello {{ name }}').render(name='you'))"
    assert node(gateway, template)["stdout"] == "Hello you\n"
    script = "const text = Buffer.from('aGVsbG8=', 'base64').toString('utf-8')\nconsole.log(text)"
    assert node(gateway, script, "nodejs")["stdout"] == "hello\n"


def test_dify_is_told_what_there_is_and_what_is_wrong(gateway: GatewayProcess) -> None:
    headers = {"X-Api-Key": TOKEN}
    base = f"{gateway.url}/dify"
    assert requests.get(f"{base}/health", timeout=PATIENCE).json() == "ok"
    told = requests.get(f"{base}/v1/sandbox/dependencies?language=python3", headers=headers, timeout=PATIENCE)
    assert "pandas" in {each["name"] for each in told.json()["data"]["dependencies"]}
    wrong, run_url = {"language": "cobol", "code": ""}, f"{base}/v1/sandbox/run"
    refused = requests.post(run_url, json=wrong, headers=headers, timeout=PATIENCE)
    assert (refused.status_code, refused.json()["code"], refused.json()["data"]) == (400, -400, None)
    stranger = requests.post(run_url, json=SCRIPT, timeout=PATIENCE)
    assert (stranger.status_code, stranger.json()["code"]) == (401, -401)


# ---- Terrarium ---------------------------------------------------------------------------------------------


def test_terrarium_takes_files_and_gives_those_that_were_made(gateway: GatewayProcess) -> None:
    code = """
import pathlib
text = open('/home/user/given.txt').read()
open('/mnt/data/made.txt', 'w').write(text.upper())
open('given.txt', 'w').write('changed')
pathlib.Path('sub/__pycache__').mkdir(parents=True)
for path in ('.hidden', 'sub/__pycache__/x.pyc', 'sub/plot.png'):
    pathlib.Path(path).write_bytes(b'1')
print('out')
len(text)
"""
    ran = khoj(gateway, code, {"/home/user/given.txt": b"given"})
    assert (ran["success"], ran["std_out"], ran["std_err"]) == (True, "out\n", "")
    assert ran["final_expression"] == "5"
    made = {each["filename"]: base64.b64decode(each["b64_data"]) for each in ran["output_files"]}
    assert made == {"made.txt": b"GIVEN", "sub/plot.png": b"1"}


def test_terrarium_names_files_so_that_khoj_can_read_them(gateway: GatewayProcess) -> None:
    """Khoj's client asks Python's mimetypes for the type of each, without looking whether there is one."""
    code = """
for name in ("plot.png", "data.parquet", "Makefile", "logs.gz", "sheet.xlsx", "readme.md", "umlaut.md"):
    open(name, "w").write("x")
open("latin.txt", "wb").write(b"\\xfc")
open("umlaut.md", "wb").write(b"\\xfc")
"""
    ran = khoj(gateway, code)
    assert {each["filename"] for each in ran["output_files"]} == {
        *("plot.png", "data.parquet.bin", "Makefile.bin", "logs.gz.bin", "sheet.xlsx", "readme.md"),
        *("latin.txt.bin", "umlaut.md.bin"),
    }


def test_terrarium_tells_a_failure(gateway: GatewayProcess, hasty: GatewayProcess) -> None:
    ran = khoj(gateway, "print('before')\nopen('made.txt', 'w').write('x')\n1/0")
    assert (ran["success"], ran["std_out"], ran["error"]["type"]) == (False, "before\n", "ZeroDivisionError")
    assert ran["error"]["message"].endswith("division by zero\n")
    assert "output_files" not in ran
    slow = khoj(hasty, "import time; time.sleep(60)")
    assert slow["success"] is False
    assert slow["error"]["message"]


def test_terrarium_leaves_out_files_that_are_gone_when_it_reads_them(gateway: GatewayProcess) -> None:
    code = """
import os, threading, time
def flicker():
    while True:
        for number in range(40):
            open(f'{number}.txt', 'w').close()
        for number in range(40):
            os.remove(f'{number}.txt')
open('stays.txt', 'w').write('here')
threading.Thread(target=flicker, daemon=True).start()
time.sleep(0.1)
"""
    for _ in range(3):
        ran = khoj(gateway, code)
        made = {each["filename"]: base64.b64decode(each["b64_data"]) for each in ran["output_files"]}
        assert (ran["success"], made["stays.txt"]) == (True, b"here")


def test_terrarium_greets_and_does_not_stop(gateway: GatewayProcess) -> None:
    for path in ("health", "stop", "health"):
        assert requests.get(f"{gateway.url}/terrarium/{path}", timeout=PATIENCE).text == "hi!"


def test_terrarium_refuses_bad_files_before_anything_runs(gateway: GatewayProcess) -> None:
    before = gateway.get(f"{NEWEST}1").json()["sessions"]
    for name, data in (("a", "no base64!"), ("../a", "eA=="), ("", "eA==")):
        body = {"code": "1", "files": [{"filename": name, "b64_data": data}]}
        answer = gateway.post("/terrarium", body)
        assert (answer.status, answer.reason) == (400, "bad_request")
    after = gateway.get(f"{NEWEST}1").json()["sessions"]
    assert [each["session"] for each in after] == [each["session"] for each in before]


# ---- Piston ------------------------------------------------------------------------------------------------


def program(gateway: GatewayProcess, language: str, *contents: object, **more: object) -> Any:
    """As npm's piston-client: with a type that does not fit."""
    files = [{"content": each} if isinstance(each, str) else each for each in contents]
    body = json.dumps({"language": language, "version": "*", "files": files, **more})
    headers = {"Authorization": TOKEN, "Content-Type": "text/plain"}
    url = f"{gateway.url}/piston/api/v2/execute"
    return requests.post(url, data=body, headers=headers, timeout=PATIENCE)


def test_piston_runs_programs(gateway: GatewayProcess) -> None:
    code = "import sys\nprint(sys.argv[1:], sys.stdin.read())\nprint('no', file=sys.stderr)\nsys.exit(3)"
    answer = program(gateway, "py", code, args=["a", "b c"], stdin="in")
    assert answer.status_code == 200
    assert answer.json()["language"] == "python"
    ran = answer.json()["run"]
    assert (ran["stdout"], ran["stderr"]) == ("['a', 'b c'] in\n", "no\n")
    assert (ran["code"], ran["signal"]) == (3, None)
    assert ran["output"] == ran["stdout"] + ran["stderr"]


def test_piston_knows_languages_and_files(gateway: GatewayProcess) -> None:
    url = f"{gateway.url}/piston/api/v2/runtimes"
    listed = requests.get(url, headers={"Authorization": TOKEN}, timeout=PATIENCE).json()
    assert [each["language"] for each in listed] == ["python", "bash", "javascript", "typescript"]
    assert program(gateway, "sh", "echo $((6 * 7))").json()["run"]["stdout"] == "42\n"
    typed = program(gateway, "ts", "const n: number = 6; console.log(n * 7)").json()["run"]
    assert (typed["stdout"], typed["code"]) == ("42\n", 0), typed
    more = {"name": "other.py", "content": base64.b64encode(b"x = 5").decode(), "encoding": "base64"}
    main = {"name": "start.py", "content": "import other; print(other.x, __file__)"}
    assert program(gateway, "python", main, more).json()["run"]["stdout"].startswith("5 ")


def test_piston_runs_a_program_that_reads_no_input(gateway: GatewayProcess) -> None:
    for _ in range(5):
        answer = program(gateway, "bash", "exit 0", stdin="nobody reads it")
        assert (answer.status_code, answer.json()["run"]["code"]) == (200, 0)


def test_piston_ends_a_program_at_its_time(gateway: GatewayProcess) -> None:
    code = "import time; print('begun', flush=True); time.sleep(60)"
    ran = program(gateway, "python", code, run_timeout=1000 * IN_TIME).json()["run"]
    assert (ran["stdout"], ran["code"], ran["signal"]) == ("begun\n", None, "SIGKILL")


def test_piston_takes_no_limit_as_the_usual_one(gateway: GatewayProcess, hasty: GatewayProcess) -> None:
    answer = program(gateway, "bash", "echo ran", run_timeout=-1)
    assert (answer.status_code, answer.json()["run"]["stdout"]) == (200, "ran\n")
    ran = program(hasty, "bash", "sleep 60", run_timeout=-1).json()["run"]
    assert (ran["code"], ran["signal"]) == (None, "SIGKILL")


@pytest.mark.parametrize(
    "body",
    [
        {"language": "cobol", "files": [{"content": ""}]},
        {"language": "python", "files": []},
        {"language": "python"},
        {"language": "python", "files": [{"content": "zz", "encoding": "hex"}]},
        {"language": "python", "files": [{"content": "", "encoding": "rot13"}]},
        {"language": "python", "files": [{"content": "", "name": "../x.py"}]},
        {"language": "python", "files": [{"content": ""}], "run_timeout": -2},
        {"language": "python", "files": [{"content": ""}], "stdin": "x" * 600_000},
    ],
)
def test_piston_says_what_is_wrong(gateway: GatewayProcess, body: object) -> None:
    answer = gateway.post("/piston/api/v2/execute", body)
    assert (answer.status, list(answer.json())) == (400, ["message"])


# ---- all of them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", DOORS)
@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": f"Bearer {TOKEN}"},
        {"Authorization": f"token {TOKEN}"},
        {"Authorization": TOKEN},
        {"Authorization": "Basic " + base64.b64encode(f"anybody:{TOKEN}".encode()).decode()},
        {"X-API-Key": TOKEN},
        {"x-api-key": TOKEN, "Content-Type": "text/plain"},
    ],
    ids=["bearer", "token", "bare", "basic", "key", "key and another type"],
)
def test_a_token_counts_wherever_these_clients_put_it(
    gateway: GatewayProcess, path: str, headers: dict[str, str]
) -> None:
    body = json.dumps(SCRIPTS[path]).encode()
    answer = requests.post(gateway.url + path, data=body, headers=headers, timeout=PATIENCE)
    assert answer.status_code == 200
    assert "6" in answer.text


@pytest.mark.parametrize("path", DOORS)
def test_nobody_gets_in_without_a_good_token(gateway: GatewayProcess, path: str) -> None:
    for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "wrong"}, {"Cookie": f"token={TOKEN}"}):
        answer = requests.post(gateway.url + path, json=SCRIPT, headers=headers, timeout=PATIENCE)
        assert answer.status_code == 401
    foreign = {"Authorization": f"Bearer {TOKEN}", "Origin": "https://elsewhere.example.org"}
    answer = requests.post(gateway.url + path, json=SCRIPT, headers=foreign, timeout=PATIENCE)
    assert answer.status_code == 403
    assert TOKEN not in gateway.log.read_text()


def test_what_a_door_runs_is_in_the_record(gateway: GatewayProcess) -> None:
    run(gateway, {"code": "print('kept')"})
    evaluate(gateway, code="print('kept too')")
    node(gateway, "print('kept, too')")
    khoj(gateway, "print('kept as well')")
    program(gateway, "python", "print('and kept')")
    listed = gateway.get(f"{NEWEST}5").json()["sessions"]
    assert {each["metadata"]["door"] for each in listed} == set(DOORS.values())
    for each in listed:
        key = each["session"]
        if each["metadata"]["door"] == "piston":
            assert b"and kept" in gateway.get(f"/v1/sessions/{key}/events").body
            continue
        (execution,) = gateway.get(f"/v1/sessions/{key}/executions").json()["executions"]
        assert execution["status"] == "ok"
        assert gateway.get(f"/v1/sessions/{key}/audit/verify").json()["valid"] is True
    until(lambda: gateway.get("/v1/info").json()["pool"]["in_use"] == 0, "kernels are left")


def test_a_cell_whose_client_leaves_is_stopped(start_gateway: StartGateway) -> None:
    gateway = start_gateway(doors="replit")

    def found() -> list[tuple[str, str | None]]:
        sessions = gateway.get(f"{NEWEST}1").json()["sessions"]
        paths = [f"/v1/sessions/{each['session']}/executions" for each in sessions]
        ids = [(path, each["execution"]) for path in paths for each in gateway.get(path).json()["executions"]]
        results = [gateway.get("/".join(each)).json() for each in ids]
        return [(each["status"], each.get("cause")) for each in results]

    client = HTTPConnection(urlsplit(gateway.url).netloc)
    body = json.dumps({"code": "import time\nwhile True: time.sleep(0.1)"})
    client.request("POST", "/replit", body, {"X-API-Key": TOKEN, "Content-Type": "application/json"})
    until(lambda: found() == [("running", None)], "its cell does not run")
    client.close()
    until(lambda: found() == [("interrupted", "client_disconnected")], "it runs on")


def test_doors_are_closed_unless_they_are_opened(start_gateway: StartGateway) -> None:
    closed = start_gateway()
    assert closed.get("/v1/info").json()["doors"] == []
    for path in (*DOORS, "/agentrun/v1/health"):
        assert closed.post(path, SCRIPT).status == 404
    one = start_gateway(doors="replit")
    assert one.get("/v1/info").json()["doors"] == ["replit"]
    assert one.post("/replit", {"code": "print(1)"}).body == b"1\n"
    assert one.post("/agentrun/v1/run", {"code": "1"}).status == 404


def test_a_door_that_there_is_not_is_refused_at_the_start() -> None:
    code, said = refusal("--doors=e3b")
    assert code == 2
    known = "agentrun, azure, dify, e2b, librechat, opensandbox, piston, replit"
    assert f"There is no door 'e3b'; there are {known}" in said
