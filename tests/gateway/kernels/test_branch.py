"""Branches with real kernels: what works in them, what refuses them, and how they and their parents end."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from cellgate_kernels.base.branching import BranchSpec, BranchWorkspace, Obstacle, ObstacleKind
from cellgate_kernels.base.errors import CannotBranch, InvalidInput, KernelBusy, KernelStartFailed
from cellgate_kernels.forking.server import ForkServer
from cellgate_kernels.keeper.programs import ProgramOutput, ProgramSpec, end_other_kernels
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.launcher import KernelLauncher, SharedBackend
from cellgate_kernels.protocol.execution import Status
from cellgate_kernels.protocol.messages import Channel, new_message
from cellgate_kernels.specs.catalog import KernelspecCatalog
from tests.gateway.kernels.test_kernel import (
    DEADLINE,
    PYTHON3,
    NewLauncher,
    folders,
    new_launcher,
    printed,
    run_cell,
    send_cell,
    set_program,
    until,
)
from tests.support.branch_cells import PACKAGES, PLAIN, Thing
from tests.support.kernels import FORKS_FIRST
from tests.support.nightly import at_night, mostly_nightly

__all__ = ["folders", "new_launcher"]  # fixtures


@pytest.fixture(params=FORKS_FIRST)
def backend(request: pytest.FixtureRequest) -> str:
    request.getfixturevalue("sandbox")
    return str(request.param)


@pytest.fixture
def launcher(new_launcher: NewLauncher, fork_server: ForkServer | None) -> KernelLauncher:
    return new_launcher(shared=SharedBackend(fork_server=fork_server))


@pytest.fixture
async def parent(launcher: KernelLauncher, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Kernel]:
    """A kernel; it and all that are branched off are discarded after the test."""
    kernels = [await launcher.start(PYTHON3)]
    branch = launcher._forks.branch

    async def remember(kernel: Kernel, spec: BranchSpec) -> Kernel:
        made = await branch(kernel, spec)
        kernels.append(made)
        return made

    monkeypatch.setattr(launcher._forks, "branch", remember)
    yield kernels[0]
    await asyncio.gather(*(kernel.discard() for kernel in kernels))


async def copied(kernel: Kernel) -> BranchSpec:
    """A branch with the files that the kernel has now."""

    async def fill(workspace: Path) -> None:
        await asyncio.to_thread(shutil.copytree, kernel.workspace, workspace, dirs_exist_ok=True)

    return BranchSpec(fill=fill)


async def shown(kernel: Kernel, thing: Thing) -> str | None:
    """Why a thing does not work in a kernel; None if it does."""
    cell = await run_cell(kernel, thing.check)
    if cell.machine.outcome().status is not Status.OK:
        errors = [event.content.get("evalue") for event in cell.events if event.type == "error"]
        return f"{thing.name}: {errors}"
    return f"{thing.name}: {cell.text()!r}" if thing.shows not in (None, cell.text()) else None


async def works_in_both(parent: Kernel, things: Sequence[Thing]) -> None:
    """Each thing works in a branch, and in the parent afterwards."""
    (parent.workspace / "kept.txt").write_text("kept")
    for thing in things:
        await printed(parent, thing.before)
    branch = await parent.branch(await copied(parent))
    assert branch.branched is not None
    problems = [await shown(branch, thing) for thing in things]
    assert [problem for problem in problems if problem] == []
    problems = [await shown(parent, thing) for thing in things]
    assert [problem for problem in problems if problem] == []
    await branch.discard()


async def test_what_works_in_a_branch(parent: Kernel) -> None:
    await works_in_both(parent, PLAIN)


@pytest.mark.nightly
async def test_which_packages_work_in_a_branch(parent: Kernel) -> None:
    await works_in_both(parent, PACKAGES)


async def asked(kernel: Kernel, channel: Channel, msg_type: str, **content: object) -> dict[str, Any]:
    """The content of the kernel's answer to a request."""
    return (await asyncio.wait_for(kernel.connection.ask(channel, msg_type, content), DEADLINE)).content()


