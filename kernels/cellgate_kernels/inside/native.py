"""Threads of native libraries before a fork, which copies none of them: put to rest, or found and named.

``branch.py`` asks before it forks. Most libraries start their threads anew in a child, or do without. DuckDB
does not: each of its databases has threads of its own, and whoever closes one in a child waits for threads
that are not there. But a database can be told to have none, so its threads are sent home before the fork and
called back after it, here and in the child. Those of a database that can't be told so stay, and are named.

A thread does not say whose it is, but addresses on its stack do, which are in the library's file. Where the
system does not tell where that is (gVisor), nothing is found; a thread that never waits is named as itself.
"""

import gc
import os
import re
import struct
import sys
import threading
import time
from collections import deque
from contextlib import suppress
from types import ModuleType

DUCKDB = "duckdb"
LIBRARIES = {DUCKDB: re.compile(r"(?:lib|_)?duckdb[.-]")}
"""Libraries whose threads are lost in a child, by the name that users know them by, each with its file's."""

MODULES = {DUCKDB, "_duckdb"}
"""Where none of these is loaded, there are no such threads."""
WORD = struct.Struct("=Q")
STACK = 16 * 1024
"""Bytes of a stack that are looked at: a thread that waits for work has used little of it."""
MOST_OBJECTS = 20_000
"""Among so many of a session's objects connections are looked for, nearest first."""
LOOKS = 200
"""So often a thread is looked at that runs. One that has just been woken needs a processor, then it waits."""
PAUSE = 0.005
"""Seconds between two looks."""
LONG = 1000
"""Longer lists and the like are not looked into: to look at an object is to write to its memory."""
CONTAINERS = (list, tuple, dict, set, frozenset, deque)


class Native:
    """The native threads of one kernel: `rest` before a fork, `wake` after it in both processes."""

    def __init__(self):
        # What has no threads for the moment: cursors, each with the number that its database had.
        self.resting = []
        # Once a library is loaded, it stays where it is.
        self.areas = []

    def rest(self, namespace):
        """Send threads home; return the others' names, as `owners`. `namespace`: the cells' variables."""
        if MODULES.isdisjoint(sys.modules):
            return []
        self.areas = self.areas or areas()
        if not owners(self.areas):
            return []
        with suppress(Exception):  # cells can have exchanged what this uses; the threads are looked at again
            self.rest_duckdb(namespace)
        return sorted(owners(self.areas))

    def rest_duckdb(self, namespace):
        """Let each database that a known connection leads to have no thread but those that ask it."""
        module = sys.modules[DUCKDB]
        kind = module.DuckDBPyConnection
        known = [value for value in list(namespace.values()) if issubclass(type(value), kind)]
        with suppress(Exception):  # it has been closed
            default = module.default_connection
            known.append(default() if callable(default) else default)
        self.rest_connections(kind, known)
        if owners(self.areas):
            self.rest_connections(kind, found(kind, namespace))

    def rest_connections(self, kind, known):
        """Set the databases of these connections to one thread, and remember how many each had."""
        for connection in known:
            with suppress(Exception):  # closed, or its settings are locked
                # A cursor leaves the connection its result and its transaction.
                cursor = kind.cursor(connection)
                threads = kind.fetchone(kind.execute(cursor, "SELECT current_setting('threads')"))[0]
                if threads > 1:
                    kind.execute(cursor, "SET threads = 1")
                    self.resting.append((kind, cursor, threads))

    def wake(self):
        """Call the threads back."""
        resting, self.resting = self.resting, []
        for kind, cursor, threads in resting:
            with suppress(Exception):
                kind.execute(cursor, f"SET threads = {int(threads)}")
                kind.close(cursor)


def found(kind, namespace):
    """Yield objects of a class among modules' variables and what those of cells lead to."""
    modules = [each for each in list(sys.modules.values()) if issubclass(type(each), ModuleType)]
    # A module may be one that is loaded when it is asked for anything.
    spaces = [object.__getattribute__(module, "__dict__") for module in modules]
    objects = [value for space in spaces for value in list(space.values()) if issubclass(type(value), kind)]
    # All of them are looked at already, or lead everywhere.
    looked_at = {id(each) for each in (*modules, *spaces, sys.modules)}
    left = deque(list(namespace.values()))
    for _ in range(MOST_OBJECTS):
        if not left:
            break
        each = left.popleft()
        if id(each) in looked_at:
            continue
        looked_at.add(id(each))
        if issubclass(type(each), kind):
            objects.append(each)
        elif len(left) < MOST_OBJECTS and not (type(each) in CONTAINERS and len(each) > LONG):
            left.extend(gc.get_referents(each))
    return objects


def owners(mapped, pause=lambda: time.sleep(PAUSE)):
    """Return names of those of `LIBRARIES` that have threads here, and of threads that nothing is known of.

    Where a running thread's stack is nobody says, so each is looked at until it waits, with a `pause` before
    each further look. One that never waits may be any library's. `mapped`: as `areas` tells it.
    """
    owners = set()
    of_python = {thread.native_id for thread in threading.enumerate()}
    left = [task for task in os.listdir("/proc/self/task") if int(task) not in of_python]  # noqa: PTH208
    for look in range(LOOKS):
        if not left:
            break
        if look:
            pause()
        left = [task for task in left if not waits(task, mapped, owners)]
    for task in left:
        path = f"/proc/self/task/{task}/comm"
        with suppress(OSError), open(path, errors="replace") as file:  # noqa: PTH123 - it may have ended
            owners.add(f"{file.read().strip()} (running)")
    return owners


def waits(task, mapped, owners):
    """Return whether a thread waits, has ended or is unknown, and add its owner to `owners`."""
    try:
        part = stack(task)
    except OSError:
        return True
    if part is None:
        return False
    words = {address for (address,) in WORD.iter_unpack(part)}
    for start, end, whose in mapped:
        if whose not in owners and any(start <= address < end for address in words):
            owners.add(whose)
    return True


def areas():
    """Return the areas of memory that have code of `LIBRARIES` in them: from, to, and whose it is."""
    with open("/proc/self/maps") as file:  # noqa: PTH123 - nothing more is imported
        lines = file.read().splitlines()
    found = []
    for whose, files in LIBRARIES.items():
        for line in lines:
            if whose in line and files.match(os.path.basename(line)):  # noqa: PTH119
                addresses, rights, _ = line.split(maxsplit=2)
                start, _, end = addresses.partition("-")
                if "x" in rights:
                    found.append((int(start, 16), int(end, 16), whose))
    return found


def stack(task):
    """Return the nearest part of a waiting thread's stack, in words; None if it runs. Raises OSError."""
    with open(f"/proc/self/task/{task}/syscall") as file:  # noqa: PTH123
        fields = file.read().split()
    if fields == ["running"]:
        return None
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # noqa: PTH123
        memory.seek(int(fields[-2], 16))
        part = memory.read(STACK)
    return part[: len(part) // WORD.size * WORD.size]
