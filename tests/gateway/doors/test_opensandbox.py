"""The door for OpenSandbox, called as opensandbox 1.1 and opensandbox-code-interpreter 1.1 call it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import requests

from cellgate.identity.principal import Reach, Role
from cellgate.identity.store.opening import open_users
from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.support.server import PATIENCE, TOKEN, GatewayProcess, until
from tests.support.sleepers import require_freezing

PLANE = "opensandbox/v1"
KEY, ACCESS = "OPEN-SANDBOX-API-KEY", "X-Execd-Access-Token"
RESOURCES = {"cpu": "500m", "memory": "512Mi"}


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with this door, and with ports; no cell may take longer than some seconds."""
    folder = tmp_path_factory.mktemp("opensandbox") / "data"
    options = {"doors": "opensandbox", "docker_url": NO_ENGINE, "ports_port": 0, "max_memory": "600m"}
    with serving(folder, "sandbox", max_lifetime=5000, **options) as process:
        yield process


def control(
    gateway: GatewayProcess, method: str, path: str, body: object = None, key: str | None = TOKEN, **more: Any
) -> requests.Response:
    """A request to the interface that makes sandboxes."""
    headers = {} if key is None else {KEY: key}
    url = f"{gateway.url}/{PLANE}/{path}"
    return requests.request(method, url, json=body, headers=headers, timeout=PATIENCE, **more)


@dataclass(frozen=True)
class Box:
    """A sandbox, as an SDK knows it."""

    gateway: GatewayProcess
    id: str
    endpoint: str
    headers: dict[str, str]

    @property
    def session(self) -> str:
        """Its session's key."""
        found = self.gateway.get("/v1/sessions?newest=true").json()["sessions"]
        return str(next(each["session"] for each in found if each["metadata"].get("sandbox") == self.id))

    def control(self, method: str, path: str = "", body: object = None, **more: Any) -> requests.Response:
        return control(self.gateway, method, f"sandboxes/{self.id}{path}", body, **more)

    def ask(self, method: str, path: str, **more: Any) -> requests.Response:
        """A request to its daemon."""
        headers = self.headers | more.pop("headers", {})
        url = f"http://{self.endpoint}/{path}"
        return requests.request(method, url, headers=headers, timeout=PATIENCE, **more)

    def send(self, path: str, **body: object) -> requests.Response:
        return self.ask("POST", path, json=body, stream=True)

    def events(self, path: str, **body: object) -> list[dict[str, Any]]:
        answer = self.send(path, **body)
        assert answer.status_code == 200, answer.text
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        return list(events_of(answer))

    def run(self, code: str, **context: object) -> list[dict[str, Any]]:
        return self.events("code", code=code, context={"language": "python", **context})

    def command(self, command: str, **more: object) -> list[dict[str, Any]]:
        return self.events("command", command=command, **more)

    def upload(self, *files: tuple[str, Any, bytes]) -> requests.Response:
        """Parts of a form in this order: names of fields, names of files, contents."""
        return self.ask("POST", "files/upload", files=[(field, (name, data)) for field, name, data in files])

    def write(self, path: str, data: bytes, **more: object) -> requests.Response:
        told = json.dumps({"path": path, "mode": 644, "owner": None, "group": None, **more})
        return self.upload(("metadata", "metadata", told.encode()), ("file", "any", data))


def events_of(answer: requests.Response) -> Iterator[dict[str, Any]]:
    for line in answer.iter_lines(chunk_size=1 << 20):
        if line:
            assert line.startswith(b"data: ")
            yield json.loads(line[6:])


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [each for each in events if each["type"] == kind]


def text(events: list[dict[str, Any]], kind: str = "stdout") -> list[str]:
    return [each["text"] for each in of(events, kind)]


def make(gateway: GatewayProcess, key: str = TOKEN, **more: object) -> Box:
    """As `Sandbox.create` does."""
    body = {
        "image": {"uri": "opensandbox/code-interpreter:v1.1.0"},
        "entrypoint": ["tail", "-f", "/dev/null"],
        "timeout": 600,
        "resourceLimits": {"cpu": "1", "memory": "2Gi"},
        **more,
    }
    answer = control(gateway, "POST", "sandboxes", body, key=key)
    assert answer.status_code == 202, answer.text
    made = answer.json()
    assert made["status"] == {"state": "Running"}
    told = control(
        gateway, "GET", f"sandboxes/{made['id']}/endpoints/44772?use_server_proxy=false", key=key
    ).json()
    assert list(told["headers"]) == [ACCESS]
    return Box(gateway, made["id"], told["endpoint"], told["headers"])


