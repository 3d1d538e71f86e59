"""Messages as hostile code in a kernel may sign them, through all that hears them, to the notebook.

On the way are the real connection (its sockets are played), a session's listeners with a WebSocket client of
each subprotocol, a running cell, its caps, the record's events and the notebook. What must not happen: a
listener that raises; an event that can't be stored; outputs beyond the caps; a result or a notebook that is
none; a cell that does not end when its reply and its idle status have come; bytes left in the budget.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import msgspec
import nbformat
from hypothesis import strategies as st

from cellgate.channels.client import ChannelSettings
from cellgate.channels.door import Door, DoorHost
from cellgate.execution.answer_size import AnswerSize
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun, ExecutionSettings, RunContext
from cellgate.record.chain import verify
from cellgate.record.events import EventLog
from cellgate.record.export.notebook import Export, Notebook
from cellgate.record.export.survey import ListedRows, Survey
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.store.memory import MemoryStore
from cellgate.sessions.widgets import WidgetMessages
from cellgate.testing.record_store import session_row
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.channels.reception import Reception
from cellgate_kernels.kernel.kernel import Kernel, KernelFacts
from cellgate_kernels.protocol.messages import DELIMITER, Channel, Header, Message, Signer
from cellgate_kernels.protocol.outputs import COMM_EVENTS, OutputCaps
from cellgate_kernels.protocol.websocket import Subprotocol
from tests.fuzz.budget import Fuzz

KEY = b"the key of this kernel"
CAPS = OutputCaps(text=20_000, data=50_000)
MARKS = 4000
"""Bytes that the marks of what was left out may take beside the caps."""
PATIENCE = 120.0
"""Seconds for one example: what is linear takes a small part of a second."""

IOPUB = ("stream", "display_data", "update_display_data", "execute_result", "clear_output", "error", "status")
TYPES = (
    *IOPUB,
    "execute_input",
    "comm_open",
    "comm_msg",
    "comm_close",
    "execute_reply",
    "input_request",
    "x",
)
NAMES = (
    *("name", "text", "data", "metadata", "transient", "display_id", "execution_count", "wait", "ename"),
    *("evalue", "traceback", "execution_state", "comm_id", "target_name", "state", "buffer_paths", "status"),
    *("prompt", "password", "code", "text/plain", "image/png", "application/json", "method", "payload"),
)
WORDS = (
    "stdout",
    "stderr",
    "busy",
    "idle",
    "ok",
    "error",
    "aborted",
    "jupyter.widget",
    "c",
    "d",
    "\r",
    "\b\b\r",
)
texts = st.one_of(
    st.sampled_from(WORDS), st.text(max_size=20), st.integers(0, 60_000).map(lambda n: "x\r\b\n"[n % 4] * n)
)
numbers = st.one_of(
    st.sampled_from([2**53, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, -1, 0, 1]),
    st.integers(),
    st.floats(width=32),
)
names = st.sampled_from(NAMES) | st.text(max_size=5)
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, texts),
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.dictionaries(st.sampled_from(NAMES) | st.text(max_size=5), inner, max_size=6),
    ),
    max_leaves=12,
)


mimes = st.sampled_from(["text/plain", "text/html", "image/png", "application/json"])
ids = st.fixed_dictionaries({}, optional={"display_id": st.sampled_from(["d", "e"]) | texts})
displays = st.fixed_dictionaries(
    {"data": st.dictionaries(mimes, texts | values, max_size=3) | values},
    optional={"metadata": values, "transient": ids, "execution_count": numbers},
)
NEARLY = {
    "stream": st.fixed_dictionaries(
        {"name": st.sampled_from(["stdout", "stderr"]) | values, "text": texts | values}
    ),
    "display_data": displays,
    "update_display_data": displays,
    "execute_result": displays,
    "clear_output": st.fixed_dictionaries({"wait": st.booleans() | values}),
    "error": st.fixed_dictionaries(
        {
            "ename": texts | values,
            "evalue": texts | values,
            "traceback": st.lists(texts | values, max_size=4) | values,
        }
    ),
    "status": st.fixed_dictionaries({"execution_state": st.sampled_from(["busy", "idle", "x"]) | values}),
    "execute_input": st.fixed_dictionaries({"execution_count": numbers | values, "code": texts}),
    "execute_reply": st.fixed_dictionaries(
        {
            "status": st.sampled_from(["ok", "error", "abort", "?"]) | values,
            "execution_count": numbers | values,
        },
        optional={"ename": values, "evalue": values, "traceback": values, "payload": values},
    ),
    "input_request": st.fixed_dictionaries({"prompt": texts | values, "password": st.booleans() | values}),
}


@st.composite
def contents(draw: st.DrawFn, msg_type: str) -> bytes:
    """Bytes of a content: nearly right, any JSON, JSON that is not, and what costs most to read."""
    kind = draw(st.integers(0, 9))
    if kind <= 6:
        value = draw(NEARLY.get(msg_type, values) if kind <= 4 else values)
        frame = json.dumps(value, ensure_ascii=draw(st.booleans())).encode(errors="replace")
        return frame.replace(b"x", b"\xff") if kind == 4 else frame
    count = draw(st.integers(0, 40_000))
    worst = [
        b"[]," * count + b"1",
        b"[" * count,
        b'{"a":' * count,
        b'"' + b"\\ud800" * count + b'"',
        b"9" * count,
    ]
    worst += [b"NaN," * count + b"1", b'"' + b"\xf0\x9f" * count + b'"', b"{}," * count + b"{}", b"1e999"]
    worst += [b'"' + b'\\"[,{' * count + b'"', b'"","' + b'","' * count + b'"']
    field = draw(
        st.sampled_from(['{"data":{"application/json":[%s]}}', '{"text":[%s]}', "%s", '{"text":%s}'])
    )
    return field.encode() % draw(st.sampled_from(worst))


@st.composite
def messages(draw: st.DrawFn) -> tuple[Channel, str, str, bytes, tuple[bytes, ...]]:
    """Channel, type, whose child it says that it is, content, buffers."""
    msg_type = draw(st.sampled_from(TYPES))
    channel = draw(st.sampled_from(list(Channel)))
    usual = {"execute_reply": Channel.SHELL, "input_request": Channel.STDIN}.get(msg_type, Channel.IOPUB)
    channel = usual if draw(st.integers(0, 4)) else channel
    parent = draw(st.sampled_from(["ours", "ours", "ours", "other", ""]))
    buffers = (
        tuple(draw(st.lists(st.integers(0, 3000).map(bytes), max_size=3))) if draw(st.booleans()) else ()
    )
    return channel, msg_type, parent, draw(contents(msg_type)), buffers


class PlayedSocket:
    """A channel whose messages the test hands in itself."""

    def __init__(self) -> None:
        self.sent = 0

    def send(self, frames: Sequence[bytes]) -> None:
        self.sent += 1

    def nothing(self, *_: object) -> None:
        """There is nobody to read from."""

    pause = resume = rest = wake = close = nothing


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110 - a thread's work is awaited, which sets no event
            await asyncio.sleep(0.001)


class Played:
    """A running cell, all that hears its kernel, and the kernel's part."""

    def __init__(self, folder: Path) -> None:
        self.id = "played"
        self.facts = KernelFacts({}, "Played")
        self.reception = Reception(CAPS)
        self.connection = KernelConnection({"key": KEY, "ip": "nowhere"}, reception=self.reception)
        self.connection._sockets |= cast("Any", {channel: PlayedSocket() for channel in Channel})
        self.log = EventLog(MemoryStore(), 1, "s")
        self.log.append("session", None, {"state": "idle", "cause": "created", "kernel": "python3"})
        request = ExecuteRequest(code="1+1", allow_stdin=True)
        context = RunContext(self.log, ExecutionSettings(CAPS), self)
        self.run = ExecutionRun(request, context, number=1, timeout=None)
        self.run.machine.msg_id = "ours"
        self.run.record.queued(request, None, 0)
        self.lane = Lane("fuzz", 1)
        self.door = Door(
            cast("DoorHost", self),
            "fuzz",
            ChannelSettings(folder, self.lane),
            partial(SpillLedger(folder, 0).open, "ada"),
        )
        for protocol in Subprotocol:
            self.door.connect(f"client {protocol}", protocol)
        self.widgets = WidgetMessages(self.log)
        self.connection.listen(self.door.receive)
        self.connection.listen(self.widgets, room=self.widgets.room, types=COMM_EVENTS)
        self.kernel = cast("Kernel", self)
        self.exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.run.send(self.kernel)
        self._signer = Signer(KEY)

    def revive(self) -> None:
        """Host's."""

    def waiting_messages(self) -> list[ExecutionRun]:
        """Host's."""
        return []

    @property
    def widgets_full(self) -> bool:
        """Host's."""
        return self.widgets.full

    def wake(self) -> None:
        """Host's."""

    def take_loss(self) -> None:
        """Host's."""

    def attend_door(self) -> None:
        """Host's."""

    def hold_back(self) -> None:
        """Host's."""

    def listener_failed(self, error: Exception) -> None:
        """Host's."""
        raise AssertionError from error

    async def say(
        self, channel: Channel, msg_type: str, parent: str, content: bytes, buffers: tuple[bytes, ...]
    ) -> None:
        header, of = (
            msgspec.json.encode({"msg_id": name, "msg_type": kind})
            for name, kind in (("theirs", msg_type), (parent, "execute_request"))
        )
        message = Message(channel, header, of, b"{}", content, buffers, Header(), Header())
        frames = [b"topic", *self._signer.serialize(message)]
        assert frames[1] == DELIMITER
        self.connection.intake.receive(channel, frames)
        if self.connection.intake.large.current is not None:
            await until(lambda: self.connection.intake.large.current is None)

    async def end(self) -> None:
        self.connection.close()
        await self.door.close()
        self.reception.close(wait=True)
        self.lane.close()


