"""Programs beside a kernel: started by its keeper, with input, output, signals, and an end."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cellgate_kernels.base.errors import InvalidInput, KernelDied
from cellgate_kernels.keeper.programs import (
    InputNotTaken,
    Program,
    ProgramExit,
    ProgramSpec,
    StreamName,
    end_other_kernels,
    start_program,
)
from cellgate_kernels.testing.backend import RunningKernel, StartKernel
from tests.support.kernels import FORKS_FIRST
from tests.support.nightly import at_night

Start = Callable[..., Awaitable[Program]]
STARTED = struct.pack(">BII", 33, 4, 7)


@pytest.fixture(params=[*FORKS_FIRST, at_night("process")])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param != "process":
        request.getfixturevalue("sandbox")
    return str(request.param)


@pytest.fixture
async def kernel(start_kernel: StartKernel) -> RunningKernel:
    return await start_kernel(extra_env={"OF_THE_SESSION": "yes"})


@pytest.fixture
async def start(kernel: RunningKernel) -> AsyncIterator[Start]:
    """Starts programs beside the kernel, and closes them after the test."""
    started: list[Program] = []

    async def begin(*argv: str, **more: object) -> Program:
        path = kernel.provisioner.keeper_socket
        assert path is not None
        started.append(await start_program(path, ProgramSpec(argv, **more)))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for program in started:
        program.close()


async def finish(program: Program) -> tuple[bytes, bytes, ProgramExit]:
    """What it wrote, and how it ended."""
    written = {StreamName.STDOUT: bytearray(), StreamName.STDERR: bytearray()}
    async with asyncio.timeout(60):
        while not isinstance(told := await program.next(), ProgramExit):
            written[told.stream] += told.data
    return bytes(written[StreamName.STDOUT]), bytes(written[StreamName.STDERR]), told


async def first_words(program: Program) -> bytes:
    async with asyncio.timeout(60):
        told = await program.next()
    assert not isinstance(told, ProgramExit)
    return told.data


def named(kernel: RunningKernel, name: str) -> list[psutil.Process]:
    """The processes of this name below a kernel's first process."""
    first = kernel.provisioner.process
    assert first is not None
    found = []
    for process in psutil.Process(first).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.name() == name:
                found.append(process)
    return found


