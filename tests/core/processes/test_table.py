"""What a session keeps in memory of programs that have ended: so many, and so much of their output."""

from __future__ import annotations

import asyncio
import gc
import json
import weakref
from collections.abc import AsyncIterator
from typing import cast

import pytest

from cellgate.errors import QueueFull
from cellgate.processes.outputs import HALF, MOST_OF_PROGRAM, MOST_PIECES, KeptOutput
from cellgate.processes.request import ProcessRequest
from cellgate.processes.run import SHORT, ProcessRun
from cellgate.processes.table import (
    MOST_ARGUMENTS,
    MOST_ENDED,
    MOST_KEPT,
    MOST_OF_PRINCIPAL,
    MOST_OF_SESSION,
    ProcessCounts,
    SessionProcesses,
)
from cellgate.record.events import EventLog
from cellgate.record.store.memory import MemoryStore
from cellgate.sessions.hosts import SessionPrograms
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.codec.structure import INLINE_BYTES
from cellgate_kernels.keeper.programs import ProgramExit, ProgramOutput, ProgramSpec, StreamName
from cellgate_kernels.kernel.kernel import Kernel

FULL = MOST_KEPT // MOST_OF_PROGRAM
"""So many programs keep all that one may keep."""


class Writing:
    """A program that writes as many letters to both streams as one may keep, and more; it ends when told."""

    pid = 7

    def __init__(self, letters: int) -> None:
        text = b"x" * letters
        self._told = [ProgramOutput(name, text) for name in StreamName]
        self.may_end = asyncio.Event()

    async def next(self) -> ProgramOutput | ProgramExit:
        if self._told:
            return self._told.pop()
        await self.may_end.wait()
        return ProgramExit(0, None)

    def close(self) -> None:
        """Its end, as of a real program's connection."""
        self.may_end.set()


class Starting:
    """A kernel that starts such programs."""

    def __init__(self, letters: int) -> None:
        self.letters = letters
        self.last: Writing | None = None

    async def start_program(self, spec: ProgramSpec) -> Writing:
        await asyncio.sleep(0)  # as for an answer of the kernel's keeper: others come in between
        self.last = Writing(self.letters)
        return self.last


class Table:
    """A session's table, over a record in memory."""

    def __init__(self, counts: ProcessCounts | None = None, principal: str = "ada") -> None:
        store = MemoryStore()
        host = SessionPrograms(EventLog(store, 1, "s"), store, MIB, None, lambda: None)
        self.processes = SessionProcesses(host, counts or ProcessCounts(), principal, dict)

    async def start(self, letters: int, *arguments: str) -> tuple[ProcessRun, Writing]:
        kernel = Starting(letters)
        request = ProcessRequest(("writes", *arguments))
        run = await self.processes.start(cast(Kernel, kernel), request)
        assert kernel.last is not None
        return run, kernel.last

    async def ended(self, letters: int, *arguments: str) -> ProcessRun:
        run, program = await self.start(letters, *arguments)
        program.may_end.set()
        await run.wait()
        return run


@pytest.fixture
async def table() -> AsyncIterator[Table]:
    made = Table()
    yield made
    await made.processes.close("deleted")


async def test_the_output_of_those_that_ended_first_is_forgotten(table: Table) -> None:
    runs = [await table.ended(HALF * 3) for _ in range(FULL + 2)]
    assert sum(run.kept for run in runs) == MOST_KEPT
    assert [run.kept for run in runs] == [0, 0] + [MOST_OF_PROGRAM] * FULL
    models = [run.model() for run in runs]
    mark = (
        f"\n[cellgate: {HALF * 3} characters, cut here;"
        f" GET /v1/sessions/s/processes/{runs[0].id} as a stream has them all]\n"
    )
    assert (models[0].stdout, models[0].stderr, models[0].exit_code) == (mark, mark, 0)
    assert len(models[2].stdout) > 2 * HALF
    events = [row.type async for batch in runs[0].events() for row in batch]
    assert events == ["process_started", "process_output", "process_output", "process_exited"]


