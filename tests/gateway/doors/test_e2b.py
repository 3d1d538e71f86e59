"""The door for E2B's SDKs, called as e2b 2.63 and e2b-code-interpreter 2.11 call it."""

from __future__ import annotations

import base64
import gzip
import json
import struct
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import requests

from cellgate.identity.principal import Reach, Role
from cellgate.identity.store.interface import UserStore
from cellgate.identity.store.opening import open_users
from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.gateway.doors.e2b_requests import (
    CELLS,
    ENVD,
    Execution,
    Sandbox,
    call,
    control,
    make,
    messages,
    streamed,
)
from tests.support.server import IN_TIME, PATIENCE, TOKEN, GatewayProcess, until

ASKED = "allow_internet_access"


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with this door."""
    folder = tmp_path_factory.mktemp("e2b") / "data"
    with serving(folder, "sandbox", doors="e2b", docker_url=NO_ENGINE) as process:
        yield process


@pytest.fixture(scope="module")
def shared(gateway: GatewayProcess) -> Sandbox:
    """A sandbox for all tests that leave it as it is."""
    return make(gateway, metadata={"of": "all"}, envVars={"FROM_CREATE": "one"})


@pytest.fixture
def own(gateway: GatewayProcess) -> Iterator[Sandbox]:
    """A sandbox for one test."""
    made = make(gateway)
    yield made
    made.control("DELETE")


# ---- the control plane -------------------------------------------------------------------------------------


def test_a_sandbox_is_made_told_of_listed_and_ended(gateway: GatewayProcess) -> None:
    made = make(gateway, metadata={"user": "a b/ü"}, timeout=100)
    told = made.control("GET").json()
    assert (told["sandboxID"], told["state"], told["metadata"]) == (made.id, "running", {"user": "a b/ü"})
    assert told["startedAt"] < told["endAt"]
    assert min(told["cpuCount"], told["memoryMB"], told["diskSizeMB"]) >= 1
    query = {"metadata": "user=a%2520b/%25C3%25BC", "limit": 1}
    listed = control(gateway, "GET", "v2/sandboxes", params=query)
    assert [each["sandboxID"] for each in listed.json()] == [made.id]
    assert control(gateway, "GET", "v2/sandboxes", params={"metadata": "user=b"}).json() == []
    assert made.server("GET", "health", ENVD).status_code == 204
    assert made.control("DELETE").status_code == 204
    assert made.control("DELETE").status_code == 404
    missing = made.control("GET")
    assert (missing.status_code, missing.json()["code"]) == (404, 404)
    health = made.server("GET", "health", ENVD)
    assert (health.status_code, health.json()["message"]) == (502, "The sandbox was not found")
    assert health.json()["sandboxId"] == made.id
    assert made.send("1").status_code == 502


def test_a_list_has_pages(gateway: GatewayProcess) -> None:
    made = [make(gateway, metadata={"page": "s"}) for _ in range(3)]
    found: list[str] = []
    token: str | None = None
    while token is not None or not found:
        query = {"metadata": "page=s", "limit": 2} | ({} if token is None else {"nextToken": token})
        answer = control(gateway, "GET", "v2/sandboxes", params=query)
        found += [each["sandboxID"] for each in answer.json()]
        token = answer.headers.get("x-next-token")
    assert found == [each.id for each in reversed(made)]
    oldest = control(gateway, "GET", "v2/sandboxes", params={"metadata": "page=s", "order": "asc"}).json()
    assert [each["sandboxID"] for each in oldest] == [each.id for each in made]
    for each in made:
        each.control("DELETE")


def test_a_sandbox_lives_as_long_as_its_client_says(own: Sandbox) -> None:
    def end() -> str:
        return str(own.control("GET").json()["endAt"])

    first = end()
    assert own.control("POST", "/timeout", {"timeout": 1000}).status_code == 204
    later = end()
    assert later > first
    # Whoever connects never makes it shorter.
    assert own.control("POST", "/connect", {"timeout": 10}).status_code == 200
    assert own.gateway.model(own.session)["limits"]["lifetime"] >= 1000
    assert own.control("POST", "/timeout", {"timeout": 0.1}).status_code == 204
    until(lambda: own.control("GET").status_code == 404, "it lives on")
    assert own.server("GET", "health", ENVD).status_code == 502


def test_who_connects_gets_no_more_life_than_there_may_be(start_gateway: StartGateway) -> None:
    own = make(start_gateway(doors="e2b", max_lifetime=300.0), timeout=200)
    assert own.control("POST", "/timeout", {"timeout": 300}).status_code == 400
    assert own.control("POST", "/connect", {"timeout": 300}).status_code == 200
    assert own.gateway.model(own.session)["limits"]["lifetime"] == 300


def test_another_client_connects(gateway: GatewayProcess, shared: Sandbox) -> None:
    shared.run("shared_variable = 5")
    answer = control(gateway, "POST", f"v2/sandboxes/{shared.id}/connect", {"timeout": 5})
    assert answer.status_code == 200
    told = answer.json()
    again = Sandbox(gateway, told["sandboxID"], told["envdAccessToken"])
    # The same login has the same token: the first client's goes on working.
    assert again == shared
    assert again.run("shared_variable").text == "5"
    assert control(gateway, "POST", "v2/sandboxes/nothing/connect", {}).status_code == 404


def test_a_request_that_is_repeated_makes_one_sandbox(gateway: GatewayProcess) -> None:
    headers = {"Idempotency-Key": "repeated-1"}
    answers = [control(gateway, "POST", "v2/sandboxes", {}, headers=headers).json() for _ in range(2)]
    assert answers[0] == answers[1]
    control(gateway, "DELETE", f"sandboxes/{answers[0]['sandboxID']}")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"timeout": -1}, 400),
        ({"timeout": 1e12}, 400),
        ({"envVars": {"no name": "x"}}, 400),
        ({"envVars": {"X": 1}}, 400),
        ({"metadata": {"long": "x" * 70_000}}, 400),
        ({"metadata": []}, 400),
        ({"metadata": {"number": 1}}, 400),
        ({"templateID": "x" * 300}, 400),
        ([], 400),
        ({"network": {"denyOut": ["0.0.0.0/0"]}}, 501),
        ({"volumeMounts": [{"name": "a", "path": "/b"}]}, 501),
    ],
)
def test_what_can_not_be_made_is_refused(gateway: GatewayProcess, body: object, code: int) -> None:
    answer = control(gateway, "POST", "sandboxes", body)
    assert (answer.status_code, answer.json()["code"]) == (code, code)
    assert answer.json()["message"]


def test_a_sandbox_that_is_to_be_paused_ends_at_its_timeout(gateway: GatewayProcess) -> None:
    """The Agents SDK of OpenAI asks for it unless told not to."""
    asked = {"autoPause": True, "autoPauseMemory": True, "autoResume": {"enabled": True}}
    made = make(gateway, timeout=100, network={"allowPublicTraffic": True}, **asked)
    assert made.control("GET").json()["lifecycle"] == {"autoResume": False, "onTimeout": "kill"}
    assert made.control("POST", "/timeout", {"timeout": 0.1}).status_code == 204
    until(lambda: made.control("GET").status_code == 404, "it lives on")


def test_metrics_tell_what_a_sandbox_uses(own: Sandbox) -> None:
    def measured(query: str = "") -> dict[str, Any]:
        (told,) = own.control("GET", f"/metrics{query}").json()
        return dict(told)

    first = measured()
    limits = own.gateway.model(own.session)["limits"]
    assert first["memTotal"] == limits["memory"] > first["memUsed"] > 1_000_000
    assert (first["diskTotal"], first["memCache"]) == (limits["disk"], 0)
    assert (first["cpuCount"], first["timestamp"][:2]) == (1, "20")
    own.run("open('large', 'wb').write(b'x' * 5_000_000)")
    own.run("import time\nwhile time.process_time() < 2: pass")
    second = measured(f"?start={first['timestampUnix']}&end={first['timestampUnix'] + 10**6}")
    assert second["diskUsed"] - first["diskUsed"] >= 5_000_000
    assert 0 <= first["cpuUsedPct"] <= 100
    assert 0 < second["cpuUsedPct"] <= 100
    # There is no history.
    assert own.control("GET", "/metrics?start=0&end=1000").json() == []
    assert own.control("GET", f"/metrics?start={first['timestampUnix'] + 10**6}").json() == []
    assert own.control("GET", "/metrics?start=soon").status_code == 400
    assert control(own.gateway, "GET", "sandboxes/nothing/metrics").status_code == 404


def fork(sandbox: Sandbox, **asked: object) -> list[Sandbox]:
    """As `fork` does."""
    answer = sandbox.control("POST", "/fork", asked)
    assert answer.status_code == 201, answer.text
    made = [each["sandbox"] for each in answer.json()]
    return [Sandbox(sandbox.gateway, told["sandboxID"], told["envdAccessToken"]) for told in made]


def test_forks_go_on_with_variables_and_files_of_their_own(gateway: GatewayProcess) -> None:
    own = make(gateway, metadata={"of": "fork"}, envVars={"SET": "yes"})
    own.run("x = [1]\nopen('a.txt', 'w').write('a')")
    own.run("let q = 1", language="javascript")
    first, second = fork(own, count=2, timeout=100)
    assert len({own.id, first.id, second.id}) == 3
    code = "import os; x.append(len(x) + 1); open('a.txt', 'a').write('b'); x, os.environ['SET']"
    assert first.run(code).text == "([1, 2], 'yes')"
    assert second.run("x, open('a.txt').read()").text == "([1], 'a')"
    assert own.run("x, open('a.txt').read()").text == "([1], 'a')"
    assert first.run("[x]").of("result")[0]["json"] == [[1, 2]]
    # Contexts but Python's own begin anew.
    assert first.run("typeof q", language="javascript").text == "undefined"
    told = first.control("GET").json()
    assert (told["metadata"], told["sandboxID"]) == ({"of": "fork"}, first.id)
    assert gateway.model(first.session)["limits"]["lifetime"] < 200
    assert gateway.model(first.session)["branched_from"]["session"] == own.session
    own.control("DELETE")
    assert first.run("x").text == "[1, 2]"
    for each in (first, second):
        assert each.control("DELETE").status_code == 204


def test_forks_that_can_not_be_are_refused(own: Sandbox) -> None:
    for asked, code in (({"count": 0}, 400), ({"count": 21}, 400), ({"timeout": -1}, 400)):
        assert own.control("POST", "/fork", asked).status_code == code
    own.run("import threading\nevent = threading.Event()\nthreading.Thread(target=event.wait).start()")
    refused = own.control("POST", "/fork", {})
    assert refused.status_code == 409
    assert "hread" in refused.json()["message"]
    own.run("event.set()")
    assert control(own.gateway, "POST", "sandboxes/nothing/fork", {}).status_code == 404


def test_forks_live_no_longer_than_there_may_be(sandbox: None, start_gateway: StartGateway) -> None:
    gateway = start_gateway(backend="sandbox", doors="e2b", max_lifetime=300.0, docker_url=NO_ENGINE)
    own = make(gateway)
    refused = own.control("POST", "/fork", {"count": 2, "timeout": 301})
    assert refused.status_code == 400
    assert "300" in refused.json()["message"]
    assert len(gateway.get("/v1/sessions").json()["sessions"]) == 1, "a fork that nobody knows"
    for asked in ({}, {"timeout": 300}):
        (made,) = fork(own, **asked)
        assert gateway.model(made.session)["limits"]["lifetime"] == pytest.approx(300, abs=1e-3)


def test_a_sandbox_has_the_network_that_its_owner_may_have(
    sandbox: None, start_gateway: StartGateway, tmp_path: Path
) -> None:
    quotas = tmp_path / "quotas.toml"
    quotas.write_text('[principals.default]\nnetwork = ["example.org:443"]\n')
    gateway = start_gateway(backend="sandbox", doors="e2b", quotas=quotas, docker_url=NO_ENGINE)
    given: list[tuple[dict[str, Any], str]] = [
        ({}, "allow"),
        ({ASKED: True}, "allow"),
        ({ASKED: False}, "none"),
    ]
    for asked, network in given:
        made = make(gateway, **asked)
        assert gateway.model(made.session)["network"] == network
        assert made.run("6 * 7").text == "42"


def test_who_asks_for_a_network_where_none_is_given_has_none(gateway: GatewayProcess) -> None:
    """SDKs of 2.0 to 2.6.0 ask unless they are told not to."""
    made = make(gateway, **{ASKED: True})
    assert gateway.model(made.session)["network"] == "none"
    assert made.run("6 * 7").text == "42"


def test_what_is_not_there_says_so(shared: Sandbox) -> None:
    for path in ("/snapshots", "/network", "/logs"):
        answer = shared.control("POST", path)
        assert (answer.status_code, answer.json()["code"]) == (501, 501)
    assert "fork" in shared.control("POST", "/snapshots").json()["message"]
    call = shared.server("POST", "process.Process/StreamInput", ENVD, json={})
    assert (call.status_code, call.json()["code"]) == (501, "unimplemented")
    assert shared.server("GET", "health", "8000").status_code == 501


# ---- cells -------------------------------------------------------------------------------------------------


def test_a_cell_is_told_in_lines(shared: Sandbox) -> None:
    lines = shared.lines("import sys\nprint('out')\nprint('err', file=sys.stderr)\n'value'")
    kinds = [line["type"] for line in lines]
    assert kinds[0] == "number_of_executions"
    assert kinds[-1] == "end_of_execution"
    ran = Execution(lines)
    assert ran.stdout == "out\n"
    assert "".join(line["text"] for line in ran.of("stderr")) == "err\n"
    (result,) = ran.of("result")
    assert (result["text"], result["is_main_result"]) == ("value", True)
    assert all(line["timestamp"] > 1_700_000_000 * 10**9 for line in ran.of("stdout"))
    failed = shared.run("print('before')\n1/0")
    (error,) = failed.of("error")
    assert (error["name"], error["value"]) == ("ZeroDivisionError", "division by zero")
    assert "\x1b" not in error["traceback"]
    assert error["traceback"].endswith("ZeroDivisionError: division by zero")
    assert failed.lines[-1]["type"] == "end_of_execution"


def test_cells_share_their_variables_and_are_counted(own: Sandbox) -> None:
    first = own.run("x = 20")
    second = own.run("x + 1")
    assert second.text == "21"
    counts = [ran.of("number_of_executions")[0]["execution_count"] for ran in (first, second)]
    assert counts == [1, 2]
    assert own.run("'_cellgate_e2b' in dir()").text == "False"


def test_lines_come_as_they_are_made(shared: Sandbox) -> None:
    code = "print('first', flush=True)\nopen('go', 'w').close()\nimport os, time\n"
    code += "while os.path.exists('go'): time.sleep(0.01)\nprint('second')"
    with shared.send(code) as answer:
        lines = answer.iter_lines()
        first = next(each for each in map(json.loads, lines) if each["type"] == "stdout")
        assert first["text"].startswith("first")
        # The cell goes on only now.
        workspace = shared.gateway.workspace(shared.session)
        until((workspace / "go").exists, "the cell is not there")
        (workspace / "go").unlink()
        rest = Execution([json.loads(line) for line in lines])
    assert "second" in rest.stdout


def test_results_have_all_their_forms(shared: Sandbox) -> None:
    code = """
