"""The program of a cell hook: started, asked over pipes, ended and started again.

A question is a line of JSON on the program's stdin, and the answer a line on its stdout. It is asked one
question at a time, principals in turn: what a hostile cell does to the program happens to no other question.
A cell runs only if the program says so. No answer, one that is late or malformed, and a program that has
ended all mean that the cell is refused. ``cells`` asks for a session's cells; this module knows no sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import msgspec

from cellgate.errors import QueueFull
from cellgate.fairness.turns import Turns
from cellgate_kernels.base.errors import CellgateError, InvalidInput, in_brief, in_words
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.codec.structure import INLINE_BYTES

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 5.0
"""Seconds for an answer."""
START_SECONDS = 15.0
"""Seconds for the first answer after the program's start: it may have much to load."""
LINE_SECONDS = 30.0
"""Seconds that a cell waits until it is asked about."""
MOST_WAITING = 1024
"""Cells that wait for that; a session has one, besides those in subshells."""
MOST_CODE = MIB
"""Characters of a cell that the program is shown: a longer one is refused."""
ANSWER_BYTES = 64 * 1024
LONGEST_MESSAGE = 2000
FIRST_PAUSE, LONGEST_PAUSE = 0.1, 2.0
"""Seconds before a program that fails is started again; doubled with each failure, until it answers."""
GRACE = 2.0
"""Seconds for the program to end once its stdin is closed."""
SAID_BYTES = 4096
MOST_LINES, LINES_PERIOD = 20, 10.0
"""Lines of the program's stderr that are logged in so many seconds: a hostile cell may make it write many."""
END_PAUSE = 0.01
UNSAID = "The program gives no reason."


class CellRefused(CellgateError):
    """The operator's program refuses the cell; the message is the program's."""

    reason = "cell_refused"


class CellHookFailed(CellgateError):
    """The operator's program has not said whether the cell may run, so it does not."""

    reason = "cell_hook_failed"


class HookQuestion(msgspec.Struct, frozen=True):
    """A cell, as the program is shown it.

    `id`: the execution's, which the answer repeats. `door`: the way by which the cell came, if it is not
    Cellgate's own interface. `language`: the kernel's. `user_expressions`: of a Jupyter client, evaluated
    after the cell.
    """

    id: str
    principal: str = ""
    session: str = ""
    door: str | None = None
    language: str = ""
    code: str = ""
    user_expressions: dict[str, str] = {}


class HookAnswer(msgspec.Struct, frozen=True):
    """The program's answer. `message`: why the cell is refused."""

    id: str
    allow: bool
    message: Annotated[str, msgspec.Meta(max_length=LONGEST_MESSAGE)] = ""


_answer = msgspec.json.Decoder(HookAnswer)


def check_program(path: Path) -> Path:
    """Return the path of a cell hook. Raises InvalidInput if it is no file that can be executed."""
    if not path.is_file() or not os.access(path, os.X_OK):
        raise InvalidInput(f"--cell-hook: {path} is no program that can be executed")
    return path


