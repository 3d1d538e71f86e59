"""Branches: a second kernel with everything that this one has in memory, by a fork of its process.

``bootstrap.py`` makes a `Branching` for each Python kernel and lets it run the kernel's loop. A branch is
asked for by a message of our own on the control channel. The kernel's main thread then leaves its loop, forks
where nothing of the loop is on the stack, and goes on.

What a fork copies is memory and the one thread that forks. So the branch keeps every object that a cell can
have seen (shell, variables, output streams, event loop, kernel) and exchanges what is under them: threads,
sockets, locks, pipes and descriptors, which are still the parent's, or dead. Nothing of the parent's may be
closed by the functions made for it, for they would tell the parent's threads, or change what both share;
only the branch's own descriptors are closed, by number. `Branch` has the steps, each with its reason.

The same request may ask for a fork that is held: `held.py` has what it does instead of becoming a kernel.

A branch is no child of its parent but of the keeper (``keeper.py``): either may end first, cells that wait
for their own processes never find it, and the keeper knows how it ended. This uses names of ipykernel,
tornado and asyncio that are not public; `missing_names` looks for all of them when the kernel starts, and if
one is missing the kernel does not say that it can branch.
"""

import asyncio
import atexit
import ctypes
import gc
import logging
import os
import random
import re
import selectors
import signal
import struct
import sys
import threading
import time
import uuid
import warnings
import weakref
from collections import defaultdict
from contextlib import contextmanager, suppress
from io import StringIO

REQUEST = "cellgate_branch_request"
REPLY = "cellgate_branch_reply"
FEATURE = "cellgate branch"
"""Among the supported features of a kernel_info_reply: it can branch."""

# Seconds.
BUSY_AFTER = 1.0
"""A kernel that is not idle by then is busy: longer than the end of a cell takes on a busy machine."""
LOOK_AGAIN = 0.005
COPY_AFTER = 0.005
"""By then whoever asked for a branch has its first answer."""
SILENT_AFTER = 10.0
"""A branch that has not come up by then is killed."""
ALONE_AFTER = 10.0
"""A branch to which nobody has spoken by then ends: whoever asked for it is gone."""

PID = struct.Struct("i")
READY, READY_WITH_NAMES = b"ready", b"ready with names"
MOST_WORD = 2000
MOST_LISTED = 64
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
OMP_PAUSE_SOFT = 1
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

# Threads of native libraries that wait in a branch for ever, by the beginnings of their names. polars starts
# one more when it is imported, polars-ooc-cleanup, which nothing waits for.
LOST_THREADS = re.compile(r"polars-\d|tokio-r")
NUMBA_OPENMP = "numba.np.ufunc.omppool"
CONTEXT = "context"
"""What ipykernel calls the context that a callback runs in."""

# Taken before a debugger replaces it with its own, which hangs here.
fork = os.fork


