"""The keeper: the first process of ours in a sandbox or container, which starts, reaps and outlives kernels.

A kernel's start-up file calls `begin` before it imports anything else, because all that is there by then
stays in the keeper too: the child becomes the kernel, the parent stays here. The keeper reaps every orphan,
passes signals on to its kernels, and ends when its last kernel has ended and no fork is held, in the same way
as that kernel: with its exit code, or by its signal. It sees no message of a kernel and holds none of its
files but the pipes of its first kernel's output: what is left in them when that dies, such as the words of a
C library that gave up, is put into a file. So it stays as small as an interpreter that waits. It needs
nothing but the standard library.

Code in a kernel may do anything to it: who ends the keeper ends the kernels of this sandbox, nothing else.
"""

import ctypes
import gc
import os
import select
import signal
import socket
import sys
import time
from contextlib import suppress

LIFETIME = "CELLGATE_LIFETIME"
KEEPER = "CELLGATE_KEEPER"
PARENT = "JPY_PARENT_PID"
ZYGOTE = "CELLGATE_ZYGOTE"
PIPES = "CELLGATE_PIPES"
"""Names the ends of the pipes for a kernel's standard output and error: two for reading, two for writing."""
GONE = "The gateway is gone."

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
END = signal.SIGQUIT
"""Ends the keeper and everything that it started at once, as SIGKILL would end a single process."""

REST = "-rest"
"""What follows the prefix of the sockets' paths in that of the file with what was left in the pipes: how many
bytes each of them had, then these, or the last of them."""
REST_BYTES = 64 * 1024
PIPE_BYTES = 1024 * 1024
"""The most that a pipe can have been made to hold, as systems are usually set."""

WAKE_BYTES = 4096
CONNECTIONS = 64
"""That wait to be taken."""
ROUNDS = 50
PAUSE = 0.005  # seconds


def begin():
    """Become a kernel's process, a keeper's child, if CELLGATE_KEEPER is set; the caller goes on in it."""
    leave_if_orphaned()
    address = os.environ.pop(KEEPER, None)
    if address is None:
        return
    keeper = os.getpid()
    gc.freeze()
    ready, begun = os.pipe()
    pipes = os.pipe(), os.pipe()
    kernel = os.fork()
    if kernel == 0:
        os.environ[PIPES] = ",".join(str(end) for ends in zip(*pipes, strict=True) for end in ends)
        gc.unfreeze()
        end_with_parent(keeper)
        # A kernel that is ready has a keeper that takes programs and passes signals on.
        os.close(begun)
        os.read(ready, 1)
        os.close(ready)
        return
    is_contained = os.environ.pop(PARENT, None) is None
    # Nothing returns from here, because the caller's next step is the kernel's.
    try:
        os.close(ready)
        for _, writer in pipes:
            os.close(writer)
        started = Keeper(kernel, address, [reader for reader, _ in pipes])
        if not is_contained:
            # Until now SIGKILL was to come when the gateway dies. It would leave the programs that were
            # started from here, which begin only after this; the signal is one or the other at any time.
            prctl(PR_SET_PDEATHSIG, END)
        os.close(begun)
        returncode = started.run()
    except BaseException:  # noqa: BLE001 - the process ends here, and its kernels with it
        sys.excepthook(*sys.exc_info())
        os._exit(1)
    end_like(returncode)


def leave_if_orphaned():
    """Exit if the process that started this one died before the death signal was set up.

    CELLGATE_LIFETIME names the reading end of a pipe that the starter keeps open as long as it lives. Without
    a pid namespace around, the number of the starter itself tells.
    """
    starter = os.environ.get(PARENT)
    if starter is not None and os.getppid() != int(starter):
        sys.exit(GONE)
    lifetime = os.environ.pop(LIFETIME, None)
    if lifetime is None:
        return
    poll = select.poll()
    poll.register(int(lifetime), 0)
    if poll.poll(0):
        sys.exit(GONE)
    # The pipe, and other descriptors that only the start of the sandbox needed; not what a zygote listens to.
    spared = int(os.environ.get(ZYGOTE, "2"))
    for first, last in ((3, spared), (spared + 1, os.sysconf("SC_OPEN_MAX"))):
        if first < last:
            os.closerange(first, last)


