"""A gateway crashes just after it sent a cell, before that is recorded: the next one does not run it anew."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from cellgate.channels.requests import received
from cellgate.errors import Conflict
from cellgate.execution.cell_environment import setting
from cellgate.execution.request import CellNote, ExecuteRequest
from cellgate.sessions import adoption
from cellgate.sessions.unrecorded import MOST_CELLS, SentCell, sent_cells
from cellgate.wire.models import MAX_CODE_BYTES
from cellgate_kernels.channels.connection import KernelConnection
from cellgate_kernels.channels.spool import Spooled
from cellgate_kernels.kernel.kernel import Kernel, KernelProfile
from cellgate_kernels.kernel.stored import StoredKernel
from cellgate_kernels.protocol.messages import EMPTY, Channel, Header, Message, Signer, new_message
from cellgate_kernels.testing import Behaviour, Cell, FakeKernel, VirtualTimeLoop, virtual_time
from cellgate_kernels.testing.kernels import KEY
from tests.core.world import World

OUTPUTS = frozenset({"execute_input", "stream"})


@dataclass
class Crash:
    """Two gateways on one record: the first crashes, before which all that its kernel says is spooled.

    `ran`: the codes of all cells that a kernel has begun.
    """

    loop: VirtualTimeLoop
    folder: Path
    spool: list[Spooled] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)
    before: World = field(init=False)
    after: World = field(init=False)

    def begin(self) -> None:
        """The first gateway records a session, and no more of it."""
        self.before = self._world("before")
        self.before.run(self.before.open())
        self.before.launcher.program = self._program
        self.before.run(self.before.session())
        self.before.run(self.before.journal.commit())
        self.before.run(self.before.journal.applied())
        kernel = self.before.kernel("s")
        assert kernel is not None
        self._spool(kernel)

    def _world(self, name: str) -> World:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return World(self.loop, folder)

    def keep(self) -> None:
        """Keep the record as it is now: this is what the crash leaves."""
        self.before.run(self.before.journal.commit())
        self.before.run(self.before.journal.applied())
        shutil.rmtree(self.folder / "after", ignore_errors=True)
        (self.folder / "after").mkdir()
        for file in (self.folder / "before").glob("record*"):
            shutil.copy(file, self.folder / "after" / file.name)

    def recover(self) -> FakeKernel:
        """The next gateway finds the record that was kept, and adopts the kernel with its spool."""
        kernel = self.before.kernel("s")
        assert kernel is not None
        kernel_id = kernel.id
        spool = list(self.spool)
        self.before.run(self.before.close())
        self.after = self._world("after")
        self.after.run(self.after.open())
        self.after.launcher.program = self._program
        return self.adopt(kernel_id, spool)

    def adopt(self, kernel_id: str, spool: list[Spooled]) -> FakeKernel:
        """Recover the session with a kernel that has this spool."""
        found: list[FakeKernel] = []

        async def adopt(
            stored: StoredKernel,
            attend: Callable[[KernelConnection], None],
            secrets: tuple[tuple[str, str], ...] = (),
        ) -> Kernel:
            kernel = await self.after.launcher.start(KernelProfile("python3", secrets=secrets))
            kernel.id = stored.id
            attend(kernel.connection)
            found.append(kernel)
            return kernel

        stored = StoredKernel(
            *(kernel_id, "", "python3", KernelProfile("python3").limits, (), "", str(self.folder), {}, None),
            {"connection_info": {"key": ""}},
        )
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(self.after.launcher, "adopt", adopt)
            patch.setattr(adoption, "read_spool", lambda *_: spool)
            assert self.after.run(self.after.recovered(self.after.launcher, {kernel_id: stored})) == (1, 0)
        self.after.pass_time(1)
        return found[0]

    def _program(self, code: str) -> Behaviour:
        async def behave(cell: Cell) -> None:
            self.ran.append(code)
            cell.begin()
            cell.stream(f"said by {code}")
            if "waits" in code:
                await cell.interrupted.wait()
                return
            cell.reply()
            cell.idle()

        return behave

    def _spool(self, kernel: FakeKernel) -> None:
        said: dict[str, int] = {}
        deliver = kernel.deliver
        signer = Signer(KEY)

        def keep(channel: Channel, frames: list[bytes]) -> None:
            message = signer.parse(channel, frames)
            if message.parent.msg_type == "execute_request":
                cell = message.parent.msg_id
                self.spool.append(Spooled(said.setdefault(cell, 0), message))
                said[cell] += message.msg_type in OUTPUTS
            deliver(channel, frames)

        kernel.deliver = keep  # type: ignore[method-assign]

    def go_on(self, kernel: FakeKernel, cell: str) -> None:
        """The adopted kernel ends a cell, whose request has this id."""
        parent = next(each.message for each in self.spool if each.message.parent.msg_id == cell)
        request = structs.replace(parent, header_frame=parent.parent_frame)

        def end() -> None:
            kernel.say(Channel.IOPUB, "stream", {"name": "stdout", "text": ", and more"}, request)
            kernel.say(Channel.SHELL, "execute_reply", {"status": "ok", "execution_count": 1}, request)
            kernel.say(Channel.IOPUB, "status", {"execution_state": "idle"}, request)

        self.after.do(end)
        self.after.pass_time(5)

    def recorded(self) -> dict[str, list[dict[str, Any]]]:
        """The events of the next gateway's session, by execution."""
        session = self.after.live("s")
        assert session is not None

        async def read() -> list[dict[str, Any]]:
            await self.after.journal.commit()
            batches = self.after.journal.reads.event_batches(session.row.id)
            return [json.loads(row.body) async for batch in batches for row in batch]

        found: dict[str, list[dict[str, Any]]] = {}
        for event in self.after.run(read()):
            if event["execution"] is not None:
                found.setdefault(event["execution"], []).append(event)
        return found


