"""Sessions with a cell hook: no cell runs before it may, whichever way it came, and each end is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from cellgate.channels.requests import received
from cellgate.errors import StorageFull
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun
from cellgate.hook.program import CellHookFailed, HookAnswer, HookProgram, HookQuestion
from cellgate.record.events import EventLog
from cellgate.sessions.session import Session
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.protocol.execution import Status
from cellgate_kernels.protocol.messages import Channel, new_message
from cellgate_kernels.testing import virtual_time
from tests.core.world import PRINCIPAL, World


class Rules(HookProgram):
    """A hook without a program: refuses cells with `bad` in them, fails at `broken`, waits for `gate`.

    `seen`: what it was asked about.
    """

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))
        self.seen: list[HookQuestion] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def _answer(self, question: HookQuestion) -> HookAnswer:
        self.seen.append(question)
        await self.gate.wait()
        if "broken" in question.code:
            raise CellHookFailed("it broke")
        return HookAnswer(question.id, "bad" not in question.code, "That is bad.")

    @property
    def codes(self) -> list[str]:
        return [each.code for each in self.seen]


class Hooked(World):
    """A world whose sessions have `rules`."""

    rules: Rules

    async def open(self, **options: Any) -> None:
        self.rules = Rules()
        await super().open(hook=self.rules, **options)

    async def close(self) -> None:
        self.rules.gate.set()
        await super().close()
        await self.rules.close()

    def made(self) -> Session:
        return self.run(self.session())

    def requests(self) -> int:
        """How many cells the session's kernel was sent."""
        kernel = self.kernel("s")
        assert kernel is not None
        return kernel.requests.count("execute_request")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[Hooked]:
    """Afterwards nothing is left, and the record is whole."""
    with virtual_time() as loop:
        made = Hooked(loop, tmp_path)
        made.run(made.open())
        yield made
        made.run(made.close())
        made.check()


def ran(world: Hooked, code: str) -> ExecutionRun:
    """A cell of the session that has ended."""
    asked = world.ask("s", code)
    world.pass_time(5)
    assert asked.told
    assert asked.run is not None
    return asked.run


def recorded(world: Hooked, run: ExecutionRun) -> list[dict[str, Any]]:
    world.run(world.journal.commit())
    world.run(world.journal.applied())
    events = [event for events in world.events().values() for event in events]
    return [event for event in events if event["execution"] == run.id]


def test_a_cell_that_may_run_runs(world: Hooked) -> None:
    run = ran(world, "hello")
    assert run.machine.outcome().status is Status.OK
    (asked,) = world.rules.seen
    assert asked == HookQuestion(run.id, PRINCIPAL, "s", None, "python", "hello")


@pytest.mark.parametrize(
    ("code", "ename", "cause", "said"),
    [
        ("bad", "CellRefused", "cell_refused", "That is bad."),
        ("broken", "CellHookFailed", "cell_hook_failed", "it broke"),
    ],
)
def test_a_cell_that_may_not_is_recorded_and_never_sent(
    world: Hooked, code: str, ename: str, cause: str, said: str
) -> None:
    run = ran(world, code)
    assert world.requests() == 0
    queued, error, finished = recorded(world, run)
    assert (queued["type"], queued["code"]) == ("queued", code)
    told = {"ename": ename, "evalue": said, "traceback": [f"{ename}: {said}"]}
    assert (error["type"], {name: error[name] for name in told}) == ("error", told)
    assert (finished["status"], finished["cause"], finished["error"]) == ("error", cause, told)
    assert (finished["started_at"], finished["execution_count"]) == (None, None)
    assert ran(world, "hello").machine.outcome().status is Status.OK
    assert world.requests() == 1


def test_a_cell_is_stopped_while_the_hook_is_asked(world: Hooked) -> None:
    session = world.made()
    world.rules.gate.clear()
    asked = world.ask("s", "hello")
    world.pass_time(1)
    assert world.rules.codes == ["hello"]
    assert asked.run is not None
    world.do(session.stop, asked.run.id)
    world.pass_time(5)
    assert asked.run.machine.outcome().status is Status.CANCELLED
    world.rules.gate.set()
    world.pass_time(5)
    assert world.requests() == 0
    assert ran(world, "again").machine.outcome().status is Status.OK


