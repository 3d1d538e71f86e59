"""Real kernels: in a branch ``/workspace``, ``/mnt/data`` and ``/home/user`` are the branch's own folder."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import platform
from typing import Any

import pytest

from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace
from cellgate_kernels.forking.server import ForkServer
from cellgate_kernels.keeper.programs import ProgramOutput, ProgramSpec
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.kernel.launcher import KernelLauncher
from cellgate_kernels.launch import names
from tests.gateway.kernels.test_branch import (
    DEADLINE,
    PYTHON3,
    backend,
    copied,
    folders,
    launcher,
    new_launcher,
    parent,
    printed,
)

__all__ = ["backend", "folders", "launcher", "new_launcher", "parent"]  # fixtures

NAMES = ("/workspace", "/mnt/data", "/home/user")
SHARED = BranchSpec(BranchWorkspace.SHARED)


async def shown(kernel: Kernel, expression: str) -> Any:
    """The value of an expression in a kernel, as JSON."""
    return json.loads(await printed(kernel, f"import json, os; print(json.dumps({expression}))"))


async def files_under_all_names(kernel: Kernel) -> list[list[str]]:
    found = await shown(kernel, f"[sorted(os.listdir(name)) for name in {NAMES}]")
    assert isinstance(found, list)
    return found


def files_of(kernel: Kernel) -> list[str]:
    return sorted(path.name for path in kernel.workspace.iterdir())


async def output_of(kernel: Kernel, *argv: str) -> str:
    """What a program beside a kernel writes."""
    program = await kernel.start_program(ProgramSpec(argv))
    said = b""
    try:
        while isinstance(told := await asyncio.wait_for(program.next(), DEADLINE), ProgramOutput):
            said += told.data
    finally:
        program.close()
    return said.decode()


async def test_all_names_are_the_branchs_own(parent: Kernel) -> None:
    (parent.workspace / "first.txt").touch()
    branch = await parent.branch(await copied(parent))
    below = await branch.branch(await copied(branch))
    for number, kernel in enumerate((branch, below)):
        assert kernel.has_own_names
        assert await shown(kernel, "os.getcwd()") == "/workspace"
        for place, name in enumerate(NAMES):
            await printed(kernel, f"open('{name}/{number}{place}', 'w').close()")
        await printed(kernel, f"import subprocess; subprocess.run(['touch', '/mnt/data/{number}run'])")
    names_in = {kernel.id: files_of(kernel) for kernel in (parent, branch, below)}
    assert names_in == {
        parent.id: ["first.txt"],
        branch.id: ["00", "01", "02", "0run", "first.txt"],
        below.id: ["10", "11", "12", "1run", "first.txt"],
    }
    for kernel in (parent, branch, below):
        assert await files_under_all_names(kernel) == [names_in[kernel.id]] * len(NAMES)


async def test_it_stays_where_it_was(parent: Kernel) -> None:
    """In a folder of the workspace, in one elsewhere, and in one that a cell has removed."""
    await printed(parent, "import os; os.makedirs('below/deep'); os.chdir('below/deep')")
    branch = await parent.branch(await copied(parent))
    here = await shown(branch, "{os.getcwd(): os.environ.get('PWD', os.getcwd())}")
    assert here == {"/workspace/below/deep": "/workspace/below/deep"}
    await printed(branch, "open('data', 'w').close(); os.makedirs('/tmp/else'); os.chdir('/tmp/else')")
    assert (branch.workspace / "below/deep/data").exists()
    elsewhere = await branch.branch(await copied(branch))
    assert await shown(elsewhere, "os.getcwd()") == "/tmp/else"
    await printed(elsewhere, "os.mkdir('gone'); os.chdir('gone'); os.rmdir('/tmp/else/gone')")
    lost = await elsewhere.branch(await copied(elsewhere))
    assert await shown(lost, "os.getcwd()") == "/workspace"


async def test_shared_files_have_the_same_names(parent: Kernel) -> None:
    branch = await parent.branch(await copied(parent))
    for owner in (parent, branch):
        shared = await owner.branch(SHARED)
        assert shared.has_own_names
        await printed(shared, f"open('/mnt/data/{shared.id}', 'w').close()")
        assert await files_under_all_names(owner) == [[shared.id]] * len(NAMES)


async def test_programs_beside_it_have_its_names(parent: Kernel) -> None:
    (parent.workspace / "first.txt").write_text("first")
    branch = await parent.branch(await copied(parent))
    below = await branch.branch(await copied(branch))
    await printed(parent, "import os; os.mkdir('bin')")
    for kernel, text in ((branch, "one"), (below, "two")):
        await printed(kernel, f"open('/mnt/data/own.txt', 'w').write('{text}')")
        shown_there = await output_of(
            kernel,
            "sh",
            "-c",
            "pwd; cat /workspace/own.txt; cd /home/user && ls; grep -h Cap /proc/self/status",
        )
        folder, content, *capabilities = shown_there.split("\n", 2)
        assert (folder, content) == ("/workspace", text + "first.txt")
        assert {line.split()[1] for line in capabilities[0].splitlines() if "Cap" in line} == {"0" * 16}
    assert "own.txt" not in await output_of(parent, "ls", "/workspace")


async def test_a_program_that_is_not_there_is_refused(parent: Kernel) -> None:
    branch = await parent.branch(await copied(parent))
    with pytest.raises(Exception, match="No such file"):
        await branch.start_program(ProgramSpec(["no-such-program"]))
    assert await output_of(branch, "/usr/bin/env", "pwd") == "/workspace\n"


async def test_a_kernel_that_goes_back_has_the_names_of_its_files(
    parent: Kernel, launcher: KernelLauncher
) -> None:
    """The branch's own checkpoint, and one that the first session goes on as: twice, one after the other."""
    await printed(parent, "open('/workspace/of', 'w').write('first')")
    going_on, made = parent, []
    for turn in ("one", "two"):
        branch = await going_on.branch(await copied(going_on))
        await printed(branch, f"x = '{turn}'; file = open('/mnt/data/of', 'w'); file.write(x); file.flush()")
        held = await branch.checkpoint()
        back = await launcher.restore(held, SHARED)
        assert await shown(back, "[x, open('/home/user/of').read(), os.getcwd()]") == [
            turn,
            turn,
            "/workspace",
        ]
        going_on = await launcher.restore(held, SHARED, like=parent)
        assert going_on.workspace == parent.workspace
        assert going_on.has_own_names
        assert await shown(going_on, "[x, open('/mnt/data/of').read(), os.getcwd()]") == [
            turn,
            "first",
            "/workspace",
        ]
        assert await output_of(going_on, "cat", "/workspace/of") == "first"
        held.close()
        made += [branch, back, going_on]
    await asyncio.gather(*(kernel.discard() for kernel in made))


