"""The contract of all isolation backends, as AsyncKernelManager and other programs use them."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest

from cellgate_kernels.base.errors import KernelStartFailed
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.testing.backend import (
    BackendContract,
    NewManager,
    StartKernel,
    provisioner_of,
    with_argv,
)
from tests.support.kernels import CONTAINERS, FORKS_FIRST, WithOurChecks


@pytest.fixture(params=FORKS_FIRST)
def backend(sandbox: None, request: pytest.FixtureRequest) -> str:
    """The whole contract is for sandboxes here and for containers there; others do the core of it."""
    return str(request.param)


class TestContract(WithOurChecks, BackendContract):
    """Of the backend that each module names."""


async def test_a_program_that_is_not_there_fails_the_launch_or_ends_it(
    new_manager: NewManager, backend: str
) -> None:
    manager = with_argv(new_manager(), "/nonexistent/python", "-f", "{connection_file}")
    if backend in CONTAINERS:
        await manager.start_kernel()
        provisioner = provisioner_of(manager)
        async with asyncio.timeout(60):
            assert (await asyncio.shield(provisioner.exited)).code == 127
        assert "/nonexistent/python" in await provisioner.log_tail()
        await manager.shutdown_kernel(now=True)
    else:
        with pytest.raises(KernelStartFailed, match="absolute path"):
            await manager.start_kernel()
    assert not manager.has_kernel


async def test_a_flood_of_log_is_read_and_only_its_end_kept(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    flood = "import os, sys; fd = sys.stderr._original_stdstream_copy"
    await kernel.run(f"{flood}\nfor i in range(1000): os.write(fd, b'x' * 1016 + b'%07d\\n' % i)")
    # An engine copies the log in its own time.
    async with asyncio.timeout(60):
        while not (tail := await kernel.provisioner.log_tail()).endswith("0000999\n"):  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.05)
    assert len(tail) == 8192
    assert await kernel.manager.is_alive()


async def test_memory_beyond_the_limit_hurts_this_kernel_only(
    start_kernel: StartKernel, backend: str
) -> None:
    other = await start_kernel()
    kernel = await start_kernel(limits=ResourceLimits(memory=256 * MIB))
    msg_id = kernel.send("x = bytearray(3_000_000_000)")
    if backend in CONTAINERS:
        async with asyncio.timeout(60):
            ended = await asyncio.shield(kernel.provisioner.exited)
        assert ended.cause == "out_of_memory"
        assert "256 MiB" in ended.message
    else:
        assert (await kernel.result(msg_id)).reply["ename"] == "MemoryError"
        assert await kernel.print("print('alive')") == "alive\n"
    assert await other.print("print('alive')") == "alive\n"


async def test_the_usual_libraries_work_within_the_default_limits(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    result = await kernel.run(
        "import numpy, pandas, scipy.stats, sklearn.ensemble, statsmodels.api\n"
        "import matplotlib.pyplot as plt\n"
        "a = numpy.ones((300, 300)); a @ a\n"
        "plt.plot([1, 2]); plt.show()\n"
        "x = numpy.ones(50_000_000)"
    )
    assert result.reply["status"] == "ok", result.reply
    assert "image/png" in result.of_type("display_data")[0]["data"]
    # A home without matplotlib's list of fonts would have said so.
    assert "font cache" not in result.text


async def test_a_kernelspecs_own_variables_are_filled_in(
    start_kernel: StartKernel, catalog: KernelspecCatalog
) -> None:
    catalog.get_kernel_spec("python3").env = {"CACHE": "${HOME}/cache", "OTHER": "${GATEWAY_ONLY}"}
    kernel = await start_kernel()
    printed = await kernel.print("import os; print(os.environ['CACHE'] == os.environ['HOME'] + '/cache')")
    assert printed == "True\n"


async def test_an_installer_without_a_way_out_gives_up_at_once(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    # Where to look instead would make pip ask an index after all: its number of retries must not matter.
    code = "import os, subprocess, sys\nenv = {**os.environ, 'PIP_RETRIES': '100'}\n"
    pip = "[sys.executable, '-m', 'pip', 'install', 'cellgate-none']"
    run = f"done = subprocess.run({pip}, env=env, capture_output=True, text=True)\n"
    printed = await kernel.print(f"{code}{run}print(done.returncode, done.stderr, os.environ['UV_OFFLINE'])")
    assert "No matching distribution found for cellgate-none" in printed
    assert "Retrying" not in printed
    assert printed.endswith(" 1\n")


async def test_a_clients_own_variables_for_installers_count(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(extra_env={"PIP_NO_INDEX": "0", "UV_OFFLINE": "0"})
    printed = await kernel.print("import os; print(os.environ['PIP_NO_INDEX'], os.environ['UV_OFFLINE'])")
    assert printed == "0 0\n"


def run_guide(folder: Path, broken: str = "") -> str:
    """Return the last line of pytest, for the guide's example or for a backend that is broken like this."""
    guide = Path(__file__).parents[3] / "docs/how-to/test-with-fakes.md"
    pattern = r"```python\n(import pytest\n[^`]*BackendContract.*?)```"
    (example,) = re.findall(pattern, guide.read_text(), re.DOTALL)
    if broken:
        example = example.replace("return ProcessProvisioner", "return Broken")
        example += f"\n\nclass Broken(ProcessProvisioner):\n    {broken}\n"
    (folder / "test_my_backend.py").write_text(example)
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "test_my_backend.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    return done.stdout.rstrip().rpartition("\n")[2]


def test_the_example_of_the_guide_checks_a_backend_from_outside(tmp_path: Path) -> None:
    assert run_guide(tmp_path).startswith("28 passed in")


def test_a_backend_that_breaks_one_promise_is_found(tmp_path: Path) -> None:
    said = run_guide(tmp_path, "async def log_tail(self): return ''")
    assert said.startswith("1 failed, 27 passed in")
