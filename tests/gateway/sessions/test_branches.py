"""Branches over HTTP with real kernels: what they have, what is refused, and what the record says of them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import nbformat
import pytest

from tests.support.commands import cellgate
from tests.support.server import GatewayProcess
from tests.support.users import add_user, create_token


@pytest.fixture
def branch(gateway: GatewayProcess) -> Iterator[str]:
    """The key of a branch to be made."""
    key = f"test-{uuid.uuid4().hex[:12]}"
    yield key
    gateway.delete(f"/v1/sessions/{key}")


def branched(gateway: GatewayProcess, session: str, branch: str, **options: Any) -> dict[str, Any]:
    answer = gateway.post(f"/v1/sessions/{session}/branch", {"session": branch, **options})
    assert answer.status == 201, answer.json()
    assert answer.headers["Location"] == f"/v1/sessions/{branch}"
    model: dict[str, Any] = answer.json()
    return model


def text(gateway: GatewayProcess, session: str, code: str) -> str:
    result = gateway.execute(session, code)
    assert result["status"] == "ok", result
    return str(result["text"])


def test_a_branch_goes_on_with_all_variables_and_its_own_files(
    gateway: GatewayProcess, session: str, branch: str
) -> None:
    text(gateway, session, "import math; x = [1]; open('a.txt', 'w').write('a')")
    model = branched(gateway, session, branch)
    assert (model["cause"], model["execution_count"]) == ("branched", 1)
    assert model["shares_sandbox_with"] == [session]
    assert model["branched_from"]["session"] == session
    code = "x.append(math.floor(2.5)); open('a.txt', 'a').write('b'); x, open('a.txt').read(), len(In)"
    assert text(gateway, branch, code) == "([1, 2], 'ab', 3)"
    assert text(gateway, session, "x, open('a.txt').read()") == "([1], 'a')"
    tree = gateway.get(f"/v1/sessions/{session}/tree").json()
    assert [each["session"] for each in tree["branches"]] == [branch]
    gateway.delete(f"/v1/sessions/{session}")
    assert text(gateway, branch, "x") == "[1, 2]"


def test_what_stands_in_the_way_is_named_and_can_be_overruled(
    gateway: GatewayProcess, session: str, branch: str
) -> None:
    waits = "import threading; e = threading.Event(); threading.Thread(target=e.wait, name='mine').start()"
    text(gateway, session, waits)
    refused = gateway.post(f"/v1/sessions/{session}/branch", {"session": branch})
    assert (refused.status, refused.reason) == (409, "cannot_branch")
    assert refused.json()["obstacles"] == [{"kind": "thread", "name": "mine"}]
    assert gateway.get(f"/v1/sessions/{branch}").status == 404
    branched(gateway, session, branch, anyway=True)
    assert text(gateway, branch, "1 + 1") == "2"
    assert text(gateway, session, "e.set()") == ""


def test_kernels_of_other_languages_do_not_branch(gateway: GatewayProcess, session: str, branch: str) -> None:
    gateway.post("/v1/sessions", {"session": session, "language": "bash"})
    refused = gateway.post(f"/v1/sessions/{session}/branch", {"session": branch, "anyway": True})
    assert (refused.status, refused.reason) == (409, "cannot_branch")
    assert refused.json()["obstacles"] == [{"kind": "kernel", "name": "bash"}]


def test_a_busy_session_is_not_branched(gateway: GatewayProcess, session: str, branch: str) -> None:
    text(gateway, session, "1")
    gateway.post(f"/v1/sessions/{session}/execute", {"code": "import time; time.sleep(100)", "wait": False})
    refused = gateway.post(f"/v1/sessions/{session}/branch", {"session": branch})
    assert (refused.status, refused.reason) == (409, "busy")
    gateway.post(f"/v1/sessions/{session}/interrupt", {})


def test_a_branchs_notebook_replays_from_its_ancestors_beginning(
    gateway: GatewayProcess, session: str, branch: str
) -> None:
    text(gateway, session, "import random; x = 20")
    branched(gateway, session, branch, seed=7)
    drawn = text(gateway, branch, "x, random.random()")
    notebook = gateway.get(f"/v1/sessions/{branch}/notebook").json()
    nbformat.validate(nbformat.from_dict(notebook))
    inherited = [cell["metadata"]["cellgate"].get("inherited") for cell in notebook["cells"]]
    assert [each and each["session"] for each in inherited] == [session, None]
    own = gateway.get(f"/v1/sessions/{branch}/notebook?inherited=false").json()
    assert own["cells"] == notebook["cells"][1:]
    report = gateway.post(f"/v1/sessions/{branch}/replay", {}).json()
    assert (report["verdict"], report["same"], len(report["cells"])) == ("equal", 1, 2), (drawn, report)
    for key in (session, branch):
        assert gateway.get(f"/v1/sessions/{key}/audit/verify").json()["valid"]


def test_a_line_of_branches_is_exported_replayed_and_purged(
    gateway: GatewayProcess, session: str, branch: str
) -> None:
    below = f"{branch}-below"
    text(gateway, session, "import random; x = [1]")
    branched(gateway, session, branch, seed=1)
    text(gateway, branch, "x.append(2); random.random()")
    branched(gateway, branch, below, seed=2)
    text(gateway, below, "x, random.random()")
    tree = gateway.get(f"/v1/sessions/{below}/tree").json()
    assert [each["session"] for each in tree["ancestors"]] == [session, branch]
    assert inherited(gateway, below) == [session, branch, None]
    report = gateway.post(f"/v1/sessions/{below}/replay", {}).json()
    assert (report["verdict"], report["same"], len(report["cells"])) == ("equal", 1, 3), report

    def purge(key: str) -> None:
        assert gateway.delete(f"/v1/sessions/{key}?purge=true").status in {202, 204}
        assert gateway.get(f"/v1/sessions/{key}/notebook").status == 404
        for left in {session, branch, below} - purged - {key}:
            assert gateway.get(f"/v1/sessions/{left}/audit/verify").json()["valid"], left
        purged.add(key)

    purged: set[str] = set()
    purge(session)
    assert inherited(gateway, below) == [branch, None]
    told = gateway.get(f"/v1/sessions/{below}/notebook").json()["metadata"]["cellgate"]
    assert told["ancestor_left_out"] == "purged"
    assert gateway.get(f"/v1/sessions/{below}/tree").json()["ancestor_left_out"] == "purged"
    # Its kernel and its variables are its own.
    assert text(gateway, below, "x") == "[1, 2]"
    purge(below)
    assert text(gateway, branch, "x") == "[1, 2]"
    assert gateway.get(f"/v1/sessions/{branch}/tree").json()["branches"] == []
    purge(branch)


def inherited(gateway: GatewayProcess, session: str) -> list[str | None]:
    """The sessions of the notebook's cells; None for its own."""
    cells = gateway.get(f"/v1/sessions/{session}/notebook").json()["cells"]
    found = [cell["metadata"]["cellgate"].get("inherited") for cell in cells]
    return [each and each["session"] for each in found]


