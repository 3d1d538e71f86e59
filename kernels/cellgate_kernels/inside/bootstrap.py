"""Starts ipykernel as a Cellgate kernel; run by the kernel environment's own interpreter.

It needs nothing but ipykernel. ``bash_cells.py`` and ``deno_cells.py`` start kernels of other languages
through it. It is invisible to user code: ``sys.argv``, ``sys.path``, ``__main__`` and matplotlib's inline
backend are as ``python -m ipykernel_launcher`` leaves them. Differences: output in the middle of a cell is
sent immediately, no history is written, the kernel itself keeps messages that its readers have not fetched
yet, the debugger is loaded with its first request, ``exit()`` ends the kernel within its cell, an interrupt
of a command ends its cell, and some errors are said more plainly.
"""

if __name__ == "__main__":
    import keeper

    keeper.begin()

import atexit
import codecs
import json
import linecache
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
import warnings
from contextlib import suppress
from functools import cache, partial
from importlib import import_module, reload
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import MappingProxyType, TracebackType

FLUSH_INTERVAL = 0.01  # seconds; ipykernel's own is 0.2
FLUSH_TIMEOUT = 5.0  # seconds
SEND_SECONDS = 0.1  # in which zmq's own thread sends what it was given, unless the machine is busy
PRELOAD = "CELLGATE_PRELOAD"
SPOOL = "CELLGATE_SPOOL"
EGRESS = "CELLGATE_EGRESS"
ZYGOTE = "CELLGATE_ZYGOTE"
TABLE = "application/vnd.dataresource+json"

# What ipykernel loads while it starts, besides what the import of its application loads.
AT_THE_START = (
    "faulthandler",
    "tornado.platform.asyncio",
    "IPython.core.completerlib",
    "IPython.core.debugger",
    "IPython.core.logger",
    "IPython.core.oinspect",
    "IPython.extensions.storemagic",
    "IPython.utils.wildcard",
    "ipykernel.ipkernel",
    "pdb",
)

# The spool's ring: kernels/cellgate_kernels/channels/spool.py reads it with the same values.
SEGMENTS = 4
SEGMENT_BYTES = 4 * 1024 * 1024
ENTRY = struct.Struct(">I5I")
OUTPUT = {
    "execute_input",
    "stream",
    "display_data",
    "update_display_data",
    "execute_result",
    "clear_output",
    "error",
    "input_request",
}
KEPT = OUTPUT | {"status", "execute_reply"}
CELLS_COUNTED = 16
PLUMBING = set()  # the code of functions that errors are shown without
PROGRAMS = set()  # that of those that run programs of cells, and raise their errors
PIPED_BYTES = 64 * 1024
SURROGATE = re.compile("[\ud800-\udfff]")
INSTALLER = re.compile(r"\b(?:pip[0-9.]*|uv)\b")
INSTALLS = re.compile(r"\b(?:install|download|add|sync)\b")
NO_INDEX = (
    "[cellgate: cells can't reach a package index. The gateway installs packages, by `cellgate packages"
    " install` or a line `%pip install NAME`, if its operator allows them (cellgate serve --allow-package"
    " NAME)]"
)


