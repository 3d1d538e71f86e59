"""Attacks by code in a kernel, on every isolation level that claims to stop them; see security.md."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest
import zmq.asyncio
from jupyter_client.manager import AsyncKernelManager

from cellgate_kernels.forking.server import ForkServer, ForkSettings
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.testing.backend import RunningKernel, StartKernel
from tests.support.hostile import server_at_a_fixed_port
from tests.support.kernels import CONTAINERS, FORK, containers_of, kernel_uids

# Run in a kernel: what each attack came to, as JSON.
ATTACKS = r"""
import ctypes, glob, json, os, pathlib, signal, socket, stat, subprocess, time

libc = ctypes.CDLL(None, use_errno=True)
outcome = {}

def attack(name, function, *arguments):
    try:
        outcome[name] = repr(function(*arguments))
    except Exception as error:
        outcome[name] = type(error).__name__

def read(path):
    return pathlib.Path(path).read_bytes()[:4096]

def write(path):
    with open(path, "ab") as file:
        file.write(b"x")

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

def connect(family, kind, address):
    with socket.socket(family, kind) as s:
        s.settimeout(3)
        s.connect(address)
        s.send(b"x")

def link_to(path):
    os.symlink(path, "link")
    return read("link")

def everything():
    seen = [str(dict(os.environ))]
    for name in glob.glob("/proc/[0-9]*/environ") + glob.glob("/proc/[0-9]*/cmdline"):
        try:
            seen.append(repr(read(name)))
        except OSError:
            pass
    return "".join(seen)

