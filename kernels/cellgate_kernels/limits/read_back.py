"""Reads memory back from swap, in the order of its addresses: process_madvise(2) with MADV_WILLNEED.

A process whose pages are in swap waits for each page, or each few, when it touches them: a gigabyte then
takes ten seconds and more. A disk delivers pages much faster in order, like a file. The read is optional:
if the system refuses, only time is lost. Needs Linux 5.13 and the right to trace the process.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path

LITTLE = 1024 * 1024
"""The bytes below which reading back saves too little time."""

MOST_AT_ONCE = 512
"""The most ranges in one call; the system takes 1024 (IOV_MAX)."""

MOST_RANGES = 65_536
"""The most ranges of one process, which itself decides how many it has."""

_PROCESS_MADVISE = 440  # the same number on all architectures
_WILLNEED = 3


class _Range(ctypes.Structure):
    """A struct iovec."""

    _fields_ = (("start", ctypes.c_void_p), ("length", ctypes.c_size_t))


def read_back(processes: Iterable[int]) -> None:
    """Read the private memory of these processes back. Blocks. Raises OSError if the system refuses."""
    for process in processes:
        try:
            with Path(f"/proc/{process}/maps").open(errors="replace") as maps:
                ranges = list(islice(private_ranges(maps), MOST_RANGES))
            descriptor = os.pidfd_open(process)
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process has ended
        try:
            _advise(descriptor, ranges)
        finally:
            os.close(descriptor)


def private_ranges(maps: Iterable[str]) -> Iterator[tuple[int, int]]:
    """Yield start and length of the memory that belongs to no file, by lines of /proc/PID/maps (proc(5))."""
    for line in maps:
        words = line.split(maxsplit=5)
        if len(words) < 5 or "w" not in words[1] or "p" not in words[1]:
            continue
        if len(words) == 6 and not words[5].startswith("["):
            continue
        start, _, end = words[0].partition("-")
        yield int(start, 16), int(end, 16) - int(start, 16)


def _advise(descriptor: int, ranges: Sequence[tuple[int, int]]) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    for first in range(0, len(ranges), MOST_AT_ONCE):
        some = ranges[first : first + MOST_AT_ONCE]
        array = (_Range * len(some))(*(_Range(start, length) for start, length in some))
        told = libc.syscall(
            _PROCESS_MADVISE, descriptor, array, ctypes.c_size_t(len(some)), _WILLNEED, ctypes.c_uint(0)
        )
        if told == -1:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number))
