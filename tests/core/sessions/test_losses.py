"""A kernel is gone, and the first execution after that says so: why, and what is left of the session."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, structs, to_builtins

from cellgate.client import KernelInfo
from cellgate.client.loss import describe_loss
from cellgate.execution.limits import LimitCeilings, SessionLimits
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import LastLife
from cellgate.record.store.sqlite.reads import MANY_EVENTS
from cellgate.sessions.resumption import Past, resume
from cellgate.sessions.variables import KeptVariables
from cellgate.wire.events import Loss, Missing
from cellgate.wire.models import LimitsBody, SessionBody
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.kernel.stored import StoredKernel
from cellgate_kernels.limits.memory import MemoryGroup
from cellgate_kernels.testing import FakeKernel, at_once, fails_to_start, starts_after, virtual_time
from tests.core.world import GRACE, PRINCIPAL, World

NOT_REPLACED = {"state": "idle", "replaced": False}
SECRET = "a value that is nowhere in the record"


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open())
        yield made
        made.run(made.close())
        made.check()


def create(world: World, **fields: Any) -> None:
    """Create the session, or resume it."""
    world.run(world.manager.get_or_create(PRINCIPAL, SessionBody(session="s", **fields)))


def told(world: World, code: str = "hello", **options: Any) -> dict[str, Any]:
    """What a cell's end says of the kernel, and what its result says."""
    asked = world.ask("s", code, **options)
    world.pass_time(60)
    assert asked.told
    assert asked.run is not None
    (end,) = (event for event in stored(world) if event["execution"] == asked.run.id)
    kernel = end["kernel"]
    assert isinstance(kernel, dict)
    return kernel


def stored(world: World) -> list[dict[str, Any]]:
    """The ends of the session's executions."""
    world.run(world.journal.commit())
    world.run(world.journal.applied())
    return [event for events in world.events().values() for event in events if event["type"] == "finished"]


def announcement(cause: str, files: str = "none", **missing: Any) -> dict[str, Any]:
    """What the first execution says after a loss."""
    said = {"state": "idle", "replaced": True, "cause": cause, "files": files}
    return said | ({"missing": missing} if missing else {})


def write_file(world: World) -> None:
    kernel = world.kernel("s")
    assert kernel is not None
    (kernel.workspace / "kept.txt").write_text("kept")


# ---- how a kernel is lost


def die(world: World) -> None:
    kernel = world.kernel("s")
    assert kernel is not None
    world.do(kernel.die, "out_of_memory")


def restart(world: World) -> None:
    session = world.live("s")
    assert session is not None
    world.restart(session)
    world.pass_time(1)


def become_idle(world: World) -> None:
    session = world.live("s")
    assert session is not None
    session.record.idle_since -= 2 * session.limits.idle_timeout
    world.run(world.manager._cull())
    world.pass_time(5)


def become_old(world: World) -> None:
    session = world.live("s")
    assert session is not None
    session.record.started -= 2 * session.limits.lifetime
    world.run(world.manager._cull())
    world.pass_time(5)


def delete(world: World) -> None:
    world.run(world.manager.delete(PRINCIPAL, "s"))


def reopen(world: World) -> None:
    """The gateway stops, and another one starts."""
    world.run(world.close())
    world.run(world.open())


def fail(world: World) -> None:
    """A bug in the gateway: a message of the kernel is lost."""
    session = world.live("s")
    assert session is not None
    world.do(session.listener_failed, RuntimeError("a bug"))
    world.pass_time(1)


@pytest.mark.parametrize(
    ("lose", "cause", "files"),
    [
        (die, "out_of_memory", "kept"),
        (restart, "kernel_restarted", "kept"),
        (become_idle, "idle_timeout", "kept"),
        (become_old, "lifetime", "kept"),
        (delete, "deleted", "none"),
        (reopen, "gateway_shutdown", "kept"),
        (fail, "internal_error", "kept"),
    ],
)
def test_the_first_execution_after_a_loss_announces_it(
    world: World, lose: Callable[[World], None], cause: str, files: str
) -> None:
    assert told(world) == NOT_REPLACED
    write_file(world)
    lose(world)
    assert told(world) == announcement(cause, files)
    assert told(world) == NOT_REPLACED