class Branching:
    """The branches of one kernel. Made in its main thread when it is initialised, before any cell runs.

    `spool`: the class of its spool, of which a branch gets one of its own. `held`: that of a fork which is
    held. `enter`: takes the names that are offered at a socket. `pages`: has the pages ready that cells write
    to. `native`: has the threads of libraries rest. `lost`: the module ``lost.py``. `unnamed`: the class of
    ``unnamed.py``.
    """

    def __init__(self, app, spool, held, enter, pages, native, lost, unnamed):
        self.app = app
        self.spool = spool
        self.held = held
        self.enter = enter
        self.pages = pages
        self.native = native
        self.lost = lost
        self.unnamed = unnamed
        self.is_branch = False
        # The timer by which this branch ends if nobody comes, inherited by its own branches.
        self.alone = None
        self.keeper = os.getppid()
        self.order = None
        # What a branch has of its parent's, and must never be finalised in it.
        self.abandoned = []
        # No cell has run yet.
        self.own_descriptors = descriptors()
        self.missing = missing_names(app)
        if self.missing:
            # Into the kernel's log; by now 2 itself belongs to the cells.
            log = getattr(sys.stderr, "_original_stdstream_copy", 2)
            os.write(log, f"This kernel can't be branched without {', '.join(self.missing)}\n".encode())
        else:
            self.note_descriptors()
            app.kernel.control_handlers[REQUEST] = self.requested

    @property
    def works(self):
        """Whether the kernel can branch at all."""
        return not self.missing

    @property
    def streams(self):
        """The kernel's own standard streams, whatever a cell may have put in their places."""
        return self.app.kernel.streams

    @property
    def loop(self):
        """The asyncio loop of the main thread, where cells run."""
        return self.app.io_loop.asyncio_loop

    def note_descriptors(self, but=()):
        """Remember libzmq's descriptors and ends of pipes, which look like a cell's; `but` are cells' own."""
        loops = {loop._selector.fileno() for loop in self.service_loops()}
        loops.add(asyncio.get_event_loop()._selector.fileno())
        links = {number: link for number, link in descriptors().items() if number not in but}
        self.epolls = {number for number, link in links.items() if link.endswith("[eventpoll]")} - loops
        self.eventfds = {number for number, link in links.items() if link.endswith("[eventfd]")}
        self.pipes = {stream: links[stream._fid] for stream in self.streams}
        # ipykernel forgets the writing ends once they are in the places of 1 and 2.
        pipes = set(self.pipes.values())
        self.pipe_ends = {number for number, link in links.items() if link in pipes and number > 2}

    def service_loops(self):
        """Return the asyncio loops of the kernel's own threads."""
        app = self.app
        threads = (app.control_thread, app.shell_channel_thread, app.iopub_thread)
        return [thread.io_loop.asyncio_loop for thread in threads]

    # ---- in the control thread

    async def requested(self, stream, ident, message):
        """Answer a request for a branch."""
        with suppress(Exception):  # cells can have exchanged what this uses, and a fork does without
            self.pages.look()
        answer = await self.answer(message["content"])
        self.app.session.send(stream, REPLY, answer, message, ident=ident)
        if answer["status"] == "ok":
            with suppress(Exception):
                self.pages.forked()
                self.pages.copy()

    async def answer(self, wanted):
        """Let the main thread fork, and wait for the branch's first word."""
        order = Order(wanted, asyncio.get_running_loop())
        self.app.io_loop.add_callback(self.consider, order)
        await asyncio.wait([order.decided], timeout=BUSY_AFTER)
        if not order.decided.done() and order.claim():
            return {"status": "error", "why": "busy"}
        decided = await order.decided
        if not isinstance(decided, ComingBranch):
            return decided
        branch, word = await decided.word()
        if word not in (READY, READY_WITH_NAMES):
            why = word.decode(errors="replace") or f"It did not come up within {SILENT_AFTER:g} s."
            return {"status": "error", "why": "failed", "message": why}
        return {
            "status": "ok",
            "pid": branch,
            "parent": os.getpid(),
            "named": word == READY_WITH_NAMES,
            "overruled": order.overruled,
            "children": children()[:MOST_LISTED],
        }

    # ---- in the main thread, in its loop

    def consider(self, order):
        """Leave the loop to fork as soon as nothing runs; say what stands in the way."""
        try:
            self.look_and_leave(order)
        except Exception as error:  # noqa: BLE001 - cells can have exchanged what this looks at
            self.native.wake()
            # Whoever asked would wait, and the control channel with it.
            if order.is_being_met or order.claim():
                order.fail(error)

    def look_and_leave(self, order):
        """Do the work of `consider`, and raise the errors that cells' changes cause."""
        if order.is_claimed:
            return
        if not self.is_idle():
            if order.was_given_back and time.monotonic() > order.busy_at and order.claim():
                order.decide({"status": "error", "why": "busy"})
                return
            # The end of a cell is told a moment before its task has ended.
            self.loop.call_later(LOOK_AGAIN, self.consider, order)
            return
        if not order.claim():
            return
        order.is_being_met = True
        maps = memory_map()
        obstacles = self.obstacles(maps)
        if order.wanted.get("hold"):
            obstacles += self.obstacles_to_holding(maps)
        if not obstacles or order.wanted["anyway"]:
            left = self.native.rest(self.app.kernel.shell.user_ns)
            obstacles += [("native_thread", library) for library in left]
        order.overruled = obstacles[:MOST_LISTED]
        if order.overruled and not order.wanted["anyway"]:
            self.native.wake()
            order.decide({"status": "error", "why": "obstacles", "obstacles": order.overruled})
            return
        self.order = order
        self.loop.stop()

    def is_idle(self):
        """Return whether no message is being dealt with: a fork in between would deal with it twice."""
        kernel = self.app.kernel
        if kernel._main_asyncio_lock.locked():
            return False
        dealing = {cells_callback(kernel).__code__, type(kernel).shell_main.__code__}
        codes = (getattr(task.get_coro(), "cr_code", None) for task in asyncio.all_tasks(self.loop))
        return dealing.isdisjoint(codes)

    def obstacles(self, maps):
        """Return obstacles to a fork as pairs of a kind and a name. `maps`: the `memory_map`."""
        found = [("thread", thread.name) for thread in self.foreign_threads()]
        names = {name for name in thread_names() if LOST_THREADS.match(name)}
        found += [("native_thread", name) for name in sorted(names)]
        if NUMBA_OPENMP in sys.modules:
            found.append(("openmp", "numba"))
        if getattr(getattr(self.app.kernel, "debugger", None), "is_started", False):
            found.append(("debugger", "debugpy"))
        if any("/libcuda.so" in path for path in mapped_files(maps)):
            found.append(("cuda", "libcuda"))
        if self.app.kernel.eventloop is not None:
            found.append(("event_loop", getattr(self.app.kernel.eventloop, "__name__", "gui")))
        return found

    def obstacles_to_holding(self, maps):
        """Return obstacles to a checkpoint: files that it would not bring back. `maps`: the `memory_map`."""
        own = self.own_descriptors
        opened = {number: link for number, link in descriptors().items() if own.get(number) != link}
        return [("unnamed_file", name) for name in self.unnamed(opened, maps).too_large()]

    def foreign_threads(self):
        """Return threads of Python code that are not the kernel's own, nor made anew where needed."""
        app = self.app
        own = {threading.main_thread(), app.iopub_thread.thread, app.heartbeat, app.poller}
        own |= {app.control_thread, app.shell_channel_thread}
        own |= {stream.watch_fd_thread for stream in self.streams}
        own |= idle_workers(self.loop._default_executor) | loky_threads()
        return [
            thread
            for thread in threading.enumerate()
            if thread not in own
            and not getattr(thread, "is_pydev_daemon_thread", False)
            # tqdm starts another when it finds this one dead.
            and type(thread).__module__ != "tqdm._monitor"
        ]

    # ---- in the main thread, with no loop running

    def run(self):
        """Run the kernel until it is shut down, here and in each branch."""
        self.app.start()
        while self.order is not None:
            order, self.order = self.order, None
            process = os.getpid()
            try:
                self.fork(order)
            except Exception as error:  # noqa: BLE001 - the kernel goes on
                if os.getpid() != process:
                    os._exit(1)
                order.fail(error)
            self.native.wake()
            with suppress(KeyboardInterrupt):
                self.app.io_loop.start()
        if self.is_branch:
            # The interpreter's own end would wait for what only the parent has.
            atexit._run_exitfuncs()
            os._exit(0)

    def fork(self, order):
        """Fork; this returns in the parent and in the branch."""
        if not self.is_idle():
            # A message came in while the loop was being left.
            order.give_back()
            self.app.io_loop.add_callback(self.consider, order)
            return
        for stream in self.streams:
            stream.flush()
        pause_openmp()
        # A fork gives the generator in its child another state; a branch has the same one.
        randomness = random.getstate()
        timers = {which: signal.getitimer(which) for which in TIMERS}
        lost = self.lost.Lost() if self.foreign_threads() else None
        try:
            between, pipe = fork_off()
        except OSError as error:
            why = f"It can't be forked: {error.strerror}"
            order.decide({"status": "error", "why": "failed", "message": why})
            return
        if between:
            order.decide(ComingBranch(between, pipe))
            return
        try:
            branch = Branch(self, order.wanted, randomness, timers)
            branch.part()
            if lost is not None:
                lost.mend()
            if order.wanted.get("hold"):
                pipes = {stream._original_stdstream_fd: self.pipes[stream] for stream in self.streams}
                held = self.held(self.own_descriptors | pipes, descriptors, fork_off, moved)
                held.settle(pipe)
                branch.wanted, pipe = held.serve(order.wanted["prefix"], pipe)
                branch.take_names()
                held.come_back(branch.wanted["workspace"])
                branch.postpone_timers(held.waited)
                branch.end_with_the_keeper()
            else:
                branch.take_names()
            with self.lost.unheard():
                branch.begin()
        except BaseException as error:  # noqa: BLE001 - half a branch must not run
            os.write(pipe, f"{type(error).__name__}: {error}".encode()[:MOST_WORD] + b"\n")
            os._exit(1)
        os.write(pipe, (READY_WITH_NAMES if branch.has_names else READY) + b"\n")
        os.close(pipe)


