"""The command ``cellgate`` in processes of their own: as it is installed, or forked where it is imported.

Four fifths of what a short command costs, and most of a gateway's start, is Python importing the same
modules again. `Forked` processes come from Python's own fork server (multiprocessing), which has imported
them once. They differ from started ones in nothing that the command can see, except that what an interpreter
does before the command's first line has been done. What is about that, about pipes or about terminals, starts
`INSTALLED`.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

INSTALLED = Path(sys.executable).with_name("cellgate")
PATIENCE = 120.0

IMPORTED = [
    "cellgate.cli.main",
    "cellgate.cli.run.console",
    "cellgate.cli.run.exec",
    "cellgate.cli.record.export",
    "cellgate.cli.run.files",
    "cellgate.cli.serve.forced_exit",
    "cellgate.cli.run.open",
    "cellgate.cli.run.process",
    "cellgate.cli.record.record",
    "cellgate.cli.record.replay",
    "cellgate.cli.run.run",
    "cellgate.cli.serve.serve",
    "cellgate.cli.run.session",
    "cellgate.cli.run.sessions",
    "cellgate.cli.people.token",
    "cellgate.cli.people.user",
    "cellgate.cli.record.verify",
    "cellgate.mcp.door",
    "cellgate.identity.store.opening",
    "cellgate.server.assembly",
    "cellgate_kernels.backends.docker",
    "cellgate_kernels.backends.process",
    "cellgate_kernels.backends.sandbox",
]
"""What the fork server imports, with all that these import."""
FORK_SERVER = "tests.support.fork_server"
CONSTANTS = "tests.support.constants"


def environment(**variables: str) -> dict[str, str]:
    """This process's variables without Cellgate's own, and these."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("CELLGATE_")}
    return kept | variables


class Forked:
    """A ``cellgate`` in a process group of its own; the methods are those of `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str | Path],
        *,
        output: Path,
        errors: Path | None = None,
        stdin: Path = Path(os.devnull),
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        constants: Mapping[str, object] | None = None,
    ) -> None:
        """`output` gets stdout, and stderr too unless `errors` is given; both are appended to.

        `constants`: values of a gateway that are no options, see ``constants``.
        """
        context: ForkServerContext = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([*IMPORTED, __name__, FORK_SERVER, CONSTANTS])
        self._process = context.Process(
            target=_run,
            args=(
                list(map(str, words)),
                (stdin, output, errors),
                Path.cwd() if cwd is None else cwd,
                environment() if env is None else dict(env),
                constants,
            ),
        )
        self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code, if it has ended; minus the signal's number if one ended it."""
        return self._process.exitcode

    def poll(self) -> int | None:
        """The same, asked now."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended."""
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("cellgate", timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)


@contextmanager
def serve(*words: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """The installed ``cellgate serve`` with just these words and variables, and pipes; ended afterwards."""
    process = subprocess.Popen(
        [INSTALLED, "serve", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate(timeout=60)


def announced(data_dir: Path, process: subprocess.Popen[str]) -> dict[str, Any]:
    """What gateway.json says, once the gateway serves."""
    path = data_dir / "gateway.json"
    deadline = time.monotonic() + PATIENCE
    while not path.exists() or json.loads(path.read_text()).get("pid") != process.pid:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "the gateway does not serve"
        time.sleep(0.02)
    found = json.loads(path.read_text())
    assert isinstance(found, dict)
    return found


def refusal(*words: str) -> tuple[int, str]:
    """Exit code, and the one line that says why ``cellgate serve`` did not start."""
    done = cellgate("serve", *words)
    assert done.stdout == ""
    assert done.stderr.count("\n") == 1, done.stderr
    assert done.stderr.startswith("cellgate: ")
    return done.returncode, done.stderr


def cellgate(
    *words: str | Path,
    stdin: str = "",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = PATIENCE,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, which must come in time."""
    with tempfile.TemporaryDirectory() as folder:
        given, output, errors = (Path(folder, name) for name in ("stdin", "stdout", "stderr"))
        given.write_text(stdin)
        process = Forked(words, output=output, errors=errors, stdin=given, env=env, cwd=cwd)
        try:
            code = process.wait(timeout)
        finally:
            process.kill()
        return subprocess.CompletedProcess(["cellgate", *words], code, output.read_text(), errors.read_text())


def _run(
    words: list[str],
    streams: tuple[Path, Path, Path | None],
    folder: Path,
    variables: dict[str, str],
    constants: Mapping[str, object] | None,
) -> None:
    """In the forked process: become what the installed program is before its first line, and be it."""
    os.setsid()
    stdin, output, errors = streams
    _open(0, stdin, os.O_RDONLY)
    _open(1, output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    if errors is None:
        os.dup2(1, 2)
    else:
        _open(2, errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sys.stdin = os.fdopen(0, closefd=False)
    sys.stdout = os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False, errors="backslashreplace")
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(variables)
    sys.argv = [str(INSTALLED), *words]
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])  # see `FORK_SERVER`
    if constants:
        import_module(CONSTANTS).use(constants)
    try:
        sys.exit(import_module("cellgate.cli.main").main())
    finally:
        # multiprocessing's processes leave without it.
        atexit._run_exitfuncs()


def _open(number: int, path: Path, flags: int) -> None:
    opened = os.open(path, flags, 0o644)
    os.dup2(opened, number)
    os.close(opened)