@pytest.fixture(scope="module")
def shared(gateway: GatewayProcess) -> Box:
    """A sandbox for all tests that leave it as it is."""
    return make(gateway, env={"FROM_CREATE": "one"}, metadata={"of": "all"})


@pytest.fixture
def own(gateway: GatewayProcess) -> Iterator[Box]:
    """A sandbox for one test."""
    made = make(gateway)
    yield made
    made.control("DELETE")


# ---- sandboxes ---------------------------------------------------------------------------------------------


def test_a_sandbox_is_made_told_of_listed_and_ended(gateway: GatewayProcess) -> None:
    made = make(gateway, metadata={"user": "a b/ü&="}, timeout=100, resourceLimits=RESOURCES)
    told = made.control("GET").json()
    assert (told["id"], told["metadata"]) == (made.id, {"user": "a b/ü&="})
    assert (told["image"]["uri"], told["entrypoint"]) == (
        "opensandbox/code-interpreter:v1.1.0",
        ["tail", "-f", "/dev/null"],
    )
    assert told["createdAt"] < told["expiresAt"]
    limits = gateway.model(made.session)["limits"]
    assert (limits["cpus"], limits["memory"], limits["lifetime"]) == (0.5, 512 * 1024**2, 100)
    listed = control(gateway, "GET", "sandboxes", params={"metadata": "user=a%20b%2F%C3%BC%26%3D"}).json()
    assert [each["id"] for each in listed["items"]] == [made.id]
    none = {"metadata": "user=b"}, {"state": "Paused", "metadata": "user=a%20b%2F%C3%BC%26%3D"}
    assert [control(gateway, "GET", "sandboxes", params=each).json()["items"] for each in none] == [[], []]
    assert made.control("DELETE").status_code == 204
    gone = made.control("DELETE")
    assert (gone.status_code, gone.json()["code"]) == (404, "NOT_FOUND")
    assert made.ask("GET", "ping").status_code == made.send("code", code="1").status_code == 404


def test_a_list_has_pages(gateway: GatewayProcess) -> None:
    made = [make(gateway, metadata={"page": "s"}) for _ in range(3)]
    pages = [
        control(gateway, "GET", f"sandboxes?state=Running&metadata=page%3Ds&page={number}&pageSize=2").json()
        for number in (1, 2, 3)
    ]
    assert [[each["id"] for each in page["items"]] for page in pages] == [
        [made[2].id, made[1].id],
        [made[0].id],
        [],
    ]
    assert pages[0]["pagination"] == {
        "page": 1,
        "pageSize": 2,
        "totalItems": 3,
        "totalPages": 2,
        "hasNextPage": True,
    }
    assert [control(gateway, "GET", f"sandboxes?page={bad}").status_code for bad in ("0", "x", "-1")] == [
        400
    ] * 3
    for each in made:
        each.control("DELETE")


def test_a_sandbox_ends_when_its_client_says(own: Box) -> None:
    def renew(seconds: float) -> requests.Response:
        at = datetime.now(UTC) + timedelta(seconds=seconds)
        return own.control("POST", "/renew-expiration", {"expiresAt": at.isoformat()})

    first = own.control("GET").json()["expiresAt"]
    later = renew(1000)
    assert (later.status_code, later.json()["expiresAt"] > first) == (200, True)
    assert [renew(each).status_code for each in (-1, 6000)] == [400, 400]
    bad = ("tomorrow", "2030-01-01T00:00:00", "")
    answers = [own.control("POST", "/renew-expiration", {"expiresAt": each}) for each in bad]
    assert [each.status_code for each in answers] == [400, 400, 400]
    renew(0.2)
    until(lambda: own.control("GET").status_code == 404, "it lives on")


