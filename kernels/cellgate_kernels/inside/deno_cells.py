"""Starts Deno's Jupyter kernel as a Cellgate kernel; run by the kernel environment's own interpreter.

``deno jupyter`` only speaks TCP (denoland/deno#35201), sends ``idle`` before all of a cell's output, and ends
cells that don't parse without an explanation. So it runs as a child on loopback, and a kernel that
``bootstrap`` makes passes it one cell at a time: this names each output's cell, ends a cell after its last
output, and says why a cell does not parse. When Deno exits, so does the kernel. As in Deno itself, only
running JavaScript can be interrupted: a cell that waits continues.
"""

if __name__ == "__main__":
    import keeper

    keeper.begin()

import json
import os
import queue
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from contextlib import ExitStack, suppress
from pathlib import Path

import bootstrap

CHANNELS = ("shell", "iopub", "stdin", "control", "hb")
START_TIMEOUT = 60.0
RETRY = 0.1
FLUSH_TIMEOUT = 10.0  # without any output
PATIENCE = 2.0  # for requests other than cells
LAST_WORDS = 0.2

FLUSHED = "cellgate_flushed"
# What its two isolates reserve for code; the kernelspec's `reserved` is the same.
RESERVED = 2**30

UNEXPLAINED = "Execution failed"
POSITION = re.compile(r"(?<!\s)\s++at file://\S*stdin\.ts:(?P<line>\d+):(?P<column>\d+)")
SETTINGS = {"NO_COLOR": "1", "DENO_NO_PROMPT": "1", "DENO_NO_UPDATE_CHECK": "1"}


def heap_limit():
    """Return V8's heap limit if this process's memory is limited; V8 looks at the machine's alone."""
    limit = resource.getrlimit(resource.RLIMIT_DATA)[0] - RESERVED
    return {"DENO_V8_FLAGS": f"--max-old-space-size={limit // 2**20}"} if limit > 0 else {}


class Deno:
    """The child process, on ports of loopback that were free just before."""

    def __init__(self):
        self.program = str(Path(sys.executable).with_name("deno"))
        self.command = [self.program, "jupyter", "--kernel", "--conn"]
        self.environment = {**os.environ, **SETTINGS, **heap_limit()}
        self.key = uuid.uuid4().hex
        with ExitStack() as stack:
            sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in CHANNELS]
            self.ports = {name: each.getsockname()[1] for name, each in zip(CHANNELS, sockets, strict=True)}
        info = {f"{name}_port": port for name, port in self.ports.items()}
        info |= {"transport": "tcp", "ip": "127.0.0.1", "signature_scheme": "hmac-sha256", "key": self.key}
        path = Path.home() / ".deno-kernel.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            json.dump(info, file)
        self.process = subprocess.Popen(
            # So that it ends with us, however we end.
            ["setpriv", "--pdeathsig", "KILL", "--", *self.command, str(path)],  # noqa: S607 - the image's PATH
            env=self.environment,
            stdin=subprocess.DEVNULL,
            # An interrupt sent to the kernel's process group would end it.
            start_new_session=True,
        )

    def connect(self, channel, name):
        """Connect a zmq socket to a channel and return it; Deno may not listen yet."""
        channel.linger = 0
        channel.reconnect_ivl = 20
        # As for any kernel: unread messages are kept in memory, not dropped.
        channel.rcvhwm = channel.sndhwm = 0
        channel.connect(f"tcp://127.0.0.1:{self.ports[name]}")
        return channel

    def explain(self, code):
        """Why code does not parse, as reported by Deno's formatter; empty if it reports nothing."""
        done = subprocess.run(
            [self.program, "fmt", "--ext", "ts", "--check", "-"],
            env=self.environment,
            input=code,
            capture_output=True,
            text=True,
            check=False,
            start_new_session=True,
        )
        found = POSITION.search(done.stderr)
        if not done.returncode or found is None:
            return {}
        said = done.stderr[: found.start()].removeprefix("error: ").removeprefix("SyntaxError: ").rstrip()
        reason = f"{said.splitlines()[0]} (line {found['line']}, column {found['column']})"
        return {"ename": "SyntaxError", "evalue": reason, "traceback": [f"SyntaxError: {said}"]}


