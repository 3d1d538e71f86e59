"""Starts, ends, crashes and restarts of the gateway: what is refused, what is kept, what is left behind."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import shutil
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellgate_kernels.kernel.stored import KernelStore
from tests.conftest import StartGateway, assert_nothing_left
from tests.support.commands import INSTALLED, announced, refusal, serve
from tests.support.nightly import mostly_nightly
from tests.support.requirements import require
from tests.support.server import TOKEN, GatewayProcess, send, until

UNTIL_GO = """
import time
from pathlib import Path
print("begun", flush=True)
while not Path("go").exists():
    time.sleep(0.01)
print("done")
"""
ENDLESS = "import time\nprint('begun', flush=True)\nwhile True: time.sleep(0.05)"


def kernels_of(gateway: GatewayProcess) -> list[psutil.Process]:
    """All processes below the gateway."""
    return psutil.Process(gateway.process.pid).children(recursive=True)


def has_begun(gateway: GatewayProcess, session: str) -> None:
    """Return when the session's running cell has printed."""
    until(lambda: gateway.printed(session, "begun\n"), "the cell has not begun")


def is_ending(gateway: GatewayProcess) -> None:
    """Return when the gateway has begun to shut down."""
    until(lambda: not (gateway.data_dir / "gateway.json").exists(), "the gateway does not begin to stop")


def has_ended(gateway: GatewayProcess, kernels: list[psutil.Process]) -> None:
    """The gateway leaves with 0 and without a trace."""
    assert gateway.process.wait(60) == 0, gateway.log.read_text()
    assert "Traceback" not in gateway.log.read_text()
    assert_nothing_left(gateway, kernels)


def ask(
    connection: http.client.HTTPConnection, method: str, path: str, body: object = None
) -> tuple[int, Any]:
    """A request on a connection that is open already."""
    send(connection, method, path, body)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def results(gateway: GatewayProcess, session: str) -> list[dict[str, Any]]:
    """The results of all executions of a session, oldest first."""
    listed = gateway.get(f"/v1/sessions/{session}/executions").json()["executions"]
    return [gateway.result(session, row["execution"]) for row in listed]


# ---- a shutdown --------------------------------------------------------------------------------------------


