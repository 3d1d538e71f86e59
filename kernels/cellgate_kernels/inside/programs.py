"""Programs beside the kernel: the keeper starts one for each connection of the gateway, or tells of a kernel.

``keeper`` imports this with the first connection and calls it from its loop. A connection that begins with
`CONNECT` is for a port, and ``ports`` takes it over; one that begins with `KEEP` is about a kernel. Any other
is one program's: a `START` comes in, then input, its end, and signals; `STARTED` or `FAILED` go out, then
output, and at last `EXITED`. While the gateway does not read, the program's output is not read either, and
stays in its pipes. A connection that is cut ends the program; after the end it is the gateway that closes it.
A `JOIN` before a `START` names a process of a kernel that has mounts of its own: the program is started in
them. What can't be entered is told by `FAILED`. The gateway's half is
``cellgate_kernels/keeper/programs.py``.

A `KEEP` names one of the keeper's kernels by its pid: `STARTED` or `FAILED` go out, signals come in, and at
last `EXITED` or `SIGNALLED` goes out. A branch is a kernel from then on. When the connection is cut it is
killed, because only its gateway knows of it; the sandbox's first kernel is not, because the next gateway may
adopt it. That one says `ALONE`: the keeper answers with `STARTED`, kills all kernels but the first and all
forks that are held, and says `EXITED` when they have ended. A `HOLD` is a `KEEP` for such a fork, for which
alone the keeper does not stay. The gateway's half is ``cellgate_kernels/forking/kept.py``.

Everything in a sandbox may connect here; it gets nothing that it could not start by itself.
"""

import errno
import fcntl
import os
import select
import signal
import struct
import termios
from contextlib import suppress

from frames import (
    ALONE,
    CONNECT,
    END_OF_INPUT,
    EXITED,
    FAILED,
    HEAD,
    HOLD,
    INPUT,
    JOIN,
    KEEP,
    NUMBER,
    READABLE,
    SIGNAL,
    SIGNALLED,
    START,
    STARTED,
    STDERR,
    STDOUT,
    TAKEN,
    TERMINATE,
    Broken,
    split,
)

NATIVE = struct.Struct("i")
MOST_FRAME = 1024 * 1024
MOST_INPUT = 2 * 1024 * 1024
"""Input that waits for a program; the gateway sends less before it is told that some was `TAKEN`."""
MOST_UNSENT = 64 * 1024
READ_BYTES = 32 * 1024
MOST_PROGRAMS = 256
GRACE = 5.0
"""Seconds between SIGTERM and SIGKILL."""

IGNORED_HERE = (signal.SIGPIPE, signal.SIGXFSZ)
"""What Python ignores, and programs expect to end them."""


class Programs:
    """All programs of a keeper. `workspace`: where they start."""

    def __init__(self, keeper, environment):
        self.keeper = keeper
        self.environment = {
            name: value for name, value in environment.items() if not name.startswith(b"CELLGATE_")
        }
        self.workspace = os.getcwdb()  # noqa: PTH109 - as bytes
        self.running = set()
        self.relays = set()

    def accept(self, listener):
        """Accept a connection and wait for its request; close it if too many programs run."""
        try:
            connection, _ = listener.accept()
        except OSError:
            return
        if len(self.running) < MOST_PROGRAMS:
            self.running.add(ProgramConnection(self, connection))
        else:
            connection.close()


