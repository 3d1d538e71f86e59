"""The state machine of sessions: on the code as it is, and on code with a mistake, which it must find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from cellgate.execution.run import ExecutionRun
from cellgate.record.events import EventLog
from cellgate.sessions.queue import ExecutionQueue
from cellgate.sessions.session import Session
from cellgate_kernels.execution import Execution
from cellgate_kernels.pool import KernelPool
from tests.core.machine import Sessions

SETTINGS = settings(
    max_examples=50,
    stateful_step_count=30,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)


def test_whatever_happens_every_cell_ends_once_in_order_and_with_a_cause() -> None:
    run_state_machine_as_test(Sessions, settings=SETTINGS)


# ---- mistakes: each is one that somebody could make


async def not_committed(log: EventLog, seq: int) -> None:
    """Followers and waiters are told, but nobody made the end durable."""
    log._overdue.append(seq)
    log._withheld.remove(seq)
    log._publish()


def ended_twice(run: ExecutionRun, kernel_state: str, *, replaced: bool) -> dict[str, Any]:
    """The end is recorded, and once more."""
    run._record_end(kernel_state, replaced)
    return run._record_end(kernel_state, replaced)


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


def kept(pool: KernelPool, kernel: Any, *, spare_files: bool = False) -> None:
    """A kernel that is not used any more lives on."""


def broken_chain(log: EventLog, row: Any) -> None:
    """Each event is chained to the first."""
    log.head_seq = row.seq


async def no_deadline(run: ExecutionRun, kernel: Any) -> None:
    """The deadline passes, and the cell goes on."""
    run._late = False
    await run._finished(kernel)


async def nobody_told(session: Session, wish: Any) -> None:
    """Who waits for a restart is forgotten."""
    await session._replace_kernel(wish.cause)


@pytest.mark.parametrize(
    ("owner", "name", "mistake"),
    [
        (EventLog, "release", not_committed),
        (ExecutionRun, "finish", ended_twice),
        (ExecutionQueue, "cancel_all", lost),
        (ExecutionQueue, "put", out_of_order),
        (Execution, "kernel_lost", without_a_cause),
        (KernelPool, "release", kept),
        (EventLog, "_chained_to", broken_chain),
        (ExecutionRun, "_escalate", no_deadline),
        (Session, "_do_restart", nobody_told),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_a_mistake_is_found(
    owner: type, name: str, mistake: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mistake)
    without_shrinking = settings(SETTINGS, max_examples=300, derandomize=True, phases=[Phase.generate])
    with pytest.raises((AssertionError, RuntimeError, TimeoutError, BaseExceptionGroup)):
        run_state_machine_as_test(Sessions, settings=without_shrinking)