from IPython.display import display
class Shown:
    def _repr_mimebundle_(self, include=None, exclude=None):
        return {
            "text/plain": "shown", "text/html": "<b>h</b>", "text/markdown": "*m*", "image/svg+xml": "<svg/>",
            "image/png": "aGVs\\nbG8=\\n", "image/jpeg": "aGk=\\n", "application/pdf": "cGRm",
            "text/latex": "$x$", "application/json": {"a": [1, None]}, "application/javascript": "1",
            "text/x-other": "o",
        }
display(Shown())
Shown()
"""
    display, main = shared.run(code).of("result")
    assert display == main | {"is_main_result": False}
    assert main == {
        "type": "result",
        "is_main_result": True,
        "text": "shown",
        "html": "<b>h</b>",
        "markdown": "*m*",
        "svg": "<svg/>",
        "png": "aGVsbG8=",
        "jpeg": "aGk=",
        "pdf": "cGRm",
        "latex": "$x$",
        "json": {"a": [1, None]},
        "javascript": "1",
        "extra": {"text/x-other": "o"},
    }


def test_lists_dicts_and_tables_are_data_too(shared: Sandbox) -> None:
    def result(code: str) -> dict[str, Any]:
        return shared.run(code).of("result")[-1]

    assert result("[1, 2, {'a': None}]")["json"] == [1, 2, {"a": None}]
    assert result("{1: 'x'}")["json"] == {"1": "x"}
    assert "json" not in result("[object()]")
    assert "json" not in result("[float('nan')]")
    assert "json" not in result("[0] * 200_000")
    assert "json" not in result("x = []; x.append(x); x")
    code = "import pandas as pd\ndays = pd.to_datetime(['2026-01-02', None, None])\n"
    code += "pd.DataFrame({'n': [1, 2.5, None], 'at': days})"
    table = result(code)
    assert table["data"] == {"n": [1.0, 2.5, None], "at": ["2026-01-02T00:00:00", None, None]}
    assert "<table" in table["html"]
    large = result("pd.DataFrame({'a': ['x' * 1_000_000] * 20})")
    assert "data" not in large
    assert "<table" in large["html"]


def test_large_output_arrives_whole(shared: Sandbox) -> None:
    ran = shared.run("print('x' * 3_000_000)\n'y' * 100_000")
    assert len(ran.stdout) == 3_000_001
    assert len(ran.text or "") == 100_000


def test_languages(shared: Sandbox) -> None:
    assert shared.run("echo $((6 * 7))", language="bash").stdout == "42\n"
    # It ends with its program, whatever that leaves running.
    assert shared.run("sleep 900 & echo hi", language="bash").stdout == "hi\n"
    assert shared.run("console.log(6 * 7)", language="javascript").stdout == "42\n"
    assert shared.run("const n: number = 42; console.log(n)", language="typescript").stdout == "42\n"
    assert shared.run("print(42)", language="python").stdout == "42\n"
    for language in ("r", "java"):
        assert shared.send("1", language=language).status_code == 400


def test_each_language_keeps_its_variables(own: Sandbox) -> None:
    own.run("open('a.txt', 'w').write('a')")
    own.run("let q = 41", language="javascript")
    assert own.run("q + 1", language="js").text == "42"
    own.run("const n: number = 41", language="typescript")
    assert own.run("n + 1", language="ts").text == "42"
    own.run("word=said; cd /tmp", language="bash")
    assert own.run(
        "echo $word $PWD; cat ~+/a.txt 2>/dev/null || cat /home/user/a.txt", language="bash"
    ).stdout == ("said /tmp\na")
    own.run("x = 41", language="python")
    assert own.run("x + 1").text == "42"
    told = own.server("GET", "contexts").json()
    assert [each["language"] for each in told] == ["python", "javascript", "typescript", "bash"]
    assert own.run("q", context_id=told[1]["id"]).text == "41"
    assert own.server("DELETE", f"contexts/{told[1]['id']}").status_code == 204
    assert own.run("typeof q", language="javascript").text == "undefined"


def test_cells_at_once_make_one_context(own: Sandbox) -> None:
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda n: own.run(f"var n{n} = {n}", language="javascript"), range(4)))
    assert [each.error for each in found] == [None] * 4
    assert own.run("n0 + n1 + n2 + n3", language="javascript").text == "6"
    assert len(own.server("GET", "contexts").json()) == 2


def test_variables_of_the_sandbox_and_of_a_cell(shared: Sandbox) -> None:
    code = "import os; print(os.environ.get('FROM_CREATE'), os.environ.get('FROM_CELL'))"
    assert shared.run(code, env_vars={"FROM_CELL": "two"}).stdout == "one two\n"
    assert shared.run(code).stdout == "one None\n"
    assert shared.run("echo $FROM_CREATE", language="bash").stdout == "one\n"
    told = shared.run("echo $FROM_CREATE $X", language="bash", env_vars={"X": "two"}).stdout
    assert told == "one two\n"
    # Values are recorded nowhere.
    recorded = json.dumps(shared.gateway.recorded(shared.session))
    assert "FROM_CREATE" in recorded
    assert '"one"' not in recorded


def test_contexts(own: Sandbox) -> None:
    listed = own.server("GET", "contexts").json()
    assert listed == [{"id": "default", "language": "python", "cwd": "/home/user"}]
    own.run("x = 1")
    own.run("open('kept.txt', 'w').write('kept')")
    assert own.run("x", context_id="default").text == "1"
    assert own.send("x", context_id="default", language="python").status_code == 400
    assert own.send("x", context_id="other").status_code == 404
    restarted = own.server("POST", "contexts/default/restart")
    assert (restarted.status_code, restarted.content) == (204, b"")
    assert own.run("x").error == "NameError"
    # The fresh kernel is prepared too.
    assert own.run("[open('kept.txt').read()]").of("result")[0]["json"] == ["kept"]
    assert own.server("POST", "contexts/other/restart").status_code == 404
    assert own.server("DELETE", "contexts/default").status_code == 501


def context(sandbox: Sandbox, **asked: str) -> str:
    """As `create_code_context` does; returns its id."""
    answer = sandbox.server("POST", "contexts", json=asked)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    expected = {"cwd": "/home/user", "language": "python"} | asked
    assert {name: told[name] for name in expected} == expected
    return str(told["id"])


def test_a_further_context_has_the_same_files_and_variables_of_its_own(own: Sandbox) -> None:
    own.run("x = 1")
    own.run("import os; os.mkdir('sub'); open('sub/a.txt', 'w').write('a')")
    other = context(own, cwd="/home/user/sub")
    assert [each["id"] for each in own.server("GET", "contexts").json()] == ["default", other]
    assert own.run("x", context_id=other).error == "NameError"
    assert own.run("[open('a.txt').read()]", context_id=other).of("result")[0]["json"] == ["a"]
    own.run("open('b.txt', 'w').write('b'); x = 2", context_id=other)
    assert own.run("open('sub/b.txt').read(), x").text == "('b', 1)"
    assert own.server("POST", f"contexts/{other}/restart").status_code == 204
    assert own.run("x", context_id=other).error == "NameError"
    assert own.run("open('b.txt').read()", context_id=other).text == "b"
    assert own.server("POST", "contexts/default/restart").status_code == 204
    own.run("open('sub/b.txt', 'w').write('later')")
    assert own.run("open('b.txt').read()", context_id=other).text == "later"
    assert own.server("DELETE", f"contexts/{other}").status_code == 204
    assert own.send("x", context_id=other).status_code == 404
    assert own.server("DELETE", f"contexts/{other}").status_code == 404
    assert own.run("open('sub/b.txt').read()").text == "later"
    outside = context(own, cwd="/tmp")
    assert own.run("import os; os.getcwd()", context_id=outside).text == "/tmp"
    for cwd in ("/nothing/there", "nothing", "/etc/passwd"):
        refused = own.server("POST", "contexts", json={"cwd": cwd})
        assert refused.status_code == (404 if cwd == "nothing" else 400)
        assert "nothing" in refused.text or "passwd" in refused.text
    # What could not be made is not there.
    assert [each["id"] for each in own.server("GET", "contexts").json()] == ["default", outside]
    assert own.server("POST", "contexts", json={"language": "r"}).status_code == 400


def test_contexts_of_other_languages_keep_what_they_have(gateway: GatewayProcess) -> None:
    own = make(gateway, envVars={"FROM_CREATE": "one"})
    own.run("open('a.txt', 'w').write('a')")
    shell = context(own, language="bash")
    own.run("word=said", context_id=shell)
    assert own.run("echo $word $FROM_CREATE; cat a.txt", context_id=shell).stdout == "said one\na"


def test_contexts_end_with_their_sandbox(gateway: GatewayProcess) -> None:
    made = make(gateway)
    context(made)
    listed = control(gateway, "GET", "v2/sandboxes").json()
    assert [each["sandboxID"] for each in listed].count(made.id) == 1
    (other,) = gateway.get(f"/v1/sessions/{made.session}").json()["shares_workspace_with"]
    assert made.control("DELETE").status_code == 204
    assert gateway.get(f"/v1/sessions/{other}").json()["state"] == "ended"
    assert made.server("GET", "contexts").status_code == 502


PLOT = "import matplotlib.pyplot as plt\nplt.plot([1, 2], [3, 4])\nplt.title('two')\nplt.show()"


def test_a_figure_has_a_chart_where_the_package_is(own: Sandbox) -> None:
    """Also in a kernel that loads pyplot for its first figure."""
    assert own.run("import sys; 'e2b_charts' in sys.modules").text == "False"
    own.run("sys.modules['e2b_charts'] = None")
    (without,) = own.run(PLOT).of("result")
    assert "png" in without
    assert "chart" not in without
    own.run("del sys.modules['e2b_charts']")
    (drawn,) = own.run(PLOT).of("result")
    assert (drawn["chart"]["type"], drawn["chart"]["title"]) == ("line", "two")
    assert drawn["chart"]["elements"][0]["points"] == [[1, 3], [2, 4]]
    assert "png" in drawn


def test_a_cell_that_does_not_end_itself(own: Sandbox) -> None:
    died = own.run("print('last', flush=True)\nimport os; os._exit(3)")
    assert died.stdout == "last\n"
    assert died.error == "kernel_exit"
    assert [line["type"] for line in died.lines[-2:]] == ["unexpected_end_of_execution", "end_of_execution"]
    assert own.run("[1]").of("result")[0]["json"] == [1]


def test_a_cell_ends_at_the_operators_ceiling(start_gateway: StartGateway) -> None:
    made = make(start_gateway(doors="e2b", cell_timeout=0.5, max_cell_timeout=IN_TIME))
    assert made.run("import time\ntime.sleep(0.7)\n1").text == "1"
    slow = made.run("time.sleep(60)")
    assert slow.error == "cell_timeout"
    assert [line["type"] for line in slow.lines[-2:]] == ["unexpected_end_of_execution", "end_of_execution"]


def test_a_cell_whose_client_leaves_is_stopped(own: Sandbox) -> None:
    with own.send("print('begun', flush=True)\nimport time\nwhile True: time.sleep(0.05)") as answer:
        next(line for line in answer.iter_lines() if b"begun" in line)
    assert own.run("1 + 1").text == "2"
    path = f"/v1/sessions/{own.session}/executions"
    ended = [each for each in own.gateway.get(path).json()["executions"] if each["status"] == "interrupted"]
    (stopped,) = ended
    assert own.gateway.result(own.session, stopped["execution"])["cause"] == "client_disconnected"


def test_what_ran_is_in_the_record(shared: Sandbox) -> None:
    shared.run("print('kept')")
    model = shared.gateway.model(shared.session)
    assert model["metadata"]["door"] == "e2b"
    assert model["metadata"]["metadata"] == {"of": "all"}
    assert shared.gateway.get(f"/v1/sessions/{shared.session}/audit/verify").json()["valid"] is True


@pytest.mark.parametrize(
    "body", [{}, {"code": 1}, [], {"code": "1", "env_vars": {"a b": ""}}, {"code": "\0"}]
)
def test_a_bad_cell_is_refused(shared: Sandbox, body: object) -> None:
    answer = shared.server("POST", "execute", json=body)
    assert (answer.status_code, answer.json()["code"]) == (400, 400)


# ---- tokens ------------------------------------------------------------------------------------------------


def test_a_sandboxes_token_is_for_this_sandbox_alone(gateway: GatewayProcess, shared: Sandbox) -> None:
    other = make(gateway)
    assert other.token != shared.token
    body = {"code": "1"}
    for headers in (
        {"X-Access-Token": shared.token},
        {"E2B-Traffic-Access-Token": shared.token},
        {"X-Access-Token": "x"},
        {"X-Access-Token": other.token[:-1] + ("0" if other.token[-1] != "0" else "1")},
        {},
        {"Authorization": "Basic dXNlcjo="},
    ):
        sent = {"E2b-Sandbox-Id": other.id, "E2b-Sandbox-Port": CELLS, **headers}
        for path in ("execute", "contexts/default/restart"):
            url = f"{gateway.url}/e2b/{path}"
            answer = requests.post(url, json=body, headers=sent, timeout=PATIENCE)
            assert (answer.status_code, answer.json()["code"]) == (401, 401)
    for name in ("X-Access-Token", "E2B-Traffic-Access-Token"):
        sent = {"E2b-Sandbox-Id": other.id, name: other.token, "Authorization": "Basic dXNlcjo="}
        answer = requests.get(f"{gateway.url}/e2b/contexts", headers=sent, timeout=PATIENCE)
        assert answer.status_code == 200
    # It is no token of the gateway.
    assert control(gateway, "GET", "v2/sandboxes", key=other.token).status_code == 401
    assert gateway.get("/v1/sessions", token=other.token).status == 401
    assert other.control("DELETE").status_code == 204
    assert control(gateway, "GET", "v2/sandboxes", key=None).status_code == 401
    log = gateway.log.read_text()
    assert not any(token in log for token in (shared.token, other.token, TOKEN))


@pytest.fixture
def store(gateway: GatewayProcess) -> Iterator[UserStore]:
    with open_users(gateway.data_dir, create=True) as found:
        yield found


def test_sandboxes_of_two_users(gateway: GatewayProcess, store: UserStore) -> None:
    keys = {}
    for name in ("ada", "bob"):
        store.add_user(name, Role.USER)
        keys[name] = store.create_token(name, reach=Reach())[1]
    made = make(gateway, keys["ada"])
    assert made.run("6 * 7").text == "42"
    for method, path in (("GET", ""), ("DELETE", ""), ("POST", "/timeout"), ("POST", "/connect")):
        assert control(gateway, method, f"sandboxes/{made.id}{path}", {}, key=keys["bob"]).status_code == 404
    assert control(gateway, "GET", "v2/sandboxes", key=keys["bob"]).json() == []
    assert [each["sandboxID"] for each in control(gateway, "GET", "sandboxes", key=keys["ada"]).json()] == [
        made.id
    ]
    as_bob = {"E2b-Sandbox-Id": made.id, "X-API-Key": keys["bob"]}
    url = f"{gateway.url}/e2b/execute"
    assert requests.post(url, json={"code": "1"}, headers=as_bob, timeout=PATIENCE).status_code == 502
    made.control("DELETE")


def test_a_sandboxes_token_ends_with_the_one_that_it_is_of(gateway: GatewayProcess, store: UserStore) -> None:
    store.add_user("eve", Role.USER)
    (first, first_key), (_, second_key) = (store.create_token("eve", reach=Reach()) for _ in range(2))
    made = make(gateway, first_key)
    told = control(gateway, "POST", f"sandboxes/{made.id}/connect", {}, key=second_key).json()
    again = Sandbox(gateway, made.id, told["envdAccessToken"], second_key)
    store.revoke_token(first.id)
    assert made.send("1").status_code == 401
    assert again.run("1").text == "1"
    store.set_disabled("eve", disabled=True)
    assert again.send("1").status_code == 401
    assert again.server("GET", "contexts").status_code == 401


def test_a_token_with_a_prefix_makes_sandboxes_below_it(gateway: GatewayProcess, store: UserStore) -> None:
    store.add_user("tom", Role.USER)
    limited = store.create_token("tom", reach=Reach("agent-"))[1]
    made = make(gateway, limited)
    assert made.session.startswith("agent-e2b-")
    assert made.run("1").text == "1"
    exact = store.create_token("tom", reach=Reach(made.session, exact=True))[1]
    assert control(gateway, "POST", "sandboxes", {}, key=exact).status_code == 403
    made.control("DELETE")


# ---- files -------------------------------------------------------------------------------------------------


def write(sandbox: Sandbox, files: dict[str, bytes], path: str | None = None) -> requests.Response:
    """As `files.write` and `files.write_files` do: by a form."""
    parts = [("file", (name, content)) for name, content in files.items()]
    query = {} if path is None else {"path": path}
    return sandbox.server("POST", "files", ENVD, params=query, files=parts)


def read(sandbox: Sandbox, path: str) -> requests.Response:
    return sandbox.server("GET", "files", ENVD, params={"path": path})


def test_files_are_written_and_read(own: Sandbox) -> None:
    written = write(own, {"ignored.txt": b"text"}, path="folder/a b.txt")
    assert written.status_code == 200
    assert written.json() == [{"name": "a b.txt", "path": "/home/user/folder/a b.txt", "type": "file"}]
    names = ("folder/a b.txt", "/home/user/folder/a b.txt", "~/folder/a b.txt", "./x/../folder/a b.txt")
    for path in names:
        assert read(own, path).content == b"text"
    several = write(own, {"/home/user/x/1.bin": b"\0\1", "2.bin": b""})
    assert [each["path"] for each in several.json()] == ["/home/user/x/1.bin", "/home/user/2.bin"]
    code = "open('x/1.bin', 'rb').read(), open('folder/a b.txt').read()"
    assert own.run(code).text == "(b'\\x00\\x01', 'text')"
    streamed = own.server(
        "POST",
        "files",
        ENVD,
        params={"path": "/home/user/large.bin"},
        data=(b"x" * 65536 for _ in range(100)),
        headers={"Content-Type": "application/octet-stream"},
    )
    assert streamed.json()[0]["path"] == "/home/user/large.bin"
    assert len(read(own, "large.bin").content) == 6_553_600
    for path in ("nothing.txt", "/nothing.txt", "../outside", "/etc"):
        missing = read(own, path)
        assert (missing.status_code, missing.json()["code"]) == (404, 404)


def test_files_outside_of_the_home_folder_are_written_and_read(own: Sandbox) -> None:
    bytes_ = bytes(range(256))
    written = write(own, {"ignored": bytes_}, path="/tmp/deep/a.bin")
    assert written.json() == [{"name": "a.bin", "path": "/tmp/deep/a.bin", "type": "file"}]
    assert own.run("open('/tmp/deep/a.bin', 'rb').read() == bytes(range(256))").text == "True"
    assert read(own, "/tmp/deep/a.bin").content == bytes_
    several = write(own, {"/tmp/b": b"b", "c": b"c"})
    assert [each["path"] for each in several.json()] == ["/tmp/b", "/home/user/c"]
    assert command(own, "cat /tmp/b c; ls -A").output("stdout") == "bcc\n"


def test_nothing_hidden_stays_of_uploads_that_fail(own: Sandbox) -> None:
    own.run("open('a', 'w').close()")
    # The first can't be moved to its place; of the other two, only one can be put into the workspace.
    for files in ({"/proc/x": b"1", "/tmp/y": b"2", "/tmp/z": b"3"}, {"/tmp/x": b"1", "a/b": b"2"}):
        assert write(own, files).status_code == 400
        assert own.run("import os; os.listdir()").text == "['a']"
    assert read(own, "/proc/x").status_code == 404
    assert own.run("import os; os.listdir()").text == "['a']"


def packed(sandbox: Sandbox, body: bytes, encoding: str = "gzip", path: str = "a") -> requests.Response:
    """As `files.write` with `gzip` does."""
    headers = {"Content-Encoding": encoding, "Content-Type": "application/octet-stream"}
    return sandbox.server("POST", "files", ENVD, params={"path": path}, data=body, headers=headers)


def test_compressed_uploads_are_unpacked(own: Sandbox) -> None:
    content = bytes(range(256)) * 40_000
    assert packed(own, gzip.compress(content)).json()[0]["path"] == "/home/user/a"
    assert read(own, "a").content == content
    assert packed(own, gzip.compress(b""), path="/tmp/b").status_code == 200
    assert read(own, "/tmp/b").content == b""


def test_no_more_is_unpacked_than_there_is_room_for(start_gateway: StartGateway) -> None:
    own = make(start_gateway(doors="e2b", disk="20m"))
    refused = packed(own, gzip.compress(bytes(400 * 1024 * 1024)))
    assert refused.status_code == 413
    assert read(own, "a").status_code == 404


def test_bad_uploads_are_refused(own: Sandbox) -> None:
    refused = write(own, {"/etc/x": b"1"})
    assert refused.status_code == 400
    assert "/etc/x" in refused.json()["message"]
    assert own.run("import os; os.listdir()").text == "[]"
    assert write(own, {"a": b"1", "./a": b"2"}).status_code == 400
    assert write(own, {"a": b"1"}, path="/home/user").status_code == 400
    assert own.server("POST", "files", ENVD, data=b"x").status_code == 400
    for encoding, body, code in (("br", b"x", 415), ("gzip", b"x", 400), ("gzip", b"", 400)):
        answer = packed(own, body, encoding)
        assert answer.status_code == code
        assert answer.json()["message"]
    assert read(own, "a").status_code == 404
    gone = Sandbox(own.gateway, own.id, own.token)
    own.control("DELETE")
    assert write(gone, {"a": b"1"}).status_code == 502


def test_folders_are_made_listed_and_removed(own: Sandbox) -> None:
    made = call(own, "MakeDir", path="/home/user/one/two").json()["entry"]
    assert (made["type"], made["path"], made["name"]) == ("FILE_TYPE_DIRECTORY", "/home/user/one/two", "two")
    again = call(own, "MakeDir", path="one/two")
    assert (again.status_code, again.json()["code"]) == (409, "already_exists")
    write(own, {"one/file.txt": b"123456", "one/two/deep.txt": b""})
    own.run("import os; os.symlink('/etc/passwd', 'one/link')")
    found = call(own, "ListDir", path="one", depth=1).json()["entries"]
    assert {each["path"]: each["type"] for each in found} == {
        "/home/user/one/file.txt": "FILE_TYPE_FILE",
        "/home/user/one/link": "FILE_TYPE_SYMLINK",
        "/home/user/one/two": "FILE_TYPE_DIRECTORY",
    }
    deep = call(own, "ListDir", path="~", depth=3).json()["entries"]
    assert "/home/user/one/two/deep.txt" in {each["path"] for each in deep}
    entry = call(own, "Stat", path="/home/user/one/file.txt").json()["entry"]
    assert (entry["size"], entry["permissions"][0], entry["owner"]) == ("6", "-", "user")
    assert entry["modifiedTime"].endswith("Z")
    assert call(own, "Stat", path="~").json()["entry"]["path"] == "/home/user"
    moved = call(own, "Move", source="one/file.txt", destination="other/new.txt").json()["entry"]
    assert moved["path"] == "/home/user/other/new.txt"
    assert read(own, "other/new.txt").content == b"123456"
    for path in ("one/file.txt", "nothing", "/etc"):
        missing = call(own, "Stat", path=path)
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert call(own, "Remove", path="one").json() == {}
    assert call(own, "Stat", path="one/two/deep.txt").status_code == 404
    left = call(own, "ListDir", path="/home/user", depth=0).json()["entries"]
    assert [each["name"] for each in left] == ["other"]
    deleted = [each["path"] for each in own.gateway.recorded(own.session) if each.get("action") == "deleted"]
    assert "one/two/deep.txt" in deleted


def test_bad_calls_are_refused(shared: Sandbox) -> None:
    for name, body in (
        ("ListDir", {"path": "~", "depth": -1}),
        ("ListDir", {"path": "~", "depth": 10**6}),
        ("ListDir", {}),
        ("Remove", {"path": "/home/user"}),
        ("Stat", {"path": "x" * 5000}),
        ("Stat", {"path": "a\0b"}),
    ):
        answer = call(shared, name, **body)
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_argument")
    absent = call(shared, "Nothing", path="~")
    assert (absent.status_code, absent.json()["code"]) == (501, "unimplemented")


# ---- commands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Command:
    """What an SDK makes of the envelopes of a program."""

    events: list[dict[str, Any]]
    last: dict[str, Any]

    def output(self, name: str) -> str:
        found = [each["data"][name] for each in self.events if name in each.get("data", {})]
        return b"".join(map(base64.b64decode, found)).decode()

    @property
    def code(self) -> int | None:
        return next((each["end"]["exitCode"] for each in self.events if "end" in each), None)


def begin(sandbox: Sandbox, command: str, *, timeout: int | None = None, **more: Any) -> requests.Response:
    """As `commands.run` does."""
    process = {"cmd": "/bin/bash", "args": ["-l", "-c", command], **more.pop("process", {})}
    return streamed(sandbox, "process.Process/Start", {"process": process, "stdin": False, **more}, timeout)


def join(sandbox: Sandbox, pid: int, timeout: int | None = None) -> requests.Response:
    """As `commands.connect` does."""
    return streamed(sandbox, "process.Process/Connect", {"process": {"pid": pid}}, timeout)


def refusal(answer: requests.Response) -> tuple[str, str]:
    """The code and the message of a refused call, which is answered with a stream of nothing else."""
    assert (answer.status_code, answer.headers["Content-Type"]) == (200, "application/connect+json")
    ((flags, told),) = messages(answer)
    assert flags == 2
    return told["error"]["code"], told["error"]["message"]


def command(sandbox: Sandbox, text: str, **more: Any) -> Command:
    with begin(sandbox, text, **more) as answer:
        found = list(messages(answer))
    assert [flags for flags, _ in found] == [0] * (len(found) - 1) + [2]
    return Command([told["event"] for _, told in found[:-1]], found[-1][1])


def test_commands_run(shared: Sandbox) -> None:
    ran = command(shared, "echo out; echo err >&2; exit 3")
    assert (ran.output("stdout"), ran.output("stderr"), ran.code, ran.last) == ("out\n", "err\n", 3, {})
    assert ran.events[0]["start"]["pid"] > 0
    process = {"envs": {"X": "x"}, "cwd": "/home/user/sub"}
    shared.run("import os; os.makedirs('sub', exist_ok=True)")
    ran = command(shared, "echo $X $FROM_CREATE; basename $PWD; python -c 'print(6 * 7)'", process=process)
    assert (ran.output("stdout"), ran.code) == ("x one\nsub\n42\n", 0)


def test_commands_begin_in_any_folder(shared: Sandbox) -> None:
    for folder in ("/", "/tmp", "/usr/lib"):
        process = {"cwd": folder}
        assert command(shared, "pwd", process=process).output("stdout") == f"{folder}\n"
    with begin(shared, "read x", stdin=True, process={"cwd": "/tmp"}) as answer:
        told = messages(answer)
        pid = next(told)[1]["event"]["start"]["pid"]
        (listed,) = shared.server("POST", "process.Process/List", ENVD, json={}).json()["processes"]
        assert (listed["pid"], listed["config"]["cwd"]) == (pid, "/tmp")
        about = {"process": {"pid": pid}, "signal": "SIGNAL_SIGKILL"}
        shared.server("POST", "process.Process/SendSignal", ENVD, json=about)
    code, said = refusal(begin(shared, "true", process={"cwd": "/nothing"}))
    assert (code, "/nothing" in said) == ("invalid_argument", True)


def test_a_terminal(shared: Sandbox) -> None:
    """As `pty.create`, `send_stdin` and `kill` ask for one."""
    process = {"args": ["-i", "-l"], "envs": {"TERM": "xterm"}, "cwd": "/tmp"}
    size = {"size": {"cols": 100, "rows": 30}}
    with begin(shared, "", process=process, pty=size) as answer:
        told = messages(answer)
        pid = next(told)[1]["event"]["start"]["pid"]

        def ask(name: str, **body: object) -> requests.Response:
            about = {"process": {"pid": pid}} | body
            return shared.server("POST", f"process.Process/{name}", ENVD, json=about)

        line = base64.b64encode(b"stty size; tty; pwd; python -c 'print(6 * 7)'; exit 3\n").decode()
        assert ask("SendInput", input={"pty": line}).json() == {}
        events = [each["event"] for _, each in told if "event" in each]
        shown = b"".join(base64.b64decode(each["data"]["pty"]) for each in events if "data" in each).decode()
        for expected in ("30 100\r\n", "/dev/pts/", "/tmp\r\n", "42\r\n"):
            assert expected in shown
        assert events[-1]["end"]["exitCode"] == 3
    with begin(shared, "", process=process, pty=size) as answer:
        told = messages(answer)
        pid = next(told)[1]["event"]["start"]["pid"]
        assert ask("SendSignal", signal="SIGNAL_SIGKILL").json() == {}
        assert [each["event"]["end"]["exited"] for _, each in told if "end" in each.get("event", {})] == [
            False
        ]
    assert refusal(begin(shared, "", pty={"size": {"cols": 0, "rows": 24}}))[0] == "invalid_argument"


def test_a_command_ends_at_its_time(shared: Sandbox) -> None:
    ran = command(shared, "echo begun; sleep 60", timeout=1500)
    assert (ran.output("stdout"), ran.code) == ("begun\n", None)
    assert ran.last["error"]["code"] == "deadline_exceeded"


def test_a_command_in_the_background(shared: Sandbox) -> None:
    with begin(shared, "read x; echo got $x; sleep 60", stdin=True) as answer:
        told = messages(answer)
        pid = next(told)[1]["event"]["start"]["pid"]
        about = {"process": {"pid": pid}}

        def ask(name: str, **body: object) -> requests.Response:
            return shared.server("POST", f"process.Process/{name}", ENVD, json=about | body)

        (listed,) = ask("List").json()["processes"]
        assert (listed["pid"], listed["config"]["cmd"]) == (pid, "bash")
        line = base64.b64encode(b"a line\n").decode()
        assert ask("SendInput", input={"stdin": line}).json() == {}
        assert base64.b64decode(next(told)[1]["event"]["data"]["stdout"]) == b"got a line\n"
        assert ask("SendSignal", signal="SIGNAL_SIGKILL").json() == {}
        end = next(told)[1]["event"]["end"]
        assert (end["exitCode"], end["exited"]) == (-1, False)
    for name, body in (("SendSignal", {"signal": "SIGNAL_SIGKILL"}), ("CloseStdin", {})):
        missing = ask(name, **body)
        assert (missing.status_code, missing.json()["code"]) == (404, "not_found")
    assert ask("SendSignal", signal="SIGNAL_NOTHING").status_code == 400


def test_a_command_is_joined(shared: Sandbox) -> None:
    """From now on, by any number of clients; it goes on when one leaves, or its time is over."""
    with begin(shared, "echo before; read x; echo got $x; exit 3", stdin=True) as answer:
        told = messages(answer)
        pid = next(told)[1]["event"]["start"]["pid"]
        assert "data" in next(told)[1]["event"]
        with join(shared, pid, timeout=100) as brief:
            (_, start), (flags, last) = messages(brief)
        assert (start["event"]["start"]["pid"], flags, last["error"]["code"]) == (pid, 2, "deadline_exceeded")
        with join(shared, pid) as left:
            assert next(messages(left))[1] == start
        with join(shared, pid) as joined:
            both = messages(joined)
            assert next(both)[1] == start
            line = base64.b64encode(b"a line\n").decode()
            about = {"process": {"pid": pid}, "input": {"stdin": line}}
            assert shared.server("POST", "process.Process/SendInput", ENVD, json=about).json() == {}
            rest = list(both)
        assert rest == list(told)
        assert base64.b64decode(rest[0][1]["event"]["data"]["stdout"]) == b"got a line\n"
        assert rest[1][1]["event"]["end"]["exitCode"] == 3
    assert refusal(join(shared, pid)) == ("not_found", f"No program with the id {pid} runs")


def started(sandbox: Sandbox) -> int:
    """How many programs of a sandbox are in its record."""
    return sum(each["type"] == "process_started" for each in sandbox.gateway.recorded(sandbox.session))


def test_a_terminal_is_resized(shared: Sandbox) -> None:
    before = started(shared)
    with begin(shared, "", process={"args": ["-i"]}, pty={"size": {"cols": 100, "rows": 30}}) as answer:
        pid = next(messages(answer))[1]["event"]["start"]["pid"]

        def ask(name: str, **body: object) -> requests.Response:
            about = {"process": {"pid": pid}} | body
            return shared.server("POST", f"process.Process/{name}", ENVD, json=about)

        assert ask("Update", pty={"size": {"cols": 0, "rows": 40}}).status_code == 400
        with ThreadPoolExecutor() as pool:
            sizes = [{"size": {"cols": 100, "rows": rows}} for rows in range(31, 40)]
            told_all = list(pool.map(lambda size: ask("Update", pty=size).json(), sizes))
        assert told_all == [{}] * len(sizes)
        assert ask("Update", pty={"size": {"cols": 120, "rows": 40}}).json() == {}
        # These are no programs of the client.
        assert len(ask("List").json()["processes"]) == 1
        assert started(shared) == before + 1
        with join(shared, pid) as joined:
            told = messages(joined)
            assert next(told)[1]["event"]["start"]["pid"] == pid
            line = base64.b64encode(b"stty size; exit\n").decode()
            assert ask("SendInput", input={"pty": line}).json() == {}
            data = [each["event"]["data"]["pty"] for _, each in told if "data" in each.get("event", {})]
            assert b"40 120\r\n" in b"".join(map(base64.b64decode, data))
    with begin(shared, "read x", stdin=True) as answer:
        pid = next(messages(answer))[1]["event"]["start"]["pid"]
        refused = ask("Update", pty={"size": {"cols": 1, "rows": 1}})
        assert (refused.status_code, refused.json()["message"]) == (400, "The program has no terminal")
        ask("SendSignal", signal="SIGNAL_SIGKILL")


def test_bad_commands_are_refused(shared: Sandbox) -> None:
    for body in (b"", b"\0\0\0\0", b"{}", struct.pack(">BI", 0, 5) + b"{}", struct.pack(">BI", 1, 2) + b"{}"):
        headers = {"Content-Type": "application/connect+json"}
        answer = shared.server("POST", "process.Process/Start", ENVD, data=body, headers=headers, stream=True)
        assert refusal(answer)[0] == "invalid_argument"
    assert refusal(begin(shared, "true", process={"cwd": "x" * 5000}))[0] == "invalid_argument"