def test_a_restart_does_not_wait_for_the_hook(world: Hooked) -> None:
    session = world.made()
    world.rules.gate.clear()
    asked = world.ask("s", "hello")
    world.pass_time(1)
    world.restart(session)
    world.pass_time(5)
    assert asked.run is not None
    assert asked.run.machine.outcome().cause == "kernel_restarted"
    assert asked.told


def test_a_kernel_that_dies_meanwhile_runs_nothing(world: Hooked) -> None:
    world.made()
    world.rules.gate.clear()
    asked = world.ask("s", "hello")
    world.pass_time(1)
    kernel = world.kernel("s")
    assert kernel is not None
    world.do(kernel.die)
    world.pass_time(1)
    world.rules.gate.set()
    world.pass_time(5)
    assert asked.run is not None
    assert asked.run.machine.outcome().status is Status.DIED


def test_a_session_ends_while_the_hook_is_asked(world: Hooked) -> None:
    world.made()
    world.rules.gate.clear()
    world.ask("s", "hello")
    world.pass_time(1)
    world.run(world.manager.delete(PRINCIPAL, "s"))
    assert world.live("s") is None


def test_cells_of_branches_are_shown_with_their_session(world: Hooked) -> None:
    ran(world, "hello")
    branch = world.run(world.manager.branch(PRINCIPAL, "s", "b", BranchSpec()))
    run = world.do(branch.submit, ExecuteRequest("bad"))
    world.pass_time(5)
    assert run.machine.outcome().cause == "cell_refused"
    assert [each.session for each in world.rules.seen] == ["s", "b"]


def test_the_gateways_own_code_is_not_shown(world: Hooked) -> None:
    session = world.made()
    run = world.do(session.submit, ExecuteRequest("not bad", silent=True, own=True))
    world.pass_time(5)
    assert run.machine.outcome().status is Status.OK
    assert world.rules.codes == []


def test_a_jupyter_clients_cell_is_shown_with_its_expressions(world: Hooked) -> None:
    session = world.made()
    world.do(world.connect, session, "lab")
    content = {"code": "hello", "user_expressions": {"a": "1 + 1", "b": 2}}
    message = new_message(Channel.SHELL, "execute_request", content, session="lab")
    world.sent[message.header.msg_id] = "hello"
    world.do(session.door.send, world.clients["s", "lab"], received(message))
    world.pass_time(5)
    (asked,) = world.rules.seen
    assert (asked.door, asked.user_expressions) == ("jupyter", {"a": "1 + 1"})


def test_a_cell_in_a_subshell_is_shown_before_it_runs_beside(world: Hooked) -> None:
    session = world.made()
    world.do(world.connect, session, "lab")
    message = new_message(Channel.SHELL, "execute_request", {"code": "bad"}, session="lab")
    run = world.do(lambda: session.submit_message(ExecuteRequest("bad", message=message), beside=True))
    world.pass_time(5)
    assert run.machine.outcome().cause == "cell_refused"
    assert world.requests() == 0
    assert not session.machine.busy


def test_a_cell_in_a_subshell_that_can_not_be_refused_on_a_full_disk_dies(
    world: Hooked, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = world.made()
    world.do(world.connect, session, "lab")
    message = new_message(Channel.SHELL, "execute_request", {"code": "bad"}, session="lab")
    world.rules.gate.clear()
    run = world.do(lambda: session.submit_message(ExecuteRequest("bad", message=message), beside=True))
    append = EventLog.append

    def full(self: EventLog, event_type: str, *fields: Any, **options: Any) -> Mapping[str, Any]:
        if event_type == "error":
            raise StorageFull("Too much waits")
        return append(self, event_type, *fields, **options)

    with monkeypatch.context() as patched:
        patched.setattr(EventLog, "append", full)
        world.rules.gate.set()
        world.pass_time(5)
    outcome = run.machine.outcome()
    assert (outcome.status, outcome.cause) == ("died", "storage_full")
    assert world.requests() == 0
    assert not session.machine.busy
    assert ran(world, "hello").machine.outcome().status is Status.OK


def test_a_refusal_aborts_a_clients_later_cells_as_an_error_does(world: Hooked) -> None:
    session = world.made()
    world.do(world.connect, session, "lab")
    client = world.clients["s", "lab"]
    world.rules.gate.clear()
    for code in ("bad", "later"):
        world.do(world.send, session, client, code)
    world.rules.gate.set()
    world.pass_time(5)
    assert world.requests() == 0
    first, second = (run.machine.outcome() for run in session.runs.known())
    assert (first.cause, second.cause) == ("cell_refused", "aborted")