class HookProgram:
    """The program at `path`. `failing`: whether it failed at the last question."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failing = False
        self._turns = Turns(1, MOST_WAITING, LINE_SECONDS, "too many cells wait for it")
        self._tasks = Supervisor()
        self._messages = Supervisor()
        self._process: asyncio.subprocess.Process | None = None
        self._has_answered = False
        self._unasked: set[str] = set()
        self._failures = 0
        self._due = 0.0
        self._now = asyncio.get_running_loop().time

    async def open(self) -> None:
        """Start the program, so that no cell waits for that. A failure is logged: cells are refused then."""
        try:
            await self._start()
        except OSError as error:
            self.failing = True
            logger.error("The cell hook %s can't be started: %s", self.path, in_words(error))

    async def close(self) -> None:
        """End the program; nobody asks any more."""
        await self._tasks.cancel()
        if (process := self._process) is not None and process.stdin is not None:
            process.stdin.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    await process.wait()
                    await self._messages.finished()
        await self._end()
        await self._messages.cancel()

    def ask(self, question: HookQuestion) -> asyncio.Task[None]:
        """Ask whether a cell may run; the task's result is that it may.

        It fails with CellRefused or CellHookFailed. Whoever stops waiting calls `leave`.
        """
        self._unasked.add(question.id)
        return self._tasks.share(self._ask(question), f"cell hook for {question.id}", execution=question.id)

    def leave(self, question: str, asked: asyncio.Task[None]) -> None:
        """Cancel a question that is not asked yet.

        The answer to one that is asked is read in any case, so that the next one is the next question's.
        """
        if question in self._unasked:
            self._unasked.discard(question)
            asked.cancel()

    async def _ask(self, question: HookQuestion) -> None:
        if len(question.code) + sum(map(len, question.user_expressions.values())) > MOST_CODE:
            raise CellRefused(
                f"A cell of more than {MOST_CODE} characters is not shown to the gateway's cell hook."
            )
        try:
            async with self._turns.turn(question.principal):
                self._unasked.discard(question.id)
                answer = await self._answer(question)
        except QueueFull as error:
            raise _failed(error.message) from error
        finally:
            self._unasked.discard(question.id)
        if not answer.allow:
            raise CellRefused(answer.message.strip() or UNSAID)

    async def _answer(self, question: HookQuestion) -> HookAnswer:
        """Return the program's answer. Raises CellHookFailed, after the program has been ended."""
        seconds = START_SECONDS
        try:
            process = await self._running()
            seconds = ANSWER_SECONDS if self._has_answered else START_SECONDS
            async with asyncio.timeout(seconds):
                said = await self._exchange(process, question)
            if not said.endswith(b"\n"):
                why = await self._fate()
            else:
                answer = _answer.decode(said)
                if answer.id == question.id:
                    self._failures, self.failing, self._has_answered = 0, False, True
                    return answer
                why = "it answers another question"
        except TimeoutError:
            why = f"it gave no answer within {seconds:g} s"
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
            why = f"its answer is malformed: {in_brief(error)}"
        except OSError as error:
            why = await self._fate() if self._process is not None else in_words(error)
        except BaseException:
            await self._end()
            raise
        await self._give_up(why, question)
        raise _failed(why)

    async def _exchange(self, process: asyncio.subprocess.Process, question: HookQuestion) -> bytes:
        """Return the program's next line, which lacks its end if the program has ended."""
        if len(question.code) > INLINE_BYTES:
            line = await asyncio.to_thread(msgspec.json.encode, question)
        else:
            line = msgspec.json.encode(question)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + b"\n")
        await process.stdin.drain()
        return await process.stdout.readline()

    async def _running(self) -> asyncio.subprocess.Process:
        """Return the program's process, started again if it has ended. Raises OSError."""
        process = self._process
        if process is not None and process.returncode is None:
            return process
        if process is not None:
            logger.warning("The cell hook %s has ended (%s)", self.path, _exit_of(process))
            await self._end()
        if (pause := self._due - self._now()) > 0:
            await asyncio.sleep(pause)
        return await self._start()

    async def _start(self) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        # Not the gateway's environment, which may contain its token.
        passed = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        process = await asyncio.create_subprocess_exec(
            self.path,
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            limit=ANSWER_BYTES,
            env={**passed, "LANG": "C.UTF-8"},
            cwd=self.path.parent,
            start_new_session=True,
        )
        self._process, self._has_answered = process, False
        self._messages.start(self._follow(process), "messages of the cell hook")
        logger.info("The cell hook %s has started", self.path, extra={"pid": process.pid})
        return process

    async def _follow(self, process: asyncio.subprocess.Process) -> None:
        """Log the first lines that the program writes to stderr in each period, and count the others."""
        assert process.stderr is not None
        begun, logged, left_out = self._now(), 0, 0
        while said := await process.stderr.read(SAID_BYTES):
            if self._now() - begun >= LINES_PERIOD:
                if left_out:
                    logger.warning("The cell hook has said %d lines more, which are left out", left_out)
                begun, logged, left_out = self._now(), 0, 0
            lines = said.decode(errors="replace").splitlines()
            shown = lines[: MOST_LINES - logged]
            for line in shown:
                logger.warning("The cell hook says: %s", line)
            logged += len(shown)
            left_out += len(lines) - len(shown)
        if left_out:
            logger.warning("The cell hook has said %d lines more, which are left out", left_out)

    async def _fate(self) -> str:
        """Say how the program ended."""
        process = self._process
        assert process is not None
        with suppress(TimeoutError):
            async with asyncio.timeout(GRACE):
                await process.wait()
        return f"it has ended ({_exit_of(process)})" if process.returncode is not None else "it has hung up"

    async def _give_up(self, why: str, question: HookQuestion) -> None:
        """End a program that failed at a question. It is started again for the next one, after a pause."""
        logger.error(
            "The cell hook %s failed, and a cell was refused: %s",
            self.path,
            why,
            extra={"execution": question.id, "principal": question.principal},
        )
        self.failing = True
        await self._end()
        self._due = self._now() + min(LONGEST_PAUSE, FIRST_PAUSE * 2**self._failures)
        self._failures = min(self._failures + 1, 10)

    async def _end(self) -> None:
        """Kill the program, with all that it has started."""
        process, self._process = self._process, None
        if process is None:
            return
        if process.returncode is None:
            # The group's number can't be another's while its leader is not reaped.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            # Its `wait` would also wait for the pipes, which another process may hold open.
            with suppress(TimeoutError):
                async with asyncio.timeout(GRACE):
                    while process.returncode is None:  # noqa: ASYNC110 - asyncio tells by `wait` alone
                        await asyncio.sleep(END_PAUSE)
        process._transport.close()  # type: ignore[attr-defined]


def _exit_of(process: asyncio.subprocess.Process) -> str:
    code = process.returncode
    if code is not None and code < 0:
        return signal.Signals(-code).name
    return f"exit code {code}"


def _failed(why: str) -> CellHookFailed:
    return CellHookFailed(
        f"The gateway's cell hook has not said whether the cell may run ({why}), so it did not run. Try"
        " again; if that does not help, tell the operator."
    )