async def test_a_file_that_the_parent_had_opened_stays_its_own(
    parent: Kernel, launcher: KernelLauncher
) -> None:
    """Although the branch has another one of that name, also after it went back to a checkpoint."""
    await printed(parent, "file = open('/workspace/log', 'w'); file.write('a'); file.flush()")
    branch = await parent.branch(await copied(parent))
    held = await branch.checkpoint()
    back = await launcher.restore(held, SHARED)
    await printed(back, "file.write('b'); file.flush()")
    held.close()
    await back.discard()
    assert (parent.workspace / "log").read_text() == "ab"
    assert (branch.workspace / "log").read_text() == "a"


# ---- where it can't be had


async def test_without_names_of_its_own_it_has_its_parents(
    parent: Kernel, launcher: KernelLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellgate_kernels.kernel.named.MOST_DEPTH", 3)
    (parent.workspace / "of").write_text("first")
    first = await parent.branch(await copied(parent))
    second = await first.branch(await copied(first))
    third = await second.branch(await copied(second))
    assert [kernel.has_own_names for kernel in (first, second, third)] == [True, True, False]
    await printed(third, "open('own', 'w').close(); open('/mnt/data/its', 'w').close()")
    assert files_of(third) == ["of", "own"]
    assert files_of(second) == ["its", "of"]
    assert await output_of(third, "ls") == "of\nown\n"
    # Whoever goes on as it has its own names again.
    held = await third.checkpoint()
    for like in (second, parent):
        going_on = await launcher.restore(held, SHARED, like=like)
        assert going_on.has_own_names
        assert await shown(going_on, "os.getcwd()") == "/workspace"
        assert await files_under_all_names(going_on) == [files_of(like)] * len(NAMES)
        await going_on.discard()
    held.close()


async def test_a_fork_with_a_second_thread_takes_no_names(parent: Kernel) -> None:
    """A hook that starts one in each fork does not stand in the way of a branch."""
    hook = "threading.Thread(target=threading.Event().wait, daemon=True).start()"
    await printed(parent, f"import os, threading; os.register_at_fork(after_in_child=lambda: {hook})")
    branch = await parent.branch(await copied(parent))
    assert not branch.has_own_names
    assert await shown(branch, "os.getcwd()") == f"/branches/{branch.id}"


async def test_what_can_not_be_made_is_no_branchs_end(
    parent: Kernel, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(wanted: names.NamesRequest) -> names.Names:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(names, "_make", refuse)
    branches = [await parent.branch(await copied(parent)) for _ in range(2)]
    assert [branch.has_own_names for branch in branches] == [False, False]
    told = [record for record in caplog.records if "names of the workspace" in record.message]
    assert [record.levelname for record in told if record.levelname != "DEBUG"] == ["WARNING"]
    caplog.clear()


# ---- attacks

ATTEMPTS = r"""
import ctypes, json, os, struct, subprocess, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.syscall.restype = ctypes.c_long
def outcome(result):
    return "done" if result >= 0 else os.strerror(ctypes.get_errno())
def call(number, *arguments):
    as_words = (ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)
    return outcome(libc.syscall(ctypes.c_long(number), *as_words))
X86 = os.uname().machine == "x86_64"
def refused():
    found = {
        "mount": call(165 if X86 else 40, b"/tmp", b"/workspace", b"", 4096, b""),
        "umount2": call(166 if X86 else 39, b"/workspace", 2),
        "pivot_root": call(155 if X86 else 41, b"/tmp", b"/tmp"),
        "chroot": call(161 if X86 else 51, b"/tmp"),
        "open_tree": call(428, -100, b"/workspace", 1),
        "move_mount": call(429, -100, b"/tmp", -100, b"/workspace", 0),
        "fsopen": call(430, b"tmpfs", 0),
        "fsmount": call(432, 0, 0, 0),
        "mount_setattr": call(442, -100, b"/", 0, struct.pack("QQQQ", 0, 1, 0, 0), 32),
        "unshare users": call(272 if X86 else 97, 0x10000000),
        "unshare mounts": call(272 if X86 else 97, 0x20000),
        "clone users": call(56 if X86 else 220, 0x10000000 | 17, 0, 0, 0, 0),
        "clone mounts": call(56 if X86 else 220, 0x20000 | 17, 0, 0, 0, 0),
        "bpf": call(321 if X86 else 280, 0, b"\0" * 64, 64),
        "perf_event_open": call(298 if X86 else 241, b"\0" * 128, 0, -1, -1, 0),
        "keyctl": call(250 if X86 else 219, 0, -3, 0),
        "add_key": call(248 if X86 else 217, b"user", b"x", b"y", 1, -3),
        "sethostname": call(170 if X86 else 161, b"x", 1),
        "open_by_handle_at": call(304 if X86 else 265, -100, b"\0" * 64, 0),
        "setuid": "done" if libc.setuid(0) == 0 else "Operation not permitted",
        "setgid": "done" if libc.setgid(0) == 0 else "Operation not permitted",
    }
    kinds = {"net": 0x40000000, "pid": 0x20000000, "ipc": 0x8000000, "uts": 0x4000000, "mnt": 0}
    for kind, flag in kinds.items():
        opened = os.open(f"/proc/self/ns/{kind}", os.O_RDONLY)
        found[f"setns {kind}"] = call(308 if X86 else 268, opened, flag)
    limits = ("/proc/sys/user/max_user_namespaces", "/proc/self/oom_score_adj")
    for path in ("/usr/x", "/etc/x", "/run/x", *limits):
        try:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
            found[path] = "done"
        except OSError as error:
            found[path] = error.strerror
    return {name: what for name, what in found.items() if what not in ALLOWED}
ALLOWED = (
    "Operation not permitted", "Function not implemented", "Read-only file system", "Permission denied"
)
def enter(process):
    "What a hostile process gets that enters another's namespaces and keeps all capabilities."
    ends = os.pipe()
    if os.fork() == 0:
        try:
            users = os.open(f"/proc/{process}/ns/user", os.O_RDONLY)
            mounts = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY)
            said = [outcome(libc.setns(users, 0x10000000)), outcome(libc.setns(mounts, 0x20000))]
            held = [line for line in open("/proc/self/status") if line.startswith("CapEff")][0].split()[1]
            try:
                open("/workspace/planted", "w").close()
                capability = struct.pack("<6I", 0x3000001, 1 << 21, 0, 0, 0, 1000)
                os.setxattr("/workspace/planted", "security.capability", capability)
                said.append("done")
            except OSError as error:
                said.append(error.strerror)
            os.write(ends[1], json.dumps([said, int(held, 16) != 0, refused()]).encode())
        except BaseException as error:
            os.write(ends[1], json.dumps([repr(error)]).encode())
        finally:
            os._exit(0)
    os.wait()
    return json.loads(os.read(ends[0], 65536))
"""

known_numbers = pytest.mark.skipif(
    platform.machine() not in ("x86_64", "aarch64"), reason="no filter for this architecture"
)


@known_numbers
async def test_nothing_leads_out_of_a_branch(parent: Kernel) -> None:
    """Not for its code, nor for its parent's, which enters its namespaces and keeps all capabilities."""
    branch, said = await leads_out_of_a_branch(parent)
    if os.geteuid() == 0:  # its files are root's here
        assert said == "Operation not supported"
        assert "security.capability" not in os.listxattr(branch.workspace / "planted")


async def leads_out_of_a_branch(parent: Kernel) -> tuple[Kernel, str]:
    """Checks that nothing does; returns a branch, and how it was told about capabilities of files there."""
    branch = await parent.branch(await copied(parent))
    await printed(parent, ATTEMPTS)
    await printed(branch, ATTEMPTS)
    first, own = await shown(parent, "os.getpid()"), await shown(branch, "os.getpid()")
    for kernel in (parent, branch):
        assert await shown(kernel, "refused()") == {}
        lines = await shown(kernel, "[l.split()[1] for l in open('/proc/self/status') if l[:3] == 'Cap']")
        assert set(lines) == {"0" * 16}
    # Upwards there is no way: not to the keeper's or the parent's mounts, and not to its own once more.
    refused = {"Operation not permitted", "Invalid argument"}
    for process in (1, first):
        (error,) = await shown(branch, f"enter({process})")
        assert error == "PermissionError(13, 'Permission denied')"
    said, holds_capabilities, _ = await shown(branch, f"enter({own})")
    assert set(said[:2]) <= refused
    assert not holds_capabilities
    said, holds_capabilities, done = await shown(parent, f"enter({own})")
    assert said[:2] == ["done", "done"]
    assert holds_capabilities
    assert done == {}
    return branch, said[2]


FILL = """
import os, signal, time
children = []
try:
    while len(children) < 2000:
        child = os.fork()
        if child == 0:
            time.sleep(1000)
            os._exit(0)
        children.append(child)
except OSError as error:
    print(error.strerror)
"""


async def test_processes_of_branches_are_counted_together(
    launcher: KernelLauncher, fork_server: ForkServer | None, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of processes is one for the sandbox, also without a cgroup: a branch brings no other."""
    if os.geteuid() == 0 and backend == "sandbox":
        pytest.skip("root's processes are not counted against RLIMIT_NPROC")
    if fork_server is not None:
        monkeypatch.setattr(fork_server, "cgroups", None)
    kernel = await launcher.start(PYTHON3)
    branch = await kernel.branch(await copied(kernel))
    assert branch.has_own_names
    for full, other in ((kernel, branch), (branch, kernel)):
        assert await printed(full, FILL) == "Resource temporarily unavailable\n"
        counted = await printed(other, FILL + "print(len(children) < 20)")
        assert counted == "Resource temporarily unavailable\nTrue\n"
        for each in (full, other):
            await printed(each, "for child in children: os.kill(child, 9); os.waitpid(child, 0)")
    await branch.discard()
    await kernel.discard()