def test_a_death_in_a_cell_is_announced_by_the_next(world: World) -> None:
    assert told(world, "dies 1") == {"state": "dead", "replaced": False}
    assert told(world) == announcement("kernel_exit")
    assert told(world) == NOT_REPLACED


def test_a_cell_that_loses_its_kernel_at_the_deadline_announces_that_itself(world: World) -> None:
    assert told(world, "ignores", timeout=10) == announcement("cell_timeout")
    assert told(world) == NOT_REPLACED


def test_the_next_cell_announces_a_replacement_that_took_longer_than_the_end(world: World) -> None:
    create(world)
    world.kernels_wanted = starts_after(2 * GRACE)
    assert told(world, "ignores", timeout=10) == {"state": "dead", "replaced": False}
    assert told(world) == announcement("cell_timeout")


def test_a_cell_that_announces_a_loss_and_loses_its_own_kernel_names_the_first_cause(world: World) -> None:
    told(world)
    delete(world)
    assert told(world, "ignores", timeout=10) == announcement("deleted")
    assert told(world) == NOT_REPLACED


def test_a_purged_session_is_forgotten_so_the_next_one_is_new(world: World) -> None:
    told(world)
    world.run(world.manager.purger.purge(PRINCIPAL, "s", by=PRINCIPAL))
    assert told(world) == NOT_REPLACED
    world.asked = world.asked[1:]  # the record of this one is gone


def test_a_jupyter_clients_cell_announces_a_loss(world: World) -> None:
    told(world)
    session = world.live("s")
    assert session is not None
    world.do(world.connect, session, "lab")
    die(world)
    world.pass_time(1)
    world.do(world.send, session, world.clients["s", "lab"], "hello")
    world.pass_time(1)
    assert [end["kernel"] for end in stored(world)] == [NOT_REPLACED, announcement("out_of_memory")]
    assert told(world) == NOT_REPLACED


def test_a_cell_that_did_not_run_announces_nothing(world: World) -> None:
    told(world)
    die(world)
    world.kernels_wanted = fails_to_start()
    assert told(world)["replaced"] is False
    world.kernels_wanted = starts_after(5.0)
    cancelled = world.ask("s", "hello")
    world.pass_time(1)
    session = world.live("s")
    assert session is not None
    assert cancelled.run is not None
    world.do(session.stop, cancelled.run.id)
    world.pass_time(20)
    world.kernels_wanted = at_once
    assert told(world) == announcement("out_of_memory")
    assert [end["kernel"]["replaced"] for end in stored(world)] == [False, False, False, True]


def test_a_loss_that_nobody_announced_is_announced_in_the_next_life(world: World) -> None:
    create(world, env={"TOKEN": SECRET})
    delete(world)
    create(world)
    become_idle(world)
    assert told(world) == announcement("idle_timeout", env=["TOKEN"])
    become_idle(world)
    assert told(world) == announcement("idle_timeout")


def test_the_record_says_what_has_not_been_announced(world: World) -> None:
    told(world)
    delete(world)
    create(world)
    session = world.live("s")
    assert session is not None

    def unannounced() -> Loss | None:
        world.run(world.journal.commit())
        found = world.run(world.journal.reads.last_life(session.row))
        many = structs.replace(session.row, head_seq=MANY_EVENTS + 1)
        assert world.run(world.journal.reads.last_life(many)) == found
        return found.unannounced

    assert unannounced() == Loss(cause="deleted", files="none")
    told(world)
    assert unannounced() is None
    die(world)
    told(world)
    assert unannounced() is None


