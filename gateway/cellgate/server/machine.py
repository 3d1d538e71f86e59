"""The machine's resources: memory and processors within the gateway's control groups, and disk.

Reads /proc and /sys. Blocking. ``cli.serve`` derives ceilings from them, ``observing`` makes metrics of them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cellgate_kernels.limits.cgroups import groups_of
from cellgate_kernels.limits.memory import charge_of

CGROUPS = Path("/sys/fs/cgroup")
MEMINFO = Path("/proc/meminfo")


def memory(groups: Path | None = CGROUPS) -> int:
    """Return the bytes of memory; with `groups` None the machine's, regardless of control groups."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    sizes += [limit for _, _, limit in _memory_limits(groups)]
    return min(size for size in sizes if size > 0)


def available_memory(groups: Path | None = CGROUPS) -> int:
    """Return the bytes that programs may still use: the machine's, or what a control group has left."""
    left = [int(line.split()[1]) * 1024 for line in _text(MEMINFO).splitlines() if "MemAvailable:" in line]
    for folder, version, limit in _memory_limits(groups):
        with suppress(OSError):
            left.append(limit - charge_of(folder, version))
    return max(0, min(left, default=0))


def _memory_limits(groups: Path | None) -> Iterator[tuple[Path, int, int]]:
    """Yield each control group that has a limit of memory, with its version and the limit in bytes."""
    for folder in _folders(groups, "memory"):
        for version, name in ((2, "memory.max"), (1, "memory.limit_in_bytes")):
            words = _words(folder / name)
            if words and words[0].isdecimal():
                yield folder, version, int(words[0])


def processors(groups: Path | None = CGROUPS) -> float:
    """Number of processors; with `groups` None the machine's, regardless of the gateway's control groups."""
    if groups is None:
        return float(os.cpu_count() or 1)
    numbers = [float(len(os.sched_getaffinity(0)))]
    for folder in _folders(groups, "cpu"):
        # Version 2 has quota and period in one file, version 1 in two.
        words = _words(folder / "cpu.max")
        if not words:
            words = _words(folder / "cpu.cfs_quota_us") + _words(folder / "cpu.cfs_period_us")
        if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
            numbers.append(int(words[0]) / int(words[1]))
    return min(numbers)


def disk(folder: Path) -> int | None:
    """Size of the file system that holds `folder`, or will once it is created; None if it reports none."""
    return shutil.disk_usage(nearest(folder)).total or None


def nearest(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that exists, as far as this user can see."""
    # Path.exists raises an error where the user may not look, or where a name is too long for the disk.
    return next(path for path in (folder, *folder.absolute().parents) if os.path.exists(path))  # noqa: PTH110


def _folders(groups: Path | None, controller: str) -> Iterator[Path]:
    """Yield folders of this process's control group and its parents, for a controller; in both versions."""
    if groups is None:
        return
    # In a container the path may be the host's, while the files of the group are at the root.
    ours = groups_of(_text(Path("/proc/self/cgroup")))
    for name in ours.keys() & {controller, ""}:
        root = groups / name
        inner = Path(ours[name].lstrip("/"))
        yield from (root / part for part in (inner, *inner.parents) if ".." not in part.parts)


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
