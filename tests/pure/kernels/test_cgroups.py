"""Where cgroups are made and what is written to them, on trees of files that stand for the system's."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from cellgate_kernels.errors import BackendUnavailable
from cellgate_kernels.limits import MIB, ResourceLimits
from cellgate_kernels.provisioners import cgroups
from cellgate_kernels.provisioners.cgroups import GATEWAY, Cgroups, Hierarchy, hierarchies

LIMITS = ResourceLimits(memory=256 * MIB, cpus=1.5, pids=40)

BOTH = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
"""
TWO = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
FILES = {
    1: [
        "tasks",
        "memory.limit_in_bytes",
        "memory.memsw.limit_in_bytes",
        "memory.oom_control",
        "pids.max",
        "cpu.cfs_period_us",
        "cpu.cfs_quota_us",
    ],
    2: [
        "cgroup.procs",
        "cgroup.subtree_control",
        "cgroup.controllers",
        "memory.max",
        "memory.swap.max",
        "memory.events",
        "pids.max",
        "cpu.max",
    ],
}


@pytest.mark.parametrize(
    ("own", "mounts", "expected"),
    [
        (
            "4:memory:/a/b\n3:pids:/\n2:cpu,cpuacct:/\n0::/\n",
            BOTH,
            [
                Hierarchy(Path("/sys/fs/cgroup/cpu,cpuacct"), 1, ("cpu",)),
                Hierarchy(Path("/sys/fs/cgroup/memory/a/b"), 1, ("memory",)),
                Hierarchy(Path("/sys/fs/cgroup/pids"), 1, ("pids",)),
            ],
        ),
        (
            "0::/user.slice/gateway.service\n",
            TWO,
            [Hierarchy(Path("/sys/fs/cgroup/user.slice/gateway.service"), 2, ("memory", "pids", "cpu"))],
        ),
        (
            "4:memory:/docker/1\n",
            "35 31 0:32 /docker/1 /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
            [Hierarchy(Path("/sys/fs/cgroup/memory"), 1, ("memory",))],
        ),
        ("1:name=systemd:/\n", "37 31 0:34 / /sys/fs/cgroup/systemd rw - cgroup c rw,name=systemd\n", []),
        (
            "4:memory:/\n0::/\n",
            BOTH,
            [
                Hierarchy(Path("/sys/fs/cgroup/memory"), 1, ("memory",)),
                Hierarchy(Path("/sys/fs/cgroup/unified"), 2, ("pids", "cpu")),
            ],
        ),
    ],
    ids=["both versions", "version 2", "in a container", "none", "some of each"],
)
def test_hierarchies_are_found(own: str, mounts: str, expected: list[Hierarchy]) -> None:
    assert hierarchies(own, mounts) == expected


class System:
    """A tree of files in the place of a system's. Folders that are made in it get a cgroup's files."""

    def __init__(self, root: Path, version: int, own: str, mounts: str) -> None:
        self.root = root
        self.version = version
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(own)
        (root / "proc/self/mountinfo").write_text(mounts)
        for each in hierarchies(own, mounts):
            folder = root / each.folder.relative_to("/")
            folder.mkdir(parents=True)
            self.furnish(folder)

    def furnish(self, folder: Path) -> None:
        for name in FILES[self.version]:
            (folder / name).write_text("memory pids cpu" if name == "cgroup.controllers" else "")

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        mkdir, rmdir = Path.mkdir, Path.rmdir

        def made(folder: Path, *arguments: int, **options: bool) -> None:
            mkdir(folder, *arguments, **options)
            self.furnish(folder)

        def removed(folder: Path) -> None:
            for name in FILES[self.version]:
                (folder / name).unlink()
            rmdir(folder)

        patch.setattr(Path, "mkdir", made)
        patch.setattr(Path, "rmdir", removed)


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    system = System(tmp_path, 1, "4:memory:/a\n3:pids:/\n2:cpu,cpuacct:/\n0::/\n", BOTH)
    system.patch(monkeypatch)
    return system


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> System:
    system = System(tmp_path, 2, "0::/own\n", TWO)
    system.patch(monkeypatch)
    return system


def read(folder: Path, *names: str) -> list[str]:
    return [(folder / name).read_text() for name in names]


