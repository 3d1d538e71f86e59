"""Limits of kernels in containers, as a client of the gateway meets them; other sessions do not notice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartGateway, serving
from tests.support.kernels import EACH_CONTAINER
from tests.support.server import GatewayProcess, surviving

MIB = 1024 * 1024


@pytest.fixture(scope="module", params=EACH_CONTAINER)
def contained(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """A gateway with small kernels on each level of containers."""
    request.getfixturevalue(request.param)
    with serving(
        tmp_path_factory.mktemp("contained") / "data",
        "docker",
        runtime="runsc" if request.param == "gvisor" else "",
        pool_size=1,
        burst_size=1,
        memory="256m",
        pids=64,
        disk="64m",
    ) as process:
        yield process


@pytest.fixture
def other(contained: GatewayProcess) -> Iterator[str]:
    """A session that must stay alive, with its variables."""
    yield from surviving(contained)


def gvisor(gateway: GatewayProcess) -> bool:
    """Whether kernels run on gVisor."""
    return bool(gateway.get("/v1/info").json()["isolation"] == "gvisor")


def run(gateway: GatewayProcess, code: str, **fields: object) -> dict[str, Any]:
    """A cell's result in a session of its own, which is ended."""
    try:
        return gateway.execute("attacker", code, **fields)
    finally:
        gateway.delete("/v1/sessions/attacker")


def test_memory(contained: GatewayProcess, other: str) -> None:
    result = run(contained, "print('before')\nx = bytearray(2_000_000_000)")
    assert (result["status"], result["cause"]) == ("died", "out_of_memory")
    assert result["stdout"] == "before\n"
    assert "256 MiB" in result["error"]["evalue"]


# gVisor's own process has the memory that tasks in it need, and a task costs more of it than of the limit.
TOO_MANY = [("error", "pids_limit"), ("died", "out_of_memory")]


def test_processes(contained: GatewayProcess, other: str) -> None:
    code = "import os, time\nwhile True:\n    if os.fork() == 0: time.sleep(600)"
    result = run(contained, code)
    assert (result["status"], result["cause"]) in TOO_MANY[: 1 + gvisor(contained)], result


def test_threads(contained: GatewayProcess, other: str) -> None:
    code = "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(600,)).start()"
    result = run(contained, code)
    assert (result["status"], result["cause"]) in TOO_MANY[: 1 + gvisor(contained)], result


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm"])
def test_temporary_files(contained: GatewayProcess, other: str, folder: str) -> None:
    code = f"with open('{folder}/big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))"
    result = run(contained, code)
    endings = [("error", "disk_full"), ("died", "out_of_memory")]
    assert (result["status"], result["cause"]) in endings[: 1 + gvisor(contained)], result


def test_floods(contained: GatewayProcess, other: str) -> None:
    result = run(contained, "for i in range(200_000): print('x' * 100)")
    assert (result["status"], result["truncated"]) == ("ok", True)
    result = run(contained, "display({'image/png': 'A' * 300_000_000}, raw=True)")
    assert (result["status"], result["cause"]) == ("died", "out_of_memory")


def test_one_file(contained: GatewayProcess, other: str) -> None:
    result = run(contained, "with open('big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))")
    assert result["cause"] == "disk_full", result


@pytest.mark.parametrize(
    ("code", "said"),
    [("import os; os._exit(3)", "code 3"), ("import os; os.kill(os.getpid(), 11)", "SIGSEGV")],
)
def test_an_end_of_its_own(contained: GatewayProcess, other: str, code: str, said: str) -> None:
    result = run(contained, code)
    assert (result["status"], result["cause"]) == ("died", "kernel_exit")
    assert said in result["error"]["evalue"]


def test_the_quota_of_processor_time_is_visible(contained: GatewayProcess) -> None:
    if gvisor(contained):
        pytest.skip("gVisor holds the quota and does not show it")
    code = (
        "import glob\n"
        "v1 = glob.glob('/sys/fs/cgroup/cpu*/cpu.cfs_quota_us'); v2 = glob.glob('/sys/fs/cgroup/cpu.max')\n"
        "print([open(name).read().split()[0] for name in v1 + v2])"
    )
    assert "100000" in run(contained, code)["text"]


def test_the_files_of_a_full_workspace_are_kept_and_the_session_goes_on(contained: GatewayProcess) -> None:
    contained.execute("full", "open('notes.txt', 'w').write('kept')")
    code = "import time\nfor i in range(9): open(f'{i}', 'wb').write(bytes(10 << 20))\ntime.sleep(60)"
    result = contained.execute("full", code)
    assert result["cause"] == "disk_full", result
    contained.execute("full", "import glob, os\nfor name in glob.glob('[0-9]'): os.unlink(name)")
    assert contained.execute("full", "open('notes.txt').read()")["text"] == "'kept'"
    contained.delete("/v1/sessions/full")


def test_a_root_gateway_keeps_workspaces_to_their_kernel(contained: GatewayProcess) -> None:
    contained.execute("owner", "1")
    assert Path(contained.workspace("owner")).stat().st_mode & 0o077 == 0
    contained.delete("/v1/sessions/owner")


def test_full_disks_in_the_sandbox(sandbox: None, start_gateway: StartGateway) -> None:
    gateway = start_gateway(backend="sandbox", pool_size=1, memory="256m", disk="64m")
    for folder in ("/tmp", "/dev/shm", "."):
        code = f"with open('{folder}/big', 'wb') as file:\n    while True: file.write(bytes(1 << 20))"
        result = gateway.execute("s", code)
        assert (result["status"], result["cause"]) == ("error", "disk_full"), result
