"""Programs of which only floods are heard, or nothing any more: the session goes on, and ends at once."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import cast

import pytest

from cellgate.processes import run as module
from cellgate.processes.request import ProcessRequest
from cellgate.processes.table import ProcessCounts, SessionProcesses
from cellgate.record.events import EventLog
from cellgate.record.store.memory import MemoryStore
from cellgate.sessions.hosts import SessionPrograms
from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.places import FRAMES_A_TURN, Places
from cellgate_kernels.keeper.frames import HEAD, NUMBER, FromKeeper
from cellgate_kernels.keeper.programs import Program, ProgramExit, ProgramSpec, start_program
from cellgate_kernels.kernel.kernel import Kernel

PATIENCE = 60.0
PROGRAMS = 8
LETTERS = 500_000
LETTER = HEAD.pack(FromKeeper.STDOUT, 1) + b"x"
FLOOD = HEAD.pack(FromKeeper.STARTED, NUMBER.size) + NUMBER.pack(7) + LETTER * LETTERS


class Flooding:
    """A kernel whose keeper sends the output of each program in single bytes, 3 MB of frames at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.places = Places(FRAMES_A_TURN)
        self.handled = 0

    async def start_program(self, spec: ProgramSpec) -> Program:
        """Start a program whose frames are counted."""
        program = await start_program(self.path, spec, self.places)
        handle = program.next

        async def counted() -> object:
            told = await handle()
            self.handled += 1
            return told

        program.next = counted  # type: ignore[method-assign,assignment]
        return program


class Lost:
    """A kernel whose programs nobody tells of, and whose own end is not known."""

    pid = 7

    def __init__(self) -> None:
        self.exited: asyncio.Future[object] = asyncio.get_running_loop().create_future()

    async def start_program(self, _: ProgramSpec) -> Lost:
        """Itself, as a program."""
        return self

    async def next(self) -> ProgramExit:
        """Nothing."""
        raise KernelDied("gone")

    def close(self) -> None:
        """Nothing is open."""


def table() -> SessionProcesses:
    """A session's table, over a record in memory that has little of each program."""
    store = MemoryStore()
    host = SessionPrograms(EventLog(store, 1, "s"), store, 1000, None, lambda: None)
    return SessionProcesses(host, ProcessCounts(), "ada", dict)


async def test_floods_of_single_bytes_leave_others_their_turns_and_end_with_the_session(
    tmp_path: Path,
) -> None:
    answering: list[asyncio.Future[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answering.append(over)
        writer.write(FLOOD)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        writer.transport.abort()
        over.set_result(None)

    path = str(tmp_path / "k-0")
    server = await asyncio.start_unix_server(answer, path)
    kernel, processes = Flooding(path), table()
    most = 0

    async def bystander() -> None:
        nonlocal most
        while kernel.handled < PROGRAMS * 1000:
            before = kernel.handled
            await asyncio.sleep(0)
            most = max(most, kernel.handled - before)

    watching = asyncio.ensure_future(bystander())
    try:
        for _ in range(PROGRAMS):
            await processes.start(cast(Kernel, kernel), ProcessRequest(("yes",)))
        async with asyncio.timeout(PATIENCE):
            await watching
        assert most <= 2 * FRAMES_A_TURN
        ending, turns = asyncio.ensure_future(processes.close("deleted")), 0
        while not ending.done():
            turns += 1
            await asyncio.sleep(0)
        assert turns <= 100
    finally:
        watching.cancel()
        await processes.close("deleted")
        await asyncio.wait_for(asyncio.gather(*answering), PATIENCE)
        server.close()
        await server.wait_closed()
    assert [run.model().cause for run in processes.all] == ["deleted"] * PROGRAMS


async def test_the_end_of_a_session_does_not_wait_for_news_of_a_lost_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "FATE_SECONDS", 10 * PATIENCE)
    processes = table()
    run = await processes.start(cast(Kernel, Lost()), ProcessRequest(("yes",)))
    await asyncio.sleep(0)  # now it waits for news of the kernel
    async with asyncio.timeout(PATIENCE):
        await processes.close("deleted")
    assert (run.running, run.model().cause) == (False, "deleted")
