"""A result so far is shown once its events are durable: a crash takes nothing back that a client saw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cellgate.errors import StorageError
from cellgate.execution.results import encoded_result
from cellgate.sessions.reader import Archive
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.testing import Behaviour, Cell, virtual_time
from tests.core.world import PRINCIPAL, World


def saying(code: str) -> Behaviour:
    """Print the code, and go on until interrupted."""

    async def behave(cell: Cell) -> None:
        cell.begin()
        cell.stream(code)
        await cell.interrupted.wait()
        cell.reply()
        cell.idle()

    return behave


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open())
        made.launcher.program = saying
        yield made
        made.run(made.close())
        made.check()


@pytest.fixture
def look(world: World, lane: Lane) -> Callable[[str], dict[str, Any]]:
    """The result so far of an execution of session ``s``."""
    nothing: Any = None
    archive = Archive(world.journal, world.manager, nothing, lane)

    def look(execution: str) -> dict[str, Any]:
        made = archive.result(PRINCIPAL, "s", execution, encoded_result, {})
        found = msgspec.json.decode(b"".join(world.run(made)))
        assert isinstance(found, dict)
        return found

    return look


def waiting(world: World) -> list[str]:
    """The types of events that a crash now would lose."""
    backlog = world.journal._backlog
    return [row.type for group in (backlog.enqueued, backlog.held) for row in group.events]


def test_what_a_running_cell_is_seen_to_print_is_durable(
    world: World, look: Callable[[str], dict[str, Any]]
) -> None:
    world.run(world.session())
    asked = world.ask("s", "seen")
    world.pass_time(0.02)
    assert asked.run is not None
    assert "stream" in waiting(world), "nothing has been written yet"
    assert look(asked.run.id)["stdout"] == "seen"
    assert waiting(world) == []


def test_nothing_is_shown_that_can_not_be_written(
    world: World, look: Callable[[str], dict[str, Any]]
) -> None:
    world.run(world.session())
    world.disk.full = True
    asked = world.ask("s", "seen")
    world.pass_time(0.02)
    assert asked.run is not None
    with pytest.raises(StorageError):
        look(asked.run.id)
    world.disk.full = False
    world.pass_time(5)
    assert look(asked.run.id)["stdout"] == "seen"