def test_a_kernel_gets_its_limits_in_version_1(one: System) -> None:
    found = Cgroups.find("cellgate-1", one.root)
    kernel = found.make("k", LIMITS, reserved=MIB)
    base = one.root / "sys/fs/cgroup"
    memory = base / "memory/a/cellgate-1/k"
    assert read(memory, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes") == [str(257 * MIB)] * 2
    assert read(base / "pids/cellgate-1/k", "pids.max") == ["40"]
    processors = base / "cpu,cpuacct/cellgate-1/k"
    assert read(processors, "cpu.cfs_period_us", "cpu.cfs_quota_us") == ["100000", "150000"]
    descriptors = kernel.open()
    assert [Path(f"/proc/self/fd/{each}").readlink() for each in descriptors] == [
        folder / "tasks" for folder, _ in kernel.folders
    ]
    for each in descriptors:
        os.close(each)
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert not kernel.ran_out_of_memory()
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert kernel.ran_out_of_memory()
    kernel.remove()
    found.close()
    assert not any(base.rglob("cellgate-1"))


def test_a_kernel_gets_its_limits_in_version_2(two: System) -> None:
    found = Cgroups.find("cellgate-1", two.root)
    own = two.root / "sys/fs/cgroup/own"
    assert read(own, "cgroup.subtree_control") == ["+memory +pids +cpu"]
    assert read(own / "cellgate-1", "cgroup.subtree_control") == ["+memory +pids +cpu"]
    kernel = found.make("k", LIMITS)
    folder = own / "cellgate-1/k"
    assert read(folder, "memory.max", "memory.swap.max", "pids.max", "cpu.max") == [
        str(256 * MIB),
        "0",
        "40",
        "150000 100000",
    ]
    (folder / "memory.events").write_text("low 0\noom 1\noom_kill 1\n")
    assert kernel.ran_out_of_memory()
    kernel.remove()
    found.close()
    assert not (own / "cellgate-1").exists()


def busy(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """The system passes no controllers on from a group that has processes."""
    write = cgroups._write

    def refused(file: Path, value: str) -> None:
        if file == folder / "cgroup.subtree_control" and not (folder / GATEWAY).exists():
            raise OSError(errno.EBUSY, "busy")
        write(file, value)

    patch.setattr(cgroups, "_write", refused)


def test_the_gateway_makes_way_where_it_is_alone(two: System, monkeypatch: pytest.MonkeyPatch) -> None:
    own = two.root / "sys/fs/cgroup/own"
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    busy(monkeypatch, own)
    Cgroups.find("cellgate-1", two.root)
    assert read(own / GATEWAY, "cgroup.procs") == [str(os.getpid())]
    assert read(own, "cgroup.subtree_control") == ["+memory +pids +cpu"]


def test_other_programs_are_not_moved(two: System, monkeypatch: pytest.MonkeyPatch) -> None:
    own = two.root / "sys/fs/cgroup/own"
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n{os.getppid()}\n")
    busy(monkeypatch, own)
    with pytest.raises(BackendUnavailable, match="other programs are in the gateway's cgroup"):
        Cgroups.find("cellgate-1", two.root)
    assert not (own / GATEWAY).exists()


def test_a_controller_that_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(tmp_path, 2, "0::/own\n", TWO)
    system.patch(monkeypatch)
    (tmp_path / "sys/fs/cgroup/own/cgroup.controllers").write_text("cpuset cpu io")
    with pytest.raises(BackendUnavailable, match="no cgroups for memory, pids"):
        Cgroups.find("cellgate-1", tmp_path)


def test_where_nothing_can_be_written_it_says_what_to_do(
    two: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(file: Path, value: str) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", str(file))

    monkeypatch.setattr(cgroups, "_write", refused)
    with pytest.raises(BackendUnavailable, match=r"Delegate=yes"):
        Cgroups.find("cellgate-1", two.root)


def test_what_an_earlier_gateway_left_is_removed(one: System) -> None:
    left = one.root / "sys/fs/cgroup/pids/cellgate-1/k"
    left.parent.mkdir()
    left.mkdir()
    Cgroups.find("cellgate-1", one.root)
    assert left.parent.exists()
    assert not left.exists()
