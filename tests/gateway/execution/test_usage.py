"""What a cell used: in its result, its record and its notebook, as the system counted it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cellgate.client import CellUsage, Finished, Gateway
from cellgate_kernels.base.resources import MIB
from tests.conftest import serving
from tests.gateway.kernels.test_fork_server import cgroups
from tests.support.server import TOKEN, GatewayProcess

__all__ = ["cgroups"]

FIELDS = ["cpu_seconds", "memory_peak", "disk_written", "network_sent", "network_received"]
SPIN = "import time; a = time.process_time()\nwhile time.process_time() - a < 0.5: pass"
CHILD = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {SPIN!r}])"
ORPHAN = f"""
import os, signal, sys, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
reading, writing = os.pipe()
if os.fork() == 0:
    if os.fork() == 0:
        os.setsid()
        exec({SPIN!r})
        os.write(writing, b'done')
    os._exit(0)
os.read(reading, 4)
"""
WRITE = f"""
with open('large', 'wb') as file:
    for _ in range(10): file.write(bytes({MIB}))
"""
MOVE = """
import os
moved = []
for folder, _, files in os.walk('/sys/fs/cgroup'):
    for name in {'tasks', 'cgroup.procs'} & set(files):
        try:
            open(f'{folder}/{name}', 'w').write(str(os.getpid()))
            moved.append(folder)
        except OSError:
            pass
print(moved)
"""


def usage_of(gateway: GatewayProcess, session: str, code: str, status: str = "ok") -> dict[str, Any]:
    """What a cell used."""
    result = gateway.execute(session, code)
    assert result["status"] == status, result
    found = result["usage"]
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway whose kernels are processes without isolation."""
    with serving(tmp_path_factory.mktemp("plain") / "data", "process", pool_size=1) as process:
        yield process


def test_use_is_in_the_result_the_record_and_the_notebook(
    sandbox: None, gateway: GatewayProcess, session: str
) -> None:
    result = gateway.execute(session, SPIN)
    usage = result["usage"]
    assert list(usage) == FIELDS
    assert 0.4 < usage["cpu_seconds"] < 3
    assert (usage["network_sent"], usage["network_received"]) == (0, 0)
    ends = [each for each in gateway.recorded(session) if each["type"] == "finished"]
    assert [each["usage"] for each in ends] == [usage]
    notebook = gateway.get(f"/v1/sessions/{session}/notebook").json()
    assert notebook["cells"][-1]["metadata"]["cellgate"]["usage"] == usage
    later = gateway.get(f"/v1/sessions/{session}/executions/{result['execution']}").json()
    assert later["usage"] == usage


def test_what_ends_without_a_kernel_has_used_nothing_that_is_known(
    gateway: GatewayProcess, session: str
) -> None:
    held = gateway.hold(session)
    waiting = gateway.submit(session, "1")
    assert gateway.post(f"/v1/sessions/{session}/executions/{waiting}/cancel").status == 204
    assert "usage" not in gateway.ended(session, waiting)
    gateway.answer(session, held)
    assert "usage" in gateway.ended(session, held)


@pytest.mark.parametrize("code", [CHILD, ORPHAN], ids=["a child", "a process that nobody waits for"])
def test_all_processes_count(
    sandbox: None, cgroups: None, gateway: GatewayProcess, session: str, code: str
) -> None:
    assert usage_of(gateway, session, code)["cpu_seconds"] > 0.4
    assert usage_of(gateway, session, "time.sleep(0.5)" if code is ORPHAN else "1")["cpu_seconds"] < 0.2


def test_memory_is_that_of_the_cell(
    sandbox: None, cgroups: None, gateway: GatewayProcess, session: str
) -> None:
    """Though it is given back before the end; the next cell has a peak of its own."""
    held = f"held = bytearray(b'x' * {100 * MIB}); del held"
    assert usage_of(gateway, session, held)["memory_peak"] > 100 * MIB
    assert 0 < usage_of(gateway, session, "1")["memory_peak"] < 100 * MIB


@pytest.mark.parametrize("which", ["gateway", "plain"])
def test_bytes_written_count(request: pytest.FixtureRequest, session: str, which: str) -> None:
    server: GatewayProcess = request.getfixturevalue(which)
    assert usage_of(server, session, WRITE)["disk_written"] >= 10 * MIB
    assert usage_of(server, session, "1")["disk_written"] < MIB


def test_a_kernel_without_isolation_is_measured(plain: GatewayProcess, session: str) -> None:
    """By its processes; nobody knows their memory, or which bytes of the machine's network are theirs."""
    usage = usage_of(plain, session, CHILD)
    assert usage["cpu_seconds"] > 0.4
    assert [usage[name] for name in ("memory_peak", "network_sent", "network_received")] == [None] * 3
    assert usage_of(plain, session, "import time; time.sleep(0.3)")["cpu_seconds"] < 0.2


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_who_ends_the_kernel_has_used_it_nevertheless(
    sandbox: None, cgroups: None, gateway: GatewayProcess, session: str, end: str
) -> None:
    usage = usage_of(gateway, session, f"import os\n{SPIN}\n{end}", "died")
    assert usage["cpu_seconds"] > 0.4
    assert usage["memory_peak"] > MIB
    assert usage["disk_written"] is None


@pytest.mark.parametrize("end", ["os._exit(3)", "os.kill(os.getpid(), 9)"])
def test_a_kernel_without_isolation_has_used_its_time(plain: GatewayProcess, session: str, end: str) -> None:
    usage = usage_of(plain, session, f"import os\n{SPIN}\n{end}", "died")
    assert usage["cpu_seconds"] > 0.4


def test_no_process_leaves_its_group(
    sandbox: None, cgroups: None, gateway: GatewayProcess, session: str
) -> None:
    assert gateway.execute(session, MOVE)["stdout"] == "[]\n"
    assert usage_of(gateway, session, SPIN)["cpu_seconds"] > 0.4


def test_a_cell_that_is_ended_at_its_deadline_has_used_its_time(
    sandbox: None, gateway: GatewayProcess, session: str
) -> None:
    result = gateway.execute(session, "while True: pass", timeout=1)
    assert (result["status"], result["usage"]["cpu_seconds"] > 0.3) == ("timeout", True)


def test_nobody_knows_which_of_two_kernels_in_a_sandbox_used_it(
    sandbox: None, gateway: GatewayProcess, session: str
) -> None:
    assert gateway.execute(session, "1")["usage"] is not None
    branch = gateway.post(f"/v1/sessions/{session}/branch", {})
    assert branch.status == 201, branch.body
    other = branch.json()["session"]
    try:
        assert "usage" not in gateway.execute(session, "1")
        assert "usage" not in gateway.execute(other, "1")
    finally:
        gateway.delete(f"/v1/sessions/{other}")
    assert "usage" in gateway.execute(session, "1")


def test_the_client_has_it_as_values(sandbox: None, gateway: GatewayProcess, session: str) -> None:
    with Gateway.sync(gateway.url, TOKEN) as client:
        result = client.session(session).run("1")
        assert isinstance(result.usage, CellUsage)
        assert result.usage.cpu_seconds is not None
        assert result.to_dict()["usage"] == {name: getattr(result.usage, name) for name in FIELDS}
        (end,) = (each for each in client.events(session, follow=False) if isinstance(each, Finished))
        assert end.usage == result.usage
