"""What the gateway's machine has: memory and processors, as far as its control groups allow, and disk.

Reads /proc and /sys once, at the start. Blocking. ``cli.serve`` makes ceilings of what it says.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

CGROUPS = Path("/sys/fs/cgroup")


def memory(groups: Path | None = CGROUPS) -> int:
    """Bytes of memory; with `groups` None the machine's, whatever the gateway's own group is allowed."""
    sizes = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for folder in _folders(groups, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            words = _words(folder / name)
            if words and words[0].isdecimal():
                sizes.append(int(words[0]))
    return min(size for size in sizes if size > 0)


def processors(groups: Path | None = CGROUPS) -> float:
    """Processors; with `groups` None the machine's, whatever the gateway's own group is allowed."""
    if groups is None:
        return float(os.cpu_count() or 1)
    numbers = [float(len(os.sched_getaffinity(0)))]
    for folder in _folders(groups, "cpu"):
        quota, period = _words(folder / "cpu.cfs_quota_us"), _words(folder / "cpu.cfs_period_us")
        words = _words(folder / "cpu.max") or quota + period
        if len(words) == 2 and all(word.isdecimal() and int(word) > 0 for word in words):
            numbers.append(int(words[0]) / int(words[1]))
    return min(numbers)


def disk(folder: Path) -> int | None:
    """Bytes of the file system that holds `folder`, or will when it is made; None where it has no size."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).total or None


def _folders(groups: Path | None, controller: str) -> Iterator[Path]:
    """The folders of this process's group of a controller and of those above it, in both versions."""
    if groups is None:
        return
    # In a container the path may be that of the host, and the group's own files lie at the root.
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and controller not in controllers.split(","):
            continue
        root = groups / controller if controllers else groups
        inner = Path(path.lstrip("/"))
        yield from (root / part for part in (inner, *inner.parents) if ".." not in part.parts)


def _words(path: Path) -> list[str]:
    return _text(path).split()


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