class Adopting:
    """A launcher that adopts the kernels of a world's."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def adopt(
        self, stored: StoredKernel, attend: Callable[[Any], None], secrets: tuple[tuple[str, str], ...] = ()
    ) -> FakeKernel:
        (kernel,) = (kernel for kernel in self._world.launcher.kernels if kernel.id == stored.id)
        kernel.connection = kernel._opened(None)
        attend(kernel.connection)
        return kernel


def crash(world: World) -> None:
    """The gateway is gone, its kernel is not, and the next gateway adopts it."""
    session = world.live("s")
    kernel = world.kernel("s")
    assert session is not None
    assert kernel is not None
    folder = str(world.folder)
    stored = StoredKernel(
        *(kernel.id, "", "python3", kernel.profile.limits, kernel.profile.env),
        *(str(kernel.workspace), folder, {}, None, {"connection_info": {"key": ""}}),
    )

    async def recover() -> tuple[int, int]:
        await session.begin_end("", keep_files=True, keep_kernel=True)
        await world.journal.commit()
        return await world.recovered(Adopting(world), {kernel.id: stored})

    assert world.run(recover()) == (1, 0)


def test_an_adopted_session_announces_what_was_not_announced(world: World) -> None:
    create(world, env={"TOKEN": SECRET})
    told(world)
    delete(world)
    create(world)
    for _ in range(2):
        crash(world)
        assert world.do(world.live, "s").to_wire().missing == Missing(env=["TOKEN"])
    assert told(world) == announcement("deleted", env=["TOKEN"])
    crash(world)
    assert world.do(world.live, "s").to_wire().missing == Missing(env=["TOKEN"])
    assert told(world) == NOT_REPLACED


# ---- what comes back


def test_variables_and_limits_come_back_while_the_gateway_lives(world: World) -> None:
    create(world, env={"TOKEN": SECRET}, limits=LimitsBody(memory="100m", cell_timeout=7))
    told(world)
    become_idle(world)
    assert told(world) == announcement("idle_timeout")
    session = world.live("s")
    assert session is not None
    assert session.limits.cell_timeout == 7
    assert session.to_wire().limits["memory"] == 100 * MIB
    kernel = world.kernel("s")
    assert kernel is not None
    assert kernel.profile.limits.memory == 100 * MIB
    assert kernel.profile.env == (("TOKEN", SECRET),)


@pytest.mark.parametrize("lose", [reopen, delete])
def test_variables_that_are_gone_are_named_and_limits_come_back(
    world: World, lose: Callable[[World], None]
) -> None:
    create(world, env={"TOKEN": SECRET, "B": "b"}, limits=LimitsBody(cell_timeout=7))
    told(world)
    lose(world)
    assert told(world)["missing"] == {"env": ["B", "TOKEN"]}
    session = world.live("s")
    assert session is not None
    assert session.limits.cell_timeout == 7
    assert to_builtins(session.to_wire())["missing"] == {"env": ["B", "TOKEN"]}
    assert SECRET not in str(world.events())


def test_a_request_that_names_variables_and_limits_gets_those(world: World) -> None:
    create(world, env={"TOKEN": SECRET}, limits=LimitsBody(cell_timeout=7))
    told(world)
    become_idle(world)
    create(world, env={"OTHER": "1"}, limits=LimitsBody(idle_timeout=900))
    assert told(world) == announcement("idle_timeout")
    session = world.live("s")
    assert session is not None
    assert (session.limits.cell_timeout, session.limits.idle_timeout) == (60, 900)
    assert session.slot.profile.env == (("OTHER", "1"),)


def test_packages_that_are_gone_are_named(world: World) -> None:
    create(world)
    session = world.live("s")
    assert session is not None
    for action, names in (("installed", ["six", "attrs"]), ("removed", ["attrs"])):
        packages = [{"name": name, "version": "1", "sha256": "", "requested": True} for name in names]
        world.do(session.log.append, "packages", None, {"action": action, "packages": packages})
    become_idle(world)
    assert told(world) == announcement("idle_timeout", packages=["six"])


def past(limits: SessionLimits, **environment: Any) -> Past:
    row = SessionRow.new(1, key="s", kernel="python3", at="", limits=limits.to_wire())
    life = LastLife(None, (), UNSET)
    return Past(row_with(row, environment), life, None, default_seed="0")


def row_with(row: SessionRow, environment: dict[str, Any]) -> SessionRow:
    row.environment.update(environment)
    return row


def test_limits_above_todays_ceilings_are_lowered_and_named() -> None:
    former = SessionLimits(ResourceLimits(memory=200 * MIB), lifetime=100)
    ceilings = LimitCeilings(ResourceLimits(memory=150 * MIB), lifetime=50)
    found = resume(past(former), SessionBody(), KernelProfile("python3"), SessionLimits(), ceilings)
    assert (found.limits.resources.memory, found.limits.lifetime) == (150 * MIB, 50)
    assert found.profile.limits == found.limits.resources
    assert found.loss.missing == Missing(limits={"memory": 200 * MIB, "lifetime": 100})


@pytest.mark.parametrize(("seed", "variables"), [("0", ()), ("7", (("PYTHONHASHSEED", "7"),))])
def test_a_hash_seed_is_recorded_and_so_comes_back(seed: str, variables: tuple[tuple[str, str], ...]) -> None:
    limits = SessionLimits()
    before = past(limits, hash_seed=seed)
    found = resume(before, SessionBody(), KernelProfile("python3"), limits, LimitCeilings())
    assert found.profile.env == variables
    assert found.loss.missing is UNSET


def test_limits_of_another_version_of_the_gateway_have_defaults_where_they_are_unknown() -> None:
    limits = SessionLimits(ResourceLimits(cpus=0.5), idle_timeout=3)
    wire = limits.to_wire()
    assert SessionLimits.from_wire(wire) == limits
    del wire["pids"]
    assert SessionLimits.from_wire(wire | {"from the future": 1}) == limits


def test_variables_are_kept_of_so_many_sessions_and_of_so_many_bytes() -> None:
    kept = KeptVariables(most_sessions=2, most_bytes=10)
    for session in (1, 2, 3):
        kept.keep("ada", session, (("A", str(session)),))
    assert [kept.of("ada", session) for session in (1, 2, 3)] == [None, (("A", "2"),), (("A", "3"),)]
    kept.keep("ada", 4, (("A", "é" * 4),))
    assert [kept.of("ada", session) for session in (2, 3, 4)] == [None, None, (("A", "é" * 4),)]
    kept.keep("ada", 5, (("A", "x" * 10),))
    assert [kept.of("ada", session) for session in (4, 5)] == [None, None]
    kept.keep("ada", 6, (("A", "b"),))
    assert kept.of("bob", 6) is None
    kept.forget("ada", 6)
    kept.forget("ada", 6)
    assert kept.of("ada", 6) is None


def test_nobody_makes_anothers_variables_be_forgotten() -> None:
    """By many sessions, by large values, or by one value that is larger than all that is kept."""
    kept = KeptVariables(most_sessions=10, most_bytes=100)
    kept.keep("ada", 1, (("A", "of ada"),))
    for session in range(2, 50):
        kept.keep("eve", session, (("A", "b"),))
    assert kept.of("eve", 40) is None
    assert kept.of("eve", 49) is not None
    for session in range(50, 60):
        kept.keep("eve", session, (("A", "x" * 60),))
    kept.keep("eve", 60, (("A", "x" * 1000),))
    assert kept.of("eve", 60) is None
    assert kept.of("ada", 1) == (("A", "of ada"),)


# ---- in words

WITH_ALL = (
    "The kernel was replaced (deleted): variables are gone, and there are no files. No longer there:"
    " environment variables A, B; packages six; limits memory of 1024, cpus of 0.5."
)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (KernelInfo(state="idle"), ""),
        (KernelInfo(replaced=True), "The kernel was replaced: variables are gone."),
        (
            KernelInfo(replaced=True, cause="idle_timeout", files="kept"),
            "The kernel was replaced (idle_timeout): variables are gone, files are kept.",
        ),
        (
            KernelInfo(
                replaced=True,
                cause="deleted",
                files="none",
                missing=Missing(env=["A", "B"], packages=["six"], limits={"memory": 1024, "cpus": 0.5}),
            ),
            WITH_ALL,
        ),
    ],
)
def test_a_loss_in_words(kernel: KernelInfo, text: str) -> None:
    assert describe_loss(kernel) == text


def test_a_process_that_is_killed_beside_its_kernel_is_told_once(world: World, tmp_path: Path) -> None:
    """At the limit of memory, while the kernel goes on: with the cell that ran then, and with no other."""
    told(world)
    kernel = world.kernel("s")
    assert kernel is not None
    counts = tmp_path / "memory.events"
    counts.write_text("oom_kill 5\n")
    kernel.facts = replace(kernel.facts, memory=MemoryGroup(tmp_path, 2))
    world.ask("s", "ignores", timeout=1.0)
    world.pass_time(0.5)
    counts.write_text("oom_kill 7\n")
    world.pass_time(60)
    told(world)
    assert [end.get("memory_kills") for end in stored(world)] == [None, 2, None]
