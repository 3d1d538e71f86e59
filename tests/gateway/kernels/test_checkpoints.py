"""Checkpoints with real kernels: what a kernel made of a held fork has, and how held forks end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace, Obstacle, ObstacleKind
from cellgate_kernels.base.errors import CannotBranch, InvalidInput, KernelBusy, KernelDied, KernelStartFailed
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.forking.server import ForkServer
from cellgate_kernels.keeper.programs import end_other_kernels
from cellgate_kernels.kernel.held import HeldFork
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import KernelLauncher, SharedBackend
from cellgate_kernels.limits.control_group import ControlGroup
from cellgate_kernels.protocol.messages import Channel
from tests.gateway.kernels.test_branch import LIVES, THREAD, backend, copied, shown
from tests.gateway.kernels.test_kernel import (
    DEADLINE,
    PYTHON3,
    NewLauncher,
    folders,
    new_launcher,
    printed,
    run_cell,
    send_cell,
    until,
)
from tests.support.branch_cells import PACKAGES, PLAIN, Thing
from tests.support.nightly import at_night

__all__ = ["backend", "folders", "new_launcher"]  # fixtures

SHARED = BranchSpec(BranchWorkspace.SHARED)


@pytest.fixture
def launcher(new_launcher: NewLauncher, fork_server: ForkServer | None) -> KernelLauncher:
    return new_launcher(shared=SharedBackend(fork_server=fork_server))


class Session:
    """A kernel that is rolled back; at the test's end nothing is left of it."""

    def __init__(self, launcher: KernelLauncher, kernel: Kernel) -> None:
        self.launcher = launcher
        self.kernel = kernel
        self.kernels = [kernel]
        self.held: list[HeldFork] = []

    async def checkpoint(self, *, anyway: bool = False) -> HeldFork:
        held = await self.kernel.checkpoint(anyway=anyway)
        self.held.append(held)
        return held

    async def restore(self, held: HeldFork, spec: BranchSpec = SHARED) -> Kernel:
        """A kernel beside the others."""
        made = await self.launcher.restore(held, spec, like=self.kernel)
        self.kernels.append(made)
        return made

    async def roll_back(self, held: HeldFork, spec: BranchSpec = SHARED) -> Kernel:
        """A kernel instead of the other."""
        former = self.kernel
        self.kernel = await self.restore(held, spec)
        await former.discard()
        return self.kernel

    async def run(self, code: str) -> str:
        return await printed(self.kernel, code)

    async def processes(self) -> list[int]:
        """Those of the held forks, numbered as in the sandbox."""
        return [held._kept.pid for held in self.held if not held.ended.done()]


@pytest.fixture
async def session(launcher: KernelLauncher) -> AsyncIterator[Session]:
    session = Session(launcher, await launcher.start(PYTHON3))
    yield session
    await asyncio.gather(*(kernel.discard() for kernel in session.kernels))
    async with asyncio.timeout(DEADLINE):
        for held in session.held:
            await asyncio.shield(held.ended)
    # Whatever the test did: no socket, no task that listens.
    assert list(session.launcher._folders.runtime.iterdir()) == []
    assert not len(launcher._tasks)


async def works_after_a_rollback(session: Session, things: list[Thing]) -> None:
    """Each thing works in the kernel that is made of a checkpoint, and in the next one of the same."""
    (session.kernel.workspace / "kept.txt").write_text("kept")
    for thing in things:
        await session.run(thing.before)
    held = await session.checkpoint()
    for _ in range(2):
        kernel = await session.roll_back(held)
        problems = [await shown(kernel, thing) for thing in things]
        assert [problem for problem in problems if problem] == []


async def test_what_works_after_a_rollback(session: Session) -> None:
    await works_after_a_rollback(session, [*PLAIN])


@pytest.mark.nightly
async def test_which_packages_work_after_a_rollback(session: Session) -> None:
    await works_after_a_rollback(session, [*PACKAGES])


