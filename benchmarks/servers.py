"""Starts the real servers, Cellgate by its command and jupyter_kernel_gateway as the peer, and cleans up.

Each runs in its own process group and temporary folder, with a minimal environment and its output in a file.
Nothing of them outlives the `with` block. It measures nothing itself, but a `Server` reports the resources
that its process used: those of the server only, never of its kernels.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.client import AnswerError, HttpClient

START_TIMEOUT = 120.0
STOP_TIMEOUT = 30.0
CATCH_UP = 0.2
"""Seconds a server gets to catch up after it was stopped."""

SETTLE_TIMEOUT = 90.0
SETTLE_WINDOW = 0.5
SETTLE_SHARE = 0.06
"""A server counts as settled when it and its kernels use less than this share of one processor."""

_CPU_CLOCK = 2
"""CPUCLOCK_SCHED of Linux's posix-timers.h: all threads of a process, including those that have ended."""

HERE = Path(__file__).parents[1]

_START = """
try:
    from gateway.cli import main
except ModuleNotFoundError:
    from cellgate.cli.main import main
raise SystemExit(main())
"""
START = ("-c", _START)
"""Runs the command of the checkout that is first on the path, which may have the old layout."""

KERNELSPECS = Path(sys.prefix) / "share" / "cellgate"


class ServerError(Exception):
    """A server did not start, or did not come to rest; the message holds the end of its output."""


@dataclass(frozen=True, slots=True)
class Server:
    """A running server. `folder` holds its data, its sockets and its temporary files."""

    url: str
    token: str
    process: psutil.Process
    folder: Path

    def client(self) -> HttpClient:
        """A new connection to it."""
        return HttpClient(self.url, self.token)

    def cpu(self) -> float:
        """Seconds of processor time that the server's process has used, without its kernels."""
        # The clock of clock_getcpuclockid(3): psutil's has a resolution of ten milliseconds.
        return time.clock_gettime((~self.process.pid << 3) | _CPU_CLOCK)

    def resident(self) -> int:
        """Bytes of resident memory of the server's process."""
        return int(self.process.memory_info().rss)

    def reset_peak(self) -> None:
        """Reset `peak` (proc_pid_clear_refs(5): writing 5 sets it to the current resident memory)."""
        Path("/proc", str(self.process.pid), "clear_refs").write_text("5")

    def peak(self) -> int:
        """The peak resident memory of the server's process since `reset_peak`, in bytes."""
        return self._status("VmHWM")

    def _status(self, name: str) -> int:
        text = Path("/proc", str(self.process.pid), "status").read_text()
        status = dict(line.split(":", 1) for line in text.splitlines())
        return int(status[name].split()[0]) * 1024

    def last_words(self) -> str:
        """Whether its process runs, and the end of its output: for errors."""
        state = "it runs" if self.process.is_running() else "it has ended"
        return f"{state}; its output ends:\n{_end_of_output(self.folder)}"

    def unique(self) -> int:
        """Bytes of memory that would be freed if the server's process ended."""
        return int(self.process.memory_full_info().uss)

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Stop the server's process for a while, so that it can't disturb the other server's measurement.

        Then give it a moment to catch up.
        """
        self.process.suspend()
        try:
            yield
        finally:
            self.process.resume()
            time.sleep(CATCH_UP)

    def settle(self) -> None:
        """Wait until the server and all its kernels are idle. Raises ServerError if they never are."""
        deadline = time.monotonic() + SETTLE_TIMEOUT
        quiet = 0
        used = _cpu_of_tree(self.process)
        while quiet < 2:
            if time.monotonic() > deadline:
                raise ServerError(f"the server at {self.url} did not come to rest in {SETTLE_TIMEOUT:g} s")
            time.sleep(SETTLE_WINDOW)
            before = used
            used = _cpu_of_tree(self.process)
            spent = sum(seconds - before.get(pid, 0.0) for pid, seconds in used.items())
            quiet = quiet + 1 if spent < SETTLE_SHARE * SETTLE_WINDOW else 0


def source_path(checkout: Path) -> str:
    """PYTHONPATH for the code of a checkout, of the current layout or an older one."""
    roots = ("gateway", "kernels", ".") if (checkout / "gateway" / "cellgate").is_dir() else (".",)
    return os.pathsep.join(str((checkout / root).resolve()) for root in roots)


def _interpreter(checkout: Path | None) -> Path:
    """The checkout's own Python, if it has one."""
    own = None if checkout is None else checkout.resolve() / ".venv" / "bin" / "python"
    return own if own is not None and own.exists() else Path(sys.executable)


