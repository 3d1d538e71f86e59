"""The contract of all isolation backends, as AsyncKernelManager and other programs use them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from cellgate_kernels.base.errors import InvalidInput, KernelStartFailed
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.launch.base import CellgateProvisioner, KernelExit
from cellgate_kernels.specs.catalog import KernelspecCatalog
from tests.support.kernels import CONTAINERS, FORKS_FIRST, StartKernel

NewManager = Callable[[], AsyncKernelManager]

PRINT_FOLDER = "import os; print(os.getcwd(), sorted(os.listdir()))"


@pytest.fixture(params=FORKS_FIRST)
def backend(sandbox: None, request: pytest.FixtureRequest) -> str:
    """The whole contract is for sandboxes here and for containers there; others do the core of it."""
    return str(request.param)


def with_argv(manager: AsyncKernelManager, *argv: str) -> AsyncKernelManager:
    """The manager with a kernelspec of its own."""
    spec = manager.kernel_spec
    assert spec is not None
    manager._kernel_spec = KernelSpec(resource_dir=spec.resource_dir, **spec.to_dict() | {"argv": list(argv)})
    return manager


def interpreter(manager: AsyncKernelManager) -> str:
    assert manager.kernel_spec is not None
    return str(manager.kernel_spec.argv[0])


def provisioner_of(manager: AsyncKernelManager) -> CellgateProvisioner:
    assert isinstance(manager.provisioner, CellgateProvisioner)
    return manager.provisioner


async def test_a_cell_runs_and_state_is_kept(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    await kernel.run("x = 41")
    assert await kernel.print("print(x + 1)") == "42\n"
    assert await kernel.manager.is_alive()


async def test_an_interrupt_message_ends_a_cell_and_its_children(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    await kernel.run("import subprocess, time; child = subprocess.Popen(['sleep', '600'])")
    msg_id = kernel.send("print('asleep'); time.sleep(600)")
    await kernel.until_printed(msg_id)
    await kernel.manager.interrupt_kernel()
    assert (await kernel.result(msg_id)).reply["ename"] == "KeyboardInterrupt"
    assert await kernel.print("print(child.wait(60))") == f"-{int(signal.SIGINT)}\n"


async def test_a_restart_gives_a_new_process_to_the_same_client(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    await kernel.run("x = 1")
    before = kernel.manager.get_connection_info()
    first = kernel.provisioner.exited
    await kernel.manager.restart_kernel(now=True)
    assert first.done()
    assert not kernel.provisioner.exited.done()
    await kernel.client.wait_for_ready(timeout=60)
    assert (await kernel.run("x")).reply["ename"] == "NameError"
    assert kernel.manager.get_connection_info() == before


async def test_kill_wait_and_cleanup_may_be_repeated(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    for _ in range(2):
        await kernel.provisioner.kill()
        assert await kernel.provisioner.wait() == -signal.SIGKILL
        assert await kernel.provisioner.poll() == -signal.SIGKILL
        assert not kernel.provisioner.has_process
        await kernel.provisioner.terminate()
        await kernel.provisioner.cleanup(restart=False)


async def test_shutdown_with_notice_works_too(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    await kernel.manager.shutdown_kernel(now=False)
    assert kernel.provisioner.exited.done()


async def test_nothing_happens_to_a_provisioner_that_never_launched(new_manager: NewManager) -> None:
    manager = new_manager()
    await manager.pre_start_kernel()
    provisioner = provisioner_of(manager)
    await provisioner.kill()
    assert await provisioner.wait() == 0
    await provisioner.cleanup()
    with pytest.raises(KernelStartFailed):
        _ = provisioner.exited


@pytest.mark.parametrize("program", ["python", ""])
async def test_a_program_without_a_path_fails_the_launch(new_manager: NewManager, program: str) -> None:
    manager = with_argv(new_manager(), program, "-f", "{connection_file}")
    with pytest.raises(KernelStartFailed, match="absolute path"):
        await manager.start_kernel()
    assert not manager.has_kernel


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


async def test_a_folder_too_long_for_sockets_fails_the_launch(
    new_manager: NewManager, no_leaks: Path
) -> None:
    with pytest.raises(KernelStartFailed, match="too long"):
        await new_manager().start_kernel(runtime_dir=no_leaks / ("long" * 30))


async def test_a_missing_workspace_fails_the_launch(new_manager: NewManager, no_leaks: Path) -> None:
    with pytest.raises(KernelStartFailed, match="nowhere"):
        await new_manager().start_kernel(workspace=no_leaks / "nowhere")


@pytest.mark.parametrize("steps", range(4))
async def test_a_cancelled_launch_leaves_nothing(new_manager: NewManager, steps: int) -> None:
    manager = new_manager()
    command, options = await manager.pre_start_kernel()
    provisioner = provisioner_of(manager)
    launch = asyncio.create_task(provisioner.launch_kernel(command, **options))
    for _ in range(steps):
        await asyncio.sleep(0)
    launch.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await launch
        # It was quicker than the cancellation, so that ending it is our duty.
        await provisioner.cleanup()
    assert not provisioner.has_process
    assert provisioner.connection_info == {}


@pytest.mark.parametrize(
    ("code", "ended"),
    [
        ("import os; os._exit(3)", KernelExit("kernel_exit", 3, None, "The kernel exited with code 3.")),
        (
            "import os; os.kill(os.getpid(), 11)",
            KernelExit("kernel_exit", None, 11, "The kernel was ended by SIGSEGV."),
        ),
    ],
)
async def test_the_end_of_a_kernel_is_explained(
    start_kernel: StartKernel, code: str, ended: KernelExit
) -> None:
    kernel = await start_kernel()
    kernel.send(code)
    async with asyncio.timeout(60):
        assert await asyncio.shield(kernel.provisioner.exited) == ended
    assert await kernel.provisioner.poll() == ended.returncode
    assert not await kernel.manager.is_alive()


async def test_the_log_tells_why_a_kernel_did_not_start(new_manager: NewManager) -> None:
    manager = new_manager()
    code = "import sys; print('x' * 20000, 'no way', file=sys.stderr); sys.exit(7)"
    await with_argv(manager, interpreter(manager), "-c", code).start_kernel()
    provisioner = provisioner_of(manager)
    async with asyncio.timeout(60):
        assert (await asyncio.shield(provisioner.exited)).code == 7
    tail = await provisioner.log_tail()
    assert tail.endswith("x no way\n")
    assert len(tail) == 8192
    await manager.shutdown_kernel(now=True)


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


async def test_no_variable_of_the_gateway_reaches_the_kernel(
    start_kernel: StartKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CELLGATE_TEST_SECRET", "hunter2")
    kernel = await start_kernel(env={**os.environ, "ANOTHER_SECRET": "hunter3"}, extra_env={"WANTED": "yes"})
    printed = await kernel.print(
        "import os, glob\nprint(dict(os.environ))\n"
        "for name in glob.glob('/proc/[0-9]*/environ'):\n"
        "    if os.path.exists('/run/kernel') or name == f'/proc/{os.getpid()}/environ':\n"
        "        try:\n"
        "            print(open(name, 'rb').read())\n"
        "        except PermissionError:\n"
        "            assert name != f'/proc/{os.getpid()}/environ'"
    )
    assert "hunter" not in printed
    assert "'WANTED': 'yes'" in printed
    assert "'OMP_NUM_THREADS': '1'" in printed


@pytest.mark.parametrize(
    ("name", "value"), [("A", "x\0--bind\0/\0/host"), ("A\0B", ""), ("", "x"), ("A=B", "x"), ("A", "\ud800")]
)
async def test_a_variable_that_would_be_more_than_one_is_refused(
    new_manager: NewManager, name: str, value: str
) -> None:
    with pytest.raises(InvalidInput, match="environment variable"):
        await new_manager().start_kernel(extra_env={name: value})


async def test_two_kernels_share_neither_key_nor_sockets(start_kernel: StartKernel) -> None:
    one, other = await start_kernel(), await start_kernel()
    for part in ("key", "ip"):
        assert one.manager.get_connection_info()[part] != other.manager.get_connection_info()[part]
    assert type(one.provisioner).connection_info == {}


async def test_polling_only_reads_a_future(
    start_kernel: StartKernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = await start_kernel()

    def forbidden(*args: object, **options: object) -> None:
        raise AssertionError("poll asked the system")

    with monkeypatch.context() as patch:
        for module, name in ((os, "waitpid"), (os, "waitid"), (os, "kill"), (os, "killpg")):
            patch.setattr(module, name, forbidden)
        patch.setattr(subprocess.Popen, "poll", forbidden)
        for _ in range(100):
            assert await kernel.provisioner.poll() is None


@pytest.mark.parametrize("name", ["workspace", "cwd"])
async def test_a_given_workspace_is_used_and_kept(
    start_kernel: StartKernel, tmp_path: Path, no_leaks: Path, name: str
) -> None:
    (tmp_path / "data.csv").write_text("a,b\n")
    kernel = await start_kernel(**{name: tmp_path, "runtime_dir": no_leaks / "run"})
    assert "['data.csv']" in await kernel.print(PRINT_FOLDER)
    await kernel.print("_ = open('result.txt', 'w').write('made')")
    await kernel.manager.shutdown_kernel(now=True)
    assert (tmp_path / "result.txt").read_text() == "made"
    assert not (no_leaks / "run").exists()


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


async def test_a_file_beyond_the_limit_is_an_error_in_the_cell(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(limits=ResourceLimits(disk=2 * MIB))
    result = await kernel.run("with open('big', 'wb') as f: f.write(bytes(3_000_000))")
    assert result.reply["ename"] == "OSError"
    assert await kernel.print("print('alive')") == "alive\n"


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