class Order:
    """One request for a branch, on its way between the control thread and the main thread."""

    def __init__(self, wanted, control_loop):
        self.wanted = wanted
        self.overruled = []
        self.decided = control_loop.create_future()
        self.control_loop = control_loop
        self.claimed = threading.Lock()
        self.was_given_back = False
        self.is_being_met = False
        self.busy_at = time.monotonic() + BUSY_AFTER

    @property
    def is_claimed(self):
        """Whether a thread has it."""
        return self.claimed.locked()

    def claim(self):
        """Take it over; only the first thread that asks gets it."""
        return self.claimed.acquire(blocking=False)

    def give_back(self):
        """Let it be claimed once more, by whoever comes first."""
        self.was_given_back = True
        self.is_being_met = False
        self.claimed.release()

    def decide(self, what):
        """Tell the control thread: an answer, or the `ComingBranch` process."""
        self.control_loop.call_soon_threadsafe(self.decided.set_result, what)

    def fail(self, error):
        """Tell it that this is why there is no branch."""
        why = f"{type(error).__name__}: {error}"[:MOST_WORD]
        self.decide({"status": "error", "why": "failed", "message": why})


class ComingBranch:
    """A branch that comes up, as the parent sees it: the process in between, and a pipe."""

    def __init__(self, between, pipe):
        self.between = between
        self.pipe = pipe
        self.received = b""

    async def word(self):
        """Return the branch's pid and first word. A silent one is killed, and its word is empty."""
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.receive(), SILENT_AFTER)
        os.close(self.pipe)
        word = self.received[PID.size :]
        complete = word.endswith(b"\n")
        branch = PID.unpack_from(self.received)[0] if len(self.received) >= PID.size else None
        if not complete:
            # Not there yet, or a hook for forks hangs in the process in between.
            with suppress(ProcessLookupError):
                os.kill(self.between if branch is None else branch, signal.SIGKILL)
        with suppress(ChildProcessError):  # a cell's own os.wait came first
            os.waitpid(self.between, 0)  # noqa: ASYNC222 - it has ended, or is about to
        return branch, word.strip() if complete else b""

    async def receive(self):
        """Read until the word's end, or the end of all who could say one."""
        loop = asyncio.get_running_loop()
        while not self.received.endswith(b"\n") or len(self.received) <= PID.size:
            readable = loop.create_future()
            loop.add_reader(self.pipe, readable.set_result, None)
            try:
                await readable
            finally:
                loop.remove_reader(self.pipe)
            data = os.read(self.pipe, MOST_WORD)
            if not data:
                return
            self.received += data