async def test_everything_is_as_it_was(session: Session) -> None:
    await session.run("x = [1]; import random; random.seed(5)")
    held = await session.checkpoint()
    drawn = await session.run("x.append(2); y = 3; print(random.random())")
    await session.run("x.clear(); del random")
    for _ in range(3):
        kernel = await session.roll_back(held)
        assert kernel.branched is not None
        assert (kernel.branched.parent, kernel.branched.checkpoint) == (session.kernels[0].id, held.id)
        assert kernel.shares_sandbox_with == ()
        assert kernel.workspace == session.kernels[0].workspace
        assert await session.run("print(x, 'y' in dir())") == "[1] False\n"
        assert await session.run("print(random.random())") == drawn
        cell = await run_cell(kernel, "x.append(4); print(len(In))")
        # The cells before the checkpoint, and these: no others.
        assert cell.text() == "5\n"
    assert held.alive


@pytest.mark.nightly
async def test_one_of_a_young_kernel_can_be_gone_back_to_when_it_is_old(session: Session) -> None:
    """A kernel that was made of a checkpoint ends if nobody speaks to it in time; those made of it do not."""
    await session.roll_back(await session.checkpoint())
    await session.run("x = 1")
    held = await session.checkpoint()
    branch = await session.kernel.branch(BranchSpec(seed=3))
    session.kernels.append(branch)
    # Longer than ALONE_AFTER, in the kernel's image.
    await asyncio.sleep(11)
    await session.roll_back(held)
    assert await session.run("print(x)") == "1\n"
    assert await printed(branch, "print(x)") == "1\n"


async def test_checkpoints_of_what_was_rolled_back(session: Session) -> None:
    """A line of them, and back to any."""
    line = []
    for number in range(3):
        await session.run(f"x = {number}")
        line.append(await session.checkpoint())
        await session.roll_back(line[-1])
    for number in (1, 2, 0):
        await session.roll_back(line[number])
        assert await session.run("print(x)") == f"{number}\n"
    branch = await session.kernel.branch(BranchSpec(seed=3))
    session.kernels.append(branch)
    assert await printed(branch, "x += 7; print(x)") == "7\n"
    assert await session.run("print(x)") == "0\n"


async def test_a_kernel_that_hangs_is_rolled_back(session: Session) -> None:
    await session.run("x = 1")
    held = await session.checkpoint()
    running = send_cell(
        session.kernel,
        "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [2]); x = 2\n"
        "print('hangs', flush=True)\nwhile True: time.sleep(1)",
    )
    await until(lambda: running.text() == "hangs\n")
    with pytest.raises(KernelBusy):
        await session.checkpoint()
    await session.roll_back(held)
    assert await session.run("print(x)") == "1\n"
    assert await session.run("import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))") == (
        "set()\n"
    )


async def test_its_pause_is_a_moment_and_it_goes_on(session: Session) -> None:
    """Tasks in the background go on in the kernel, and from where they were after a rollback."""
    await session.run(
        "import asyncio\ncount = 0\nasync def counts():\n    global count\n    while True:\n"
        "        count += 1\n        await asyncio.sleep(0.001)\ntask = asyncio.ensure_future(counts())"
    )
    held = await session.checkpoint()
    before = int(await session.run("print(count)"))
    await session.run("await asyncio.sleep(0.3)")
    after = int(await session.run("print(count)"))
    assert after > before + 20
    await session.roll_back(held)
    again = int(await session.run("print(count)"))
    assert again < after
    await session.run("await asyncio.sleep(0.05)")
    assert int(await session.run("print(count)")) > again + 5


# ---- files and connections