@pytest.mark.alone
def test_jupyter_sees_a_branch_as_a_kernel_of_its_own(
    gateway: GatewayProcess, session: str, branch: str
) -> None:
    text(gateway, session, "1")
    before = {kernel["id"] for kernel in gateway.get("/api/kernels").json()}
    branched(gateway, session, branch)
    new = [kernel for kernel in gateway.get("/api/kernels").json() if kernel["id"] not in before]
    assert [(kernel["name"], kernel["execution_state"]) for kernel in new] == [("python3", "idle")]


def test_paths_processes_and_ports_of_a_branch(gateway: GatewayProcess, session: str, branch: str) -> None:
    """As the pages tell: paths are the branch's own, processes stay the first session's, ports are shared."""
    text(
        gateway,
        session,
        "import os, socket, subprocess; top = os.getcwd(); open('a.txt', 'w').write('first')\n"
        "child = subprocess.Popen(['sleep', '1000'])",
    )
    assert "absolute_paths" not in branched(gateway, session, branch)
    assert text(gateway, branch, "os.getcwd() == top") == "True"
    text(gateway, branch, "open('a.txt', 'w').write('branch'); open('/mnt/data/b.txt', 'w').write('branch')")
    both = "[open(folder + '/a.txt').read() for folder in (top, '.')]"
    assert text(gateway, branch, both) == "['branch', 'branch']"
    assert text(gateway, session, both) == "['first', 'first']"
    listed = gateway.get(f"/v1/sessions/{branch}/files").json()["files"]
    assert [each["path"] for each in listed] == ["a.txt", "b.txt"]
    assert text(gateway, branch, "child.poll(), os.path.isdir(f'/proc/{child.pid}')") == "(0, True)"
    serve = "server = socket.create_server(('127.0.0.1', 0)); server.getsockname()[1]"
    connect = f"socket.socket().connect_ex(('127.0.0.1', {text(gateway, session, serve)})) == 0"
    assert text(gateway, branch, connect) == "True"
    gateway.delete(f"/v1/sessions/{session}")
    assert text(gateway, branch, connect) == "False"
    assert text(gateway, branch, "os.path.exists(top + '/a.txt'), os.path.exists('a.txt')") == "(True, True)"


def test_a_limited_token_is_told_of_no_session_out_of_its_reach(gateway: GatewayProcess) -> None:
    add_user(gateway, "dora")
    _, whole = create_token(gateway, "dora")
    _, limited = create_token(gateway, "dora", "--sessions", "ag-")
    assert gateway.post("/v1/sessions", {"session": "other"}, token=whole).status == 201
    made = gateway.post("/v1/sessions/other/branch", {"session": "ag-1"}, token=whole)
    assert made.json()["shares_sandbox_with"] == ["other"]
    model = gateway.get("/v1/sessions/ag-1", token=limited).json()
    listed = gateway.get("/v1/sessions", token=limited).json()["sessions"]
    for seen in (model, *listed):
        assert seen["session"] == "ag-1"
        assert "shares_sandbox_with" not in seen
    beside = gateway.post("/v1/sessions/ag-1/branch", {}, token=limited).json()
    assert beside["shares_sandbox_with"] == ["ag-1"]
    for key in ("other", "ag-1", beside["session"]):
        gateway.delete(f"/v1/sessions/{key}", token=whole)
    assert cellgate("user", "remove", "dora", "--data-dir", gateway.data_dir).returncode == 0