async def test_long_arguments_of_those_that_ended_first_are_forgotten(table: Table) -> None:
    long = tuple(f"{number}" * (MOST_ARGUMENTS // 40) for number in range(8))  # a fifth of what is kept
    running, _ = await table.start(1, *long)
    runs = [await table.ended(1, *long) for _ in range(7)]
    assert sum(run.arguments for run in runs) <= MOST_ARGUMENTS + len(runs) * SHORT
    argv = ["writes", *long]
    assert running.size > MOST_ARGUMENTS // 5 > INLINE_BYTES, "it is encoded in a thread"
    assert [run.model("/base").argv == argv for run in (*runs, running)] == [False] * 3 + [True] * 5
    address = f"GET /base/v1/sessions/s/processes/{runs[0].id} as a stream"
    mark = f"[cellgate: {sum(map(len, argv))} characters, cut here; {address} has them all]"
    assert runs[0].model("/base").argv == ["writes", long[0][: SHORT - len("writes")], mark]
    (recorded,) = [row.body async for batch in runs[0].events() for row in batch if "started" in row.type]
    assert json.loads(recorded)["argv"] == argv
    short = await table.ended(1, "-l")
    short.forget_arguments()
    assert short.model().argv == ["writes", "-l"], "there was nothing to forget"


async def test_the_values_of_a_program_s_variables_are_not_kept(table: Table) -> None:
    class Value(str):
        """One that can be watched."""

        __slots__ = ("__weakref__",)

    env = [("NAME", Value("v"))]
    watched = weakref.ref(env[0][1])
    await table.processes.start(cast(Kernel, Starting(1)), ProcessRequest(("writes",), env=(env.pop(),)))
    gc.collect()
    assert watched() is None


async def test_of_a_hundred_at_once_begin_as_many_as_may_run() -> None:
    """Of one session and, in several sessions, of one user; another user is not concerned."""
    counts = ProcessCounts()
    sessions = [Table(counts) for _ in range(6)]

    async def start(each: Table) -> bool:
        try:
            await each.processes.start(cast(Kernel, Starting(1)), ProcessRequest(("writes",)))
        except QueueFull:
            return False
        return True

    assert sum(await asyncio.gather(*[start(sessions[0]) for _ in range(100)])) == MOST_OF_SESSION
    begun = await asyncio.gather(*[start(sessions[number % 6]) for number in range(600)])
    assert MOST_OF_SESSION + sum(begun) == MOST_OF_PRINCIPAL
    other = Table(counts, "bob")
    assert await start(other)
    for each in (*sessions, other):
        await each.processes.close("deleted")
    again = Table(counts)
    assert sum(await asyncio.gather(*[start(again) for _ in range(100)])) == MOST_OF_SESSION
    await again.processes.close("deleted")


async def test_one_that_began_first_and_ended_last_is_shown_to_who_waits_for_it(table: Table) -> None:
    long, program = await table.start(HALF * 2)
    for _ in range(MOST_ENDED + 1):
        await table.ended(HALF * 2)
    program.may_end.set()
    await long.wait()
    assert long.model().stdout == "x" * 2 * HALF
    assert table.processes.find(long.id) is long


async def test_so_many_that_ended_are_listed_and_short_output_stays(table: Table) -> None:
    runs = [await table.ended(10) for _ in range(MOST_ENDED + 3)]
    assert table.processes.all == runs[3:]
    assert {run.model().stdout for run in table.processes.all} == {"x" * 10}
    silent = await table.ended(0)
    silent.forget_output()
    assert silent.model().stdout == "", "there was nothing to forget"


def test_text_that_comes_letter_by_letter_is_kept_in_few_pieces() -> None:
    kept = KeptOutput()
    text = "".join(chr(97 + number % 26) for number in range(3 * HALF))
    for letter in text:
        kept.add(letter)
        assert len(kept._tail) <= MOST_PIECES
    shown = kept.text("GET it")
    assert shown.startswith(text[:HALF])
    assert shown.endswith(text[-HALF:])
    assert f"{3 * HALF} characters, cut here; GET it has them all" in shown