async def test_what_clients_ask_of_it(parent: Kernel) -> None:
    """Completion, help, its use of memory, input, and cells beside a cell, as in every kernel."""
    await printed(parent, "def number_of_rows():\n    'How many there are.'\nimport time; go_on = False")
    branch = await parent.branch(BranchSpec())
    for kernel in (branch, parent):
        completed = await asked(kernel, Channel.SHELL, "complete_request", code="number_of", cursor_pos=9)
        assert completed["matches"] == ["number_of_rows"]
        helped = await asked(
            kernel, Channel.SHELL, "inspect_request", code="number_of_rows", cursor_pos=5, detail_level=0
        )
        assert "How many there are." in helped["data"]["text/plain"]
        used = await asked(kernel, Channel.CONTROL, "usage_request")
        assert used["pid"] == int(await printed(kernel, NUMBER))
        asks = send_cell(kernel, "print(input('who? '))", allow_stdin=True)
        await until(lambda cell=asks: "input_request" in {event.type for event in cell.events})  # type: ignore[misc]
        kernel.connection.request(Channel.STDIN, "input_reply", {"value": "nobody"})
        await asyncio.wait_for(asks.ended, DEADLINE)
        assert asks.text() == "nobody\n"
        made = await asked(kernel, Channel.CONTROL, "create_subshell_request")
        waits = send_cell(kernel, "print('waits')\nwhile not go_on: time.sleep(0.01)")
        await until(lambda cell=waits: cell.text() == "waits\n")  # type: ignore[misc]
        beside = {"code": "go_on = True", "subshell_id": made["subshell_id"]}
        message = new_message(Channel.SHELL, "execute_request", beside, session=kernel.connection.session)
        header = {**json.loads(message.header_frame), "subshell_id": made["subshell_id"]}
        kernel.connection.send(replace(message, header_frame=json.dumps(header).encode()))
        await asyncio.wait_for(waits.ended, DEADLINE)
        ended = await asked(
            kernel, Channel.CONTROL, "delete_subshell_request", subshell_id=made["subshell_id"]
        )
        assert ended["status"] == "ok"


async def test_random_numbers_go_on_or_are_seeded(parent: Kernel) -> None:
    await printed(
        parent, "import random, numpy as np; random.seed(3); np.random.seed(3); g = np.random.default_rng(3)"
    )
    draw = "print(random.random(), np.random.random(), g.random())"
    same, other = await parent.branch(BranchSpec()), await parent.branch(BranchSpec(seed=4))
    drawn = await printed(parent, draw)
    assert await printed(same, draw) == drawn
    assert await printed(other, draw) != drawn
    assert await printed(
        other, "random.seed(4); np.random.seed(4); g = np.random.default_rng(3); print(random.random())"
    ) == await printed(parent, "random.seed(4); print(random.random())")
    with pytest.raises(InvalidInput, match="seed"):
        await parent.branch(BranchSpec(seed=2**32))


# ---- two kernels in one sandbox


async def test_each_goes_its_own_way(parent: Kernel) -> None:
    """Outputs, counts, variables, keys, interrupts and working folders are each kernel's own."""
    await printed(parent, "x = 1")
    one, two = await parent.branch(BranchSpec()), await parent.branch(BranchSpec())
    assert one.shares_sandbox_with == (parent.id, two.id)
    running = send_cell(parent, "import time\nprint('sleeps', flush=True)\ntime.sleep(60)")
    await until(lambda: running.text() == "sleeps\n")
    one_said = asyncio.ensure_future(printed(one, "x += 1; print(x)"))
    assert await printed(two, "x += 2; print(x)") == "3\n"
    assert await one_said == "2\n"
    assert running.text() == "sleeps\n"
    elsewhere = send_cell(one, "import time\nprint('sleeps', flush=True)\ntime.sleep(0.5); print('done')")
    await until(lambda: elsewhere.text() == "sleeps\n")
    await parent.interrupt()
    async with asyncio.timeout(DEADLINE):
        await running.ended
        await elsewhere.ended
    assert running.machine.outcome().status is Status.ERROR
    assert elsewhere.text() == "sleeps\ndone\n"
    endless = send_cell(two, "print('runs', flush=True)\nwhile True: pass")
    await until(lambda: endless.text() == "runs\n")
    await two.interrupt()
    async with asyncio.timeout(DEADLINE):
        await endless.ended
    assert await printed(parent, "print(x)") == "1\n"
    keys = {kernel.connection._info["key"] for kernel in (parent, one, two)}
    assert len(keys) == 3


