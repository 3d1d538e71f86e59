"""The walls that namespaces do not give: filters of system calls, what is hidden in /proc, set-ID files, the
score by which the system chooses whom it ends. On every level; see the table in docs/explanation/security.md.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import platform
import re
import stat
import struct
from pathlib import Path
from typing import Any

import pytest
from docker.api.client import APIClient

from cellgate_kernels.engine.profile import engine_profile
from cellgate_kernels.launch.base import OOM_SCORE
from cellgate_kernels.limits.disk import CountedFolder, usage
from cellgate_kernels.testing.backend import StartKernel
from cellgate_kernels.walls.seccomp import UNKNOWN_CALLS, sandbox_filter
from cellgate_kernels.walls.set_id import clear_set_id, clear_set_ids
from cellgate_kernels.walls.system_calls import allowed_calls
from tests.support.kernels import CONTAINERS, FORK, containers_of

x86_64_only = pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86_64")

# What probes in kernels share.
HELPERS = r"""
import ctypes, errno, json, os, pathlib, socket, stat, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)

def call(*arguments):
    words = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    if libc.syscall(*words) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

def in_child(function):
    pid = os.fork()
    if pid == 0:
        try:
            function()
        except OSError as error:
            os._exit(error.errno)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    if os.WIFSIGNALED(status):
        return f"signal {os.WTERMSIG(status)}"
    return errno.errorcode.get(os.WEXITSTATUS(status), "done")
"""


@pytest.fixture(params=["sandbox", FORK])
def backend(sandbox: None, request: pytest.FixtureRequest) -> str:
    """Those of this machine; containers have a module of their own."""
    return str(request.param)


async def probe(start_kernel: StartKernel, code: str, **options: Any) -> Any:
    kernel = await start_kernel(**options)
    return json.loads(await kernel.print(HELPERS + code))


FAMILIES = r"""
def opened(make, *arguments):
    try:
        for made in make(*arguments) if make is socket.socketpair else [make(*arguments)]:
            made.close()
    except OSError:
        return False
    return True

kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET)
print(json.dumps({
    "sockets": [f for f in range(64) if any(opened(socket.socket, f, k) for k in kinds)],
    "pairs": [f for f in range(64) if any(opened(socket.socketpair, f, k) for k in kinds)],
    "netlink": [p for p in range(32) if opened(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW, p)],
}))
"""


async def test_sockets_are_of_a_few_families_and_none_leaves_the_network_namespace(
    start_kernel: StartKernel, backend: str
) -> None:
    # Those of gVisor are all its own, the one for news of devices too, which never has any.
    netlink = [0, 15] if backend == "gvisor" else [0]
    expected = {"sockets": [1, 2, 10, 16], "pairs": [1], "netlink": netlink}
    assert await probe(start_kernel, FAMILIES) == expected


# Machine code that makes a socket of AF_VSOCK by the system calls of i386 (socket and socketcall) and of x32.
OTHER_ABIS = r"""
import mmap
vsock, stream = 40, 1

def run(code):
    memory = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    made = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()
    # gVisor takes these numbers for those of its only ABI; what it answers need not be a socket.
    if made < 0 or socket.socket(fileno=made).family != vsock:
        raise OSError(errno.EPERM, "refused")

def mov(register, value):
    return bytes([0xB8 + register]) + struct.pack("<I", value)

