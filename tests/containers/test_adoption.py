"""Sessions that outlive their gateway: killed, or stopped with its kernels kept, and started again."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from pathlib import Path

import pytest
from docker.api.client import APIClient

from tests.conftest import StartGateway
from tests.containers.conftest import Containers
from tests.support.nightly import at_night
from tests.support.server import GatewayProcess, Response, until

pytestmark = pytest.mark.usefixtures("no_container_left")

# That of this tree, whatever the image was made of.
IMAGE = Path(__file__).parents[2] / "kernels" / "cellgate_kernels" / "inside"
MOUNTS = [
    f"{IMAGE / name}:/opt/cellgate/share/cellgate/{name}"
    for name in (
        *("bootstrap.py", "keeper.py", "frames.py", "programs.py", "tables.py"),
        *("variables.py", "columns.py", "rows.py"),
    )
]

GO = "import time, os\nwhile not os.path.exists('go'): time.sleep(0.02)\n"

Start = Callable[..., GatewayProcess]


KINDS = {"runc": {}, "gvisor": {"runtime": "runsc"}}
every_kind = pytest.mark.parametrize("start", ["runc", at_night("gvisor")], indirect=True)


@pytest.fixture
def start(start_gateway: StartGateway, request: pytest.FixtureRequest) -> Start:
    """Starts gateways on containers, without warm ones; of every kind where a test asks for it."""
    kind = getattr(request, "param", "runc")
    if kind == "gvisor":
        request.getfixturevalue("gvisor")

    def begin(data_dir: Path | None = None, **options: object) -> GatewayProcess:
        options = {"pool_size": 0, "mounts": MOUNTS, **KINDS[kind], **options}
        return start_gateway(data_dir, backend="docker", **options)

    return begin


def go(gateway: GatewayProcess, session: str) -> None:
    """Let a cell go on that waits for it."""
    (gateway.workspace(session) / "go").touch()


def states(gateway: GatewayProcess, session: str) -> list[tuple[str, str]]:
    """States and causes of a session in its record."""
    return [(e["state"], e["cause"]) for e in gateway.recorded(session) if e["type"] == "session"]


@every_kind
def test_sessions_of_a_killed_gateway_go_on(start: Start, containers: Containers, client: APIClient) -> None:
    gateway = start(pool_size=1)
    for name in ("one", "two"):
        gateway.execute(name, f"x = {name!r}; open('file.txt', 'w').write(x)")
    kernels = {name: gateway.model(name)["kernel_id"] for name in ("one", "two")}
    for stored in (gateway.data_dir / "kernels").iterdir():
        assert stat.S_IMODE(stored.stat().st_mode) == 0o600
    until(lambda: len(containers(gateway)) > 2, "there is no warm kernel")
    gateway.kill()

    successor = start(gateway.data_dir)
    # One that was being made for the pool may come to be only now.
    until(lambda: len(containers(successor)) == 2, "a container without a session is left")
    for name in ("one", "two"):
        assert successor.model(name)["kernel_id"] == kernels[name]
        assert states(successor, name) == [("idle", "created"), ("idle", "adopted")]
        result = successor.execute(name, "print(x, open('file.txt').read())")
        assert result["stdout"] == f"{name} {name}\n"
        assert result["execution_count"] == 2
        assert result["kernel"]["replaced"] is False
    image = client.inspect_image("cellgate/kernel:latest")["Id"]
    told = [e["environment"] for e in successor.recorded("one") if e["type"] == "session"]
    images = {(environment["image"], environment["image_digest"]) for environment in told}
    assert images == {("cellgate/kernel:latest", image)}
    assert successor.stop() == 0
    assert containers(successor) == set()


def test_a_program_of_a_killed_gateway_has_ended_in_the_session_that_goes_on(start: Start) -> None:
    gateway = start()
    path = "/v1/sessions/s/processes"
    argv = ["sh", "-c", "trap '' HUP; echo begun > begun; exec sleep 600"]
    process = gateway.post(path, {"argv": argv, "wait": False}, timeout=120).json()["process"]
    until((gateway.workspace("s") / "begun").exists, "the program does not begin")
    gateway.kill()

    successor = start(gateway.data_dir)
    assert states(successor, "s")[-1] == ("idle", "adopted")
    last = [event for event in successor.recorded("s") if event.get("process") == process][-1]
    assert (last["type"], last["cause"], last["exit_code"]) == ("process_exited", "gateway_restart", None)
    assert (last["truncated"], last["duration_ms"]) == (None, None)
    looks = "import psutil; any(each.name() == 'sleep' for each in psutil.process_iter(['name']))"
    until(lambda: successor.execute("s", looks)["text"] == "False", "the program still runs")


def test_a_session_whose_container_ended_meanwhile_ends_with_a_cause(
    start: Start, containers: Containers, client: APIClient
) -> None:
    gateway = start()
    gateway.execute("s", "x = 1; open('file.txt', 'w').write('kept')")
    gateway.kill()
    for container in containers(gateway):
        client.kill(container)
    successor = start(gateway.data_dir)
    assert successor.model("s")["state"] == "ended"
    assert successor.model("s")["cause"] == "gateway_restart"
    assert successor.execute("s", "open('file.txt').read(), 'x' in globals()")["text"] == "('kept', False)"


@pytest.mark.nightly
def test_a_branch_of_a_killed_gateway_has_ended(start: Start) -> None:
    gateway = start()
    gateway.execute("root", "x = 1")
    assert gateway.post("/v1/sessions/root/branch", {"session": "branch"}).status == 201
    process = gateway.execute("branch", "import os; os.getpid()")["text"]
    writes = "number = 0\nwhile True:\n    open('written', 'w').write(str(number))\n    number += 1\n"
    gateway.submit("branch", writes)
    kept = gateway.data_dir / "workspaces"
    until(lambda: list(kept.rglob("written")), "the branch writes nothing")
    gateway.kill()

    successor = start(gateway.data_dir)
    assert states(successor, "root")[-1] == ("idle", "adopted")
    assert states(successor, "branch")[-1] == ("ended", "gateway_restart")
    looks = "import os; [name for name in os.listdir('/proc') if name == "
    assert successor.execute("root", f"{looks}{process!r}]")["text"] == "[]"
    before = successor.execute("branch", "open('written').read()")["text"]
    assert successor.execute("branch", "open('written').read()")["text"] == before
    assert successor.post("/v1/sessions/root/branch", {"session": "another"}).status == 201
    assert successor.execute("another", "x")["text"] == "1"


@every_kind
def test_kept_kernels_are_adopted_by_the_next_start(start: Start, containers: Containers) -> None:
    gateway = start(keep_kernels=True, pool_size=1, shutdown_grace=0)
    gateway.execute("s", "x = 1")
    running = gateway.submit("s", f"print('begun', flush=True)\n{GO}x += 1; print('done'); x")
    waiting = gateway.submit("s", "x")
    until_printed(gateway, running, "begun")
    assert gateway.stop() == 0
    assert len(containers(gateway)) == 1

    successor = start(gateway.data_dir)
    go(successor, "s")
    result = successor.ended("s", running)
    assert (result["status"], result["stdout"]) == ("ok", "begun\ndone\n")
    lost = successor.ended("s", waiting)
    assert (lost["status"], lost["cause"]) == ("died", "gateway_restart")
    assert successor.execute("s", "x")["text"] == "2"


def test_a_running_cell_goes_on_with_all_its_output(start: Start) -> None:
    gateway = start(cell_timeout=0.5)
    gateway.execute("s", "import sys", timeout=120)
    code = (
        f"for n in range(50): print(n, flush=True)\n{GO}os.remove('go')\n"
        f"for n in range(50, 3000): print(n, flush=True)\nopen('away', 'w').close()\n{GO}"
        "for n in range(3000, 3100): print(n, flush=True)\n6 * 7"
    )
    execution = gateway.submit("s", code, timeout=120)
    until_printed(gateway, execution, "49")
    workspace = gateway.workspace("s")
    gateway.kill()
    (workspace / "go").touch()
    until((workspace / "away").exists, "the cell does not go on without a gateway")

    successor = start(gateway.data_dir)
    before = successor.result("s", execution)
    assert before["status"] == "running"
    go(successor, "s")
    result = successor.ended("s", execution)
    assert (result["status"], result["cause"], result["truncated"]) == ("ok", None, False)
    assert result["outputs"][-1]["data"] == {"text/plain": "42"}
    assert result["stdout"].split() == [str(n) for n in range(3100)]
    assert result["execution_count"] == 2
    assert successor.execute("s", "sys.argv and 1")["execution_count"] == 3
    assert_whole(successor, "s")


@every_kind
def test_a_cell_that_ended_while_no_gateway_was_there(start: Start) -> None:
    gateway = start()
    gateway.execute("s", "import os")
    execution = gateway.submit(
        "s", f"print('here', flush=True)\n{GO}print('alone')\nopen('away', 'w').close()\n1 / 0"
    )
    until_printed(gateway, execution, "here")
    workspace = gateway.workspace("s")
    gateway.kill()
    (workspace / "go").touch()
    until((workspace / "away").exists, "the cell does not go on without a gateway")
    successor = start(gateway.data_dir)
    result = successor.ended("s", execution)
    assert (result["status"], result["stdout"]) == ("error", "here\nalone\n")
    assert result["error"]["ename"] == "ZeroDivisionError"
    assert successor.execute("s", "1")["status"] == "ok"


@pytest.mark.parametrize("ends_meanwhile", [False, True])
def test_a_cell_that_is_not_recorded_before_the_crash_is_not_run_again_by_a_repeat(
    start: Start, ends_meanwhile: bool
) -> None:
    gateway = start(flush_seconds=600.0)
    gateway.execute("s", "n = 0", timeout=120)
    code = f"n += 1\nopen('begun', 'w').close()\n{GO}print('done')\nopen('away', 'w').close()\nn"

    def run(at: GatewayProcess, code: str = code) -> Response:
        headers = {"Idempotency-Key": "once"}
        return at.post("/v1/sessions/s/execute", {"code": code, "timeout": 120}, headers=headers, timeout=120)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(run, gateway)
        workspace = gateway.workspace("s")
        until((workspace / "begun").exists, "the cell does not begin")
        gateway.kill()
        with pytest.raises((OSError, HTTPException)):
            first.result()
        if ends_meanwhile:
            (workspace / "go").touch()
            until((workspace / "away").exists, "the cell does not go on without a gateway")
        successor = start(gateway.data_dir)
        again = pool.submit(run, successor)
        go(successor, "s")
        result = again.result().json()
    assert (result["status"], result["stdout"], result["text"]) == ("ok", "done\n", "done\n1")
    assert run(successor, "n += 2").status == 409
    assert successor.execute("s", "n")["text"] == "1"
    keys = [e["idempotency"][0] for e in successor.recorded("s") if "idempotency" in e]
    assert keys == ["once"]
    assert_whole(successor, "s")


def test_a_cell_that_waits_for_input_is_answered_by_the_next_gateway(start: Start) -> None:
    gateway = start()
    execution = gateway.hold("s", "name = input('who? '); name")
    gateway.kill()
    successor = start(gateway.data_dir)
    until(lambda: successor.result("s", execution)["status"] == "running", "the cell does not go on")
    successor.answer("s", execution, "me")
    assert successor.ended("s", execution)["text"] == "'me'"
    asked = [e["type"] for e in successor.recorded("s") if e["type"].startswith("input")]
    assert asked == ["input_request", "input_reply"]


def test_a_cell_that_the_spool_could_not_hold_is_marked_as_cut(start: Start) -> None:
    gateway = start()
    gateway.execute("s", "import glob, os")
    code = (
        f"print('first', flush=True)\n{GO}from IPython.display import display\n"
        "for n in range(30): display({'text/plain': str(n) * 500_000}, raw=True)\n"
        "spooled = sum(map(os.path.getsize, glob.glob('/run/kernel/spool-*')))\n"
        "open('away', 'w').close()\n'last'"
    )
    execution = gateway.submit("s", code)
    until_printed(gateway, execution, "first")
    workspace = gateway.workspace("s")
    gateway.kill()
    (workspace / "go").touch()
    until((workspace / "away").exists, "the cell does not go on without a gateway")
    successor = start(gateway.data_dir)
    result = successor.ended("s", execution, "?max_text=0")
    assert (result["status"], result["truncated"]) == ("ok", True)
    shown = [output.get("data", {}).get("text/plain", "")[-2:] for output in result["outputs"]]
    assert shown[0] == ""
    assert shown[1:] == [str(n) * 2 if n < 10 else str(n) for n in range(30 - len(shown) + 2, 30)] + ["t'"]
    assert successor.execute("s", "0 < spooled <= 16 * 2**20")["text"] == "True"


def test_code_cannot_lead_the_gateway_astray_by_its_spool(start: Start, tmp_path: Path) -> None:
    gateway = start()
    gateway.execute(
        "s",
        "import os, glob\n"
        "for n, path in enumerate(glob.glob('/run/kernel/spool-*')): os.remove(path)\n"
        "os.symlink('/etc/passwd', '/run/kernel/spool-00000091')\n"
        "os.mkfifo('/run/kernel/spool-00000092')\n"
        "open('/run/kernel/spool-00000093', 'wb').write(os.urandom(100_000))\n"
        "os.mkdir('/run/kernel/spool-00000094')\nx = 1",
    )
    gateway.kill()
    successor = start(gateway.data_dir)
    assert successor.execute("s", "x")["text"] == "1"


def test_a_cell_can_overwrite_an_uploaded_file(start: Start) -> None:
    gateway = start()
    gateway.execute("s", "1")
    uploaded = gateway.request(
        "PUT",
        "/v1/sessions/s/files/folder/up.txt",
        b"uploaded",
        headers={"Content-Type": "application/octet-stream"},
    )
    assert uploaded.status == 201, uploaded.body
    code = "old = open('folder/up.txt').read(); open('folder/up.txt', 'a').write('+'); old"
    result = gateway.execute("s", code)
    assert (result["status"], result["text"]) == ("ok", "'uploaded'")
    assert gateway.execute("s", "open('folder/new.txt', 'w').write('1')")["status"] == "ok"


def until_printed(gateway: GatewayProcess, execution: str, text: str) -> None:
    """Return when the record of session "s" holds it: what a client was shown of it is durable."""

    def printed() -> bool:
        events = gateway.recorded("s")
        return any(e["execution"] == execution and text in e.get("text", "") for e in events)

    until(printed, f"the cell does not print {text!r}")


def assert_whole(gateway: GatewayProcess, session: str) -> None:
    """Each event is numbered in order and linked to the one before."""
    events = gateway.recorded(session)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    verified = gateway.get(f"/v1/sessions/{session}/audit/verify").json()
    assert (verified["valid"], verified["rows"]) == (True, len(events))