@contextmanager
def no_collection():
    """Collect no garbage until `gc.freeze` hides what was there: that would write to all shared memory."""
    collects = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collects:
            gc.enable()


def fork_quietly():
    """Fork as os.fork does, without its warning of other threads: the kernel's own are made anew."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return fork()


def moved(path, move):
    """Return the same place in another workspace, if it is in the first; `move`: from and to, if any."""
    if move is not None:
        inside = os.path.relpath(path, move["from"])
        if inside != os.pardir and not inside.startswith(f"{os.pardir}{os.sep}"):
            return os.path.normpath(os.path.join(move["to"], inside))  # noqa: PTH118
    return path


def fork_off(sibling=None):
    """Fork a process that is the keeper's child. Returns the process in between, and a pipe; in the new one
    0, and the pipe's other end. Raises OSError.

    `sibling`: a function that forks such a process itself, or returns None if it can't. Then there is none in
    between, and the new one is returned.
    """
    reader, writer = os.pipe()
    with no_collection():
        try:
            forked = None if sibling is None else sibling()
            between = fork_quietly() if forked is None else forked
        except OSError:
            os.close(reader)
            os.close(writer)
            raise
        if between:
            os.close(writer)
            return between, reader
        os.close(reader)
        if forked is None:
            become_nobodys_child(writer)
        else:
            os.write(writer, PID.pack(os.getpid()))
        gc.freeze()
    return 0, writer


def become_nobodys_child(pipe):
    """Fork once more, and go on in a process whose parent is the keeper, which adopts all orphans here."""
    between = os.getpid()
    try:
        branch = fork_quietly()
    except OSError as error:
        os.write(pipe, PID.pack(between) + f"It can't be forked: {error.strerror}\n".encode())
        os._exit(1)
    if branch:
        os.write(pipe, PID.pack(branch))
        os._exit(0)
    while os.getppid() == between:
        time.sleep(LOOK_AGAIN / 10)


class Branch:
    """The steps by which the copy of a kernel's process becomes a kernel of its own, in the only order that
    works: `part`, and `begin`. In between, nothing in it is its parent's but memory and what cells opened.
    """

    def __init__(self, branching, wanted, randomness, timers):
        self.branching = branching
        self.randomness = randomness
        self.timers = timers
        self.app = branching.app
        self.kernel = branching.app.kernel
        self.wanted = wanted
        self.has_names = False
        self.context = cells_context(self.kernel)

    def part(self):
        """Take the steps away from the parent."""
        self.branching.is_branch = True
        self.branching.abandoned.append(self.what_must_not_be_finalised())
        self.end_with_the_keeper()
        self.forget_the_parents_ends()
        self.leave_main_loop()
        self.close_the_parents_descriptors()

    def take_names(self):
        """Let the workspace's names be those of a folder of its own. It has one thread still, as that needs.

        Where that can't be done, it goes to its folder by another name.
        """
        names = self.wanted["names"]
        if names is None:
            return
        here = None
        with suppress(OSError):  # a cell removed it
            here = os.getcwd()  # noqa: PTH109
        try:
            self.branching.enter(names["socket"])
        except OSError:
            if names["needed"]:
                raise
            return
        self.has_names = True
        self.wanted["workspace"] = names["workspace"]
        try:
            os.chdir(here)
        except (OSError, TypeError):
            os.chdir(names["folder"])
        if "PWD" in os.environ:
            os.environ["PWD"] = os.getcwd()  # noqa: PTH109

    def begin(self):
        """Take the steps to a kernel."""
        of_cells = set(descriptors())
        self.enter_main_loop()
        self.take_new_identity()
        self.make_sockets()
        self.exchange_streams()
        self.exchange_threads()
        self.go_to_workspace()
        self.let_joblib_start_workers()
        self.branching.note_descriptors(but=of_cells)
        # As at a kernel's start, but where the cells' context variables are: decimal's precision is one.
        self.context.run(self.kernel.start)
        self.set_generators()
        self.watch_for_company()
        self.set_timers()
        # In the thread that does this after a fork.
        control_loop = self.app.control_thread.io_loop
        control_loop.add_callback(control_loop.call_later, COPY_AFTER, self.branching.pages.copy)

    def what_must_not_be_finalised(self):
        """Return references that keep the parent's objects from being finalised here.

        Finalisers of contexts wait for threads that do not exist here, those of loops unregister descriptors
        at epolls that both processes share.
        """
        app, kernel = self.app, self.kernel
        sockets = [socket for context in self.contexts() for socket in context._sockets]
        streams = [kernel.shell_stream, kernel.control_stream, kernel.debugpy_stream]
        threads = [app.iopub_thread, app.control_thread, app.shell_channel_thread, app.heartbeat]
        loops = self.branching.service_loops()
        manager = app.shell_channel_thread.manager
        return [*sockets, *self.contexts(), *streams, *threads, *loops, manager, vars(kernel).get("debugger")]

    def contexts(self):
        """Return the parent's zmq contexts."""
        return self.app.context, self.app.heartbeat.context

    def end_with_the_keeper(self):
        """Have the system end the branch with its keeper, and take a process group of its own.

        Interrupts go to the kernel's group, and must not hit the parent's.
        """
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != self.branching.keeper:
            os._exit(1)

    def forget_the_parents_ends(self):
        """Drop the calls registered for the parent's exit: they would empty the namespace, wait for
        threads, and remove temporary folders that the parent still uses.
        """
        atexit._clear()
        for finalizer in list(weakref.finalize._registry):
            finalizer.atexit = False
        # The next one is registered with atexit again.
        weakref.finalize._registered_with_atexit = False

    def leave_main_loop(self):
        """Close what the loop waits at.

        Nothing is unregistered at the old epoll, which both processes share: that would take the parent's
        readers away. Readers that a cell added are the parent's alone.
        """
        loop = self.branching.loop
        manager = self.kernel.shell_channel_thread.manager
        # Callbacks of this stream may wait in the loop; what they would receive is the parent's.
        manager._shell_channel_to_main.to_stream._handle_events = ignore
        self.had_wakeup = signal.set_wakeup_fd(-1) >= 0
        loop._selector.close()
        loop._ssock.close()
        loop._csock.close()

    def enter_main_loop(self):
        """Run the child's copy of the loop, with its tasks and timers, on an epoll of the child's own."""
        loop = self.branching.loop
        loop._selector = selectors.DefaultSelector()
        loop._internal_fds -= 1
        loop._make_self_pipe()
        if self.had_wakeup:
            signal.set_wakeup_fd(loop._csock.fileno())
        loop._default_executor = None
        for table in (self.app.io_loop.handlers, self.app.io_loop.readers, self.app.io_loop.writers):
            table.clear()
        # Some versions of Python unset it in a child.
        asyncio.set_event_loop(loop)

    def close_the_parents_descriptors(self):
        """Close the copies of what belongs to the parent's sockets, loops, streams and spool.

        Left open they would pile up from branch to branch, and keep the parent's connections open when it has
        ended. libzmq has no way to say which are its own: those it had before the first cell, those that its
        epolls watch, and one for each socket.
        """
        for loop in self.branching.service_loops():
            loop._selector.close()
            loop._ssock.close()
            loop._csock.close()
        numbers = self.branching.epolls | self.branching.eventfds | self.branching.pipe_ends
        for epoll in self.branching.epolls:
            numbers |= watched_by(epoll)
        for context in self.contexts():
            numbers |= {socket.FD for socket in context._sockets if not socket.closed}
        if self.app.spool is not None and self.app.spool.file is not None:
            numbers.add(self.app.spool.file)
        for number in numbers:
            with suppress(OSError):
                os.close(number)

    def take_new_identity(self):
        """Take another key and session: neither kernel takes the other's messages for its own."""
        session = self.app.session
        session.pid = os.getpid()
        session.session = str(uuid.uuid4())
        session.key = self.wanted["key"].encode()
        session.digest_history = set()
        self.kernel.ident = str(uuid.uuid4())
        self.app.ip = self.wanted["prefix"]
        folder = self.wanted["spool"]
        self.app.spool = None
        if folder is not None:
            os.makedirs(folder, 0o700, exist_ok=True)  # noqa: PTH103 - as the spool does
            self.app.spool = self.branching.spool(folder)

    def make_sockets(self):
        """Make sockets and their threads as at a kernel's start, below the new prefix."""
        app = self.app
        tornado_log = logging.getLogger("tornado")
        handlers = list(tornado_log.handlers)
        app.context = None
        app.init_sockets()
        app.init_heartbeat()
        # Each start adds one, and each would write every line once more.
        tornado_log.handlers = handlers

    def exchange_streams(self):
        """Give the streams, which loggers and cells hold, a pipe and a thread of this process."""
        for stream in self.branching.streams:
            # What it kept is the parent's.
            stream.unsent = None
            stream.pub_thread = self.app.iopub_thread
            stream._io_loop = self.app.iopub_thread.io_loop
            stream._master_pid = os.getpid()
            # A thread of the parent may have held it; and what was not sent yet is the parent's.
            stream._buffer_lock = threading.RLock()
            stream._buffers = defaultdict(StringIO)
            stream._flush_pending = stream._subprocess_flush_pending = False
            self.exchange_pipe(stream)
        self.app.keep_unsent(*self.branching.streams)

    def exchange_pipe(self, stream):
        """Read writes to descriptor 1 or 2 by a new pipe, unless a cell has put something else there."""
        place = stream._original_stdstream_fd
        stream._fid, writer = os.pipe()
        if descriptors().get(place) == self.branching.pipes[stream]:
            os.dup2(writer, place)
        os.close(writer)
        stream._exc = None
        stream.watch_fd_thread = threading.Thread(target=stream._watch_pipe_fd, daemon=True)
        stream.watch_fd_thread.start()

    def exchange_threads(self):
        """Give the kernel new sockets and threads, as `init_kernel` gives them to a new one."""
        from zmq.eventloop.zmqstream import ZMQStream  # noqa: PLC0415

        app, kernel = self.app, self.kernel
        kernel.shell_stream = ZMQStream(app.shell_socket, app.shell_channel_thread.io_loop)
        app.shell_channel_thread.shell_stream = kernel.shell_stream
        kernel.control_stream = ZMQStream(app.control_socket, app.control_thread.io_loop)
        kernel.debugpy_stream = ZMQStream(app.debugpy_socket, app.control_thread.io_loop)
        kernel.debug_shell_socket = app.debug_shell_socket
        kernel.control_thread = app.control_thread
        kernel.shell_channel_thread = app.shell_channel_thread
        kernel.iopub_thread = app.iopub_thread
        kernel.iopub_socket = app.iopub_socket
        kernel.stdin_socket = app.stdin_socket
        kernel.processes = {}
        # After a cell with an error it is set until a message of the parent's has come round.
        kernel._aborting = False
        for output in (app.displayhook, kernel.shell.displayhook, kernel.shell.display_pub):
            output.pub_socket = app.iopub_socket
        kernel.shell.displayhook.topic = kernel._topic("execute_result")
        if hasattr(kernel, "debugger"):
            kernel.debugger = kernel.debugger_class(
                kernel.log,
                kernel.debugpy_stream,
                kernel._publish_debug_event,
                kernel.debug_shell_socket,
                kernel.session,
                kernel._kernel_modules,
                kernel.debug_just_my_code,
                kernel.filter_internal_frames,
            )
        app.control_thread.start()
        app.shell_channel_thread.start()

    def go_to_workspace(self):
        """Go to the same place in a workspace of its own."""
        move = self.wanted["workspace"]
        if move is None:
            return
        try:
            here = os.getcwd()  # noqa: PTH109
        except FileNotFoundError:
            here = move["from"]  # a cell removed it
        target = moved(here, move)
        if target == here:
            return  # a cell went elsewhere
        os.chdir(target if os.path.isdir(target) else move["to"])  # noqa: PTH112
        if "PWD" in os.environ:
            os.environ["PWD"] = os.getcwd()  # noqa: PTH109

    def set_generators(self):
        """Let random generators go on as the parent's do, or seed them; the last step: others draw some."""
        seed = self.wanted["seed"]
        random.setstate(self.randomness)
        if seed is not None:
            random.seed(seed)
            numpy_random = sys.modules.get("numpy.random")
            if numpy_random is not None:
                numpy_random.seed(seed)

    def set_timers(self):
        """Set the parent's timers, such as `signal.alarm`'s, which a child does not inherit."""
        for which, (left, interval) in self.timers.items():
            if left:
                signal.setitimer(which, left, interval)

    def postpone_timers(self, seconds):
        """Let the loop's timers be due as long from now as they were when this process began to be held."""
        for timer in self.branching.loop._scheduled:
            timer._when += seconds

    def let_joblib_start_workers(self):
        """Let joblib start workers: those that it has are the parent's."""
        loky = sys.modules.get("joblib.externals.loky.reusable_executor")
        if loky is not None:
            self.branching.abandoned.append(loky._executor)
            loky._executor = None

    def watch_for_company(self):
        """End after a while if nobody speaks to this branch. The timer of its parent came with the loop."""
        loop = self.app.io_loop
        if self.branching.alone is not None:
            loop.remove_timeout(self.branching.alone)
        self.branching.alone = loop.call_later(ALONE_AFTER, self.end_if_alone)

    def end_if_alone(self):
        """End this branch if it got no message: the gateway that requested it has ended."""
        if not self.app.session.digest_history:
            os._exit(1)