attack("read the gateway's environment", everything)
attack("read a file of the gateway", read, SECRET_FILE)
attack("read it by a symbolic link", link_to, SECRET_FILE)
attack("read it by the first process's root", read, "/proc/1/root" + SECRET_FILE)
attack("read the host's passwords", read, "/proc/1/root/etc/shadow")
attack("read another workspace", os.listdir, OTHER_WORKSPACE)
attack("connect to another kernel's socket", connect, socket.AF_UNIX, socket.SOCK_STREAM, OTHER_SOCKET)
attack("connect to the gateway", connect, socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", PORT))
attack("connect to an abstract socket", connect, socket.AF_UNIX, socket.SOCK_STREAM, "\0" + ABSTRACT)
attack("connect to the internet", connect, socket.AF_INET, socket.SOCK_STREAM, ("192.0.2.1", 80))
attack("connect to the engine's bridge", connect, socket.AF_INET, socket.SOCK_STREAM, ("172.17.0.1", PORT))
attack("connect by IPv6", connect, socket.AF_INET6, socket.SOCK_STREAM, ("2001:db8::1", 80))
attack("send a datagram", connect, socket.AF_INET, socket.SOCK_DGRAM, ("192.0.2.1", 53))
attack("resolve a name", socket.getaddrinfo, "example.org", 80)
for path in ("/var/run/docker.sock", "/run/docker.sock", "/run/containerd/containerd.sock"):
    attack("connect to " + path, connect, socket.AF_UNIX, socket.SOCK_STREAM, path)
for path in ("/usr/x", "/etc/x", "/run/x", "/root/x", "/opt/x", "/dev/x", "/run/kernel.json",
             "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/sys/kernel/uevent_helper",
             "/proc/self/oom_score_adj_", "/sys/fs/cgroup/x"):
    attack("write to " + path, write, path)
attack("signal a process of the host", os.kill, HOST_PID, signal.SIGKILL)
attack("trace a process of the host", call, "ptrace", 16, HOST_PID, 0, 0)
attack("set the clock", time.clock_settime, time.CLOCK_REALTIME, 0)
attack("set the host's name", call, "sethostname", b"pwned", 5)
attack("mount", call, "mount", b"none", b"/tmp", b"tmpfs", 0, None)
attack("change the root", os.chroot, "/tmp")
attack("become root", os.setuid, 0)
attack("load a module of the kernel", call, "syscall", 313, 0, b"", 0)
attack("open a raw socket", socket.socket, socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
attack("make a block device", os.mknod, "disk", 0o600 | stat.S_IFBLK, os.makedev(254, 0))
attack("read a block device", read, "/dev/vda")
attack("read physical memory", read, "/dev/mem")
attack("reboot", call, "reboot", 0x1234567)
os.mkfifo("fifo")
def rights():
    return [line.split()[1] for line in open("/proc/self/status") if line.startswith("CapEff")]

attack("rights", rights)
attack("interfaces", lambda: [name for _, name in socket.if_nameindex()])
print(json.dumps(outcome))
"""

SECRET = "hunter2-of-the-gateway"

# All but these must fail with an exception; its type differs between the levels.
SAID = {"read the gateway's environment", "rights", "interfaces"}


@pytest.fixture(scope="module", params=["sandbox", FORK])
def outcome(
    sandbox: None,
    kernel_prefix: Path,
    tmp_path_factory: pytest.TempPathFactory,
    request: pytest.FixtureRequest,
) -> Iterator[dict[str, Any]]:
    """What all the attacks came to, in kernels that were started cold and in siblings."""
    catalog = KernelspecCatalog(backend="sandbox", kernel_dirs=[str(kernel_prefix / "kernels")])
    yield from attacked(catalog, tmp_path_factory.mktemp("gateway"), forked=request.param == FORK)


def attacked(catalog: KernelspecCatalog, folder: Path, *, forked: bool = False) -> Iterator[dict[str, Any]]:
    """What all the attacks came to, where the gateway's folder and variables hold a secret."""
    (folder / "secret").write_text(SECRET)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CELLGATE_TOKEN", SECRET)
        yield asyncio.run(attack(catalog, folder, forked=forked))


async def attack(catalog: KernelspecCatalog, folder: Path, *, forked: bool) -> dict[str, Any]:
    options: dict[str, Any] = {}
    if forked:
        kernels = Path(tempfile.gettempdir())
        uids = await kernel_uids("tests", kernels)
        options["fork_server"] = ForkServer([(kernels, True)], None, ForkSettings(modules=()), uids)
    context = zmq.asyncio.Context()
    victim, attacker = (
        AsyncKernelManager(kernel_name="python3", kernel_spec_manager=catalog, context=context)
        for _ in range(2)
    )
    abstract = f"cellgate-test-{uuid.uuid4().hex}"
    with closing(server_at_a_fixed_port()) as tcp, closing(socket.socket(socket.AF_UNIX)) as unix:
        unix.bind(f"\0{abstract}")
        unix.listen()
        try:
            (folder / "workspace").mkdir()
            await victim.start_kernel(workspace=folder / "workspace", **options)
            await attacker.start_kernel(**options)
            assert attacker.provisioner.way == (FORK if forked else "cold")
            client = attacker.client()
            client.start_channels(hb=False)
            await client.wait_for_ready(timeout=60)
            targets = {
                "SECRET_FILE": str(folder / "secret"),
                "OTHER_WORKSPACE": str(folder / "workspace"),
                "OTHER_SOCKET": f"{victim.get_connection_info()['ip']}-1",
                "PORT": tcp.getsockname()[1],
                "ABSTRACT": abstract,
                "HOST_PID": os.getpid(),
            }
            code = "".join(f"{name} = {value!r}\n" for name, value in targets.items())
            kernel = RunningKernel(attacker, client)
            try:
                result = await kernel.run(code + ATTACKS)
                assert result.reply["status"] == "ok", result.reply
                assert await kernel.print("print('alive')") == "alive\n"
            finally:
                client.stop_channels()
            outcome: dict[str, Any] = json.loads(result.text)
            return outcome
        finally:
            for manager in (victim, attacker):
                if manager.provisioner is not None:
                    await manager.shutdown_kernel(now=True)
            context.destroy(linger=0)
            if forked:
                await options["fork_server"].close()


def test_no_attack_succeeds(outcome: dict[str, Any]) -> None:
    attempts = {name: result for name, result in outcome.items() if name not in SAID}
    assert len(attempts) > 40
    assert {name: result for name, result in attempts.items() if not result.isidentifier()} == {}
    assert "None" not in attempts.values(), attempts


def test_nothing_of_the_gateway_is_in_sight(outcome: dict[str, Any]) -> None:
    assert SECRET not in json.dumps(outcome)
    assert "'HOME'" in outcome["read the gateway's environment"]


def test_there_are_no_rights_and_no_network(outcome: dict[str, Any]) -> None:
    assert outcome["rights"] == str(["0" * 16])
    assert outcome["interfaces"] == "['lo']"


@pytest.fixture(params=["sandbox", FORK])
def backend(sandbox: None, request: pytest.FixtureRequest) -> str:
    """Those of this machine; containers have a module of their own."""
    return str(request.param)


async def test_killing_the_first_process_ends_this_kernel_at_most(start_kernel: StartKernel) -> None:
    other, kernel = await start_kernel(), await start_kernel()
    kernel.send("import os, signal; os.kill(1, signal.SIGKILL); print('alive', flush=True)")
    exited = asyncio.ensure_future(asyncio.shield(kernel.provisioner.exited))
    shown = asyncio.ensure_future(kernel.client.get_iopub_msg())
    async with asyncio.timeout(60):
        await asyncio.wait({exited, shown}, return_when=asyncio.FIRST_COMPLETED)
    for waiting in (exited, shown):
        waiting.cancel()
    await asyncio.gather(exited, shown, return_exceptions=True)
    assert await other.print("print('alive')") == "alive\n"


async def test_daemons_do_not_survive_a_restart(start_kernel: StartKernel, backend: str) -> None:
    kernel = await start_kernel()
    duration = f"{10_000 + time.time_ns() % 1_000_000}"
    await kernel.print(
        "import subprocess\n"
        f"for _ in range(3): subprocess.Popen(['setsid', '--fork', 'sleep', '{duration}']).wait()\n"
    )
    if backend != "gvisor":  # whose processes the host does not know
        # `setsid` has ended, but what it has forked may not have become `sleep` yet.
        while len(sleeping(duration)) < 3:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    await kernel.manager.restart_kernel(now=True)
    await kernel.client.wait_for_ready(timeout=60)
    assert sleeping(duration) == []
    listing = "import glob\nprint([open(n).read() for n in glob.glob('/proc/[0-9]*/cmdline')])"
    assert duration not in await kernel.print(listing)
    if backend in CONTAINERS:
        assert len(containers_of([str(kernel.manager.kernel_id)])) == 1


def sleeping(duration: str) -> list[psutil.Process]:
    return [
        p for p in psutil.process_iter(["cmdline"]) if (p.info["cmdline"] or [])[:2] == ["sleep", duration]
    ]