def end_with_parent(parent):
    """Let the system end this process with its parent; outside of a pid namespace nothing else would."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)
    if PARENT in os.environ:
        # ipykernel watches it too.
        os.environ[PARENT] = str(parent)


def prctl(option, argument):
    """prctl(2); where the system refuses it, there is no need to do without a kernel."""
    ctypes.CDLL(None).prctl(option, ctypes.c_ulong(argument), 0, 0, 0)


class Keeper:
    """One loop over poll(2), which sleeps until a signal comes or a watched descriptor is ready.

    `children`: what to call with a child's pid and its return code before it is reaped; other children are
    only reaped. `told`: what else to call with the return code of a kernel, by its pid. `first`: the kernel
    that the sandbox was started for. `address`: the path of the socket where the gateway asks for programs.
    `pipes`: the reading ends of those for that kernel's standard output and error.
    """

    def __init__(self, kernel, address, pipes):
        self.first = kernel
        self.pipes = pipes
        self.rest = address.rpartition("-")[0] + REST
        self.kernels = set()
        self.held = set()
        self.told = {}
        self.children = {}
        self.returncode = 0
        self.timers = []
        self.programs = None
        self.ready = {}
        self.poll = select.poll()
        self.keep(kernel)
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        waker, woken = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self.watch(waker, select.POLLIN, self.take_signals)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        for number in (*PASSED_ON, END, signal.SIGCHLD):
            signal.signal(number, lambda *_: None)
        self.listen(address)

    def listen(self, address):
        """Take connections for programs; a kernel does without them where it has no place for a socket."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        try:
            listener.bind(address)
            os.chmod(address, 0o600)  # noqa: PTH101 - nothing more is imported
            listener.listen(CONNECTIONS)
        except OSError as error:
            print(f"No programs can be started beside this kernel: {error.strerror}", file=sys.stderr)
            return
        self.watch(listener.fileno(), select.POLLIN, lambda *_: self.connected(listener))

    def connected(self, listener):
        """Start a program for the gateway, loading what starts programs only now."""
        if self.programs is None:
            import programs  # noqa: PLC0415

            self.programs = programs.Programs(self, os.environb)
        self.programs.accept(listener)

    def tell(self, kernel, call):
        """Call this with the return code of a kernel; returns whether there is such a kernel.

        A child that is nobody's yet, such as a branch, becomes one.
        """
        if kernel not in self.kernels:
            if kernel in self.children or not is_running_child(kernel):
                return False
            self.keep(kernel)
        self.told.setdefault(kernel, []).append(call)
        return True

    def hold(self, fork, call):
        """Call this with the return code of a fork that is held; returns whether there is such a process.

        The keeper stays for it alone too: a kernel that died can be made anew of it.
        """
        if fork in self.children or not is_running_child(fork):
            return False
        with suppress(OSError):
            os.setpgid(fork, fork)
        self.held.add(fork)

        def ended(child, returncode):
            self.held.discard(child)
            call(returncode)

        self.children[fork] = ended
        return True

    def keep(self, kernel):
        """Take over a child as a kernel, in a process group of its own."""
        # Here and in the child, because either may need it first.
        with suppress(OSError):
            os.setpgid(kernel, kernel)
        self.kernels.add(kernel)
        self.children[kernel] = self.kernel_ended

    def watch(self, descriptor, events, call):
        """Call this with the events of a descriptor whenever it has some."""
        self.ready[descriptor] = call
        self.poll.register(descriptor, events)

    def unwatch(self, descriptor):
        """Stop watching a descriptor."""
        del self.ready[descriptor]
        self.poll.unregister(descriptor)

    def run(self):
        """Run until all kernels and held forks end; return the last kernel's code, negative for a signal."""
        # A child that ended before there was a handler told nobody.
        self.reap()
        while self.kernels or self.held:
            for descriptor, events in self.poll.poll(self.call_due()):
                # An earlier one of the same turn may have ended it.
                call = self.ready.get(descriptor)
                if call is not None:
                    call(descriptor, events)
        self.end()
        end_orphans()
        return self.returncode

    def later(self, seconds, call):
        """Call this after so many seconds."""
        self.timers.append((time.monotonic() + seconds, call))

    def call_due(self):
        """Call what is due; returns the milliseconds until the next, None if there is none."""
        moment = time.monotonic()
        for timer in [timer for timer in self.timers if timer[0] <= moment]:
            self.timers.remove(timer)
            timer[1]()
        if not self.timers:
            return None
        return max(1, 1000 * (min(due for due, _ in self.timers) - moment))

    def take_signals(self, descriptor, events):
        """Act on the signals that their handlers wrote to the pipe, one byte each."""
        for number in os.read(descriptor, WAKE_BYTES):
            if number == signal.SIGCHLD:
                self.reap()
            elif number == END:
                self.end()
            else:
                for kernel in self.kernels:
                    signal_group(kernel, number)

    def reap(self):
        """Reap all children that have ended."""
        while (found := next_ended()) is not None:
            child, returncode = found
            ended = self.children.pop(child, None)
            if ended is not None:
                # Until it is reaped, its group's id can't be another's.
                ended(child, returncode)
            os.waitpid(child, 0)

    def kernel_ended(self, kernel, returncode):
        """End the programs in an ended kernel's process group, and report its return code."""
        signal_group(kernel, signal.SIGKILL)
        self.kernels.discard(kernel)
        if kernel == self.first:
            self.save_rest()
        self.returncode = returncode
        for call in self.told.pop(kernel, ()):
            call(returncode)

    def save_rest(self):
        """Save what a kernel that has ended left in its pipes; where there is no room for it, it is lost."""
        rest = [read_rest(pipe) for pipe in self.pipes]
        self.pipes = []
        if any(rest):
            sizes = b"".join(len(each).to_bytes(4, "big") for each in rest)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with suppress(OSError), os.fdopen(os.open(self.rest, flags, 0o600), "wb") as file:
                file.write(sizes + b"".join(each[-REST_BYTES:] for each in rest))

    def end(self):
        """End all that was started from here; the kernels' ends then end the keeper."""
        for child in self.children:
            signal_group(child, signal.SIGKILL)