@pytest.fixture
def crash(tmp_path: Path) -> Iterator[Crash]:
    with virtual_time() as loop:
        made = Crash(loop, tmp_path)
        made.begin()
        made.keep()
        yield made
        made.after.run(made.after.close())
        made.after.check()


def texts(events: list[dict[str, Any]]) -> str:
    return "".join(event["text"] for event in events if event["type"] == "stream")


def test_a_cell_that_has_ended_is_not_run_again_by_a_repeat(crash: Crash) -> None:
    first = crash.before.ask("s", "n += 1", timeout=7.0, name="key")
    crash.before.pass_time(1)
    assert first.run is not None
    kernel = crash.recover()
    again = crash.after.ask("s", "n += 1", timeout=7.0, name="key")
    crash.after.pass_time(1)
    assert crash.ran == ["n += 1"]
    assert kernel.requests == []
    assert again.refusal is None
    events = crash.recorded()
    assert list(events) == [first.run.id]
    (queued, started, *_, finished) = events[first.run.id]
    assert (queued["code"], queued["msg_id"], queued["timeout"]) == ("n += 1", first.run.msg_id, 7.0)
    assert queued["idempotency"] == ["key", "n += 1"]
    assert (started["type"], finished["status"]) == ("started", "ok")
    assert texts(events[first.run.id]) == "said by n += 1"


def test_a_cell_that_runs_goes_on_and_a_repeat_waits_for_it(crash: Crash) -> None:
    first = crash.before.ask("s", "waits", name="key")
    crash.before.pass_time(1)
    assert first.run is not None
    kernel = crash.recover()
    again = crash.after.ask("s", "waits", name="key")
    crash.after.pass_time(1)
    assert not again.told
    crash.go_on(kernel, first.run.msg_id)
    assert again.told
    assert again.run is not None
    assert again.run.id == first.run.id
    assert crash.ran == ["waits"]
    assert kernel.requests == []
    assert texts(crash.recorded()[first.run.id]) == "said by waits, and more"


def test_another_request_with_the_key_is_refused(crash: Crash) -> None:
    crash.before.ask("s", "n += 1", name="key")
    crash.before.pass_time(1)
    crash.recover()
    other = crash.after.ask("s", "n += 2", name="key")
    crash.after.pass_time(1)
    assert isinstance(other.refusal, Conflict)
    assert crash.ran == ["n += 1"]


def test_a_cell_without_a_key_is_recorded_and_the_next_one_has_its_number(crash: Crash) -> None:
    first = crash.before.ask("s", "one")
    crash.before.pass_time(1)
    assert first.run is not None
    crash.recover()
    second = crash.after.ask("s", "two")
    crash.after.pass_time(1)
    assert second.run is not None
    assert second.run.record.number == 2
    events = crash.recorded()
    assert list(events) == [first.run.id, second.run.id]
    assert [each[-1]["status"] for each in events.values()] == ["ok", "ok"]
    assert "idempotency" not in events[first.run.id][0]


