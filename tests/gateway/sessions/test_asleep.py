"""Kernels that sleep, forked in sandboxes: frozen for real, their memory in a swap file of the test's own.

``tests/containers`` runs most of these on containers.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from cellgate_kernels.limits.control_group import ControlGroup
from tests.conftest import StartGateway
from tests.support.channels import channels
from tests.support.requirements import require
from tests.support.server import GatewayProcess, together, until
from tests.support.sleepers import (
    AFTER,
    MIB,
    Groups,
    groups_of_processes,
    require_freezing,
    run_out_of_memory,
    until_asleep,
)

Start = Callable[..., GatewayProcess]
Kill = Callable[[GatewayProcess], None]

ENOUGH = {"burst_size": 0, "max_kernels": 104}


@pytest.fixture
def start(start_gateway: StartGateway, sandbox: None) -> Start:
    """Starts gateways whose kernels sleep after a second without use."""
    require_freezing()

    def begin(data_dir: Path | None = None, **options: object) -> GatewayProcess:
        return start_gateway(data_dir, backend="sandbox", **{"sleep_after": AFTER, **ENOUGH, **options})

    return begin


@pytest.fixture
def groups() -> Groups:
    """The control groups of a gateway's forked kernels."""

    def find(gateway: GatewayProcess) -> list[ControlGroup]:
        return groups_of_processes(
            child.pid for child in psutil.Process(gateway.process.pid).children(recursive=True)
        )

    return find


@pytest.fixture
def many(request: pytest.FixtureRequest) -> int:
    """How many kernels are a crowd."""
    return 100 if request.config.getoption("--nightly") else 30


@pytest.fixture
def kill(groups: Groups) -> Kill:
    """Kills the first processes of all kernels of a gateway, as somebody outside of it would."""

    def kill_them(gateway: GatewayProcess) -> None:
        for group in groups(gateway):
            os.kill(min(group.processes()), signal.SIGKILL)

    return kill_them


def test_a_sleeping_kernel_gives_its_memory_back_and_loses_nothing(
    start: Start, groups: Groups, swap: None
) -> None:
    gateway = start()
    gateway.execute("s", f"import threading\nx = bytearray(b'x' * {150 * MIB})")
    (group,) = groups(gateway)
    assert group.memory_used() > 150 * MIB
    until_asleep(gateway, "s")
    until(lambda: group.memory_used() < 15 * MIB, "its memory is not given back")
    assert group.frozen
    kernel = gateway.model("s")["kernel_id"]
    result = gateway.execute("s", "x.count(b'x'), threading.active_count() > 0")
    assert (result["status"], result["text"]) == ("ok", f"({150 * MIB}, True)")
    assert result["kernel"]["replaced"] is False
    assert gateway.model("s")["kernel_id"] == kernel
    until_asleep(gateway, "s")
    assert gateway.execute("s", "len(x)")["text"] == str(150 * MIB)


@pytest.mark.nightly
def test_what_is_in_swap_counts_against_the_limit(start: Start, groups: Groups, swap: None) -> None:
    gateway = start(memory="512M")
    gateway.execute("s", f"x = bytearray(b'x' * {150 * MIB})")
    (group,) = groups(gateway)
    if group.memory.version != 1:
        require("version 1 of control groups", "version 2 counts swap by itself")
    (group.memory.folder / "memory.limit_in_bytes").write_text(str(256 * MIB))
    (group.memory.folder / "memory.memsw.limit_in_bytes").write_text(str(256 * MIB))
    until_asleep(gateway, "s")
    until(lambda: group.memory_used() < 15 * MIB, "its memory is not given back")
    result = gateway.execute("s", f"y = bytearray(b'y' * {200 * MIB})")
    assert (result["status"], result["cause"]) == ("died", "out_of_memory")


@pytest.mark.nightly
def test_many_sleep_and_are_all_woken_at_once(start: Start, groups: Groups, swap: None, many: int) -> None:
    gateway = start()
    names = [f"s{number}" for number in range(many)]
    together(len(names), lambda index: gateway.execute(names[index], f"x = {names[index]!r}"))
    until_asleep(gateway, *names)
    assert [group.frozen for group in groups(gateway)] == [True] * len(names)
    answers = together(len(names), lambda index: gateway.execute(names[index], "x"))
    assert [answer["text"] for answer in answers] == [repr(name) for name in names]
    counts = gateway.get("/v1/info").json()["sessions"]
    assert counts["asleep"] + counts["idle"] == len(names)


def test_many_requests_at_once_wake_one_kernel(start: Start) -> None:
    gateway = start()
    gateway.execute("s", "seen = []")
    for _ in range(2):
        until_asleep(gateway, "s")
        answers = together(8, lambda index: gateway.execute("s", f"seen.append({index})"))
        assert {answer["status"] for answer in answers} == {"ok"}
    assert gateway.execute("s", "sorted(seen)")["text"] == str(sorted([*range(8), *range(8)]))


