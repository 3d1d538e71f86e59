"""What a kernel's processes use between two looks, on trees of files that stand for the system's."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cellgate_kernels.limits import use_meter
from cellgate_kernels.limits.use_meter import KernelUse, UseMeter

NOTHING = KernelUse()
MOUNTS = {
    1: "35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
    "32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n",
    2: "31 23 0:28 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n",
}
OURS = {1: "4:memory:/own\n2:cpu,cpuacct:/own\n", 2: "0::/own\n"}
THEIRS = {1: "4:memory:/own/k\n2:cpu,cpuacct:/own/k\n", 2: "0::/own/k\n"}
NAMES = {
    1: ("cpuacct.usage", "memory.usage_in_bytes", "memory.max_usage_in_bytes"),
    2: ("cpu.stat", "memory.current", "memory.peak"),
}


class System:
    """A tree of files in the place of a system's, with the kernel's first process, 7."""

    def __init__(self, root: Path, version: int = 2, group: str | None = None) -> None:
        self.root = root
        self.version = version
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/mountinfo").write_text(MOUNTS[version])
        (root / "proc/self/cgroup").write_text(OURS[version])
        self.process(7)
        (root / "proc/7/cgroup").write_text(OURS[version] if group is None else group)
        self.born(7)
        base = root / "sys/fs/cgroup"
        self.processors = base / ("cpu,cpuacct/own/k" if version == 1 else "own/k")
        self.memory = base / ("memory/own/k" if version == 1 else "own/k")
        for folder in (self.processors, self.memory):
            folder.mkdir(parents=True, exist_ok=True)

    def process(self, number: int, *children: int, ticks: int = 0, written: int = 0) -> None:
        """Have a process with such counts."""
        folder = self.root / f"proc/{number}"
        (folder / f"task/{number}").mkdir(parents=True, exist_ok=True)
        (folder / f"task/{number}/children").write_text("".join(f"{child} " for child in children))
        before = "S " + "0 " * 10
        (folder / "stat").write_text(f"{number} (a ) b) {before}{ticks} 0 0 0 20 0\n")
        counts = f"wchar: 9\nread_bytes: 5\nwrite_bytes: {written}\ncancelled_write_bytes: 3\n"
        (folder / "io").write_text(counts)

    def born(self, number: int) -> None:
        """Have this as the youngest process."""
        (self.root / "proc/loadavg").write_text(f"0.00 0.01 0.05 1/{80 + number} {number}\n")

    def counts(self, *processes: int, seconds: float, memory: int, peak: int) -> None:
        """Set what the control group counts."""
        time, present, highest = NAMES[self.version]
        nano, micro = round(seconds * 1e9), round(seconds * 1e6)
        text = f"{nano}\n" if self.version == 1 else f"usage_usec {micro}\nuser_usec 1\n"
        (self.processors / time).write_text(text)
        (self.memory / present).write_text(f"{memory}\n")
        (self.memory / highest).write_text(f"{peak}\n")
        (self.memory / "cgroup.procs").write_text("".join(f"{each}\n" for each in processes))

    def meter(self, *, shared: bool = False) -> UseMeter:
        """A meter of the kernel."""
        return UseMeter(lambda: 7, shared=shared, root=self.root)


@pytest.mark.parametrize("version", [1, 2])
def test_a_group_counts_time_and_memory(tmp_path: Path, version: int) -> None:
    """However its processes ended; bytes are those of the processes, with the children that they reaped."""
    system = System(tmp_path, version, THEIRS[version])
    system.counts(7, 8, seconds=1.5, memory=1000, peak=5000)
    system.process(7, written=100)
    system.process(8, written=20)
    meter = system.meter()
    before = meter.begin()
    system.counts(7, seconds=2.25, memory=2000, peak=7000)
    system.process(7, written=4220)
    system.born(9)
    assert meter.end(before) == KernelUse(0.75, 7000, 4100)
    before = meter.begin()
    system.counts(7, seconds=2.25, memory=2000, peak=2000)
    assert meter.end(before) == KernelUse(0.0, 2000, 0)
    meter.close()


def test_a_peak_of_an_earlier_cell_is_not_this_one_s(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the mark can't be set back, it says something only if it rises; else the looks do."""
    system = System(tmp_path, 2, THEIRS[2])
    system.counts(7, seconds=1, memory=1000, peak=5000)
    monkeypatch.setattr(UseMeter, "_forget_peak", lambda _: False)
    meter = system.meter()
    first = meter.begin()
    system.counts(7, seconds=1, memory=1000, peak=5000)
    second = meter.begin()
    system.counts(7, seconds=1, memory=900, peak=5000)
    assert meter.end(second).memory_peak == 1000
    system.counts(7, seconds=1, memory=900, peak=6000)
    assert meter.end(first).memory_peak == 6000
    meter.close()