def main(kernel_class=None):
    """Run the kernel until it is shut down; `kernel_class` replaces IPython's kernel."""
    # User code may have a module of this name.
    keeper = sys.modules.pop("keeper", None)
    here = Path(__file__).resolve().parent
    if sys.path and sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]
    orders = os.environ.pop(ZYGOTE, None)
    zygote = None if orders is None else beside(here, "zygote")
    shell_is_new = True
    if zygote is not None:
        shell_is_new = fork_kernels(zygote, orders, here)
        # From here on this is a forked kernel, behind its walls. Its keeper imports what is beside this file.
        sys.path.insert(0, str(here))
        sys.modules["keeper"] = keeper
        keeper.begin()
        del sys.path[0], sys.modules["keeper"]
        zygote.as_if_started()
    start_forwarder()
    # Interrupts go to the kernel's process group if it leads one: then they reach a cell's children too.
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    prepare_home(Path.home(), here)
    preload = [name.strip() for name in os.environ.pop(PRELOAD, "").split(",") if name.strip()]
    log = os.dup(2)

    app = application(kernel_class)
    if kernel_class is None:
        mend(app.shell)
        if zygote is not None and shell_is_new:
            zygote.show_plots()
        exit_ends_the_kernel(app)
        input_says_how(app.kernel)
        for reserve in (app.reserve_of_messages, app.reserve):
            app.shell.events.register("pre_execute", reserve.hold)
        app.kernel.branching = branching(app, here)
        columns = beside(here, "columns")
        beside(here, "rows").RowPages(app, columns).serve()
        beside(here, "variables").Variables(app, columns.openers).serve()
    # Not earlier: matplotlib must find the inline backend and the shell in place.
    for name in preload:
        try:
            import_module(name)
        except BaseException as error:  # noqa: BLE001 - the process ends here
            # stderr now belongs to the cells, and there is no cell to show this.
            os.write(log, f"{PRELOAD}: importing {name} failed: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
    os.close(log)
    if kernel_class is None and app.kernel.branching is not None:
        app.kernel.branching.run()
    else:
        app.start()


def branching(app, here):
    """Return what forks the kernel; None where the system does not show a process its own open files."""
    try:
        os.listdir("/proc/self/fd")  # noqa: PTH208
    except OSError:
        return None
    unnamed = beside(here, "unnamed").Unnamed
    held = partial(beside(here, "held").Held, sibling=beside(here, "sibling").fork, unnamed=unnamed)
    pages = beside(here, "pages").WrittenPages()
    enter = beside(here, "names").enter_offered
    helpers = enter, pages, beside(here, "native").Native(), beside(here, "lost"), unnamed
    return beside(here, "branch").Branching(app, Spool, held, *helpers)


def fork_kernels(zygote, orders, here):
    """Be a zygote for these `orders`; returns in each kernel whether it has still to make its shell."""
    if orders.isdigit():
        zygote.serve(int(orders), partial(load, here), partial(prepare, zygote))
        return False
    shared = beside(here, "container_zygote")
    # Each kernel has a home of its own there, so it makes its application itself.
    enter = beside(here, "names").enter
    shared.as_if_started(shared.serve(zygote, orders, partial(load, here), files_of_modules, enter))
    return True


@cache
def beside(here, name):
    """Return the module of this name beside this file, under no name by which user code could import it."""
    spec = spec_from_file_location(name, here / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(here):
    """Import what each kernel needs at its start, and make its classes; not the debugger."""
    prepare_home(Path.home(), here)
    kernel_that_branches()
    app_class()
    branches = ("branch", "held", "names", "pages", "sibling", "native", "lost", "unnamed")
    for name in (
        *branches,
        "variables",
        "columns",
        "rows",
        "tables",
        "stills",
        "streams",
        "unsent",
        "interrupts",
        "scripts",
    ):
        beside(here, name)
    for name in AT_THE_START:
        with suppress(ImportError):
            import_module(name)


def prepare(zygote):
    """Make what is the same in all kernels of a zygote, once its modules are loaded."""
    files_of_modules()
    app = app_with_settings()
    app.read_settings()
    if find_spec("debugpy") is not None:
        mend(kernel_with_late_debugger().make_shell(app))
        zygote.show_plots()


def start_forwarder():
    """Start the program that takes connections to the gateway's proxy, if this kernel may use that.

    CELLGATE_EGRESS is ``port:path``: the port on loopback that the variables for proxies name, and the
    gateway's socket. The program is no child of the kernel's, in whose place user code might wait for it, and
    in a process group of its own, so that interrupts don't end it. Connections wait until it has started.
    """
    told = os.environ.pop(EGRESS, None)
    if told is None:
        return
    port, _, path = told.partition(":")
    program = Path(__file__).resolve().with_name("forwarder.py")
    argv = [sys.executable, "-I", "-S", str(program), path]
    with socket.create_server(("127.0.0.1", int(port))) as listener:
        between = os.fork()
        if between == 0:
            try:
                os.setsid()
                if os.fork() == 0:
                    os.dup2(listener.fileno(), 0)
                    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
                    os.execv(argv[0], argv)  # noqa: S606 - no shell is wanted
            finally:
                os._exit(0)
        os.waitpid(between, 0)


@cache
def mend(shell):
    """Change IPython's shell: lines of cells, tables, charts, errors. A zygote's is changed before a fork."""
    cells_have_lines()
    tables_on_request(shell)
    charts_are_seen(shell)
    errors_in_plain_words(shell)
    commands_end_the_cell(shell)
    between = beside(Path(__file__).resolve().parent, "scripts").begin(shell)
    PLUMBING.update(between)
    PROGRAMS.add(between[-1])


def cells_have_lines():
    """Let IPython's tracebacks read cells: IPython looks for a file named like the cell, and there is none.

    Without its lines a frame is treated as part of a huge file (IPython.core.ultratb, FAST_THRESHOLD): the
    traceback shows where the frame is now, not where it raised, and does not fold recursion.
    """
    from IPython.core import ultratb  # noqa: PLC0415

    of_file = getattr(ultratb, "get_line_number_of_frame", None)
    if of_file is None:
        return

    def lines(frame):
        name = frame.f_code.co_filename
        return len(linecache.getlines(name)) if name in linecache.cache else of_file(frame)

    ultratb.get_line_number_of_frame = lines


def tables_on_request(shell):
    """Add pandas' tables as data, for cells whose request asks for it by ``metadata.cellgate.tables``.

    That is the maximum number of rows. JupyterLab knows the MIME type, and ``tables`` the form. A table that
    does not come as data has metadata of this type instead, whose `problem` says why.
    """
    from IPython.core.formatters import BaseFormatter  # noqa: PLC0415
    from traitlets import ObjectName, Unicode  # noqa: PLC0415

    here = Path(__file__).resolve().parent

    class TableFormatter(BaseFormatter):
        format_type = Unicode(TABLE)
        print_method = ObjectName("_repr_no_table_")
        _return_type = (dict, type(None))

    def data(table):
        asked = shell.get_parent().get("metadata", {}).get("cellgate")
        rows = asked.get("tables") if isinstance(asked, dict) else None
        if type(rows) is not int or rows < 1:
            return None
        return beside(here, "tables").table_or_why(table, rows)

    formatter = TableFormatter(parent=shell.display_formatter)
    for module in ("pandas", "pandas.core.frame", "pandas.core.series"):
        for name in ("DataFrame", "Series"):
            formatter.for_type_by_name(module, name, data)
    shell.display_formatter.formatters[TABLE] = formatter


def charts_are_seen(shell):
    """Show charts as data that the console draws, with a still for where no script runs."""
    stills = beside(Path(__file__).resolve().parent, "stills")
    stills.altair_as_data(shell)
    stills.Stills().begin(shell)


def exit_ends_the_kernel(app):
    """Let ``exit()`` and ``quit()`` end the kernel in their own cell.

    ipykernel stops its loop a tenth of a second after the cell, in the middle of whatever cell came next.
    """

    def leave():
        # The one argument that exit() takes, as sys.exit() does: a status, or what to say.
        told = app.shell.keepkernel_on_exit
        if told is True:
            return
        status = told if isinstance(told, int) else int(told is not None)
        if isinstance(told, str):
            print(told, file=sys.stderr)
        # Their own handlers close sockets, and stop the thread, that still have to send.
        atexit.unregister(app.close)
        atexit.unregister(app.iopub_thread.stop)
        with suppress(Exception):
            atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()
        sent = threading.Event()
        app.iopub_thread.schedule(sent.set)
        sent.wait(FLUSH_TIMEOUT)
        wait_for_zmq()
        os._exit(status & 0xFF)

    app.shell.ask_exit = leave


def input_says_how(kernel):
    """Let the error of ``input()`` in a cell without input say how to give it some."""
    from IPython.core.error import StdinNotImplementedError  # noqa: PLC0415

    def wrapped(ask):
        def asks(*arguments, **options):
            if not kernel._allow_stdin:
                raise StdinNotImplementedError(
                    'this cell gets no input; send lines with it ("stdin": ["..."]), or run it where somebody'
                    " can answer: as a stream, at the console or in a notebook"
                )
            return ask(*arguments, **options)

        PLUMBING.add(asks.__code__)
        return asks

    kernel.raw_input = wrapped(kernel.raw_input)
    kernel.getpass = wrapped(kernel.getpass)


def wait_for_zmq():
    """Wait until zmq's own threads have sent what they were given, and wait for more.

    A thread that was given something counts as running at once, however long a busy machine lets it wait.
    """
    time.sleep(SEND_SECONDS)
    late = time.monotonic() + FLUSH_TIMEOUT
    while time.monotonic() < late and any(map(is_running, Path("/proc/self/task").glob("*/stat"))):
        time.sleep(SEND_SECONDS)


def is_running(stat):
    """Return whether this file of /proc is that of a thread of zmq's that has something to do."""
    try:
        name, _, rest = stat.read_text(errors="replace").rpartition(") ")
    except OSError:
        return False
    return "(ZMQbg/IO" in name and not rest.startswith("S")


def errors_in_plain_words(shell):
    """Show errors whose frames below the cell say nothing to its reader without those frames.

    A failed ``%%bash`` or ``%%script`` is shown by its exit status alone, ``input()`` and commands by the
    line of the cell that they are in. One for want of memory is shown with the memory that is put aside.
    """
    from IPython.core.error import StdinNotImplementedError  # noqa: PLC0415

    def handler(self, etype, value, tb, tb_offset=None):
        if isinstance(value, MemoryError):
            app_with_settings().reserve.free()
        frame = tb
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        # Where memory was short there may have been none for a traceback.
        code = None if frame is None else frame.tb_frame.f_code
        failed = code is not None and isinstance(value, subprocess.CalledProcessError)
        if failed and (code in PROGRAMS or Path(code.co_filename).parts[-2:] == ("magics", "script.py")):
            if value.returncode is None:
                # IPython had to kill it, and did not wait for its end.
                value.returncode = -signal.SIGKILL
            shown = subprocess.CalledProcessError(value.returncode, "the program")
            lines = [f"CalledProcessError: {shown}"]
            self._showtraceback(etype, shown, lines)
            say_why_not_installed(value.cmd)
            return lines
        known, self.custom_exceptions = self.custom_exceptions, ()
        try:
            shown = (etype, value, until_plumbing(tb))
            self.showtraceback(shown, tb_offset=tb_offset, running_compiled_code=True)
        finally:
            self.custom_exceptions = known
        if failed and code not in PLUMBING:
            say_why_not_installed(value.cmd)
        return self._last_traceback or []

    plain = (subprocess.CalledProcessError, StdinNotImplementedError, KeyboardInterrupt, EOFError, OSError)
    shell.set_custom_exc((*plain, MemoryError), handler)


def until_plumbing(tb):
    """Return the traceback without the frames from the first one of a command, or of `input()`, on."""
    frames = []
    while tb is not None and tb.tb_frame.f_code not in PLUMBING:
        frames.append(tb)
        tb = tb.tb_next
    kept = None
    for each in reversed(frames):
        kept = TracebackType(kept, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return kept


def commands_end_the_cell(shell):
    """Let an interrupt of a command (``!`` and ``%pip``) end its cell, and say why it could not install.

    IPython interrupts the command and goes on with the cell, so that a cell at its deadline would be a
    success, or would run on until its kernel is killed. What is wrapped are the functions that get the
    command when its variables have been put in: those are looked for in the frame that calls the shell's
    methods.
    """
    from ipykernel import zmqshell  # noqa: PLC0415
    from IPython.core import interactiveshell  # noqa: PLC0415

    def run(command, system=zmqshell.system):
        status = interruptible(system if has_terminals() else through_pipe, command)
        if status:
            say_why_not_installed(command)
        return status

    zmqshell.system = run
    for name in ("getoutput", "get_output_error_code"):
        if (known := getattr(interactiveshell, name, None)) is not None:
            setattr(interactiveshell, name, partial(interruptible, known))
    for method in (type(shell).system, type(shell).getoutput):
        PLUMBING.add(method.__code__)


def has_terminals():
    """Return whether this process may make a terminal, in which IPython runs commands."""
    try:
        os.close(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def through_pipe(command):
    """Run a command without a terminal, print its output as it comes, and return its code as IPython does."""
    decode = codecs.getincrementaldecoder("utf-8")("replace").decode
    words = ["/bin/sh", "-c", command]
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as program:
        try:
            while part := os.read(program.stdout.fileno(), PIPED_BYTES):
                print(decode(part), end="", flush=True)
        except BaseException:
            program.kill()
            raise
    return program.returncode


def interruptible(function, command):
    """Call `function`, which catches interrupts, and raise the interrupt that came in between."""
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        return function(command)
    interrupted = False

    def note(number, frame):
        nonlocal interrupted
        interrupted = True
        return handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        result = function(command)
    finally:
        signal.signal(signal.SIGINT, handler)
    if interrupted:
        raise KeyboardInterrupt
    return result


def say_why_not_installed(command):
    """Print a sentence if the failed command is one that installs, and may ask no index."""
    if isinstance(command, bytes):
        command = command.decode(errors="replace")
    words = command if isinstance(command, str) else " ".join(map(str, command))
    if "PIP_NO_INDEX" in os.environ:
        installer = INSTALLER.search(words)
        if installer is not None and INSTALLS.search(words, installer.end()):
            print(NO_INDEX, file=sys.stderr)


def application(kernel_class=None):
    """Return the initialised ipykernel application; its sockets are bound, but it answers nothing yet."""
    folder = os.environ.pop(SPOOL, None)
    app = app_with_settings()
    app.spool = None if folder is None else Spool(folder)
    if kernel_class is not None:
        app.kernel_class = kernel_class
    else:
        app.kernel_class = kernel_that_branches()
    app.initialize()
    for stream in (sys.stdout, sys.stderr):
        stream.flush_interval = FLUSH_INTERVAL
    return app


@cache
def app_with_settings():
    """Return this process's ipykernel application, with our settings and the command's arguments."""
    # Not at the top, because they must see sys.path as main() leaves it.
    from ipykernel import kernelapp  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    launcher = Path(kernelapp.__file__).parent.with_name("ipykernel_launcher.py")
    sys.argv[0] = str(launcher)
    config = Config()
    config.HistoryManager.enabled = False
    return app_class().instance(config=config)


@cache
def app_class():
    """ipykernel's application with what is ours. Its `spool` is set before it is initialised."""
    from ipykernel import kernelapp  # noqa: PLC0415
    from IPython.core.application import BaseIPythonApplication  # noqa: PLC0415
    from traitlets.utils.importstring import import_item  # noqa: PLC0415

    here = Path(__file__).resolve().parent
    streams = beside(here, "streams")
    reserve_class = beside(here, "reserve").Reserve

    class ReadsSettingsOnce(BaseIPythonApplication):
        """The part of the initialisation that reads arguments and settings; a zygote does it for kernels."""

        settings_read = False

        def initialize(self, argv=None):
            if not self.settings_read:
                super().initialize(argv)
                self.settings_read = True
                return
            # The zygote's were in a home of its own.
            Path(self.profile_dir.location).mkdir(parents=True, exist_ok=True)
            self.profile_dir.check_dirs()

        def read_settings(self):
            ReadsSettingsOnce.initialize(self)

    class CellgateKernelApp(kernelapp.IPKernelApp, ReadsSettingsOnce):
        spool = None
        unsent = None
        # Two, because a cell that goes on takes at once what a message of it has not used.
        reserve_of_messages, reserve = (reserve_class(), reserve_class())

        def _session_default(self):
            return session_class()(parent=self)

        def init_io(self):
            streams.mend(import_item(str(self.outstream_class)))
            super().init_io()
            self.keep_unsent(sys.stdout, sys.stderr)

        def keep_unsent(self, *of_streams):
            """Keep the text of these streams that is perhaps not sent; a branch has a file of its own."""
            self.unsent = beside(here, "unsent").begin(self, of_streams, packed)

        def init_iopub(self, context):
            # 0 means no high-water mark: with a slow reader this process keeps its output, under its own
            # memory limit, where the default of 1000 messages would drop further output.
            context.sndhwm = 0
            super().init_iopub(context)

        def write_connection_file(self, **kwargs):
            """Do nothing: the file is the gateway's, complete, and often read-only."""

    return CellgateKernelApp


@cache
def session_class():
    """jupyter_client's session, for messages that are kept before they are sent.

    A question says which output was sent before it: the two go through sockets of their own, and the other
    side could not tell otherwise (``kernels/cellgate_kernels/protocol/waiting_questions.py``).
    """
    from jupyter_client.session import Session  # noqa: PLC0415

    class KeepingSession(Session):
        latest_output = ""

        def __init__(self, **options):
            super().__init__(**options)
            if self.packer == "json":
                self.pack = packed

        def serialize(self, msg, ident=None):
            kind = msg["header"]["msg_type"]
            if kind == "input_request":
                msg["metadata"]["cellgate_after"] = self.latest_output
            elif kind in OUTPUT:
                self.latest_output = msg["header"]["msg_id"]
            frames = self.parent.reserve_of_messages.through(super().serialize, msg, ident)
            if self.parent.unsent is not None and kind == "stream":
                self.parent.unsent.sent(msg)
            if self.parent.spool is not None:
                self.parent.spool.append(msg, frames)
            return frames

    return KeepingSession


@cache
def json_encoder():
    """Return a function that encodes JSON, and one that makes other values encodable."""
    from jupyter_client.jsonutil import json_clean, json_default  # noqa: PLC0415

    return json.JSONEncoder(default=json_default, ensure_ascii=False, allow_nan=False).encode, json_clean


def packed(message):
    """Return a part of a message as JSON. Values unknown to JSON are shown in words, as a NaN by its name.

    jupyter_client's own does the same, with a warning that would be in the output of the cell; and it fails
    at surrogates, which are half of a letter each.
    """
    as_json, clean = json_encoder()
    try:
        text = as_json(message)
    except (TypeError, ValueError):
        text = as_json(clean(message))
    try:
        return text.encode()
    except UnicodeEncodeError:
        return SURROGATE.sub(lambda found: rf"\\u{ord(found[0]):04x}", text).encode()


@cache
def kernel_that_branches():
    """IPython's kernel, which says what else it does; its `branching` is set when it is made.

    Its streams are flushed at each cell's end, whatever the cell has put in the place of ``sys.stdout``.
    """
    from ipykernel.ipkernel import IPythonKernel  # noqa: PLC0415

    cancels = beside(Path(__file__).resolve().parent, "interrupts").cancels
    base = IPythonKernel if find_spec("debugpy") is None else kernel_with_late_debugger()

    class BranchingKernel(base):
        branching = None

        @property
        def kernel_info(self):
            # The banner has a tip, drawn with the cells' own generator, whose numbers must not depend on it.
            drawn = random.getstate()
            told = super().kernel_info
            random.setstate(drawn)
            features = [*told["supported_features"], "cellgate variables"]
            if self.branching is not None and self.branching.works:
                features.append("cellgate branch")
            told["supported_features"] = features
            return told

        @property
        def streams(self):
            """The kernel's own standard streams, whatever a cell has put in their places."""
            return self._stdout, self._stderr

        async def do_execute(self, *arguments, **options):
            if self.parent.unsent is not None:
                # Also for a cell that writes nothing but what its children and C code write.
                self.parent.unsent.begin_cell(self._stdout.parent_header)
            try:
                return await super().do_execute(*arguments, **options)
            finally:
                for stream in self.streams:
                    # ipykernel flushes what is in these places.
                    if stream is not sys.stdout and stream is not sys.stderr:
                        stream.flush()

        def _cancel_on_sigint(self, future):
            return cancels(future, self.io_loop.asyncio_loop, self.shell.user_ns)

    return BranchingKernel


@cache
def kernel_with_late_debugger():
    """ipykernel's kernel, which loads debugpy with the first request to debug.

    A fifth of an idle kernel's memory is debugpy's, and few kernels are ever debugged.
    """
    # ipykernel.debugger tries to import it, and works without it.
    sys.modules["debugpy"] = None
    from ipykernel import debugger, ipkernel  # noqa: PLC0415
    from ipykernel.compiler import XCachingCompiler  # noqa: PLC0415
    from ipykernel.ipkernel import IPythonKernel  # noqa: PLC0415
    from ipykernel.zmqshell import ZMQInteractiveShell  # noqa: PLC0415
    from tornado.locks import Event  # noqa: PLC0415

    del sys.modules["debugpy"]
    debugger._is_debugpy_available = True

    class LateDebugger(debugger.Debugger):
        def __init__(self, *arguments):
            # The list among them is that of the modules' files; see below.
            self.arguments = [files_of_modules() if isinstance(each, list) else each for each in arguments]
            self.loaded = Event()

        async def process_request(self, message):
            if not self.loaded.is_set():
                reload(debugger)
                super().__init__(*self.arguments)
                self.loaded.set()
            return await super().process_request(message)

        async def handle_stopped_event(self):
            await self.loaded.wait()
            await super().handle_stopped_event()

    class LateDebuggerKernel(IPythonKernel):
        debugger_class = LateDebugger

        @classmethod
        def make_shell(cls, app):
            """Make the shell before there is a kernel, which then takes it, because there is only one."""
            return ZMQInteractiveShell.instance(
                parent=app, profile_dir=app.profile_dir, user_ns=app.user_ns, compiler_class=XCachingCompiler
            )

        def __init__(self, **options):
            # IPython's would look at each module, which in a forked kernel copies the memory that it is in.
            ipkernel.sys = WithoutModules()
            try:
                super().__init__(**options)
            finally:
                ipkernel.sys = sys
            # What IPython says of sys.exit() is for people at a terminal.
            warnings.filterwarnings("ignore", "To exit: use", UserWarning, r"IPython\.")
            # The environments keep it for older programs; some read what a cell that imports it prints.
            warnings.filterwarnings("ignore", "pkg_resources is deprecated", UserWarning)
            # If the shell was made before:
            self.shell.parent = self
            self.shell.kernel = self
            self.shell.init_environment()

    return LateDebuggerKernel


class WithoutModules:
    """The module ``sys``, as if no modules were loaded."""

    modules = MappingProxyType({})

    def __getattr__(self, name):
        return getattr(sys, name)


@cache
def files_of_modules():
    """Return files of the modules that a kernel has when it starts; the debugger does not step into them."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return [file for file in files if file]


class Spool:
    """A ring of files with the latest messages of cells, for a gateway that was away when they were sent.

    A kernel does not depend on it: messages that can't be written, because the disk is full, are left out.
    """

    def __init__(self, folder):
        self.folder = Path(folder)
        self.number = 0
        self.file = None
        self.size = 0
        self.sent = {}
        self.lock = threading.Lock()

    def append(self, msg, frames):
        """Keep a message that is about to be sent, if it is a cell's: one write, to the system's cache."""
        kind = msg["header"]["msg_type"]
        parent = msg["parent_header"]
        if kind not in KEPT or parent.get("msg_type") != "execute_request":
            return
        with self.lock:
            before = self.count(parent["msg_id"], kind)
            parts = frames[-5:]
            entry = b"".join((ENTRY.pack(before, *map(len, parts)), *parts))
            if len(entry) > SEGMENT_BYTES:
                return
            try:
                if self.file is None or self.size + len(entry) > SEGMENT_BYTES:
                    self.next_file()
                self.size += len(entry)
                if os.write(self.file, entry) < len(entry):
                    self.close()
            except OSError:
                self.close()

    def count(self, cell, kind):
        """Return the number of a cell's earlier outputs: it tells a reader how many the ring has lost."""
        before = self.sent.pop(cell, 0)
        self.sent[cell] = before + (kind in OUTPUT)
        if len(self.sent) > CELLS_COUNTED:
            del self.sent[next(iter(self.sent))]
        return before

    def next_file(self):
        """Start the next file and remove the oldest."""
        self.close()
        self.number += 1
        self.path(self.number - SEGMENTS).unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        self.file = os.open(self.path(self.number), flags, 0o600)
        self.size = 0

    def path(self, number):
        """Return the name of the file of this number."""
        return self.folder / f"spool-{number:08}"

    def close(self):
        """Close the file; further entries go to a new one, because this one may end in half an entry."""
        file = self.file
        self.file = None
        if file is not None:
            os.close(file)


def prepare_home(home, here):
    """Make the home folder, and give matplotlib the list of fonts and the settings that ``fonts.py`` made."""
    for folder, files in ((".cache", "fontlist-*.json"), (".config", "matplotlibrc")):
        target = home / folder / "matplotlib"
        target.mkdir(parents=True, exist_ok=True)
        for file in (here / "matplotlib").glob(files):
            shutil.copyfile(file, target / file.name)


if __name__ == "__main__":
    main()
