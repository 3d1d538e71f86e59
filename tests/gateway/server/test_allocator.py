"""What was freed is given back, in a process of its own: the setting is the whole process's."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import sys
from pathlib import Path
from cellgate.server.allocator import give_back_large_pieces

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

if "set" in sys.argv:
    assert give_back_large_pieces()
before = resident()
for _ in range(3):
    x = bytes(range(256)) * 65536  # 16 MiB: from now on glibc would take less from its heap
    del x
pieces, pins = [], []
for number in range(20):
    pieces.append(b"x" * 4_000_000)
    pins.append([bytes([number]) * 600 for _ in range(200)])  # what stays behind each piece
assert resident() - before > 70_000_000
pieces.clear()
print(resident() - before)
"""


@pytest.mark.parametrize(("argument", "least", "most"), [("set", 0, 10_000_000), ("", 40_000_000, 10**9)])
def test_large_pieces_return_to_the_system(argument: str, least: int, most: int) -> None:
    """The second case shows that the first one's setting is what does it."""
    done = subprocess.run(
        [sys.executable, "-c", CODE, argument], capture_output=True, text=True, timeout=60, check=True
    )
    assert least <= int(done.stdout) <= most


HOLES = """
import asyncio
import sys
from pathlib import Path
from cellgate.server.allocator import Trimmer
from cellgate_kernels.base.threads import Lane

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

async def trimmed():
    lane = Lane("bulk", 1)
    await Trimmer(lane).trim()
    lane.close()

before = resident()
outputs = [bytes([number % 256]) * 20_000 for number in range(4000)]
assert resident() - before > 70_000_000
outputs = outputs[::10]  # one of ten stays
if "trim" in sys.argv:
    asyncio.run(trimmed())
print(resident() - before)
"""


@pytest.mark.parametrize(("argument", "least", "most"), [("trim", 0, 30_000_000), ("", 60_000_000, 10**9)])
def test_holes_between_what_stays_return_to_the_system(argument: str, least: int, most: int) -> None:
    """The second case shows that glibc by itself keeps them."""
    done = subprocess.run(
        [sys.executable, "-c", HOLES, argument], capture_output=True, text=True, timeout=60, check=True
    )
    assert least <= int(done.stdout) <= most