def _cpu_of_tree(process: psutil.Process) -> dict[int, float]:
    used = {}
    for member in (process, *process.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            times = member.cpu_times()
            used[member.pid] = times.user + times.system
    return used


@contextmanager
def cellgate(
    backend: str, *options: str, script: Path | None = None, checkout: Path | None = None
) -> Iterator[Server]:
    """A `cellgate serve` of this environment on a free port, with all its kernels warm and idle.

    `script`: a file to run instead of the command. `checkout`: run that code instead of this; if it has been
    set up, with its own packages and kernels.
    """
    token = secrets.token_urlsafe(24)
    # Without -P a script's own folder would come first on the path, and its modules would hide others.
    program = [str(_interpreter(checkout)), "-P", *(START if script is None else (str(script),))]
    command = [*program, "serve"]
    with _folder() as folder:
        data = folder / "data"
        arguments = [
            "--port",
            "0",
            "--data-dir",
            str(data),
            "--backend",
            backend,
            f"--token={token}",
            *options,
        ]

        def url() -> str:
            return str(json.loads((data / "gateway.json").read_text())["url"])

        code = {} if checkout is None else {"PYTHONPATH": source_path(checkout)}
        with _running([*command, *arguments], folder, token, url, "/readyz", code) as server:
            yield server


@contextmanager
def jupyter_kernel_gateway(
    python: Path = Path(sys.executable), kernelspecs: Path = KERNELSPECS
) -> Iterator[Server]:
    """The peer, run by `python`, with the same kernelspecs as Cellgate and no others."""
    token = secrets.token_urlsafe(24)
    port = _free_port()
    arguments = [
        str(python),
        "-m",
        "kernel_gateway",
        "--KernelGatewayApp.ip=127.0.0.1",
        f"--KernelGatewayApp.port={port}",
        "--KernelGatewayApp.port_retries=0",
        f"--KernelGatewayApp.auth_token={token}",
        "--KernelSpecManager.ensure_native_kernel=False",
        "--Application.log_level=WARN",
    ]
    with (
        _folder() as folder,
        _running(
            arguments,
            folder,
            token,
            lambda: f"http://127.0.0.1:{port}",
            "/api",
            {"JUPYTER_PATH": str(kernelspecs)},
        ) as server,
    ):
        yield server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _folder() -> Iterator[Path]:
    """A folder with a short path (for Unix sockets), removed with everything that the server left in it."""
    with tempfile.TemporaryDirectory(prefix="bench-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        for part in ("data", "home", "run", "tmp"):
            (folder / part).mkdir(mode=0o700)
        yield folder


@contextmanager
def _running(
    command: Sequence[str],
    folder: Path,
    token: str,
    url: Callable[[], str],
    ready: str,
    extra: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    environment = {
        "PATH": f"{Path(sys.prefix) / 'bin'}:/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin",
        "HOME": str(folder / "home"),
        "LANG": "C.UTF-8",
        "TMPDIR": str(folder / "tmp"),
        "XDG_RUNTIME_DIR": str(folder / "run"),
        # Measure the code of this checkout, whatever is installed.
        "PYTHONPATH": source_path(HERE),
        **(extra or {}),
    }
    with (folder / "output.log").open("wb") as log:
        process = subprocess.Popen(
            command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder, start_new_session=True
        )
    try:
        server = _await_ready(process, folder, token, url, ready)
        server.settle()
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_TIMEOUT)
        process.kill()
        process.wait()
        _kill_remains(folder)


def _kill_remains(folder: Path) -> None:
    """Kill processes that the server left running: all whose arguments name this folder."""
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if any(str(folder) in argument for argument in process.cmdline()):
                process.kill()


def _await_ready(
    process: subprocess.Popen[bytes], folder: Path, token: str, url: Callable[[], str], ready: str
) -> Server:
    deadline = time.monotonic() + START_TIMEOUT
    while time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.1)
        # The file may be missing or incomplete, the port closed, the server not ready yet.
        with suppress(OSError, ValueError, AnswerError), HttpClient(url(), token) as client:
            if client.request("GET", ready).status == 200:
                return Server(url().rstrip("/"), token, psutil.Process(process.pid), folder)
    raise ServerError(f"no server became ready in {folder}; its output ends:\n{_end_of_output(folder)}")


def _end_of_output(folder: Path) -> str:
    return (folder / "output.log").read_text(errors="replace")[-2000:]
