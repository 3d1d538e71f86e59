"""Forks a process whose parent is this one's own parent, in one step: for a process with a single thread.

An orphan's way to the keeper is to be forked twice, by a process in between that ends at once, and each fork
copies the tables of all the memory. The system can give the new process the caller's parent itself
(CLONE_PARENT of clone(2)), but no function of the C library asks for that. So the call is made here, and what
the library's own fork() does around it: it keeps the thread's number and its list of robust locks right. What
it does about other threads, such as taking the allocator's locks, is not done.

`fork` returns None where it does not work: on an architecture whose numbers are not here, where the system
does not say where the library keeps the thread's number or refuses the call, and beside other threads.
"""

import ctypes
import os
import signal
import threading

CLONE_PARENT = 0x00008000
CLONE_CHILD_CLEARTID = 0x00200000
CLONE_CHILD_SETTID = 0x01000000
PR_GET_TID_ADDRESS = 40
HEAD_BYTES = 24
"""The size of struct robust_list_head, as the system wants it."""

# Numbers of clone, get_robust_list and set_robust_list, and the place of the child's thread number among
# clone's arguments.
CALLS = {"x86_64": (56, 274, 273, 3), "aarch64": (220, 100, 99, 4)}


def fork():
    """Return the new process's number, and 0 in it; None if this does not work here."""
    calls = CALLS.get(os.uname().machine)
    # A hook of a cell's for forks may have started one.
    if calls is None or len(os.listdir("/proc/self/task")) != 1:  # noqa: PTH208 - nothing more is imported
        return None
    # It keeps the interpreter's lock meanwhile, as os.fork does.
    library = ctypes.PyDLL(None)
    place = place_of_thread_number(library)
    if place is None:
        return None
    clone, get_robust, set_robust, at = calls
    head = ctypes.c_void_p()
    size = ctypes.c_size_t()
    library.syscall(get_robust, 0, ctypes.byref(head), ctypes.byref(size))
    arguments = [ctypes.c_long(0)] * 5
    arguments[0] = ctypes.c_long(CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | signal.SIGCHLD)
    arguments[at] = ctypes.c_void_p(place)
    library.syscall.restype = ctypes.c_long
    ctypes.pythonapi.PyOS_BeforeFork()
    child = library.syscall(ctypes.c_long(clone), *arguments)
    if child:
        ctypes.pythonapi.PyOS_AfterFork_Parent()
        # Whatever it was refused for, an ordinary fork says it too, or does without.
        return child if child > 0 else None
    if size.value == HEAD_BYTES:
        library.syscall(set_robust, head, size)
    ctypes.pythonapi.PyOS_AfterFork_Child()
    return 0


def place_of_thread_number(library):
    """Return where the C library keeps the number of the only thread, None if it is not certain."""
    place = ctypes.c_void_p()
    if library.prctl(PR_GET_TID_ADDRESS, ctypes.byref(place), 0, 0, 0) or not place.value:
        return None
    number = ctypes.c_int.from_address(place.value).value
    return place.value if number == threading.get_native_id() else None
