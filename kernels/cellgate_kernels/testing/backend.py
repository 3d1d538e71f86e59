"""The contract of isolation backends, as tests for authors of a backend.

Subclass `BackendContract` in a test module, with a fixture `backend` that returns the provisioner's class.
The methods are coroutines, run by pytest-asyncio in its auto mode. They start real kernels, of the kernelspec
``python3`` that `cellgate setup` makes, by jupyter_client's own manager, as any Jupyter program does.
``launch.backend`` describes when each call of a backend is made, and its duties.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

try:
    import pytest
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "The contract of backends is run by pytest: pip install pytest pytest-asyncio"
    ) from error
from jupyter_client.asynchronous.client import AsyncKernelClient
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager
from jupyter_client.provisioning.factory import KernelProvisionerFactory

from cellgate_kernels.base.errors import InvalidInput, KernelStartFailed
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.launch.backend import KernelExit
from cellgate_kernels.launch.base import CellgateProvisioner
from cellgate_kernels.specs.catalog import KernelspecCatalog

CELL_TIMEOUT = 60.0
"""The deadline of a cell of the contract, in seconds."""

_UNDER_TEST = "cellgate-under-test"
PRINT_FOLDER = "import os; print(os.getcwd(), sorted(os.listdir()))"


@dataclass
class CellResult:
    """The outcome of one cell: its reply, its streams' text, and all its iopub messages."""

    reply: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The text of all streams, in order."""
        return "".join(m["content"]["text"] for m in self.messages if m["msg_type"] == "stream")

    def of_type(self, msg_type: str) -> list[dict[str, Any]]:
        """Return the contents of all messages of this type, in order."""
        return [m["content"] for m in self.messages if m["msg_type"] == msg_type]


class RunningKernel:
    """A ready kernel with one client."""

    def __init__(self, manager: AsyncKernelManager, client: AsyncKernelClient) -> None:
        self.manager = manager
        self.client = client

    @property
    def provisioner(self) -> CellgateProvisioner:
        """The provisioner of the kernel's manager."""
        provisioner = self.manager.provisioner
        assert isinstance(provisioner, CellgateProvisioner)
        return provisioner

    def send(self, code: str) -> str:
        """Send a cell and return the id of its request."""
        msg_id: str = self.client.execute(code)
        return msg_id

    async def result(self, msg_id: str) -> CellResult:
        """Return the outcome of a cell that was sent before."""
        result = CellResult()
        async with asyncio.timeout(CELL_TIMEOUT):
            while not result.reply:
                reply = await self.client.get_shell_msg()
                if reply["parent_header"].get("msg_id") == msg_id:
                    result.reply = reply["content"]
            while True:
                message = await self.client.get_iopub_msg()
                if message["parent_header"].get("msg_id") != msg_id:
                    continue
                result.messages.append(message)
                if message["content"].get("execution_state") == "idle":
                    return result

    async def until_printed(self, msg_id: str) -> None:
        """Wait until the cell has printed text: then its own code runs, not ipykernel's preparation."""
        async with asyncio.timeout(CELL_TIMEOUT):
            while True:
                message = await self.client.get_iopub_msg()
                if message["parent_header"].get("msg_id") == msg_id and message["msg_type"] == "stream":
                    return

    async def run(self, code: str) -> CellResult:
        """Run a cell and return its outcome."""
        return await self.result(self.send(code))

    async def print(self, code: str) -> str:
        """Return the text that a cell printed; the cell must not fail."""
        result = await self.run(code)
        assert result.reply["status"] == "ok", result.reply
        return result.text


NewManager = Callable[[], AsyncKernelManager]
StartKernel = Callable[..., Awaitable[RunningKernel]]


def with_argv(manager: AsyncKernelManager, *argv: str) -> AsyncKernelManager:
    """Return the manager, with a kernelspec of its own that has these arguments."""
    spec = manager.kernel_spec
    assert spec is not None
    manager._kernel_spec = KernelSpec(resource_dir=spec.resource_dir, **spec.to_dict() | {"argv": list(argv)})
    return manager


def interpreter(manager: AsyncKernelManager) -> str:
    """Return the path of the interpreter that the manager's kernelspec names."""
    assert manager.kernel_spec is not None
    return str(manager.kernel_spec.argv[0])


def provisioner_of(manager: AsyncKernelManager) -> CellgateProvisioner:
    """Return the provisioner of a manager that has prepared a start."""
    assert isinstance(manager.provisioner, CellgateProvisioner)
    return manager.provisioner