async def one(kernel: RunningKernel, name: str) -> psutil.Process:
    """The only process of this name, once there is one."""
    async with asyncio.timeout(60):
        while not (found := named(kernel, name)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    (process,) = found
    return process


async def gone(process: psutil.Process) -> None:
    async with asyncio.timeout(60):
        while process.is_running():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def test_output_and_exit_code(start: Start) -> None:
    assert await finish(await start("echo", "one", "", "two")) == (b"one  two\n", b"", ProgramExit(0, None))
    script = "echo out; echo err >&2; exit 7"
    assert await finish(await start("sh", "-c", script)) == (b"out\n", b"err\n", ProgramExit(7, None))


async def test_input_that_comes_too_late_costs_nothing(kernel: RunningKernel, start: Start) -> None:
    program = await start("sleep", "60", stdin=True)
    process = await one(kernel, "sleep")
    process.kill()
    await gone(process)
    for _ in range(20):
        program.write(b"nobody reads it")
        await asyncio.sleep(0.01)
    assert await finish(program) == (b"", b"", ProgramExit(None, signal.SIGKILL))


async def test_a_signal_is_how_it_ended(start: Start) -> None:
    _, _, ended = await finish(await start("sh", "-c", "kill -SEGV $$"))
    assert ended == ProgramExit(None, signal.SIGSEGV)
    assert ended.signal_name == "SIGSEGV"


async def test_its_variables_are_the_kernels_and_its_own(start: Start) -> None:
    out, _, _ = await finish(await start("env", env={"OF_ITS_OWN": "yes", "LANG": "C"}))
    variables = dict(line.split("=", 1) for line in out.decode().splitlines())
    assert variables["OF_THE_SESSION"] == variables["OF_ITS_OWN"] == "yes"
    assert variables["LANG"] == "C"
    assert "PATH" in variables
    assert not [name for name in variables if name.startswith(("CELLGATE", "JPY"))]


async def test_it_runs_in_the_workspace_with_nothing_open(kernel: RunningKernel, start: Start) -> None:
    await kernel.run("import os; os.mkdir('below'); open('below/here', 'w').close()")
    out, _, _ = await finish(await start("sh", "-c", "ls; ls /proc/self/fd", folder="below"))
    assert out.split() == [b"here", b"0", b"1", b"2", b"3"]  # 3 is the listing itself


async def test_signals_that_python_ignores_end_it(start: Start) -> None:
    out, _, _ = await finish(await start("sh", "-c", "yes | head -1; grep SigIgn /proc/self/status"))
    shown, _, mask = out.decode().rpartition("SigIgn:")
    assert shown == "y\n"
    for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
        assert not int(mask, 16) >> (ignored_by_python - 1) & 1


REFUSED = (
    ("no-such-program", "", "'no-such-program' can't be started: No such file or directory$"),
    ("ls -l", "", "'ls -l' can't be started: .* each of its arguments as a word of its own$"),
    ("ls", "no-such-folder", "'ls' can't be started in the folder 'no-such-folder': No such file"),
    ("/etc/passwd", "", "'/etc/passwd' can't be started: Permission denied"),
    ("", "", "Invalid argument"),
)


async def test_what_can_not_be_started_says_why(start: Start) -> None:
    for program, folder, why in REFUSED:
        with pytest.raises(InvalidInput, match=why):
            await start(program, folder=folder)
        assert (await finish(await start("echo", "next")))[0] == b"next\n"


async def test_what_is_too_long_is_refused_here(start: Start) -> None:
    with pytest.raises(InvalidInput, match="too long"):
        await start("echo", "x" * 200_000)


async def test_input_reaches_it_until_its_end(start: Start) -> None:
    program = await start("wc", "-c", stdin=True)
    for _ in range(10):
        program.write(b"x" * 60_000)
    program.end_input()
    assert (await finish(program))[0].strip() == b"600000"


async def test_without_input_it_reads_the_end_at_once(start: Start) -> None:
    assert await finish(await start("cat")) == (b"", b"", ProgramExit(0, None))


async def test_input_that_nobody_reads_is_limited_and_signals_still_pass(start: Start) -> None:
    program = await start("sleep", "600", stdin=True)
    program.write(b"x" * 1_000_000)
    with pytest.raises(InputNotTaken):
        program.write(b"x" * 60_000)
    program.signal(signal.SIGINT)
    assert (await finish(program))[2] == ProgramExit(None, signal.SIGINT)


async def test_input_for_a_program_that_closed_it_is_dropped(start: Start) -> None:
    program = await start("sh", "-c", "exec <&-; echo closed; sleep 600", stdin=True)
    assert await first_words(program) == b"closed\n"
    ending = asyncio.ensure_future(finish(program))
    given = 0
    async with asyncio.timeout(60):
        while given < 5:
            with suppress(InputNotTaken):
                program.write(b"x" * 1_000_000)
                given += 1
            await asyncio.sleep(0.01)
    program.signal(signal.SIGTERM)
    assert (await ending)[2] == ProgramExit(None, signal.SIGTERM)


async def test_a_signal_reaches_its_group(kernel: RunningKernel, start: Start) -> None:
    program = await start("sh", "-c", "sleep 600 & echo ready; wait")
    assert await first_words(program) == b"ready\n"
    sleeping = await one(kernel, "sleep")
    program.signal(signal.SIGTERM)
    assert (await finish(program))[2] == ProgramExit(None, signal.SIGTERM)
    await gone(sleeping)


async def test_terminated_it_may_clean_up_and_leaves_nobody(kernel: RunningKernel, start: Start) -> None:
    script = "trap 'echo bye; exit 3' TERM; (trap '' TERM; echo ready; exec tail -f /dev/null) & "
    program = await start("sh", "-c", script + "while :; do sleep 0.1; done")
    assert await first_words(program) == b"ready\n"
    stubborn = await one(kernel, "tail")
    program.terminate()
    out, _, ended = await finish(program)
    assert out == b"bye\n"
    assert ended == ProgramExit(3, None)
    await gone(stubborn)


async def test_one_that_does_not_end_is_killed(start: Start) -> None:
    program = await start("sh", "-c", "trap '' TERM; echo ready; kill -STOP $$; while :; do sleep 1; done")
    assert await first_words(program) == b"ready\n"
    program.terminate()
    assert (await finish(program))[2] == ProgramExit(None, signal.SIGKILL)


async def test_who_leaves_ends_it(kernel: RunningKernel, start: Start) -> None:
    program = await start("sleep", "601")
    process = await one(kernel, "sleep")
    program.close()
    await gone(process)


async def test_a_program_in_the_background_goes_on_and_is_not_waited_for(
    kernel: RunningKernel, start: Start
) -> None:
    program = await start("sh", "-c", "sleep 602 & echo started")
    assert await finish(program) == (b"started\n", b"", ProgramExit(0, None))
    process = await one(kernel, "sleep")
    assert process.is_running()


async def test_output_that_nobody_reads_waits_in_its_pipe(kernel: RunningKernel, start: Start) -> None:
    program = await start("sh", "-c", "head -c 100000000 /dev/zero; echo end >&2")
    writer = await one(kernel, "head")
    before = -1
    async with asyncio.timeout(60):
        while (written := writer.io_counters().write_chars) != before or not written:
            before = written
            await asyncio.sleep(0.3)
    assert written < 3_000_000
    out, err, _ = await finish(program)
    assert (len(out), err) == (100_000_000, b"end\n")


async def test_many_at_once(start: Start) -> None:
    programs = [await start("sh", "-c", f"sleep 0.1; echo {number}") for number in range(20)]
    found = await asyncio.gather(*map(finish, programs))
    assert [out for out, _, _ in found] == [f"{number}\n".encode() for number in range(20)]


async def test_the_kernels_end_is_its_end(kernel: RunningKernel, start: Start) -> None:
    program = await start("sleep", "603")
    process = await one(kernel, "sleep")
    kernel.send("import os; os._exit(4)")
    with pytest.raises(KernelDied):
        await finish(program)
    assert (await asyncio.shield(kernel.provisioner.exited)).code == 4
    await gone(process)


async def test_the_kernels_cells_go_on_beside_it(kernel: RunningKernel, start: Start) -> None:
    program = await start("cat", stdin=True)
    assert await kernel.print("print(6 * 7)") == "42\n"
    program.write(b"still here")
    assert await first_words(program) == b"still here"


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        at_night(b"\xff" * 20),
        struct.pack(">BI", 1, 2**31),
        at_night(struct.pack(">BI", 2, 1) + b"x"),
        at_night(struct.pack(">BI", 1, 3) + b"abc"),
        struct.pack(">BI", 1, 8) + struct.pack(">II", 2**31, 1),
    ],
)
async def test_nonsense_is_cut_off_and_hurts_nobody(kernel: RunningKernel, start: Start, sent: bytes) -> None:
    path = kernel.provisioner.keeper_socket
    assert path is not None
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        connection.settimeout(60)
        connection.sendall(sent)
        connection.shutdown(socket.SHUT_WR)
        assert connection.recv(10) == b""
    assert (await finish(await start("echo", "fine")))[0] == b"fine\n"


