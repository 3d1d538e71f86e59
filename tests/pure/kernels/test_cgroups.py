"""Where cgroups are made and what is written to them, on trees of files that stand for the system's."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from cellgate_kernels.base.errors import BackendUnavailable
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.limits import cgroups
from cellgate_kernels.limits.cgroups import GATEWAY, Cgroups, Hierarchy, hierarchies

LIMITS = ResourceLimits(memory=256 * MIB, cpus=1.5, pids=40)

BOTH = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
39 31 0:36 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
"""
APART = BOTH.replace("/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct", "/cpu rw - cgroup cgroup rw,cpu") + (
    "33 31 0:30 / /sys/fs/cgroup/cpuacct rw - cgroup cgroup rw,cpuacct\n"
)
NAMELESS = "90 23 0:70 / /mnt rw,relatime - tmpfs  rw,size=64k\n"
TWO = "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
FILES = {
    1: [
        "tasks",
        "cgroup.procs",
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
        "memory.current",
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
                Hierarchy(Path("/sys/fs/cgroup/unified"), 2, ()),
            ],
        ),
        (
            "0::/user.slice/gateway.service\n",
            NAMELESS + TWO,
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
        (
            "0::/\n",
            "50 31 0:40 / /mnt rw - tmpfs  rw\n" + TWO,
            [Hierarchy(Path("/sys/fs/cgroup"), 2, ("memory", "pids", "cpu"))],
        ),
    ],
    ids=["both versions", "version 2", "in a container", "none", "some of each", "a mount without a name"],
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

    def files(self, folder: Path) -> list[str]:
        return FILES[2 if "unified" in folder.parts else self.version]

    def furnish(self, folder: Path) -> None:
        for name in self.files(folder):
            (folder / name).write_text("memory pids cpu" if name == "cgroup.controllers" else "")

    def patch(self, patch: pytest.MonkeyPatch) -> None:
        mkdir, rmdir = Path.mkdir, Path.rmdir

        def made(folder: Path, *arguments: int, **options: bool) -> None:
            mkdir(folder, *arguments, **options)
            self.furnish(folder)

        def removed(folder: Path) -> None:
            for name in self.files(folder):
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
    found = Cgroups.find("cellgate-1", one.root, freezing=True)
    kernel = found.make("k", LIMITS, reserved=MIB)
    base = one.root / "sys/fs/cgroup"
    memory = base / "memory/a/cellgate-1/k"
    assert read(memory, "memory.limit_in_bytes", "memory.memsw.limit_in_bytes") == [str(257 * MIB)] * 2
    assert read(base / "pids/cellgate-1/k", "pids.max") == ["40"]
    processors = base / "cpu,cpuacct/cellgate-1/k"
    assert read(processors, "cpu.cfs_period_us", "cpu.cfs_quota_us") == ["100000", "150000"]
    descriptors = kernel.open()
    assert [Path(f"/proc/self/fd/{each}").readlink() for each in descriptors] == [
        folder / {1: "tasks", 2: "cgroup.procs"}[version] for folder, version in kernel.folders
    ]
    for each in descriptors:
        os.close(each)
    freezing = base / "unified/cellgate-1/k"
    assert freezing in [folder for folder, _ in kernel.folders]
    assert read(freezing, "memory.max", "pids.max", "cpu.max") == ["", "", ""]
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 0\n")
    assert kernel.memory_kills() == 0
    (memory / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 1\n")
    assert kernel.memory_kills() == 1
    kernel.remove()
    found.close()
    assert not any(base.rglob("cellgate-1"))


def test_kernels_that_are_never_frozen_are_in_version_1_alone(one: System) -> None:
    earlier = Cgroups.find("cellgate-1", one.root, freezing=True)
    left = earlier.make("k", LIMITS)
    kernel = Cgroups.find("cellgate-1", one.root).make("k", LIMITS)
    assert {version for _, version in kernel.folders} == {1}
    freezing = [folder for folder, version in left.folders if version == 2]
    assert len(freezing) == 1
    assert not freezing[0].parent.exists()


@pytest.mark.parametrize("there", [True, False], ids=["it may be used", "it may not"])
def test_processor_time_is_counted_where_version_1_has_that_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Where it can't be counted, kernels have all other groups."""
    system = System(tmp_path, 1, "5:cpuacct:/\n4:memory:/a\n3:pids:/\n2:cpu:/\n0::/\n", APART)
    base = tmp_path / "sys/fs/cgroup"
    if there:
        (base / "cpuacct").mkdir()
    system.patch(monkeypatch)
    found = Cgroups.find("cellgate-1", tmp_path)
    kernel = found.make("k", LIMITS)
    folders = [folder for folder, _ in kernel.folders]
    counting = base / "cpuacct/cellgate-1/k"
    assert (counting in folders) is there
    assert len(folders) == 3 + there
    if there:
        assert read(counting, "cpu.cfs_quota_us", "pids.max") == ["", ""]
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
    assert kernel.memory_kills() == 1
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


def test_the_gateway_makes_way_again_for_a_process_that_it_has_just_started(
    two: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = two.root / "sys/fs/cgroup/own"
    (own / "cgroup.procs").write_text(f"{os.getpid()}\n")
    busy(monkeypatch, own)
    vacate = cgroups._vacate
    moved: list[str] = []

    def slowly(folder: Path) -> None:
        if moved:
            vacate(folder)
        moved.append(folder.name)

    monkeypatch.setattr(cgroups, "_vacate", slowly)
    Cgroups.find("cellgate-1", two.root)
    assert moved == ["own", "own"]
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


def test_kernels_do_without_a_group_that_could_only_be_frozen(
    one: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    mkdir = Path.mkdir

    def refused(folder: Path, *arguments: int, **options: bool) -> None:
        if "unified" in folder.parts:
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        mkdir(folder, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", refused)
    found = Cgroups.find("cellgate-1", one.root)
    kernel = found.make("k", LIMITS)
    assert [version for _, version in kernel.folders] == [1, 1, 1]
    kernel.remove()
    found.close()
    assert not any(one.root.rglob("cellgate-1"))


CONTAINER = "4:memory:/docker/c\n3:pids:/docker/c\n2:cpu,cpuacct:/docker/c\n0::/\n"


def contain(system: System, own: str, processes: str) -> None:
    """A container whose first process is the number 70, as one that is not seen from here."""
    folder = system.root / "proc/70"
    folder.mkdir()
    (folder / "cgroup").write_text(own)
    for each in hierarchies(own, (system.root / "proc/self/mountinfo").read_text()):
        if each.controllers:
            place = system.root / each.folder.relative_to("/")
            place.mkdir(parents=True, exist_ok=True)
            (place / "cgroup.procs").write_text(processes)


def test_a_containers_processes_get_a_group_beside_its_kernels_in_version_1(one: System) -> None:
    contain(one, CONTAINER, "70\n")
    found, first = Cgroups.around(70, "cellgate", LIMITS, one.root)
    base = one.root / "sys/fs/cgroup"
    for kind in ("memory", "pids", "cpu,cpuacct"):
        assert read(base / kind / "docker/c/cellgate/first", "cgroup.procs") == ["70"]
    assert read(base / "memory/docker/c/cellgate/first", "memory.limit_in_bytes") == [str(256 * MIB)]
    assert {version for _, version in first.folders} == {1}
    kernel = found.make("k", LIMITS)
    assert read(base / "pids/docker/c/cellgate/k", "pids.max") == ["40"]
    assert {folder.parent for folder, _ in kernel.folders} == {folder.parent for folder, _ in first.folders}


@pytest.mark.parametrize(("processes", "counted"), [("70\n", True), ("1\n70\nours\n", False)])
def test_a_container_is_counted_in_a_group_of_its_own_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: str, counted: bool
) -> None:
    """Not in that of the whole machine, whose processes would become the container's."""
    system = System(tmp_path, 1, "5:cpuacct:/\n4:memory:/a\n3:pids:/\n2:cpu:/\n0::/\n", APART)
    system.patch(monkeypatch)
    contain(system, "5:cpuacct:/c\n4:memory:/c\n3:pids:/c\n2:cpu:/c\n0::/\n", "70\n")
    folder = tmp_path / "sys/fs/cgroup/cpuacct/c"
    folder.mkdir(parents=True)
    (folder / "cgroup.procs").write_text(processes.replace("ours", str(os.getpid())))
    found, _ = Cgroups.around(70, "cellgate", LIMITS, tmp_path)
    kernel = found.make("k", LIMITS)
    assert (folder / "cellgate/k" in [each for each, _ in kernel.folders]) is counted
    assert (folder / "cellgate").exists() is counted


def test_a_containers_processes_get_a_group_beside_its_kernels_in_version_2(two: System) -> None:
    """A group that has processes passes no controllers on."""
    contain(two, "0::/docker/c\n", "70\n")
    found, _ = Cgroups.around(70, "cellgate", LIMITS, two.root)
    folder = two.root / "sys/fs/cgroup/docker/c"
    assert read(folder / "cellgate/first", "cgroup.procs", "memory.max") == ["70", str(256 * MIB)]
    assert read(folder, "cgroup.subtree_control") == ["+memory +pids +cpu"]
    assert read(folder / "cellgate", "cgroup.subtree_control", "cgroup.procs") == ["+memory +pids +cpu", ""]
    found.make("k", LIMITS)
    assert read(folder / "cellgate/k", "memory.max", "pids.max") == [str(256 * MIB), "40"]


@pytest.mark.parametrize("processes", ["", "71\n", "70\nours\n"])
def test_a_group_that_is_not_the_containers_is_left_alone(one: System, processes: str) -> None:
    """As for a gateway in a container, which sees other numbers; or the group is its own too."""
    contain(one, CONTAINER, processes.replace("ours", str(os.getpid())))
    with pytest.raises(BackendUnavailable, match="not seen from here"):
        Cgroups.around(70, "cellgate", LIMITS, one.root)
    assert not any((one.root / "sys/fs/cgroup").rglob("first"))


def test_a_group_that_cant_be_divided_says_why(one: System, monkeypatch: pytest.MonkeyPatch) -> None:
    contain(one, CONTAINER, "70\n")

    def refused(file: Path, value: str) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(file))

    monkeypatch.setattr(cgroups, "_write", refused)
    with pytest.raises(BackendUnavailable, match="Permission denied"):
        Cgroups.around(70, "cellgate", LIMITS, one.root)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EINVAL])