async def test_open_files_are_where_they_were(session: Session) -> None:
    (session.kernel.workspace / "read.txt").write_text("".join(f"{number}\n" for number in range(9)))
    await session.run(
        "import tempfile, os; file = open('written.txt', 'w+'); file.write('before,'); file.flush()\n"
        "lines = open('read.txt'); next(lines); nameless = tempfile.TemporaryFile('w+'); os.mkdir('below')\n"
        "nameless.write('abc'); nameless.flush(); os.chdir('below')"
    )
    held = await session.checkpoint()
    await session.run(
        "file.write('after,'); file.close(); lines.close(); nameless.write('d'); nameless.close()\n"
        "os.chdir('..'); os.rmdir('below')"
    )
    # As whoever puts back the files would.
    (session.kernel.workspace / "written.txt").unlink()
    (session.kernel.workspace / "written.txt").write_text("before,")
    # In a container the kernel is another user.
    (session.kernel.workspace / "written.txt").chmod(0o666)
    (session.kernel.workspace / "below").mkdir()
    await session.roll_back(held)
    assert await session.run("file.write('again'); file.flush(); print(os.path.basename(os.getcwd()))") == (
        "below\n"
    )
    assert (session.kernel.workspace / "written.txt").read_text() == "before,again"
    assert await session.run("print(next(lines), nameless.tell(), nameless.seek(0), nameless.read(3))") == (
        "1\n 3 0 abc\n"
    )
    # Its positions are its own.
    beside = await session.restore(held)
    assert await printed(beside, "print(lines.readline(), end='')") == "1\n"
    assert await session.run("print(next(lines), end='')") == "2\n"


NAMELESS = {
    "without a name": (
        "import tempfile; f = tempfile.TemporaryFile(); f.write(b'abc'); f.flush()",
        "f.seek(1); f.write(b'xyz'); f.flush()",
        "print(f.tell(), f.seek(0), f.read())",
        "3 0 b'abc'",
    ),
    "removed": (
        (
            "f = open('gone', 'w+b'); os.unlink('gone'); f.write(b'abc'); f.flush()\n"
            "g = open(os.dup(f.fileno()), 'rb')"
        ),
        "f.truncate(1)",
        "print(g.seek(0), g.read(), os.fstat(g.fileno()).st_ino == os.fstat(f.fileno()).st_ino)",
        "0 b'abc' True",
    ),
    "of memory": (
        "f = os.memfd_create('m'); os.write(f, b'abc')",
        "os.write(f, b'd')",
        "print(os.pread(f, 9, 0), os.lseek(f, 0, os.SEEK_CUR))",
        "b'abc' 3",
    ),
    "mapped": (
        (
            "import mmap, tempfile; f = tempfile.TemporaryFile(); f.write(b'abc'); f.flush()\n"
            "m = mmap.mmap(f.fileno(), 3)"
        ),
        "m[:] = b'xyz'",
        "m[1:2] = b'B'; print(m[:], f.seek(0), f.read())",
        "b'aBc' 0 b'aBc'",
    ),
    "shared memory": (
        "import mmap; m = mmap.mmap(-1, 3); m[:] = b'abc'",
        "m[0] = 0",
        "print(m[:])",
        "b'abc'",
    ),
    "multiprocessing": (
        "import multiprocessing as mp; v = mp.Value('i', 5); a = mp.Array('c', b'abc'); lock = mp.Lock()",
        "v.value = 6; a[0] = b'x'; lock.acquire()",
        "print(v.value, a.value, lock.acquire(block=False)); lock.release()",
        "5 b'abc' True",
    ),
}


@pytest.mark.parametrize("how", NAMELESS)
async def test_what_has_no_name_comes_back(session: Session, how: str) -> None:
    made, changed, look, shown = NAMELESS[how]
    await session.run(f"import os; {made}; None")
    held = await session.checkpoint()
    for _ in range(2):
        await session.run(f"{changed}; None")
        await session.roll_back(held)
        assert await session.run(look) == f"{shown}\n"
    # Also from a checkpoint of what was made anew.
    held = await session.checkpoint()
    await session.run(f"{changed}; None")
    await session.roll_back(held)
    assert await session.run(look) == f"{shown}\n"


