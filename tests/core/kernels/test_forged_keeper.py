"""What answers in the place of a sandbox's keeper sends the smallest frames there are: others have their
turns, and whoever sends what says nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import pytest

from cellgate_kernels.base.errors import KernelDied
from cellgate_kernels.base.places import FRAMES_A_TURN, Places
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.forking.kept import keep
from cellgate_kernels.keeper.frames import HEAD, NUMBER, FromKeeper
from cellgate_kernels.keeper.programs import (
    Program,
    ProgramExit,
    ProgramOutput,
    ProgramSpec,
    StreamName,
    end_other_kernels,
    start_program,
)

PATIENCE = 60.0
COUNT = 6000


def told(kind: FromKeeper, payload: bytes = b"") -> bytes:
    return HEAD.pack(kind, len(payload)) + payload


STARTED = told(FromKeeper.STARTED, NUMBER.pack(7))
EXITED = told(FromKeeper.EXITED, NUMBER.pack(0))
LETTER = told(FromKeeper.STDOUT, b"x")


@contextlib.asynccontextmanager
async def keeper(folder: Path, says: bytes) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """The path of a socket where this is said to everybody, and whether somebody has left."""
    left = asyncio.Event()
    answering: list[asyncio.Future[None]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        answering.append(over)
        writer.write(says)
        with contextlib.suppress(ConnectionError):
            while await reader.read(1000):
                pass
        left.set()
        writer.transport.abort()
        over.set_result(None)

    path = str(folder / "k-0")
    server = await asyncio.start_unix_server(answer, path)
    try:
        yield path, left
    finally:
        await asyncio.wait_for(asyncio.gather(*answering), PATIENCE)
        server.close()
        await server.wait_closed()


async def turns_of(work: Coroutine[Any, Any, Any]) -> int:
    """The turns that a bystander has until the work is done."""
    task, turns = asyncio.ensure_future(work), 0
    async with asyncio.timeout(PATIENCE):
        while not task.done():
            turns += 1
            await asyncio.sleep(0)
    task.result()
    return turns


async def finish(program: Program) -> int:
    """How much it writes until its end."""
    size = 0
    while not isinstance(each := await program.next(), ProgramExit):
        size += len(each.data)
    program.close()
    return size


@pytest.mark.parametrize("programs", [1, 4])
async def test_output_in_single_bytes_is_handled_a_few_frames_a_turn(tmp_path: Path, programs: int) -> None:
    places = Places(FRAMES_A_TURN)
    async with keeper(tmp_path, STARTED + LETTER * COUNT + EXITED) as (path, _):
        started = [await start_program(path, ProgramSpec(["yes"]), places) for _ in range(programs)]

        async def finish_all() -> None:
            assert await asyncio.gather(*map(finish, started)) == [COUNT] * programs

        assert await turns_of(finish_all()) >= programs * COUNT / FRAMES_A_TURN


async def test_words_of_input_that_was_taken_are_handled_a_few_a_turn(tmp_path: Path) -> None:
    says = STARTED + told(FromKeeper.TAKEN, NUMBER.pack(1)) * COUNT + EXITED
    async with keeper(tmp_path, says) as (path, _):
        program = await start_program(path, ProgramSpec(["cat"], stdin=True))
        program.write(b"x" * COUNT)
        assert await turns_of(finish(program)) >= COUNT / FRAMES_A_TURN


@pytest.mark.parametrize(
    "nothing",
    [
        told(FromKeeper.STDOUT),
        told(FromKeeper.STDERR),
        told(FromKeeper.TAKEN, NUMBER.pack(0)),
        told(FromKeeper.TAKEN, NUMBER.pack(1)),
        STARTED,
        told(FromKeeper.FAILED),
        told(FromKeeper.CONNECTED),
        bytes(5),
    ],
)
async def test_who_says_nothing_is_left_with_a_word_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, nothing: bytes
) -> None:
    async with keeper(tmp_path, STARTED + LETTER + nothing * COUNT) as (path, left):
        program = await start_program(path, ProgramSpec(["ls"]))
        assert await program.next() == ProgramOutput(StreamName.STDOUT, b"x")
        for _ in range(3):
            with pytest.raises(KernelDied):
                await program.next()
        async with asyncio.timeout(PATIENCE):
            await left.wait()
    (line,) = (each for each in caplog.messages if "is closed" in each)
    assert line.startswith(f"The connection to a kernel's keeper at {path} is closed: it s")


async def test_what_waits_is_dropped_when_nobody_waits_for_it_any_more(tmp_path: Path) -> None:
    async with keeper(tmp_path, STARTED + LETTER * COUNT) as (path, _):
        program = await start_program(path, ProgramSpec(["yes"]))
        assert await program.next() == ProgramOutput(StreamName.STDOUT, b"x")
        program.close()
        with pytest.raises(KernelDied):
            await program.next()


async def test_of_a_kernel_nothing_but_its_end_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tasks = Supervisor()
    async with keeper(tmp_path, STARTED + LETTER * COUNT) as (path, left):
        kept = await keep(path, 7, tasks)
        async with asyncio.timeout(PATIENCE):
            assert await kept.ended is None
            await left.wait()
        with pytest.raises(KernelDied):
            await end_other_kernels(path)
    await tasks.finished()
    assert len([each for each in caplog.messages if "it says that a kernel writes something" in each]) == 2