def test_an_error_that_others_need_not_have_is_told_as_it_is(
    one: System, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    contain(one, CONTAINER, "70\n")

    def failed(file: Path, value: str) -> None:
        raise OSError(number, os.strerror(number), str(file))

    monkeypatch.setattr(cgroups, "_write", failed)
    with pytest.raises(OSError, match=os.strerror(number)):
        Cgroups.around(70, "cellgate", LIMITS, one.root)


def test_the_group_of_a_container_that_has_gone_is_not_made_again(one: System) -> None:
    contain(one, CONTAINER, "")
    shutil.rmtree(one.root / "proc/70")
    with pytest.raises(FileNotFoundError):
        Cgroups.around(70, "cellgate", LIMITS, one.root)
    contain(one, CONTAINER, "70\n")
    shutil.rmtree(one.root / "sys/fs/cgroup/memory/docker/c")
    with pytest.raises((BackendUnavailable, OSError)):
        Cgroups.around(70, "cellgate", LIMITS, one.root)
    assert not (one.root / "sys/fs/cgroup/memory/docker/c").exists()


def test_one_whose_process_ends_meanwhile_says_nothing_about_others(
    one: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    contain(one, CONTAINER, "")

    def ends(folder: Path) -> list[int]:
        shutil.rmtree(one.root / "proc/70")
        return []

    monkeypatch.setattr(cgroups, "_processes", ends)
    with pytest.raises(ProcessLookupError):
        Cgroups.around(70, "cellgate", LIMITS, one.root)


def test_the_memory_of_all_kernels_of_a_container_is_limited_together_in_version_1(
    one: System, monkeypatch: pytest.MonkeyPatch
) -> None:
    contain(one, CONTAINER, "70\n")
    found, _ = Cgroups.around(70, "cellgate", LIMITS, one.root)
    above = one.root / "sys/fs/cgroup/memory/docker/c/cellgate"
    names = ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    write = cgroups._write

    def as_the_system(file: Path, value: str) -> None:
        """The second limit is never below the first."""
        now = {name: int((above / name).read_text() or 2**60) for name in names}
        wanted = now | {file.name: int(value)}
        if wanted[names[0]] > wanted[names[1]]:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        write(file, value)

    monkeypatch.setattr(cgroups, "_write", as_the_system)
    for memory in (300, 500, 400):
        found.limit_memory(memory)
        assert read(above, *names) == [str(memory)] * 2


def test_the_memory_of_all_kernels_of_a_container_is_limited_together_in_version_2(two: System) -> None:
    contain(two, "0::/docker/c\n", "70\n")
    found, _ = Cgroups.around(70, "cellgate", LIMITS, two.root)
    above = two.root / "sys/fs/cgroup/docker/c/cellgate"
    (above / "memory.current").write_text("350")
    found.limit_memory(400)
    assert read(above, "memory.max") == ["400"]
    with pytest.raises(OSError, match="more memory is in use"):
        found.limit_memory(300)
    assert read(above, "memory.max") == ["300"]


def test_all_processes_of_a_group_are_killed(one: System, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = Cgroups.find("cellgate-1", one.root).make("k", LIMITS)
    there = [subprocess.Popen(["sleep", "100"]) for _ in range(3)]
    lists = [folder / "cgroup.procs" for folder, _ in kernel.folders]
    for file in lists:
        file.write_text("".join(f"{process.pid}\n" for process in there))
    killed = []
    send = signal.pidfd_send_signal

    def ended(pidfd: int, number: int) -> None:
        send(pidfd, number)
        killed.append(number)
        if len(killed) == len(there):
            for file in lists:
                file.write_text("")

    monkeypatch.setattr(signal, "pidfd_send_signal", ended)
    kernel.kill()
    assert killed == [signal.SIGKILL] * 3
    assert [process.wait() for process in there] == [-signal.SIGKILL] * 3
