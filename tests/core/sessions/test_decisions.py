"""Decisions of sessions in this process, by their lines in the log; `World.check` replays them all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.sessions.decisions import replay
from cellgate.sessions.machine import SessionMachine, Step
from cellgate.wire.models import SessionBody
from cellgate_kernels.testing import virtual_time
from tests.core.world import PRINCIPAL, World


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open(max_kernels=4))
        yield made
        made.run(made.close())
        made.check()


def steps(world: World, stimulus: str) -> list[str]:
    """The steps that a stimulus has made so far, without repetition."""
    found = [line.split() for line in world.decisions.lines]
    return list(dict.fromkeys(words[-1] for words in found if words[2] == stimulus))


def test_automatic_checkpoints_are_made_and_a_dead_kernel_stays_dead(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, _ = world.run(
        world.manager.get_or_create(PRINCIPAL, SessionBody(session="a", checkpoint="auto"))
    )
    world.ask("a", "hello")
    world.pass_time(1)
    world.do(world.connect, session, "lab")
    kernel = world.kernel("a")
    assert kernel is not None
    kernel.die()
    world.pass_time(1)
    assert steps(world, "checkpoint_due") == [Step.KEEP]
    assert steps(world, "kernel_exited") == [Step.NOTE_AND_REVIVE]
    assert Step.TELL_DEAD in steps(world, "missed")
    assert replay(world.decisions.lines).difference is None
    for name, wrong in (("missed", Step.RESTART), ("checkpoint_due", Step.SKIP)):
        with monkeypatch.context() as patch:
            patch.setattr(SessionMachine, name, lambda machine, wrong=wrong, **facts: wrong)
            difference = replay(world.decisions.lines).difference
        assert difference is not None
        assert f"makes `{wrong}`" in difference.why


def test_a_session_is_replayed_from_its_first_cell_to_its_end(world: World) -> None:
    for code in ("hello", "dies", "hello"):
        world.ask("a", code)
        world.pass_time(1)
    world.run(world.manager.delete(PRINCIPAL, "a"))
    found = replay(world.decisions.lines)
    assert (found.lives, found.skipped, found.difference) == (1, 0, None)
    assert found.decisions > 20
    assert steps(world, "submitted") == [Step.SEND, Step.QUEUE]
    assert steps(world, "kernel_wanted") == [Step.REPLACE]
    assert steps(world, "ended") == [Step.END]