def test_notes_of_a_sandbox_are_merged(own: Box) -> None:
    assert own.control("PATCH", "/metadata", {"a": "1", "b": "2"}).json()["metadata"] == {"a": "1", "b": "2"}
    assert own.control("PATCH", "/metadata", {"a": None, "c": "3"}).json()["metadata"] == {"b": "2", "c": "3"}
    assert own.control("PATCH", "/metadata", {"a": 1}).status_code == 400
    assert own.control("GET").json()["metadata"] == {"b": "2", "c": "3"}
    assert own.gateway.model(own.session)["metadata"]["door"] == "opensandbox"


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        ({"snapshotId": "s"}, 501, "snapshotId"),
        ({"templateId": "t"}, 501, "templateId"),
        ({"volumes": [{"name": "v"}]}, 501, "volumes"),
        ({"platform": {"os": "linux", "arch": "arm64"}}, 501, "platform"),
        ({"extensions": {"poolRef": "p"}}, 501, "extensions"),
        ({"lifecycle": {"preStart": {}}}, 501, "lifecycle"),
        ({"credentialProxy": {"enabled": True}}, 501, "credentialProxy"),
        ({"networkPolicy": {"egress": [{"action": "allow", "target": "a.org"}]}}, 501, "networkPolicy"),
        ({"networkPolicy": {"defaultAction": "maybe"}}, 400, "defaultAction"),
        ({"resourceLimits": {"gpu": "1"}}, 501, "gpu"),
        ({"resourceLimits": {"cpu": "many"}}, 400, "cpu"),
        ({"resourceLimits": {"memory": "1Mi"}}, 400, "memory"),
        ({"timeout": 10_000}, 400, "5000"),
        ({"timeout": -1}, 400, "timeout"),
        ({"env": {"A B": "x"}}, 400, "env"),
        ({"metadata": {"a": 1}}, 400, "metadata"),
        ({"entrypoint": "sh"}, 400, "entrypoint"),
        ({"image": {"uri": "i" * 1000}}, 400, "image"),
    ],
)
def test_a_sandbox_that_can_not_be_as_asked_for_is_not_made(
    gateway: GatewayProcess, shared: Box, body: dict[str, object], status: int, word: str
) -> None:
    before = gateway.get("/v1/sessions").json()["sessions"]
    answer = control(gateway, "POST", "sandboxes", {"image": {"uri": "any"}, **body})
    assert (answer.status_code, word in answer.json()["message"]) == (status, True), answer.text
    assert set(answer.json()) == {"code", "message"}
    assert len(gateway.get("/v1/sessions").json()["sessions"]) == len(before)


def test_more_memory_than_there_may_be_is_lowered(own: Box) -> None:
    """SDKs ask for 2 GiB if they are told nothing."""
    assert own.gateway.model(own.session)["limits"]["memory"] == 600 * 1024**2


def test_a_sandbox_without_a_time_lives_as_long_as_it_may(gateway: GatewayProcess) -> None:
    made = make(gateway, timeout=None, networkPolicy={"defaultAction": "deny", "egress": []})
    assert gateway.model(made.session)["limits"]["lifetime"] == 5000
    made.control("DELETE")


def test_other_ports_are_those_of_programs(own: Box) -> None:
    served = "import http.server, threading\nopen('a.txt', 'w').write('hi')\n"
    served += (
        "s = http.server.ThreadingHTTPServer(('127.0.0.1', 8000), http.server.SimpleHTTPRequestHandler)\n"
    )
    own.run(f"{served}threading.Thread(target=s.serve_forever, daemon=True).start()")
    told = own.control("GET", "/endpoints/8000").json()
    assert told["headers"] == {}
    url, headers = f"http://{told['endpoint']}/a.txt", {"Authorization": f"Bearer {TOKEN}"}
    assert requests.get(url, headers=headers, timeout=PATIENCE).text == "hi"
    assert requests.get(url, timeout=PATIENCE).status_code == 401
    assert [own.control("GET", f"/endpoints/{bad}").status_code for bad in ("0", "x", "70000")] == [400] * 3
    assert own.control("GET", "/endpoints/8000?expires=1").status_code == 501


@pytest.mark.parametrize(
    ("method", "path", "word"),
    [
        ("POST", "{plane}/sandboxes/{id}/snapshots", "snapshots"),
        ("GET", "{plane}/templates", "templates"),
        ("GET", "{plane}/sandboxes/{id}/networkpolicy", "network"),
        ("GET", "{plane}/sandboxes/{id}/proxy/8000/", "endpoint"),
        ("GET", "opensandbox/execd/{id}/policy", "network"),
        ("POST", "opensandbox/execd/{id}/session", "context of Bash"),
        ("POST", "opensandbox/execd/{id}/v1/isolated/session", "isolated"),
        ("PUT", "opensandbox/anything", "nothing"),
    ],
)
def test_what_is_not_there_is_refused_by_name(shared: Box, method: str, path: str, word: str) -> None:
    url = f"{shared.gateway.url}/{path.format(plane=PLANE, id=shared.id)}"
    answer = requests.request(method, url, headers={KEY: TOKEN}, timeout=PATIENCE)
    assert (answer.status_code, word in answer.json()["message"]) == (501, True), answer.text


