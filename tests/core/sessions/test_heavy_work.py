"""What takes long is done in threads: the loop goes on, and what it did meanwhile changes nothing of it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from cellgate.execution.request import ExecuteRequest
from cellgate.execution.results import ResultBuilder, encoded_result
from cellgate.execution.run import ExecutionRun, ExecutionSettings, RunContext
from cellgate.http import message
from cellgate.http.base import BaseHandler
from cellgate.http.message import decode_heavy
from cellgate.http.operation import requires
from cellgate.identity.principal import EVERYWHERE, Reach
from cellgate.record import events
from cellgate.record.events import EventLog
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow
from cellgate.record.store.memory import MemoryStore
from cellgate.sessions import reader as archives
from cellgate.sessions.ownership import Alone
from cellgate.sessions.reader import HEAVY_AT_ONCE, MOST_METADATA, SESSIONS_AT_ONCE, Archive
from cellgate.testing.record_store import execution_row, session_row
from cellgate.wire.answers import Result
from cellgate.wire.queries import SessionsQuery
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.threads import Lane, ThreadLanes
from cellgate_kernels.protocol.execution import Status
from cellgate_kernels.protocol.outputs import OutputCaps
from tests.support.listening import listening

DEADLINE = 60.0
EVENT: dict[str, Any] = {"session": "s", "execution": "e", "at": "2026-11-22T10:00:00.000000Z"}


@pytest.fixture
def archive(lane: Lane) -> Archive:
    """One of nothing, which has threads."""
    nothing = cast(Any, None)
    return Archive(nothing, nothing, nothing, lane)


def built(size: int) -> ResultBuilder:
    """A builder with text of so many bytes on both streams and in displays."""
    builder = ResultBuilder()
    builder.apply({**EVENT, "type": "started", "execution_count": 1})
    for name in ("stdout", "stderr"):
        builder.apply({**EVENT, "type": "stream", "name": name, "text": "x" * size}, size)
    shown = {"data": {"text/plain": "x" * size}, "metadata": {}, "display_id": "d"}
    builder.apply({**EVENT, "type": "display_data", **shown}, size)
    return builder


async def test_a_result_of_large_outputs_is_made_in_a_thread(archive: Archive) -> None:
    def where(builder: ResultBuilder) -> int:
        return threading.get_ident()

    assert await archive.made(built(100), where) == threading.get_ident()
    assert await archive.made(built(MIB), where) != threading.get_ident()
    many = ResultBuilder()
    for number in range(5000):
        many.apply({**EVENT, "type": "display_data", "data": {"text/plain": str(number)}, "metadata": {}})
    assert await archive.made(many, where) != threading.get_ident(), "so many small ones take long too"


async def test_what_comes_while_a_result_is_made_is_for_the_next(archive: Archive) -> None:
    begun, may_go = threading.Event(), threading.Event()

    def slowly(builder: ResultBuilder) -> Result:
        begun.set()
        assert may_go.wait(DEADLINE)
        return builder.result()

    builder = built(MIB)
    before = builder.result()
    making = asyncio.ensure_future(archive.made(builder, slowly))
    assert await asyncio.to_thread(begun.wait, DEADLINE)
    builder.apply({**EVENT, "type": "display_data", "data": {"text/plain": "new"}, "metadata": {}})
    builder.apply({**EVENT, "type": "stream", "name": "stdout", "text": "new"})
    end = {"status": "ok", "cause": None, "execution_count": 1}
    builder.apply({**EVENT, "type": "finished", **end})
    may_go.set()
    made = await making
    assert (made.status, made.outputs) == ("running", before.outputs)
    assert builder.result().status == "ok"
    builder.apply({**EVENT, "type": "clear_output", "wait": False})
    assert made.outputs == before.outputs


@pytest.mark.parametrize("size", [10, MIB])
def test_an_encoded_result_is_the_result(size: int) -> None:
    builder = built(size)
    assert b"".join(encoded_result(builder, {})) == msgspec.json.encode(builder.result()) + b"\n"


async def test_large_recorded_events_are_decoded_in_a_thread(
    archive: Archive, monkeypatch: pytest.MonkeyPatch
) -> None:
    decode, threads = archives._decode, list[int]()

    def watched(body: bytes) -> dict[str, Any]:
        threads.append(threading.get_ident())
        return decode(body)

    monkeypatch.setattr(archives, "_decode", watched)
    for text in ("x", "x" * MIB):
        assert await archive._decoded(msgspec.json.encode({"text": text})) == {"text": text}
    assert [thread == threading.get_ident() for thread in threads] == [True, False]


async def test_an_end_with_a_long_error_is_written_in_a_thread(
    lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A traceback is cut at the caps, which are of megabytes; the end of its cell repeats it."""
    make, threads = events._make, list[int]()

    def watched(event: dict[str, Any], head: bytes) -> tuple[bytes, bytes]:
        threads.append(threading.get_ident())
        return make(event, head)

    monkeypatch.setattr(events, "_make", watched)
    for size in (10, 2 * MIB):
        log = EventLog(MemoryStore(), 1, "s", lane=lane)
        context = RunContext(log, ExecutionSettings(OutputCaps()))
        run = ExecutionRun(ExecuteRequest("1"), context, number=1, timeout=None)
        run.machine.kernel_lost(Status.ERROR, None)
        run.machine.error = {"ename": "E", "evalue": "x" * size, "traceback": []}
        run.finish("idle")
        await log.chained()
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