class ProgramConnection:
    """A connection and its program."""

    def __init__(self, programs, connection):
        self.programs = programs
        self.keeper = programs.keeper
        connection.setblocking(False)
        self.connection = connection
        self.received = bytearray()
        self.unsent = bytearray()
        self.child = None
        self.joined = None
        self.is_kernel = False
        self.others = 0
        self.returncode = None
        self.unwritten = bytearray()
        self.stdin = None
        self.input_ended = False
        # What its pipes are, until its end is reported; and how much is still to be read of each, which is
        # None until the program has ended.
        self.names = None
        self.pipes = {}
        self.terminating = False
        self.watched = {}
        self.watch(connection.fileno(), READABLE, self.connection_ready)

    # What is watched

    def watch(self, descriptor, events, call):
        """Watch a descriptor for exactly these events; for none, forget it."""
        if self.watched.get(descriptor, 0) == events:
            return
        if descriptor in self.watched:
            self.keeper.unwatch(descriptor)
            del self.watched[descriptor]
        if events:
            self.keeper.watch(descriptor, events, call)
            self.watched[descriptor] = events

    def adjust(self):
        """Watch what can be dealt with now, and end what is over."""
        if self.connection is not None:
            events = READABLE | (select.POLLOUT if self.unsent else 0)
            self.watch(self.connection.fileno(), events, self.connection_ready)
        full = len(self.unsent) >= MOST_UNSENT
        for pipe in self.pipes:
            self.watch(pipe, 0 if full else READABLE, self.pipe_ready)
        if self.stdin is not None:
            self.watch(self.stdin, select.POLLOUT if self.unwritten else 0, self.stdin_ready)
        if self.returncode is not None and not self.pipes:
            self.over()

    # The connection

    def connection_ready(self, descriptor, events):
        """Handle a connection that has bytes, can take some, or is gone."""
        try:
            if events & select.POLLOUT:
                self.flush()
            if events & READABLE:
                self.receive()
        except (Broken, OSError):
            self.cut()
            return
        self.adjust()

    def receive(self):
        """Read what is there and do what it says. Raises Broken."""
        try:
            data = self.connection.recv(READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            raise Broken
        self.received += data
        while len(self.received) >= HEAD.size:
            kind, size = HEAD.unpack_from(self.received)
            if size > MOST_FRAME:
                raise Broken
            if len(self.received) < HEAD.size + size:
                return
            payload = bytes(self.received[HEAD.size : HEAD.size + size])
            del self.received[: HEAD.size + size]
            if kind == CONNECT:
                self.connect_port(payload)
                return
            self.handle(kind, payload)

    def handle(self, kind, payload):
        """Handle one message of the gateway. Raises Broken."""
        if self.child is None and self.handle_first(kind, payload):
            return
        if (kind == START) != (self.child is None):
            raise Broken
        if kind == START:
            self.start(payload)
        elif kind == INPUT:
            self.unwritten += payload
            if len(self.unwritten) > MOST_INPUT:
                raise Broken
            self.write()
        elif kind == END_OF_INPUT:
            self.input_ended = True
            self.write()
        elif kind == SIGNAL and len(payload) == 1:
            self.signal(payload[0])
        elif kind == TERMINATE:
            self.terminate()
        else:
            raise Broken

    def handle_first(self, kind, payload):
        """Return one message that comes before there is a program; returns whether it is one."""
        if kind in (KEEP, HOLD):
            self.keep(payload, self.keeper.tell if kind == KEEP else self.keeper.hold)
        elif kind == ALONE:
            self.end_others()
        elif kind == JOIN and len(payload) == NUMBER.size:
            (self.joined,) = NUMBER.unpack(payload)
        else:
            return False
        return True

    def connect_port(self, payload):
        """Hand this connection over to a port that the gateway wants. Raises Broken."""
        if self.child is not None or self.returncode is not None or self.received:
            raise Broken
        if len(payload) != NUMBER.size:
            raise Broken
        # Only now is there a need for what relays.
        import ports  # noqa: PLC0415

        connection = self.connection
        self.watch(connection.fileno(), 0, None)
        self.connection = None
        self.forget()
        ports.begin(self.keeper, self.programs.relays, connection, payload)

    def send(self, kind, payload=b""):
        """Send now what fits, and the rest later."""
        if self.connection is None:
            return
        self.unsent += HEAD.pack(kind, len(payload)) + payload
        try:
            self.flush()
        except OSError:
            self.cut()

    def flush(self):
        """Send what the gateway takes now. Raises OSError."""
        while self.unsent:
            try:
                sent = self.connection.send(self.unsent)
            except BlockingIOError:
                return
            del self.unsent[:sent]

    def cut(self):
        """End the program, whose gateway is gone."""
        self.close_connection()
        if self.child is None or self.is_kernel:
            if self.is_kernel and self.child != self.keeper.first:
                self.signal(signal.SIGKILL)
            self.forget()
        elif self.returncode is None:
            self.terminate()
            self.adjust()
        else:
            self.close_pipes()
            self.forget()

    def close_connection(self):
        """Close it; what was not sent is lost."""
        if self.connection is not None:
            self.watch(self.connection.fileno(), 0, None)
            self.connection.close()
            self.connection = None
            self.unsent.clear()

    # The program

    def start(self, payload):
        """Start the program that the message describes, or say why it can't be."""
        words = split(payload)
        if len(words) < 4 or not words[2].isdigit():
            raise Broken
        wants_input = words[0] == b"1"
        count = int(words[2])
        argv = words[3 : 3 + count]
        if not argv or len(argv) < count:
            raise Broken
        environment = dict(self.programs.environment)
        for pair in words[3 + count :]:
            name, _, value = pair.partition(b"=")
            environment[name] = value
        folder = os.path.join(self.programs.workspace, words[1])  # noqa: PTH118 - as bytes
        try:
            self.child = self.spawn(argv, environment, folder, wants_input)
        except (OSError, ValueError) as error:
            number = getattr(error, "errno", None) or errno.EINVAL
            self.send(FAILED, os.strerror(number).encode())
            self.returncode = 0
            return
        self.keeper.children[self.child] = self.ended
        self.send(STARTED, NUMBER.pack(self.child))

    def keep(self, payload, tell):
        """Treat a kernel as a program that was started elsewhere."""
        if len(payload) != NUMBER.size:
            raise Broken
        (kernel,) = NUMBER.unpack(payload)
        if not tell(kernel, self.kernel_ended):
            self.send(FAILED, b"there is no such kernel")
            self.returncode = 0
            return
        self.child = kernel
        self.is_kernel = True
        self.names = {}
        self.send(STARTED, NUMBER.pack(kernel))

    def kernel_ended(self, returncode):
        """Report the kernel's end."""
        self.returncode = returncode
        self.adjust()

    def end_others(self):
        """Kill all kernels but the first, which alone the gateway has adopted."""
        self.child = self.keeper.first
        self.is_kernel = True
        self.names = {}
        self.send(STARTED, NUMBER.pack(self.child))
        kernels = self.keeper.kernels - {self.child}
        for kernel in kernels:
            self.keeper.tell(kernel, lambda _: self.other_ended())
        for fork in self.keeper.held:
            ended = self.keeper.children[fork]
            self.keeper.children[fork] = lambda *how, ended=ended: (ended(*how), self.other_ended())
        others = kernels | self.keeper.held
        self.others = len(others)
        for other in others:
            with suppress(OSError):
                os.killpg(other, signal.SIGKILL)
        if not others:
            self.returncode = 0

    def other_ended(self):
        """Handle the end of another kernel."""
        self.others -= 1
        if not self.others:
            self.returncode = 0
            self.adjust()

    def spawn(self, argv, environment, folder, wants_input):
        """Start it; returns the pid. Raises OSError, ValueError."""
        opened = []
        try:
            stdin, self.stdin = pipe(opened) if wants_input else (os.open(os.devnull, os.O_RDONLY), None)
            opened.append(stdin)
            stdout_end, stdout = pipe(opened)
            stderr_end, stderr = pipe(opened)
            streams = (stdin, stdout, stderr)
            if self.joined is not None:
                child = execute_in(self.joined, folder, argv, environment, streams)
            else:
                # There is no way to say it for the program alone, and all that is done here names whole
                # paths.
                os.chdir(folder)
                child = execute(argv, environment, streams)
        except (OSError, ValueError):
            self.stdin = None
            close(*opened)
            raise
        close(stdin, stdout, stderr)
        for end in (stdout_end, stderr_end, self.stdin):
            if end is not None:
                os.set_blocking(end, False)
        self.names = {stdout_end: STDOUT, stderr_end: STDERR}
        self.pipes = {stdout_end: None, stderr_end: None}
        return child

    def pipe_ready(self, descriptor, events):
        """Read a stream that the program wrote to or closed."""
        left = self.pipes[descriptor]
        wanted = READ_BYTES if left is None else min(READ_BYTES, left)
        try:
            data = os.read(descriptor, wanted) if wanted else b""
        except BlockingIOError:
            data = b"" if left is not None else None
        except OSError:
            data = b""
        if data:
            self.send(self.names[descriptor], data)
            if left is not None and descriptor in self.pipes:
                self.pipes[descriptor] = left - len(data)
                self.close_if_drained(descriptor)
        elif data is not None:
            self.close_pipe(descriptor)
        self.adjust()

    def close_if_drained(self, descriptor):
        """Close the pipe of a program that has ended, once all that it wrote is read."""
        if self.pipes[descriptor] == 0:
            self.close_pipe(descriptor)

    def close_pipe(self, descriptor):
        """Close a pipe and stop reading it."""
        self.watch(descriptor, 0, None)
        del self.pipes[descriptor]
        os.close(descriptor)

    def close_pipes(self):
        """Close all the pipes and stop reading them."""
        for descriptor in tuple(self.pipes):
            self.close_pipe(descriptor)

    def write(self):
        """Give the program the input that it takes now."""
        before = len(self.unwritten)
        while self.stdin is not None and self.unwritten:
            try:
                del self.unwritten[: os.write(self.stdin, self.unwritten)]
            except BlockingIOError:
                break
            except OSError:
                self.close_stdin()
        if self.stdin is None:
            # It is not there, or does not listen: input for it is dropped.
            self.unwritten.clear()
        elif self.input_ended and not self.unwritten:
            self.close_stdin()
        if taken := before - len(self.unwritten):
            self.send(TAKEN, NUMBER.pack(taken))

    def stdin_ready(self, descriptor, events):
        """Write more input to a program that takes it, unless it closed its stdin."""
        self.write()
        self.adjust()

    def close_stdin(self):
        """Let the program read the end of its input."""
        if self.stdin is not None:
            self.watch(self.stdin, 0, None)
            os.close(self.stdin)
            self.stdin = None

    def signal(self, number):
        """Send a signal to the program's group."""
        if self.returncode is None:
            with suppress(OSError):
                os.killpg(self.child, number)

    def terminate(self):
        """End the program's group: with time to clean up at first."""
        if self.returncode is None and not self.terminating:
            self.terminating = True
            self.signal(signal.SIGTERM)
            # It may be stopped.
            self.signal(signal.SIGCONT)
            self.keeper.later(GRACE, lambda: self.signal(signal.SIGKILL))

    def ended(self, child, returncode):
        """Handle the program's end, before it is reaped."""
        if self.terminating:
            self.signal(signal.SIGKILL)
        self.returncode = returncode
        self.close_stdin()
        # All that it wrote is there; others that have the pipe open are not waited for.
        for descriptor in tuple(self.pipes):
            self.pipes[descriptor] = waiting_in(descriptor)
            self.close_if_drained(descriptor)
        self.adjust()

    def over(self):
        """Send how the program ended, which comes last."""
        if self.connection is not None and self.names is not None:
            self.names = None
            kind = EXITED if self.returncode >= 0 else SIGNALLED
            self.send(kind, NUMBER.pack(abs(self.returncode)))
        if self.connection is None:
            self.forget()
            return
        # The gateway closes it when it has read the end. Were it closed here, input that is just on its way
        # would break the connection, and what was not read yet would be lost with it.
        events = READABLE | (select.POLLOUT if self.unsent else 0)
        self.watch(self.connection.fileno(), events, self.connection_ready)

    def forget(self):
        """Close the program's input and drop it from those that run."""
        self.close_stdin()
        self.programs.running.discard(self)


def execute(argv, environment, streams):
    """Start a program in a session of its own with these standard streams; returns the pid.

    By posix_spawn, which copies nothing of this process. Raises OSError, ValueError.
    """
    actions = [(os.POSIX_SPAWN_DUP2, stream, number) for number, stream in enumerate(streams)]
    refused = None
    for path in places(argv[0], environment):
        try:
            return os.posix_spawn(
                path, argv, environment, file_actions=actions, setsid=True, setsigdef=IGNORED_HERE
            )
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, "")