# ---- who may ---------------------------------------------------------------------------------------------


def test_a_sandbox_is_its_users_alone(sandbox: None, start_gateway: StartGateway) -> None:
    own = start_gateway(backend="sandbox", doors="opensandbox", docker_url=NO_ENGINE)
    keys = {}
    with open_users(own.data_dir, create=True) as store:
        for name in ("ada", "bob"):
            store.add_user(name, Role.USER)
            keys[name] = store.create_token(name, reach=Reach())[1]
    made, other = make(own, keys["ada"]), make(own, keys["bob"])
    for method, path in (("GET", ""), ("DELETE", ""), ("GET", "/endpoints/44772"), ("POST", "/pause")):
        answer = control(own, method, f"sandboxes/{made.id}{path}", {}, key=keys["bob"])
        assert answer.status_code == 404
    assert [each["id"] for each in control(own, "GET", "sandboxes", key=keys["bob"]).json()["items"]] == [
        other.id
    ]
    # A token of one sandbox is none of another, and bob's own finds nothing of ada's.
    assert made.ask("GET", "ping", headers=other.headers).status_code == 401
    # Such as one that was told before the gateway's restart.
    assert made.ask("GET", "ping", headers={ACCESS: "old", KEY: keys["ada"]}).status_code == 200
    assert made.ask("GET", "ping", headers={ACCESS: "", KEY: keys["bob"]}).status_code == 404
    assert made.ask("GET", "ping", headers={ACCESS: "", KEY: keys["ada"]}).status_code == 200
    assert text(made.run("print(6 * 7)")) == ["42\n"]


def test_nobody_gets_in_without_a_token(shared: Box) -> None:
    for key in (None, "wrong"):
        answer = control(shared.gateway, "GET", "sandboxes", key=key)
        assert (answer.status_code, sorted(answer.json())) == (401, ["code", "message"])
    url = f"http://{shared.endpoint}/ping"
    for headers in ({}, {ACCESS: "wrong"}, {ACCESS: "a.b"}, {KEY: "wrong"}):
        assert requests.get(url, headers=headers, timeout=PATIENCE).status_code == 401
    assert shared.ask("GET", "ping").status_code == 200


def test_an_unknown_sandbox(gateway: GatewayProcess) -> None:
    for identifier in ("0" * 32, "A", "x" * 500):
        answer = control(gateway, "GET", f"sandboxes/{identifier}/endpoints/44772")
        assert answer.status_code == 404
        url = f"{gateway.url}/opensandbox/execd/{identifier}/code"
        answer = requests.post(url, json={"code": "1"}, headers={KEY: TOKEN}, timeout=PATIENCE)
        assert answer.status_code == 404


# ---- code --------------------------------------------------------------------------------------------------


def test_a_cell_as_events(shared: Box) -> None:
    events = shared.run(
        "import sys\nprint('out', flush=True)\nprint('err', file=sys.stderr, flush=True)\n6 * 7"
    )
    kinds = [each["type"] for each in events if each["type"] != "ping"]
    assert kinds[:3] == ["init", "status", "execution_count"]
    assert kinds[-2:] == ["status", "execution_complete"]
    assert (text(events), text(events, "stderr")) == (["out\n"], ["err\n"])
    assert of(events, "result")[0]["results"] == {"text": "42"}
    assert text(events, "status") == ["busy", "idle"]
    assert of(events, "execution_complete")[0]["execution_time"] >= 0
    assert all(isinstance(each["timestamp"], int) for each in events)


def test_an_error_a_picture_and_variables(shared: Box) -> None:
    failed = shared.run("1 / 0")
    (error,) = of(failed, "error")
    assert (error["error"]["ename"], error["error"]["evalue"]) == ("ZeroDivisionError", "division by zero")
    assert "\x1b" not in "".join(error["error"]["traceback"])
    html = "from IPython.display import HTML, display\ndisplay(HTML('<b>x</b>'))"
    assert of(shared.run(html), "result")[0]["results"]["text/html"] == "<b>x</b>"
    assert text(shared.run("import os; print(os.environ['FROM_CREATE'])")) == ["one\n"]