async def test_too_much_without_a_name_is_an_obstacle(session: Session) -> None:
    await session.run(
        "import os; f = os.memfd_create('large'); os.truncate(f, 80 * 2**20); os.write(f, b'ab')"
    )
    with pytest.raises(CannotBranch) as refused:
        await session.checkpoint()
    obstacle = Obstacle(ObstacleKind.UNNAMED_FILE, "/memfd:large, 80 MiB")
    assert refused.value.obstacles == (obstacle,)
    # A branch has it in common with its parent.
    session.kernels.append(await session.kernel.branch(SHARED))
    held = await session.checkpoint(anyway=True)
    assert held.overruled == (obstacle,)
    await session.run("os.write(f, b'cd')")
    await session.roll_back(held)
    assert await session.run("print(os.lseek(f, 0, os.SEEK_CUR), os.pread(f, 4, 0))") == "2 b'abcd'\n"


async def test_timers_go_on_from_where_they_were(session: Session) -> None:
    await session.run(
        "import asyncio, signal; signal.signal(signal.SIGALRM, signal.SIG_IGN); signal.alarm(3600)\n"
        "timer = asyncio.get_running_loop().call_later(3600, print)"
    )
    due = float(await session.run("print(timer.when())"))
    held = await session.checkpoint()
    left = "print(signal.alarm(0) > 0)"
    assert await session.run(left) == "True\n"
    for _ in range(2):
        await session.roll_back(held)
        # The time for which it was held does not count.
        assert float(await session.run("print(timer.when())")) > due
        branch = await session.kernel.branch(SHARED)
        session.kernels.append(branch)
        assert await printed(branch, left) == "True\n"
        assert await session.run(left) == "True\n"


async def test_a_checkpoint_holds_no_connection(session: Session) -> None:
    """What a kernel closes is closed, although a held fork had it too."""
    await session.run(
        "import os, socket, subprocess\nserver = socket.create_server(('127.0.0.1', 0))\n"
        "port = server.getsockname()[1]; client = socket.create_connection(('127.0.0.1', port))\n"
        "there, _ = server.accept(); pair = socket.socketpair(); reader, writer = os.pipe()\n"
        "cat = subprocess.Popen(['cat'], stdin=subprocess.PIPE, stdout=subprocess.PIPE)"
    )
    held = await session.checkpoint()
    assert await session.run("client.close(); print(there.recv(1))") == "b''\n"
    assert await session.run("server.close(); socket.create_server(('127.0.0.1', port)).close()") == ""
    assert await session.run("print(cat.communicate(b'x', timeout=10))") == "(b'x', None)\n"
    assert await session.run("os.close(writer); print(os.read(reader, 1))") == "b''\n"
    await session.roll_back(held)
    assert await session.run("print(client.recv(1), there.recv(1), cat.stdout.read())") == "b'' b'' b''\n"
    assert await session.run("os.write(writer, b'ab'); print(os.read(reader, 2))") == "b'ab'\n"
    assert await session.run("pair[0].send(b'cd'); print(pair[1].recv(2))") == "b'cd'\n"
    refused = await run_cell(session.kernel, "client.send(b'x')")
    assert [event.content["ename"] for event in refused.events if event.type == "error"] == [
        "BrokenPipeError"
    ]


async def test_a_workspace_of_its_own(session: Session) -> None:
    await session.run("print(1, file=open('data', 'w'))")
    held = await session.checkpoint()
    kernel = await session.restore(held, await copied(session.kernel))
    await printed(kernel, "print(2, file=open('data', 'w'))")
    assert await session.run("print(open('data').read(), end='')") == "1\n"
    # Instead of one whose folder is another than that of the one that was forked.
    session.kernel = kernel
    again = await session.roll_back(held)
    assert again.workspace == kernel.workspace
    assert await session.run("print(open('data').read(), end='')") == "2\n"


# ---- refusals


async def test_obstacles_are_named_or_overruled(session: Session) -> None:
    await session.run(THREAD)
    with pytest.raises(CannotBranch) as refused:
        await session.checkpoint()
    assert refused.value.obstacles == (Obstacle(ObstacleKind.THREAD, "mine"),)
    held = await session.checkpoint(anyway=True)
    assert held.overruled == refused.value.obstacles
    kernel = await session.roll_back(held)
    assert kernel.branched is not None
    assert kernel.branched.overruled == held.overruled
    assert await session.run("print(thread.is_alive())") == "False\n"