def ignore(*_):
    """Ignore all arguments and do nothing."""


def cells_callback(kernel):
    """Return the callback that receives each message for the main thread."""
    return kernel.shell_channel_thread.manager._shell_channel_to_main.to_stream._recv_callback


def cells_context(kernel):
    """Return the context of context variables in which all cells run; only that callback has it."""
    callback = cells_callback(kernel)
    cells = dict(zip(callback.__code__.co_freevars, callback.__closure__, strict=True))
    return cells[CONTEXT].cell_contents


def pause_openmp():
    """Let GNU's OpenMP give up its threads, for which a branch would wait for ever. They come back by
    themselves. Each library that brings one is mapped by its own path.
    """
    for path in {path for path in mapped_files(memory_map()) if re.search(r"/libgomp[-.]", path)}:
        with suppress(OSError, AttributeError):
            ctypes.CDLL(path).omp_pause_resource_all(OMP_PAUSE_SOFT)


def memory_map():
    """Return this process's parts of memory, a line for each (proc(5)). Takes the system milliseconds."""
    with open("/proc/self/maps") as file:  # noqa: PTH123 - nothing more is imported
        return file.read().splitlines()


def mapped_files(maps):
    """Return the files that this process has mapped, of its `memory_map`."""
    return {line.split(maxsplit=5)[5].strip() for line in maps if "/" in line}