def test_each_language_keeps_its_variables(own: Box) -> None:
    own.run("x = 41")
    own.run("let q = 41", language="javascript")
    own.run("word=said", language="bash")
    assert of(own.run("x + 1"), "result")[0]["results"]["text"] == "42"
    assert of(own.run("q + 1", language="javascript"), "result")[0]["results"]["text"] == "42"
    assert text(own.run("echo $word", language="bash")) == ["said\n"]
    # Those are nobody's contexts but the languages' own.
    assert own.ask("GET", "code/contexts").json() == []


def test_contexts(own: Box) -> None:
    own.run("x = 1; open('a.txt', 'w').write('a')")
    made = own.ask("POST", "code/context", json={"language": "python", "cwd": "/tmp"}).json()
    bash = own.ask("POST", "code/context", json={"language": "bash"}).json()
    assert of(own.run("x", id=made["id"]), "error")[0]["error"]["ename"] == "NameError"
    found = own.run("import os; print(os.getcwd(), open('/workspace/a.txt').read())", id=made["id"])
    assert text(found) == ["/tmp a\n"]
    assert own.ask("GET", "code/contexts").json() == [made, bash]
    assert own.ask("GET", "code/contexts?language=bash").json() == [bash]
    assert own.ask("GET", f"code/contexts/{bash['id']}").json() == bash
    assert own.send("code", code="1", context={"id": bash["id"], "language": "python"}).status_code == 400
    assert own.ask("DELETE", "code/contexts?language=bash").status_code == 200
    assert own.ask("DELETE", f"code/contexts/{made['id']}").status_code == 200
    assert own.ask("GET", "code/contexts").json() == []
    for method in ("GET", "DELETE"):
        assert own.ask(method, f"code/contexts/{made['id']}").status_code == 404
    assert own.send("code", code="1", context={"id": made["id"], "language": "python"}).status_code == 404
    assert own.ask("DELETE", "code/contexts/default").status_code == 400
    assert own.ask("DELETE", "code/contexts").status_code == 400
    assert of(own.run("x"), "result")[0]["results"]["text"] == "1"


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"code": 1},
        [],
        "text",
        {"code": "1", "context": {"language": "java"}},
        {"code": "1", "context": 1},
    ],
)
def test_a_cell_that_is_none_is_refused(shared: Box, body: object) -> None:
    answer = shared.ask("POST", "code", json=body)
    assert (answer.status_code, sorted(answer.json())) == (400, ["code", "message"])


def test_what_is_no_json(shared: Box) -> None:
    for path in ("code", "command", "code/context", "files/mv", "files/permissions", "directories"):
        assert shared.ask("POST", path, data=b"{").status_code == 400, path
    assert shared.ask("POST", "code/context", json={"language": "java"}).status_code == 400
    assert (
        shared.ask("POST", "code/context", json={"language": "python", "cwd": "/nothing"}).status_code == 400
    )


@pytest.mark.parametrize("by", ["cell", "context"])
def test_an_interrupt(own: Box, by: str) -> None:
    context = own.ask("POST", "code/context", json={"language": "python"}).json()
    code = "print('begun', flush=True)\nimport time; time.sleep(600)"
    with ThreadPoolExecutor(1) as threads:
        answer = own.send("code", code=code, context=context)
        events = events_of(answer)
        known = next(events)["text"]
        next(each for each in events if each["type"] == "stdout")
        wanted = known if by == "cell" else context["id"]
        assert own.ask("DELETE", f"code?id={wanted}").status_code == 200
        rest = threads.submit(list, events).result(PATIENCE)
    assert of(rest, "error")[0]["error"]["ename"] == "KeyboardInterrupt"
    # Nothing runs there any more.
    assert own.ask("DELETE", f"code?id={context['id']}").status_code == 200
    assert [own.ask("DELETE", f"code{query}").status_code for query in ("", "?id=none")] == [400, 404]


def test_a_cell_that_takes_too_long(sandbox: None, start_gateway: StartGateway) -> None:
    gateway = start_gateway(
        backend="sandbox", doors="opensandbox", docker_url=NO_ENGINE, cell_timeout=1, max_cell_timeout=1
    )
    events = make(gateway).run("print('begun')\nimport time; time.sleep(60)")
    assert text(events) == ["begun\n"]
    assert of(events, "error")[-1]["error"]["ename"] == "cell_timeout"
    assert of(events, "execution_complete") == []
    # There are no ports either.
    made = make(gateway)
    assert made.control("GET", "/endpoints/8000").status_code == 501


