"""What a cell used is recorded with its end, however it ends, and nothing is told that nobody knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellgate.wire.models import SessionBody
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.limits.use_meter import KernelUse, Look, UseMeter
from cellgate_kernels.testing import FakeKernel, virtual_time
from tests.core.sessions.test_losses import stored
from tests.core.world import PRINCIPAL, World

USED = KernelUse(1.5, 1000, 20)
UNKNOWN = {"network_sent": None, "network_received": None}
USAGE = {"cpu_seconds": 1.5, "memory_peak": 1000, "disk_written": 20, **UNKNOWN}


class CountingMeter(UseMeter):
    """A meter that always measures the same. `open`: the looks that have no end yet."""

    def __init__(self, used: KernelUse = USED, *, offline: bool = False) -> None:
        super().__init__(lambda: None, offline=offline)
        self.used = used
        self.open = 0

    def begin(self) -> Look:
        self.open += 1
        return super().begin()

    def end(self, before: Look) -> KernelUse:
        self.open -= 1
        return self.used


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """With a session `s`, whose kernel is measured. Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open())
        made.run(made.manager.get_or_create(PRINCIPAL, SessionBody(session="s")))
        yield made
        made.run(made.close())
        made.check()


def measured(world: World, meter: CountingMeter) -> FakeKernel:
    """The session's kernel, with this meter."""
    kernel = world.kernel("s")
    assert kernel is not None
    kernel.facts = replace(kernel.facts, meter=meter)
    return kernel


def interrupted(world: World) -> None:
    session = world.live("s")
    assert session is not None
    assert session.runs.current is not None
    world.do(session.runs.current.interrupt)


def restarted(world: World) -> None:
    session = world.live("s")
    assert session is not None
    world.restart(session)


def deleted(world: World) -> None:
    world.run(world.manager.delete(PRINCIPAL, "s"))


@pytest.mark.parametrize(
    ("code", "meanwhile", "status"),
    [
        ("hello", None, "ok"),
        ("dies", None, "died"),
        ("ignores", None, "timeout"),
        ("slow 9", interrupted, "interrupted"),
        ("slow 9", restarted, "interrupted"),
        ("slow 9", deleted, "interrupted"),
    ],
    ids=["by itself", "death", "deadline", "interrupt", "restart", "the session's end"],
)
def test_usage_is_recorded_however_a_cell_ends(
    world: World, code: str, meanwhile: Callable[[World], None] | None, status: str
) -> None:
    meter = CountingMeter()
    measured(world, meter)
    asked = world.ask("s", code, timeout=20.0)
    world.pass_time(1)
    if meanwhile is not None:
        meanwhile(world)
    world.pass_time(100)
    (end,) = stored(world)
    assert (end["status"], end["usage"]) == (status, USAGE)
    assert meter.open == 0
    assert asked.told


@pytest.mark.parametrize(
    ("used", "told"),
    [
        (KernelUse(), None),
        (KernelUse(cpu_seconds=0.0), {"cpu_seconds": 0.0, "memory_peak": None, "disk_written": None}),
    ],
)
def test_what_nobody_knows_is_not_told(world: World, used: KernelUse, told: dict[str, Any] | None) -> None:
    measured(world, CountingMeter(used))
    world.ask("s", "hello")
    world.pass_time(10)
    (end,) = stored(world)
    assert end.get("usage") == (None if told is None else told | UNKNOWN)
    assert ("usage" in end) is (told is not None)


def test_bytes_of_the_session_s_connections_count_for_the_cell_that_runs(world: World) -> None:
    """Where it has no other way to a network."""
    measured(world, CountingMeter(KernelUse(), offline=True))
    session = world.live("s")
    assert session is not None
    traffic = session.runs.traffic
    traffic.sent, traffic.received = 100, 200
    world.ask("s", "slow 9")
    world.pass_time(1)
    traffic.sent, traffic.received = 107, 2200
    world.pass_time(20)
    traffic.sent += 1
    world.ask("s", "hello")
    world.pass_time(20)
    ends = [(end["usage"]["network_sent"], end["usage"]["network_received"]) for end in stored(world)]
    assert ends == [(7, 2000), (0, 0)]


def test_nothing_is_known_of_kernels_that_share_a_sandbox(world: World) -> None:
    measured(world, CountingMeter(offline=True))
    world.run(world.manager.branch(PRINCIPAL, "s", "b", BranchSpec()))
    world.ask("s", "hello")
    world.ask("b", "hello")
    world.pass_time(20)
    world.run(world.manager.delete(PRINCIPAL, "b"))
    world.ask("s", "hello")
    world.pass_time(20)
    assert ["usage" in end for end in stored(world)] == [False, True, False]
