"""A gateway of the program's own: one line without a server, and nothing of it is left afterwards."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cellgate import GatewayError, LocalGateway, local
from tests.support.server import until

ONE_LINE = "import cellgate; print(cellgate.run('1 + 1').text)"


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="cg-"))  # short: paths of sockets are below it
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    # The settings of another gateway are not this one's.
    monkeypatch.setenv("CELLGATE_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("CELLGATE_POOL_SIZE", "nonsense")
    yield folder
    # A gateway whose program is gone removes its folder itself, when it has stopped.
    until(lambda: not list(folder.glob("cellgate-local-*")), "a folder is left")
    shutil.rmtree(folder)


def program(code: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def own_gateway(temporary: Path) -> psutil.Process:
    """Return the process of the one gateway that runs."""
    (found,) = temporary.glob("cellgate-local-*/data/gateway.json")
    return own_process(found)


def own_process(found: Path) -> psutil.Process:
    return psutil.Process(json.loads(found.read_text())["pid"])


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or a zombie that nobody reaps in this container; after at most half a minute."""
    latest = time.monotonic() + 30
    while time.monotonic() < latest:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


def test_one_line(temporary: Path) -> None:
    done = program(ONE_LINE)
    assert (done.stdout, done.stderr, done.returncode) == ("2\n", "", 0)


def test_a_session_keeps_its_variables_and_one_with_a_name_stays(temporary: Path) -> None:
    done = program(
        """
import asyncio, cellgate

with cellgate.local() as session:
    session.run("x = 41")
    print(session.run("x + 1").text)
with cellgate.local("work") as session:
    session.files.put("a.txt", "text")
    session.run("y = 1")

async def go():
    async with cellgate.local("work") as session:
        print((await session.run("y, open('a.txt').read()")).text)
        print((await session.gateway.info()).isolation)

asyncio.run(go())
print(cellgate.run("'y' in globals()", timeout=20).text, cellgate.run("1 / 0").error.ename)
"""
    )
    assert done.stdout == "42\n(1, 'text')\nsandbox\nFalse ZeroDivisionError\n"
    assert (done.stderr, done.returncode) == ("", 0)