def test_a_large_output(shared: Box) -> None:
    events = shared.run("print('x' * 3_000_000)\n'y' * 100_000")
    assert sum(map(len, text(events))) == 3_000_001
    assert len(of(events, "result")[0]["results"]["text"]) == 100_002


def test_a_cell_whose_client_leaves_is_stopped(own: Box) -> None:
    code = "print('begun', flush=True)\nimport time\nwhile True: time.sleep(0.05)"
    with own.send("code", code=code, context={"language": "python"}) as answer:
        next(each for each in events_of(answer) if each["type"] == "stdout")
    assert of(own.run("1 + 1"), "result")[0]["results"]["text"] == "2"
    found = own.gateway.get(f"/v1/sessions/{own.session}/executions").json()["executions"]
    (stopped,) = (each for each in found if each["status"] == "interrupted")
    assert own.gateway.result(own.session, stopped["execution"])["cause"] == "client_disconnected"


# ---- commands ----------------------------------------------------------------------------------------------


def test_a_command_as_events(shared: Box) -> None:
    events = shared.command("printf 'a\\n\\nb\\r\\nc'; echo no >&2; echo $FROM_CREATE")
    assert events[0]["type"] == "init"
    assert (text(events), text(events, "stderr")) == (["a", "", "b", "cone"], ["no"])
    assert events[-1]["type"] == "execution_complete"


def test_how_a_command_ends(shared: Box) -> None:
    def error(events: list[dict[str, Any]]) -> dict[str, Any]:
        assert of(events, "execution_complete") == []
        return dict(events[-1]["error"])

    failed = shared.command("exit 3")
    assert error(failed) == {"ename": "CommandExecError", "evalue": "3", "traceback": ["exit status 3"]}
    status = shared.ask("GET", f"command/status/{failed[0]['text']}").json()
    assert (status["running"], status["exit_code"], status["content"]) == (False, 3, "exit 3")
    assert status["started_at"] <= status["finished_at"]
    killed = error(shared.command("kill -9 $$"))
    assert (killed["evalue"], killed["traceback"]) == ("-1", ["signal: SIGKILL"])
    late = error(shared.command("sleep 60", timeout=300))
    assert (late["evalue"], late["traceback"]) == ("-1", ["the command ran longer than its time"])


def test_options_of_a_command(shared: Box) -> None:
    events = shared.command("pwd; echo $A $FROM_CREATE", cwd="/tmp", envs={"A": "1", "FROM_CREATE": "2"})
    assert text(events) == ["/tmp", "1 2"]
    assert text(shared.events("command", argv=["echo", "$A", "*"])) == ["$A *"]
    refused = [
        ({"command": "id", "uid": 0}, 501),
        ({"command": " "}, 400),
        ({"command": "a", "argv": ["b"]}, 400),
        ({"argv": []}, 400),
        ({"command": "a", "timeout": -1}, 400),
        ({"command": "pwd", "cwd": "/nothing"}, 400),
        ({"command": "pwd", "envs": {"CELLGATE_X": "1"}}, 400),
    ]
    for body, status in refused:
        assert shared.ask("POST", "command", json=body).status_code == status, body


def test_a_command_in_the_background(own: Box) -> None:
    begun = own.command("echo one; sleep 0.2; echo two >&2; sleep 600", background=True)
    assert [each["type"] for each in begun] == ["init", "execution_complete"]
    identifier = begun[0]["text"]
    told, cursor = "", ""
    while "two" not in told:
        answer = own.ask("GET", f"command/{identifier}/logs?cursor={cursor}")
        told += answer.text
        cursor = answer.headers["EXECD-COMMANDS-TAIL-CURSOR"]
    assert told == "one\ntwo\n"
    assert own.ask("GET", f"command/{identifier}/logs?cursor={cursor}").text == ""
    assert own.ask("GET", f"command/{identifier}/logs").text == "one\ntwo\n"
    assert own.ask("GET", f"command/status/{identifier}").json()["running"] is True
    assert own.ask("DELETE", f"command?id={identifier}").status_code == 200
    until(lambda: not own.ask("GET", f"command/status/{identifier}").json()["running"], "it runs on")
    assert own.ask("GET", f"command/status/{identifier}").json()["error"] == "signal: SIGTERM"
    for method, path in (
        ("GET", "command/status/p-x"),
        ("GET", "command/p-x/logs"),
        ("DELETE", "command?id=x"),
    ):
        assert own.ask(method, path).status_code == 404
    assert own.ask("GET", f"command/{identifier}/logs?cursor=-1").status_code == 400


