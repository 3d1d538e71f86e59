"""Starts ipykernel as a Cellgate kernel; run by the kernel environment's own interpreter: ``bootstrap.py -f
FILE``.

It does not use the gateway's code and needs nothing but ipykernel. ``bash_cells.py`` and ``deno_cells.py``
start kernels of other languages through it. It is invisible to user code: ``sys.argv``, ``sys.path``,
``__main__`` and matplotlib's inline backend are as ``python -m ipykernel_launcher`` leaves them. Differences:
output in the middle of a cell is sent immediately, no history is written, the kernel itself keeps messages
that its readers have not fetched yet, the debugger is loaded with its first request, ``exit()`` ends the
kernel within its cell, and three errors are said more plainly.
"""

if __name__ == "__main__":
    import keeper

    keeper.begin()

import atexit
import json
import linecache
import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import cache, partial
from importlib import import_module, reload
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

FLUSH_INTERVAL = 0.01  # seconds; ipykernel's own is 0.2
FLUSH_TIMEOUT = 1.0  # seconds
SEND_SECONDS = 0.1  # in which zmq's own thread sends what it was given
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

# The spool's ring: kernels/cellgate_kernels/spool.py reads it with the same values.
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
INSTALLS = re.compile(r"\b(?:pip[0-9.]*|uv)\b.*\b(?:install|download|add|sync)\b", re.DOTALL)
NO_INDEX = (
    "[cellgate: no package index is reached from here: packages come by the gateway's `packages` route or a"
    " line `%pip install NAME`, if its operator allows them (cellgate serve --allow-package NAME)]"
)


def main(kernel_class=None):
    """Run the kernel until it is shut down; `kernel_class` replaces IPython's kernel."""
    # User code may have a module of this name.
    keeper = sys.modules.pop("keeper", None)
    here = Path(__file__).resolve().parent
    if sys.path and sys.path[0] == str(Path(__file__).parent):
        del sys.path[0]
    orders = os.environ.pop(ZYGOTE, None)
    zygote = None if orders is None else zygote_module(here)
    if zygote is not None:
        zygote.serve(int(orders), partial(load, here))
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
        cells_have_lines()
        tables_on_request(app.shell)
        exit_ends_the_kernel(app)
        input_says_how(app.kernel)
        programs_say_their_status(app.shell)
        installers_say_why(app.shell)
    if zygote is not None:
        zygote.show_plots()
    # Not earlier: matplotlib must find the inline backend and the shell in place.
    for name in preload:
        try:
            import_module(name)
        except BaseException as error:  # noqa: BLE001 - the process ends here
            # stderr now belongs to the cells, and there is no cell to show this.
            os.write(log, f"{PRELOAD}: importing {name} failed: {type(error).__name__}: {error}\n".encode())
            os._exit(1)
    os.close(log)
    app.start()


