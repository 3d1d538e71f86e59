"""The state machine of sessions: on the code as it is, and on code with a mistake, which it must find."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from cellgate.execution.run import ExecutionRun
from cellgate.record.events import EventLog
from cellgate.sessions.machine import Occupancy, SessionMachine, Step
from cellgate.sessions.queue import ExecutionQueue
from cellgate.sessions.state import SessionRecord
from cellgate.sessions.worker import SessionWorker
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.protocol.execution import Execution
from tests.core.machine import Sessions
from tests.support.examples import SHARE, examples

SETTINGS = settings(
    examples(50), stateful_step_count=30, database=None, suppress_health_check=list(HealthCheck)
)


def test_whatever_happens_every_cell_ends_once_in_order_and_with_a_cause() -> None:
    run_state_machine_as_test(Sessions, settings=SETTINGS)


# ---- mistakes: each is one that somebody could make


async def not_committed(log: EventLog, seq: int) -> None:
    """Followers and waiters are told, but nobody made the end durable."""
    log._overdue.append(seq)
    log._withheld.remove(seq)
    log._publish()


FINISH = ExecutionRun.finish


def ended_twice(run: ExecutionRun, kernel_state: str) -> Mapping[str, Any]:
    """The end is recorded, and once more."""
    FINISH(run, kernel_state)
    run.end.event = None
    return FINISH(run, kernel_state)


def lost(queue: ExecutionQueue, cause: str) -> None:
    """What waits is forgotten, and not cancelled."""
    queue._runs.clear()


def out_of_order(queue: ExecutionQueue, run: ExecutionRun) -> None:
    """The last one asked for is the first to run."""
    queue._runs.appendleft(run)
    queue._wake.set()


def without_a_cause(machine: Execution, status: Any, cause: str | None) -> None:
    """Nobody says why."""
    if not machine.finished:
        machine._end = status, None
        machine.phase = machine.phase.FINISHED


def kept(pool: KernelPool, kernel: Any, *, spared: Collection[Path] = ()) -> None:
    """A kernel that is not used any more lives on."""


def broken_chain(log: EventLog, row: Any) -> None:
    """Each event is chained to the first."""
    log.head_seq = row.seq


async def no_deadline(run: ExecutionRun, kernel: Any) -> None:
    """The deadline passes, and the cell goes on."""
    run.deadline.late = False
    await run._finished(kernel)


async def nobody_told(worker: SessionWorker, wish: Any) -> None:
    """Who waits for a restart is forgotten."""
    await worker._replacement.replace(wish.cause)


def nothing_lost(record: SessionRecord) -> None:
    """Variables are lost, and no cell says so."""


SUBMITTED = SessionMachine.submitted


def by_the_clock(machine: SessionMachine, **facts: bool) -> Step:
    """A decision rests on what no stimulus tells: the replay, which has no loop, can't make it again."""
    return Step.QUEUE if asyncio._get_running_loop() is None else SUBMITTED(machine, **facts)


def not_counted(occupancy: Occupancy) -> Step:
    """What is cancelled with a session is not counted."""
    return Step.NOTHING


Act = tuple[str, dict[str, Any]]
"""A rule and what it is given."""


def submit(code: str, timeout: float | None = None) -> Act:
    return "submit", {"key": "a", "code": code, "timeout": timeout, "turns": 6}


def submit_many(*codes: str) -> Act:
    return "submit_many", {"key": "a", "codes": list(codes), "turns": 6}


DELETE: Act = ("delete", {"key": "a", "turns": 6})
RESTART: Act = ("restart", {"key": "a", "turns": 6})

MISTAKES: list[tuple[type, str, Callable[..., Any], list[Act]]] = [
    (EventLog, "release", not_committed, [submit("hello")]),
    (ExecutionRun, "finish", ended_twice, [submit("hello")]),
    (ExecutionQueue, "cancel_all", lost, [submit_many("slow 20", "hello"), DELETE]),
    (ExecutionQueue, "put", out_of_order, [submit_many("slow 0.5", "hello", "hello again")]),
    (Execution, "kernel_lost", without_a_cause, [submit("dies")]),
    (KernelPool, "release", kept, [submit("hello"), DELETE]),
    (EventLog, "_chained_to", broken_chain, [submit("hello")]),
    (ExecutionRun, "_escalate", no_deadline, [submit("never", timeout=0.1)]),
    (SessionWorker, "_do_restart", nobody_told, [submit("hello"), RESTART]),
    (SessionMachine, "submitted", by_the_clock, [submit("hello")]),
    (Occupancy, "cancelled", not_counted, [submit_many("slow 20", "hello"), DELETE]),
    (SessionRecord, "take_loss", nothing_lost, [submit("hello"), RESTART, submit("hello")]),
]
"""Whose method each takes the place of, and steps that show it."""
NAMES = [mistake.__name__ for _, _, mistake, _ in MISTAKES]
FOUND = (AssertionError, RuntimeError, TimeoutError, BaseExceptionGroup)


def take(steps: list[Act]) -> None:
    """These steps, and the end with all its checks."""
    machine = Sessions()
    try:
        machine.open(max_kernels=2, max_queue=4, running=None, patient=True)
        for rule, given in steps:
            getattr(machine, rule)(**given)
            machine.nothing_complains()
    finally:
        machine.teardown()


@pytest.mark.parametrize(("owner", "name", "mistake", "steps"), MISTAKES, ids=NAMES)
def test_the_steps_that_show_a_mistake_do_so(
    owner: type, name: str, mistake: Callable[..., Any], steps: list[Act], monkeypatch: pytest.MonkeyPatch
) -> None:
    take(steps)
    monkeypatch.setattr(owner, name, mistake)
    with pytest.raises(FOUND):
        take(steps)


@pytest.mark.skipif(SHARE < 1, reason="a search takes all its examples; a quick look takes the steps above")
@pytest.mark.parametrize(("owner", "name", "mistake", "steps"), MISTAKES, ids=NAMES)
def test_a_mistake_is_found(
    owner: type, name: str, mistake: Callable[..., Any], steps: list[Act], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the search, which is given no steps."""
    monkeypatch.setattr(owner, name, mistake)
    without_shrinking = settings(SETTINGS, max_examples=300, derandomize=True, phases=[Phase.generate])
    with pytest.raises(FOUND):
        run_state_machine_as_test(Sessions, settings=without_shrinking)
