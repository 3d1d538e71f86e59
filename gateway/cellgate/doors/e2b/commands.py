"""A sandbox's programs: Connect calls, two of which answer with a stream of envelopes.

`commands.run` is a shell, a program beside the kernel: it neither waits for cells nor is one.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from signal import Signals
from types import MappingProxyType
from typing import Final

import msgspec

from cellgate.doors.base import Asked
from cellgate.doors.e2b.base import SandboxHandler
from cellgate.doors.e2b.envelopes import EnvelopesHandler, envelope, last, opened
from cellgate.doors.e2b.terminals import TerminalBody, in_terminal, is_in_terminal, resizing
from cellgate.doors.sandbox.errors import Unsupported
from cellgate.doors.sandbox.paths import parse_program_path, program_path
from cellgate.errors import Conflict, NotFound
from cellgate.http.message import decode, decode_heavy
from cellgate.http.operation import Format, requires
from cellgate.http.services import Services
from cellgate.identity.principal import Permission
from cellgate.processes.request import check_input, check_process
from cellgate.processes.run import ProcessRun
from cellgate.record.rows import EventRow
from cellgate.sessions.session import Session
from cellgate.sessions.terminal_sizes import Size
from cellgate.wire.models import ProcessBody, ProcessInputBody
from cellgate_kernels.base.errors import InvalidInput, KernelDied
from cellgate_kernels.codec.encoding import encode_in_steps
from cellgate_kernels.codec.structure import is_heavy
from cellgate_kernels.keeper.programs import ProgramExit, ProgramOutput, ProgramSpec

SHELL: Final = "/bin/bash"
LOGIN: Final = "-l"
COMMAND: Final = "-c"
TERMINAL: Final = "pty"
RESIZE_SECONDS: Final = 10.0
SIGNALS: Final = MappingProxyType(
    {
        "SIGNAL_SIGTERM": Signals.SIGTERM,
        "SIGNAL_SIGKILL": Signals.SIGKILL,
        15: Signals.SIGTERM,
        9: Signals.SIGKILL,
    }
)


class E2bProgram(Asked, frozen=True):
    """What to run."""

    cmd: str
    args: list[str] = []  # noqa: RUF012 - of a struct, made anew for each
    envs: dict[str, str] = {}  # noqa: RUF012 - of a struct, made anew for each
    cwd: str | None = None


class StartBody(Asked, frozen=True):
    """A program to start."""

    process: E2bProgram
    stdin: bool = False
    pty: TerminalBody | None = None


class Selector(Asked, frozen=True):
    """Which program is meant."""

    pid: int = 0


class Input(Asked, frozen=True):
    """Bytes in base64, for a program or for one in a terminal."""

    stdin: str = ""
    pty: str = ""


class AboutBody(Asked, frozen=True):
    """A program, and what it gets."""

    process: Selector = Selector()
    signal: str | int = ""
    input: Input = Input()
    pty: TerminalBody = TerminalBody()


class JoinBody(Asked, frozen=True):
    """A program to follow."""

    process: Selector = Selector()


class _Event(msgspec.Struct):
    """An event of a program: the fields that are told of any type."""

    pid: int = 0
    name: str = ""
    text: str = ""
    exit_code: int | None = None
    signal: str | None = None
    cause: str | None = None


def envelopes(rows: Iterable[EventRow], output: str = "") -> list[bytes]:
    """Return what is told of a program's events. `output`: the name of all its output, if it has one name."""
    decoder = msgspec.json.Decoder(_Event)
    return [part for row in rows for part in _envelopes(row.type, decoder.decode(row.body), output)]


def _envelopes(kind: str, event: _Event, output: str) -> list[bytes]:
    match kind:
        case "process_started":
            return [_told({"start": {"pid": event.pid}})]
        case "process_output":
            data = base64.b64encode(event.text.encode()).decode()
            return [_told({"data": {output or event.name: data}})]
    if event.cause == "timeout":
        return [last("deadline_exceeded", "The program ran longer than its time")]
    if event.exit_code is not None:
        end: dict[str, object] = {"exitCode": event.exit_code, "exited": True}
        end["status"] = f"exit status {event.exit_code}"
    else:
        end = {"exitCode": -1, "exited": False, "status": f"signal: {event.signal or event.cause}"}
    if event.cause is not None:
        end["error"] = event.cause
    return [_told({"end": end}), last()]


def _told(event: Mapping[str, object]) -> bytes:
    return envelope({"event": event})


def _argv(program: E2bProgram) -> list[str]:
    """Return the program's words without a login shell, which would lose the kernel's PATH."""
    if program.cmd != SHELL:
        return [program.cmd, *program.args]
    options = program.args.index(COMMAND) if COMMAND in program.args else len(program.args)
    return ["bash", *(each for each in program.args[:options] if each != LOGIN), *program.args[options:]]