if __name__ == "__main__":
    # Here, so that Deno starts while we import the rest.
    bootstrap.start_forwarder()
    deno = Deno()

sys.modules["debugpy"] = None  # a fifth of an idle kernel's memory, and only Python's

import zmq  # noqa: E402
from ipykernel.kernelbase import Kernel  # noqa: E402
from jupyter_client.session import Session  # noqa: E402


class CellgateDenoKernel(Kernel):
    """A kernel that is a client of Deno's."""

    deno = None  # the running child, before there is an instance
    implementation = "deno"
    banner = "Deno"

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.deno_session = Session(key=self.deno.key.encode(), signature_scheme="hmac-sha256")
        context = zmq.Context()
        self.requests = self.deno.connect(context.socket(zmq.DEALER), "shell")
        self.interrupts = self.deno.connect(context.socket(zmq.DEALER), "control")
        self.questions = self.deno.connect(context.socket(zmq.DEALER), "stdin")
        self.outputs = self.deno.connect(context.socket(zmq.SUB), "iopub")
        self.outputs.subscribe(b"")
        self.cell = {}
        self.silent = self.asking = self.interrupted = False
        self.shown_error = False
        self.received = 0
        self.flushed = queue.SimpleQueue()
        for task in (self.read_outputs, self.watch):
            threading.Thread(target=task, daemon=True).start()
        info = self.wait_until_ready()
        self.implementation_version = info["implementation_version"]
        self.language_info = info["language_info"]

    # Messages of Deno

    def wait_until_ready(self):
        """Return the content of its kernel_info_reply, once its output reaches us too."""
        deadline = time.monotonic() + START_TIMEOUT
        info = None
        while info is None or not self.received:
            if time.monotonic() > deadline:
                sys.exit("Deno does not answer.")
            asked = self.send(self.requests, "kernel_info_request", {})
            reply = self.reply(asked, RETRY)
            if reply is not None:
                info = reply
        return info

    def send(self, channel, msg_type, content):
        """Send Deno a request; returns its msg_id."""
        return self.deno_session.send(channel, msg_type, content)["header"]["msg_id"]

    def reply(self, asked, timeout):
        """Return the content of a reply, None if it is late; answers questions in the meantime."""
        poller = zmq.Poller()
        poller.register(self.requests, zmq.POLLIN)
        poller.register(self.questions, zmq.POLLIN)
        while ready := dict(poller.poll(None if timeout is None else timeout * 1000)):
            if self.questions in ready:
                self.answer(self.deno_session.recv(self.questions)[1]["content"])
            if self.requests in ready:
                message = self.deno_session.recv(self.requests)[1]
                if message["parent_header"]["msg_id"] == asked:
                    return message["content"]
        return None

    def answer(self, question):
        """Ask the cell's client for what the cell's prompt() asks; no answer is null."""
        ask = self.getpass if question["password"] else self.raw_input
        value = None
        self.asking = True
        with suppress(EOFError, KeyboardInterrupt):
            value = ask(question["prompt"])
        self.asking = False
        self.send(self.questions, "input_reply", {"value": value})

    def read_outputs(self):
        """Forever, in a separate thread: attribute Deno's output to the cell that runs, or ran last."""
        while True:
            message = self.deno_session.recv(self.outputs, mode=0)[1]
            kind = message["msg_type"]
            content = message["content"]
            self.received += 1
            if kind == FLUSHED:
                self.flushed.put(content.get("id"))
            elif kind not in ("status", "execute_input"):
                self.forward(kind, content, message)

    def forward(self, kind, content, message):
        """Forward an output as one of the cell's."""
        self.shown_error |= kind == "error"
        if self.silent:
            return
        if kind == "execute_result":
            content["execution_count"] = self.execution_count
        self.session.send(
            self.iopub_socket,
            kind,
            content,
            parent=self.cell,
            ident=self._topic(kind),
            metadata=message["metadata"],
            buffers=message["buffers"],
        )

    def watch(self):
        """Exit as Deno did, once its remaining output is sent."""
        code = self.deno.process.wait()
        time.sleep(LAST_WORDS)
        sent = threading.Event()
        if self.iopub_thread is not None:
            self.iopub_thread.schedule(sent.set)
            sent.wait(PATIENCE)
            time.sleep(LAST_WORDS)
        if code < 0:
            os.kill(os.getpid(), -code)
            time.sleep(LAST_WORDS)  # it may be delivered to another thread
        os._exit(abs(code))

    # Requests of the kernel's clients

    def pre_handler_hook(self):
        """Note interrupts, without a KeyboardInterrupt here, which could come anywhere."""
        self.interrupted = False
        self.saved_sigint_handler = signal.signal(signal.SIGINT, self.interrupt)

    def interrupt(self, number, frame):
        """`do_execute` checks the flag; a wait for input is ended immediately."""
        self.interrupted = True
        if self.asking:
            raise KeyboardInterrupt

    async def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False):
        """Run a cell, up to its last output."""
        self.cell = self.get_parent()
        self.silent = silent
        self.shown_error = False
        self._allow_stdin = allow_stdin
        options = {"silent": silent, "store_history": store_history, "allow_stdin": allow_stdin}
        asked = self.send(self.requests, "execute_request", {"code": code, **options})
        while (reply := self.reply(asked, RETRY)) is None:
            # Repeatedly, because Deno ignores an interrupt that comes before the cell has started.
            if self.interrupted:
                self.send(self.interrupts, "interrupt_request", {})
        self.flush()
        if reply["status"] == "ok":
            return {"status": "ok", "execution_count": self.execution_count, "user_expressions": {}}
        error = {name: reply[name] for name in ("ename", "evalue", "traceback")}
        if self.interrupted:
            error = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
        elif error["evalue"] == UNEXPLAINED:
            error |= self.deno.explain(code)
        if not silent and not self.shown_error:
            self.send_response(self.iopub_socket, "error", error)
        return {"status": "error", "execution_count": self.execution_count, **error}

    def flush(self):
        """Wait until all output so far has arrived: Deno sends a message of ours after it."""
        mark = uuid.uuid4().hex
        code = f'await Deno.jupyter.broadcast("{FLUSHED}", {{id: "{mark}"}})'
        asked = self.send(
            self.requests, "execute_request", {"code": code, "silent": True, "store_history": False}
        )
        reply = self.reply(asked, FLUSH_TIMEOUT)
        while reply is not None and reply["status"] == "ok":
            before = self.received
            try:
                if self.flushed.get(timeout=FLUSH_TIMEOUT) == mark:
                    return
            except queue.Empty:
                if self.received == before:
                    return

    def forwarded(self, kind, content, otherwise):
        """Return the content of Deno's reply to a request that it handles like any kernel."""
        reply = self.reply(self.send(self.requests, kind, content), PATIENCE)
        return otherwise if reply is None else reply

    async def do_complete(self, code, cursor_pos):
        """Return names that start with the text before the cursor."""
        nothing = {"matches": [], "cursor_start": cursor_pos, "cursor_end": cursor_pos, "metadata": {}}
        content = {"code": code, "cursor_pos": cursor_pos}
        return self.forwarded("complete_request", content, {"status": "ok", **nothing})

    async def do_is_complete(self, code):
        """Judged by brackets and quotes."""
        return self.forwarded("is_complete_request", {"code": code}, {"status": "unknown"})


if __name__ == "__main__":
    os.environ.pop(bootstrap.PRELOAD, None)
    CellgateDenoKernel.deno = deno
    bootstrap.main(CellgateDenoKernel)
