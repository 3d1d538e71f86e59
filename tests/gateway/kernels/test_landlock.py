"""Kernels behind Landlock: the core of the backends' contract, what works there, and what attacks come to."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cellgate_kernels.backends.landlock import LandlockProvisioner
from cellgate_kernels.base.errors import BackendUnavailable, InvalidInput, KernelStartFailed
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.testing.backend import BackendCore, StartKernel
from tests.gateway.kernels.test_hostile import SAID, SECRET, attacked
from tests.support.kernels import WithOurChecks
from tests.support.requirements import require


@pytest.fixture(scope="module")
def landlock(kernel_prefix: Path) -> None:
    """Demands that Landlock works here."""
    try:
        asyncio.run(LandlockProvisioner.check())
    except BackendUnavailable as error:
        require("landlock", error.message)


@pytest.fixture
def backend(landlock: None) -> str:
    return "landlock"


class TestContract(WithOurChecks, BackendCore):
    """Of these kernels."""


@pytest.fixture(scope="module")
def outcome(
    landlock: None, kernel_prefix: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Any]]:
    """What the attacks came to that are known from sandboxes."""
    catalog = KernelspecCatalog(backend="landlock", kernel_dirs=[str(kernel_prefix / "kernels")])
    yield from attacked(catalog, tmp_path_factory.mktemp("gateway"))


def test_no_attack_succeeds(outcome: dict[str, Any]) -> None:
    attempts = {name: result for name, result in outcome.items() if name not in SAID}
    assert len(attempts) > 40
    assert {name: result for name, result in attempts.items() if not result.isidentifier()} == {}
    assert "None" not in attempts.values(), attempts


def test_nothing_of_the_gateway_is_in_sight(outcome: dict[str, Any]) -> None:
    assert SECRET not in json.dumps(outcome)
    assert "'HOME'" in outcome["read the gateway's environment"]


WORKS = """
import asyncio, concurrent.futures, multiprocessing, pathlib, shutil, sqlite3, subprocess, tempfile, threading
import matplotlib.pyplot as plt, numpy, pandas

pandas.DataFrame({"a": [1, 2]}).to_csv("a.csv")
shutil.copy2("a.csv", "b.csv")
pathlib.Path("b.csv").rename("c.csv")
with tempfile.TemporaryDirectory() as folder:
    pathlib.Path(folder, "x").write_text("x")
with sqlite3.connect("d.db") as known:
    known.execute("create table t (x)")
plt.plot([1, 2]); plt.savefig("e.png")
assert subprocess.run(["sh", "-c", "echo $((6 * 7))"], capture_output=True, text=True).stdout == "42\\n"
with multiprocessing.Pool(2) as pool:
    assert pool.map(abs, [-1, -2]) == [1, 2]
with concurrent.futures.ProcessPoolExecutor(2) as pool:
    assert list(pool.map(abs, [-3])) == [3]
assert numpy.ones((300, 300)).sum() == 90000
async def nothing():
    await asyncio.sleep(0)
thread = threading.Thread(target=asyncio.run, args=(nothing(),)); thread.start(); thread.join()
print(sorted(path.name for path in pathlib.Path().iterdir()))
"""


async def test_what_cells_usually_do_works(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(limits=ResourceLimits(memory=1024 * MIB))
    assert await kernel.print(WORKS) == "['a.csv', 'c.csv', 'd.db', 'e.png']\n"


async def test_commands_run_without_a_terminal(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    assert await kernel.print("!echo früh; echo spät >&2; exit 3\nprint(_exit_code)") == "früh\nspät\n3\n"
    assert await kernel.print("words = !echo a b\nprint(words)") == "['a b']\n"
    assert await kernel.print("%%bash\necho c") == "c\n"


async def test_an_interrupt_of_a_command_ends_its_cell(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    msg_id = kernel.send("!echo begun; sleep 1000\nprint('went on')")
    await kernel.until_printed(msg_id)
    await kernel.manager.interrupt_kernel()
    result = await kernel.result(msg_id)
    assert result.reply["ename"] == "KeyboardInterrupt"
    assert "went on" not in result.text


REACHES = r"""
import ctypes, json, os, resource, signal, socket, subprocess
libc = ctypes.CDLL(None, use_errno=True)
outcome = {}

def attack(name, function, *arguments):
    try:
        outcome[name] = repr(function(*arguments))
    except Exception as error:
        outcome[name] = type(error).__name__

def call(name, *arguments):
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)

def datagram(path):
    socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).sendto(b"x", path)

def by_a_pair(path):
    socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b"x", path)

def quietly(words):
    return subprocess.check_output(words, stderr=subprocess.DEVNULL)

def replace_socket(path):
    os.rename(path, path + "-away")

