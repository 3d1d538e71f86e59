"""What clients do not take of their answers counts against the memory of all clients, whatever they asked."""

from __future__ import annotations

import asyncio
import socket
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any, cast

import pytest
from tornado.websocket import WebSocketHandler

from cellgate.http.base import BaseHandler
from cellgate.http.listener.server import Listener
from cellgate.http.listener.settings import ListenerSettings
from cellgate.http.operation import Format, requires
from cellgate.http.services import Services
from cellgate.http.streaming import StreamingHandler
from cellgate.identity.principal import Login, Principal
from cellgate.record.events import EventLog
from cellgate.record.rows import EventRow
from cellgate.record.store.memory import MemoryStore
from cellgate_kernels.base.resources import KIB, MIB
from tests.support.listening import listening

SIZE = 16 * MIB
"""Bytes of an answer. The system takes some three megabytes of each at once."""
MEMORY = 64 * MIB
READERS = 12
SLACK = 6 * MIB


def fresh(size: int) -> bytes:
    """Bytes that are nobody else's."""
    return bytes(bytearray(size))


class Rows(MemoryStore):
    """Reads rows as a database does: each time anew."""

    async def events(self, session_id: int, **bounds: Any) -> list[EventRow]:
        rows = await super().events(session_id, **bounds)
        return [EventRow(r.session_id, r.seq, r.type, r.execution, fresh(len(r.body)), r.hash) for r in rows]


class Whole(BaseHandler):
    """An answer that is written at one go."""

    public = True

    async def get(self) -> None:
        self.finish(fresh(SIZE))


class Somebody(BaseHandler):
    """The same, for the principal whom the query names."""

    @requires()
    async def get(self) -> None:
        self.finish(fresh(SIZE))

    def _authenticate(self) -> Login:
        return Login.of(Principal(self.get_query_argument("who")))


class Anybody(BaseHandler):
    """What needs no token."""

    public = True

    async def post(self) -> None:
        self.check()
        self.finish({"kept": len(self.raw_body())})


class Answering(BaseHandler):
    """An answer that takes its time: until `answer` is set."""

    @requires()
    async def post(self) -> None:
        await cast(Any, self.services).answer.wait()
        self.finish({"kept": len(self.raw_body())})


