"""What tests of sleeping kernels share: swap, kernels' control groups, and a way to run out of memory."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.limits.cgroups import Cgroups
from cellgate_kernels.limits.control_group import ControlGroup
from tests.support.requirements import require
from tests.support.server import GatewayProcess, until

MIB = 1024 * 1024
SWAP = 1024 * MIB
_SWAP_LOCK = Path("/tmp/cellgate-tests-swap.lock")
"""Of all runs on this machine: its swap is one."""
AFTER = 1.0
"""Seconds after which kernels sleep in these tests."""

Groups = Callable[[GatewayProcess], list[ControlGroup]]

# Enters a group and fills its memory, until the system has ended one of its other processes. The system
# chooses the process that holds most, so the intruder must have room for little.
_INTRUDER = """
import pathlib, sys
members, *others = map(pathlib.Path, sys.argv[1:])
members.write_text("0")
hoard = []
while set(map(str, others)) <= set(members.read_text().split()):
    hoard.append(bytearray(b"x") * (1 << 20))
"""


@pytest.fixture
def swap(tmp_path: Path) -> Iterator[None]:
    """A swap file; afterwards all that is in it is read back, and it is gone.

    The machine's only one: what other tests' kernels had put into it would come back to their memory too.
    """
    with _SWAP_LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield from _swap_file(tmp_path / "swap")


def _swap_file(file: Path) -> Iterator[None]:
    with file.open("wb") as made:
        os.posix_fallocate(made.fileno(), 0, SWAP)
    file.chmod(0o600)
    subprocess.run(["mkswap", file], check=True, capture_output=True, timeout=60)
    turned_on = subprocess.run(["swapon", file], check=False, capture_output=True, text=True, timeout=60)
    if turned_on.returncode:
        file.unlink()
        require("swap", turned_on.stderr.strip())
    yield
    subprocess.run(["swapoff", file], check=True, capture_output=True, timeout=120)
    file.unlink()


def require_freezing() -> None:
    """Skip the test unless forked kernels in sandboxes can be frozen here."""
    try:
        found = Cgroups.find(f"cellgate-test-{os.getpid()}", freezing=True)
    except BackendUnavailable as error:
        require("cgroups", error.message)
    can_sleep = any(hierarchy.version == 2 for _, hierarchy in found._parents)
    found.close()
    if not can_sleep:
        require("version 2 of cgroups", "nothing else freezes processes that can be killed")


def groups_of_processes(processes: Iterable[int]) -> list[ControlGroup]:
    """The groups that some of these processes have to themselves, each once."""
    found = (ControlGroup.of(process) for process in processes)
    return list(dict.fromkeys(group for group in found if group is not None))


def until_asleep(gateway: GatewayProcess, *sessions: str) -> None:
    """Wait until all these sessions are asleep."""
    for session in sessions:
        until(lambda name=session: gateway.model(name)["state"] == "asleep", f"{session} does not sleep")


def run_out_of_memory(group: ControlGroup) -> None:
    """Let the system end a process of a group that sleeps, because it may have no more memory."""
    folder = group.memory.folder
    if group.memory.version == 2:
        (folder / "memory.max").write_text("0")
        return
    (folder / "memory.limit_in_bytes").write_text(str(group.memory_used() + 16 * MIB))
    # Swap counts too: filling a gigabyte of it takes minutes where the disk is slow.
    held = int((folder / "memory.memsw.usage_in_bytes").read_text())
    (folder / "memory.memsw.limit_in_bytes").write_text(str(held + 16 * MIB))
    words = [folder / "cgroup.procs", *map(str, group.processes())]
    ended = subprocess.run([sys.executable, "-c", _INTRUDER, *words], check=False, timeout=60)
    # What was ended first may still hold its memory, and then it is the intruder's turn too.
    assert ended.returncode in (0, -signal.SIGKILL)