def test_a_command_whose_client_leaves_runs_on(own: Box) -> None:
    with own.send("command", command="echo begun; sleep 0.5; echo done > done.txt; exit 5") as answer:
        events = events_of(answer)
        identifier = next(events)["text"]
        next(each for each in events if each["type"] == "stdout")
    until(lambda: own.ask("GET", f"command/status/{identifier}").json()["exit_code"] == 5, "it has ended")
    assert own.ask("GET", "files/download?path=done.txt").text == "done\n"


def test_the_interpreter_is_ready_when_there_is_a_kernel(shared: Box) -> None:
    probe = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/${JUPYTER_PORT:-44771}' && exit 0 || exit 1"
    assert shared.command(probe)[-1]["type"] == "execution_complete"


def test_metrics(shared: Box) -> None:
    told = shared.ask("GET", "metrics").json()
    assert sorted(told) == ["cpu_count", "cpu_used_pct", "mem_total_mib", "mem_used_mib", "timestamp"]
    assert 0 < told["mem_used_mib"] < told["mem_total_mib"]


# ---- files -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["", "/home/user/", "/workspace/", "/tmp/"])
def test_a_file_there_and_back(own: Box, folder: str) -> None:
    path = f"{folder}a b/ü.txt"
    assert own.write(path, b"0123456789", mode=755).status_code == 200
    answer = own.ask("GET", "files/download", params={"path": path})
    assert (answer.status_code, answer.content) == (200, b"0123456789")
    part = own.ask("GET", "files/download", params={"path": path}, headers={"Range": "bytes=2-3"})
    assert (part.status_code, part.content) == (206, b"23")
    told = own.ask("GET", "files/info", params={"path": path}).json()
    assert list(told) == [path]
    assert (told[path]["path"], told[path]["type"], told[path]["size"], told[path]["mode"]) == (
        path,
        "file",
        10,
        755,
    )
    assert datetime.fromisoformat(told[path]["modified_at"]).tzinfo is not None
    assert own.ask("DELETE", "files", params={"path": path}).status_code == 200
    assert own.ask("GET", "files/download", params={"path": path}).status_code == 404
    assert own.ask("GET", "files/info", params={"path": path}).status_code == 404


def test_many_files_of_one_form(own: Box) -> None:
    told = [json.dumps({"path": f"m/{number}"}).encode() for number in range(3)]
    pairs = [
        part
        for number, each in enumerate(told)
        for part in (("metadata", "m", each), ("file", "f", b"%d" % number))
    ]
    assert own.upload(*pairs).status_code == 200
    found = own.ask("GET", "files/search?path=m&pattern=[12]").json()
    assert [each["path"] for each in found] == ["m/1", "m/2"]
    assert own.ask("GET", "files/download?path=m/2").text == "2"


def test_forms_that_are_none(own: Box) -> None:
    good = json.dumps({"path": "a.txt"}).encode()
    forms: list[list[tuple[str, Any, bytes]]] = [
        [("file", "a", b"x")],
        [("file", "a", b"x"), ("metadata", "m", good)],
        [("metadata", "m", good)],
        [("metadata", "m", b"{"), ("file", "a", b"x")],
        [("metadata", "m", b"{}"), ("file", "a", b"x")],
        [("metadata", "m", b'{"path": "a", "mode": 999}'), ("file", "a", b"x")],
        [("metadata", "m", b'{"path": "a", "pad": "' + b"x" * 20_000 + b'"}'), ("file", "a", b"x")],
        [("metadata", "m", b'{"path": "a/../../.."}'), ("file", "a", b"x")],
        [("metadata", "m", good), ("file", "a", b"x"), ("metadata", "m", good), ("file", "a", b"y")],
    ]
    assert [own.upload(*form).status_code for form in forms] == [400] * len(forms)
    owned = json.dumps({"path": "a.txt", "owner": "root"}).encode()
    assert own.upload(("metadata", "m", owned), ("file", "a", b"x")).status_code == 501
    assert own.ask("POST", "files/upload", data=b"x").status_code == 415
    assert own.ask("GET", "directories/list?path=.").json() == []


