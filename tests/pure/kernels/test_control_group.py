"""Control groups as their files describe them, in folders of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellgate_kernels.limits.control_group import PASSES, ControlGroup, Part
from cellgate_kernels.limits.read_back import private_ranges

SEPARATE = "7:freezer:{0}\n4:memory:{0}\n1:cpu:{0}\n0::/\n"
BOTH = "7:freezer:{0}\n4:memory:{0}\n1:cpu:{0}\n0::{0}\n"
UNIFIED = "0::{0}\n"

MOUNTS = """\
32 31 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
ONE_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


class Machine:
    """A /proc and a /sys/fs/cgroup below a folder."""

    def __init__(self, root: Path, lines: str, *, theirs: str, ours: str) -> None:
        self.root = root
        proc = root / "proc"
        for process, group in (("42", theirs), ("self", ours)):
            (proc / process).mkdir(parents=True)
            (proc / process / "cgroup").write_text(lines.format(group))
        (proc / "self/mountinfo").write_text(ONE_MOUNT if lines == UNIFIED else MOUNTS)

    def files(self, folder: str, **contents: str) -> Path:
        made = self.root / "sys/fs/cgroup" / folder
        made.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (made / name.replace("__", ".")).write_text(content)
        return made

    def group(self, process: int = 42) -> ControlGroup | None:
        return ControlGroup.of(process, self.root)


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    machine = Machine(tmp_path, SEPARATE, theirs="/docker/abc", ours="/")
    freezer = machine.files("freezer/docker/abc", freezer__state="THAWED\n")
    machine.files("unified", cgroup__freeze="0")
    memory = machine.files(
        "memory/docker/abc", memory__force_empty="", memory__usage_in_bytes="4096\n", cgroup__procs="7\n8\n"
    )
    group = machine.group()
    assert group == ControlGroup(Part(freezer, 1), Part(memory, 1))
    assert (group.memory_used(), group.processes(), group.frozen) == (4096, [7, 8], False)
    group.freeze()
    assert group.frozen
    assert group.allow_swap() is None
    asked = []
    group.give_memory_back(lambda: asked.append(None) is not None)
    assert len(asked) == PASSES
    assert (memory / "memory.force_empty").read_text() == "0"
    group.thaw()
    assert not group.frozen


def test_version_1_is_asked_again_as_long_as_it_gives_memory_back(tmp_path: Path) -> None:
    used = tmp_path / "memory.usage_in_bytes"
    used.write_text(f"{100 << 20}")
    (tmp_path / "memory.force_empty").write_text("")

    def given_back() -> bool:
        used.write_text(f"{max(4 << 20, int(used.read_text()) - (10 << 20))}")
        return False

    ControlGroup(Part(tmp_path, 1), Part(tmp_path, 1)).give_memory_back(given_back)
    assert int(used.read_text()) == 4 << 20


def test_version_2_has_one_folder(tmp_path: Path) -> None:
    machine = Machine(tmp_path, UNIFIED, theirs="/system.slice/docker-abc.scope", ours="/user.slice")
    folder = machine.files(
        "system.slice/docker-abc.scope",
        cgroup__freeze="0",
        cgroup__events="populated 1\nfrozen 1\n",
        memory__reclaim="",
        memory__current="8192",
    )
    group = machine.group()
    assert group == ControlGroup(Part(folder, 2), Part(folder, 2))
    assert (group.memory_used(), group.frozen) == (8192, True)
    group.freeze()
    assert (folder / "cgroup.freeze").read_text() == "1"
    steps = iter([False, False, True])
    group.give_memory_back(lambda: next(steps))
    assert int((folder / "memory.reclaim").read_text()) > 0
    group.thaw()
    assert (folder / "cgroup.freeze").read_text() == "0"


def test_with_both_versions_the_one_freezes_whose_frozen_processes_can_be_killed(tmp_path: Path) -> None:
    machine = Machine(tmp_path, BOTH, theirs="/docker/abc", ours="/")
    machine.files("freezer/docker/abc", freezer__state="THAWED\n")
    memory = machine.files("memory/docker/abc", memory__force_empty="")
    freezer = machine.files("unified/docker/abc", cgroup__freeze="0")
    assert machine.group() == ControlGroup(Part(freezer, 2), Part(memory, 1))
    (freezer / "cgroup.freeze").unlink()
    group = machine.group()
    assert group is not None
    assert group.freezer.version == 1


@pytest.mark.parametrize(("before", "allowed"), [("0", "4096"), ("512", "512"), ("max", "max")])
def test_version_2_lets_a_group_that_sleeps_swap_what_it_may_have_in_memory(
    tmp_path: Path, before: str, allowed: str
) -> None:
    (tmp_path / "memory.max").write_text("4096\n")
    limit = tmp_path / "memory.swap.max"
    limit.write_text(f"{before}\n")
    group = ControlGroup(Part(tmp_path, 2), Part(tmp_path, 2))
    told = group.allow_swap()
    assert (told, limit.read_text().strip()) == (before, allowed)
    group.limit_swap(told)
    assert limit.read_text().strip() == before


def test_systems_that_can_not_give_memory_back_do_not(tmp_path: Path) -> None:
    for version in (1, 2):
        group = ControlGroup(Part(tmp_path, version), Part(tmp_path, version))
        assert group.allow_swap() is None
        group.give_memory_back(lambda: False)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("/", "/"), ("/", "/mine"), ("/mine", "/mine"), ("/mine", "/mine/below"), ("/../other", "/mine")],
)
@pytest.mark.parametrize("lines", [SEPARATE, BOTH, UNIFIED])
def test_a_group_with_others_in_it_is_none(tmp_path: Path, lines: str, theirs: str, ours: str) -> None:
    machine = Machine(tmp_path, lines, theirs=theirs, ours=ours)
    for name in ("", "mine", "mine/below", "other"):
        machine.files(f"freezer/{name}", freezer__state="THAWED")
        machine.files(f"memory/{name}", memory__force_empty="")
        machine.files(f"unified/{name}", cgroup__freeze="0")
        machine.files(name, cgroup__freeze="0")
    assert machine.group() is None


def test_a_group_that_is_not_seen_here_and_a_process_that_is_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, SEPARATE, theirs="/docker/abc", ours="/")
    assert machine.group() is None
    assert machine.group(43) is None


def test_a_group_that_may_not_be_written_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(tmp_path, UNIFIED, theirs="/theirs", ours="/ours")
    machine.files("theirs", cgroup__freeze="0")
    assert machine.group() is not None
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert machine.group() is None


def test_processor_time_is_that_of_its_processes(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n{2**22 + 1}\n")
    group = ControlGroup(Part(tmp_path, 2), Part(tmp_path, 2))
    before = sum(os.times()[:4])
    told = group.processor_seconds()
    # A sum of hundredths has an error of its own.
    assert 0 < before - 0.001 < told < sum(os.times()[:4]) + 0.001


MAPS = """\
55d0c0a00000-55d0c0a01000 r--p 00000000 fe:00 131 /usr/bin/python3.11
55d0c1b00000-55d0c1b21000 rw-p 00000000 00:00 0 [heap]
7f0000000000-7f0040000000 rw-p 00000000 00:00 0
7f0050000000-7f0050001000 rw-s 00000000 00:01 9 /dev/shm/x
7f0060000000-7f0060002000 rw-p 00003000 fe:00 99 /usr/lib/lib c.so
"""


def test_memory_without_a_file_is_read_back() -> None:
    assert list(private_ranges(MAPS.splitlines())) == [
        (0x55D0C1B00000, 0x21000),
        (0x7F0000000000, 0x40000000),
    ]
