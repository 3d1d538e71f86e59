"""Starts bash_kernel as a Cellgate kernel; run by the kernel environment's own interpreter.

One bash, on its own terminal, runs all cells; ``bootstrap`` does the rest. Differences from the original
bash_kernel: a cell is sourced from a file instead of being typed, so that tabs, ``!`` and long lines are just
text, errors name the cell's lines, and nothing waits for input; output is sent in larger parts; when bash
exits, so does the kernel. As in bash_kernel, a terminal has no separate stderr.
"""

if __name__ == "__main__":
    import keeper

    keeper.begin()

import os
import re
import signal
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path

import bootstrap

sys.modules["debugpy"] = None  # a fifth of an idle kernel's memory, and only Python's

import pexpect  # noqa: E402
from bash_kernel.display import extract_contents  # noqa: E402
from bash_kernel.kernel import BashKernel  # noqa: E402
from bash_output import CellOutput, FileLine  # noqa: E402

FLUSH_TIMEOUT = 1.0  # seconds
READ_BYTES = 64 * 1024
LOOK_AGAIN = 0.2  # seconds after an interrupt; each further look waits twice as long as the one before
LOOKS = 5


class QuickSpawn(pexpect.spawn):
    """Doesn't wait before each line that it types, which only programs that ask for a password need."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.delaybeforesend = None


class CellgateBashKernel(BashKernel):
    """bash_kernel, with a different way of running a cell."""

    interrupted = running = False
    looks = 0
    seen = None  # a program that would not have ended by the signal when that was looked at

    def _start_bash(self):
        super()._start_bash()
        signal.signal(signal.SIGALRM, self.look_again)
        self.bashwrapper.run_command("stty -onlcr; set +o history")
        self.cells = Path.home() / ".cells"
        self.cells.mkdir(parents=True, exist_ok=True)

    def pre_handler_hook(self):
        """Send interrupts to bash, not as a KeyboardInterrupt here, which could come anywhere."""
        self.interrupted = False
        self.looks = 0  # cancels those left from an interrupt of the previous cell
        self.saved_sigint_handler = signal.signal(signal.SIGINT, self.interrupt)

    def interrupt(self, number, frame):
        """Send the terminal's interrupt to the program that runs in it."""
        self.interrupted = True
        self.looks = LOOKS
        self.seen = None
        self.send_interrupt()

    def send_interrupt(self):
        """Send it to the running program, and check soon whether that had started already."""
        if self.running:
            self.bashwrapper.child.sendintr()
            self.look_later()

    def look_later(self):
        """Check after a while: on a busy machine bash may take seconds to start a program."""
        signal.setitimer(signal.ITIMER_REAL, LOOK_AGAIN * 2 ** (LOOKS - self.looks))

    def look_again(self, number, frame):
        """Send it again to bash, or to a program that should have ended: bash was just starting it."""
        self.looks -= 1
        if self.running and self.looks >= 0:
            child = self.bashwrapper.child
            program = os.tcgetpgrp(child.fileno())
            if program == child.pid or ends_by_interrupt(program):
                self.send_interrupt()
            elif self.seen in (None, program):
                # It handles the signal, or bash has not yet made the program of it that it is to be. What
                # comes after one that has handled it is not looked at.
                self.seen = program
                self.look_later()

    async def do_execute(self, code, silent, store_history=True, user_expressions=None, allow_stdin=False):
        """Run a cell; its last command's exit status is its error."""
        self.silent = silent
        path = self.cells / f"{self.execution_count}"
        path.write_text(f"{code}\n")
        try:
            self.run_cell(path)
            status = self.exit_status()
        except pexpect.EOF:
            self.leave()
        finally:
            path.unlink(missing_ok=True)
        if not status:
            return self.reply("ok", payload=[], user_expressions={})
        if self.interrupted:
            error = {"ename": "KeyboardInterrupt", "evalue": "", "traceback": ["KeyboardInterrupt"]}
        else:
            error = {"ename": "ExitStatus", "evalue": f"{status}", "traceback": [f"Exit status {status}"]}
        if not silent:
            self.send_response(self.iopub_socket, "error", error)
        return self.reply("error", **error)

    def reply(self, status, **content):
        """Return the content of an execute_reply."""
        return {"status": status, "execution_count": self.execution_count, **content}

    def run_cell(self, path):
        """Run a file until bash prompts again. Raises EOF when bash is gone."""
        child = self.bashwrapper.child
        # An interrupt before the line would interrupt nothing, and the line would run. To block it would not
        # help: another thread takes it then, and its handler runs here all the same.
        stopped = self.interrupted
        child.sendline("false" if stopped else f". '{path}' </dev/null")
        self.running = True
        if self.interrupted and not stopped:
            self.send_interrupt()
        output = CellOutput(f"{self.unique_prompt}>")
        try:
            while not output.ended:
                self.show(output.feed(child.read_nonblocking(READ_BYTES, timeout=None)))
        finally:
            self.running = False
            self.show(output.end())
        if not self.interrupted:
            # Of programs in the background; after an interrupt it may be bash's second prompt.
            self.show(filter(None, [output.late]))

    def exit_status(self):
        """Return the exit status of the cell's last command, read after any output that an interrupt left."""
        child = self.bashwrapper.child
        mark = f"STATUS_{uuid.uuid4().hex}_"
        if self.interrupted:
            # An interrupt that came after the cell's end may still be on its way to bash, which can read one
            # letter before it notices, and then forgets that: let it be that of an empty line.
            child.sendline("")
        child.sendline(f"{{ echo {mark}$?; }} 2>/dev/null")
        child.expect(rf"{mark}(\d+)\s")
        status = int(child.match[1])
        child.expect_exact(f"{self.unique_prompt}>")
        return status

    def show(self, pieces):
        """Send text, and show the files that `display` and its like have named, in the output's order."""
        for piece in pieces:
            if self.silent:
                continue
            if not isinstance(piece, FileLine):
                self.send_text(piece)
            elif (content := self.content_of(piece)) is None:
                self.send_text(piece.line)
            elif "transient" in content:
                self._send_content_to_display_id(content)
            else:
                self.send_response(self.iopub_socket, "display_data", content)

    def send_text(self, text):
        """Send text to the client."""
        self.send_response(self.iopub_socket, "stream", {"name": "stdout", "text": text})

    def content_of(self, piece):
        """Return the content of the file that a piece names; None if it can't be shown."""
        with suppress(OSError, ValueError, AttributeError, IndexError):
            _, shown = extract_contents(piece.line.rstrip("\r\n") + "\n")
            return shown[0]
        return None

    def leave(self):
        """Exit as bash did, once everything is sent."""
        sent = threading.Event()
        self.iopub_thread.schedule(sent.set)
        sent.wait(FLUSH_TIMEOUT)
        child = self.bashwrapper.child
        child.close(force=True)  # waits a moment, in which zmq's own thread sends too
        if child.signalstatus:
            os.kill(os.getpid(), child.signalstatus)
        os._exit(child.exitstatus or 0)


def ends_by_interrupt(pid):
    """Return whether the process neither catches nor ignores SIGINT; False if that can't be read."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    masks = [int(mask, 16) for mask in re.findall(r"^Sig(?:Ign|Cgt):\s*(\w+)", status, re.MULTILINE)]
    return len(masks) == 2 and not any(mask >> (signal.SIGINT - 1) & 1 for mask in masks)


if __name__ == "__main__":
    os.environ.pop(bootstrap.PRELOAD, None)
    # bash_kernel uses pexpect.spawn, and types some forty lines when it starts.
    pexpect.spawn = QuickSpawn
    bootstrap.main(CellgateBashKernel)