# Below 4 GiB, where i386 can read it: the arguments of socketcall.
low = libc.mmap
low.restype = ctypes.c_void_p
place = low(None, 4096, 3, 0x62, -1, 0)
ctypes.memmove(place, struct.pack("<III", vsock, stream, 0), 12)
ax, cx, dx, bx = 0, 1, 2, 3
push, pop = b"\x53", b"\x5b"
int80, fast, ret = b"\xcd\x80", b"\x0f\x05", b"\xc3"
print(json.dumps({
    "i386 socket": in_child(
        lambda: run(push + mov(ax, 359) + mov(bx, vsock) + mov(cx, stream) + mov(dx, 0) + int80 + pop + ret)
    ),
    "i386 socketcall": in_child(
        lambda: run(push + mov(ax, 102) + mov(bx, 1) + mov(cx, place) + int80 + pop + ret)
    ),
    "x32": in_child(lambda: call(0x40000000 | 41, vsock, stream, 0)),
}))
"""


@x86_64_only
async def test_no_other_abi_makes_the_sockets_that_the_first_one_refuses(start_kernel: StartKernel) -> None:
    outcome = await probe(start_kernel, OTHER_ABIS)
    assert [name for name, result in outcome.items() if result == "done"] == []


CALLS = r"""
buffer = ctypes.create_string_buffer(256)
thread = 0x100 | 0x800 | 0x10000  # CLONE_VM, CLONE_SIGHAND, CLONE_THREAD
stack = ctypes.create_string_buffer(65536)
top = (ctypes.addressof(stack) + 65536 - 256) & ~15
outcome = {
    "io_uring": attempt(call, 425, 8, buffer),
    "io_setup": attempt(call, 206, 1, ctypes.create_string_buffer(8)),
    "add_key": attempt(call, 248, b"user", b"a", b"x", 1, -3),
    "keyctl": attempt(call, 250, 0, -3, 0, 0, 0),
    "bpf": attempt(call, 321, 0, buffer, 0),
    "perf_event_open": attempt(call, 298, buffer, 0, -1, -1, 0),
    "userfaultfd": attempt(call, 323, 0),
    "fanotify_init": attempt(call, 300, 0x200, 0),
    "unshare a user": attempt(call, 272, 0x10000000),
    "unshare files": attempt(call, 272, 0x400),
    "clone a user": in_child(lambda: call(56, 0x10000000 | 17, 0, 0, 0, 0)),
    "clone3": attempt(call, 435, 0, 0),
    "setns": attempt(call, 308, 0, 0),
    "fsopen": attempt(call, 430, b"tmpfs", 0),
    "open_tree": attempt(call, 428, -100, b"/", 1),
    "mount_setattr": attempt(call, 442, -100, b"/", 0, buffer, 32),
    "a thread with files of its own": in_child(lambda: call(56, thread, top, 0, 0, 0)),
    "close_range into a table of one's own": in_child(lambda: call(436, 1000, 1001, 2)),
    "syslog": attempt(call, 103, 3, buffer, 100),
    "open_by_handle_at": attempt(call, 304, -100, buffer, 0),
}
filtered = {}
for folder in pathlib.Path("/proc").glob("[0-9]*"):
    fields = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    filtered[folder.name] = (fields["Seccomp"].strip(), fields["CapBnd"].strip())
print(json.dumps([outcome, sorted(set(filtered.values())), "1" in filtered]))
"""


@x86_64_only
async def test_calls_that_lead_out_are_refused_and_every_process_is_filtered(
    start_kernel: StartKernel,
) -> None:
    await calls_are_filtered(start_kernel)


async def calls_are_filtered(start_kernel: StartKernel) -> None:
    outcome, filtered, first = await probe(start_kernel, CALLS)
    expected = dict.fromkeys(outcome, "EPERM") | {"clone3": "ENOSYS"}
    assert outcome == expected
    assert (filtered, first) == ([["2", "0" * 16]], True)


SET_ID = r"""
S = 0o6755
os.chdir("/workspace")
for name in ("a", "b", "c"):
    open(name, "w").close()
fd = os.open("b", os.O_RDONLY)
how = struct.pack("QQQ", os.O_CREAT | os.O_WRONLY, S, 0)
def quiet(make):
    # What was made without the bits is no success.
    before = {n: os.stat(n).st_mode for n in os.listdir(".")}
    result = attempt(make)
    after = {n: os.stat(n).st_mode for n in os.listdir(".")}
    gained = [n for n, mode in after.items() if mode & 0o6000 and before.get(n) != mode]
    return "gained" if gained else result