class Sessions:
    """Stands for journal and manager: sessions of a record, none of which lives."""

    def __init__(self, rows: list[SessionRow]) -> None:
        self._rows = rows
        self.reads = self
        self.asked: list[int] = []
        self.reach = ("", False)
        self.keys = SimpleNamespace(ownership=Alone())

    async def commit(self) -> None:
        """All is."""

    async def session(self, principal: str, key: str) -> SessionRow:
        return next(row for row in self._rows if row.key == key)

    async def sessions(
        self,
        principal: str,
        *,
        states: object,
        limit: int,
        after: int,
        prefix: str,
        exact: bool,
        newest: bool,
    ) -> list[SessionRow]:
        self.asked.append(limit)
        self.reach = (prefix, exact)
        return [row for row in self._rows if row.id > after][:limit]

    def failure_of(self, session_id: int) -> None:
        """None has any."""

    def get(self, principal: str, key: str) -> None:
        """None lives."""


class Recorded(Sessions):
    """Executions of one session: those whose name begins with h have large outputs, which wait to be read."""

    def __init__(self) -> None:
        super().__init__([session_row(1)])
        self.reading: list[str] = []
        self.may_read = asyncio.Event()

    async def execution(self, session_id: int, execution: str) -> ExecutionRow:
        return execution_row(session_id, 1, id=execution, first_seq=1, last_seq=9, status="ok")

    async def are_larger(self, session_id: int, size: int, *, after: int, until: int) -> bool:
        # Asked just before its events are read.
        return self._name().startswith("h")

    async def event_batches(self, session_id: int, **_: Any) -> AsyncGenerator[list[EventRow], None]:
        name = self._name()
        self.reading.append(name)
        if name.startswith("h"):
            await self.may_read.wait()
        body = msgspec.json.encode({**EVENT, "execution": name, "type": "queued"})
        yield [EventRow(1, 1, "queued", name, body, b"")]

    def _name(self) -> str:
        task = asyncio.current_task()
        assert task is not None
        return task.get_name()


async def test_few_large_results_are_read_at_once_and_small_ones_do_not_wait(lane: Lane) -> None:
    """Each has its events, its outputs and its JSON in memory: a hundred requests for one took gigabytes."""
    sessions = Recorded()
    archive = Archive(cast(Any, sessions), cast(Any, sessions), cast(Any, None), lane)

    def ask(name: str, principal: str = "ada") -> asyncio.Task[list[bytes]]:
        result = archive.result(principal, "s1", name, encoded_result, {})
        return asyncio.get_running_loop().create_task(result, name=name)

    heavy = [ask(f"h{number}", "ada" if number % 2 else "bob") for number in range(10)]
    assert json.loads(b"".join(await ask("light")))["execution"] == "light"
    assert sessions.reading == [*(f"h{number}" for number in range(HEAVY_AT_ONCE)), "light"]
    heavy[0].cancel()
    heavy[5].cancel()
    await asyncio.gather(heavy[0], heavy[5], return_exceptions=True)
    await asyncio.sleep(0)
    assert len(sessions.reading) == HEAVY_AT_ONCE + 2, "who leaves makes room for the next"
    sessions.may_read.set()
    results = await asyncio.gather(*heavy, return_exceptions=True)
    assert [isinstance(result, asyncio.CancelledError) for result in results].count(True) == 2


# ---- pages


@pytest.mark.parametrize(("size", "limit", "pages"), [(10, 1000, 1), (10, 7, 43), (60_000, 1000, 17)])
async def test_a_page_of_sessions_is_bounded_by_what_they_say(
    lane: Lane, size: int, limit: int, pages: int
) -> None:
    rows = [session_row(number, metadata={"a": "x" * size}) for number in range(1, 301)]
    sessions = cast(Any, Sessions(rows))
    archive = Archive(sessions, sessions, cast(Any, None), lane)
    found, after, count = list[str](), None, 0
    while count == 0 or after is not None:
        wanted = SessionsQuery(limit=limit, after=after)
        models, after = await archive.models("ada", EVERYWHERE, wanted)
        found += [model.session for model in models]
        assert len(msgspec.json.encode(models)) < MOST_METADATA + 400 * len(models) + size
        count += 1
    assert found == [row.key for row in rows]
    assert count == pages
    assert max(sessions.asked) <= SESSIONS_AT_ONCE