def test_without_a_group_time_is_that_of_the_processes(tmp_path: Path) -> None:
    """With their children's; of the memory nobody knows."""
    system = System(tmp_path)
    system.process(7, 8, ticks=10, written=1)
    system.process(8, 9, ticks=20, written=2)
    system.process(9, ticks=30, written=3)
    meter = system.meter()
    before = meter.begin()
    system.process(7, 8, ticks=10, written=1)
    system.born(10)
    system.process(8, 9, ticks=150, written=4096)
    system.process(10, ticks=1000, written=1000)  # it is nobody's child
    assert meter.end(before) == KernelUse(1.3, None, 4094)
    meter.close()


def test_processes_are_looked_for_only_if_one_was_born(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system = System(tmp_path)
    looked: list[int] = []
    descendants = use_meter._descendants

    def looking(proc: str, first: int) -> object:
        looked.append(first)
        return descendants(proc, first)

    monkeypatch.setattr(use_meter, "_descendants", looking)
    meter = system.meter()
    for _ in range(3):
        assert meter.end(meter.begin()) == KernelUse(0.0, None, 0)
    assert looked == [7]
    before = meter.begin()
    system.process(8, ticks=100)
    system.process(7, 8)
    system.born(8)
    assert meter.end(before) == KernelUse(1.0, None, 0)
    assert looked == [7, 7]
    meter.close()


def test_no_more_is_said_than_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    system = System(tmp_path)
    system.process(7, 8, ticks=10)
    system.process(8, ticks=500, written=500)
    meter = system.meter()
    before = meter.begin()
    # 8 has ended, and nobody has waited for it: what it had counted is gone.
    system.process(7, ticks=20, written=10)
    for name in ("stat", "io"):
        (tmp_path / "proc/8" / name).unlink()
    meter.close()
    assert meter.end(before) == NOTHING
    before = meter.begin()
    (tmp_path / "proc/7/io").unlink()
    (tmp_path / "proc/7/io").write_text("not for you\n")
    meter.close()
    assert meter.end(before) == NOTHING
    monkeypatch.setattr(use_meter, "MOST_PROCESSES", 2)
    system.process(7, 8, 9)
    system.process(8)
    system.process(9)
    assert meter.end(meter.begin()) == NOTHING
    meter.close()
    assert UseMeter(lambda: None, root=tmp_path).begin().seconds is None
    gone = UseMeter(lambda: 12, root=tmp_path)
    assert gone.end(gone.begin()) == NOTHING


@pytest.mark.parametrize(
    ("inside", "seconds"), [((7, 8), 4.0), ((7, 8, 99), 0.5)], ids=["alone", "with others"]
)
def test_a_group_with_processes_of_others_is_not_believed(
    tmp_path: Path, inside: tuple[int, ...], seconds: float
) -> None:
    system = System(tmp_path, 2, THEIRS[2])
    system.process(7, 8, ticks=10)
    system.process(8)
    system.process(99)
    system.counts(*inside, seconds=1, memory=1000, peak=1000)
    meter = system.meter(shared=True)
    before = meter.begin()
    system.counts(*inside, seconds=5, memory=1000, peak=1000)
    system.process(7, 8, ticks=60)
    assert meter.end(before).cpu_seconds == seconds
    meter.close()


def test_the_last_look_is_the_one_before_the_group_goes(tmp_path: Path) -> None:
    """All of its processes have ended then, so that nobody knows what they wrote."""
    system = System(tmp_path, 2, THEIRS[2])
    system.counts(7, seconds=1, memory=1000, peak=1000)
    meter = system.meter()
    meter.note_end()  # no cell runs
    before = meter.begin()
    system.counts(seconds=3, memory=10, peak=9000)
    meter.note_end()
    meter.close()
    system.counts(seconds=0, memory=0, peak=0)
    assert meter.end(before) == KernelUse(2.0, 9000, None)


def test_a_process_and_its_children_are_measured() -> None:
    """On this system, and with a child that was waited for."""
    spin = "import time; a = time.process_time()\nwhile time.process_time() - a < 0.2: pass"
    child = f"subprocess.run([sys.executable, '-c', {spin!r}])"
    code = f"import subprocess, sys; input(); {spin}\n{child}; print(flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        meter = UseMeter(lambda: process.pid)
        before = meter.begin()
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        use = meter.end(before)
        meter.close()
        process.communicate("\n")
    assert use.cpu_seconds is not None
    assert 0.3 < use.cpu_seconds < 2
    assert use.memory_peak is None
