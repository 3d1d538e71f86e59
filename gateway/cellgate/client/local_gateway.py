"""A gateway of the program's own: `run` a cell, or work in a `local` session, with no server to start before.

The gateway is a process beside the program's, which ends with it. This module starts and ends it and makes
clients of it; ``cellgate.cli.serve.attached`` is what runs there, known by its name alone.
"""

from __future__ import annotations

import asyncio
import functools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import weakref
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, NoReturn, Unpack

import msgspec

from cellgate.client.api import Gateway, Session
from cellgate.client.errors import GatewayError
from cellgate.client.sync import SyncGateway, SyncSession
from cellgate.client.values import Result
from cellgate.wire.found_gateway import RUNNING_BYTES, RUNNING_FILE, FoundGateway
from cellgate.wire.models import CellKeywords, SessionKeywords
from cellgate_kernels.base.regular import read_regular

_START_SECONDS = 60.0
_SET_UP_SECONDS = 1800.0
_STOP_SECONDS = 20.0
_LOOK_SECONDS = 0.02
_MOST_OF_LOG = 4096
_FIXED = ("--ip", "127.0.0.1", "--port", "0")
_BY_DEFAULT = {"CELLGATE_POOL_SIZE": "1"}
_NOT_ISOLATED = (
    "Kernels are not isolated here: code can read and change all your files. `cellgate doctor` says what is"
    " missing for sandboxes"
)


class LocalGateway:
    """A gateway that this program starts for itself, and ends.

    As a context manager it is a client: a `SyncGateway` with ``with``, a `Gateway` with ``async with``. The
    gateway serves only this machine, with a token that only this program has. Kernels run in sandboxes where
    bubblewrap works; if there is less isolation, or none, a `RuntimeWarning` says so. It ends with the block,
    and with the program in any case, even one that is killed.

    `options`: options of ``cellgate serve``, such as ``["--allow-package", "polars"]``; settings of the
    environment and of configuration files don't count. `data_dir`: the folder of its record; by default a
    temporary one, which is removed at its end.
    """

    def __init__(self, options: Sequence[str] = (), *, data_dir: Path | str | None = None) -> None:
        if isinstance(options, str):
            raise TypeError('The options are a list of words, such as ["--backend", "process"], not one text')
        self._options = tuple(options)
        self._data_dir = data_dir
        self._starting = threading.Lock()
        self._server: _Server | None = None
        self._client: SyncGateway | None = None

    def __repr__(self) -> str:
        server = self._server
        return f"LocalGateway({'not started' if server is None else server.url!r})"

    def start(self) -> SyncGateway:
        """Start the gateway unless it runs, and return its client. Blocks; takes about a second.

        The first start of all makes the environment of kernels, which takes a minute: its steps are printed
        on standard error. Raises GatewayError, `not_started`, with the gateway's own words.
        """
        with self._starting:
            if self._client is None or self._server is None or not self._server.runs:
                self._close()
                self._server = _Server.start(self._options, self._data_dir)
                self._client = Gateway.sync(self._server.url, self._server.token)
                info = self._client.info()
                if info.isolation == "none":
                    warnings.warn(_NOT_ISOLATED, RuntimeWarning, stacklevel=2)
                elif info.isolation_gaps:
                    gaps = "; ".join(info.isolation_gaps)
                    warnings.warn(f"Kernels are not in sandboxes: {gaps}", RuntimeWarning, stacklevel=2)
            return self._client

    async def connect(self) -> Gateway:
        """Return a client without blocking methods, as `start` returns one with them."""
        await asyncio.to_thread(self.start)
        server = self._server
        assert server is not None
        return Gateway(server.url, server.token)

    def close(self) -> None:
        """End the gateway and all its sessions. Blocks. It may be started again."""
        with self._starting:
            self._close()

    def _close(self) -> None:
        client, server = self._client, self._server
        self._client = self._server = None
        if client is not None:
            client.close()
        if server is not None:
            server.end()

    def __enter__(self) -> SyncGateway:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def __aenter__(self) -> Gateway:
        return await self.connect()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.close)