def thread_names():
    """Return the names that the system has for this process's threads."""
    names = []
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        path = f"/proc/self/task/{thread}/comm"
        with suppress(OSError), open(path, errors="replace") as file:  # noqa: PTH123 - a cell can have named it
            names.append(file.read().strip())
    return names


def children():
    """Return the processes that cells have started and that are still there: each as its pid and name."""
    found = []
    for thread in os.listdir("/proc/self/task"):  # noqa: PTH208
        with suppress(OSError), open(f"/proc/self/task/{thread}/children") as file:  # noqa: PTH123
            found += file.read().split()
    named = []
    for child in found:
        with suppress(OSError), open(f"/proc/{child}/comm", errors="replace") as file:  # noqa: PTH123
            named.append(f"{child} {file.read().strip()}")
    return named


def descriptors():
    """Return the open descriptors of this process, with what they are."""
    links = {}
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):
            links[int(name)] = os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
    return links


def watched_by(epoll):
    """Return the descriptors that an epoll watches (proc(5), fdinfo)."""
    with suppress(OSError), open(f"/proc/self/fdinfo/{epoll}") as file:  # noqa: PTH123
        return {int(line.split()[1]) for line in file if line.startswith("tfd:")}
    return set()


def idle_workers(executor):
    """Return the threads of a loop's own executor, while they wait for work: a branch makes others."""
    idle = getattr(getattr(executor, "_idle_semaphore", None), "_value", 0)
    threads = getattr(executor, "_threads", ())
    return set(threads) if idle >= len(threads) else set()


