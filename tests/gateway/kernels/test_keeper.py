"""The keeper: each kernel's parent, which reaps, passes signals on, and ends as the kernel does."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cellgate_kernels.testing.backend import RunningKernel, StartKernel

IMAGE = Path(__file__).parents[3] / "kernels" / "cellgate_kernels" / "inside"
DAEMON = "import subprocess\nsubprocess.run(['setsid', '--fork', 'sleep', '600'])"
PROGRAM = "import subprocess\nprogram = subprocess.Popen(['sleep', '600'])"


@pytest.fixture(params=["sandbox", "process"])
def backend(request: pytest.FixtureRequest) -> str:
    if request.param == "sandbox":
        request.getfixturevalue("sandbox")
    return str(request.param)


def family(kernel: RunningKernel, name: str) -> list[psutil.Process]:
    """A kernel's first process and its descendants, as far as they have this name; ancestors come first."""
    number = kernel.provisioner.process
    assert number is not None
    first = psutil.Process(number)
    found = []
    for process in (first, *first.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            if process.name() == name:
                found.append(process)
    return found


def processes(kernel: RunningKernel) -> tuple[psutil.Process, psutil.Process]:
    """The keeper and its kernel."""
    keeper, python = family(kernel, "python")
    return keeper, python


def has_zmq(process: psutil.Process) -> bool:
    """Whether it has imported what a kernel needs."""
    return "zmq" in Path(f"/proc/{process.pid}/maps").read_text()


def opened_by(process: psutil.Process) -> list[str]:
    """What its descriptors are."""
    return [str(entry.readlink()) for entry in Path(f"/proc/{process.pid}/fd").iterdir()]


def runs(process: psutil.Process) -> bool:
    """Whether it is neither gone nor a zombie of a parent that is about to end."""
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


async def ended(*gone: psutil.Process) -> None:
    """Returns when none of these processes runs."""
    async with asyncio.timeout(60):
        while any(map(runs, gone)):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def the_sleeper(kernel: RunningKernel) -> psutil.Process:
    """The only `sleep`, once it is one: what was forked for it has another name for a moment."""
    async with asyncio.timeout(60):
        while not (sleeping := family(kernel, "sleep")):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)
    (process,) = sleeping
    return process


async def test_orphans_belong_to_the_keeper_and_leave_no_zombies(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    keeper, python = processes(kernel)
    await kernel.run(DAEMON)
    daemon = await the_sleeper(kernel)
    assert daemon.ppid() == keeper.pid
    assert python.ppid() == keeper.pid
    daemon.kill()
    async with asyncio.timeout(60):
        while daemon.is_running():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.02)


async def test_it_is_one_waiting_thread_without_the_kernels_modules_and_files(
    start_kernel: StartKernel,
) -> None:
    kernel = await start_kernel()
    keeper, python = processes(kernel)
    assert has_zmq(python)
    assert not has_zmq(keeper)
    assert keeper.num_threads() == 1
    opened = {link.split(":")[0] for link in opened_by(keeper)}
    assert opened <= {"/dev/null", "pipe", "socket"}
    woken = []
    for _ in range(3):  # its start may not be over at the first
        before = keeper.num_ctx_switches().voluntary
        assert await kernel.print("print(1)") == "1\n"
        woken.append(keeper.num_ctx_switches().voluntary - before)
    assert 0 in woken, "each cell wakes it"