def read_rest(pipe):
    """Read a pipe that nobody else reads, and close it; a process outside the group may still write."""
    os.set_blocking(pipe, False)
    rest = b""
    with suppress(OSError):
        while len(rest) < PIPE_BYTES and (piece := os.read(pipe, PIPE_BYTES - len(rest))):
            rest += piece
    os.close(pipe)
    return rest


def end_orphans():
    """End what is left below this process; those whose parent ends become our children, one by one.

    In a pid namespace the system does that, for all of it. Elsewhere this is the last chance.
    """
    for _ in range(ROUNDS):
        try:
            with open(f"/proc/self/task/{os.getpid()}/children") as listed:  # noqa: PTH123 - as above
                children = [int(child) for child in listed.read().split()]
        except OSError:
            return
        if not children:
            return
        for child in children:
            with suppress(OSError):
                os.kill(child, signal.SIGKILL)
        time.sleep(PAUSE)
        while (found := next_ended()) is not None:
            os.waitpid(found[0], 0)


def is_running_child(pid):
    """Return whether this process has such a child, and it has not ended."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
    except (ChildProcessError, OverflowError):
        return False


def next_ended():
    """Return the pid and return code of an ended child that is not reaped yet, None without one."""
    try:
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return None
    if found is None:
        return None
    return found.si_pid, found.si_status if found.si_code == os.CLD_EXITED else -found.si_status


def signal_group(leader, number):
    """Send a signal to the process group of a child that is not reaped yet."""
    with suppress(ProcessLookupError):
        os.killpg(leader, number)


def end_like(returncode):
    """End this process as a child with this return code did."""
    if returncode >= 0:
        os._exit(returncode)
    with suppress(OSError):
        signal.signal(-returncode, signal.SIG_DFL)
    os.kill(os.getpid(), -returncode)
    # The first process of a pid namespace does not end by its own signals.
    os._exit(128 - returncode)