@pytest.mark.parametrize("how", ["a message", "a signal"])
async def test_an_interrupt_stops_the_cell_of_one(parent: Kernel, how: str) -> None:
    """Of the first kernel, a branch, and a branch of that one."""
    python = (await printed(parent, "import os, signal, sys, time; print(sys.executable)")).strip()
    branch = await parent.branch(BranchSpec())
    kernels = [parent, branch, await branch.branch(BranchSpec())]
    numbers = [int(await printed(kernel, NUMBER)) for kernel in kernels]
    endless = "print('runs')\nwhile True: time.sleep(0.01)"
    for interrupted, number in zip(kernels, numbers, strict=True):
        cells = [send_cell(kernel, endless) for kernel in kernels]
        await until(lambda cells=cells: all(cell.text() == "runs\n" for cell in cells))  # type: ignore[misc]
        if how == "a message":
            await interrupted.interrupt()
        else:
            # To the process's group, as a terminal does.
            sends = f"import os; os.killpg(os.getpgid({number}), {int(signal.SIGINT)})"
            program = await parent.start_program(ProgramSpec([python, "-c", sends]))
            assert not isinstance(await asyncio.wait_for(program.next(), DEADLINE), ProgramOutput)
            program.close()
        stopped = cells.pop(kernels.index(interrupted))
        await asyncio.wait_for(stopped.ended, DEADLINE)
        assert stopped.machine.outcome().status is Status.ERROR
        assert not any(cell.ended.done() for cell in cells)
        for kernel in kernels:
            if kernel is not interrupted:
                await kernel.interrupt()
        for cell in cells:
            await asyncio.wait_for(cell.ended, DEADLINE)


async def test_a_branch_has_a_copy_of_the_files_or_the_same(parent: Kernel) -> None:
    await printed(parent, "import os; os.mkdir('below'); os.chdir('below'); print(1, file=open('data', 'w'))")
    copy = await parent.branch(await copied(parent))
    await printed(copy, "print(2, file=open('data', 'w'))")
    assert await printed(copy, "print(os.environ.get('PWD', os.getcwd()) == os.getcwd())") == "True\n"
    assert (copy.workspace / "below" / "data").read_text() == "2\n"
    assert await printed(parent, "print(open('data').read(), end='')") == "1\n"
    shared = await parent.branch(BranchSpec(BranchWorkspace.SHARED))
    assert shared.workspace == parent.workspace
    assert shared.shares_workspace_with == (parent.id,)
    assert copy.shares_workspace_with == ()
    await printed(shared, "print(3, file=open('data', 'w'))")
    assert await printed(parent, "print(open('data').read(), end='')") == "3\n"
    below = await copy.branch(await copied(copy))
    assert await printed(below, "print(open('data').read(), end='')") == "2\n"
    assert (below.workspace / "below" / "data").read_text() == "2\n"
    await copy.discard()
    await parent.discard()
    assert not copy.workspace.exists()
    assert shared.workspace.exists()
    assert await printed(below, "print(open('data').read(), end='')") == "2\n"
    program = await below.start_program(ProgramSpec(["cat", "below/data"]))
    said = await program.next()
    assert isinstance(said, ProgramOutput)
    assert said.data == b"2\n"
    program.close()


async def test_processes_of_cells_stay_the_parents(parent: Kernel) -> None:
    await printed(parent, "import subprocess, os; p = subprocess.Popen(['sleep', '600'])")
    branch = await parent.branch(BranchSpec())
    assert branch.branched is not None
    (child,) = branch.branched.children
    assert child.split()[1] == "sleep"
    assert await printed(parent, "p.kill(); print(p.wait())") == "-9\n"
    # Nor does a cell that waits for its children find the branch.
    found = "try:\n    print(os.wait())\nexcept ChildProcessError:\n    print('none')"
    assert await printed(parent, found) == "none\n"


async def test_files_of_the_parent_outlive_a_branch_that_exits(parent: Kernel) -> None:
    await printed(
        parent, "import tempfile, os, atexit; t = tempfile.TemporaryDirectory(); atexit.register(print, 'no')"
    )
    branch = await parent.branch(BranchSpec())
    leaving = send_cell(branch, "exit()")
    ended = await asyncio.wait_for(asyncio.shield(branch.exited), DEADLINE)
    assert (ended.code, ended.signal) == (0, None)
    assert leaving.text() == ""
    assert await printed(parent, "print(os.path.isdir(t.name))") == "True\n"


# ---- refusals

