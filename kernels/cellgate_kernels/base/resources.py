"""The resources that one kernel may use: memory, processors, processes, disk.

Only values and their parsing. The provisioners enforce them, each as far as its isolation allows;
deadlines of cells and sessions are in ``execution.limits``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.options import BYTES, option

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
MOST_BYTES = 1 << 50

HASH_SEED = "0"
"""The same for every kernel, so that sets of strings have the same order in a replay as in the recorded run.
"""

_UNITS = {"": 1, "k": KIB, "m": MIB, "g": GIB, "t": 1024 * GIB}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,6})?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE | re.ASCII)


def parse_size(value: str | int, *, name: str = "size") -> int:
    """Parse bytes from ``"512m"``, ``"1.5g"``, ``"1GiB"`` or a whole number; units are powers of 1024.

    Raises InvalidInput, naming `name`, for anything else and for less than one byte.
    """
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise InvalidInput(f"{name} must be a size such as '512m' or a number of bytes")
    if isinstance(value, str):
        match = _SIZE.fullmatch(value.strip())
        if match is None:
            raise InvalidInput(f"{name} must be a size such as '512m' or '1.5g', not {value[:40]!r}")
        value = int(float(match[1]) * _UNITS[match[2].lower()])
    if value < 1:
        raise InvalidInput(f"{name} must be at least one byte")
    return value


def size_in_units(size: int) -> str:
    """Return a number of bytes in `parse_size`'s form, in the largest unit that fits: ``512m``."""
    unit = next((unit for unit in "tgmk" if size and not size % _UNITS[unit]), "")
    return f"{size // _UNITS[unit]}{unit}"


@dataclass(frozen=True, slots=True)
class ResourceLimits:
    """The limits of one kernel. `memory` and `disk` in bytes, `cpus` in processors, `pids` in tasks."""

    memory: int = option(GIB, "Memory of a kernel.", unit=BYTES)
    cpus: float = option(1.0, "Processors of a kernel.")
    pids: int = option(256, "Processes and threads of a kernel.")
    disk: int = option(GIB, "Disk space of a session, its largest file, and the size of /tmp.", unit=BYTES)

    def __post_init__(self) -> None:
        if self.memory < 64 * MIB:
            raise InvalidInput("limits.memory must be at least 64m: a kernel can't start with less")
        if not 0.05 <= self.cpus <= 1024:
            raise InvalidInput("limits.cpus must be between 0.05 and 1024")
        if not 16 <= self.pids <= 1_000_000:
            raise InvalidInput("limits.pids must be between 16 and 1000000")
        if self.disk < MIB:
            raise InvalidInput("limits.disk must be at least 1m")
        if max(self.memory, self.disk) > MOST_BYTES:
            raise InvalidInput("limits.memory and limits.disk must be at most 1024t")
