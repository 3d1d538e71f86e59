"""A held fork: a copy of a kernel's process that waits, and of which kernels are made.

``branch.py`` makes it as it makes a branch, up to the point where nothing of the parent's is left in it but
memory. There it stays, in `Held.serve`, until the gateway closes the connection that it has to it, which is
the only one: the socket is taken away once the gateway has come. While it waits it runs nothing, so it takes
memory only for what its kernel changes. To an order for a kernel it forks again, and `serve` returns in the
new process, which goes on as a branch does.

What is elsewhere can't be kept as it was. So a held fork has no connections: it would keep them open when
the kernel closes them, and whoever is at the other end has gone on since. Files are opened anew in each
kernel that is made of it, at the position where they were; what has no name is made anew (``unnamed.py``).
"""

import fcntl
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import time
from contextlib import suppress

# Seconds.
ALONE_AFTER = 10.0
"""A held fork to which nobody has come by then ends: whoever asked for it is gone."""
SILENT_AFTER = 10.0
"""A kernel that has not come up by then is killed."""

PID = struct.Struct("i")
READY_WITH_NAMES = b"ready with names"
READY = (b"ready", READY_WITH_NAMES)
MOST_ORDER = 64 * 1024
MOST_WORD = 2000
MOST_KERNELS = 1024
KIB = 1024
TRACKERS = ("multiprocessing.resource_tracker", "joblib.externals.loky.backend.resource_tracker")


