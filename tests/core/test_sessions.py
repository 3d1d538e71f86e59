"""Sessions in this process: each behaviour of a kernel, and what a cell's end says of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate_kernels.testing import virtual_time
from tests.core.world import CELL_TIMEOUT, GRACE, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open())
        yield made
        made.run(made.close())
        made.check()


@pytest.mark.parametrize(
    ("code", "status", "cause"),
    [
        ("hello", "ok", None),
        ("slow 5", "ok", None),
        ("slow 61", "timeout", "cell_timeout"),
        ("never", "timeout", "cell_timeout"),
        ("ignores", "timeout", "cell_timeout"),
        ("fails", "error", None),
        ("dies 1", "died", "kernel_exit"),
        ("dies-replied", "died", "kernel_exit"),
        ("floods 5000", "ok", None),
        ("late 1", "ok", None),
        ("late 100", "ok", None),
        ("loses reply", "ok", None),
        ("loses idle", "ok", None),
        ("lies", "ok", None),
    ],
)
def test_a_cell_ends_once_and_says_why(world: World, code: str, status: str, cause: str | None) -> None:
    asked = world.ask("s", code)
    world.pass_time(2 * CELL_TIMEOUT)
    assert asked.run is not None
    assert asked.told
    outcome = asked.run.machine.outcome()
    assert (outcome.status, outcome.cause) == (status, cause)
    after = world.ask("s", "after")
    world.pass_time(1)
    assert after.told


def test_a_kernel_that_ignores_its_deadline_is_replaced_after_the_grace(world: World) -> None:
    asked = world.ask("s", "ignores", timeout=10)
    world.pass_time(10 + GRACE - 0.1)
    assert not asked.told
    world.pass_time(0.2)
    assert asked.told
    assert len(world.launcher.kernels) == 2