async def test_user_code_finds_no_trace_of_it_but_its_parent(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    found = await kernel.print(
        "import gc, json, os, sys\n"
        "open('keeper.py', 'w').write('mine = True')\n"
        "import keeper\n"
        "names = [name for name in os.environ if name.startswith('CELLGATE')]\n"
        "print(json.dumps([keeper.mine, names, gc.get_freeze_count(), os.getpgrp() == os.getpid()]))"
    )
    assert json.loads(found) == [True, [], 0, True]


async def test_a_cells_programs_end_with_the_kernel(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    await kernel.run(PROGRAM)
    program = await the_sleeper(kernel)
    keeper, python = processes(kernel)
    await kernel.provisioner.kill()
    await ended(program, python, keeper)
    assert await kernel.provisioner.poll() == -signal.SIGKILL


async def test_a_cells_programs_end_with_a_kernel_that_ends_by_itself(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    await kernel.run(PROGRAM)
    program = await the_sleeper(kernel)
    kernel.send("import os; os._exit(5)")
    async with asyncio.timeout(60):
        assert (await asyncio.shield(kernel.provisioner.exited)).code == 5
    await ended(program)


async def test_who_ends_the_keeper_ends_the_kernel(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    _, python = processes(kernel)
    kernel.send("import os, signal; os.kill(os.getppid(), signal.SIGKILL)")
    async with asyncio.timeout(60):
        assert (await asyncio.shield(kernel.provisioner.exited)).signal == signal.SIGKILL
    await ended(python)


async def test_a_keeper_that_is_stopped_is_ended_all_the_same(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    keeper, python = processes(kernel)
    await kernel.print("import os, signal; os.kill(os.getppid(), signal.SIGSTOP)")
    await kernel.provisioner.kill()
    assert await kernel.provisioner.poll() == -signal.SIGKILL
    await ended(keeper, python)


async def test_it_passes_signals_on(start_kernel: StartKernel) -> None:
    kernel = await start_kernel()
    keeper, _ = processes(kernel)
    msg_id = kernel.send("import time\nprint('started', flush=True)\ntime.sleep(600)")
    await kernel.until_printed(msg_id)
    keeper.send_signal(signal.SIGINT)
    assert (await kernel.result(msg_id)).reply["ename"] == "KeyboardInterrupt"
    keeper.send_signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        assert (await asyncio.shield(kernel.provisioner.exited)).signal == signal.SIGTERM


@pytest.mark.parametrize("name", ["bash", "deno"])
async def test_kernels_of_other_languages_have_one(start_kernel: StartKernel, name: str) -> None:
    kernel = await start_kernel(kernel_name=name)
    keeper, _ = processes(kernel)
    assert not has_zmq(keeper)
    assert keeper.num_threads() == 1


@pytest.mark.parametrize(("starter", "said"), [("own", "runs"), ("gone", "The gateway is gone.")])
def test_a_kernel_whose_gateway_died_before_the_death_signal_was_set_up_does_not_run(
    starter: str, said: str
) -> None:
    begun = subprocess.Popen(["true"])
    begun.wait()
    number = os.getpid() if starter == "own" else begun.pid
    code = f"import sys; sys.path.insert(0, {str(IMAGE)!r}); import keeper; keeper.begin(); print('runs')"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={"JPY_PARENT_PID": str(number)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    assert (answer.stdout.strip(), answer.returncode) == (said, 0 if starter == "own" else 1)


def test_a_kernel_does_not_begin_before_its_keeper_takes_programs(tmp_path: Path) -> None:
    code = (
        f"import os, sys, time; sys.path.insert(0, {str(IMAGE)!r}); import keeper\n"
        "listen = keeper.Keeper.listen\n"
        "keeper.Keeper.listen = lambda *arguments: (time.sleep(0.3), listen(*arguments))\n"
        "address = os.environ[keeper.KEEPER]\n"
        "keeper.begin(); print(os.path.exists(address))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={"CELLGATE_KEEPER": str(tmp_path / "keeper")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=60,
    )
    assert (answer.stdout.strip(), answer.returncode) == ("True", 0)


def test_programs_end_with_a_gateway_that_is_killed_where_no_namespace_ends_them(tmp_path: Path) -> None:
    """The child of a cell's code, one in a session of its own, and one whose parent has ended."""
    code = (
        f"import subprocess, sys, time; sys.path.insert(0, {str(IMAGE)!r}); import keeper\n"
        "keeper.begin()\n"
        "subprocess.Popen(['sleep', '600'])\n"
        "subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        "subprocess.run(['setsid', '--fork', 'sleep', '600'])\n"
        "print('begun', flush=True); time.sleep(600)"
    )
    starter = (
        "import os, subprocess, sys, time\n"
        f"env = {{'JPY_PARENT_PID': str(os.getpid()), 'CELLGATE_KEEPER': {str(tmp_path / 'keeper')!r}}}\n"
        "env['PATH'] = os.environ['PATH']\n"
        f"command = ['setpriv', '--pdeathsig', 'KILL', '--', sys.executable, '-c', {code!r}]\n"
        "subprocess.Popen(command, env=env, start_new_session=True)\n"
        "time.sleep(600)"
    )
    gateway = subprocess.Popen([sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True)
    started: list[psutil.Process] = []
    try:
        assert gateway.stdout is not None
        assert gateway.stdout.readline() == "begun\n"
        started = psutil.Process(gateway.pid).children(recursive=True)
        assert len(started) == 5, "the keeper, the kernel and three programs"
        gateway.kill()
        _, alive = psutil.wait_procs(started, timeout=60)
        assert not alive, "programs outlive a gateway that was killed"
    finally:
        for process in started:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        gateway.kill()
        gateway.communicate()
