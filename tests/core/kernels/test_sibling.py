"""A process that is forked as its parent's sibling is a whole process, and the parent's parent has it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cellgate_kernels

IMAGE = Path(cellgate_kernels.__file__).parent / "inside"

# The keeper's part, the held fork's, and the kernel's: threads, signals, programs and forks work in it.
PROGRAM = """
import json, os, signal, subprocess, sys, threading, time
sys.path.insert(0, sys.argv[1])
import sibling

def tried():
    numbers, hit = [], []
    def other():
        numbers.append(threading.get_native_id())
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, lambda *_: hit.append(threading.current_thread().name))
    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    while not hit:
        time.sleep(0.001)
    inner = os.fork()
    if not inner:
        os._exit(7)
    return {
        "parent": os.getppid() == keeper,
        "number": threading.get_native_id() == os.getpid() and numbers != [os.getpid()],
        "signal": hit,
        "program": subprocess.run(["echo", "hello"], capture_output=True, text=True).stdout,
        "fork": os.waitstatus_to_exitcode(os.waitpid(inner, 0)[1]),
        "again": sibling.place_of_thread_number(__import__("ctypes").PyDLL(None)) is not None,
    }

keeper = os.getpid()
reader, writer = os.pipe()
held = os.fork()
if not held:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    beside_a_thread = sibling.fork()
    stop.set()
    thread.join()
    while len(os.listdir("/proc/self/task")) > 1:
        time.sleep(0.001)
    made = sibling.fork()
    if not made:
        try:
            os.write(writer, json.dumps(tried()).encode() + b"\\n")
        finally:
            os._exit(3)
    try:
        os.waitpid(made, 0)
    except ChildProcessError:
        os._exit(5 if beside_a_thread is None else 6)
    os._exit(4)
os.close(writer)
ends = sorted(os.waitstatus_to_exitcode(os.wait()[1]) for _ in range(2))
print(json.dumps([ends, json.loads(os.read(reader, 4096))]))
"""


def test_a_sibling_is_a_whole_process_of_its_parents_parent() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(IMAGE)], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    ends, made = json.loads(done.stdout)
    assert ends == [3, 5]
    assert made == {
        "parent": True,
        "number": True,
        "signal": ["MainThread"],
        "program": "hello\n",
        "fork": 7,
        "again": True,
    }