numbers = {"x86_64": (437, 452), "aarch64": (437, 452)}[os.uname().machine]
print(json.dumps({
    "chmod": quiet(lambda: os.chmod("a", S)),
    "chmod by setuid alone": quiet(lambda: os.chmod("a", 0o4755)),
    "chmod by setgid alone": quiet(lambda: os.chmod("a", 0o2755)),
    "fchmod": quiet(lambda: os.fchmod(fd, S)),
    "fchmodat2": quiet(lambda: call(numbers[1], -100, b"c", S, 0)),
    "open": quiet(lambda: os.open("d", os.O_CREAT | os.O_WRONLY, S)),
    "a file without a name": quiet(
        lambda: os.link(
            f"/proc/self/fd/{os.open('.', os.O_TMPFILE | os.O_WRONLY, S)}", "g", follow_symlinks=True
        )
    ),
    "openat2": quiet(lambda: call(numbers[0], -100, b"e", how, 24)),
    "mknod": quiet(lambda: os.mknod("f", stat.S_IFREG | S)),
    "a capability": attempt(
        os.setxattr, "a", "security.capability", struct.pack("<5I", 0x2000001, 1 << 21, 0, 0, 0)
    ),
}))
"""


async def test_no_set_id_file_survives_in_a_workspace(
    start_kernel: StartKernel, backend: str, tmp_path: Path
) -> None:
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    outcome = await probe(start_kernel, SET_ID, workspace=workspace)
    if backend == "gvisor":  # which makes some of them, and has no filter: they are found on the next look
        del outcome["a capability"]
        assert "gained" in outcome.values()
        for _ in range(300):
            if set_id_files(workspace):
                await asyncio.sleep(0.1)
    else:
        refusals = {outcome.pop("a capability")}
        assert refusals <= {"EPERM", "ENOTSUP"}
        assert set(outcome.values()) <= {"EPERM", "ENOSYS"}, outcome
    assert set_id_files(workspace) == []
    assert not any("security.capability" in os.listxattr(path) for path in workspace.iterdir())


def set_id_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.lstat().st_mode & (stat.S_ISUID | stat.S_ISGID)]


SPACE = r"""
os.chdir("/workspace")
file = os.open("space", os.O_CREAT | os.O_RDWR)
number = {"x86_64": 285, "aarch64": 47}[os.uname().machine]
MIB, KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1 << 20, 1, 2, 16
modes = {"space": 0, "beyond the end": KEEP_SIZE, "zeros": ZERO_RANGE, "both": ZERO_RANGE | KEEP_SIZE}
given = {name: attempt(call, number, file, mode, 0, MIB) for name, mode in modes.items()}
given["by the C library"] = attempt(os.posix_fallocate, file, 0, MIB)
written = os.fstat(file)
hole = attempt(call, number, file, PUNCH_HOLE | KEEP_SIZE, 0, MIB // 2)
print(json.dumps([given, [written.st_size, written.st_blocks * 512 >= MIB], hole]))
"""


async def test_space_for_files_is_had_by_writing_to_them(start_kernel: StartKernel, backend: str) -> None:
    """Else a cell had all of the disk before anybody looks."""
    given, written, hole = await probe(start_kernel, SPACE)
    written_instead = given.pop("by the C library")
    if backend == "gvisor":  # runsc of 2022 answers all that a filter refuses with EPERM, and makes no holes
        assert given == dict.fromkeys(given, "EPERM")
        assert (written_instead, written, hole) == ("EPERM", [0, False], "ENOTSUP")
    else:
        assert given == dict.fromkeys(given, "ENOTSUP")
        assert (written_instead, written, hole) == ("done", [1 << 20, True], "done")


LEASES = r"""
import fcntl, threading
os.chdir("/workspace")
file = os.open("held", os.O_CREAT | os.O_RDWR)
SETDELEG = 1040
print(json.dumps({
    "to write": attempt(fcntl.fcntl, file, fcntl.F_SETLEASE, fcntl.F_WRLCK),
    "to read": attempt(fcntl.fcntl, os.open("held", os.O_RDONLY), fcntl.F_SETLEASE, fcntl.F_RDLCK),
    "delegation": attempt(fcntl.fcntl, file, SETDELEG, b"\0" * 16),
    "a lock": attempt(fcntl.lockf, file, fcntl.LOCK_EX),
    "the flags": attempt(fcntl.fcntl, file, fcntl.F_SETFL, os.O_APPEND),
    "a copy": attempt(fcntl.fcntl, file, fcntl.F_DUPFD_CLOEXEC, 10),
    "a pipe's size": attempt(fcntl.fcntl, os.pipe()[0], 1031, 65536),
}))
"""


async def test_nobody_can_hold_a_file_for_which_others_wait(start_kernel: StartKernel, backend: str) -> None:
    """The gateway opens it, for example, and the system makes it wait for 45 seconds."""
    outcome = await probe(start_kernel, LEASES)
    held = {outcome.pop(name) for name in ("to write", "to read", "delegation")}
    assert held == ({"EINVAL"} if backend == "gvisor" else {"EPERM"})  # which gVisor does not have
    assert outcome == dict.fromkeys(outcome, "done")


PROC = r"""
shown = (
    "cgroups cpuinfo devices diskstats filesystems loadavg meminfo mounts net self stat swaps sys sysvipc"
    " thread-self uptime version vmstat sentry-meminfo".split()
)
told = []
for path in pathlib.Path("/proc").iterdir():
    if path.name in shown or path.name.isdecimal():
        continue
    try:
        if list(path.iterdir()) if path.is_dir() else path.read_bytes():
            told.append(path.name)
    except OSError:
        pass
print(json.dumps(told))
"""


async def test_proc_tells_of_the_kernels_own_processes_and_little_of_the_machine(
    start_kernel: StartKernel, backend: str
) -> None:
    told = await probe(start_kernel, PROC)
    assert told == (["cmdline"] if backend == "gvisor" else [])  # gVisor's own, not the machine's


SCORE = r"""
def write(path, value):
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, value)
    finally:
        os.close(descriptor)