class Held:
    """Made in the process that is to be held, once it has parted from its parent.

    `own`: the descriptors that no cell has opened, with what they are. `descriptors`, `fork_off`, `moved`:
    functions of ``branch.py``; `sibling`: that of ``sibling.py``, for this process has one thread. `unnamed`:
    the class of ``unnamed.py``.
    """

    def __init__(self, own, descriptors, fork_off, moved, sibling, unnamed):
        self.own = own
        self.descriptors = descriptors
        self.fork_off = fork_off
        self.moved = moved
        self.sibling = sibling
        self.unnamed = unnamed
        self.began = time.monotonic()
        self.files = []
        self.folder = None
        # Cells may have set handlers, and anybody in the sandbox can send signals.
        self.signals = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

    # ---- in the held process

    def settle(self, word):
        """Prepare the process to be held: cut its connections, and note its files and its unnamed memory.

        `word`: the pipe for the first word to the gateway, which stays open.
        """
        with suppress(OSError):
            self.folder = os.getcwd()  # noqa: PTH109
        opened = {
            number: link
            for number, link in self.descriptors().items()
            if self.own.get(number) != link and number != word
        }
        self.cut_connections(opened)
        self.note_files(opened)
        with open("/proc/self/maps") as maps:  # noqa: PTH123 - nothing more is imported
            self.unnamed = self.unnamed(opened, maps.read().splitlines())
        self.unnamed.note()

    def cut_connections(self, opened):
        """Let sockets and pipes be such whose other end is closed; both ends of a pipe become another pipe.

        The numbers stay taken: objects of cells have them. A pair of sockets is left as it is, because
        nobody can tell whether the other one is here too, as those of an event loop are.
        """
        dead, other = socket.socketpair()
        other.close()
        pipes = {}
        for number, link in opened.items():
            if link.startswith("socket:[") and not is_of_a_pair(number):
                put(dead.fileno(), number)
            elif link.startswith("pipe:["):
                pipes.setdefault(link, []).append(number)
        for numbers in pipes.values():
            ends = dict.fromkeys((os.O_RDONLY, os.O_WRONLY), dead.fileno())
            modes = [access(number) for number in numbers]
            if {*modes} >= {*ends}:
                ends = dict(zip(ends, os.pipe(), strict=True))
            for number, mode in zip(numbers, modes, strict=True):
                put(ends.get(mode, dead.fileno()), number)
            for end in {*ends.values()} - {dead.fileno()}:
                os.close(end)
        dead.close()

    def note_files(self, opened):
        """Remember where in its files it is: the kernel moves on in the same ones.

        In a branch a name can be another file's by now: that of a file that its parent had opened.
        """
        for number, path in opened.items():
            with suppress(OSError):
                if stat.S_ISREG(os.fstat(number).st_mode):
                    if is_another(number, path):
                        path = f"/proc/self/fd/{number}"  # noqa: PLW2901
                    self.files.append((number, path, os.lseek(number, 0, os.SEEK_CUR)))

    def serve(self, path, word):
        """Wait for the gateway's orders. Return only in a new kernel: its order, and the pipe for its word.

        `path`: the socket to which the gateway connects. `word`: the pipe that tells the gateway when it can.
        """
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
            listener.bind(path)
            os.chmod(path, 0o600)  # noqa: PTH101
            listener.listen(1)
            os.write(word, b"ready\n")
            os.close(word)
            try:
                connection = self.gateway(listener)
            except OSError:
                os._exit(1)
            finally:
                with suppress(OSError):
                    os.unlink(path)  # noqa: PTH108
        while True:
            try:
                order = received(connection)
                if "kernels" in order:
                    answer = {"status": "ok", "bytes": share(order["kernels"], order["held"])}
                else:
                    answer = self.make()
            except BaseException:  # noqa: BLE001 - what comes is from the gateway, or it is gone
                os._exit(1)
            if isinstance(answer, int):
                connection.close()
                return order, answer
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
            except OSError:
                os._exit(1)

    def gateway(self, listener):
        """Return the connection that the gateway has come by. Raises OSError if it does not come."""
        listener.settimeout(ALONE_AFTER)
        connection, _ = listener.accept()
        connection.settimeout(None)
        return connection

    def make(self):
        """Fork. Returns what to tell the gateway; in the new process, a pipe for its word."""
        try:
            between, pipe = self.fork_off(self.sibling)
        except OSError as error:
            return {"status": "error", "why": "failed", "message": f"It can't be forked: {error.strerror}"}
        if not between:
            return pipe
        kernel, word = first_word(pipe, between)
        with suppress(ChildProcessError):  # there is none in between
            os.waitpid(between, 0)
        if word not in READY:
            why = word.decode(errors="replace") or f"It did not come up within {SILENT_AFTER:g} s."
            return {"status": "error", "why": "failed", "message": why}
        named = word == READY_WITH_NAMES
        return {"status": "ok", "pid": kernel, "parent": os.getpid(), "named": named}

    # ---- in a kernel that is made of it

    @property
    def waited(self):
        """For how many seconds it was held."""
        return time.monotonic() - self.began

    def come_back(self, move):
        """Undo what was done to wait. `move`: from which workspace to which, if the kernel gets another one.

        What was in that workspace is looked for in the other one, by its name: files may have been put back.
        """
        if self.folder is not None:
            with suppress(OSError):
                os.chdir(self.moved(self.folder, move))
            if move is not None and "PWD" in os.environ:
                os.environ["PWD"] = self.moved(os.environ["PWD"], move)
        anew = self.unnamed.come_back()
        for number, path, position in self.files:
            with suppress(OSError):
                open_anew(number, anew.get(number) or self.moved(path, move), path, position)
        self.unnamed.close()
        forget_trackers()
        signal.pthread_sigmask(signal.SIG_SETMASK, self.signals)


def forget_trackers():
    """Let multiprocessing start its tracker of resources anew: the one that it knows is another kernel's."""
    for name in TRACKERS:
        tracker = getattr(sys.modules.get(name), "_resource_tracker", None)
        if getattr(tracker, "_fd", None) is not None:
            os.close(tracker._fd)
            tracker._fd = tracker._pid = None


def received(connection):
    """Return the next order. Raises OSError, ValueError if there is none."""
    data = b""
    while not data.endswith(b"\n"):
        part = connection.recv(MOST_ORDER)
        data += part
        if not part or len(data) > MOST_ORDER:
            raise ValueError
    return json.loads(data)