def test_a_cell_that_ends_within_the_grace_is_answered_and_no_new_work_is_taken(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway(pool_size=1, shutdown_grace=60, log_level="INFO")
    with ThreadPoolExecutor() as threads, closing(gateway.connect()) as connection:
        answer = threads.submit(gateway.execute, "a", UNTIL_GO)
        has_begun(gateway, "a")
        queued = gateway.submit("a", "'queued'")
        go = gateway.workspace("a") / "go"
        kernels = kernels_of(gateway)
        assert ask(connection, "GET", "/healthz")[0] == 200
        gateway.process.terminate()
        is_ending(gateway)
        for path, body in (
            ("/v1/sessions", {"session": "new"}),
            ("/v1/sessions/new/execute", {"code": "1"}),
            ("/v1/sessions/a/execute", {"code": "1"}),
            ("/v1/execute", {"code": "1"}),
        ):
            status, problem = ask(connection, "POST", path, body)
            assert (status, problem["reason"]) == (503, "shutting_down")
        status, ready = ask(connection, "GET", "/readyz")
        assert status == 503
        assert "shutting_down" in ready["missing"]
        assert ask(connection, "GET", "/v1/sessions/a")[1]["state"] == "busy"
        with pytest.raises(ConnectionRefusedError):
            gateway.get("/healthz")
        go.touch()
        result = answer.result(60)
    assert (result["status"], result["cause"], result["text"]) == ("ok", None, "begun\ndone\n")
    has_ended(gateway, kernels)
    probes = [line for line in gateway.logged() if "GET /readyz 503" in line]
    assert probes
    assert all("[info" in line for line in probes)
    again = start_gateway(gateway.data_dir, pool_size=0)
    assert again.result("a", queued)["text"].strip() == "'queued'"
    assert again.model("a")["cause"] == "gateway_shutdown"
    assert again.get("/v1/sessions/new").status == 404


@pytest.mark.parametrize(
    "number", mostly_nightly([signal.SIGTERM, signal.SIGINT], [signal.SIGTERM], lambda number: number.name)
)
def test_a_cell_that_outlasts_the_grace_is_ended_with_the_cause(
    start_gateway: StartGateway, number: signal.Signals
) -> None:
    gateway = start_gateway(command=INSTALLED, pool_size=2, shutdown_grace=0.2)
    gateway.execute("idle", "open('kept.txt', 'w').write('kept')")
    with ThreadPoolExecutor() as threads:
        answer = threads.submit(gateway.execute, "a", ENDLESS)
        has_begun(gateway, "a")
        queued = gateway.submit("a", "'queued'")
        stream = threads.submit(
            lambda: list(gateway.events("POST", "/v1/sessions/b/execute", {"code": ENDLESS}))
        )
        has_begun(gateway, "b")
        kernels = kernels_of(gateway)
        gateway.process.send_signal(number)
        result, events = answer.result(60), stream.result(60)
    assert (result["status"], result["cause"]) == ("interrupted", "gateway_shutdown")
    said = "[cellgate: This cell was ended early: interrupted (gateway_shutdown).]"
    assert result["text"] == f"begun\n{said}"
    assert events[-1]["type"] == "finished"
    assert (events[-1]["status"], events[-1]["cause"]) == ("interrupted", "gateway_shutdown")
    has_ended(gateway, kernels)
    again = start_gateway(gateway.data_dir, pool_size=0)
    assert results(again, "a")[0] == result
    waited = again.result("a", queued)
    assert (waited["status"], waited["cause"]) == ("cancelled", "gateway_shutdown")
    for session in ("a", "b", "idle"):
        model = again.model(session)
        assert (model["state"], model["cause"]) == ("ended", "gateway_shutdown")
    assert again.execute("idle", "print(open('kept.txt').read())")["text"] == "kept\n"


def test_a_second_signal_ends_the_gateway_at_once(start_gateway: StartGateway) -> None:
    gateway = start_gateway(command=INSTALLED, pool_size=1, shutdown_grace=600)
    gateway.hold("a")
    kernels = kernels_of(gateway)
    gateway.process.terminate()
    is_ending(gateway)
    gateway.process.terminate()
    assert gateway.process.wait(60) != 0
    _, alive = psutil.wait_procs(kernels, timeout=60)
    assert not alive


# ---- a crash -----------------------------------------------------------------------------------------------


def recorded_chain(gateway: GatewayProcess, session: str) -> tuple[list[dict[str, Any]], str]:
    """The events of an ended session, and the head of the hash chain over the very bytes of the wire."""
    events, head = [], bytes(32)
    with gateway.stream("GET", f"/v1/sessions/{session}/events") as answer:
        for line in answer:
            event = json.loads(line)
            if event["type"] != "keepalive":
                events.append(event)
                head = hashlib.sha256(head + line.rstrip(b"\n")).digest()
    return events, head.hex()


@pytest.mark.parametrize("backend", mostly_nightly(["process", "sandbox"], ["sandbox"]))
def test_after_a_crash_the_record_is_whole_and_the_sessions_go_on(
    start_gateway: StartGateway, tmp_path: Path, backend: str
) -> None:
    if backend == "sandbox" and shutil.which("bwrap") is None:
        require("sandbox", "bubblewrap is not installed")
    crashed = GatewayProcess(tmp_path / "data", backend, pool_size=1)
    try:
        done = [crashed.execute("done", code) for code in ("x = 6", "print('a'); x * 7", "1/0")]
        crashed.delete("/v1/sessions/done")
        crashed.execute("open", "y = 1")
        running = crashed.submit("open", ENDLESS)
        waiting = crashed.submit("open", "y")
        has_begun(crashed, "open")
        before = crashed.recorded("open")
        kernels = kernels_of(crashed)
        assert kernels
    finally:
        crashed.kill()
    _, alive = psutil.wait_procs(kernels, timeout=60)
    assert not alive, "kernels outlive the gateway"

    gateway = start_gateway(crashed.data_dir, backend, pool_size=1)
    listed = {model["session"]: model for model in gateway.get("/v1/sessions").json()["sessions"]}
    assert {key: (model["state"], model["cause"]) for key, model in listed.items()} == {
        "done": ("ended", "deleted"),
        "open": ("ended", "gateway_restart"),
    }
    assert listed["open"]["kernel_id"] is None
    assert results(gateway, "done") == done
    for execution, text in ((running, "begun\n"), (waiting, "")):
        result = gateway.result("open", execution)
        assert (result["status"], result["cause"], result["stdout"]) == ("died", "gateway_restart", text)
        assert result["finished_at"]
        assert result["error"]["evalue"]
    for session in ("done", "open"):
        events, head = recorded_chain(gateway, session)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        notebook = gateway.get(f"/v1/sessions/{session}/notebook")
        assert notebook.status == 200
        assert notebook.headers["Etag"] == f'"{head}"'
    assert gateway.recorded("open")[: len(before)] == before

    last = gateway.recorded("open")[-1]["seq"]
    events = list(gateway.events("POST", "/v1/sessions/open/execute", {"code": "y"}))
    assert events[-1]["status"] == "error"
    assert events[-1]["error"]["ename"] == "NameError"
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
    assert events[0]["seq"] > last
    every = gateway.recorded("open")
    assert [event["seq"] for event in every] == list(range(1, len(every) + 1))
    cells = gateway.get("/v1/sessions/open/notebook").json()["cells"]
    sources = [cell["source"] for cell in cells if cell["cell_type"] == "code"]
    assert ["".join(source) for source in sources] == ["y = 1", ENDLESS, "y", "y"]


def test_what_a_crash_left_of_kernels_is_removed(start_gateway: StartGateway, tmp_path: Path) -> None:
    """Their workspaces, and their connection files and sockets, which hold keys, wherever those are."""
    crashed = GatewayProcess(tmp_path / "data", "process", pool_size=1)
    try:
        crashed.execute("a", "open('file.txt', 'w').write('x')")
        workspace = crashed.workspace("a")
        commands = []
        for process in kernels_of(crashed):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                commands.append(process.cmdline())
        runtimes = {Path(words[words.index("-f") + 1]).parent for words in commands if "-f" in words}
        assert runtimes
        assert all(folder.is_dir() for folder in runtimes)
    finally:
        crashed.kill()
    assert workspace.exists()
    start_gateway(crashed.data_dir, pool_size=0)
    assert not workspace.exists()
    assert not any(folder.exists() for folder in runtimes)


# ---- a start that can't be ---------------------------------------------------------------------------------


def test_a_second_gateway_on_the_same_data_is_refused_and_disturbs_nothing(
    start_gateway: StartGateway,
) -> None:
    gateway = start_gateway(pool_size=1)
    gateway.execute("a", "x = 1")
    announced = (gateway.data_dir / "gateway.json").read_text()
    code, error = refusal("--backend=process", "--port=0", f"--data-dir={gateway.data_dir}")
    assert code == 1
    assert "in use by another gateway" in error
    assert str(gateway.data_dir) in error
    assert (gateway.data_dir / "gateway.json").read_text() == announced
    assert gateway.execute("a", "x")["text"].strip() == "1"


def test_a_port_in_use_is_refused_by_its_number(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        code, error = refusal("--backend=process", f"--port={port}", f"--data-dir={tmp_path / 'data'}")
    assert code == 1
    assert f"127.0.0.1:{port}" in error
    assert "--port" in error


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("--port=99999", "port"),
        ("--memory=lots", "memory"),
        ("--cell-timeout=nan", "--cell-timeout"),
        ("--max-memory=lots", "--max-memory"),
        ("--max-memory=1k", "--max-memory"),
        ("--max-cpus=nan", "--max-cpus"),
        ("--max-cpus=-1", "--max-cpus"),
        ("--max-cpus=1e308", "--max-cpus"),
        ("--max-pids=0", "--max-pids"),
        ("--max-disk=-1", "--max-disk"),
        ("--max-cell-timeout=inf", "--max-cell-timeout"),
        ("--max-cell-timeout=0", "--max-cell-timeout"),
        ("--max-lifetime=1e12", "--max-lifetime"),
        ("--ServeApp.body_timeout=nan", "body_timeout"),
        ("--ServeApp.connection_idle_timeout=inf", "connection_idle_timeout"),
        ("--ServeApp.default_kernel=nope", "python3"),
        ("--prot=1", "--port"),
        ("somewhere", "somewhere"),
    ],
)
def test_a_wrong_option_is_refused_in_one_line(tmp_path: Path, word: str, says: str) -> None:
    words = ["--backend=process", f"--data-dir={tmp_path / 'data'}", "--port=0"]
    code, error = refusal(
        *(other for other in words if other.split("=")[0] != word.split("=", maxsplit=1)[0]), word
    )
    assert code == 2
    assert says in error


