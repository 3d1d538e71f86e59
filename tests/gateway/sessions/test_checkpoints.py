"""Checkpoints over HTTP with real kernels: back and again, what ends, and what the record says of it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.support.commands import cellgate, environment
from tests.support.server import TOKEN, GatewayProcess, until

KERNEL = Path(__file__).parents[3] / ".venv" / "share" / "cellgate" / "environment" / "bin" / "python"


@pytest.fixture
def auto(gateway: GatewayProcess) -> Iterator[str]:
    """A session with a checkpoint after each cell."""
    key = f"test-{uuid.uuid4().hex[:12]}"
    made = gateway.post("/v1/sessions", {"session": key, "checkpoint": "auto"})
    assert (made.status, made.json()["checkpoint"]) == (201, "auto")
    yield key
    gateway.delete(f"/v1/sessions/{key}")


def text(gateway: GatewayProcess, session: str, code: str) -> str:
    result = gateway.execute(session, code)
    assert result["status"] == "ok", result
    return str(result["text"])


def kept(gateway: GatewayProcess, session: str, name: str | None = None, **more: Any) -> dict[str, Any]:
    body = more if name is None else {"name": name, **more}
    answer = gateway.post(f"/v1/sessions/{session}/checkpoints", body)
    assert answer.status == 201, answer.json()
    model: dict[str, Any] = answer.json()
    return model


def back(gateway: GatewayProcess, session: str, name: str | None = None) -> dict[str, Any]:
    body = {} if name is None else {"checkpoint": name}
    return answered(gateway.post(f"/v1/sessions/{session}/rollback", body))


def undone(gateway: GatewayProcess, session: str) -> dict[str, Any]:
    return answered(gateway.post(f"/v1/sessions/{session}/undo", {}))


def answered(answer: Any) -> dict[str, Any]:
    assert answer.status == 200, answer.json()
    model: dict[str, Any] = answer.json()
    return model


def put(gateway: GatewayProcess, session: str, data: bytes) -> None:
    path = f"/v1/sessions/{session}/files/in.csv"
    put = gateway.request("PUT", path, data, headers={"Content-Type": "application/octet-stream"})
    assert put.status in {200, 201}


def names(gateway: GatewayProcess, session: str) -> list[str]:
    found = gateway.get(f"/v1/sessions/{session}/checkpoints").json()["checkpoints"]
    return [each["name"] for each in found]


def test_variables_and_files_go_back_as_often_as_is_wanted(gateway: GatewayProcess, session: str) -> None:
    text(gateway, session, "x = [1]; open('a.txt', 'w').write('a')")
    model = kept(gateway, session, "good")
    assert (model["name"], model["cells"], model["automatic"]) == ("good", 1, False)
    assert kept(gateway, session, "again")["files"] == "none"
    assert gateway.delete(f"/v1/sessions/{session}/checkpoints/again").status == 204
    for _ in range(2):
        text(gateway, session, "x.append(2); import os; os.remove('a.txt'); open('b.txt', 'w').write('b')")
        answer = back(gateway, session, "good")
        assert answer["rolled_back"] == {"checkpoint": "good", "undone": 1}
        assert (answer["state"], answer["cause"]) == ("idle", "rolled_back")
        listed = gateway.get(f"/v1/sessions/{session}/files").json()["files"]
        assert [each["path"] for each in listed] == ["a.txt"]
        # Its number in the kernel is that of the cell that was undone.
        result = gateway.execute(session, "x, open('a.txt').read(), 'os' in dir()")
        assert (result["text"], result["execution_count"]) == ("([1], 'a', False)", 2)
        back(gateway, session)
    assert names(gateway, session) == ["good"]


def test_the_record_keeps_what_was_undone(gateway: GatewayProcess, session: str) -> None:
    text(gateway, session, "x = 1")
    put(gateway, session, b"1")
    kept(gateway, session, "good")
    put(gateway, session, b"22")
    text(gateway, session, "x = 2")
    back(gateway, session)
    text(gateway, session, "x + 40")
    notebook = gateway.get(f"/v1/sessions/{session}/notebook").json()
    nbformat.validate(nbformat.from_dict(notebook))
    flags = [cell["metadata"]["cellgate"].get("undone") for cell in notebook["cells"]]
    assert [flag and flag["checkpoint"] for flag in flags] == [None, "good", None]
    without = gateway.get(f"/v1/sessions/{session}/notebook?undone=false").json()
    assert ["".join(cell["source"]) for cell in without["cells"]] == ["x = 1", "x + 40"]
    report = gateway.post(f"/v1/sessions/{session}/replay", {}).json()
    assert (report["verdict"], report["same"]) == ("equal", 2), report
    assert gateway.get(f"/v1/sessions/{session}/audit/verify").json()["valid"]
    events = gateway.get(f"/v1/sessions/{session}/events").body
    assert events.count(b'"type":"checkpointed"') == events.count(b'"type":"rolled_back"') == 1


def test_who_runs_an_export_gets_what_the_session_has(
    gateway: GatewayProcess, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run by nbclient, as JupyterLab and `nbconvert --execute` do, and by `cellgate run`."""
    text(gateway, session, "open('kept.txt', 'w').write('here')")
    kept(gateway, session, "good")
    text(gateway, session, "import os; os.remove('kept.txt'); x = 'undone'")
    back(gateway, session)
    assert text(gateway, session, "open('kept.txt').read(), 'x' in globals()") == "('here', False)"
    exported = gateway.get(f"/v1/sessions/{session}/notebook").body
    notebook = nbformat.reads(exported, as_version=4)
    assert [cell.cell_type for cell in notebook.cells] == ["code", "raw", "code"]
    assert notebook.cells[1].metadata.tags == ["undone"]
    command = [str(KERNEL), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    spec = tmp_path / "kernels" / "plain" / "kernel.json"
    spec.parent.mkdir(parents=True)
    spec.write_text(json.dumps({"argv": command, "display_name": "plain", "language": "python"}))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    workspace = tmp_path / "work"
    workspace.mkdir()
    run = NotebookClient(notebook, kernel_name="plain", resources={"metadata": {"path": str(workspace)}})
    (told,) = run.execute().cells[2].outputs
    assert told.data["text/plain"] == "('here', False)"
    file = tmp_path / "exported.ipynb"
    file.write_bytes(exported)
    again = tmp_path / "again.ipynb"
    variables = environment(CELLGATE_URL=gateway.url, CELLGATE_TOKEN=TOKEN)
    done = cellgate("run", file, "--output", again, env=variables, cwd=tmp_path)
    assert done.returncode == 0, done
    ran = nbformat.read(again, as_version=4)
    assert ran.cells[2].outputs[0].data["text/plain"] == "('here', False)"


def test_a_page_has_undone_cells_and_a_script_is_without_them(gateway: GatewayProcess, session: str) -> None:
    text(gateway, session, "x = 1")
    kept(gateway, session, "good")
    text(gateway, session, "x = '<b>```'")
    back(gateway, session)
    address = f"/v1/sessions/{session}/notebook?format="
    page, markdown, script = (
        gateway.get(address + form).body.decode() for form in ("html", "markdown", "script")
    )
    assert "Undone by a rollback:" in page
    assert "x = '&lt;b&gt;```'" in page
    assert "*Undone by a rollback:*\n\n``````\nx = '<b>```'\n``````" in markdown
    assert "x = 1" in script
    assert "<b>" not in script


def test_what_cells_change_after_a_rollback_is_told(gateway: GatewayProcess, session: str) -> None:
    files = "[open(name, 'w').write(name) for name in ('a', 'b', 'c', 'd/e')]"
    text(gateway, session, f"import os; os.mkdir('d'); {files}; None")
    kept(gateway, session)
    text(gateway, session, "os.remove('a'); open('b', 'w').write('new'); open('f', 'w').write('new'); None")
    back(gateway, session)
    assert gateway.execute(session, "1 + 1")["files"] == []
    found = gateway.execute(session, "open('a', 'w').write('A'); open('d/g', 'w').write('g'); None")["files"]
    assert [(each["path"], each["action"]) for each in found] == [("a", "changed"), ("d/g", "created")]


def test_each_cell_can_be_undone(gateway: GatewayProcess, auto: str) -> None:
    for number in range(4):
        text(gateway, auto, f"x = {number}; open('n.txt', 'w').write('{number}')")
    for number in (2, 1, 0):
        answer = undone(gateway, auto)
        assert answer["rolled_back"] == {"checkpoint": f"auto-{number + 1}", "undone": 1}
        text(gateway, auto, f"assert (x, open('n.txt').read()) == ({number}, '{number}')")
        assert undone(gateway, auto)["rolled_back"]["undone"] == 1
    undone(gateway, auto)
    assert text(gateway, auto, "import os; 'x' in dir(), os.listdir()") == "(False, [])"
    undone(gateway, auto)
    refused = gateway.post(f"/v1/sessions/{auto}/undo", {})
    assert (refused.status, refused.reason) == (404, "not_found")


def test_a_cell_that_ends_its_kernel_is_undone(gateway: GatewayProcess, auto: str) -> None:
    """Variables survive the kernel's death, because a checkpoint does not die with its kernel."""
    text(gateway, auto, "x = 1")
    for code in ("exit()", "import os; os.kill(os.getpid(), 9)"):
        assert gateway.execute(auto, code)["status"] == "died"
        assert undone(gateway, auto)["rolled_back"]["undone"] == 1
        result = gateway.execute(auto, "x")
        assert (result["text"], result["kernel"]["replaced"]) == ("1", False)


def test_a_cell_that_hangs_is_undone(gateway: GatewayProcess, auto: str) -> None:
    text(gateway, auto, "x = 1")
    hangs = (
        "import signal, time; signal.pthread_sigmask(signal.SIG_BLOCK, [2]); x = 2\nwhile 1: time.sleep(1)"
    )
    going = gateway.post(f"/v1/sessions/{auto}/execute", {"code": hangs, "wait": False}).json()
    waits = gateway.post(f"/v1/sessions/{auto}/execute", {"code": "x = 3", "wait": False}).json()
    until(lambda: gateway.get(f"/v1/sessions/{auto}").json()["state"] == "busy", "the cell does not run")
    busy = gateway.post(f"/v1/sessions/{auto}/checkpoints", {})
    assert (busy.status, busy.reason) == (409, "busy")
    assert undone(gateway, auto)["rolled_back"] == {"checkpoint": "auto-1", "undone": 1}
    path = f"/v1/sessions/{auto}/executions"
    ends = [gateway.get(f"{path}/{each['execution']}").json() for each in (going, waits)]
    assert [(each["status"], each["cause"]) for each in ends] == [
        ("interrupted", "rolled_back"),
        ("cancelled", "rolled_back"),
    ]
    assert text(gateway, auto, "x") == "1"


def test_what_stands_in_the_way_is_told(gateway: GatewayProcess, auto: str) -> None:
    waits = "import threading; e = threading.Event(); threading.Thread(target=e.wait, name='mine').start()"
    text(gateway, auto, waits)
    refused = gateway.post(f"/v1/sessions/{auto}/checkpoints", {})
    assert (refused.status, refused.reason) == (409, "cannot_branch")
    assert refused.json()["obstacles"] == [{"kind": "thread", "name": "mine"}]
    made = kept(gateway, auto, "anyway", anyway=True)
    text(gateway, auto, "y = 1")
    # Neither of the two cells has one right before it but the first.
    assert undone(gateway, auto)["rolled_back"] == {"checkpoint": "anyway", "undone": 1}
    assert made["cells"] == 1


def test_a_program_beside_the_kernel_writes_nothing_after_a_rollback(
    gateway: GatewayProcess, auto: str
) -> None:
    text(gateway, auto, "open('a.txt', 'w').write('good')")
    writes = "import time\nwhile True:\n    open('a.txt', 'w').write('bad')\n    time.sleep(0.001)"
    kernel = text(gateway, auto, "import sys; print(sys.executable)").strip()
    body = {"argv": [kernel, "-c", writes], "wait": False}
    started = gateway.post(f"/v1/sessions/{auto}/processes", body)
    assert started.status in {201, 202}, started.body
    until(lambda: text(gateway, auto, "open('a.txt').read()") == "'bad'", "the program does not write")
    back(gateway, auto, "auto-1")
    assert text(gateway, auto, "import time; time.sleep(0.2); open('a.txt').read()") == "'good'"
    ended = gateway.get(f"/v1/sessions/{auto}/processes/{started.json()['process']}").json()
    assert ended["exit_code"] is None, ended


def test_bad_requests_change_nothing(gateway: GatewayProcess, session: str) -> None:
    text(gateway, session, "x = 1")
    path = f"/v1/sessions/{session}"
    for name in ("", "a/b", "-a", "auto-7", "x" * 65, "é"):
        assert gateway.post(f"{path}/checkpoints", {"name": name}).status == 400, name
    for action in ("rollback", "undo"):
        assert gateway.post(f"{path}/{action}", {}).status == 404
    kept(gateway, session, "a")
    taken = gateway.post(f"{path}/checkpoints", {"name": "a"})
    assert (taken.status, taken.reason) == (409, "conflict")
    assert gateway.post(f"{path}/rollback", {"checkpoint": "b"}).status == 404
    assert gateway.delete(f"{path}/checkpoints/b").status == 404
    assert gateway.delete(f"{path}/checkpoints/a").status == 204
    assert gateway.post(f"{path}/rollback", {}).status == 404
    bash = gateway.post("/v1/sessions", {"session": f"{session}-b", "checkpoint": "auto", "language": "bash"})
    assert (bash.status, bash.reason) == (400, "bad_request")
    other = gateway.post("/v1/sessions", {"session": session, "checkpoint": "auto"})
    assert (other.status, other.reason) == (409, "conflict")
    assert text(gateway, session, "x") == "1"


def test_a_restart_ends_them(gateway: GatewayProcess, auto: str) -> None:
    text(gateway, auto, "x = 1")
    kept(gateway, auto, "a")
    assert gateway.post(f"/v1/sessions/{auto}/restart", {}).status == 200
    text(gateway, auto, "1")
    until(lambda: names(gateway, auto) == ["auto-1", "auto-2"], "no new ones")


def test_a_restart_ends_them_also_while_a_branch_lives_in_their_sandbox(
    gateway: GatewayProcess, session: str
) -> None:
    text(gateway, session, "x = 1")
    kept(gateway, session, "a")
    branch = f"{session}-b"
    assert gateway.post(f"/v1/sessions/{session}/branch", {"session": branch}).status == 201
    assert gateway.post(f"/v1/sessions/{session}/restart", {}).status == 200
    assert names(gateway, session) == []
    assert gateway.post(f"/v1/sessions/{session}/rollback", {}).status == 404
    assert text(gateway, branch, "x") == "1"
    gateway.delete(f"/v1/sessions/{branch}")
    assert kept(gateway, session, "a")["name"] == "a"


def test_files_that_another_session_uses_are_not_rolled_back(gateway: GatewayProcess, session: str) -> None:
    text(gateway, session, "x = 1")
    kept(gateway, session, "a")
    other = f"{session}-b"
    assert (
        gateway.post(f"/v1/sessions/{session}/branch", {"session": other, "workspace": "shared"}).status
        == 201
    )
    for refused in (
        gateway.post(f"/v1/sessions/{session}/rollback", {}),
        gateway.post(f"/v1/sessions/{other}/checkpoints", {}),
    ):
        assert (refused.status, refused.reason) == (409, "conflict")
    gateway.delete(f"/v1/sessions/{other}")
    assert back(gateway, session)["rolled_back"]["undone"] == 0


def test_a_branch_has_checkpoints_of_its_own(gateway: GatewayProcess, auto: str) -> None:
    text(gateway, auto, "x = 1; open('a.txt', 'w').write('1')")
    branch = f"{auto}-b"
    made = gateway.post(f"/v1/sessions/{auto}/branch", {"session": branch})
    assert (made.status, made.json()["checkpoint"]) == (201, "auto")
    text(gateway, branch, "x = 2; open('a.txt', 'w').write('2')")
    text(gateway, auto, "x = 3")
    assert undone(gateway, branch)["rolled_back"]["undone"] == 1
    assert text(gateway, branch, "x, open('a.txt').read(), os.getcwd()[:9] if 'os' in dir() else ''") == (
        "(1, '1', '')"
    )
    assert text(gateway, auto, "x") == "3"
    gateway.delete(f"/v1/sessions/{auto}")
    assert text(gateway, branch, "x") == "1"
    undone(gateway, branch)
    gateway.delete(f"/v1/sessions/{branch}")


def test_a_resumed_session_makes_them_again(gateway: GatewayProcess, auto: str) -> None:
    text(gateway, auto, "x = 1")
    gateway.delete(f"/v1/sessions/{auto}")
    again = gateway.post("/v1/sessions", {"session": auto})
    assert (again.status, again.json()["checkpoint"]) == (201, "auto")
    text(gateway, auto, "x = 1")
    undone(gateway, auto)


def test_a_branch_after_a_checkpoint_leaves_a_record_that_is_valid(
    gateway: GatewayProcess, session: str
) -> None:
    """While both live: a use that is no cell is in no row, so the row of the session lacks it, too."""
    text(gateway, session, "1")
    kept(gateway, session)
    branch = gateway.post(f"/v1/sessions/{session}/branch", {})
    assert branch.status == 201, branch.body
    try:
        found = cellgate("verify", "--data-dir", gateway.data_dir).stdout.splitlines()
        (line,) = [line for line in found if f"session {session} " in line]
        assert line.startswith("valid ")
    finally:
        gateway.delete(f"/v1/sessions/{branch.json()['session']}")
