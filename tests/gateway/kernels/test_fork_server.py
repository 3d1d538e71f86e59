"""Kernels as forks of an interpreter that has loaded their libraries: like those started cold, and
apart from each other, from the zygote and from the gateway.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from msgspec import structs

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.forking import forker
from cellgate_kernels.forking import server as module
from cellgate_kernels.forking.forker import ForkedChild
from cellgate_kernels.forking.messages import Ready
from cellgate_kernels.forking.server import ForkServer, ForkSettings
from cellgate_kernels.limits.cgroups import Cgroups, hierarchies
from cellgate_kernels.testing.backend import RunningKernel, StartKernel
from cellgate_kernels.walls.kernel_uids import FIRST, KernelUids
from tests.support.kernels import FORK, zygote_processes
from tests.support.nightly import at_night
from tests.support.requirements import require

MODULES = "import sys; print([name in sys.modules for name in ('numpy', 'pandas', 'matplotlib.pyplot')])"
ALIVE = "print('alive')"


@pytest.fixture(params=[FORK])
def backend(sandbox: None, request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fork_settings() -> ForkSettings:
    """As a gateway has them."""
    return ForkSettings()


bare = pytest.mark.parametrize("fork_settings", [ForkSettings(modules=())], ids=["bare"])
"""For tests that need no libraries."""


@pytest.fixture
def cgroups() -> None:
    """Demands that cgroups can be made here."""
    try:
        Cgroups.find("cellgate-tests").close()
    except BackendUnavailable as error:
        require("cgroups", error.message)


async def eventually(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


def zygote_of(kernel: RunningKernel) -> psutil.Process:
    """The zygote that forked a kernel: its first process's parent."""
    assert kernel.provisioner.process is not None
    parent = psutil.Process(kernel.provisioner.process).parent()
    assert parent is not None
    return parent


