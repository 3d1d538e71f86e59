"""A thread of native code that runs until it is told to wait. Its source is a cell, so it imports little."""

import ctypes
import mmap
import os
import platform
from pathlib import Path

CODE = {
    # Until the byte at 64 of its argument is 0; then it calls the function at 72 with that argument.
    "x86_64": "807f4000 75fa 4883ec08 ff5748 4883c408 c3",
    "aarch64": "01004139 e1ffff35 022440f9 fd7bbfa9 40003fd6 fd7bc1a8 c0035fd6",
}
RUNS, FUNCTION, SIZE = 64, 72, 80


class NativeThread:
    """It runs from its start, waits from `rest` on, and ends with `end`."""

    def __init__(self) -> None:
        self._code = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
        self._code.write(bytes.fromhex(CODE[platform.machine()]))
        self.start = ctypes.addressof(ctypes.c_char.from_buffer(self._code))
        self.end_of_code = self.start + mmap.PAGESIZE
        self._libc = ctypes.CDLL(None)
        # A semaphore first.
        self._argument = ctypes.create_string_buffer(SIZE)
        self._libc.sem_init(self._argument, 0, 0)
        self._argument[RUNS] = 1
        wait = ctypes.cast(self._libc.sem_wait, ctypes.c_void_p).value
        ctypes.c_void_p.from_buffer(self._argument, FUNCTION).value = wait
        self._thread = ctypes.c_ulong()
        tasks = Path("/proc/self/task")
        before = set(tasks.iterdir())
        start = ctypes.c_void_p(self.start)
        self._libc.pthread_create(ctypes.byref(self._thread), None, start, self._argument)
        (self.task,) = set(tasks.iterdir()) - before

    def rest(self) -> None:
        """Return once it waits."""
        self._argument[RUNS] = 0
        # -1: for a page of memory, as one that goes on at once.
        while self._call() in {"running", "-1"}:
            os.sched_yield()

    def is_running(self) -> bool:
        """Whether the system says so."""
        return self._call() == "running"

    def _call(self) -> str:
        return (self.task / "syscall").read_text().split()[0]

    def end(self) -> None:
        """Return once it has ended."""
        self._argument[RUNS] = 0
        self._libc.sem_post(self._argument)
        self._libc.pthread_join(self._thread, None)