async def play(folder: Path, said: list[Any], rounds: int) -> None:
    played = Played(folder)
    try:
        for _ in range(rounds):
            for message in said:
                await played.say(*message)
        machine = played.run.machine
        for channel, msg_type, content in (
            (Channel.SHELL, "execute_reply", b'{"status":"ok","execution_count":1}'),
            (Channel.IOPUB, "status", b'{"execution_state":"idle"}'),
        ):
            await played.say(channel, msg_type, "ours", content, ())
        assert machine.finished, "reply and idle have come"
        assert played.connection.fan.failures == 0, "a listener raised"
        count = machine.outcome().execution_count
        assert count is None or (type(count) is int and 0 <= count < 2**53)
        played.run.finish("idle")
        check_record(played)
    finally:
        await played.end()
    assert played.reception.budget.held == 0


def check_record(played: Played) -> None:
    rows = cast("MemoryStore", played.log._store)._rows
    events = [msgspec.json.decode(row.body) for row in rows]
    of_cell = [event for event in events if event["execution"] == played.run.id]
    # Most events are small, so that LEAST_COST holds their number; a marks' display counts to neither.
    streams = "".join(event["text"] for event in of_cell if event["type"] == "stream")
    assert len(streams.encode()) <= CAPS.text + MARKS
    shown = [event.get("data") for event in of_cell if event["type"] in {"display_data", "execute_result"}]
    assert len(msgspec.json.encode(shown)) <= 6 * CAPS.data + MARKS
    assert len(of_cell) <= 4 * CAPS.data // 128 + 50
    assert verify((row.seq, row.body, row.hash) for row in rows).valid
    assert played.run.record.builder is not None
    for plain in (False, True):
        msgspec.json.encode(
            played.run.record.builder.result(plain=plain, size=AnswerSize(500) if plain else None)
        )
    survey = Survey()
    for row in rows:
        survey.add(row)
    notebook = Notebook(session_row(1, "s"), survey, ListedRows(rows), Export("0.1.0", "")).whole()
    nbformat.validate(nbformat.from_dict(json.loads(json.dumps(notebook))))


def check_messages(said: list[Any], rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder), said, rounds))


def test_any_messages(fuzz: Fuzz) -> None:
    fuzz.run(check_messages, st.lists(messages(), max_size=12), st.sampled_from([1, 1, 1, 30]), examples=60)