def test_folders(own: Box) -> None:
    made = own.ask("POST", "directories", json={"a/b": {"mode": 750}, "/tmp/c": {}})
    assert made.status_code == 200
    own.write("a/b/f.txt", b"1")
    told = own.ask("GET", "directories/list?path=a&depth=2").json()
    assert [(each["path"], each["type"], each["mode"]) for each in told] == [
        ("a/b", "directory", 750),
        ("a/b/f.txt", "file", 644),
    ]
    assert [each["path"] for each in own.ask("GET", "directories/list?path=a").json()] == ["a/b"]
    assert [
        own.ask("GET", f"directories/list?path={bad}").status_code for bad in ("", "none", "a%26depth=0")
    ] == [400, 404, 404]
    assert own.ask("GET", "directories/list?path=a&depth=0").status_code == 400
    # A folder is no file, and one that is gone is gone.
    assert own.ask("DELETE", "files?path=a").status_code == 409
    assert [own.ask("DELETE", "directories?path=a").status_code for _ in range(2)] == [200, 200]
    assert own.ask("GET", "directories/list?path=a").status_code == 404


def test_changes_of_files(own: Box) -> None:
    own.write("a.txt", b"one two one")
    own.write("b.txt", b"b")
    moved = own.ask("POST", "files/mv", json=[{"src": "a.txt", "dest": "/tmp/new/a.txt"}])
    assert moved.status_code == 200
    counted = own.ask(
        "POST", "files/replace?verbose=true", json={"/tmp/new/a.txt": {"old": "one", "new": "1"}}
    )
    assert counted.json() == {"/tmp/new/a.txt": {"replacedCount": 2}}
    assert own.ask("GET", "files/download?path=/tmp/new/a.txt").text == "1 two 1"
    assert own.ask("POST", "files/permissions", json={"b.txt": {"mode": 400}}).status_code == 200
    assert own.ask("GET", "files/info?path=b.txt").json()["b.txt"]["mode"] == 400
    refused = [
        ("files/mv", [{"src": "none", "dest": "x"}], 404),
        ("files/mv", [{"src": "b.txt"}], 400),
        ("files/replace", {"b.txt": {"old": "", "new": "x"}}, 400),
        ("files/replace", {"none": {"old": "a", "new": "x"}}, 404),
        ("files/permissions", {"b.txt": {"mode": 888}}, 400),
        ("files/permissions", {"b.txt": {"mode": 644, "owner": "root"}}, 501),
        ("files/permissions", {"/usr": {"mode": 777}}, 409),
        ("directories", {"b.txt/c": {}}, 409),
        ("directories", {str(number): {} for number in range(300)}, 400),
    ]
    for path, body, status in refused:
        answer = own.ask("POST", path, json=body)
        assert (answer.status_code, path) == (status, path), answer.text
    assert own.ask("GET", "files/download?path=b.txt&offset=1").status_code == 501


def test_more_files_than_are_told(own: Box) -> None:
    own.command("mkdir many && cd many && seq 5001 | xargs touch")
    answer = own.ask("GET", "directories/list?path=many")
    assert (answer.status_code, "5000" in answer.json()["message"]) == (400, True)
    own.command("cd many && rm 1 && mv 2 $'\\xff\\n'")
    assert len(own.ask("GET", "files/search?path=many").json()) == 5000


# ---- pauses ------------------------------------------------------------------------------------------------


def test_a_paused_sandbox(sandbox: None, start_gateway: StartGateway) -> None:
    require_freezing()
    options = {"sleep_after": 3600.0, "cull_interval": 0.1, "docker_url": NO_ENGINE}
    own = make(start_gateway(backend="sandbox", doors="opensandbox", **options))
    own.run("x = 1")
    assert own.control("POST", "/resume").status_code == 409
    assert own.control("POST", "/pause").status_code == 202
    assert own.control("GET").json()["status"] == {"state": "Paused"}
    assert own.control("POST", "/pause").status_code == 409
    assert [own.send("code", code="x").status_code, own.ask("GET", "ping").status_code] == [409, 409]
    assert own.control("POST", "/resume").status_code == 202
    assert own.control("GET").json()["status"] == {"state": "Running"}
    assert of(own.run("x"), "result")[0]["results"]["text"] == "1"
