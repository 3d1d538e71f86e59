"""A session's record over the wire and on disk: provenance, audit, purge, the bundle in another's hands."""

from __future__ import annotations

import io
import json
import os
import sqlite3
import subprocess
import sys
import time
import venv
import zipfile
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import nbformat
import pytest

from cellgate.record.keys import make_key
from cellgate.record.verify.notebooks import check_bundle, check_notebook
from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.specs.install import create_environment, install_kernelspec
from tests.conftest import StartGateway
from tests.support import commands
from tests.support.requirements import require
from tests.support.server import IN_TIME, GatewayProcess, until

STUBBORN = "import signal, time\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\ntime.sleep(60)"


def cellgate(*words: str | Path, status: int = 0) -> str:
    """The output of a command that must leave with `status`."""
    done = commands.cellgate(*words)
    assert done.returncode == status, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def exported(gateway: GatewayProcess, session: str) -> Any:
    answer = gateway.get(f"/v1/sessions/{session}/notebook")
    assert answer.status == 200
    notebook = nbformat.reads(answer.body.decode(), as_version=4)
    nbformat.validate(notebook)
    return notebook


def test_the_notebook_tells_whence_it_comes(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session, "metadata": {"why": "a test"}})
    version = gateway.execute(session, "import platform, tornado; platform.python_version(), tornado.version")
    model = gateway.model(session)
    known = exported(gateway, session).metadata.cellgate
    assert (known.session, known.principal, known.metadata) == (session, "default", {"why": "a test"})
    assert (known.isolation, known.limits) == (model["isolation"], model["limits"])
    assert version["text"] == f"({known.python!r}, {known.packages.tornado!r})"
    assert (known.head, known.recorded_by) == (model["head"], known.gateway_version)
    assert known.created_at == model["created_at"] < known.exported_at


def test_the_rows_over_the_wire_are_those_of_the_events(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "print('ü')")
    answer = gateway.get(f"/v1/sessions/{session}/audit")
    head = gateway.model(session)["head"]
    assert (answer.headers["Content-Type"], answer.headers["Etag"]) == ("application/x-ndjson", f'"{head}"')
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["row"] for line in lines] == gateway.recorded(session)
    assert lines[-1]["hash"] == head
    verified = gateway.get(f"/v1/sessions/{session}/audit/verify").json()
    assert verified == {"valid": True, "rows": len(lines), "head": head}
    again = gateway.get(f"/v1/sessions/{session}/audit", headers={"If-None-Match": f'"{head}"'})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.parametrize("path", ["audit", "audit/verify", "bundle"])
def test_of_a_session_that_is_not_there_there_is_no_record(gateway: GatewayProcess, path: str) -> None:
    assert gateway.get(f"/v1/sessions/nobody/{path}").reason == "not_found"


def test_a_record_is_purged_live_or_ended_and_its_key_is_free(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "x = 'first life'")
    assert gateway.delete(f"/v1/sessions/{session}?purge=true").status == 204
    assert gateway.get(f"/v1/sessions/{session}").reason == "not_found"
    assert gateway.delete(f"/v1/sessions/{session}?purge=true").reason == "not_found"
    assert gateway.execute(session, "'x' in globals()")["text"] == "False"
    assert "first life" not in json.dumps(gateway.recorded(session))
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    assert gateway.delete(f"/v1/sessions/{session}?purge=true").status == 204
    cellgate("verify", "--data-dir", gateway.data_dir)