class BackendCore:
    """The core of the contract: cells run, kernels restart, are interrupted, end, and know no secrets.

    A fixture `backend`: the class of the provisioner.
    """

    @pytest.fixture
    def new_manager(self, backend: type[CellgateProvisioner]) -> Iterator[NewManager]:
        """Give a function that returns a manager of a kernel that is not started yet."""
        factory = KernelProvisionerFactory.instance()
        factory.provisioners[_UNDER_TEST] = EntryPoint(
            _UNDER_TEST, f"{backend.__module__}:{backend.__qualname__}", KernelProvisionerFactory.GROUP_NAME
        )
        catalog = KernelspecCatalog()
        provisioner = {"provisioner_name": _UNDER_TEST, "config": {}}
        for name in catalog.find_kernel_specs():
            spec = catalog.get_kernel_spec(name)
            spec.metadata = spec.metadata | {"kernel_provisioner": provisioner}
        yield lambda: AsyncKernelManager(
            kernel_name="python3", kernel_spec_manager=catalog, autorestart=False
        )
        del factory.provisioners[_UNDER_TEST]

    @pytest.fixture
    async def start_kernel(self, new_manager: NewManager) -> AsyncIterator[StartKernel]:
        """Give a function that starts a kernel, which is ended after the test."""
        running: list[RunningKernel] = []

        async def start(**options: Any) -> RunningKernel:
            manager = new_manager()
            await manager.start_kernel(**options)
            client = manager.client()
            kernel = RunningKernel(manager, client)
            running.append(kernel)
            client.start_channels(hb=False)
            await client.wait_for_ready(timeout=CELL_TIMEOUT)
            return kernel

        yield start
        for kernel in running:
            kernel.client.stop_channels()
            await kernel.manager.shutdown_kernel(now=True)

    @pytest.fixture
    def short_folder(self) -> Iterator[Path]:
        """Give a folder with a path that is short enough for sockets, and remove it."""
        folder = Path(tempfile.mkdtemp(prefix="cg-"))
        yield folder
        shutil.rmtree(folder)

    async def test_a_cell_runs_and_state_is_kept(self, start_kernel: StartKernel) -> None:
        kernel = await start_kernel()
        await kernel.run("x = 41")
        assert await kernel.print("print(x + 1)") == "42\n"
        assert await kernel.manager.is_alive()

    async def test_an_interrupt_message_ends_a_cell_and_its_children(self, start_kernel: StartKernel) -> None:
        kernel = await start_kernel()
        await kernel.run("import subprocess, time; child = subprocess.Popen(['sleep', '600'])")
        msg_id = kernel.send("print('asleep'); time.sleep(600)")
        await kernel.until_printed(msg_id)
        await kernel.manager.interrupt_kernel()
        assert (await kernel.result(msg_id)).reply["ename"] == "KeyboardInterrupt"
        assert await kernel.print("print(child.wait(60))") == f"-{int(signal.SIGINT)}\n"

    async def test_a_restart_gives_a_new_process_to_the_same_client(self, start_kernel: StartKernel) -> None:
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
        self, start_kernel: StartKernel, code: str, ended: KernelExit
    ) -> None:
        kernel = await start_kernel()
        kernel.send(code)
        async with asyncio.timeout(60):
            assert await asyncio.shield(kernel.provisioner.exited) == ended
        assert await kernel.provisioner.poll() == ended.returncode
        assert not await kernel.manager.is_alive()

    async def test_no_variable_of_the_gateway_reaches_the_kernel(
        self, start_kernel: StartKernel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("CELLGATE_TEST_SECRET", "hunter2")
        kernel = await start_kernel(
            env={**os.environ, "ANOTHER_SECRET": "hunter3"}, extra_env={"WANTED": "yes"}
        )
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


class BackendContract(BackendCore):
    """The whole contract: failed launches leave nothing, ends can be repeated, limits and folders hold."""

    async def test_kill_wait_and_cleanup_may_be_repeated(self, start_kernel: StartKernel) -> None:
        kernel = await start_kernel()
        for _ in range(2):
            await kernel.provisioner.kill()
            assert await kernel.provisioner.wait() == -signal.SIGKILL
            assert await kernel.provisioner.poll() == -signal.SIGKILL
            assert not kernel.provisioner.has_process
            await kernel.provisioner.terminate()
            await kernel.provisioner.cleanup(restart=False)

    async def test_shutdown_with_notice_works_too(self, start_kernel: StartKernel) -> None:
        kernel = await start_kernel()
        await kernel.manager.shutdown_kernel(now=False)
        assert kernel.provisioner.exited.done()

    async def test_nothing_happens_to_a_provisioner_that_never_launched(
        self, new_manager: NewManager
    ) -> None:
        manager = new_manager()
        await manager.pre_start_kernel()
        provisioner = provisioner_of(manager)
        await provisioner.kill()
        assert await provisioner.wait() == 0
        await provisioner.cleanup()
        with pytest.raises(KernelStartFailed):
            _ = provisioner.exited

    @pytest.mark.parametrize("program", ["python", ""])
    async def test_a_program_without_a_path_fails_the_launch(
        self, new_manager: NewManager, program: str
    ) -> None:
        manager = with_argv(new_manager(), program, "-f", "{connection_file}")
        with pytest.raises(KernelStartFailed, match="absolute path"):
            await manager.start_kernel()
        assert not manager.has_kernel

    async def test_a_folder_too_long_for_sockets_fails_the_launch(
        self, new_manager: NewManager, short_folder: Path
    ) -> None:
        with pytest.raises(KernelStartFailed, match="too long"):
            await new_manager().start_kernel(runtime_dir=short_folder / ("long" * 30))

    async def test_a_missing_workspace_fails_the_launch(
        self, new_manager: NewManager, short_folder: Path
    ) -> None:
        with pytest.raises(KernelStartFailed, match="nowhere"):
            await new_manager().start_kernel(workspace=short_folder / "nowhere")

    @pytest.mark.parametrize("steps", range(4))
    async def test_a_cancelled_launch_leaves_nothing(self, new_manager: NewManager, steps: int) -> None:
        manager = new_manager()
        command, options = await manager.pre_start_kernel()
        provisioner = provisioner_of(manager)
        launch = Supervisor().start(provisioner.launch_kernel(command, **options), "launch of a kernel")
        for _ in range(steps):
            await asyncio.sleep(0)
        launch.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await launch
            # The launch was quicker than the cancellation, so the test has to end the kernel.
            await provisioner.cleanup()
        assert not provisioner.has_process
        assert provisioner.connection_info == {}

    async def test_the_log_tells_why_a_kernel_did_not_start(self, new_manager: NewManager) -> None:
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

    @pytest.mark.parametrize(
        ("name", "value"),
        [("A", "x\0--bind\0/\0/host"), ("A\0B", ""), ("", "x"), ("A=B", "x"), ("A", "\ud800")],
    )
    async def test_a_variable_that_would_be_more_than_one_is_refused(
        self, new_manager: NewManager, name: str, value: str
    ) -> None:
        with pytest.raises(InvalidInput, match="environment variable"):
            await new_manager().start_kernel(extra_env={name: value})

    async def test_two_kernels_share_neither_key_nor_sockets(self, start_kernel: StartKernel) -> None:
        one, other = await start_kernel(), await start_kernel()
        for part in ("key", "ip"):
            assert one.manager.get_connection_info()[part] != other.manager.get_connection_info()[part]
        assert type(one.provisioner).connection_info == {}

    async def test_polling_only_reads_a_future(
        self, start_kernel: StartKernel, monkeypatch: pytest.MonkeyPatch
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
        self, start_kernel: StartKernel, tmp_path: Path, short_folder: Path, name: str
    ) -> None:
        (tmp_path / "data.csv").write_text("a,b\n")
        kernel = await start_kernel(**{name: tmp_path, "runtime_dir": short_folder / "run"})
        assert "['data.csv']" in await kernel.print(PRINT_FOLDER)
        await kernel.print("_ = open('result.txt', 'w').write('made')")
        await kernel.manager.shutdown_kernel(now=True)
        assert (tmp_path / "result.txt").read_text() == "made"
        assert not (short_folder / "run").exists()

    async def test_a_file_beyond_the_limit_is_an_error_in_the_cell(self, start_kernel: StartKernel) -> None:
        kernel = await start_kernel(limits=ResourceLimits(disk=2 * MIB))
        result = await kernel.run("with open('big', 'wb') as f: f.write(bytes(3_000_000))")
        assert result.reply["ename"] == "OSError"
        assert await kernel.print("print('alive')") == "alive\n"
