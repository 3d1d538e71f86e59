"""Pages that were written to between two forks are a process's own again right after the next one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cellgate_kernels

IMAGE = Path(cellgate_kernels.__file__).parent / "inside"

# An area of which a "cell" writes to every tenth page, beside a file that is mapped and written to as well.
PROGRAM = """
import json, mmap, os, signal, sys
sys.path.insert(0, sys.argv[1])
import ctypes
import pages

COUNT = 1000
area = mmap.mmap(-1, COUNT * pages.PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
shared = mmap.mmap(-1, COUNT * pages.PAGE, flags=mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
children = []

def cell(step=10):
    for page in range(0, COUNT, step):
        area[page * pages.PAGE] = 1
        shared[page * pages.PAGE] = 1

def fork():
    ahead.look()
    child = os.fork()
    if not child:
        signal.pause()
        os._exit(0)
    children.append(child)
    ahead.forked()
    ahead.copy()
    own = [
        number
        for first, size in pages.exclusive([(start, start + COUNT * pages.PAGE)])
        for number in range((first - start) // pages.PAGE, (first - start + size) // pages.PAGE)
    ]
    return own

ahead = pages.WrittenPages()
cell(1)
found = [fork()]
for _ in range(3):
    cell()
    found.append(fork())
cell(5)
found.append(fork())
of_shared = ctypes.addressof(ctypes.c_char.from_buffer(shared))
elsewhere = [first for first, _ in ahead.written if of_shared <= first < of_shared + COUNT * pages.PAGE]
ahead.written = [(start, 2**40)]
ahead.copy()
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(json.dumps([found, elsewhere]))
"""


def test_what_a_cell_writes_to_is_copied_before_the_next_one() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(IMAGE)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    found, elsewhere = json.loads(done.stdout)
    written = list(range(0, 1000, 10))
    # Nothing is known at the first fork. It is found out anew before the fourth, and after the third nothing
    # is copied, because what was copied could not be told from what was written to.
    assert found == [[], written, [], written, written]
    assert elsewhere == []