class _Server:
    """The process of a gateway, and its temporary folder."""

    def __init__(self, process: subprocess.Popen[bytes], folder: Path, token: str) -> None:
        self._process = process
        self.url = ""
        self.token = token
        os.register_at_fork(after_in_child=partial(_let_go, weakref.ref(process)))
        self.end = weakref.finalize(self, _end, process, folder, os.getpid())
        """End the process and remove the folder, now or at the program's exit. Blocks. Idempotent."""

    @property
    def runs(self) -> bool:
        """Whether the process has not ended."""
        return self._process.poll() is None

    @classmethod
    def start(cls, options: Sequence[str], data_dir: Path | str | None) -> _Server:
        """Start the process, and return once it serves. Raises GatewayError."""
        folder = Path(tempfile.mkdtemp(prefix="cellgate-local-"))
        data = folder / "data" if data_dir is None else Path(data_dir).expanduser().absolute()
        settings, log, said = folder / "settings.json", folder / "log", folder / "said"
        settings.write_text("{}")
        token = secrets.token_urlsafe(24)
        given = {name: value for name, value in os.environ.items() if not name.startswith("CELLGATE_")}
        # Without the program's folder among the places of modules: what is there is not the gateway's.
        program = (sys.executable, "-P", "-m", "cellgate.cli.serve.attached", str(folder))
        with log.open("wb") as file, said.open("wb") as output:
            process = subprocess.Popen(
                (*program, *_FIXED, *options, "--config", str(settings), "--data-dir", str(data)),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=file,
                env=given | _BY_DEFAULT | {"CELLGATE_TOKEN": token},
                # Ctrl-C in a terminal is the program's, which interrupts its cell with it.
                start_new_session=True,
            )
        server = cls(process, folder, token)
        try:
            server.url = _served(process, data / RUNNING_FILE, said)
        except BaseException as error:
            words = _last_words(log)
            server.end()
            if isinstance(error, TimeoutError):
                why = words or f"it did not serve within {_START_SECONDS:g} seconds"
                raise GatewayError(0, "not_started", f"The gateway did not start: {why}") from None
            raise
        return server


def _served(process: subprocess.Popen[bytes], path: Path, said: Path) -> str:
    """Return the URL at which `process` serves, once it serves. Raises TimeoutError, also if it has ended.

    Before that it says only, in the file `said`, how it makes the environment of kernels. These steps are
    printed, and have their own time.
    """
    latest = time.monotonic() + _START_SECONDS
    with said.open(encoding="utf-8", errors="replace") as steps:
        while process.poll() is None and time.monotonic() < latest:
            lines = steps.readlines()
            try:
                found = msgspec.json.decode(read_regular(path, RUNNING_BYTES), type=FoundGateway)
            except FileNotFoundError:
                found = None
            # One that was killed may have left its own in a folder that the caller named.
            if found is not None and found.pid == process.pid:
                return found.url
            for line in lines:
                print(f"cellgate: {line}", end="", file=sys.stderr, flush=True)
                latest = time.monotonic() + _SET_UP_SECONDS
            time.sleep(_LOOK_SECONDS)
    raise TimeoutError


def _last_words(log: Path) -> str:
    """Return the last line that the gateway wrote to its log, without the program's name."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_OF_LOG))
        lines = file.read(_MOST_OF_LOG).decode(errors="replace").split("\n")
    return next((line.removeprefix("cellgate: ") for line in reversed(lines) if line.strip()), "")


def _let_go(known: weakref.ref[subprocess.Popen[bytes]]) -> None:
    """Close the pipe to the gateway in a fork of the program, which must not keep the gateway running."""
    process = known()
    if process is not None and process.stdin is not None:
        process.stdin.close()


def _end(process: subprocess.Popen[bytes], folder: Path, owner: int) -> None:
    if os.getpid() != owner:
        # A fork of the program ends; the gateway is the program's.
        return
    pipe: IO[bytes] | None = process.stdin
    assert pipe is not None
    # The end of its input stops it in order. A signal beside that would be its second, which cuts that short.
    pipe.close()
    for hurry in (process.terminate, process.kill):
        try:
            process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            hurry()
    process.wait()
    shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _gateway_of(process: int) -> LocalGateway:
    """Return the gateway of the process with this id, which `run` and `local` share."""
    return LocalGateway()


class LocalSession:
    """A session of this program's own gateway, for ``with`` and for ``async with``; made by `local`."""

    def __init__(self, name: str | None, *, keep: bool | None, options: SessionKeywords) -> None:
        self._name = name
        self._keep = keep
        self._options = options
        self._blocking: SyncSession | None = None
        self._session: Session | None = None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            """Say how it is used. Raises AttributeError."""
            raise AttributeError(f"Use it as `with cellgate.local() as session:`, then `session.{name}`")

    def __enter__(self) -> SyncSession:
        client = _gateway_of(os.getpid()).start()
        self._blocking = client.session(self._name, keep=self._keep, **self._options)
        return self._blocking.__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._blocking is not None:
            self._blocking.__exit__(kind, error, trace)

    async def __aenter__(self) -> Session:
        client = await _gateway_of(os.getpid()).connect()
        self._session = client.session(self._name, keep=self._keep, **self._options)
        return await self._session.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.__aexit__(kind, error, trace)


def local(
    name: str | None = None, *, keep: bool | None = None, **options: Unpack[SessionKeywords]
) -> LocalSession:
    """Return a session of this program's own gateway, started with the first one: `with local() as session:`.

    It is a `SyncSession`, or, with ``async with``, a `Session`; arguments as of `Gateway.session`. One with a
    name lives until the program ends. Raises GatewayError when entered.
    """
    return LocalSession(name, keep=keep, options=options)


def run(code: str, *, max_text: int | None = None, **options: Unpack[CellKeywords]) -> Result:
    """Run a cell in a fresh session of this program's own gateway, and return its result.

    The gateway starts with the first such call. Arguments as of `Session.run`. Raises GatewayError.
    """
    with local() as session:
        return session.run(code, max_text=max_text, **options)