class Impostor:
    """What a kernel may put in the place of its keeper's socket."""

    def __init__(self, folder: Path, *says: bytes) -> None:
        self.path = str(folder / "k-0")
        self._says = says
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read(10)
            for each in self._says:
                writer.write(each)
            writer.close()

        self._server = await asyncio.start_unix_server(answer, self.path)
        return self.path

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        await self._server.wait_closed()


@pytest.mark.parametrize(
    "says",
    [
        b"",
        b"\x00" * 100,
        struct.pack(">BI", 33, 2**31),
        struct.pack(">BII", 33, 4, 2**32 - 1),
        struct.pack(">BI", 35, 4) + b"text",
        struct.pack(">BI", 99, 0),
    ],
)
async def test_an_impostor_is_no_keeper(tmp_path: Path, says: bytes) -> None:
    async with Impostor(tmp_path, says) as path:
        with pytest.raises(KernelDied):
            await start_program(path, ProgramSpec(["ls"]))


@pytest.mark.parametrize(
    "says",
    [
        b"",
        STARTED,
        struct.pack(">BI", 35, 2**20),
        struct.pack(">BI", 35, 100) + b"cut",
        struct.pack(">BII", 37, 4, 4_000),
        struct.pack(">BII", 38, 4, 65),
        struct.pack(">BI", 37, 1) + b"x",
    ],
)
async def test_an_impostors_lies_end_its_program(tmp_path: Path, says: bytes) -> None:
    async with Impostor(tmp_path, STARTED, says) as path:
        program = await start_program(path, ProgramSpec(["ls"]))
        with pytest.raises(KernelDied):
            await program.next()
        program.close()


@pytest.mark.parametrize("says", [b"", struct.pack(">BI", 34, 2) + b"no", STARTED])
async def test_a_keeper_that_does_not_end_other_kernels_is_believed_gone(tmp_path: Path, says: bytes) -> None:
    async with Impostor(tmp_path, says) as path:
        with pytest.raises(KernelDied):
            await end_other_kernels(path)


async def test_a_link_in_the_sockets_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    async with Impostor(tmp_path / "other", STARTED) as path:
        os.symlink(path, tmp_path / "k-0")  # noqa: PTH211
        with pytest.raises(KernelDied):
            await start_program(str(tmp_path / "k-0"), ProgramSpec(["ls"]))