def loky_threads():
    """Return the threads that wait for joblib's worker processes; a branch starts its own."""
    loky = sys.modules.get("joblib.externals.loky.reusable_executor")
    executor = getattr(loky, "_executor", None)
    if executor is None:
        return set()
    queue = getattr(executor, "_call_queue", None)
    return {getattr(executor, "_executor_manager_thread", None), getattr(queue, "_thread", None)}


def missing_names(app):
    """Return the names that this file needs and that are not where they were, each with its owner; and that
    of what the system does not have.

    A kernel where this finds something can't branch, and works as ever.
    """
    # Without it an orphan's parent is the first process, which tells nobody of its end (gVisor, older ones).
    if ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(0), 0, 0, 0) < 0:
        return ["PR_SET_CHILD_SUBREAPER"]
    try:
        return names_not_found(app)
    except AttributeError as error:
        # The owner of others.
        return [str(error)]


def names_not_found(app):
    """Return the same as `missing_names`. Raises AttributeError."""
    from ipykernel import utils  # noqa: PLC0415

    kernel = app.kernel
    loop = asyncio.get_event_loop()
    needed = [
        (utils, "_async_in_context"),
        (kernel.control_stream, "_recv_callback _handle_events"),
        (app.control_thread.io_loop, "asyncio_loop handlers readers writers"),
        (kernel, "_stdout _stderr _main_asyncio_lock _aborting _topic control_handlers start shell_main"),
        (
            kernel,
            "shell_stream control_stream debugpy_stream debug_shell_socket stdin_socket ident processes",
        ),
        (app, "context heartbeat iopub_thread control_thread shell_channel_thread displayhook poller"),
        (app, "init_sockets init_heartbeat shell_socket control_socket debugpy_socket iopub_socket"),
        (app.session, "pid session key digest_history"),
        (app.shell_channel_thread, "shell_stream manager"),
        (kernel.shell.displayhook, "pub_socket topic"),
        (kernel.shell.display_pub, "pub_socket"),
        (loop, "_scheduled _selector _ssock _csock _internal_fds _make_self_pipe _default_executor"),
        (asyncio.TimerHandle, "_when"),
        (app.context, "_sockets"),
        (weakref.finalize, "_registry _registered_with_atexit"),
        (atexit, "_clear _run_exitfuncs"),
    ]
    needed += [
        (stream, names)
        for stream in (kernel._stdout, kernel._stderr)
        for names in (
            "pub_thread _io_loop _master_pid _buffer_lock _buffers _flush_pending _subprocess_flush_pending",
            "_fid _exc _original_stdstream_fd _watch_pipe_fd watch_fd_thread",
        )
    ]
    if hasattr(kernel, "debugger"):
        needed.append((kernel, "_publish_debug_event _kernel_modules debug_just_my_code debugger_class"))
    if app.shell_channel_thread is not None:
        manager = getattr(app.shell_channel_thread, "manager", None)
        needed.append((manager, "_shell_channel_to_main set_on_recv_callback"))
        needed.append((getattr(manager, "_shell_channel_to_main", None), "to_stream on_recv"))
    missing = [
        f"{type(owner).__name__}.{name}"
        for owner, names in needed
        for name in names.split()
        if not hasattr(owner, name)
    ]
    # The one place where the context of cells is to be found.
    if not missing and CONTEXT not in utils._async_in_context(ignore).__code__.co_freevars:
        missing.append(f"{utils.__name__}._async_in_context.{CONTEXT}")
    return missing
