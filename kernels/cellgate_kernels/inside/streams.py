"""A kernel's standard output and error: what cells write is in the answer of its own cell, whole.

This replaces some methods of ipykernel's streams. Cells' children and C code write to pipes. ipykernel reads
each in a thread of its own, which may come too late: the answer of the cell that wrote is sent without it,
and it is shown with the next one. It reads pieces of 1,000 bytes and decodes each for itself, so that a
letter at the end of a piece becomes two wrong ones. What Python code writes goes through no pipe, but it is
lost when the kernel dies before it is sent; ``unsent`` keeps it. What a fork of a cell writes does go through
the pipe, where ipykernel makes a connection for each piece: these come in any order, or after the answer.
"""

import codecs
import fcntl
import os
import select
import sys
import termios
import threading
import time
from collections import defaultdict
from contextlib import suppress
from functools import partial
from io import StringIO

PIPES = "CELLGATE_PIPES"
PIECE = 64 * 1024
"""Bytes read at once: as many as a pipe holds, unless it was made larger."""
PIECES = 16
"""Read at once at the most: a child may go on writing for ever."""
PAUSE = 0.0001  # seconds
PATIENCE = 1.0


def mend(stream_class):
    """Replace methods of ipykernel's streams, where they are as expected. Each stream then has `unsent`.

    CELLGATE_PIPES names the ends of the pipes that they are to have: the keeper holds the reading ends, too,
    and reads what is left when this process has died.
    """
    ends = [int(end) for end in os.environ.pop(PIPES, "").split(",") if end]
    pairs = dict(zip(("stdout", "stderr"), zip(ends[:2], ends[2:], strict=True), strict=False))
    stream_class.unsent = None
    stream_class.pipe = None
    stream_class.written_for = None
    stream_class.fork = None
    names = ("_rotate_buffers", "_schedule_flush", "_is_master_process", "set_parent")
    is_known = all(hasattr(stream_class, name) for name in names)
    if is_known:
        stream_class.write = write_and_keep(stream_class.write)
        stream_class._rotate_buffers = take_all(stream_class._rotate_buffers)
        stream_class.set_parent = tell_forks(stream_class.set_parent)
    if hasattr(stream_class, "_watch_pipe_fd"):
        sends = is_known and watch_sender(sys.modules[stream_class.__module__])
        stream_class._watch_pipe_fd = watch
        stream_class.flush = flush_with_pipe(stream_class.flush, send_all if sends else stream_class.flush)
        stream_class._setup_stream_redirects = use_pipes(pairs)


def write_and_keep(write):
    """Return the method `write` of a stream, which also keeps the text in case that it can't be sent.

    It does the rest as `write` does, but finds the place of the text by the request only when that changes,
    and writes what a fork of a cell says to the pipe.
    """

    def write_kept(self, text):
        unsent = self.unsent
        if unsent is None or not isinstance(text, str) or self.pub_thread is None or self.echo is not None:
            return write(self, text)
        if os.getpid() != unsent.process:
            be_fork(self)
            return len(text) if write_as_fork(self, text) else write(self, text)
        parent = self.parent_header
        with self._buffer_lock:
            if parent is not self.written_for:
                self.place = frozenset(parent.items())
                self.written_for = parent
            self._buffers[self.place].write(text)
            unsent.keep(self.name, parent, text)
        if not self._flush_pending:
            self._schedule_flush()
        return len(text)

    return write_kept


def take_all(rotate):
    """Return the method `_rotate_buffers` of a stream, by which it takes what is to be sent."""

    def rotate_kept(self):
        with self._buffer_lock:
            if self.unsent is not None:
                self.unsent.take(self.name)
            if self._buffers and self.pub_thread is not None:
                self.pub_thread.taken = object()
            return rotate(self)

    return rotate_kept


def tell_forks(set_parent):
    """Return a stream's method `set_parent` that also tells forks of cells about a new request."""

    def set_and_tell(self, parent):
        if self.unsent is not None:
            self.unsent.count_request()
        set_parent(self, parent)

    return set_and_tell


def be_fork(stream):
    """Leave to the parent what is the parent's, in a fork of a cell that writes for the first time.

    That is the text that was not sent yet, a lock that one of its threads may hold, and the reading end: a
    fork that held it would wait for ever for somebody to read.
    """
    if stream.fork == os.getpid():
        return
    stream.fork = os.getpid()
    stream._buffer_lock = threading.RLock()
    stream._buffers = defaultdict(StringIO)
    stream._flush_pending = stream._subprocess_flush_pending = False
    if stream.pipe is not None and stream.pipe.is_at(stream.pipe.descriptor):
        os.close(stream.pipe.descriptor)


def write_as_fork(stream, text):
    """Write text of a fork to the pipe of its parent; returns whether it belongs there.

    It does as long as the fork's cell is what the parent takes such text for, and the pipe where it was.
    """
    place = stream._original_stdstream_fd
    if stream.pipe is None or not stream.pipe.is_at(place) or not stream.unsent.is_of_latest_request():
        return False
    latest = getattr(stream, "_parent_header_global", None)
    if stream.parent_header != latest:
        return False
    rest = memoryview(text.encode(errors="backslashreplace"))
    with suppress(BrokenPipeError):  # nobody is there any more
        while rest:
            try:
                rest = rest[os.write(place, rest) :]
            except BlockingIOError:  # another process made it so
                select.select((), (place,), ())
    return True