class Page(BaseHandler):
    """An answer in parts: a large one, and many small ones."""

    public = True

    async def get(self) -> None:
        await self.answer_parts(
            [fresh(SIZE // 2), *(fresh(64 * KIB) for _ in range(SIZE // 2 // (64 * KIB)))]
        )


class Events(StreamingHandler):
    """A stream of events, one of them large."""

    public = True

    async def get(self) -> None:
        log = cast(EventLog, cast(Any, self.services).log)
        await self.stream(log.follow_execution("e", 0), Format.NDJSON)


class Socket(WebSocketHandler):
    """A WebSocket that is told something."""

    def initialize(self, services: Services) -> None:
        """Tornado's hook."""

    async def open(self, *_: str, **__: str) -> None:
        await self.write_message(fresh(SIZE), binary=True)


@dataclass
class Served:
    """The handlers above. `closed`: why the listener closed how many connections. `answer`: see Answering."""

    port: int
    listener: Listener
    closed: Counter[str]
    answer: asyncio.Event


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    log = EventLog(Rows(), 1, "s")
    log.append("stream", "e", {"name": "stdout", "text": "x"})
    log.append("stream", "e", {"name": "stdout", "text": "x" * SIZE})
    log.append("finished", "e", {"execution_count": 1})
    closed, answer = Counter[str](), asyncio.Event()
    async with listening(
        {
            "/whole": Whole,
            "/somebody": Somebody,
            "/anybody": Anybody,
            "/answering": Answering,
            "/page": Page,
            "/events": Events,
            "/socket": Socket,
        },
        settings=ListenerSettings(memory=MEMORY),
        closed_by_us=lambda reason: closed.update([reason]),
        keep_alive=60.0,
        log=log,
        answer=answer,
    ) as (port, listener):
        yield Served(port, listener, closed, answer)
    assert listener.memory.held == 0


def ask(served: Served, path: str, stack: ExitStack) -> socket.socket:
    """A client that asks, and reads nothing yet."""
    client = stack.enter_context(closing(socket.socket()))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.settimeout(60)
    client.connect(("127.0.0.1", served.port))
    upgrade = (
        "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        if path == "/socket"
        else ""
    )
    client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{upgrade}\r\n".encode())
    return client


def read(client: socket.socket) -> int:
    """How many bytes come; -1 when the connection is reset before all of them have come."""
    received = 0
    try:
        while received < SIZE:
            part = client.recv(MIB)
            if not part:
                return -1
            received += len(part)
    except ConnectionResetError:
        return -1
    return received


async def settle(served: Served) -> None:
    """Let the gateway do all that it can do at the moment: nothing has changed for twenty looks in a row."""
    equal, before = 0, None
    while equal < 20:
        await asyncio.sleep(0.02)
        now = served.listener.memory.held, dict(served.closed)
        equal, before = (equal + 1 if now == before else 0), now


@pytest.mark.parametrize("path", ["/whole", "/page", "/events", "/socket"])
async def test_slow_readers_hold_no_more_than_the_memory_for_clients(
    served: Served, stack: ExitStack, path: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The connections with the most are closed, by a reset; who is left gets all when it reads."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        clients = [ask(served, path, stack) for _ in range(READERS)]
        await settle(served)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < MEMORY + SLACK
    assert set(served.closed) == {"unread"}
    # They are one address's, which has three quarters.
    assert READERS - MEMORY // (SIZE - 4 * MIB) <= served.closed["unread"] <= READERS - 2
    received = [await asyncio.to_thread(read, client) for client in clients]
    assert received.count(-1) == served.closed["unread"]
    assert min(count for count in received if count >= 0) >= SIZE
    await settle(served)
    assert served.listener.memory.held == 0, "what was taken does not count"
    caplog.clear()


@pytest.mark.parametrize("path", ["/whole", "/page", "/events"])
async def test_what_one_slow_reader_holds_is_counted_to_its_end(
    served: Served, stack: ExitStack, path: str
) -> None:
    """A large part stays in memory as a whole until its last byte was taken."""
    client = ask(served, path, stack)
    await settle(served)
    first = served.listener.memory.held
    assert SIZE // 2 < first <= SIZE + MIB
    client.settimeout(0.5)
    taken = 0
    while taken < SIZE // 4:
        taken += len(await asyncio.to_thread(client.recv, 64 * KIB))
    await settle(served)
    assert served.listener.memory.held >= SIZE // 2
    client.close()
    await settle(served)
    assert served.listener.memory.held == 0


@pytest.mark.parametrize(("method", "path"), [("POST", "/anybody"), ("OPTIONS", "/page")])
async def test_no_body_is_kept_of_those_who_show_no_token(
    served: Served, stack: ExitStack, method: str, path: str
) -> None:
    """They could have the answers of others reset."""
    client = stack.enter_context(closing(socket.create_connection(("127.0.0.1", served.port), timeout=60)))
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {SIZE}\r\n\r\n"
    await asyncio.to_thread(client.sendall, head.encode() + bytes(SIZE - 1))
    await settle(served)
    assert served.listener.memory.held == 0
    client.sendall(b"x")
    answer = await asyncio.to_thread(client.recv, 4096)
    assert answer.startswith(b"HTTP/1.1 20"), answer
    assert b'"kept": 0' in answer or method == "OPTIONS"


def send_body(served: Served, size: int, stack: ExitStack) -> socket.socket:
    """A client that has sent all of a request, which is answered later."""
    client = stack.enter_context(closing(socket.create_connection(("127.0.0.1", served.port), timeout=60)))
    client.sendall(f"POST /answering HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode())
    client.sendall(bytes(size))
    return client


async def test_a_body_counts_until_it_is_answered(served: Served, stack: ExitStack) -> None:
    """Its handler has it in memory all the while."""
    client = await asyncio.to_thread(send_body, served, SIZE, stack)
    await settle(served)
    assert served.listener.memory.held == SIZE
    served.answer.set()
    assert f'"kept": {SIZE}'.encode() in await asyncio.to_thread(client.recv, 4096)
    await settle(served)
    assert served.listener.memory.held == 0


async def test_bodies_that_are_being_answered_have_a_limit_together(
    served: Served, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """The connection that holds most is closed."""
    sizes = [SIZE - 3 * MIB, SIZE, *[SIZE - 3 * MIB] * 2]
    clients = [await asyncio.to_thread(send_body, served, size, stack) for size in sizes]
    await settle(served)
    assert served.closed == {"unanswered": 1}
    assert served.listener.memory.held == sum(sizes) - SIZE
    assert await asyncio.to_thread(clients.pop(1).recv, 4096) == b""
    served.answer.set()
    for client in clients:
        assert b'"kept"' in await asyncio.to_thread(client.recv, 4096)
    caplog.clear()


async def test_answers_that_one_does_not_read_do_not_end_those_of_another(
    served: Served, stack: ExitStack, caplog: pytest.LogCaptureFixture
) -> None:
    """Who holds most loses the largest of theirs, and has no more than three quarters."""
    hers = ask(served, "/somebody?who=bea", stack)
    await settle(served)
    for _ in range(6):
        ask(served, "/somebody?who=ada", stack)
    await settle(served)
    assert 3 <= served.closed["unread"] <= 4
    assert served.listener.memory.held_by("ada") <= MEMORY * 3 // 4
    assert await asyncio.to_thread(read, hers) >= SIZE
    caplog.clear()
