"""A sandbox's commands: programs beside the kernel, which neither wait for cells nor are one.

A command runs on if its client leaves, as there: its status and its output can be asked for afterwards, as
long as it is among the session's last programs. What a command has printed is read from the record.
"""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import replace
from typing import Final

import msgspec

from cellgate.doors.base import Asked
from cellgate.doors.opensandbox.base import ExecdHandler, FramesHandler
from cellgate.doors.opensandbox.frames import CommandFrames, ending, frame
from cellgate.doors.sandbox.errors import Unsupported
from cellgate.doors.sandbox.paths import parse_program_path
from cellgate.doors.sandbox.use import measured
from cellgate.http.operation import Format, requires
from cellgate.http.services import Services
from cellgate.identity.principal import Permission
from cellgate.processes.request import ProcessRequest, check_process
from cellgate.processes.run import ProcessRun
from cellgate.record.rows import EventRow
from cellgate.sessions.session import Session
from cellgate.wire.models import ProcessBody
from cellgate_kernels.base.errors import InvalidInput, KernelDied
from cellgate_kernels.base.resources import MIB

SHELL: Final = ("bash", "-c")
PROBE: Final = "bash -c 'exec 3<>/dev/tcp/127.0.0.1/${JUPYTER_PORT:-44771}'"
"""How the code interpreter's SDK looks for the server of kernels in a sandbox.

There is none here: the gateway has the kernel, and knows.
"""
CURSOR: Final = "EXECD-COMMANDS-TAIL-CURSOR"
MOST_READ: Final = MIB
"""Bytes of events, about, that are read for one answer."""
MOST_CURSOR: Final = 16


class CommandBody(Asked, frozen=True):
    """A command to run: words for a shell, or those of a program. `timeout` in milliseconds."""

    command: str = ""
    argv: list[str] | None = None
    cwd: str | None = None
    background: bool = False
    timeout: int | None = None
    uid: int | None = None
    gid: int | None = None
    envs: dict[str, str] | None = None

    def words(self) -> list[str]:
        """Return the program with its arguments. Raises InvalidInput, Unsupported."""
        if self.uid is not None or self.gid is not None:
            raise Unsupported("uid and gid can't be chosen: a sandbox has one user here")
        if (self.argv is None) == (not self.command.strip()):
            raise InvalidInput("Give either command or argv")
        return [*SHELL, self.command] if self.argv is None else self.argv


class _Output(msgspec.Struct):
    process: str = ""
    text: str = ""


class CommandHandler(FramesHandler):
    """Run a command, or end one."""

    def initialize(self, services: Services) -> None:
        super().initialize(services)
        self._frames = CommandFrames()

    @requires(Permission.RUN)
    async def post(self, _: str) -> None:
        """Start a command, and stream its events unless it is to run in the background."""
        body = await self.body(CommandBody)
        session = self.session()
        if body.command.startswith(PROBE):
            self._answer_probe(session)
            return
        run = await session.start_process(self._request(session, body))
        self.set_head(Format.SSE)
        self.write(frame("init", text=run.id))
        if body.background:
            self.write(frame("execution_complete", execution_time=0))
            return
        async with aclosing(run.events()) as batches:
            await self.stream(batches, Format.SSE)

    def _request(self, session: Session, body: CommandBody) -> ProcessRequest:
        env = {**self.services.sessions.sandboxes.of(session).env, **(body.envs or {})}
        timeout = body.timeout / 1000 if body.timeout else None
        wanted = ProcessBody(argv=body.words(), env=env, timeout=timeout)
        return replace(check_process(wanted, waits=False), cwd=parse_program_path(body.cwd or ""))

    def _answer_probe(self, session: Session) -> None:
        """Answer as a command that has found the kernels' server. Raises KernelDied if there is no kernel."""
        if session.kernel is None or not session.kernel.alive:
            raise KernelDied("The sandbox has no kernel now; its next cell starts one")
        self.set_head(Format.SSE)
        self.write(frame("init", text="probe"))
        self.write(frame("execution_complete", execution_time=0))

    async def encoded(self, rows: list[EventRow], form: Format) -> list[bytes]:
        return await self.encoded_by(self._frames, rows)

    @requires(Permission.RUN)
    async def delete(self, _: str) -> None:
        """End a command by SIGTERM, soon after by SIGKILL."""
        self.session().processes.find(self.get_query_argument("id", "")).terminate()


class CommandStatusHandler(ExecdHandler):
    """How a command is."""

    @requires(Permission.READ)
    async def get(self, _: str, process: str) -> None:
        """Tell of it."""
        run = self.session().processes.find(process)
        await run.recorded()
        model = run.model()
        told: dict[str, object] = {
            "id": run.id,
            "content": model.argv[-1],
            "running": run.running,
            "exit_code": None,
            "started_at": model.started_at,
            "finished_at": model.finished_at,
        }
        if not run.running:
            how = ending(model.exit_code, model.signal, model.cause)
            told |= {"exit_code": -1 if model.exit_code is None else model.exit_code, "error": how}
        await self.answer_large(told, len(model.argv[-1]))


class CommandLogsHandler(ExecdHandler):
    """What a command has printed, on both streams as it came."""

    @requires(Permission.READ)
    async def get(self, _: str, process: str) -> None:
        """Send what came after the query's cursor, and the cursor for the next request."""
        session = self.session()
        run = session.processes.find(process)
        cursor = self.get_query_argument("cursor", "")
        if not (cursor.isascii() and len(cursor) <= MOST_CURSOR and (cursor.isdecimal() or not cursor)):
            raise InvalidInput("cursor must be that of an answer before")
        text, last = await _printed(session, run, max(int(cursor or 0), run.first_seq - 1))
        self.set_header("Content-Type", "text/plain; charset=utf-8")
        self.set_header(CURSOR, str(last))
        self.set_header("Access-Control-Expose-Headers", CURSOR)
        await self.finish_parts([text.encode()])


async def _printed(session: Session, run: ProcessRun, after: int) -> tuple[str, int]:
    """Return what a program has printed after an event, and the last event that was looked at."""
    decode = msgspec.json.Decoder(_Output).decode
    parts: list[str] = []
    read = 0
    while read < MOST_READ and (rows := await session.log.read(after)):
        outputs = [decode(row.body) for row in rows if row.type == "process_output"]
        parts += [each.text for each in outputs if each.process == run.id]
        read += sum(len(row.body) for row in rows)
        after = rows[-1].seq
    return "".join(parts), after


class PingHandler(ExecdHandler):
    """Whether a sandbox runs."""

    @requires(Permission.READ)
    async def get(self, _: str) -> None:
        """Answer without a body if it does."""
        self.session()


class ExecdMetricsHandler(ExecdHandler):
    """How much a sandbox uses."""

    @requires(Permission.READ)
    async def get(self, _: str) -> None:
        """Tell of it as it is now."""
        session = self.session()
        share, memory = await measured(self.services, session)
        resources = session.limits.resources
        self.answer(
            {
                "cpu_count": resources.cpus,
                "cpu_used_pct": round(share, 2),
                "mem_total_mib": resources.memory / MIB,
                "mem_used_mib": memory / MIB,
                "timestamp": time.time_ns() // 1_000_000,
            }
        )