THREAD = """
import threading, time
thread = threading.Thread(target=time.sleep, args=(600,), name='mine', daemon=True)
thread.start()
"""
POLARS = "import polars as pl; pl.DataFrame({'x': [1, 2] * 1000}).group_by('x').len(); None"
OMPPOOL = "import sys, types; sys.modules['numba.np.ufunc.omppool'] = types.ModuleType('omppool')"
LIBCUDA = """
import mmap
with open('/tmp/libcuda.so.1', 'w+b') as file:
    file.write(b'x')
    file.flush()
    mapped = mmap.mmap(file.fileno(), 0)
"""
EVENT_LOOP = "get_ipython().kernel.eventloop = lambda kernel: None"
IDLE_POOL = (
    "from concurrent.futures import ThreadPoolExecutor as P\npool = P(1); pool.submit(len, []).result(); None"
)


@pytest.mark.parametrize(
    ("code", "kind", "name"),
    [
        (THREAD, ObstacleKind.THREAD, "mine"),
        (IDLE_POOL, ObstacleKind.THREAD, "ThreadPoolExecutor-0_0"),
        (POLARS, ObstacleKind.NATIVE_THREAD, "polars-0"),
        (OMPPOOL, ObstacleKind.OPENMP, "numba"),
        (LIBCUDA, ObstacleKind.CUDA, "libcuda"),
        (EVENT_LOOP, ObstacleKind.EVENT_LOOP, "<lambda>"),
    ],
)
async def test_an_obstacle_is_named(parent: Kernel, code: str, kind: ObstacleKind, name: str) -> None:
    await printed(parent, code)
    with pytest.raises(CannotBranch) as refused:
        await parent.branch(BranchSpec())
    assert Obstacle(kind, name) in refused.value.obstacles
    assert parent.shares_sandbox_with == ()
    assert await printed(parent, "print('goes on')") == "goes on\n"


async def test_an_obstacle_is_overruled(parent: Kernel) -> None:
    await printed(parent, THREAD)
    branch = await parent.branch(BranchSpec(anyway=True))
    assert branch.branched is not None
    assert branch.branched.overruled == (Obstacle(ObstacleKind.THREAD, "mine"),)
    assert await printed(branch, "print(thread.is_alive())") == "False\n"


async def test_a_debugger_is_an_obstacle_and_can_be_attached_in_a_branch(parent: Kernel) -> None:
    branch = await parent.branch(BranchSpec())
    begin = {"clientID": "tests", "adapterID": "", "linesStartAt1": True, "columnsStartAt1": True}
    for kernel in (branch, parent):
        for number, (command, arguments) in enumerate(
            {"initialize": begin, "attach": {"type": "python"}}.items()
        ):
            request = {"seq": number + 1, "type": "request", "command": command, "arguments": arguments}
            asked = kernel.connection.ask(Channel.CONTROL, "debug_request", request)
            answer = (await asyncio.wait_for(asked, DEADLINE)).content()
            assert answer["success"], answer
    with pytest.raises(CannotBranch) as refused:
        await parent.branch(BranchSpec())
    assert Obstacle(ObstacleKind.DEBUGGER, "debugpy") in refused.value.obstacles


@pytest.mark.parametrize(
    "waits", ["import time; time.sleep(6)", at_night("import asyncio; await asyncio.sleep(6)")]
)
async def test_a_busy_kernel_is_not_disturbed(parent: Kernel, waits: str) -> None:
    running = send_cell(parent, f"{waits}; print('done')")
    await until(lambda: running.events)
    with pytest.raises(KernelBusy):
        await parent.branch(BranchSpec())
    async with asyncio.timeout(DEADLINE):
        await running.ended
    assert running.text() == "done\n"


async def test_a_branch_that_does_not_come_up_leaves_its_parent_alone(parent: Kernel) -> None:
    hook = "import os, time\nos.register_at_fork(after_in_child=lambda: time.sleep(wait))\nwait = 600"
    await printed(parent, hook)
    began = asyncio.ensure_future(parent.branch(BranchSpec()))
    await asyncio.sleep(1)
    assert await printed(parent, "print('goes on')") == "goes on\n"
    with pytest.raises(KernelStartFailed, match="did not come up"):
        await began
    await printed(parent, "wait = 0")
    # One that says why, instead of being silent.
    await printed(parent, "import atexit; kept = atexit._clear; atexit._clear = None")
    with pytest.raises(KernelStartFailed, match="TypeError"):
        await parent.branch(BranchSpec())
    await printed(parent, "atexit._clear = kept")
    branch = await parent.branch(BranchSpec())
    assert await printed(branch, "print('at last')") == "at last\n"