def execute_in(kernel, folder, argv, environment, streams):
    """Start a program as `execute` does, in a kernel's mounts and a folder there. Raises OSError."""
    # Only now is there a need for what enters them.
    import names  # noqa: PLC0415

    descriptors = names.opened(kernel)
    reader, writer = os.pipe2(os.O_CLOEXEC)
    try:
        child = os.fork()
    except OSError:
        close(reader, writer, *descriptors)
        raise
    if child == 0:
        refused = errno.EINVAL
        try:
            signal.set_wakeup_fd(-1)
            names.enter(descriptors)
            os.chdir(folder)
            os.setsid()
            become(argv, environment, streams)
        except OSError as error:
            refused = error.errno or errno.EINVAL
        finally:
            os.write(writer, NATIVE.pack(refused))
            os._exit(1)
    close(writer, *descriptors)
    said = os.read(reader, NATIVE.size)
    os.close(reader)
    if not said:
        return child
    os.waitpid(child, 0)
    (number,) = NATIVE.unpack(said)
    raise OSError(number, os.strerror(number))


def become(argv, environment, streams):
    """Be the program, in this process. Raises OSError."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for number in IGNORED_HERE:
        signal.signal(number, signal.SIG_DFL)
    refused = None
    for path in places(argv[0], environment):
        try:
            os.execve(path, argv, environment)  # noqa: S606
        except (FileNotFoundError, NotADirectoryError):
            continue
        except PermissionError as error:
            refused = refused or error
    raise refused or FileNotFoundError(errno.ENOENT, "")


def places(program, environment):
    """Return the paths where a program may be: a path itself, a name in each folder of its own PATH."""
    if b"/" in program or not program:
        return [program]
    folders = environment.get(b"PATH", b"").split(b":")
    found = [folder + b"/" + program for folder in folders if folder]
    return [path for path in found if os.access(path, os.F_OK)]


def pipe(opened):
    """Return ends of a pipe, for reading and for writing; added to `opened`, above the standard streams."""
    ends = os.pipe2(os.O_CLOEXEC)
    opened += ends
    return ends


def close(*descriptors):
    """Close all the descriptors, also those that are closed already."""
    for descriptor in descriptors:
        with suppress(OSError):
            os.close(descriptor)


def waiting_in(descriptor):
    """Return the number of bytes that can be read from a pipe now."""
    return NATIVE.unpack(fcntl.ioctl(descriptor, termios.FIONREAD, NATIVE.pack(0)))[0]