async def test_other_languages_have_none(launcher: KernelLauncher) -> None:
    kernel = await launcher.start(KernelProfile("bash"))
    with pytest.raises(CannotBranch):
        await kernel.checkpoint(anyway=True)
    await kernel.discard()


async def test_one_that_does_not_come_up_leaves_the_kernel_alone(session: Session) -> None:
    await session.run(
        "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(wait))\nwait = 600"
    )
    with pytest.raises(KernelStartFailed, match="did not come up"):
        await session.checkpoint()
    await session.run("wait = 0; import atexit; kept = atexit._clear; atexit._clear = None")
    with pytest.raises(KernelStartFailed, match="TypeError"):
        await session.checkpoint()
    # One that comes up, but of which no kernel can be made.
    await session.run("atexit._clear = kept; kernel = get_ipython().kernel; start = kernel.start")
    await session.run("kernel.start = None")
    held = await session.checkpoint()
    for _ in range(2):
        with pytest.raises(KernelStartFailed, match="TypeError"):
            await session.restore(held)
    await session.run("kernel.start = start")
    assert held.alive
    assert await session.run("print('goes on')") == "goes on\n"
    await session.roll_back(await session.checkpoint())
    assert session.kernel.shares_sandbox_with == ()


async def test_only_kernels_of_its_sandbox_are_replaced(session: Session) -> None:
    held = await session.checkpoint()
    other = await session.launcher.start(PYTHON3)
    session.kernels.append(other)
    with pytest.raises(InvalidInput):
        await session.launcher.restore(held, SHARED, like=other)
    with pytest.raises(InvalidInput, match="seed"):
        await session.restore(held, BranchSpec(BranchWorkspace.SHARED, seed=-1))


# ---- ends


async def ended(held: HeldFork) -> None:
    await asyncio.wait_for(asyncio.shield(held.ended), DEADLINE)
    assert not held.alive


async def test_a_closed_one_is_gone(session: Session) -> None:
    held, other = await session.checkpoint(), await session.checkpoint()
    (process, _) = await session.processes()
    held.close()
    held.close()
    await ended(held)
    for work in (held.memory(), session.restore(held)):
        with pytest.raises(KernelDied):
            await work
    assert await session.run(f"{LIVES}print(lives({process}))") == "False\n"
    await session.roll_back(other)
    assert other.alive


async def test_they_end_with_the_last_kernel_that_is_given_up(session: Session) -> None:
    first = await session.checkpoint()
    await session.roll_back(first)
    held = [first, await session.checkpoint()]
    await session.kernel.discard()
    for each in held:
        await ended(each)


@pytest.mark.parametrize("rolled_back", [False, True])
@pytest.mark.parametrize(
    ("way", "code", "number"), [at_night("os._exit(3)", 3, None), ("os.kill(os.getpid(), 9)", None, 9)]
)
async def test_a_kernel_that_died_is_rolled_back(
    session: Session, way: str, code: int | None, number: int | None, rolled_back: bool
) -> None:
    """Also the one that the sandbox was started for."""
    await session.run("x = 1")
    held = await session.checkpoint()
    if rolled_back:
        await session.roll_back(held)
    for _ in range(2):
        session.kernel.connection.request(Channel.SHELL, "execute_request", {"code": f"import os; {way}"})
        async with asyncio.timeout(DEADLINE):
            how = await asyncio.shield(session.kernel.exited)
        assert (how.code, how.signal) == (code, number)
        assert held.alive
        await session.roll_back(held)
        assert await session.run("print(x)") == "1\n"


async def test_one_of_a_dead_kernel_ends_the_sandbox_when_it_is_closed(session: Session) -> None:
    held = await session.checkpoint()
    gone = session.kernel.provisioner.gone
    session.kernel.connection.request(Channel.SHELL, "execute_request", {"code": "import os; os._exit(3)"})
    async with asyncio.timeout(DEADLINE):
        await asyncio.shield(session.kernel.exited)
        assert not gone.done()
        held.close()
        await asyncio.shield(gone)