names = ("oom_score_adj", "oom_adj")
print(json.dumps({
    "tried": [attempt(write, f"/proc/{p}/{n}", v)
              for p in ("self", "1") for n in names for v in (b"0", b"-1000", b"499")],
    "score": open("/proc/self/oom_score_adj").read().strip(),
}))
"""


async def test_a_cell_cant_lower_its_score_for_running_out_of_memory(
    start_kernel: StartKernel, backend: str
) -> None:
    kernel = await start_kernel()
    outcome = json.loads(await kernel.print(HELPERS + SCORE))
    if backend != "gvisor":  # whose own files of that name mean nothing to the host
        assert outcome["score"] == str(OOM_SCORE)
        assert set(outcome["tried"]) <= {"EROFS", "EACCES", "EPERM"}
    if backend in CONTAINERS:
        assert score_outside(str(kernel.manager.kernel_id)) == OOM_SCORE


def score_outside(kernel_id: str) -> int:
    """The score of a container's first process, as the host has it."""
    client = APIClient()
    try:
        (name,) = containers_of([kernel_id])
        process = client.inspect_container(name)["State"]["Pid"]
    finally:
        client.close()
    return int(Path(f"/proc/{process}/oom_score_adj").read_text())


# ---- the filter, without a kernel --------------------------------------------------------------------------


def run_filter(program: bytes, number: int, arguments: tuple[int, ...], audit: int) -> int:
    """What the system's machine for such filters would answer."""
    steps = list(struct.iter_unpack("=HBBI", program))
    data = struct.pack("<iIQ6Q", number, audit, 0, *arguments, *[0] * (6 - len(arguments)))
    at = accumulator = 0
    while True:
        code, if_true, if_false, value = steps[at]
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
        elif code == 0x06:
            return int(value)
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: accumulator & value != 0}
            at += if_true if holds[code] else if_false


ALLOWED = 0x7FFF0000
ONLY_32_BIT = re.compile("64$|^arm_|^sync_file_range2$|^breakpoint$|^cacheflush$|^set_tls$")
X86, ARM = 0xC000003E, 0xC00000B7


