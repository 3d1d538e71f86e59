"""Control groups as their files describe them, in folders of the test's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellgate_kernels.provisioners.control_group import PASSES, ControlGroup
from cellgate_kernels.provisioners.read_back import private_ranges

SEPARATE = "7:freezer:{0}\n4:memory:{0}\n1:cpu:{0}\n0::/elsewhere\n"
UNIFIED = "0::{0}\n"


class Machine:
    """A /proc and a /sys/fs/cgroup below a folder."""

    def __init__(self, folder: Path, lines: str, *, theirs: str, ours: str) -> None:
        self.proc = folder / "proc"
        self.hierarchies = folder / "cgroup"
        for process, group in (("42", theirs), ("self", ours)):
            (self.proc / process).mkdir(parents=True)
            (self.proc / process / "cgroup").write_text(lines.format(group))

    def files(self, folder: str, **contents: str) -> Path:
        made = self.hierarchies / folder
        made.mkdir(parents=True, exist_ok=True)
        for name, content in contents.items():
            (made / name.replace("__", ".")).write_text(content)
        return made

    def group(self) -> ControlGroup | None:
        return ControlGroup.of(42, self.hierarchies, self.proc)


def test_version_1_has_a_folder_for_each_controller(tmp_path: Path) -> None:
    machine = Machine(tmp_path, SEPARATE, theirs="/docker/abc", ours="/")
    freezer = machine.files("freezer/docker/abc", freezer__state="THAWED\n")
    memory = machine.files(
        "memory/docker/abc", memory__force_empty="", memory__usage_in_bytes="4096\n", cgroup__procs="7\n8\n"
    )
    group = machine.group()
    assert group == ControlGroup(freezer, memory, unified=False)
    assert (group.memory_used(), group.processes(), group.frozen) == (4096, [7, 8], False)
    group.freeze()
    assert group.frozen
    asked = []
    group.give_memory_back(lambda: asked.append(None) is not None)
    assert len(asked) == PASSES
    assert (memory / "memory.force_empty").read_text() == "0"
    group.thaw()
    assert not group.frozen


def test_version_2_has_one_folder(tmp_path: Path) -> None:
    machine = Machine(tmp_path, UNIFIED, theirs="/system.slice/docker-abc.scope", ours="/user.slice")
    folder = machine.files(
        "system.slice/docker-abc.scope",
        cgroup__freeze="0",
        cgroup__events="populated 1\nfrozen 1\n",
        memory__reclaim="",
        memory__swap__max="0",
        memory__current="8192",
    )
    group = machine.group()
    assert group == ControlGroup(folder, folder, unified=True)
    assert (group.memory_used(), group.frozen) == (8192, True)
    group.freeze()
    assert (folder / "cgroup.freeze").read_text() == "1"
    steps = iter([False, False, True])
    group.give_memory_back(lambda: next(steps))
    assert int((folder / "memory.reclaim").read_text()) > 0
    assert (folder / "memory.swap.max").read_text() == "max"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("/", "/"), ("/", "/mine"), ("/mine", "/mine"), ("/mine", "/mine/below"), ("/../other", "/mine")],
)
@pytest.mark.parametrize("lines", [SEPARATE, UNIFIED])
def test_a_group_with_others_in_it_is_none(tmp_path: Path, lines: str, theirs: str, ours: str) -> None:
    machine = Machine(tmp_path, lines, theirs=theirs, ours=ours)
    for name in ("", "mine", "mine/below", "other"):
        machine.files(f"freezer/{name}", freezer__state="THAWED")
        machine.files(f"memory/{name}", memory__force_empty="")
        machine.files(name, cgroup__freeze="0")
    assert machine.group() is None


def test_a_group_that_is_not_seen_here_and_a_process_that_is_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path, SEPARATE, theirs="/docker/abc", ours="/")
    assert machine.group() is None
    assert ControlGroup.of(43, machine.hierarchies, machine.proc) is None


def test_processor_time_is_that_of_its_processes(tmp_path: Path) -> None:
    (tmp_path / "cgroup.procs").write_text(f"{os.getpid()}\n{2**22 + 1}\n")
    group = ControlGroup(tmp_path, tmp_path, unified=True)
    before = group.processor_seconds()
    end = sum(os.times()[:2]) + 0.1
    while sum(os.times()[:2]) < end:
        pass
    assert group.processor_seconds() - before > 0.05


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