async def test_they_end_with_their_gateway_and_the_first_kernel_does_not(session: Session) -> None:
    await session.checkpoint()
    await session.checkpoint()
    processes = await session.processes()
    for held in session.held:
        # The system closes all connections of a gateway that is killed.
        held._tether.close()
        held._kept.close()
    waits = f"import time\nwhile any(map(lives, {processes})): time.sleep(0.01)\nprint('ended')"
    assert await session.run(LIVES + waits) == "ended\n"
    for held in session.held:
        held._end()


async def test_who_adopts_the_kernel_can_rely_on_their_end(session: Session) -> None:
    await session.checkpoint()
    # One that was stopped can't see that its gateway is gone.
    await session.checkpoint()
    processes = await session.processes()
    await session.run(f"import os, signal; os.kill({processes[1]}, signal.SIGSTOP)")
    path = session.kernel.provisioner.keeper_socket
    assert path is not None
    await end_other_kernels(path)
    assert await session.run(f"{LIVES}print([*map(lives, {processes})])") == "[False, False]\n"
    for held in session.held:
        await ended(held)


@pytest.mark.nightly
async def test_nobody_comes(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A held fork whose gateway ended while it was made ends by itself."""

    async def comes_not(*_: object) -> Any:
        raise KernelDied("This gateway is gone")

    monkeypatch.setattr("cellgate_kernels.kernel.forks.tie", comes_not)
    with pytest.raises(KernelDied):
        await session.checkpoint()
    pids = "[int(p) for p in os.listdir('/proc') if p.isdigit()]"
    assert int(await session.run(f"import os; before = {pids}; print(len(before))")) > 1
    ends = f"import time\nends = time.time() + 20\nwhile len({pids}) >= len(before) and time.time() < ends:\n"
    assert await session.run(f"{ends}    time.sleep(0.1)\nprint(len({pids}) < len(before))") == "True\n"


# ---- what cells do to it


async def test_one_that_a_cell_kills_has_ended(session: Session) -> None:
    held = await session.checkpoint()
    (process,) = await session.processes()
    # Everything that does not have to end it leaves it alone.
    await session.run(
        f"import os, signal\nfor n in signal.valid_signals() - {{9, 19}}:\n    os.kill({process}, n)"
    )
    kernel = await session.roll_back(held)
    assert await printed(kernel, "print('unharmed')") == "unharmed\n"
    await session.run(f"import os, signal; os.kill({process}, signal.SIGKILL)")
    await ended(held)
    assert held.ended.result().signal == signal.SIGKILL
    assert await session.run("print('goes on')") == "goes on\n"


async def test_one_that_a_cell_stops_can_be_closed(session: Session) -> None:
    held = await session.checkpoint()
    (process,) = await session.processes()
    await session.run(f"import os, signal; os.kill({process}, signal.SIGSTOP)")
    held.close()
    await ended(held)
    assert await session.run(f"{LIVES}print(lives({process}))") == "False\n"


TAKES_ITS_PLACE = """
import os, socket, threading, time
folder = {folder!r}
answer = {answer!r}
def answers():
    while True:
        for name in os.listdir(folder):
            if name.startswith('h'):
                os.unlink(f'{{folder}}/{{name}}')
                with socket.socket(socket.AF_UNIX) as listener:
                    listener.bind(f'{{folder}}/{{name}}')
                    listener.listen()
                    connection, _ = listener.accept()
                    while connection.recv(1000):
                        connection.sendall(answer)
thread = threading.Thread(target=answers, daemon=True); thread.start()
"""


@pytest.mark.parametrize(
    "answer",
    [b"x" * 10_000_000, at_night(b"[1]\n"), b'{"status": "ok", "pid": 1, "parent": 1, "bytes": -1}\n'],
)
async def test_false_answers_are_no_trouble(session: Session, answer: bytes) -> None:
    """A cell comes before the gateway does and takes the place of the held fork, if it is quick enough."""
    folder = str(Path(session.kernel.provisioner.place[1].socket_prefix).parent)
    code = TAKES_ITS_PLACE.format(folder=folder, answer=b"?")
    await session.run(code.replace("b'?'", f"eval({str(answer[:60])!r}) * {max(1, len(answer) // 60)}"))
    for _ in range(3):
        try:
            held = await session.checkpoint(anyway=True)
        except (KernelStartFailed, KernelDied):
            continue
        for work in (held.memory(), session.restore(held)):
            try:
                await work
            except (KernelDied, KernelStartFailed):
                continue
        held.close()
        await ended(held)
    assert await session.run("print('goes on')") == "goes on\n"


# ---- memory, sleep, and what piles up


async def test_memory_is_what_only_held_forks_use(session: Session) -> None:
    size = 64 * MIB
    await session.run(f"import numpy; held = numpy.ones({size // 8})")
    first = await session.checkpoint()
    assert await first.memory() < size / 2
    second = await session.checkpoint()
    await session.run("held += 1")
    # Both have the same old pages, and each is told half of it.
    both = [await first.memory(), await second.memory()]
    assert 0.9 * size < sum(both) < 1.5 * size
    assert max(both) < 0.9 * size
    first.close()
    await ended(first)
    assert 0.9 * size < await second.memory() < 1.5 * size
    await session.roll_back(second)
    assert await second.memory() < size / 2


async def test_it_forbids_sleep(session: Session) -> None:
    held = await session.checkpoint()
    assert session.kernel.control_group() is None
    nowhere = Path("/nonexistent")
    group = ControlGroup(nowhere, nowhere)
    assert not await session.kernel.sleep(group, cast("Any", None))
    held.close()
    await ended(held)
    assert session.kernel._has_sandbox_alone


async def test_nothing_piles_up(session: Session) -> None:
    """Checkpoints that are dropped, and some that are rolled back to."""
    count = int(os.environ.get("CELLGATE_CHECKPOINTS", "20"))
    anyway = "import threading, time\nstop = False\ndef prints():\n    while not stop:\n        print('.')\n"
    await session.run(
        f"{anyway}        time.sleep(0.002)\nt = threading.Thread(target=prints, daemon=True); t.start()"
    )
    opened = "__import__('os').listdir('/proc/self/fd')"
    states = "[open(f'/proc/{p}/stat').read().split()[2] for p in os.listdir('/proc') if p.isdigit()]"
    (await session.checkpoint(anyway=True)).close()
    before, here = int(await value(session.kernel, f"len({opened})")), open_here()
    for number in range(count):
        held = await session.checkpoint(anyway=True)
        if number % 10 == 5:
            made = await session.restore(held)
            assert await printed(made, "print(t.is_alive())") == "False\n"
            await made.discard()
        held.close()
        await ended(held)
    assert int(await value(session.kernel, f"len({opened})")) <= before + 2
    assert open_here() <= here + 3
    processes = await value(session.kernel, f"(lambda os: {states})(__import__('os'))")
    assert "Z" not in processes
    sockets = session.kernel.provisioner.place[0].sockets
    assert not [each for each in sockets.iterdir() if each.name[0] in "hb"]
    # A line of rollbacks: each kernel has what the one before it had, and no more.
    await session.roll_back(await session.checkpoint(anyway=True))
    counts = []
    for _ in range(4):
        counts.append(int(await value(session.kernel, f"len({opened})")))
        await session.roll_back(await session.checkpoint())
    assert counts[-1] <= counts[0] + 2, counts


def open_here() -> int:
    """How many descriptors this process has open."""
    return len([*Path("/proc/self/fd").iterdir()])


async def value(kernel: Kernel, expression: str) -> str:
    """The value of an expression, whatever threads print at the same time."""
    text = await printed(kernel, f"import sys; sys.stdout.write('<' + str({expression}) + '>'); None")
    return text[text.index("<") + 1 : text.index(">")]


async def test_a_held_fork_takes_no_processor_time(session: Session) -> None:
    await session.checkpoint()
    (process,) = await session.processes()
    used = f"print(sum(map(int, open('/proc/{process}/stat').read().rsplit(')')[1].split()[11:13])))"
    before = await session.run(used)
    await session.run("import time; time.sleep(1)")
    assert await session.run(used) == before