@pytest.mark.parametrize("folder", ["/proc/data", "/dev/null"])
def test_a_data_folder_that_can_t_be_is_refused_in_one_line(folder: str) -> None:
    code, error = refusal("--backend=process", "--port=0", f"--data-dir={folder}")
    assert code == 1
    assert folder in error


def fifo(path: Path) -> None:
    os.mkfifo(path)


def plain(path: Path) -> None:
    path.write_text("x")


@pytest.mark.parametrize(
    ("name", "put", "says"),
    [
        ("record.sqlite3.redo", fifo, "no regular file"),
        ("record.sqlite3.last", fifo, "no regular file"),
        ("record.sqlite3.lock", Path.mkdir, "record.sqlite3.lock"),
        ("signing.key", fifo, "no regular file"),
        ("workspaces", plain, "workspaces"),
        ("gateway.json", Path.mkdir, "gateway.json"),
    ],
)
def test_what_stands_in_the_place_of_a_file_ends_the_start_in_one_line(
    tmp_path: Path, name: str, put: Callable[[Path], None], says: str
) -> None:
    (data := tmp_path / "data").mkdir()
    put(data / name)
    code, error = refusal("--backend=process", "--port=0", f"--data-dir={data}")
    assert code == 1
    assert says in error


def test_what_tells_of_no_kernel_is_removed_at_the_start(tmp_path: Path) -> None:
    (folder := tmp_path / "kernels").mkdir()
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe")
    assert KernelStore(folder).load() == {}
    assert not list(folder.iterdir())