@pytest.mark.parametrize(
    ("machine", "audit", "number", "arguments", "error"),
    [
        ("x86_64", X86, 41, (1, 1, 0), 0),
        ("x86_64", X86, 41, (16, 3, 0), 0),
        ("x86_64", X86, 41, (16, 3, 9), errno.EAFNOSUPPORT),
        ("x86_64", X86, 41, (40, 1, 0), errno.EAFNOSUPPORT),
        ("x86_64", X86, 41, (1 << 32 | 40, 1, 0), errno.EAFNOSUPPORT),
        ("x86_64", X86, 53, (40, 1, 0), errno.EAFNOSUPPORT),
        ("x86_64", 0x40000003, 359, (40, 1, 0), errno.EPERM),
        ("x86_64", X86, 0x40000029, (1, 1, 0), errno.EPERM),
        ("x86_64", X86, 90, (0, 0o755), 0),
        ("x86_64", X86, 90, (0, 0o4755), errno.EPERM),
        ("x86_64", X86, 90, (0, 1 << 32 | 0o2755), errno.EPERM),
        ("x86_64", X86, 2, (0, os.O_CREAT, 0o4755), errno.EPERM),
        ("x86_64", X86, 2, (0, os.O_RDONLY, 0o4755), 0),
        ("x86_64", X86, 257, (0, 0, os.O_TMPFILE | os.O_WRONLY, 0o2755), errno.EPERM),
        ("x86_64", X86, 257, (0, 0, os.O_DIRECTORY, 0o7777), 0),
        ("x86_64", X86, 56, (0x50F00,), 0),  # a thread, as the C library makes it
        ("x86_64", X86, 56, (0x50B00,), errno.EPERM),
        ("x86_64", X86, 56, (0x1200011,), 0),  # fork
        ("x86_64", X86, 56, (0x10000011,), errno.EPERM),
        ("x86_64", X86, 436, (3, 100, 0), 0),
        ("x86_64", X86, 436, (3, 100, 2), errno.EPERM),
        ("x86_64", X86, 285, (3, 0, 0, 1 << 30), errno.EOPNOTSUPP),
        ("x86_64", X86, 285, (3, 1 << 32 | 1, 0, 1 << 30), errno.EOPNOTSUPP),
        ("x86_64", X86, 285, (3, 3, 0, 1 << 30), 0),
        ("x86_64", X86, 72, (3, 1024, 1), errno.EPERM),  # F_SETLEASE
        ("x86_64", X86, 72, (3, 1 << 32 | 1024, 1), errno.EPERM),
        ("x86_64", X86, 72, (3, 1040, 0), errno.EPERM),  # F_SETDELEG
        ("x86_64", X86, 72, (3, 1025), 0),
        ("x86_64", X86, 72, (3, 4, 0), 0),
        ("x86_64", X86, 437, (), errno.ENOSYS),
        ("x86_64", X86, 425, (), errno.EPERM),
        ("x86_64", X86, 0, (), 0),
        ("x86_64", X86, 312, (), errno.EPERM),  # kcmp, which nobody has named
        ("x86_64", X86, 165, (), errno.EPERM),
        ("x86_64", X86, 467, (), errno.EPERM),
        ("x86_64", X86, 468, (), errno.ENOSYS),
        ("x86_64", X86, 135, (0xFFFFFFFF,), 0),
        ("x86_64", X86, 135, (0x40000,), errno.EPERM),
        ("aarch64", ARM, 198, (40, 1, 0), errno.EAFNOSUPPORT),
        ("aarch64", ARM, 198, (2, 1, 0), 0),
        ("aarch64", ARM, 53, (0, 0, 0o4755), errno.EPERM),
        ("aarch64", ARM, 56, (0, 0, os.O_CREAT, 0o4755), errno.EPERM),
        ("aarch64", ARM, 33, (0, 0, 0o4755), errno.EPERM),
        ("aarch64", ARM, 220, (0x50B00,), errno.EPERM),
        ("aarch64", ARM, 47, (3, 0, 0, 1 << 30), errno.EOPNOTSUPP),
        ("aarch64", ARM, 25, (3, 1024, 1), errno.EPERM),
        ("aarch64", ARM, 25, (3, 1030, 0), 0),
        ("aarch64", 0x40000028, 281, (40, 1, 0), errno.EPERM),
        ("aarch64", ARM, 64, (), 0),
        ("aarch64", ARM, 40, (), errno.EPERM),
        ("aarch64", ARM, 500, (), errno.ENOSYS),
    ],
)
def test_the_filter_decides_by_arguments(
    machine: str, audit: int, number: int, arguments: tuple[int, ...], error: int
) -> None:
    program = sandbox_filter(machine)
    assert program is not None
    expected = 0x00050000 | error if error else ALLOWED
    assert run_filter(program, number, arguments, audit) == expected