def test_it_ends_with_a_program_that_is_killed(temporary: Path) -> None:
    started = subprocess.Popen(
        [
            sys.executable,
            "-c",
            """
import cellgate
with cellgate.local() as session:
    session.run("import time; time.sleep(600)", on_event=lambda event: print(event.type, flush=True))
""",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert started.stdout is not None
    with started, started.stdout:
        while started.stdout.readline() != "started\n":
            pass
        process = own_gateway(temporary)
        started.kill()
    assert has_ended(process)


def test_ctrl_c_interrupts_the_cell_and_not_the_gateway(temporary: Path) -> None:
    started = subprocess.Popen(
        [
            sys.executable,
            "-c",
            """
import cellgate
with cellgate.local() as session:
    session.run("x = 7")
    code = "print('begun', flush=True)\\nimport time\\ntime.sleep(600)"
    try:
        session.run(code, on_event=lambda event: print(event.type, flush=True))
    except KeyboardInterrupt:
        pass
    print(session.run("x").text)
""",
        ],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert started.stdout is not None
    with started, started.stdout:
        while started.stdout.readline() != "stream\n":
            pass
        os.killpg(started.pid, signal.SIGINT)
        rest = started.stdout.read()
    assert (rest.splitlines()[-1], started.returncode) == ("7", 0)


def test_a_fork_of_the_program_leaves_the_gateway_alone(temporary: Path) -> None:
    done = program(
        """
import os, sys, cellgate
with cellgate.local("forked") as session:
    session.run("x = 1")
    if not (child := os.fork()):
        try:
            session.run("x")
        except RuntimeError as error:
            print(error, flush=True)
        print(cellgate.run("2").text, flush=True)
        os._exit(0)
    print(os.waitpid(child, 0)[1])
if not (child := os.fork()):
    sys.exit(0)
print(os.waitpid(child, 0)[1])
with cellgate.local("forked") as session:
    print(session.run("x").text)
"""
    )
    told = "This client belongs to the process that this one was forked from: make another one"
    assert (done.stdout.splitlines(), done.stderr, done.returncode) == ([told, "2", "0", "0", "1"], "", 0)


def test_a_fork_does_not_keep_the_gateway_running(temporary: Path) -> None:
    code = """
import os, time, cellgate
with cellgate.local() as session:
    session.run("x = 1")
    if (child := os.fork()) == 0:
        time.sleep(600)
    print(child, flush=True)
    time.sleep(600)
"""
    started = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert started.stdout is not None
    with started, started.stdout:
        child = int(started.stdout.readline())
        process = own_gateway(temporary)
        started.kill()
        try:
            assert has_ended(process)
        finally:
            os.kill(child, signal.SIGKILL)


def test_it_is_stopped_in_order(temporary: Path, tmp_path: Path) -> None:
    """Of a start after a kill the log would tell: sessions were left open."""
    with LocalGateway(data_dir=tmp_path) as gateway:
        gateway.session("kept").run("1")
        process = own_process(tmp_path / "gateway.json")
    assert not (tmp_path / "gateway.json").exists(), "the gateway itself removes this when it stops"
    assert has_ended(process)


def test_what_is_used_wrongly_says_how(temporary: Path) -> None:
    with pytest.raises(TypeError, match="a list of words"):
        LocalGateway("--backend process")
    with pytest.raises(AttributeError, match=r"`with cellgate.local\(\) as session:`, then `session.run`"):
        local().run("1")  # type: ignore[attr-defined]


def test_a_folder_of_one_s_own_keeps_the_record(temporary: Path, tmp_path: Path) -> None:
    data = tmp_path / "kept"
    with LocalGateway(data_dir=data) as gateway:
        with pytest.raises(GatewayError, match=r"The gateway did not start: .*kept") as refused:
            LocalGateway(data_dir=data).start()
        assert refused.value.reason == "not_started"
        gateway.session("kept").run("6 * 7")
    with LocalGateway(data_dir=data) as gateway:
        (session,) = gateway.sessions()
        assert (session.session, session.state) == ("kept", "ended")
        assert "6 * 7" in str(gateway.session("kept").notebook())


def test_what_does_not_start_says_why(temporary: Path) -> None:
    with pytest.raises(GatewayError, match="no-such-backend") as refused:
        LocalGateway(["--backend", "no-such-backend"]).start()
    assert refused.value.reason == "not_started"


@pytest.mark.parametrize(
    ("backend", "words"),
    [
        ("process", "code can read and change all your files"),
        ("landlock", "not in sandboxes: .*memory is limited for each process"),
    ],
)
def test_less_isolation_is_said(temporary: Path, backend: str, words: str) -> None:
    with pytest.warns(RuntimeWarning, match=words), LocalGateway(["--backend", backend]) as gateway:
        assert gateway.execute_once("2").text == "2"


OTHER_PREFIX = """#!{python}
import runpy, sys
sys.prefix = {prefix!r}
del sys.argv[: sys.argv.index("-m") + 1]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


def test_the_first_one_makes_the_environment_and_says_so(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The list that was chosen has no packages, so there is no kernel to serve then."""
    shared = tmp_path / "prefix" / "share" / "cellgate"
    shared.mkdir(parents=True)
    (tmp_path / "requirements.txt").write_text("")
    choice = {"requirements": str(tmp_path / "requirements.txt")}
    (shared / "environment.json").write_text(json.dumps(choice))
    python = tmp_path / "python"
    python.write_text(OTHER_PREFIX.format(python=sys.executable, prefix=str(tmp_path / "prefix")))
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(GatewayError, match='There is no kernelspec "python3"'):
        LocalGateway().start()
    said = capsys.readouterr().err.splitlines()
    assert said[0] == f"cellgate: making the kernel environment in {shared}/environment ..."
    assert {line[:10] for line in said} == {"cellgate: "}


def test_it_starts_again_after_it_was_lost(temporary: Path) -> None:
    own = LocalGateway()
    with own as gateway:
        process = own_gateway(temporary)
        process.kill()
        # Not only its first thread has ended then.
        process.wait(30)
        again = own.start()
        assert again is not gateway
        assert again.execute_once("3").text == "3"