async def test_libraries_are_loaded_before_the_first_cell(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    assert kernel.provisioner.way == "fork"
    assert await kernel.print(MODULES) == "[True, True, True]\n"


# What a cell can find out about where it runs, apart from the modules that are loaded.
VIEW = r"""
import glob, json, os, signal, socket, sys, threading

def listed(folder):
    entries = [entry for entry in os.scandir(folder) if not entry.name.isdecimal()]
    return sorted((e.name, e.is_symlink() and e.name[-4:] != "self" and os.readlink(e.path)) for e in entries)

shell = get_ipython()
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
told = ("Name Umask Uid Gid SigIgn SigCgt SigBlk CapInh CapPrm CapEff CapBnd CapAmb NoNewPrivs Seccomp "
        "Seccomp_filters Threads NSsid").split()
mounts = [line.split() for line in open("/proc/self/mountinfo")]
print(json.dumps({
    "argv": [sys.argv, sys.orig_argv, sys.executable, str(sys.flags), sys.path],
    "main": sorted(name for name in sys.modules["__main__"].__dict__ if not name.startswith("_i")),
    "environ": sorted(os.environ.items()),
    "folders": {f: listed(f) for f in "/ /dev /etc /run /run/kernel /tmp /workspace /proc".split()},
    # bubblewrap makes these two read-only before they are covered. Forked kernels may have uids of their own.
    "mounts": sorted({
        (m[4], m[5].removesuffix(",idmapped")) for m in mounts if m[4] not in ("/proc/bus", "/proc/irq")
    }),
    # Of memory, a forked kernel shares some; and processes are limited where it has a uid of its own.
    "limits": [
        line for line in open("/proc/self/limits") if not line.startswith(("Max data", "Max processes"))
    ],
    "status": {name: status[name].strip() for name in told},
    "place": [os.getcwd(), socket.gethostname(), socket.if_nameindex(), os.getpgrp() == os.getpid()],
    "descriptors": sorted(
        os.readlink(f).split(":")[0] for f in glob.glob("/proc/self/fd/*") if os.path.exists(f)
    ),
    "command": open("/proc/self/cmdline").read(),
    "score": open("/proc/self/oom_score_adj").read(),
    "threads": sorted(thread.name for thread in threading.enumerate()),
    "signals": [str(signal.getsignal(number)).split(" at ")[0] for number in signal.Signals],
    "shell": [
        shell.parent is shell.kernel, shell.starting_dir, shell.profile_dir.location, sorted(shell.config),
        # In a kernel that is started cold, pyplot is not loaded yet.
        sorted({type(each).__name__ for each in shell.configurables} - {"InlineBackend"}),
        sorted(shell.display_formatter.formatters), [each.__name__ for each in shell.custom_exceptions],
        sorted(shell.magics_manager.magics["line"]), type(shell.compile).__name__,
        sys.excepthook.__qualname__,
        sorted(glob.glob("/tmp/home/.ipython/**", recursive=True)),
    ],
    "history": get_ipython().history_manager.enabled,
    "hash": hash("text"),
}))
"""


async def test_a_cell_finds_what_it_finds_in_a_kernel_started_by_itself(
    start_kernel: StartKernel, fork_server: ForkServer
) -> None:
    forked = await start_kernel()
    started = await start_kernel(extra_env={"PYTHONDONTWRITEBYTECODE": ""})
    assert (forked.provisioner.way, started.provisioner.way) == ("fork", "cold")
    one, other = json.loads(await forked.print(VIEW)), json.loads(await started.print(VIEW))
    other["environ"].remove(["PYTHONDONTWRITEBYTECODE", ""])
    assert one == other


async def test_plots_are_drawn_into_the_notebook(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    result = await kernel.run("import matplotlib.pyplot as plt; plt.plot([1, 2]);")
    assert "image/png" in result.of_type("display_data")[0]["data"]
    code = "%config InlineBackend.figure_formats = ['svg']\nplt.plot([1, 2]);"
    assert "image/svg+xml" in (await kernel.run(code)).of_type("display_data")[0]["data"]


PARQUET = """
import pandas, threading
frame = pandas.DataFrame({"number": range(200_000), "text": ["a", "b"] * 100_000})
frame.to_parquet("frame.parquet")
again = pandas.read_parquet("frame.parquet")
print(again.groupby("text").number.sum().tolist(), len(again))
"""


async def test_libraries_with_threads_of_their_own_work(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    assert kernel.provisioner.way == "fork"
    assert await kernel.print(PARQUET) == "[9999900000, 10000000000] 200000\n"


RANDOM = """
import json, random, secrets, tempfile, uuid, numpy
print(json.dumps([
    random.random(), numpy.random.random(), numpy.random.default_rng().random(), str(uuid.uuid4()),
    secrets.token_hex(8), tempfile.mktemp(), numpy.random.get_state()[1][:4].tolist(),
    numpy.random.mtrand._rand._bit_generator.seed_seq.entropy, get_ipython().kernel.session.session,
]))
"""


async def test_siblings_draw_different_numbers(start_kernel: StartKernel) -> None:
    one, other = await start_kernel(), await start_kernel()
    drawn = zip(json.loads(await one.print(RANDOM)), json.loads(await other.print(RANDOM)), strict=True)
    assert [each for each, also in drawn if each == also] == []


# ---- what can't be forked faithfully -----------------------------------------------------------------------


async def test_a_sessions_own_variables_are_set_in_its_kernel_alone(start_kernel: StartKernel) -> None:
    one = await start_kernel(extra_env={"API_KEY": "hunter2"})
    other = await start_kernel()
    assert [one.provisioner.way, other.provisioner.way] == ["fork", "fork"]
    code = "import os, subprocess; print(os.environ.get('API_KEY'), subprocess.getoutput('echo $API_KEY'))"
    assert await one.print(code) == "hunter2 hunter2\n"
    assert await other.print(code) == "None \n"


@pytest.mark.parametrize(
    ("variables", "code", "printed"),
    [
        ({"PYTHONHASHSEED": "1"}, "print(hash('text') == 0)", "False\n"),
        at_night({"PYTHONWARNINGS": "ignore"}, "import sys; print(sys.warnoptions)", "['ignore']\n"),
        at_night({"MPLBACKEND": "agg"}, "import matplotlib as m; print(m.get_backend())", "agg\n"),
        at_night(
            {"MPLCONFIGDIR": "/tmp/mpl"}, "import matplotlib as m; print(m.get_configdir())", "/tmp/mpl\n"
        ),
        at_night({"OMP_NUM_THREADS": "2"}, "import os; print(os.environ['OMP_NUM_THREADS'])", "2\n"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
async def test_a_variable_that_was_read_before_the_fork_starts_a_kernel_by_itself(
    start_kernel: StartKernel, variables: dict[str, str], code: str, printed: str
) -> None:
    kernel = await start_kernel(extra_env=variables)
    assert kernel.provisioner.way == "cold"
    assert await kernel.print(code) == printed


async def test_a_kernel_with_packages_of_its_own_imports_those(
    start_kernel: StartKernel, no_leaks: Path
) -> None:
    packages = no_leaks / "packages"
    packages.mkdir()
    (packages / "numpy.py").write_text("mine = True")
    kernel = await start_kernel(packages=packages)
    assert kernel.provisioner.way == "fork"
    assert await kernel.print("import numpy; print(numpy.mine)") == "True\n"
    await kernel.manager.shutdown_kernel(now=True)
    (packages / "numpy.py").unlink()
    packages.rmdir()


@bare
async def test_modules_loaded_for_an_operator_are_loaded_as_they_would_be(start_kernel: StartKernel) -> None:
    kernel = await start_kernel(extra_env={"CELLGATE_PRELOAD": "fractions, matplotlib.pyplot"})
    assert kernel.provisioner.way == "fork"
    assert await kernel.print("import sys; print('fractions' in sys.modules)") == "True\n"


@bare
async def test_a_folder_that_the_zygote_does_not_have_starts_a_kernel_by_itself(
    start_kernel: StartKernel, tmp_path: Path
) -> None:
    kernel = await start_kernel(workspace=tmp_path)
    assert kernel.provisioner.way == "cold"
    await kernel.print("open('made', 'w').close()")
    assert (tmp_path / "made").exists()


@bare
@pytest.mark.parametrize("name", ["bash", "deno"])
async def test_kernels_of_other_languages_start_by_themselves(start_kernel: StartKernel, name: str) -> None:
    kernel = await start_kernel(kernel_name=name)
    assert kernel.provisioner.way == "cold"


@bare
async def test_nothing_is_forked_from_a_process_with_threads(
    start_kernel: StartKernel, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    understand = forker.understand

    def with_threads(message: bytes) -> Any:
        said = understand(message)
        return Ready(said.asked, said.failed, 2, said.reserved) if isinstance(said, Ready) else said

    monkeypatch.setattr(forker, "understand", with_threads)
    kernel = await start_kernel()
    assert kernel.provisioner.way == "cold"
    assert await kernel.print(ALIVE) == "alive\n"
    assert kernel.manager.kernel_spec is not None
    assert not fork_server.forks(kernel.manager.kernel_spec.argv)


@bare
async def test_where_a_zygote_gets_no_rights_kernels_start_by_themselves(
    start_kernel: StartKernel,
    fork_server: ForkServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(module, "_NAMESPACES", (*module._NAMESPACES, "--cap-drop", "ALL"))
    for _ in range(2):
        kernel = await start_kernel()
        assert kernel.provisioner.way == "cold"
    assert caplog.text.count("started cold") == 1
    assert "Operation not permitted" in caplog.text
    await eventually(lambda: fork_server.processes() == [])


# ---- the zygote --------------------------------------------------------------------------------------------


@bare
async def test_a_zygote_has_no_network_and_no_folder_of_a_session(
    start_kernel: StartKernel, no_leaks: Path
) -> None:
    kernel = await start_kernel()
    zygote = Path(f"/proc/{zygote_of(kernel).pid}")
    interfaces = (zygote / "net/dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in interfaces] == ["lo"]
    assert str(no_leaks) not in (zygote / "mountinfo").read_text()
    assert "sessions" not in (zygote / "mountinfo").read_text()
    own = Path("/proc/self")
    for kind in ("user", "mnt", "net", "pid", "ipc", "uts"):
        assert (zygote / "ns" / kind).readlink() != (own / "ns" / kind).readlink()


@bare
async def test_nothing_of_a_session_enters_the_zygote(start_kernel: StartKernel) -> None:
    secret = f"hunter-{os.urandom(8).hex()}"
    kernel = await start_kernel(extra_env={"API_KEY": secret})
    assert kernel.provisioner.way == "fork"
    key: Any = kernel.manager.get_connection_info()["key"]
    await kernel.print(f"found = {secret!r}")
    kept = memory_of(zygote_of(kernel).pid)
    assert b"CELLGATE_ZYGOTE" in kept
    workspace = str(kernel.provisioner._folders.workspace.name).encode()  # type: ignore[union-attr]
    assert [what for what in (secret.encode(), key, workspace) if what in kept] == []


def memory_of(process: int) -> bytes:
    """All that a process can write to."""
    kept = b""
    with Path(f"/proc/{process}/mem").open("rb", buffering=0) as memory:
        for line in Path(f"/proc/{process}/maps").read_text().splitlines():
            place, rights = line.split()[:2]
            if rights.startswith("rw"):
                begin, end = (int(part, 16) for part in place.split("-"))
                memory.seek(begin)
                with suppress(OSError):
                    kept += memory.read(end - begin)
    return kept


@pytest.mark.parametrize("fork_settings", [ForkSettings(modules=(), most_forks=2)], ids=["two forks"])
async def test_a_zygote_is_replaced_after_some_forks_and_ends_with_its_last_kernel(
    start_kernel: StartKernel, fork_server: ForkServer
) -> None:
    first = [await start_kernel() for _ in range(3)]
    (line,) = fork_server._lines.values()
    await eventually(lambda: line.coming is None)
    last = await start_kernel()
    assert [kernel.provisioner.way for kernel in (*first, last)] == ["fork"] * 4
    old = zygote_of(first[0])
    assert {zygote_of(kernel) for kernel in first} == {old}
    assert zygote_of(last) != old
    for kernel in first:
        assert await kernel.print(ALIVE) == "alive\n"
        await kernel.manager.shutdown_kernel(now=True)
    await eventually(lambda: not old.is_running())
    assert await last.print(ALIVE) == "alive\n"


@bare
async def test_kernels_end_with_their_zygote_and_the_next_has_a_new_one(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    zygote_of(kernel).kill()
    async with asyncio.timeout(60):
        ended = await asyncio.shield(kernel.provisioner.exited)
    assert ended.signal == signal.SIGKILL
    other = await start_kernel()
    assert other.provisioner.way == "fork"
    assert await other.print(ALIVE) == "alive\n"


@bare
async def test_a_zygote_that_says_what_makes_no_sense_is_ended(
    start_kernel: StartKernel, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = await start_kernel()
    zygote = zygote_of(first)
    understand = forker.understand
    monkeypatch.setattr(forker, "understand", lambda _: understand(b'{"kind": "forked", "number": -1}'))
    kernel = await start_kernel()
    assert kernel.provisioner.way == "cold"
    assert await kernel.print(ALIVE) == "alive\n"
    await eventually(lambda: not zygote.is_running())


@bare
async def test_kernels_come_and_go_without_leaving_anything(
    start_kernel: StartKernel, fork_server: ForkServer
) -> None:
    kernel = await start_kernel()
    zygote = zygote_of(kernel)
    descriptors = zygote.num_fds()
    for _ in range(3):
        others = await asyncio.gather(*(start_kernel() for _ in range(4)))
        assert [other.provisioner.way for other in others] == ["fork"] * 4
        await asyncio.gather(*(other.manager.shutdown_kernel(now=True) for other in others))
    await eventually(lambda: len(zygote.children()) == 1)
    await eventually(lambda: zygote.num_fds() <= descriptors)
    assert len(zygote_processes(fork_server)) == 3
    if fork_server.cgroups is not None:
        folders = [folder for parent, _ in fork_server.cgroups._parents for folder in parent.glob("*/")]
        assert len({folder.name for folder in folders}) == 1


# ---- limits ------------------------------------------------------------------------------------------------


@bare
async def test_all_processes_of_a_kernel_share_its_memory(start_kernel: StartKernel, cgroups: None) -> None:
    other = await start_kernel()
    kernel = await start_kernel(limits=ResourceLimits(memory=256 * MIB))
    kernel.send(
        "import os, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        x = bytearray(os.urandom(1)) * (100 << 20); time.sleep(600)\n"
        "x = bytearray(b'x') * (150 << 20)\n"
        "time.sleep(1)\n"
        "y = bytearray(b'x') * (100 << 20)"
    )
    async with asyncio.timeout(60):
        ended = await asyncio.shield(kernel.provisioner.exited)
    assert ended.cause == "out_of_memory"
    assert "256 MiB" in ended.message
    assert await other.print(ALIVE) == "alive\n"


@bare
async def test_memory_explains_one_kill_and_not_the_next(start_kernel: StartKernel, cgroups: None) -> None:
    """Kernels that share a sandbox end for different reasons."""
    kernel = await start_kernel(limits=ResourceLimits(memory=256 * MIB))
    result = await kernel.run(
        "import os, time\n"
        "for _ in range(4):\n"
        "    if os.fork() == 0:\n"
        "        held = bytearray(b'x') * (90 << 20)\n"
        "        time.sleep(2)\n"
        "        os._exit(0)\n"
        "print(9 in [os.wait()[1] for _ in range(4)])"
    )
    assert result.text == "True\n"
    child = kernel.provisioner._child
    assert isinstance(child, ForkedChild)
    explained = await child.explain_kill()
    assert explained is not None
    assert explained.cause == "out_of_memory"
    assert await child.explain_kill() is None


@bare
async def test_processes_and_processors_are_limited(start_kernel: StartKernel, cgroups: None) -> None:
    kernel = await start_kernel(limits=ResourceLimits(pids=40, cpus=0.5))
    result = await kernel.run("import subprocess\nfor _ in range(60): subprocess.Popen(['sleep', '600'])")
    assert result.reply["ename"] == "BlockingIOError"
    assert await kernel.print(ALIVE) == "alive\n"
    assert quota(kernel) == "50000"


def cgroup_of(kernel: RunningKernel) -> str:
    """The cgroup of a kernel, as the system has it."""
    return Path(f"/proc/{kernel.provisioner.process}/cgroup").read_text()


def quota(kernel: RunningKernel) -> str:
    """The microseconds of processor time that a kernel may use in each 100 ms."""
    mounts = Path("/proc/self/mountinfo").read_text()
    (found,) = [each for each in hierarchies(cgroup_of(kernel), mounts) if "cpu" in each.controllers]
    file = {1: "cpu.cfs_quota_us", 2: "cpu.max"}[found.version]
    return (found.folder / file).read_text().split()[0]


@bare
async def test_a_kernel_sees_no_cgroup_but_its_own(start_kernel: StartKernel, cgroups: None) -> None:
    kernel = await start_kernel()
    inside = (await kernel.print("print(open('/proc/self/cgroup').read())")).split()
    assert "/cg-" in cgroup_of(kernel)
    assert f"-{kernel.provisioner._folders.runtime.name}" in cgroup_of(kernel)
    assert {line.split(":", 2)[2] for line in inside} == {"/"}


# ---- users of their own ------------------------------------------------------------------------------------


@pytest.fixture
def uids(fork_server: ForkServer) -> KernelUids:
    """Demands that kernels can have uids of their own here."""
    if fork_server.uids is None:
        require(
            "kernel uids", "the gateway is not root, or its file system can't mount files as another user's"
        )
    return fork_server.uids


def uid_of(kernel: RunningKernel) -> int:
    """The uid of a kernel, as the system has it."""
    assert kernel.provisioner.process is not None
    real, effective, saved = psutil.Process(kernel.provisioner.process).uids()
    assert real == effective == saved
    return int(real)


@bare
async def test_each_kernel_has_a_uid_that_nobody_else_has(
    start_kernel: StartKernel, uids: KernelUids
) -> None:
    one, other = await start_kernel(), await start_kernel()
    assert uid_of(other) == uid_of(one) + 1
    assert uid_of(one) >= FIRST
    assert psutil.Process(one.provisioner.process).gids().real == uid_of(one)
    seen = (
        "import os, pathlib; print(os.getuid(), os.getgid(), os.getgroups(), pathlib.Path('.').stat().st_uid)"
    )
    assert await one.print(seen) == "1000 1000 [] 1000\n"
    first = uid_of(one)
    await one.manager.shutdown_kernel(now=True)
    assert uid_of(await start_kernel()) == first, "the uid is not given back"


@bare
async def test_files_stay_the_gateway_s_whichever_uid_their_kernel_has(
    start_kernel: StartKernel, uids: KernelUids, no_leaks: Path
) -> None:
    workspace = no_leaks / "workspace"
    workspace.mkdir(mode=0o700)
    (workspace / "given").write_text("given")
    (workspace / "given").chmod(0o600)
    await start_kernel()
    kernel = await start_kernel(workspace=workspace)
    made = (
        "import os; os.umask(0o077); os.makedirs('a/b'); open('a/b/made', 'w').write('made')\n"
        "with open('given', 'a') as file: file.write(' and more')"
    )
    await kernel.print(made)
    owners = {(path.lstat().st_uid, path.lstat().st_gid) for path in workspace.rglob("*")}
    assert owners == {(os.geteuid(), os.getegid())}
    assert (workspace / "given").read_text() == "given and more"
    before = uid_of(kernel)
    # The kernel is replaced while another has its former uid: the session goes on with another one.
    await kernel.manager.shutdown_kernel(now=True)
    await start_kernel()
    again = await start_kernel(workspace=workspace)
    assert uid_of(again) != before
    assert (
        await again.print("print(open('a/b/made').read(), open('given').read())") == "made given and more\n"
    )
    assert await again.print("import os, shutil; shutil.rmtree('a'); print(os.listdir())") == "['given']\n"
    await again.manager.shutdown_kernel(now=True)
    (workspace / "given").unlink()
    workspace.rmdir()


@bare
async def test_without_a_cgroup_a_kernel_s_own_uid_limits_its_processes(
    start_kernel: StartKernel, fork_server: ForkServer, uids: KernelUids, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork_server, "cgroups", None)
    kernel, other = await start_kernel(limits=ResourceLimits(pids=40)), await start_kernel()
    result = await kernel.run("import subprocess\nfor _ in range(60): subprocess.Popen(['sleep', '600'])")
    assert result.reply["ename"] == "BlockingIOError"
    processes = "import subprocess\nfor _ in range(60): subprocess.Popen(['sleep', '600'])\nprint('started')"
    assert await other.print(processes) == "started\n"


@bare
async def test_kernels_keep_the_gateway_s_uid_if_others_can_t_read_their_modules(
    start_kernel: StartKernel,
    uids: KernelUids,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    understand = forker.understand

    def found_private(message: bytes) -> object:
        said = understand(message)
        return structs.replace(said, private="/opt/private") if isinstance(said, Ready) else said

    monkeypatch.setattr(forker, "understand", found_private)
    kernel = await start_kernel()
    assert kernel.provisioner.way == "fork"
    assert uid_of(kernel) == os.geteuid()
    assert "other users can't read /opt/private" in caplog.text


async def test_user_namespaces_of_few_uids_are_kept(uids: KernelUids) -> None:
    def opened() -> int:
        found = 0
        for link in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):  # the one that lists the folder
                found += link.readlink().name.startswith("user:")
        return found

    taken = [await uids.take() for _ in range(12)]
    assert len({uid.within for uid in taken}) == 12
    assert opened() == 12
    for uid in taken:
        uids.give_back(uid)
    assert opened() == 8
    again = [await uids.take() for _ in range(12)]
    assert {uid.within for uid in again} == {uid.within for uid in taken}
    for uid in again:
        uids.give_back(uid)


async def test_a_file_system_that_can_t_show_files_as_another_s_is_found_out(uids: KernelUids) -> None:
    with pytest.raises(BackendUnavailable, match="files can't be mounted as another user's"):
        await KernelUids.find("tests", [Path("/proc")])


# ---- hostile siblings --------------------------------------------------------------------------------------

ATTACKS = r"""
import ctypes, json, mmap, os, pathlib, signal
libc = ctypes.CDLL(None, use_errno=True)
outcome = {}

def attack(name, function, *arguments):
    try:
        outcome[name] = repr(function(*arguments))
    except Exception as error:
        outcome[name] = type(error).__name__

def call(*arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result = libc.syscall(*words)
    if result < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return result

def enter(kind, flag):
    descriptor = os.open(f"/proc/1/ns/{kind}", os.O_RDONLY)
    if libc.setns(descriptor, flag) < 0:
        raise OSError(ctypes.get_errno(), "refused")

for folder in "/tmp/sessions /tmp/proc /tmp/nothing /proc/1/root/tmp/sessions /newroot /oldroot".split():
    attack("list " + folder, os.listdir, folder)
attack("find the others' folders", lambda: next(
    line for line in open("/proc/self/mountinfo") if OTHER in line))
attack("the zygote's number", os.kill, ZYGOTE, signal.SIGKILL)
attack("the sibling's number", os.kill, SIBLING, signal.SIGKILL)
attack("trace the zygote", call, 101, 16, ZYGOTE, 0, 0)
for kind, flag in (("mnt", 0x20000), ("user", 0x10000000), ("pid", 0x20000000), ("net", 0x40000000)):
    attack("enter the namespace " + kind, enter, kind, flag)
attack("unmount what covers", lambda: libc.umount2(b"/tmp", 2) == 0 or {}["refused"])
attack("move to another cgroup", lambda: open("/sys/fs/cgroup/pids/tasks", "w"))
attack("raise a limit", lambda: __import__("resource").setrlimit(4, (1 << 40, 1 << 40)))
head, all_of_them = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
attack("get a capability", call, 126, head, all_of_them)
attack("map another user", lambda: open("/proc/self/uid_map", "w").write("0 0 1"))
attack("write to what is shared", lambda: open(os.__file__, "r+b"))
attack("write to the root", lambda: open("/file", "w"))
shared = [line for line in open("/proc/self/maps") if line.split()[1] in ("rw-s", "rwxs")]
print(json.dumps([outcome, shared]))
"""


async def test_no_attack_on_zygote_and_siblings_succeeds(start_kernel: StartKernel, no_leaks: Path) -> None:
    sibling, attacker = await start_kernel(), await start_kernel()
    zygote = zygote_of(sibling)
    assert zygote_of(attacker) == zygote
    other = sibling.provisioner._folders.workspace.name  # type: ignore[union-attr]
    names = {"OTHER": other, "ZYGOTE": zygote.pid, "SIBLING": sibling.provisioner.process}
    code = "".join(f"{name} = {value!r}\n" for name, value in names.items())
    outcome, shared = json.loads(await attacker.print(code + ATTACKS))
    assert len(outcome) > 18
    assert {name: result for name, result in outcome.items() if not result.isidentifier()} == {}
    assert "None" not in outcome.values(), outcome
    # Its own, where it keeps its text.
    assert [line.split()[-1] for line in shared] == ["/run/kernel/k-unsent"]
    attacker.send(
        "import os, signal\ntry: os.kill(-1, signal.SIGKILL)\nfinally: os.kill(os.getpid(), signal.SIGKILL)"
    )
    async with asyncio.timeout(60):
        await asyncio.shield(attacker.provisioner.exited)
    assert zygote.is_running()
    assert await sibling.print(ALIVE) == "alive\n"
    third = await start_kernel()
    assert zygote_of(third) == zygote