def test_cells_of_a_jupyter_client_are_recorded_in_order_and_none_twice(crash: Crash) -> None:
    session = crash.before.live("s")
    assert session is not None
    crash.before.do(crash.before.connect, session, "c")
    client = crash.before.clients["s", "c"]

    def send(*codes: str) -> list[str]:
        found = []
        for code in codes:
            content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
            message = new_message(Channel.SHELL, "execute_request", content, session=client.session_id)
            crash.before.do(session.door.send, client, received(message))
            crash.before.pass_time(0.01)
            found.append(message.header.msg_id)
        crash.before.pass_time(1)
        return found

    [known] = send("known")
    crash.keep()
    lost = send("one", "two", "waits")
    kernel = crash.recover()
    assert kernel.requests == [], "it is not interrupted"
    crash.go_on(kernel, lost[-1])
    events = list(crash.recorded().values())
    assert [each[0]["msg_id"] for each in events] == [known, *lost]
    assert [each[0]["code"] for each in events] == ["known", "one", "two", "waits"]
    assert [each[-1]["status"] for each in events] == ["ok"] * 4
    assert crash.ran == ["known", "one", "two", "waits"]


def test_a_silent_cell_with_a_key_is_known_by_its_note(crash: Crash) -> None:
    session = crash.before.live("s")
    assert session is not None
    request = ExecuteRequest("quiet", silent=True)
    run = crash.before.do(lambda: session.submit(request, idempotency=("key", "quiet")))
    crash.before.pass_time(1)
    crash.recover()
    crash.after.ask("s", "quiet", name="key")
    crash.after.pass_time(1)
    assert crash.ran == ["quiet"]
    (queued, *_, finished) = crash.recorded()[run.id]
    assert (queued["silent"], queued["code"], finished["status"]) == (True, "", "ok")


def test_code_of_the_gateway_itself_is_no_cell(crash: Crash) -> None:
    kernel = crash.before.kernel("s")
    assert kernel is not None
    content = {"code": setting([("A", "waits")]), "silent": True, "store_history": False}
    asked = crash.before.do(lambda: kernel.connection.ask(Channel.SHELL, "execute_request", content))
    crash.before.pass_time(1)
    crash.before.do(asked.cancel)
    adopted = crash.recover()
    assert crash.recorded() == {}
    assert adopted.requests == ["interrupt_request"]


def said(msg_type: str, parent: bytes, content: bytes = EMPTY) -> Spooled:
    header = json.loads(parent)
    of = Header(header["msg_id"], "execute_request")
    return Spooled(0, Message(Channel.IOPUB, EMPTY, parent, EMPTY, content, (), Header("m", msg_type), of))


@pytest.mark.parametrize(
    "note",
    [
        b'{"idempotency":["k"]}',
        b'{"idempotency":["k\\u0000","h"]}',
        b'{"idempotency":["%b","h"]}' % (b"k" * 2000),
        b'{"timeout":-1}',
        b'{"env":["A B"]}',
        b'{"env":%b}' % json.dumps(["A"] * 65).encode(),
        b"[]",
        b"null",
        b"{",
        b"{" + b" " * 70_000 + b"}",
    ],
)
def test_a_note_that_no_gateway_has_written_is_left_out(note: bytes) -> None:
    parent = json.dumps({"msg_id": "m1", "username": "cellgate", "cellgate": note.decode()}).encode()
    spool = [said("status", parent), said("execute_input", parent, b'{"code":"x"}')]
    assert sent_cells(spool) == [SentCell("m1", "x", CellNote(), False)]
    assert sent_cells(spool[:1]) == []


@pytest.mark.parametrize("note", [b"{}", b"1", b"[]"])
def test_a_note_that_is_no_text_is_left_out(note: bytes) -> None:
    parent = b'{"msg_id":"m1","username":"cellgate","cellgate":%b}' % note
    assert sent_cells([said("execute_input", parent, b'{"code":"x"}')]) == [
        SentCell("m1", "x", CellNote(), False)
    ]


def test_only_the_last_cells_are_looked_for_and_none_of_a_strange_name() -> None:
    parents = [b'{"msg_id":"%d"}' % number for number in range(MOST_CELLS + 3)]
    spool = [said("execute_input", parent, b'{"code":"x"}') for parent in parents]
    spool.append(said("stream", parents[0]))
    found = [cell.msg_id for cell in sent_cells(spool)]
    assert found == ["0", *(str(number) for number in range(4, MOST_CELLS + 3))]
    strange = [b'{"msg_id":"a\\u0000"}', b'{"msg_id":"%b"}' % (b"x" * 600)]
    assert sent_cells([said("execute_input", each, b'{"code":"x"}') for each in strange]) == []


@pytest.mark.parametrize("code", [b"1", b'"\\u0000"', b'"%b"' % (b"x" * (MAX_CODE_BYTES + 1)), b'"x'])
def test_code_that_can_not_be_recorded_is_left_out(code: bytes) -> None:
    spool = [said("execute_input", b'{"msg_id":"m1"}', b'{"code":%b}' % code)]
    assert sent_cells(spool) == [SentCell("m1", "", CellNote(), False)]
