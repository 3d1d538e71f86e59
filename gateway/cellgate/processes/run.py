"""One program of a session: follows it to its end, records its events, and enforces its deadline.

``outputs`` decides which output is recorded, ``table`` has the session's programs, and the program itself is
``cellgate_kernels.keeper.programs``.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from signal import Signals
from typing import Any, Final, Protocol

import msgspec

from cellgate.errors import Conflict, StorageError
from cellgate.processes.outputs import ProcessOutputs
from cellgate.processes.request import ProcessRequest
from cellgate.record.events import EventLog, now
from cellgate.record.rows import EventRow
from cellgate.wire.answers import ProcessModel
from cellgate_kernels.base.errors import GatewayFault, KernelDied
from cellgate_kernels.keeper.programs import Program, ProgramExit, StreamName
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.masking import Masker

TERMINATED: Final = "terminated"
TIMEOUT: Final = "timeout"
PATIENCE: Final = 10.0
"""Seconds after a request to end that the kernel's keeper gets to report the end."""
FATE_SECONDS: Final = 5.0
"""Seconds within which a kernel's end is known after its programs are lost."""

SHORT: Final = 1000
"""Characters of long arguments that stay when the rest is dropped."""

EVENTS: Final = frozenset(("process_started", "process_output", "process_exited"))


class ProcessHost(Protocol):
    """The session, as far as its programs need one."""

    @property
    def log(self) -> EventLog:
        """The log that records events of programs."""

    @property
    def cap(self) -> int:
        """The most bytes of one program's output that are recorded."""

    def masker(self) -> Masker | None:
        """Return the secrets that the session's programs may know; None without any."""

    async def room(self) -> None:
        """Return when the record accepts more."""

    def used(self) -> None:
        """Note a program's end: the session's idle time begins now, if nothing else runs."""


class _Mine(msgspec.Struct):
    process: str = ""


@dataclass(frozen=True, slots=True)
class _End:
    exit: ProgramExit | None
    at: str


