"""The processes of a run that run tests: forks of one that has imported all of them.

Importing the tests takes 20 seconds of a processor the first time, when they are compiled, and 6 later; each
of the processes of ``pytest -n`` would import them anew. So one process, the importer, collects the tests and
throws away the collection; the modules stay. xdist starts a worker by a command, as which this file asks the
importer for a fork, and hands the fork its streams. The fork is xdist's worker from then on: it collects as
any worker does, and finds every module imported.

Run as a program, this file is the importer or that command. It knows nothing of what the tests are.
"""

from __future__ import annotations

import os
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType

_STREAMS = range(3)
"""Standard input, output and error."""
_LOG = "importer.log"
_SHOWN = 4000
"""Bytes of the importer's log that are shown if it ends before its time."""
_LOOK_S = 0.2
"""Seconds between two looks for workers that have ended."""


class Importer:
    """The process that imports, as the process that runs pytest has it; it ends when that one does."""

    def __init__(self, arguments: list[str], folder: Path) -> None:
        """Start importing the tests that pytest finds by `arguments`. `folder`: of the socket and the log."""
        self._address = folder / "importer"
        with socket.socket(socket.AF_UNIX) as listener, (folder / _LOG).open("wb") as log:
            # Here, so that it is there before the first worker asks.
            listener.bind(str(self._address))
            listener.listen(64)
            self._process = subprocess.Popen(
                [*self._command, "import", str(listener.fileno()), *arguments],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                pass_fds=[listener.fileno()],
            )

    @property
    def python(self) -> str:
        """The command that xdist calls in the place of Python."""
        return shlex.join([*self._command, "fork", str(self._address)])

    @property
    def _command(self) -> list[str]:
        # -P: the modules beside this one are not at the top.
        return [sys.executable, "-P", __file__]

    def close(self) -> None:
        """End the importer."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def _ask_for_a_fork(address: str) -> None:
    """Hand the importer this process's streams, and wait until the fork that has them ends."""
    told = os.dup(sys.stderr.fileno())
    ended = b""
    with socket.socket(socket.AF_UNIX) as asked, suppress(ConnectionError):
        asked.connect(address)
        socket.send_fds(asked, [b"."], list(_STREAMS))
        for number in _STREAMS:
            os.close(number)
        ended = asked.recv(1)
    if not ended:
        log = Path(address).with_name(_LOG).read_bytes()[-_SHOWN:]
        os.write(told, b"The process that imports the tests has ended; its last words:\n" + log)


class _Forgetter:
    """Forgets modules whose import failed: pytest leaves them half made, and workers would find them."""

    def pytest_exception_interact(self, node: object) -> None:
        path = str(getattr(node, "path", ""))
        for name, module in list(sys.modules.items()):
            if getattr(module, "__file__", None) == path:
                del sys.modules[name]


def _import_and_fork(listener: socket.socket, arguments: list[str]) -> None:
    """Collect tests, then fork for each process that asks, until standard input ends. Forks return, too."""
    import pytest

    # Without capture: modules that keep `sys.stderr` from their import on keep the one that stays open.
    options = ["--collect-only", "-qq", "--capture=no", "-p", "no:cacheprovider"]
    pytest.main([*options, *arguments], plugins=[_Forgetter()])
    sys.stdout.flush()
    assert threading.active_count() == 1, threading.enumerate()
    workers: dict[socket.socket, int] = {}
    while True:
        ready, _, _ = select.select([0, listener, *workers], [], [], _LOOK_S)
        if 0 in ready:
            return
        if listener in ready:
            asked, _ = listener.accept()
            _, streams, _, _ = socket.recv_fds(asked, 1, len(_STREAMS))
            worker = os.fork()
            if worker == 0:
                for each in (listener, asked, *workers):
                    each.close()
                _become_a_worker(streams)
                return
            for stream in streams:
                os.close(stream)
            workers[asked] = worker
        for asked, worker in list(workers.items()):
            if asked in ready:
                # The command was ended, which is to end the worker.
                os.kill(worker, signal.SIGKILL)
            if os.waitpid(worker, 0 if asked in ready else os.WNOHANG)[0]:
                del workers[asked]
                with suppress(OSError):
                    asked.send(b".")
                asked.close()


def _become_a_worker(streams: list[int]) -> None:
    """Run the program that xdist writes to the first of the streams, as a new Python does."""
    for number, stream in zip(_STREAMS, streams, strict=True):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv = ["-c"]
    main = sys.modules["__main__"] = ModuleType("__main__")
    exec(eval(sys.stdin.readline()), vars(main))


if __name__ == "__main__":
    part, place, *others = sys.argv[1:]
    if part == "fork":
        _ask_for_a_fork(place)
    else:
        _import_and_fork(socket.socket(fileno=int(place)), others)
