"""What code in a sandboxed kernel can see and do: nothing of the host, and nothing of other kernels."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq.asyncio
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import AsyncKernelManager

from cellgate_kernels.backends.sandbox import SandboxProvisioner
from cellgate_kernels.base.errors import BackendUnavailable, InvalidInput, KernelStartFailed
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.launch.child import find_program
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.testing.backend import RunningKernel, StartKernel
from cellgate_kernels.walls.seccomp import sandbox_filter
from tests.support.nightly import mostly_nightly

# Run in a kernel: what it finds out, as JSON.
PROBE = r"""
import ctypes, getpass, glob, json, os, pathlib, platform, signal, socket, subprocess

def attempt(function, *arguments):
    try:
        return repr(function(*arguments))
    except Exception as error:
        return type(error).__name__

def writable(path):
    try:
        pathlib.Path(path, "probe").touch()
        return True
    except OSError:
        return False

def connect(address):
    with socket.socket() as s:
        s.settimeout(5)
        s.connect(address)

libc = ctypes.CDLL(None)
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
system = ("/", "/usr", "/etc", "/run", "/dev", "/proc", "/root", ENVIRONMENT)
own = ("/tmp", "/workspace", "/dev/shm", os.environ["HOME"])
descriptors = [attempt(os.readlink, f) for f in glob.glob("/proc/self/fd/*")]
print(json.dumps({
    "interfaces": [name for _, name in socket.if_nameindex()],
    "connect": attempt(connect, ("192.0.2.1", 80)),
    "resolve": attempt(socket.getaddrinfo, "example.org", 80),
    "localhost": socket.gethostbyname("localhost"),
    "root": sorted(os.listdir("/")),
    "beside": [os.listdir("/home"), os.listdir("/mnt")],
    "etc": sorted(os.listdir("/etc")),
    "canary": attempt(os.stat, CANARY),
    "writable": [path for path in system if writable(path)],
    "own_writable": [path for path in own if writable(path)],
    "sysctl": attempt(lambda: open("/proc/sys/kernel/core_pattern", "w")),
    "connection_file": [attempt(open, "/run/kernel.json", "w"), attempt(os.remove, "/run/kernel.json")],
    "hidden": [attempt(lambda: open(f"/proc/{name}").read()) for name in ("keys", "cmdline")],
    "processes": sorted({open(f"{p}/comm").read().strip() for p in glob.glob("/proc/[0-9]*")}),
    "kill": attempt(os.kill, HOST_PID, signal.SIGKILL),
    "init_environ": open("/proc/1/environ").read(),
    "init_cmdline": open("/proc/1/cmdline").read(),
    "environ": dict(os.environ),
    "hostname": [socket.gethostname(), platform.node()],
    "user": [os.getuid(), os.getgid(), getpass.getuser(), os.path.expanduser("~")],
    "capabilities": [status[name].strip() for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")],
    "no_new_privileges": status["NoNewPrivs"].strip(),
    "seccomp": status["Seccomp"].strip(),
    "user_namespace": subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode,
    "mount": subprocess.run(["mount", "-t", "tmpfs", "none", "/tmp"], capture_output=True).returncode,
    "keyring": libc.syscall(250 if platform.machine() == "x86_64" else 219, 0, -3, 0),
    "memory_files": [target for target in descriptors if "memfd" in target],
    "cwd": os.getcwd(),
}))
"""


@pytest.fixture
def backend(sandbox: None) -> str:
    return "sandbox"


@pytest.fixture(scope="module")
def seen(sandbox: None, kernel_prefix: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the probe found in one kernel, whose gateway had a secret and a file to find."""
    canary = tmp_path_factory.mktemp("canary") / "secret.txt"
    canary.write_text("hunter2")

    async def probe() -> dict[str, Any]:
        context = zmq.asyncio.Context()
        manager = AsyncKernelManager(
            kernel_name="python3",
            kernel_spec_manager=KernelspecCatalog(kernel_dirs=[str(kernel_prefix / "kernels")]),
            context=context,
        )
        await manager.start_kernel()
        client = manager.client()
        client.start_channels(hb=False)
        try:
            await client.wait_for_ready(timeout=60)
            assert manager.kernel_spec is not None
            environment = str(Path(manager.kernel_spec.argv[0]).parent)
            names = {"CANARY": str(canary), "ENVIRONMENT": environment, "HOST_PID": os.getpid()}
            code = "".join(f"{name} = {value!r}\n" for name, value in names.items())
            result = await RunningKernel(manager, client).run(code + PROBE)
            assert result.reply["status"] == "ok", result.reply
            facts: dict[str, Any] = json.loads(result.text)
            return facts
        finally:
            client.stop_channels()
            await manager.shutdown_kernel(now=True)
            context.destroy(linger=0)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLGATE_TEST_SECRET", "hunter2")
        return asyncio.run(probe())


def test_there_is_no_network(seen: dict[str, Any]) -> None:
    assert seen["interfaces"] == ["lo"]
    assert seen["connect"] == "OSError"
    assert seen["resolve"] == "gaierror"
    assert seen["localhost"] == "127.0.0.1"


def test_no_file_of_the_host_is_visible(seen: dict[str, Any]) -> None:
    assert seen["canary"] == "FileNotFoundError"
    assert not {"var", "sys", "srv", "boot", "opt"} & set(seen["root"])
    assert seen["beside"] == [["user"], ["data"]]
    assert not {"shadow", "ssh", "hostname", "resolv.conf", "machine-id"} & set(seen["etc"])
    assert seen["cwd"] == "/workspace"


def test_the_system_is_read_only(seen: dict[str, Any]) -> None:
    assert seen["writable"] == []
    assert len(seen["own_writable"]) == 4


def test_not_even_a_root_gateways_kernel_can_set_the_system(seen: dict[str, Any]) -> None:
    assert seen["sysctl"] == "OSError"
    assert seen["hidden"] == ["PermissionError", "PermissionError"]


def test_the_connection_file_cant_be_replaced(seen: dict[str, Any]) -> None:
    assert set(seen["connection_file"]) <= {"OSError", "PermissionError"}


def test_only_its_own_processes_exist(seen: dict[str, Any]) -> None:
    assert seen["processes"] == ["bwrap", "python"]
    assert seen["kill"] == "ProcessLookupError"


def test_the_environment_is_cut_in_every_process(seen: dict[str, Any]) -> None:
    assert seen["init_environ"] == ""
    assert "JPY_PARENT_PID" not in seen["environ"]
    assert "hunter2" not in json.dumps(seen)


def test_the_command_line_tells_nothing_of_the_host(seen: dict[str, Any]) -> None:
    assert "--ro-bind" not in seen["init_cmdline"]
    assert "workspace" not in seen["init_cmdline"]


def test_it_is_an_ordinary_user_without_rights(seen: dict[str, Any]) -> None:
    assert seen["user"] == [1000, 1000, "cellgate", "/tmp/home"]
    assert seen["hostname"] == ["cellgate", "cellgate"]
    assert set(seen["capabilities"]) == {"0" * 16}
    assert seen["no_new_privileges"] == "1"
    assert seen["user_namespace"] != 0
    assert seen["mount"] != 0


@pytest.mark.skipif(sandbox_filter(platform.machine()) is None, reason="no filter for this architecture")
def test_system_calls_are_filtered(seen: dict[str, Any]) -> None:
    assert seen["seccomp"] == "2"
    assert seen["keyring"] == -1


def test_no_descriptor_of_the_gateway_is_inherited(seen: dict[str, Any]) -> None:
    assert seen["memory_files"] == []


async def test_kernels_do_not_see_each_other(start_kernel: StartKernel) -> None:
    one, other = await start_kernel(), await start_kernel()
    folders = ("/tmp", "/workspace", "/dev/shm", "/run/kernel")
    await one.print(f"for f in {folders}: open(f + '/mine', 'w').close()")
    code = "import glob; print(glob.glob('/*/mine') + glob.glob('/*/*/mine'))"
    assert await other.print(code) == "[]\n"
    assert await one.print(code) != "[]\n"


def sleepers(seconds: str) -> list[psutil.Process]:
    """The programs that sleep for so long, which nobody else's do."""
    found = []
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # gateways that other tests share start and end kernels
            if child.cmdline() == ["sleep", seconds]:
                found.append(child)
    return found


async def test_processes_that_left_their_session_end_with_the_kernel(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    seconds = f"{600 + time.time_ns() % 1_000_000}"
    await kernel.print(
        "import subprocess\n"
        f"for _ in range(3): subprocess.Popen(['setsid', '--fork', 'sleep', '{seconds}']).wait()"
    )
    # `setsid` has ended, but what it has forked may not have become `sleep` yet.
    while len(sleeping := sleepers(seconds)) < 3:  # noqa: ASYNC110 - nobody tells
        await asyncio.sleep(0.02)
    await kernel.provisioner.kill()
    assert not [process for process in sleeping if process.is_running()]


async def test_a_hostile_runtime_folder_is_removed_without_following_links(
    start_kernel: StartKernel, tmp_path: Path, no_leaks: Path
) -> None:
    (tmp_path / "precious").write_text("kept")
    kernel = await start_kernel(runtime_dir=no_leaks / "run")
    await kernel.print(
        f"import os\nos.chdir('/run/kernel')\nos.symlink({str(tmp_path)!r}, 'link')\n"
        "os.rename('k-2', 'moved'); os.symlink('/', 'k-2')\n"
        "for _ in range(1500): os.mkdir('d'); os.chdir('d')"
    )
    await kernel.manager.shutdown_kernel(now=True)
    assert not (no_leaks / "run").exists()
    assert (tmp_path / "precious").read_text() == "kept"


async def test_a_missing_environment_fails_the_launch(
    catalog: KernelspecCatalog, no_leaks: Path, context: zmq.asyncio.Context
) -> None:
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=catalog, context=context)
    spec = catalog.get_kernel_spec("python3").to_dict()
    spec["metadata"]["kernel_provisioner"]["config"] = {"readable": ["/nonexistent/environment"]}
    manager._kernel_spec = KernelSpec(**spec)
    with pytest.raises(KernelStartFailed, match="/nonexistent/environment"):
        await manager.start_kernel()
    assert not manager.has_kernel


async def test_a_signal_that_cant_reach_the_kernel_is_refused(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    with pytest.raises(InvalidInput, match="interrupt_mode"):
        await kernel.manager.signal_kernel(2)
    assert await kernel.manager.is_alive()


@pytest.mark.skipif(os.geteuid() == 0, reason="root's processes are not counted against RLIMIT_NPROC")
async def test_the_number_of_processes_is_bounded(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(limits=ResourceLimits(pids=40))
    result = await kernel.run("import subprocess\nfor _ in range(60): subprocess.Popen(['sleep', '600'])")
    assert result.reply["ename"] == "BlockingIOError"
    assert await kernel.print("print('alive')") == "alive\n"


async def test_a_check_where_bubblewrap_is_missing_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shutil, "which", lambda *arguments, **options: None)
    with pytest.raises(BackendUnavailable, match="apt-get install bubblewrap"):
        await SandboxProvisioner.check()


def replace_bwrap(monkeypatch: pytest.MonkeyPatch, program: Path) -> None:
    real = find_program
    monkeypatch.setattr(
        "cellgate_kernels.walls.bubblewrap.find_program",
        lambda name, package: str(program) if name == "bwrap" else real(name, package),
    )


async def test_a_check_where_bubblewrap_fails_gives_its_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, no_leaks: Path
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    replace_bwrap(monkeypatch, broken)
    with pytest.raises(BackendUnavailable, match="No permissions to create new namespace"):
        await SandboxProvisioner.check()


async def test_a_folder_that_stays_does_not_hide_why_a_check_failed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: no such luck' >&2\nexit 1\n")
    broken.chmod(0o755)
    replace_bwrap(monkeypatch, broken)
    left: list[Path] = []

    async def refused(folder: Path) -> None:
        left.append(folder)
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr("cellgate_kernels.backends.sandbox.remove_tree", refused)
    with pytest.raises(BackendUnavailable, match="no such luck"):
        await SandboxProvisioner.check()
    assert f"{left[0]} of a check can't be removed" in caplog.text
    caplog.clear()
    shutil.rmtree(left[0])


async def test_kernels_start_where_the_system_refuses_their_oom_score(
    start_kernel: StartKernel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As it does for a setuid bwrap. The check says so once, the starts do not."""
    write_text = Path.write_text

    def refused(path: Path, *arguments: Any, **options: Any) -> int:
        if path.name == "oom_score_adj":
            raise PermissionError(13, "Permission denied", str(path))
        return write_text(path, *arguments, **options)

    monkeypatch.setattr(Path, "write_text", refused)
    await SandboxProvisioner.check()
    assert caplog.text.count("oom_score_adj") == 1
    caplog.clear()
    kernel = await start_kernel()
    assert await kernel.print("print('alive')") == "alive\n"
    assert caplog.text == ""


# ---- a starter that dies -----------------------------------------------------------------------------------

STARTER = """
import asyncio, sys
from jupyter_client.manager import AsyncKernelManager
from cellgate_kernels.specs.catalog import KernelspecCatalog

async def main():
    catalog = KernelspecCatalog(backend="sandbox", kernel_dirs=[sys.argv[1]])
    await AsyncKernelManager(kernel_name="python3", kernel_spec_manager=catalog).start_kernel()
    await asyncio.sleep(600)

print("here", flush=True)
asyncio.run(main())
"""

PR_SET_CHILD_SUBREAPER = 36


@pytest.fixture
def subreaper() -> Iterator[None]:
    """Orphaned descendants become children of this process, where they can be seen."""
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    yield
    libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)


@pytest.mark.parametrize(
    "milliseconds", mostly_nightly([0, 1, 2, 3, 5, 8, 12, 20, 30, 50, 80, 150], (0, 3, 12, 50))
)
def test_a_kernel_does_not_outlive_its_starter_however_early_that_dies(
    sandbox: None, subreaper: None, kernel_prefix: Path, milliseconds: int
) -> None:
    """bubblewrap's own --die-with-parent has gaps while the sandbox is made."""
    known = set(psutil.Process().children())
    with subprocess.Popen(
        [sys.executable, "-c", STARTER, str(kernel_prefix / "kernels")], stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        assert starter.stdout.readline() == b"here\n"
        while not psutil.Process(starter.pid).children():
            time.sleep(0.0005)
        time.sleep(milliseconds / 1000)
        starter.kill()
    orphans = set(psutil.Process().children()) - known
    _, alive = psutil.wait_procs(orphans, timeout=60)
    for process in alive:
        process.kill()
    assert not alive