attack("list processes", os.listdir, "/proc")
attack("read an argument list", open, f"/proc/{GATEWAY}/cmdline")
attack("limit the gateway", resource.prlimit, GATEWAY, resource.RLIMIT_NOFILE, (1, 1))
attack("slow the gateway down", os.setpriority, os.PRIO_PROCESS, GATEWAY, 19)
attack("slow all of the user's down", os.setpriority, os.PRIO_USER, 0, 19)
attack("bind the gateway to a processor", os.sched_setaffinity, GATEWAY, {0})
attack("end the gateway", os.kill, GATEWAY, signal.SIGTERM)
attack("send a datagram", datagram, DATAGRAMS)
attack("send one by a pair", by_a_pair, DATAGRAMS)
attack("watch a folder", call, "inotify_add_watch", libc.inotify_init(), FOLDER.encode(), 0x100)
attack("list shared memory", os.listdir, "/dev/shm")
attack("make shared memory of System V", call, "shmget", 0, 4096, 0o1600)
attack("attach another's", call, "shmat", 0, 0, 0)
attack("make a queue", call, "mq_open", b"/x", os.O_CREAT, 0o600, None)
attack("truncate a file of the gateway", os.truncate, SECRET_FILE, 0)
attack("truncate it by opening", os.open, SECRET_FILE, os.O_RDONLY | os.O_TRUNC)
attack("link to a file of the gateway", os.link, SECRET_FILE, "linked")
attack("move it here", os.rename, SECRET_FILE, "moved")
attack("move a socket of another kernel", replace_socket, OTHER_SOCKET)
attack("make a file in /tmp", open, "/tmp/x", "w")
attack("make a terminal", os.openpty)
attack("write to the gateway's terminals", os.listdir, "/dev/pts")
attack("read as a program does", quietly, ["cat", SECRET_FILE])
attack("read by an old table", lambda: open(f"/proc/self/root{SECRET_FILE}").read())
print(json.dumps(outcome))
"""


async def test_others_files_processes_and_objects_are_out_of_reach(
    start_kernel: StartKernel, tmp_path: Path
) -> None:
    secret, datagrams = tmp_path / "secret", tmp_path / "datagrams"
    secret.write_text(SECRET)
    victim, kernel = await start_kernel(), await start_kernel()
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)) as receiver:
        receiver.bind(str(datagrams))
        targets = {
            "GATEWAY": os.getpid(),
            "DATAGRAMS": str(datagrams),
            "FOLDER": str(tmp_path),
            "SECRET_FILE": str(secret),
            "OTHER_SOCKET": f"{victim.manager.get_connection_info()['ip']}-1",
        }
        code = "".join(f"{name} = {value!r}\n" for name, value in targets.items())
        outcome = json.loads(await kernel.print(code + REACHES))
        receiver.setblocking(False)
        with pytest.raises(BlockingIOError):
            receiver.recv(1)
    assert len(outcome) == 24
    assert {name: told for name, told in outcome.items() if not told.isidentifier() or told == "None"} == {}
    assert secret.read_text() == SECRET
    assert await victim.print("print('alive')") == "alive\n"


def written(folder: Path) -> list[str]:
    """The files that a loader of programs has written."""
    return [path.name for path in folder.glob("seen*")]


async def test_a_clients_variables_change_nothing_before_the_walls_are_up(
    start_kernel: StartKernel, tmp_path: Path
) -> None:
    """Such as those by which the loader of programs loads a library first, or writes files, as here."""
    variables = {"LD_DEBUG": "files", "LD_DEBUG_OUTPUT": str(tmp_path / "seen")}
    kernel = await start_kernel(extra_env=variables)
    assert await kernel.print("import os; print(os.environ['LD_DEBUG'])") == "files\n"
    assert written(tmp_path) == []


async def test_a_full_home_ends_the_kernel(start_kernel: StartKernel) -> None:
    """Temporary files are no way around the limit of disk space."""
    kernel = await start_kernel(limits=ResourceLimits(disk=16 * MIB))
    kernel.send(
        "import tempfile\n"
        "files = [tempfile.NamedTemporaryFile() for _ in range(8)]\n"
        f"for file in files: file.write(bytes({4 * MIB})); file.flush()\n"
        "import time; time.sleep(1000)"
    )
    async with asyncio.timeout(60):
        ended = await asyncio.shield(kernel.provisioner.exited)
    assert ended.cause == "disk_full"


@pytest.mark.parametrize("name", ["bash", "deno"])
async def test_other_languages_kernels_are_refused(start_kernel: StartKernel, name: str) -> None:
    with pytest.raises(KernelStartFailed, match="--backend sandbox"):
        await start_kernel(kernel_name=name)


async def test_a_way_to_some_hosts_is_refused(start_kernel: StartKernel) -> None:
    with pytest.raises(InvalidInput, match="--backend sandbox"):
        await start_kernel(egress=True)


async def test_a_system_without_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for version, words in ((0, "there is none"), (2, "only version 2")):
        monkeypatch.setattr("cellgate_kernels.backends.landlock.landlock_version", lambda at=version: at)
        with pytest.raises(BackendUnavailable, match=words):
            await LandlockProvisioner.check()
