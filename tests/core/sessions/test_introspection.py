"""A session's kernel is asked between its cells: never beside one, never for longer than it is patient."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import Conflict, NotFound, ShuttingDown
from cellgate.sessions.introspection import completion, inspection, rows, variables
from cellgate.sessions.machine import MOST_QUESTIONS
from cellgate.sessions.session import Session
from cellgate.wire.answers import (
    Completion,
    CutText,
    Inspection,
    TableColumn,
    TableRows,
    VariableList,
    VariableModel,
)
from cellgate.wire.models import CompleteBody, InspectBody
from cellgate.wire.queries import RowsQuery
from cellgate_kernels.base.errors import InvalidInput, KernelBusy, KernelDied
from cellgate_kernels.kernel.questions import ANSWER_TIMEOUT, VARIABLES
from cellgate_kernels.kernel.rows import ROWS, Refusal
from cellgate_kernels.testing import FakeKernel, virtual_time
from tests.core.world import PRINCIPAL, World

MATCHES = {"status": "ok", "matches": ["print"], "cursor_start": 0, "cursor_end": 2, "metadata": {}}
CODE = CompleteBody(code="pr")
PAGE: dict[str, Any] = {
    "status": "ok",
    "type": "DataFrame",
    "columns": [{"name": "a", "type": "str", "kind": "text", "index": False}],
    "rows": [["x"], [None], [{"text": "y", "length": 300}]],
    "offset": 0,
    "total": 3,
    "all_rows": 4,
    "first_column": 0,
    "all_columns": 1,
}


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with virtual_time() as loop:
        made = World(loop, tmp_path)
        made.run(made.open())
        yield made
        made.run(made.close())
        made.check()


@pytest.fixture
def session(world: World) -> Session:
    return world.run(world.session("s"))


@pytest.fixture
def kernel(session: Session) -> FakeKernel:
    assert isinstance(session.kernel, FakeKernel)
    return session.kernel


def test_an_idle_kernel_completes(world: World, session: Session, kernel: FakeKernel) -> None:
    kernel.knows["complete_request"] = MATCHES
    before = session.to_wire()
    assert world.run(completion(session, CODE)) == Completion(matches=["print"], start=0, end=2)
    after = session.to_wire()
    assert (after.seq, after.execution_count, after.state) == (before.seq, before.execution_count, "idle")


def test_an_idle_kernel_tells_of_a_name(world: World, session: Session, kernel: FakeKernel) -> None:
    data = {"text/plain": "\x1b[31mSignature:\x1b[0m f()"}
    kernel.knows["inspect_request"] = {"status": "ok", "found": True, "data": data}
    found = world.run(inspection(session, InspectBody(code="f")))
    assert found == Inspection(found=True, text="Signature: f()", data=data)


def test_an_idle_kernel_tells_of_its_variables(world: World, session: Session, kernel: FakeKernel) -> None:
    told = [{"name": "a", "type": "int", "summary": "1"}, {"name": "b", "type": "bytes", "size": 9}]
    kernel.knows[VARIABLES] = {"status": "ok", "variables": told, "truncated": True}
    assert world.run(variables(session)) == VariableList(
        variables=[
            VariableModel(name="a", type="int", summary="1"),
            VariableModel(name="b", type="bytes", size=9),
        ],
        truncated=True,
    )


def test_a_kernel_that_tells_of_none_is_not_asked(world: World, session: Session, kernel: FakeKernel) -> None:
    kernel.facts = replace(kernel.facts, tells_variables=False)
    with pytest.raises(Conflict, match="tell of no variables"):
        world.run(variables(session))
    with pytest.raises(Conflict, match="tell of no variables"):
        world.run(rows(session, "table", RowsQuery()))
    assert not {VARIABLES, ROWS} & set(kernel.requests)


def test_an_idle_kernel_tells_of_rows(world: World, session: Session, kernel: FakeKernel) -> None:
    kernel.knows[ROWS] = PAGE
    before = session.to_wire()
    assert world.run(rows(session, "table", RowsQuery())) == TableRows(
        name="table",
        type="DataFrame",
        columns=[TableColumn(name="a", type="str", kind="text")],
        rows=[["x"], [None], [CutText(text="y", length=300)]],
        total=3,
        all_rows=4,
        all_columns=1,
    )
    after = session.to_wire()
    assert (after.seq, after.execution_count, after.state) == (before.seq, before.execution_count, "idle")


@pytest.mark.parametrize("refusal", Refusal)
def test_a_refusal_to_tell_of_rows_is_an_error(
    world: World, session: Session, kernel: FakeKernel, refusal: Refusal
) -> None:
    kernel.knows[ROWS] = {"status": "ok", "refused": refusal.value}
    known = {Refusal.NO_VARIABLE: NotFound, Refusal.NO_COLUMN: InvalidInput, Refusal.BAD_FILTER: InvalidInput}
    with pytest.raises(known.get(refusal, Conflict)):
        world.run(rows(session, "table", RowsQuery(sort="a", filter="b", column="c")))


@pytest.mark.parametrize("reply", [{"status": "error"}, {"status": "ok"}, {**PAGE, "total": 1}])
def test_rows_that_make_no_sense_are_refused(
    world: World, session: Session, kernel: FakeKernel, reply: dict[str, Any]
) -> None:
    kernel.knows[ROWS] = reply
    with pytest.raises(Conflict, match="no answer that makes sense"):
        world.run(rows(session, "table", RowsQuery()))


@pytest.mark.parametrize("name", ["", "a b", "a.b", "1", "a" * 201, "a\0"])
def test_rows_of_what_is_no_name_are_refused(
    world: World, session: Session, kernel: FakeKernel, name: str
) -> None:
    with pytest.raises(InvalidInput):
        world.run(rows(session, name, RowsQuery()))
    assert ROWS not in kernel.requests


def test_while_a_cell_runs_no_rows_are_asked_for(world: World, session: Session, kernel: FakeKernel) -> None:
    kernel.knows[ROWS] = PAGE

    async def ask() -> None:
        running = world.ask("s", "never")
        await asyncio.sleep(1)
        before = world.loop.time()
        with pytest.raises(KernelBusy):
            await rows(session, "table", RowsQuery())
        assert world.loop.time() == before
        session.interrupt()
        assert running.task is not None
        await running.task

    world.run(ask())
    assert ROWS not in kernel.requests


@pytest.mark.parametrize("reply", [{"status": "error"}, {"status": "ok"}, {}])
def test_a_kernel_that_can_t_tell_is_no_error(
    world: World, session: Session, kernel: FakeKernel, reply: dict[str, Any]
) -> None:
    kernel.knows = dict.fromkeys(("complete_request", "inspect_request", VARIABLES), reply)
    assert world.run(completion(session, CODE)) == Completion(start=2, end=2)
    assert world.run(inspection(session, InspectBody(code="f"))) == Inspection()
    assert world.run(variables(session)) == VariableList(truncated=True)


@pytest.mark.parametrize("body", [CompleteBody(code="pr", cursor=3), CompleteBody(code="a\0")])
def test_what_can_t_be_asked_is_refused(
    world: World, session: Session, kernel: FakeKernel, body: CompleteBody
) -> None:
    with pytest.raises(InvalidInput):
        world.run(completion(session, body))
    assert "complete_request" not in kernel.requests


def test_while_a_cell_runs_the_kernel_is_busy_at_once(
    world: World, session: Session, kernel: FakeKernel
) -> None:
    kernel.knows["complete_request"] = MATCHES

    async def ask() -> None:
        running = world.ask("s", "never")
        await asyncio.sleep(1)
        before = world.loop.time()
        with pytest.raises(KernelBusy):
            await completion(session, CODE)
        assert world.loop.time() == before
        session.interrupt()
        assert running.task is not None
        await running.task

    world.run(ask())
    assert "complete_request" not in kernel.requests


def test_a_cell_that_comes_while_it_is_asked_waits_for_the_answer(
    world: World, session: Session, kernel: FakeKernel
) -> None:
    kernel.knows["complete_request"] = None

    async def ask() -> None:
        asked = asyncio.ensure_future(completion(session, CODE))
        await asyncio.sleep(1)
        cell = world.ask("s", "2")
        await asyncio.sleep(1)
        assert "execute_request" not in kernel.requests
        with pytest.raises(KernelBusy, match="not answered within"):
            await asked
        assert cell.task is not None
        await cell.task
        assert cell.told

    begun = world.loop.time()
    world.run(ask())
    assert world.loop.time() - begun >= ANSWER_TIMEOUT
    asked = kernel.requests.index("complete_request")
    assert kernel.requests[asked:] == ["complete_request", "interrupt_request", "execute_request"]


def test_a_kernel_that_never_begins_to_answer_is_not_interrupted(
    world: World, session: Session, kernel: FakeKernel
) -> None:
    with pytest.raises(KernelBusy):
        world.run(completion(session, CODE))
    assert "interrupt_request" not in kernel.requests


def test_a_restart_does_not_wait_for_an_answer(world: World, session: Session, kernel: FakeKernel) -> None:
    kernel.knows["complete_request"] = None

    async def ask() -> None:
        asked = asyncio.ensure_future(completion(session, CODE))
        await asyncio.sleep(1)
        await session.restart()
        with pytest.raises(KernelDied, match="given up"):
            await asked

    begun = world.loop.time()
    world.run(ask())
    assert world.loop.time() - begun < ANSWER_TIMEOUT
    assert session.kernel is not kernel


def test_the_end_of_a_session_does_not_wait_for_an_answer(
    world: World, session: Session, kernel: FakeKernel
) -> None:
    kernel.knows["complete_request"] = None

    async def ask() -> None:
        asked = asyncio.ensure_future(completion(session, CODE))
        await asyncio.sleep(1)
        await world.manager.delete(PRINCIPAL, "s")
        with pytest.raises(KernelDied):
            await asked
        with pytest.raises(ShuttingDown):
            await completion(session, CODE)

    begun = world.loop.time()
    world.run(ask())
    assert world.loop.time() - begun < ANSWER_TIMEOUT


def test_a_kernel_that_dies_of_a_question_is_told(world: World, session: Session, kernel: FakeKernel) -> None:
    kernel.knows["complete_request"] = None

    async def ask() -> None:
        asked = asyncio.ensure_future(completion(session, CODE))
        await asyncio.sleep(1)
        kernel.die()
        with pytest.raises(KernelDied, match="ended while it was asked"):
            await asked
        with pytest.raises(KernelDied, match="run a cell"):
            await completion(session, CODE)

    world.run(ask())
    assert session.to_wire().state == "dead"


def test_only_so_many_questions_wait(world: World, session: Session, kernel: FakeKernel) -> None:
    kernel.knows["complete_request"] = None

    async def ask() -> list[object]:
        asked = [asyncio.ensure_future(completion(session, CODE)) for _ in range(MOST_QUESTIONS)]
        await asyncio.sleep(0)
        before = world.loop.time()
        with pytest.raises(KernelBusy, match="Too many"):
            await completion(session, CODE)
        assert world.loop.time() == before
        return list(await asyncio.gather(*asked, return_exceptions=True))

    assert {type(each) for each in world.run(ask())} == {KernelBusy}
    kernel.knows["complete_request"] = MATCHES
    assert world.run(completion(session, CODE)).matches == ["print"]
