"""Interrupts hit the cell that they are for, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast

import pytest

from cellgate.execution.interrupts import ANSWER_TIMEOUT, CellInterrupts
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.execution import Execution
from cellgate_kernels.protocol.outputs import OutputCaps, OutputLimiter
from tests.support.server import GatewayProcess, until

# The kernel sees to an interrupt when the cell that it was for is long over.
SLOW = """
import asyncio
kernel = get_ipython().kernel
seen_to = kernel.control_handlers["interrupt_request"]
async def slowly(*request):
    await asyncio.sleep(1)
    await seen_to(*request)
kernel.control_handlers["interrupt_request"] = slowly
"""


def test_an_interrupt_that_comes_late_does_not_hit_the_next_cell(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, SLOW)
    waits = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)"
    first, second = (gateway.submit(session, code) for code in (waits, "time.sleep(1.5); 'ran'"))
    until(lambda: gateway.result(session, first)["status"] == "running", "it does not begin")
    assert gateway.post(f"/v1/sessions/{session}/executions/{first}/cancel").status == 204
    (gateway.workspace(session) / "go").touch()
    assert gateway.ended(session, second)["text"] == "'ran'"
    assert gateway.result(session, first)["finished_at"] is not None


class StubKernel:
    """What a cell's interrupts need of a kernel; `unread` is what has come and was not read."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[None] = loop.create_future()
        self.answers: list[asyncio.Future[None]] = []
        self.unread: Callable[[], None] = lambda: None
        self.connection = self

    def wake(self) -> None:
        """Read it."""
        self.unread()

    def interrupt(self) -> asyncio.Future[None]:
        """Ask."""
        self.answers.append(asyncio.get_running_loop().create_future())
        return self.answers[-1]


def sent() -> tuple[CellInterrupts, Execution, Kernel, StubKernel]:
    """A cell that was sent, and its kernel."""
    machine, stub = Execution("id", "1", OutputLimiter(OutputCaps(1000, 1000))), StubKernel()
    machine.sent()
    return CellInterrupts(machine, silent=False), machine, cast(Kernel, stub), stub


async def test_one_that_is_too_early_waits_for_the_beginning_of_the_cell() -> None:
    interrupts, machine, kernel, stub = sent()
    interrupts.send(kernel)
    interrupts.received(kernel)
    await asyncio.sleep(0)
    assert stub.answers == []
    machine.started = True
    interrupts.received(kernel)
    interrupts.received(kernel)
    await asyncio.sleep(0)
    assert len(stub.answers) == 1


@pytest.mark.parametrize("end", ["replied", "idle"])
async def test_a_cell_that_begins_and_ends_at_once_is_not_interrupted(end: str) -> None:
    interrupts, machine, kernel, stub = sent()
    interrupts.send(kernel)
    machine.started = True
    interrupts.received(kernel)
    setattr(machine, end, True)
    await asyncio.sleep(0)
    assert stub.answers == []


async def test_what_the_kernel_has_said_counts_before_it_is_read() -> None:
    interrupts, machine, kernel, stub = sent()
    machine.started = True
    stub.unread = lambda: setattr(machine, "replied", True)
    interrupts.send(kernel)
    assert stub.answers == []


@pytest.mark.parametrize("told", ["answer", "exit", "nothing"])
async def test_the_next_cell_waits_until_the_kernel_has_seen_to_it(told: str) -> None:
    interrupts, machine, kernel, stub = sent()
    await interrupts.answered(kernel)
    machine.started = True
    for _ in range(2):
        interrupts.send(kernel)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    future: Any = {"answer": stub.answers[-1], "exit": stub.exited}.get(told)
    if future is not None:
        loop.call_later(0.1, future.set_result, None)
    await interrupts.answered(kernel)
    took = loop.time() - begun
    assert took >= (ANSWER_TIMEOUT - 0.01 if told == "nothing" else 0.09)
    assert all(answer.done() for answer in stub.answers)