def test_requests_at_any_moment_of_falling_asleep_lose_nothing(start: Start) -> None:
    """Kernels that are frozen almost as soon as they have nothing to do."""
    gateway = start(sleep_after=0.1)

    def use(user: int) -> list[str]:
        said = [gateway.execute(f"s{user}", "n = 0")["status"]]
        for turn in range(30):
            time.sleep((user * 7 + turn * 11) % 31 / 100)
            said.append(gateway.execute(f"s{user}", "n += 1; n")["text"])
        return said

    assert together(3, use) == [["ok", *map(str, range(1, 31))]] * 3


@pytest.mark.nightly
def test_sleep_leaves_no_descriptor_and_no_zombie(start: Start) -> None:
    gateway = start()
    process = psutil.Process(gateway.process.pid)
    gateway.execute("s", "x = 1")
    until_asleep(gateway, "s")
    descriptors, children = process.num_fds(), len(process.children(recursive=True))
    for _ in range(3):
        assert gateway.execute("s", "x")["text"] == "1"
        until_asleep(gateway, "s")

    def zombies() -> int:
        count = 0
        for child in process.children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # it has just ended
                count += child.status() == psutil.STATUS_ZOMBIE
        return count

    # The connection of the last request may still be open.
    until(lambda: process.num_fds() <= descriptors, "descriptors are left")
    until(lambda: len(process.children(recursive=True)) <= children, "processes are left")
    until(lambda: not zombies(), "zombies are left")


def let_rest(gateway: GatewayProcess) -> None:
    """Wait until a kernel without work has fallen asleep three times: others could have by then, too."""
    for _ in range(3):
        gateway.execute("rests", "x = 1")
        until_asleep(gateway, "rests")


@pytest.mark.nightly
def test_a_thread_that_prints_or_computes_keeps_its_kernel_awake(start: Start, groups: Groups) -> None:
    gateway = start()
    gateway.execute(
        "prints",
        "import threading, time\n"
        "def tick():\n  while True: print('tick', flush=True); time.sleep(0.2)\n"
        "threading.Thread(target=tick, daemon=True).start()",
    )
    gateway.execute(
        "computes",
        "import threading\nn = 0\n"
        "def count():\n  global n\n  while True: n += 1\n"
        "threading.Thread(target=count, daemon=True).start()",
    )
    let_rest(gateway)
    assert [gateway.model(name)["state"] for name in ("prints", "computes")] == ["idle", "idle"]


async def test_a_client_of_its_channels_keeps_it_awake(start: Start) -> None:
    gateway = start()
    gateway.execute("s", "x = 1")
    async with channels(gateway, "s"):
        # It may have fallen asleep before the client was there; this wakes it.
        gateway.execute("s", "x = 2")
        let_rest(gateway)
        assert gateway.model("s")["state"] == "idle"
    until_asleep(gateway, "s")


def test_an_interrupt_a_restart_and_an_end_of_sleeping_kernels(start: Start, groups: Groups) -> None:
    gateway = start()
    for name in ("one", "two", "three"):
        gateway.execute(name, "x = 1")
    until_asleep(gateway, "one", "two", "three")
    assert gateway.post("/v1/sessions/one/interrupt").status == 204
    assert gateway.execute("one", "x")["text"] == "1"
    assert gateway.post("/v1/sessions/two/restart").status == 200
    assert gateway.execute("two", "'x' in globals()")["text"] == "False"
    assert gateway.delete("/v1/sessions/three").status == 204
    until(lambda: len(groups(gateway)) == 2, "a sleeper is left")
    assert gateway.stop() == 0


def test_files_of_a_sleeping_kernel_are_there_and_do_not_wake_it(start: Start, groups: Groups) -> None:
    gateway = start()
    gateway.execute("s", "open('a.txt', 'w').write('of the cell')")
    until_asleep(gateway, "s")
    files = "/v1/sessions/s/files"
    assert gateway.get(f"{files}/a.txt").body == b"of the cell"
    assert gateway.request("PUT", f"{files}/b.txt", b"of the client").status in (200, 201)
    assert gateway.model("s")["state"] == "asleep"
    assert [group.frozen for group in groups(gateway)] == [True]
    assert gateway.execute("s", "open('b.txt').read()")["text"] == "'of the client'"


@pytest.mark.nightly
def test_a_program_wakes_its_kernel_and_keeps_it_awake(start: Start, groups: Groups) -> None:
    gateway = start()
    gateway.execute("s", "x = 1")
    (group,) = groups(gateway)
    until_asleep(gateway, "s")
    answer = gateway.post("/v1/sessions/s/processes", {"argv": ["echo", "awake"]})
    assert answer.json()["stdout"] == "awake\n"
    until_asleep(gateway, "s")
    running = gateway.post("/v1/sessions/s/processes", {"argv": ["sleep", str(4 * AFTER)], "wait": False})
    assert running.status == 202, running.body
    path = f"/v1/sessions/s/processes/{running.json()['process']}"
    frozen = group.frozen
    while gateway.get(path).json()["state"] == "running":
        assert not frozen, "it slept before the program's end"
        time.sleep(0.1)
        frozen = group.frozen
    until_asleep(gateway, "s")


