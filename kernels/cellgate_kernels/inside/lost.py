"""What the threads that a fork does not copy have left behind in the child: locks that nobody will release.

Python makes some anew in a child: the one of imports, those of the module ``threading`` and those of loggers.
`Lost` does the same for others that Python's own modules have, if cells' threads are lost: buffers of files,
modules that were being imported, and whatever a module has as a variable. The locks that cells made are
theirs. ``branch.py`` makes one before a fork, and has it mend in the child, which has only one thread.
"""

import ctypes
import gc
import importlib._bootstrap
import io
import logging
import sys
import threading
from contextlib import contextmanager, suppress

BUFFERS = (io.BufferedWriter, io.BufferedReader, io.BufferedRandom)
LOCKS = (type(threading.Lock()), type(threading.RLock()))
OWNER = ctypes.c_ulong


class Lost:
    """Made before the fork, while there are the threads that will be lost."""

    def __init__(self):
        self.buffers = []
        with suppress(MemoryError):
            self.buffers = [each for each in gc.get_objects() if type(each) in BUFFERS]
        # The collector does not show what was there at a fork before.
        for reference in list(getattr(logging, "_handlerList", ())):
            buffer = getattr(getattr(reference(), "stream", None), "buffer", None)
            if type(buffer) in BUFFERS:
                self.buffers.append(buffer)

    def mend(self):
        """Release what they held."""
        for step in (self.mend_imports, self.mend_modules, self.mend_buffers):
            with suppress(Exception):  # cells can have exchanged what it uses
                step()

    def mend_imports(self):
        """Forget the imports that were under way: who imports the same module would wait for their end."""
        importlib._bootstrap._module_locks.clear()
        importlib._bootstrap._blocking_on.clear()
        for name, module in list(sys.modules.items()):
            spec = getattr(module, "__spec__", None)
            if getattr(spec, "_initializing", False) is True:
                del sys.modules[name]

    def mend_modules(self):
        """Make the locks anew that Python's own modules have: nothing runs here that can have taken them."""
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] in sys.stdlib_module_names and name != "__main__":
                for value in list(vars(module).values()):
                    if type(value) in LOCKS:
                        value._at_fork_reinit()

    def mend_buffers(self):
        """Empty the buffers in which a thread was writing: it goes on in the parent, and writes it there."""
        place = place_of_owner()
        for buffer in self.buffers if place is not None else ():
            with suppress(ValueError):  # it is closed
                if OWNER.from_address(id(buffer) + place).value:
                    buffer.__init__(buffer.raw)
        self.buffers = []


class Probe(io.RawIOBase):
    """A file that looks at its buffer while that is writing."""

    def writable(self):
        """Return True: the buffer asks before it writes."""
        return True

    def write(self, data):
        """Copy the buffer's memory instead of writing the data."""
        self.seen = words(self.buffer)
        return len(data)


def words(buffer):
    """Return an object's memory, in words."""
    count = type(buffer).__basicsize__ // ctypes.sizeof(OWNER)
    return list((OWNER * count).from_address(id(buffer)))


def place_of_owner():
    """Find the offset at which a buffer keeps the id of the thread that uses it; None if there is none."""
    probe = Probe()
    probe.buffer = io.BufferedWriter(probe)
    probe.buffer.write(b"x")
    probe.buffer.flush()
    after = words(probe.buffer)
    thread = threading.get_ident()
    places = [
        number
        for number, (during, now) in enumerate(zip(probe.seen, after, strict=True))
        if (during, now) == (thread, 0)
    ]
    probe.buffer = None
    return places[0] * ctypes.sizeof(OWNER) if len(places) == 1 else None


@contextmanager
def unheard():
    """Let nobody's logger hear what is done meanwhile: cells have done nothing."""
    manager = logging.root.manager
    former = manager.disable
    logging.disable(sys.maxsize)
    try:
        yield
    finally:
        logging.disable(former)