def first_word(pipe, between):
    """Return the pid and word of a kernel that `between` forks; a silent one is killed, its word empty."""
    data = b""
    ends_at = time.monotonic() + SILENT_AFTER
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while len(data) <= PID.size or not data.endswith(b"\n"):
        if not poll.poll(max(0, 1000 * (ends_at - time.monotonic()))):
            break
        part = os.read(pipe, MOST_WORD)
        if not part:
            break
        data += part
    os.close(pipe)
    kernel = PID.unpack_from(data)[0] if len(data) >= PID.size else None
    word = data[PID.size :]
    if word.endswith(b"\n"):
        return kernel, word.strip()
    with suppress(ProcessLookupError):
        os.kill(between if kernel is None else kernel, signal.SIGKILL)
    return kernel, b""


def is_of_a_pair(number):
    """Return whether a descriptor is one of two sockets that were made together: neither has a name."""
    with suppress(OSError), socket.socket(fileno=os.dup(number)) as copy:
        return copy.family == socket.AF_UNIX and not copy.getsockname() and not copy.getpeername()
    return False


def is_another(number, path):
    """Return whether there is a file of this name, and the descriptor is not of that."""
    with suppress(OSError):
        return not os.path.samestat(os.fstat(number), os.stat(path))  # noqa: PTH116
    return False


def access(number):
    """Return the mode in which a descriptor was opened: O_RDONLY, O_WRONLY or O_RDWR."""
    return fcntl.fcntl(number, fcntl.F_GETFL) & os.O_ACCMODE


def put(source, number):
    """Let a descriptor be another of the same settings."""
    flags = fcntl.fcntl(number, fcntl.F_GETFL)
    os.dup2(source, number, inheritable=os.get_inheritable(number))
    fcntl.fcntl(number, fcntl.F_SETFL, flags & os.O_NONBLOCK)


def open_anew(number, path, former, position):
    """Let a descriptor be of the file that now has this name, or a former one, or else the same one.

    At this position. Raises OSError.
    """
    settings = fcntl.fcntl(number, fcntl.F_GETFL)
    flags = settings & (os.O_ACCMODE | os.O_APPEND) | os.O_CLOEXEC
    for name in (path, former, f"/proc/self/fd/{number}"):
        try:
            opened = regular(name, flags)
            break
        except OSError as error:
            refused = error
    else:
        raise refused
    try:
        os.lseek(opened, position, os.SEEK_SET)
        os.dup2(opened, number, inheritable=os.get_inheritable(number))
        fcntl.fcntl(number, fcntl.F_SETFL, settings)
    finally:
        os.close(opened)


def regular(path, flags):
    """Open a file, and nothing that waits for another side. Raises OSError."""
    opened = os.open(path, flags | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(opened).st_mode):
        os.close(opened)
        raise OSError
    return opened


def share(kernels, held):
    """Return this process's share of the memory that only held forks use, in bytes.

    `kernels`: the processes of the sandbox's kernels. `held`: how many held forks there are. Of each page,
    the system counts the same part to everybody who has it. What of the kernels' own pages is counted to
    others is counted to held forks, and is no cost of theirs.
    """
    own = memory("self")
    if not own:
        with open("/proc/self/statm") as file:  # noqa: PTH123 - nothing more is imported
            _, resident, shared, *_ = map(int, file.read().split())
        return (resident - shared) * os.sysconf("SC_PAGESIZE")
    known = [memory(kernel) for kernel in kernels[:MOST_KERNELS]]
    elsewhere = sum(each.get("Anonymous", 0) - each.get("Pss_Anon", 0) for each in known)
    part = own.get("Pss_Anon", 0) - elsewhere // max(1, held)
    return KIB * (max(part, own.get("Private_Dirty", 0)) + own.get("SwapPss", 0))


def memory(process):
    """Return a process's kinds of memory in KiB, by the system's names; empty where these can't be read."""
    with suppress(OSError), open(f"/proc/{process}/smaps_rollup") as file:  # noqa: PTH123
        words = (line.split() for line in file.readlines()[1:])
        return {name.rstrip(":"): int(size) for name, size, *_ in words}
    return {}