def test_a_signed_gateway_is_checked_live_crashed_and_by_others(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    """With everything that may be in a record: replies of the same key, errors, deadlines, deaths."""
    data = tmp_path / "data"
    public = cellgate("record", "key", "--create", "--data-dir", data).strip()
    # The next kernel has as long to come as the one before had to hear the interrupt.
    gateway = start_gateway(data, interrupt_grace=IN_TIME, pool_size=1)
    body = {"code": "1/0"}
    for _ in range(2):
        gateway.post("/v1/sessions/a/execute", body, headers={"Idempotency-Key": "k"})
    gateway.warm()
    assert gateway.execute("a", STUBBORN, timeout=IN_TIME)["kernel"]["replaced"]
    assert gateway.execute("a", "import os; os._exit(3)")["status"] == "died"
    gateway.execute("a", "import threading, time\nthreading.Timer(0.3, print, ['late']).start()")
    gateway.post("/v1/sessions/a/restart")
    running = gateway.hold("a")
    queued = gateway.submit("a", "2")
    notebook = tmp_path / "a.ipynb"
    cellgate("export", "a", "-o", notebook, "--data-dir", data)
    assert check_notebook(notebook.read_bytes(), "a").key == public
    cellgate("verify", notebook, "--key", public)
    assert "the given key did not sign it" in cellgate("verify", notebook, "--key", "ab" * 32, status=1)
    cellgate("verify", notebook, "--key", f"{'ab' * 32},{public}")
    assert "none of the 2 given keys signed it" in cellgate(
        "verify", notebook, "--key", f"{'ab' * 32},{'cd' * 32}", status=1
    )
    assert "valid" in cellgate("verify", "--data-dir", data)
    gateway.kill()
    assert "valid      session a" in cellgate("verify", "--data-dir", data)
    gateway = start_gateway(data)
    assert {gateway.result("a", execution)["status"] for execution in (running, queued)} == {"died"}
    assert "valid      session a" in cellgate("verify", "--data-dir", data)
    found = json.loads(cellgate("verify", "--data-dir", data, "--json"))
    assert [finding["valid"] for finding in found] == [True, True]


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A kernel environment with ipykernel and one package more, and its kernelspec; its prefix."""
    prefix = tmp_path_factory.mktemp("small")
    requirements = prefix / "requirements.txt"
    requirements.write_text("ipykernel>=7\nhumanize\n")
    for left in (2, 1, 0):  # an index may fail for a moment
        try:
            environment = create_environment(prefix, lambda _: None, requirements=requirements)
        except BackendUnavailable as error:
            if not left:
                require("packages", f"no package index: {error.message}")
        else:
            break
    install_kernelspec(environment, prefix)
    return prefix


@pytest.mark.timeout(400)
@pytest.mark.nightly
def test_a_bundle_runs_where_nobody_knows_cellgate(
    start_gateway: StartGateway, small: Path, tmp_path: Path
) -> None:
    kernels = f'["{small}/share/cellgate/kernels"]'
    make_key(tmp_path / "data")
    gateway = start_gateway(tmp_path / "data", kernel_dirs=kernels)
    gateway.execute("trip", "import humanize\nopen('in.txt', 'w').write('x' * 2000)")
    gateway.execute("trip", "print(humanize.naturalsize(len(open('in.txt').read())))")
    gateway.execute("trip", "1/0")
    bundle = tmp_path / "trip.zip"
    cellgate("export", "trip", "--bundle", "-o", bundle, "--data-dir", gateway.data_dir)
    assert check_bundle(bundle).key is not None
    home = tmp_path / "elsewhere"
    with zipfile.ZipFile(io.BytesIO(bundle.read_bytes())) as archive:
        archive.extractall(home)
    packages = (home / "requirements.txt").read_text()
    assert "humanize==" in packages
    venv.create(tmp_path / "plain")
    python = tmp_path / "plain" / "bin" / "python"
    clean = {
        name: os.environ[name] for name in ("PATH", "PIP_INDEX_URL", "PIP_CONFIG_FILE") if name in os.environ
    }
    clean |= {"HOME": str(tmp_path), "JUPYTER_PLATFORM_DIRS": "1"}
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "--disable-pip-version-check",
        "--retries=10",
        "install",
        "--quiet",
    ]
    wanted = ["--no-compile", "-r", home / "requirements.txt", "nbclient"]
    subprocess.run([*pip, *wanted], env=clean, check=True, timeout=240)
    words = [tmp_path / "plain/bin/jupyter", "execute", "--inplace", "--allow-errors", "trip.ipynb"]
    subprocess.run(words, cwd=home / "work", env=clean, check=True, timeout=120)
    first, second, third = nbformat.read(home / "work" / "trip.ipynb", as_version=4).cells
    assert first.outputs[0].data["text/plain"] == "2000"
    assert second.outputs[0].text == "2.0 kB\n"
    assert third.outputs[0].ename == "ZeroDivisionError"


def test_old_records_go_with_a_tombstone_and_those_in_use_stay(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway(tmp_path / "data", retention_days=2 / 86400, retention_interval=0.1)
    gateway.execute("stays", "1")
    gateway.execute("goes", "2")
    gateway.delete("/v1/sessions/goes")
    until(lambda: gateway.get("/v1/sessions/goes").status == 404, "the old record is still there")
    assert gateway.model("stays")["state"] == "idle"
    assert "valid      session stays" in cellgate("verify", "--data-dir", gateway.data_dir)
    assert "purged                       1" in cellgate("record", "stats", "--data-dir", gateway.data_dir)
    assert "in use by another gateway" in cellgate(
        "record", "compact", "--data-dir", gateway.data_dir, status=1
    )


def test_a_clock_that_is_ahead_at_a_start_removes_nothing_until_an_operator_says_so(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    gateway = start_gateway(data, retention_days=30, retention_interval=0.1)
    gateway.execute("old", "1")
    gateway.delete("/v1/sessions/old")
    until((data / "clock.json").exists, "nobody looked at the clock")
    gateway.stop()
    assert "believed" in cellgate("record", "clock", "--data-dir", data)
    # As if this gateway had run 40 days ago.
    forty_days_ago = time.time() - 40 * 86400
    (data / "clock.json").write_text(json.dumps({"wall": forty_days_ago}))
    with closing(sqlite3.connect(data / "record.sqlite3")) as db, db:
        then = datetime.fromtimestamp(forty_days_ago, UTC).strftime("%Y-%m-%dT%H:%M:%S.000000Z")
        db.execute("UPDATE sessions SET last_activity = ?", (then,))
    gateway = start_gateway(data, retention_days=30, retention_interval=0.1)
    unproven = "cellgate_unproven_clock_leaps 1.0"
    until(lambda: unproven in gateway.get("/metrics").body.decode(), "the leap was not seen")
    assert gateway.get("/v1/sessions/old/notebook").status == 200
    assert "a leap by 40 days" in cellgate("record", "clock", "--data-dir", data)
    assert "next check" in cellgate("record", "clock", "--trust", "--data-dir", data)
    until(lambda: gateway.get("/v1/sessions/old").status == 404, "the old record is still there")
    assert "cellgate_unproven_clock_leaps 0.0" in gateway.get("/metrics").body.decode()
    gateway.stop()
    (data / "clock.json").write_text("")
    assert "something else" in cellgate("record", "clock", "--data-dir", data, status=1)
    assert "next check" in cellgate("record", "clock", "--trust", "--data-dir", data)