def test_what_tells_of_a_kernel_outlives_a_lack_of_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder := tmp_path / "kernels").mkdir()
    (folder / "kernel.json").write_text("{}")

    def refuse(*_: object) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr("cellgate_kernels.kernel.stored.read_regular", refuse)
    with pytest.raises(OSError, match="open files"):
        KernelStore(folder).load()
    assert (folder / "kernel.json").exists()


# ---- where settings come from ------------------------------------------------------------------------------


def test_the_help_names_every_usual_option() -> None:
    with serve("--help") as process:
        output, error = process.communicate(timeout=60)
    assert (process.returncode, error) == (0, "")
    for option in (
        "--ip",
        "--port",
        "--backend",
        "--data-dir",
        "--token",
        "--config",
        "--pool-size",
        "--no-auth",
    ):
        assert option in output
    assert "CELLGATE_PORT" in output


def test_settings_come_from_the_environment_and_from_a_file(tmp_path: Path, free_port: int) -> None:
    file = tmp_path / "settings.py"
    settings = {"port": 1, "max_kernels": 7, "pool_size": 5, "memory": "300m"}
    file.write_text("".join(f"c.ServeApp.{name} = {value!r}\n" for name, value in settings.items()))
    environment = {
        "CELLGATE_CONFIG": str(file),
        "CELLGATE_PORT": str(free_port),
        "CELLGATE_TOKEN": TOKEN,
        "CELLGATE_BACKEND": "process",
        "CELLGATE_DATA_DIR": str(tmp_path / "data"),
        "CELLGATE_POOL_SIZE": "4",
        "CELLGATE__ServeApp__cell_timeout": "11",
    }
    with serve("--pool-size=0", **environment) as process:
        announced(tmp_path / "data", process)
        with closing(http.client.HTTPConnection("127.0.0.1", free_port, timeout=60)) as connection:
            status, info = ask(connection, "GET", "/v1/info")
    assert status == 200
    assert info["pool"]["max_kernels"] == 7
    assert info["pool"]["warm"] + info["pool"]["starting"] == 0
    assert info["limits"]["memory"] == 300 * 1024 * 1024
    assert info["limits"]["cell_timeout"] == 11
    assert info["backend"] == "process"
