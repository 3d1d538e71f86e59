"""Runs the programs of ``%%bash``, ``%%script`` and their like: a cell ends when its program has ended.

IPython's own way waits until nobody has the program's output open any more, which a server that the program
has left in the background has for ever; and it keeps a thread, which stands in the way of branches. Here the
kernel's own thread reads, and what others have open afterwards is read by its loop, whenever no cell runs.
Programs with ``--bg`` are run as IPython does.
"""

import array
import codecs
import contextvars
import fcntl
import os
import selectors
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from functools import wraps
from types import MethodType

LOOK_AGAIN = 0.02
"""Seconds between two looks whether a program has ended, where the system does not tell."""
PATIENCE = 0.1
"""Seconds that a program has to end after each signal."""
MOST = 2**16
SIGNALS = (
    (signal.SIGINT, "Process was interrupted."),
    (signal.SIGTERM, "Process was terminated."),
    (signal.SIGKILL, "Process was killed."),
)


def begin(shell):
    """Run the programs of a shell's cells from now on.

    Returns the code of the functions that are between a cell and what goes wrong; the last one raises it.
    """
    from IPython.core.magics.script import ScriptMagics  # noqa: PLC0415
    from IPython.utils.process import arg_split  # noqa: PLC0415

    own = ScriptMagics.shebang

    @wraps(own)
    def shebang(self, line, cell):
        options, command = own.parser.parse_known_args(arg_split(line))
        if options.bg:
            own(self, line, cell)
        else:
            run(self.shell, options, command, cell)

    ScriptMagics.shebang = shebang
    # Where the magics are made with the shell, it has this one already.
    magics = shell.magics_manager.magics["cell"]
    known = magics.get("script")
    if getattr(known, "__func__", None) is own:
        magics["script"] = MethodType(shebang, known.__self__)
    return shebang.__code__, run.__code__


def run(shell, options, command, cell):
    """Run a program with a cell as its input. Raises CalledProcessError, KeyboardInterrupt."""
    text = (cell if cell.endswith("\n") else f"{cell}\n").encode("utf8", "replace")
    for name in filter(None, (options.out, options.err)):
        shell.user_ns[name] = ""
    try:
        program = ScriptProcess(command, text)
    except FileNotFoundError:
        print(f"Couldn't find program: {command[0]!r}")
        return
    program.read(shell, "stdout", options.out)
    program.read(shell, "stderr", options.err)
    interrupted = False
    try:
        program.until_ended()
    except KeyboardInterrupt:
        interrupted = True
        program.end()
    finally:
        program.leave(shell)
    status = program.process.returncode
    if options.raise_error and interrupted and status == 0:
        raise KeyboardInterrupt
    if options.raise_error and (interrupted or status != 0):
        raise subprocess.CalledProcessError(status, text)


class ScriptProcess:
    """A program that runs. Raises OSError if it can't be started."""

    def __init__(self, command, text):
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        self.process = subprocess.Popen(command, bufsize=0, **pipes)
        self.text = memoryview(text)
        self.outputs = []
        self.waits = selectors.DefaultSelector()
        self.ended = None
        with suppress(OSError, AttributeError):
            self.ended = os.pidfd_open(self.process.pid)
            self.waits.register(self.ended, selectors.EVENT_READ, ignore)
        os.set_blocking(self.process.stdin.fileno(), False)
        self.waits.register(self.process.stdin, selectors.EVENT_WRITE, self.give)

    def read(self, shell, name, variable):
        """Show what it writes to one of its streams, or put it into a variable."""
        output = Output(getattr(self.process, name), getattr(sys, name), shell.user_ns, variable)
        self.outputs.append(output)
        self.waits.register(output.pipe, selectors.EVENT_READ, output.take)

    def give(self):
        """Give it more of its input; returns whether it has all."""
        pipe = self.process.stdin
        with suppress(BlockingIOError):
            try:
                self.text = self.text[os.write(pipe.fileno(), self.text[:MOST]) :]
            except BrokenPipeError:  # it reads no more
                self.text = self.text[:0]
        return not self.text

    def until_ended(self, seconds=None):
        """Return whether it has ended, when it has or after so many seconds."""
        late = None if seconds is None else time.monotonic() + seconds
        while self.process.poll() is None:
            left = None if late is None else late - time.monotonic()
            if left is not None and left <= 0:
                return False
            if self.ended is None:
                left = LOOK_AGAIN
            for key, _ in self.waits.select(left):
                if key.data():
                    self.waits.unregister(key.fileobj)
                    key.fileobj.close()
        return True

    def end(self):
        """End it by one signal after the other, and say which one did."""
        for number, words in SIGNALS:
            self.process.send_signal(number)
            if self.until_ended(PATIENCE) or number == signal.SIGKILL:
                print(words)
                return

    def leave(self, shell):
        """Show what it has written until its end; what others write from now on is the loop's."""
        if self.ended is not None:
            os.close(self.ended)
        self.waits.close()
        with suppress(OSError):
            self.process.stdin.close()
        for output in self.outputs:
            output.take_what_is_there()
            if not output.is_at_end:
                output.leave_to(shell.kernel.io_loop.asyncio_loop)


class Output:
    """What comes from one pipe: shown in a stream, or put into a variable."""

    def __init__(self, pipe, stream, names, variable):
        self.pipe = pipe
        self.stream = stream
        self.names = names
        self.variable = variable
        self.decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self.taken = 0
        self.is_at_end = False
        os.set_blocking(pipe.fileno(), False)

    def take(self, most=MOST):
        """Read a part; returns whether there is no more to come."""
        try:
            part = os.read(self.pipe.fileno(), most)
        except BlockingIOError:
            return False
        self.taken += len(part)
        self.is_at_end = not part
        text = self.decoder.decode(part, final=self.is_at_end)
        if text and self.variable:
            self.names[self.variable] += text
        elif text:
            self.stream.write(text)
            self.stream.flush()
        return self.is_at_end

    def take_what_is_there(self):
        """Read what was written by now, and no more: somebody may write all the time."""
        if self.is_at_end:
            return
        count = array.array("i", [0])
        fcntl.ioctl(self.pipe, termios.FIONREAD, count)
        until = self.taken + count[0]
        while self.taken < until and not self.take(min(until - self.taken, MOST)):
            pass
        self.take()  # it is at its end, unless others have it open
        if self.is_at_end:
            self.pipe.close()

    def leave_to(self, loop):
        """Let a loop read the rest, as output of the cell that runs now."""
        context = contextvars.copy_context()
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(
                loop.add_reader, self.pipe.fileno(), self.take_late, loop, context=context
            )

    def take_late(self, loop):
        """Read a part in a loop, until there is no more."""
        number = self.pipe.fileno()
        try:
            self.take()
        except Exception:  # noqa: BLE001 - the stream may be closed, the variable gone
            self.is_at_end = True
        if self.is_at_end:
            loop.remove_reader(number)
            self.pipe.close()


def ignore():
    """Do nothing: a look at the program follows."""
    return False