class ProcessRun:
    """A started program. `follow` must run until it returns; `ended` is done then."""

    def __init__(self, host: ProcessHost, kernel: Kernel, program: Program, request: ProcessRequest) -> None:
        self.id = f"p-{uuid.uuid4().hex[:12]}"
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the program's end is recorded, or can't be."""
        self._host = host
        self._kernel = kernel
        self._program = program
        self._masker = host.masker()
        mask = (lambda text: text) if self._masker is None else self._masker.text
        # The values of its variables are never kept.
        unnamed = tuple((name, "") for name, _ in request.env)
        self._request = replace(request, argv=(), cwd=mask(request.cwd), env=unnamed)
        self._argv = [mask(word) for word in request.argv]
        self._forgotten = 0
        self._outputs = ProcessOutputs(host.cap, self._masker)
        self._cause: str | None = None
        self._end: _End | None = None
        self._finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._timers: list[asyncio.TimerHandle] = []
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._started_at = now()
        self._first_seq = 0
        self._failure: StorageError | None = None

    @property
    def running(self) -> bool:
        """Whether the program has not ended."""
        return self._end is None

    @property
    def pid(self) -> int:
        """The process id inside the kernel's sandbox or container."""
        return self._program.pid

    @property
    def first_seq(self) -> int:
        """The number of its first event in the session's record."""
        return self._first_seq

    @property
    def argv(self) -> list[str]:
        """The program and its arguments, as far as they are kept."""
        return list(self._argv)

    @property
    def cwd(self) -> str:
        """The program's working folder, as the request names it."""
        return self._request.cwd

    @property
    def kept(self) -> int:
        """The number of characters of output kept in memory."""
        return self._outputs.size

    @property
    def arguments(self) -> int:
        """The number of characters of arguments kept in memory."""
        return sum(map(len, self._argv))

    @property
    def size(self) -> int:
        """The number of characters in the long texts of `model`."""
        return self.kept + self.arguments

    def forget_output(self) -> None:
        """Keep its output in the record alone."""
        self._outputs.forget()

    def forget_arguments(self) -> None:
        """Keep its arguments in the record alone, except for the first `SHORT` characters."""
        size = self.arguments
        if size <= SHORT:
            return
        left = SHORT
        kept = []
        for word in self._argv:
            kept.append(word[:left])
            left -= len(kept[-1])
            if not left:
                break
        self._argv = kept
        self._forgotten = size

    def begin(self, guard: Callable[..., Callable[..., None]]) -> None:
        """Record its start, and start its deadline. Raises StorageError, and then the program ends."""
        event = self._record(
            "process_started",
            argv=self._argv,
            cwd=self._request.cwd,
            env=[name for name, _ in self._request.env],
            stdin=self._request.stdin,
            timeout=self._request.timeout,
            pid=self._program.pid,
        )
        self._first_seq = event["seq"]
        self._guard = guard
        if self._request.timeout is not None:
            self._later(self._request.timeout, self.terminate, TIMEOUT)

    def _later(self, seconds: float, call: Callable[..., None], *arguments: object) -> None:
        guarded_call = self._guard(call, f"process {self.id}")
        self._timers.append(self._loop.call_later(seconds, guarded_call, *arguments))

    def _record(self, event_type: str, **fields: Any) -> dict[str, Any]:
        return self._host.log.append(event_type, None, {"process": self.id, **fields})

    async def follow(self) -> None:
        """Record the program's events until it has ended."""
        found: ProgramExit | None = None
        try:
            while not isinstance(told := await self._program.next(), ProgramExit):
                self._output(told.stream, told.data)
                with suppress(StorageError):
                    await self._host.room()
            found = told
        except KernelDied:
            await self._learn_fate()
        self._finish(found)
        try:
            await self._host.log.commit()
        except StorageError as error:
            self._failure = error
        self._over()

    async def _learn_fate(self) -> None:
        if self._cause is None:
            exited = self._kernel.exited
            news: set[asyncio.Future[Any]] = {exited, self._finished}
            await asyncio.wait(news, timeout=FATE_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            self._cause = self._cause or (exited.result().cause if exited.done() else "connection_lost")

    def _output(self, name: StreamName, data: bytes) -> None:
        for piece in self._outputs.more(name, data):
            self._write(piece.name, piece.text)

    def _write(self, name: StreamName, text: str) -> None:
        try:
            self._record("process_output", name=str(name), text=text)
        except StorageError:
            self._outputs.leave_out()

    def _finish(self, found: ProgramExit | None) -> None:
        """Record the end, once."""
        if self._end is not None:
            return
        for timer in self._timers:
            timer.cancel()
        self._program.close()
        for piece in self._outputs.rest():
            self._write(piece.name, piece.text)
        self._outputs.pack()
        self._end = _End(found, now())
        self._finished.set_result(None)
        try:
            self._record(
                "process_exited",
                exit_code=None if found is None else found.code,
                signal=None if found is None else found.signal_name,
                cause=self._cause,
                truncated=self._outputs.truncated,
                duration_ms=round(1000 * (self._loop.time() - self._began), 3),
            )
        except StorageError as error:
            self._failure = error
        self._host.used()

    def _over(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)

    def lose(self, cause: str) -> None:
        """End the run now, because its kernel or its session ends."""
        self._cause = self._cause or cause
        self._finish(None)

    def break_off(self) -> None:
        """End the program's record after an internal error."""
        self._cause = self._cause or GatewayFault.reason
        self._finish(None)
        self._over()

    # What clients ask for

    async def wait(self) -> None:
        """Return when the program's end is recorded. Raises StorageError if it can't be recorded."""
        await asyncio.shield(self.ended)
        if self._failure is not None:
            raise self._failure

    async def recorded(self) -> None:
        """Return when all that `model` has shown of the program is durable. Raises StorageError."""
        await self._host.log.commit()

    def terminate(self, cause: str = TERMINATED) -> None:
        """End the program by SIGTERM, a few seconds later by SIGKILL. Does nothing when it has ended."""
        if self.running and self._cause is None:
            self._cause = cause
            self._program.terminate()
            self._later(PATIENCE, self.lose, cause)

    def signal(self, number: Signals) -> None:
        """Send a signal to the program's process group. Raises Conflict when it has ended."""
        self._check_running()
        self._program.signal(number)

    def give_input(self, data: bytes, *, close: bool) -> None:
        """Send input, and its end if `close`. Raises Conflict if none is accepted, InvalidInput if long."""
        self._check_running()
        if not self._request.stdin:
            raise Conflict("This process was started without input; start it with stdin: true")
        if data:
            self._program.write(data)
        if close:
            self._program.end_input()

    def _check_running(self) -> None:
        if not self.running:
            raise Conflict("This process has ended already")

    def model(self, base_url: str = "") -> ProcessModel:
        """Return the run in its form on the wire."""
        found = None if self._end is None else self._end.exit
        address = f"GET {base_url}/v1/sessions/{self._host.log.key}/processes/{self.id} as a stream"
        cut = f"[cellgate: {self._forgotten} characters, cut here; {address} has them all]"
        return ProcessModel(
            process=self.id,
            session=self._host.log.key,
            state="running" if self.running else "exited",
            argv=[*self._argv, cut] if self._forgotten else self._argv,
            cwd=self._request.cwd,
            pid=self._program.pid,
            exit_code=None if found is None else found.code,
            signal=None if found is None else found.signal_name,
            cause=self._cause,
            stdout=self._outputs.text(StreamName.STDOUT, address),
            stderr=self._outputs.text(StreamName.STDERR, address),
            truncated=self._outputs.truncated,
            started_at=self._started_at,
            finished_at=None if self._end is None else self._end.at,
        )

    async def events(self, *, after: int | None = None) -> AsyncGenerator[list[EventRow], None]:
        """Yield the run's events from the first to the last, as they are recorded.

        `after`: the `seq` of an event at which the program has not ended; only those after it are yielded.
        """
        start = self._first_seq - 1 if after is None else after
        async with aclosing(self._host.log.follow(start)) as batches:
            async for rows in batches:
                mine = [row for row in rows if row.type in EVENTS and _decode(row.body).process == self.id]
                if mine:
                    yield mine
                if mine and mine[-1].type == "process_exited":
                    return


_decode: Final = msgspec.json.Decoder(_Mine).decode