def test_the_sandbox_allows_what_containers_are_allowed() -> None:
    profile = json.loads(engine_profile(names=True))
    rules = [rule for rule in profile["syscalls"] if rule["action"] == "SCMP_ACT_ALLOW"]
    arches = {None, "amd64", "arm64"}
    named = {
        name
        for rule in rules
        if arches & set(rule.get("includes", {}).get("arches", [None]))
        for name in rule["names"]
    }
    ours = set().union(*allowed_calls().values())
    assert ours - named == {*UNKNOWN_CALLS}  # answered as an older system would
    assert {name for name in named - ours if not ONLY_32_BIT.search(name)} == set()


def test_the_engines_profile_lets_nobody_hold_a_file() -> None:
    rules = [rule for rule in json.loads(engine_profile())["syscalls"] if "fcntl" in rule["names"]]
    allowed = [rule["args"] for rule in rules if rule["action"] == "SCMP_ACT_ALLOW"]
    equal = {arg["value"] for (arg,) in allowed if arg["op"] == "SCMP_CMP_EQ" and arg["index"] == 1}
    below = {arg["value"] for (arg,) in allowed if arg["op"] == "SCMP_CMP_LT" and arg["index"] == 1}
    assert below == {1024}
    assert equal == set(range(1025, 1040))
    assert len(allowed) == len(equal) + len(below)


def rules_for(call: str, *, names: bool) -> list[list[dict[str, Any]]]:
    """The conditions of each rule of the engine's profile that allows a call."""
    rules = json.loads(engine_profile(names=names))["syscalls"]
    return [rule["args"] for rule in rules if call in rule["names"] and rule["action"] == "SCMP_ACT_ALLOW"]


def test_containers_have_no_calls_for_names_unless_branches_get_some() -> None:
    assert rules_for("setns", names=False) == []
    assert rules_for("ioctl", names=False) == [[]]


def test_who_may_enter_namespaces_is_shown_no_others() -> None:
    """Of all requests of ioctl(2), whatever their other bits are, those of two types are refused."""
    entered = [(each["index"], each["value"], each["op"]) for (each,) in rules_for("setns", names=True)]
    assert entered == [(1, 0x10000000, "SCMP_CMP_EQ"), (1, 0x20000, "SCMP_CMP_EQ")]
    conditions = [condition for (condition,) in rules_for("ioctl", names=True)]
    assert {(each["index"], each["op"]) for each in conditions} == {(1, "SCMP_CMP_MASKED_EQ")}
    refused = {
        kind
        for kind in range(256)
        for request in (kind << 8, 0xFFFFFFFF_FFFF00FF | kind << 8)
        if not any(request & each["value"] == each["valueTwo"] for each in conditions)
    }
    assert refused == {0xB7, 0xFF}


# ---- set-ID files that are there all the same --------------------------------------------------------------


def test_a_look_takes_set_id_bits_away_and_follows_no_link(tmp_path: Path) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "workspace"
    (workspace / "folder").mkdir(parents=True)
    outside.touch()
    inside = workspace / "folder" / "file"
    inside.touch()
    for path in (outside, inside):
        path.chmod(0o6755)
    (workspace / "link").symlink_to(outside)
    (workspace / "away").symlink_to(tmp_path)
    usage([CountedFolder(workspace)], None, enough=1 << 20)
    # What a race would do: the name leads elsewhere by the time that it is opened.
    clear_set_id(str(workspace / "away" / "outside"), workspace)
    assert stat.S_IMODE(inside.stat().st_mode) == 0o755
    assert stat.S_IMODE(outside.stat().st_mode) == 0o6755
    inside.chmod(0o4700)
    deep = workspace / "/".join("d" * 200)
    deep.mkdir(parents=True)
    (deep / "file").touch()
    (deep / "file").chmod(0o2755)
    clear_set_ids(workspace)
    assert stat.S_IMODE((deep / "file").stat().st_mode) == 0o755
    assert stat.S_IMODE(inside.stat().st_mode) == 0o700
    assert stat.S_IMODE(outside.stat().st_mode) == 0o6755