async def test_what_is_live_is_not_looked_for_among_all_that_has_ended(lane: Lane) -> None:
    class Live(Sessions):
        def live_after(self, principal: str | None, last: int, *, newest: bool = False) -> list[Any]:
            return []

    sessions = cast(Any, Live([session_row(number) for number in range(1, 301)]))
    archive = Archive(sessions, sessions, cast(Any, None), lane)
    for state in ("starting", "idle", "busy", "dead", "live"):
        wanted = SessionsQuery(state=cast(Any, state), limit=10)
        assert await archive.models("ada", EVERYWHERE, wanted) == ([], None)
    assert sessions.asked == []


async def test_a_page_of_a_search_looks_at_so_many_sessions_and_no_more(lane: Lane) -> None:
    rows = [session_row(number, metadata={"title": f"Nr. {number}"}) for number in range(1, 1001)]
    sessions = cast(Any, Sessions(rows))
    archive = Archive(sessions, sessions, cast(Any, None), lane)
    wanted = SessionsQuery(search="nR. 42", limit=5)
    first, following = await archive.models("ada", EVERYWHERE, wanted)
    assert [model.title for model in first] == ["Nr. 42", *(f"Nr. {number}" for number in range(420, 424))]
    second, following = await archive.models(
        "ada", EVERYWHERE, SessionsQuery(search="nR. 42", limit=100, after=following)
    )
    assert [model.title for model in second] == [f"Nr. {number}" for number in range(424, 430)]
    assert following is None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(archives, "MOST_LOOKED_AT", 3 * SESSIONS_AT_ONCE)
        sessions.asked.clear()
        found = await archive.models("ada", EVERYWHERE, SessionsQuery(search="nowhere"))
        assert found == ([], rows[3 * SESSIONS_AT_ONCE - 1].key)
        assert len(sessions.asked) == 3


async def test_keys_out_of_a_tokens_reach_are_left_out_by_the_record(lane: Lane) -> None:
    sessions = cast(Any, Sessions([session_row(number) for number in range(1, 301)]))
    archive = Archive(sessions, sessions, cast(Any, None), lane)
    await archive.models("ada", Reach("agent-"), SessionsQuery(limit=10))
    assert sessions.reach == ("agent-", False)


# ---- requests


class Echo(BaseHandler):
    """Says how many things a body has."""

    @requires()
    async def post(self) -> None:
        self.answer(len(await self.body(dict[str, Any])))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Where `Echo` is served."""
    lanes = ThreadLanes(1)
    async with listening({"/": Echo}, lanes=lanes) as (port, _):
        yield port
    lanes.close()
    lanes.cells.close()


def post(port: int, body: bytes) -> tuple[int, Any]:
    """The status and the answer."""
    head = f"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    with closing(socket.create_connection(("127.0.0.1", port), timeout=DEADLINE)) as client:
        client.sendall(head.encode() + body)
        answer = b""
        while part := client.recv(65536):
            answer += part
    return int(answer.split(b" ", 2)[1]), json.loads(answer.partition(b"\r\n\r\n")[2])


async def test_other_requests_do_not_wait_for_a_heavy_body(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, may_go = threading.Event(), threading.Event()

    def slowly(body: bytes, kind: type[Any]) -> Any:
        begun.set()
        assert may_go.wait(DEADLINE)
        return decode_heavy(body, kind)

    monkeypatch.setattr(message, "decode_heavy", slowly)
    heavy = asyncio.ensure_future(asyncio.to_thread(post, port, b'{"a":"' + b"x" * MIB + b'"}'))
    assert await asyncio.to_thread(begun.wait, DEADLINE)
    assert await asyncio.to_thread(post, port, b'{"a":1,"b":2}') == (200, 2)
    assert not heavy.done()
    may_go.set()
    assert await heavy == (200, 1)


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":[' + b"[]," * 400_000 + b"[]]}",
        b'{"a":[' + b"1," * 1_500_000 + b"1]}",
        b'{"a":[' + b",".join([b"9" * 1000] * 100) + b"]}",
    ],
    ids=["lists", "elements", "digits"],
)
async def test_a_body_of_too_many_parts_is_refused(port: int, body: bytes) -> None:
    """Three bytes of it make an object, and decoding holds the interpreter: four seconds for 15 MB."""
    status, problem = await asyncio.to_thread(post, port, body)
    assert (status, problem["reason"]) == (400, "bad_request")
    assert "too many parts" in problem["detail"]
    with pytest.raises(InvalidInput):
        decode_heavy(body, dict[str, Any])


async def test_a_long_text_is_not_many_parts(port: int) -> None:
    """As in code: its commas and brackets are in a string."""
    assert await asyncio.to_thread(post, port, b'{"a":"' + b"[,{" * 2_000_000 + b'"}') == (200, 1)