def test_a_sleeping_session_still_ends_when_it_was_idle_for_too_long(start: Start, groups: Groups) -> None:
    gateway = start(cull_interval=0.1)
    gateway.post("/v1/sessions", {"session": "s", "limits": {"idle_timeout": 4 * AFTER, "on_idle": "end"}})
    until_asleep(gateway, "s")
    metrics = gateway.get("/metrics").body.decode()
    assert 'cellgate_sessions{state="asleep"} 1.0' in metrics
    until(lambda: gateway.model("s")["state"] == "ended", "it sleeps on")
    until(lambda: not groups(gateway), "its kernel is left")


def test_a_session_sleeps_instead_of_ending(start: Start, groups: Groups, swap: None) -> None:
    gateway = start(sleep_after=None, idle_timeout=2 * AFTER, cull_interval=0.1)
    gateway.execute("s", f"x = bytearray(b'x' * {50 * MIB})")
    (group,) = groups(gateway)
    until(lambda: "sleeps_at" in gateway.model("s"), "it is not to sleep")
    assert gateway.model("s")["ends"]["cause"] == "lifetime"
    until_asleep(gateway, "s")
    until(lambda: group.memory_used() < 15 * MIB, "its memory is not given back")
    kernel = gateway.model("s")["kernel_id"]
    # It outlives several looks of the gateway.
    time.sleep(AFTER)
    assert (gateway.model("s")["state"], group.frozen) == ("asleep", True)
    result = gateway.execute("s", "x.count(b'x')")
    assert (result["text"], result["kernel"]["replaced"]) == (str(50 * MIB), False)
    assert gateway.model("s")["kernel_id"] == kernel
    until_asleep(gateway, "s")


def test_a_sleeping_session_gives_way_to_one_that_needs_its_place(
    start: Start, groups: Groups, swap: None
) -> None:
    gateway = start(sleep_after=None, idle_timeout=2 * AFTER, cull_interval=0.1, max_kernels=1)
    gateway.execute("s", "x = 1")
    until_asleep(gateway, "s")
    assert gateway.execute("t", "1 + 1")["text"] == "2"
    model = gateway.model("s")
    assert (model["state"], model["cause"]) == ("ended", "room_needed")
    until_asleep(gateway, "t")
    told = gateway.execute("s", "1 + 2")
    assert (told["text"], told["kernel"]["cause"]) == ("3", "room_needed")
    assert len(groups(gateway)) == 1


def test_a_sleeping_kernel_that_is_killed_is_found_dead(start: Start, kill: Kill) -> None:
    gateway = start()
    gateway.execute("s", "x = 1")
    until_asleep(gateway, "s")
    kill(gateway)
    until(lambda: gateway.model("s")["state"] == "dead", "its death is not seen")
    result = gateway.execute("s", "'x' in globals()")
    assert (result["text"], result["kernel"]["replaced"]) == ("False", True)


@pytest.mark.nightly
def test_a_sleeping_kernel_for_which_there_is_no_memory_is_found_dead(start: Start, groups: Groups) -> None:
    gateway = start()
    gateway.execute("s", f"x = bytearray(b'x' * {100 * MIB})")
    until_asleep(gateway, "s")
    (group,) = groups(gateway)
    run_out_of_memory(group)
    until(lambda: gateway.model("s")["state"] == "dead", "its death is not seen")
    assert 'cellgate_kernel_deaths_total{cause="out_of_memory"} 1.0' in gateway.get("/metrics").body.decode()
    result = gateway.execute("s", "'x' in globals()")
    assert (result["text"], result["kernel"]["replaced"]) == ("False", True)


@pytest.mark.nightly
def test_sleepers_end_with_their_zygote(start: Start, groups: Groups) -> None:
    gateway = start()
    for name in ("one", "two"):
        gateway.execute(name, "x = 1")
    until_asleep(gateway, "one", "two")
    outermost, *_ = psutil.Process(gateway.process.pid).children()
    (zygote,) = outermost.children()
    zygote.kill()
    for name in ("one", "two"):
        until(lambda name=name: gateway.model(name)["state"] == "dead", f"the death of {name} is not seen")
        assert gateway.execute(name, "'x' in globals()")["text"] == "False"
    assert len(groups(gateway)) == 2


def test_sleepers_of_a_killed_gateway_end_with_it(start: Start, groups: Groups) -> None:
    gateway = start()
    for name in ("one", "two"):
        gateway.execute(name, "x = 1")
    until_asleep(gateway, "one", "two")
    sleepers = groups(gateway)
    assert [group.frozen for group in sleepers] == [True, True]
    gateway.kill()
    until(lambda: not any(group.processes() for group in sleepers), "they sleep on")
    successor = start(gateway.data_dir)
    folders = [part.folder for group in sleepers for part in (group.freezer, group.memory)]
    assert not any(folder.exists() for folder in folders)
    assert successor.execute("one", "'x' in globals()")["text"] == "False"
    until_asleep(successor, "one")
    parents = {folder.parent for folder in folders}
    assert successor.stop() == 0
    assert not any(folder.exists() for folder in parents)