class ProgramStream(EnvelopesHandler):
    """A call that is answered with a program's events."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._output = ""

    async def encoded(self, rows: list[EventRow], form: Format) -> list[bytes]:
        return await self.encoded_by(lambda found: envelopes(found, self._output), rows)

    def sign_of_life(self, form: Format) -> bytes:
        return _told({"keepalive": {}})


class StartHandler(ProgramStream):
    """Start a program."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Start a program and stream its events. It runs on if its client leaves."""
        self.session()
        body = opened(self.raw_body())
        if is_heavy(body):
            asked = await self.services.storage.lanes.texts.run(decode_heavy, body, StartBody)
        else:
            asked = decode(body, StartBody)
        session = self.session()
        program = asked.process
        argv, stdin = _argv(program), asked.stdin
        if asked.pty is not None:
            argv, stdin, self._output = in_terminal(argv, asked.pty), True, TERMINAL
        env = {**self.services.sessions.sandboxes.of(session).env, **program.envs}
        wanted = ProcessBody(argv=argv, env=env, stdin=stdin, timeout=self.timeout())
        request = replace(check_process(wanted, waits=False), cwd=parse_program_path(program.cwd or ""))
        run = await session.start_process(request)
        async with aclosing(run.events()) as batches:
            await self.stream(batches, Format.NDJSON)


class JoinHandler(ProgramStream):
    """Follow a program that runs, as `commands.connect` and `pty.connect` do."""

    @requires(Permission.RUN)
    async def post(self) -> None:
        """Stream the program's events from now on, after one that names it; its time is the call's alone."""
        session = self.session()
        body = decode(opened(self.raw_body()), JoinBody)
        timeout = self.timeout()
        run = _find(session.processes.all, body.process)
        self._output = TERMINAL if is_in_terminal(run.argv) else ""
        self.write(_told({"start": {"pid": run.pid}}))
        try:
            async with asyncio.timeout(timeout), aclosing(run.events(after=session.log.last_seq)) as batches:
                await self.stream(batches, Format.NDJSON)
        except TimeoutError:
            self.write(last("deadline_exceeded", "The program goes on; the call's time is over"))


class E2bProcessHandler(SandboxHandler):
    """Calls about programs that run."""

    connect = True

    @requires(Permission.RUN)
    async def post(self, name: str) -> None:
        """Make the call of this name."""
        runs = [run for run in self.session().processes.all if run.running]
        call = CALLS.get(name)
        if call is None:
            raise Unsupported(f"{name[:40]} is not there in this gateway")
        told = await call(self, runs)
        # A list has their arguments, which may be long.
        size = sum(run.arguments for run in runs) if call is CALLS["List"] else 0
        await self.answer_made(size, encode_in_steps, told)

    async def list_all(self, runs: Sequence[ProcessRun]) -> Mapping[str, object]:
        """List the programs that run."""
        return {
            "processes": [
                {
                    "pid": run.pid,
                    "config": {"cmd": run.argv[0], "args": run.argv[1:], "cwd": program_path(run.cwd)},
                }
                for run in runs
            ]
        }

    async def signal(self, runs: Sequence[ProcessRun]) -> Mapping[str, object]:
        """Send one a signal."""
        body = await self.body(AboutBody)
        number = SIGNALS.get(body.signal)
        if number is None:
            raise InvalidInput("signal must be SIGNAL_SIGTERM or SIGNAL_SIGKILL")
        _find(runs, body.process).signal(number)
        return {}

    async def give_input(self, runs: Sequence[ProcessRun]) -> Mapping[str, object]:
        """Send input to a program."""
        body = await self.body(AboutBody)
        data = check_input(ProcessInputBody(data_b64=body.input.stdin or body.input.pty))
        _find(runs, body.process).give_input(data, close=False)
        return {}

    async def end_input(self, runs: Sequence[ProcessRun]) -> Mapping[str, object]:
        """Send one the end of its input."""
        _find(runs, (await self.body(AboutBody)).process).give_input(b"", close=True)
        return {}

    async def resize(self, runs: Sequence[ProcessRun]) -> Mapping[str, object]:
        """Give a program's terminal another size."""
        body = await self.body(AboutBody)
        run = _find(runs, body.process)
        if not is_in_terminal(run.argv):
            raise InvalidInput("The program has no terminal")
        session, size = self.session(), body.pty.size
        sizes = self.services.sessions.sandboxes.of(session).sizes
        await sizes.want(run.id, (size.rows, size.cols), partial(_give_size, session, run))
        return {}


async def _give_size(session: Session, run: ProcessRun, size: Size) -> None:
    """Give a program's terminal another size, by a program that is nobody's and not recorded.

    Raises NotFound, Conflict, KernelDied.
    """
    _find([run], Selector(run.pid))
    kernel = session.kernel
    if kernel is None:
        raise KernelDied("The sandbox has no kernel now, and so no terminal")
    program = await kernel.start_program(ProgramSpec(resizing(run.pid, size)))
    told: ProgramOutput | ProgramExit | None = None
    try:
        async with asyncio.timeout(RESIZE_SECONDS):
            while isinstance(told := await program.next(), ProgramOutput):
                continue
    except TimeoutError:
        told = None
    finally:
        program.close()
    if not isinstance(told, ProgramExit) or told.code != 0:
        _find([run], Selector(run.pid))
        raise Conflict("The terminal could not be resized; try again")


def _find(runs: Iterable[ProcessRun], wanted: Selector) -> ProcessRun:
    for run in runs:
        if run.running and run.pid == wanted.pid:
            return run
    raise NotFound(f"No program with the id {wanted.pid} runs")


CALLS: Mapping[str, Callable[[E2bProcessHandler, Sequence[ProcessRun]], Awaitable[Mapping[str, object]]]] = (
    MappingProxyType(
        {
            "List": E2bProcessHandler.list_all,
            "SendSignal": E2bProcessHandler.signal,
            "SendInput": E2bProcessHandler.give_input,
            "CloseStdin": E2bProcessHandler.end_input,
            "Update": E2bProcessHandler.resize,
        }
    )
)