async def test_a_kernel_without_the_names_it_needs_says_that_it_can_not(
    launcher: KernelLauncher, catalog: KernelspecCatalog
) -> None:
    bootstrap = catalog.get_kernel_spec("python3").argv[1]
    without = (
        "import atexit, runpy, sys; del atexit._clear;"
        f"sys.argv[0] = {bootstrap!r}; sys.path.insert(0, {str(Path(bootstrap).parent)!r});"
        "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    set_program(catalog, "-c", without, "-f", "{connection_file}")
    kernel = await launcher.start(PYTHON3)
    assert not kernel.facts.can_branch
    assert "without module._clear" in await kernel.provisioner.log_tail()
    with pytest.raises(CannotBranch) as refused:
        await kernel.branch(BranchSpec(anyway=True))
    assert refused.value.obstacles == (Obstacle(ObstacleKind.KERNEL, "python3"),)
    await kernel.discard()


async def test_the_names_that_it_needs_are_where_they_were(parent: Kernel) -> None:
    """A canary for new versions of ipykernel, tornado, pyzmq and Python: it says what they have moved."""
    assert await printed(parent, "print(get_ipython().kernel.branching.missing)") == "[]\n"
    assert parent.facts.can_branch


async def test_what_cells_have_spoilt_is_said_at_once(parent: Kernel) -> None:
    await printed(parent, "import threading; kept = threading.enumerate; threading.enumerate = None")
    with pytest.raises(KernelStartFailed, match="TypeError"):
        await parent.branch(BranchSpec())
    await printed(parent, "threading.enumerate = kept")
    await printed(parent, "import random; kept = random.getstate; random.getstate = None")
    with pytest.raises(KernelStartFailed, match="TypeError"):
        await parent.branch(BranchSpec())
    await printed(parent, "random.getstate = kept")
    assert await printed(await parent.branch(BranchSpec()), "print('works')") == "works\n"


async def test_other_languages_do_not_branch(launcher: KernelLauncher) -> None:
    kernel = await launcher.start(KernelProfile("bash"))
    assert not kernel.facts.can_branch
    await kernel.discard()


# ---- ends


@pytest.mark.parametrize("order", mostly_nightly(map("".join, permutations("pbc")), {"pbc", "cbp"}))
async def test_ends_in_any_order(parent: Kernel, order: str) -> None:
    branch = await parent.branch(BranchSpec())
    below = await branch.branch(BranchSpec())
    kernels = {"p": parent, "b": branch, "c": below}
    for name in order:
        ended = kernels.pop(name)
        await ended.discard()
        assert ended.exited.done()
        for number, alive in enumerate(kernels.values()):
            assert await printed(alive, f"print({number})") == f"{number}\n"
            assert set(alive.shares_sandbox_with) == {each.id for each in kernels.values()} - {alive.id}


async def test_begins_and_ends_together(parent: Kernel) -> None:
    kernels = [parent, *await asyncio.gather(*(parent.branch(BranchSpec()) for _ in range(3)))]
    assert len(parent.shares_sandbox_with) == 3
    await kernels.pop(0).discard()
    for alive in kernels:
        assert await printed(alive, "print('alive')") == "alive\n"
    await asyncio.gather(*(kernel.discard() for kernel in kernels))
    assert all(kernel.exited.done() for kernel in kernels)


@pytest.mark.parametrize("name", ["p", "b", "c"])
async def test_a_kill_ends_one(parent: Kernel, name: str) -> None:
    branch = await parent.branch(BranchSpec())
    kernels = {"p": parent, "b": branch, "c": await branch.branch(BranchSpec())}
    killed = kernels.pop(name)
    killed.connection.request(
        Channel.SHELL, "execute_request", {"code": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"}
    )
    ended = await asyncio.wait_for(asyncio.shield(killed.exited), DEADLINE)
    assert ended.signal == signal.SIGKILL
    assert not killed.alive
    for alive in kernels.values():
        assert await printed(alive, "print('alive')") == "alive\n"


async def test_a_killed_sandbox_ends_all(parent: Kernel) -> None:
    branch = await parent.branch(BranchSpec())
    process = parent.process
    assert process is not None
    assert branch.process == process
    os.kill(process, signal.SIGKILL)
    for kernel in (parent, branch):
        ended = await asyncio.wait_for(asyncio.shield(kernel.exited), DEADLINE)
        assert ended.signal == signal.SIGKILL


NUMBER = "import os; print(os.getpid())"
WRITES = "while True: open('written', 'a').write('.')"
LIVES = """
def lives(process):
    try:
        return open(f'/proc/{process}/stat').read().split()[2] != 'Z'
    except (FileNotFoundError, ProcessLookupError):
        return False
"""


async def test_branches_end_with_their_gateway_and_the_first_kernel_does_not(parent: Kernel) -> None:
    branch = await parent.branch(BranchSpec())
    branches = [branch, await branch.branch(BranchSpec())]
    numbers = [int(await printed(kernel, NUMBER)) for kernel in branches]
    for kernel in branches:
        send_cell(kernel, WRITES)
    sandbox = parent.shared_sandbox
    assert sandbox is not None
    for tenant in sandbox._tenants.values():
        # The system closes all connections of a gateway that is killed.
        tenant.close()
    waits = f"import time\nwhile any(map(lives, {numbers})): time.sleep(0.01)\nprint('ended')"
    assert await printed(parent, LIVES + waits) == "ended\n"


async def test_who_adopts_the_first_kernel_can_rely_on_the_end_of_the_others(parent: Kernel) -> None:
    branch = await parent.branch(BranchSpec())
    branches = [branch, await branch.branch(BranchSpec())]
    numbers = [int(await printed(kernel, NUMBER)) for kernel in branches]
    for kernel in branches:
        send_cell(kernel, WRITES)
    path = parent.provisioner.keeper_socket
    assert path is not None
    await end_other_kernels(path)
    assert await printed(parent, f"{LIVES}print([*map(lives, {numbers})])") == "[False, False]\n"
    for kernel in branches:
        ended = await asyncio.wait_for(asyncio.shield(kernel.exited), DEADLINE)
        assert ended.signal == signal.SIGKILL
    await end_other_kernels(path)
    assert await printed(await parent.branch(BranchSpec()), "print('alive')") == "alive\n"


@pytest.mark.parametrize("count", [12, pytest.param(200, marks=pytest.mark.nightly)])
async def test_nothing_piles_up(parent: Kernel, count: int) -> None:
    """Branches of a kernel that prints all the time, one after the other and one below the other."""
    await printed(
        parent,
        "import threading, time, os\nstop = False\ndef prints():\n    while not stop:\n        print('.')\n"
        "        time.sleep(0.002)\nt = threading.Thread(target=prints, daemon=True); t.start()",
    )
    opened = "len(os.listdir('/proc/self/fd'))"
    states = "[open(f'/proc/{p}/stat').read().split()[2] for p in os.listdir('/proc') if p.isdigit()]"
    anyway = BranchSpec(anyway=True)
    first = await parent.branch(anyway)
    before = int(await value(parent, opened))
    for number in range(count):
        branch = await parent.branch(anyway)
        assert await value(branch, f"{number}") == f"{number}"
        await branch.discard()
    line = [first]
    counts = []
    for _ in range(5):
        line.append(await line[-1].branch(anyway))
        assert await printed(line[-1], "print(t.is_alive())") == "False\n"
        counts.append(int(await value(line[-1], opened)))
    # One that was open at the time may be closed or not, but none is added with each.
    assert counts[-1] <= counts[0] + 2, counts
    assert int(await value(parent, opened)) <= before + 4
    assert "Z" not in await value(parent, states)
    made = sorted(each.name[0] for each in parent.provisioner.place[0].sockets.glob("*-?"))
    assert made == ["b"] * 5 * len(line) + ["k"] * 6


async def test_what_cells_opened_stays_open_down_the_line(parent: Kernel) -> None:
    await printed(
        parent,
        "import os, selectors, socket; ends = socket.socketpair(); selector = selectors.DefaultSelector()\n"
        "selector.register(ends[0], selectors.EVENT_READ); counter = os.eventfd(3)",
    )
    branch = await parent.branch(BranchSpec())
    below = await (await branch.branch(BranchSpec())).branch(BranchSpec())
    assert await printed(below, "ends[1].send(b'x'); print(len(selector.select(1)))") == "1\n"
    assert await printed(below, "print(os.eventfd_read(counter))") == "3\n"


async def value(kernel: Kernel, expression: str) -> str:
    """The value of an expression, whatever threads print at the same time."""
    text = await printed(kernel, f"import sys; sys.stdout.write('<' + str({expression}) + '>'); None")
    return text[text.index("<") + 1 : text.index(">")]