def zygote_module(here):
    """``zygote.py`` beside this file, under no name by which user code could import it."""
    spec = spec_from_file_location("zygote", here / "zygote.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load(here):
    """Import what each kernel imports at its start, and make its classes; not the debugger, which it loads
    later.
    """
    prepare_home(Path.home(), here)
    if find_spec("debugpy") is not None:
        kernel_with_late_debugger()
    app_class()
    for name in AT_THE_START:
        with suppress(ImportError):
            import_module(name)


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

    That is the maximum number of rows. The format is pandas' own Table Schema, with the MIME type that
    JupyterLab knows for it; `total_rows` says how many rows there are.
    """
    from IPython.core.formatters import BaseFormatter  # noqa: PLC0415
    from traitlets import ObjectName, Unicode  # noqa: PLC0415

    class TableFormatter(BaseFormatter):
        format_type = Unicode(TABLE)
        print_method = ObjectName("_repr_no_table_")
        _return_type = dict

    def data(table):
        asked = shell.get_parent().get("metadata", {}).get("cellgate")
        rows = asked.get("tables") if isinstance(asked, dict) else None
        if type(rows) is not int or rows < 1:
            return None
        try:
            found = json.loads(table.head(rows).to_json(orient="table"))
        except Exception:  # noqa: BLE001 - pandas can't convert every table, and raises many kinds of errors
            return None
        return {**found, "total_rows": len(table)}

    formatter = TableFormatter(parent=shell.display_formatter)
    for module in ("pandas", "pandas.core.frame", "pandas.core.series"):
        for name in ("DataFrame", "Series"):
            formatter.for_type_by_name(module, name, data)
    shell.display_formatter.formatters[TABLE] = formatter


def exit_ends_the_kernel(app):
    """Let ``exit()`` and ``quit()`` end the kernel in their own cell.

    ipykernel stops its loop a tenth of a second after the cell, in the middle of whatever cell came next.
    """

    def leave():
        if app.shell.keepkernel_on_exit:
            return
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
        time.sleep(SEND_SECONDS)
        os._exit(0)

    app.shell.ask_exit = leave


def input_says_how(kernel):
    """Let the error of ``input()`` in a cell without input say how to give it some."""
    from IPython.core.error import StdinNotImplementedError  # noqa: PLC0415

    def wrapped(ask):
        def asks(*arguments, **options):
            __tracebackhide__ = True
            if not kernel._allow_stdin:
                raise StdinNotImplementedError(
                    'this cell gets no input; send lines with it ("stdin": ["..."]), or run it where somebody'
                    " can answer: as a stream, at the console or in a notebook"
                )
            return ask(*arguments, **options)

        return asks

    kernel.raw_input = wrapped(kernel.raw_input)
    kernel.getpass = wrapped(kernel.getpass)


def programs_say_their_status(shell):
    """Show a failed ``%%bash`` or ``%%script`` by its exit status, without IPython's frames and the code."""

    def handler(self, etype, value, tb, tb_offset=None):
        frame = tb
        while frame.tb_next is not None:
            frame = frame.tb_next
        if Path(frame.tb_frame.f_code.co_filename).parts[-2:] == ("magics", "script.py"):
            shown = subprocess.CalledProcessError(value.returncode, "the program")
            lines = [f"CalledProcessError: {shown}"]
            self._showtraceback(etype, shown, lines)
            say_why_not_installed(value.cmd)
            return lines
        known, self.custom_exceptions = self.custom_exceptions, ()
        try:
            self.showtraceback((etype, value, tb), tb_offset=tb_offset, running_compiled_code=True)
        finally:
            self.custom_exceptions = known
        say_why_not_installed(value.cmd)
        return self._last_traceback or []

    shell.set_custom_exc((subprocess.CalledProcessError,), handler)


def installers_say_why(shell):
    """Say how packages are got, after an installer that was run by ``!`` or ``%pip`` found no index."""
    run = shell.system

    def system(command):
        result = run(command)
        if shell.user_ns.get("_exit_code"):
            say_why_not_installed(command)
        return result

    shell.system = system


def say_why_not_installed(command):
    """Print a sentence if the failed command is one that installs, and may ask no index."""
    if isinstance(command, bytes):
        command = command.decode(errors="replace")
    words = command if isinstance(command, str) else " ".join(map(str, command))
    if "PIP_NO_INDEX" in os.environ and INSTALLS.search(words):
        print(NO_INDEX, file=sys.stderr)


def application(kernel_class=None):
    """The initialised ipykernel application; its sockets are bound, but it answers nothing yet."""
    # Not at the top, because they must see sys.path as main() leaves it.
    from ipykernel import kernelapp  # noqa: PLC0415
    from traitlets.config import Config  # noqa: PLC0415

    folder = os.environ.pop(SPOOL, None)
    launcher = Path(kernelapp.__file__).parent.with_name("ipykernel_launcher.py")
    sys.argv[0] = str(launcher)
    config = Config()
    config.HistoryManager.enabled = False
    app = app_class().instance(config=config)
    app.spool = None if folder is None else Spool(folder)
    if kernel_class is not None:
        app.kernel_class = kernel_class
    elif find_spec("debugpy") is not None:
        app.kernel_class = kernel_with_late_debugger()
    app.initialize()
    for stream in (sys.stdout, sys.stderr):
        stream.flush_interval = FLUSH_INTERVAL
    return app


@cache
def app_class():
    """ipykernel's application with what is ours. Its `spool` is set before it is initialised."""
    from ipykernel import kernelapp  # noqa: PLC0415
    from jupyter_client.session import Session  # noqa: PLC0415

    class SpoolingSession(Session):
        def serialize(self, msg, ident=None):
            frames = super().serialize(msg, ident)
            if self.parent.spool is not None:
                self.parent.spool.append(msg, frames)
            return frames

    class CellgateKernelApp(kernelapp.IPKernelApp):
        spool = None

        def _session_default(self):
            return SpoolingSession(parent=self)

        def init_iopub(self, context):
            # 0 means no high-water mark: with a slow reader this process keeps its output, under its own
            # memory limit, where the default of 1000 messages would drop further output.
            context.sndhwm = 0
            super().init_iopub(context)

        def write_connection_file(self, **kwargs):
            """Does nothing: the file is the gateway's, complete, and often read-only."""

    return CellgateKernelApp


@cache
def kernel_with_late_debugger():
    """ipykernel's kernel, which loads debugpy with the first request to debug.

    A fifth of an idle kernel's memory is debugpy's, and few kernels are ever debugged.
    """
    # ipykernel.debugger tries to import it, and works without it.
    sys.modules["debugpy"] = None
    from ipykernel import debugger  # noqa: PLC0415
    from ipykernel.ipkernel import IPythonKernel  # noqa: PLC0415
    from tornado.locks import Event  # noqa: PLC0415

    del sys.modules["debugpy"]
    debugger._is_debugpy_available = True

    class LateDebugger(debugger.Debugger):
        def __init__(self, *arguments):
            self.arguments = arguments
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

    return LateDebuggerKernel


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
        """How many outputs of the cell came before; so a reader knows what is no longer in the ring."""
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
        """The name of the file of this number."""
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