def use_pipes(pairs):
    """Return a stream's method `_setup_stream_redirects` that puts a pipe in a descriptor's place."""

    def redirect(self, name):
        self._fid, writer = pairs.pop(name, None) or os.pipe()
        self._original_stdstream_fd = getattr(sys, name).fileno()
        self._original_stdstream_copy = os.dup(self._original_stdstream_fd)
        os.dup2(writer, self._original_stdstream_fd)
        self._exc = None
        self.watch_fd_thread = threading.Thread(target=self._watch_pipe_fd, daemon=True)
        self.watch_fd_thread.start()

    return redirect


def watch_sender(module):
    """Have the thread that sends for all streams note what it is given, and return whether it can.

    `given` and `taken` change with each thing to do and each text that is taken to be sent; `given_sent` and
    `taken_sent` are what they were when all before that had been sent.
    """
    sender_class = getattr(module, "IOPubThread", None)
    if not hasattr(sender_class, "schedule"):
        return False
    schedule = sender_class.schedule_unnoted = sender_class.schedule

    def schedule_noted(self, action):
        # Before, should an interrupt come in between; afterwards, because a flush in another thread might.
        self.given = object()
        schedule(self, action)
        self.given = object()

    sender_class.schedule = schedule_noted
    sender_class.given = sender_class.given_sent = sender_class.taken = sender_class.taken_sent = None
    return True


def send_all(stream):
    """Have all that was written to a stream sent, and all that was given to its thread before.

    ipykernel flushes both streams, several times in a cell, and each time waits until another thread had its
    turn. Where that has nothing left to do, this does not.
    """
    sender = stream.pub_thread
    with stream._buffer_lock:
        is_given = sender.given is not sender.given_sent
        if not (stream._buffers or is_given or sender.taken is not sender.taken_sent):
            return
    is_sent = threading.Event()

    def flush():
        try:
            stream._flush()
        finally:
            # That gives its own thread what it has taken, behind what was given before.
            sender.schedule_unnoted(partial(note, sender.given))

    def note(given):
        sender.given_sent, sender.taken_sent = given, sender.taken
        is_sent.set()

    sender.schedule_unnoted(flush)
    if not is_sent.wait(stream.flush_timeout):
        print("IOStream.flush timed out", file=sys.__stderr__)


def flush_with_pipe(flush, send):
    """Return a stream's method `flush` that also sends the pipe's text, by `send` where there is one.

    ipykernel flushes before it sends an answer, an error or something displayed.
    """

    def flush_all(self):
        pipe = self.pipe
        # In a fork it is the parent's; in a branch, too, until that has its own.
        if not self._is_master_process():
            be_fork(self)
            flush(self)
            return
        if pipe is None or pipe.thread is not self.watch_fd_thread:
            flush(self)
            return
        pipe.drain()
        sender = self.pub_thread and self.pub_thread.thread
        if sender and sender.is_alive() and sender is not threading.current_thread() and self.echo is None:
            send(self)
        else:
            flush(self)

    return flush_all


def watch(stream):
    """Read the pipe of this stream until there are no more writers, or the stream is closed."""
    if stream._fid is None:
        return
    stream.pipe = pipe = Pipe(stream)
    try:
        while pipe.wait() and stream._should_watch and pipe.take():
            pass
    except Exception:  # noqa: BLE001 - shown when the stream is closed, as ipykernel does
        stream._exc = sys.exc_info()


class Pipe:
    """The reading end. Only the thread that watches it reads: an interrupt is raised in the thread of cells,
    where it could come between the reading of a piece and its writing.
    """

    def __init__(self, stream):
        self.stream = stream
        self.descriptor = stream._fid
        self.identity = identity(self.descriptor)
        self.thread = threading.current_thread()
        # The bytes of half a letter wait for the rest, also for that of the next cell's.
        self.letters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self.lock = threading.Lock()
        self.times = 0
        """How often it was read until it was empty, or long enough."""

    def is_at(self, number):
        """Return whether this descriptor is still one of its ends."""
        try:
            return identity(number) == self.identity
        except OSError:
            return False

    def wait(self, milliseconds=None):
        """Return whether there is something to read, or the end; without a number this waits for it."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        return bool(poll.poll(milliseconds))

    def holds_some(self):
        """Return whether there is something to read."""
        try:
            return any(fcntl.ioctl(self.descriptor, termios.FIONREAD, bytes(4)))
        except OSError:
            return self.wait(0)

    def take(self):
        """Pass on to the stream what is in the pipe; returns False once there are no more writers."""
        with self.lock:
            for _ in range(PIECES):
                if not self.wait(0):
                    break
                piece = os.read(self.descriptor, PIECE)
                text = self.letters.decode(piece, final=not piece)
                if text:
                    self.stream.write(text)
                if not piece:
                    return False
            self.times += 1
        return True

    def drain(self):
        """Return once what is in the pipe has been passed on: in another thread than the one that does it."""
        # One that has begun may have read before the last of it came.
        enough = self.times + 2
        while self.holds_some() and self.times < enough and self.thread.is_alive():
            time.sleep(PAUSE)
        # A piece that was read is written while this is held. The handler of a signal may flush while its own
        # thread writes, and the other thread then waits for that.
        if self.lock.acquire(timeout=PATIENCE):
            self.lock.release()


def identity(descriptor):
    """Tell a file from others; both ends of a pipe have the same identity. Raises OSError."""
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino
