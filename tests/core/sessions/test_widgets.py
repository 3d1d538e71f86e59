"""The state of widgets: recorded with the cell that made it, within limits, and in the notebook."""

from __future__ import annotations

from typing import Any, cast

import msgspec
import pytest

from cellgate.errors import Conflict, StorageFull
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun, ExecutionSettings, RunContext
from cellgate.record.chain import GENESIS
from cellgate.record.events import EventLog
from cellgate.record.export import survey as surveys
from cellgate.record.export.notebook import Export, Notebook
from cellgate.record.export.survey import ListedRows, Survey
from cellgate.record.export.widgets import STATE, WidgetStates
from cellgate.record.rows import EventRow
from cellgate.record.store.memory import MemoryStore
from cellgate.sessions import widgets
from cellgate.sessions.session import Session
from cellgate.sessions.widget_messages import send_to_widget, widget_message
from cellgate.testing.record_store import session_row
from cellgate.wire.models import WidgetBody
from cellgate_kernels.protocol.execution import Execution
from cellgate_kernels.protocol.messages import EMPTY, Channel, Header, Message
from cellgate_kernels.protocol.outputs import KernelEvent, OutputCaps, OutputLimiter

MODEL = {"_model_name": "IntSliderModel", "_model_module": "@jupyter-widgets/controls"}


# ---- from messages to events


def receive(kind: str, content: Any, *buffers: bytes, caps: OutputCaps | None = None) -> list[KernelEvent]:
    run = Execution("ours", "code", OutputLimiter(caps or OutputCaps()))
    run.sent()
    frame = msgspec.json.encode(content)
    parent = Header("ours", "execute_request")
    message = Message(Channel.IOPUB, EMPTY, EMPTY, EMPTY, frame, buffers, Header("m", kind), parent)
    return [event for _ in range(2) for event in run.receive(message)]


def message(kind: str, content: Any, parent: str = "ours") -> Message:
    frame = msgspec.json.encode(content)
    return Message(
        Channel.IOPUB, EMPTY, EMPTY, EMPTY, frame, (), Header("m", kind), Header(parent, "execute_request")
    )


def captures(msg_id: Any, comm_id: str = "c", **data: Any) -> Message:
    data = {"method": "update", "state": {"msg_id": msg_id}, **data}
    return message("comm_msg", {"comm_id": comm_id, "data": data})


PRINTED = message("stream", {"name": "stdout", "text": "x"})


@pytest.mark.parametrize(
    ("before", "shown_by"),
    [
        ([captures("ours")], "c"),
        ([captures("ours"), captures("")], None),
        ([captures("ours"), captures("other")], None),
        ([captures("ours"), captures("ours", "d")], "d"),
        ([captures("ours"), captures("ours", "d"), captures("", "d")], "c"),
        ([captures("ours"), captures("ours", "d"), captures("")], "d"),
        ([captures("ours"), captures("ours"), captures("")], None),
        ([captures("other")], None),
        ([captures(["ours"])], None),
        ([captures("ours", method="echo_update")], None),
        ([captures("ours", state={"value": 1})], None),
    ],
)
def test_an_output_widget_takes_what_its_cell_prints(before: list[Message], shown_by: str | None) -> None:
    run = Execution("ours", "code", OutputLimiter(OutputCaps()))
    run.sent()
    for each in before:
        run.receive(each)
    (event,) = run.receive(PRINTED)
    assert event.content.get("widget") == shown_by
    error = {"ename": "E", "evalue": "v", "traceback": ["E"]}
    (event,) = run.receive(message("error", error))
    assert event.content.get("widget") == shown_by
    assert (run.error is None) is (shown_by is not None)


def opened(**fields: Any) -> dict[str, Any]:
    return {"comm_id": "c", "target_name": "jupyter.widget", "data": {"state": {"value": 1}}, **fields}


def test_buffers_are_in_base64() -> None:
    event, _ = receive("comm_open", opened(), b"\x00\xff")
    expected = KernelEvent("comm_open", {**opened(), "buffers": ["AP8="]})
    assert msgspec.json.encode(event) == msgspec.json.encode(expected)


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        ("comm_open", opened(target_name="other")),
        ("comm_open", opened(comm_id=1)),
        ("comm_open", opened(comm_id="")),
        ("comm_open", opened(data=None)),
        ("comm_open", opened(data={"state": []})),
        ("comm_open", []),
        ("comm_msg", {"comm_id": "c", "data": {"method": "custom", "content": {}}}),
        ("comm_close", {"comm_id": ["c"]}),
    ],
)
def test_what_is_no_widget_s_state_makes_no_event(kind: str, content: Any) -> None:
    assert receive(kind, content) == []


def test_state_beyond_the_cap_is_left_out_visibly() -> None:
    """The first passes, the second crosses the cap: buffers count."""
    kept, mark = receive("comm_open", opened(), bytes(1000), caps=OutputCaps(data=1500))
    assert kept.type == "comm_open"
    assert mark.type == "display_data"
    assert "widget state left out" in mark.content["data"]["text/plain"]


# ---- outside of cells


def said(kind: str, content: Any, *buffers: bytes, parent: str = "comm_msg") -> Message:
    frame = msgspec.json.encode(content)
    return Message(
        Channel.IOPUB, EMPTY, EMPTY, EMPTY, frame, buffers, Header("m", kind), Header("theirs", parent)
    )


def test_what_clients_do_to_widgets_is_an_event_of_no_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "MOST_BYTES", 1000)
    log = EventLog(MemoryStore(), 1, "s")
    listener = widgets.WidgetMessages(log)
    update = {"comm_id": "c", "data": {"method": "echo_update", "state": {"value": 2}}}
    messages = [
        said("comm_msg", update),
        said("comm_msg", update, parent="execute_request"),
        said("comm_msg", {"comm_id": "c", "data": {"method": "custom", "content": {}}}),
        said("comm_msg", update, bytes(1000)),
        said("comm_msg", update),
    ]
    for message in messages:
        listener(message)
    assert log.last_seq == 1, "one is a cell's, two hold no state, and what follows crosses the bound"


def printed(text: str, asked: str = "theirs") -> Message:
    frame = msgspec.json.encode({"name": "stdout", "text": text})
    header, parent = Header("m", "stream"), Header(asked, "comm_msg")
    return Message(Channel.IOPUB, EMPTY, EMPTY, EMPTY, frame, (), header, parent)


def shows(msg_id: Any, comm_id: str = "c", method: str = "update") -> Message:
    return said("comm_msg", {"comm_id": comm_id, "data": {"method": method, "state": {"msg_id": msg_id}}})


@pytest.mark.parametrize(
    ("before", "shown_by"),
    [
        ([shows("theirs")], "c"),
        ([shows("theirs"), shows("")], None),
        ([shows("theirs"), shows("other")], None),
        ([shows("theirs"), shows("theirs", "d")], "d"),
        ([shows("theirs"), shows("theirs", "d"), shows("", "d")], "c"),
        ([shows(["theirs"])], None),
        ([shows("theirs", method="echo_update")], None),
        ([], None),
    ],
)
async def test_an_output_widget_takes_what_the_answer_to_a_message_prints(
    before: list[Message], shown_by: str | None
) -> None:
    store = MemoryStore()
    listener = widgets.WidgetMessages(EventLog(store, 1, "s"))
    for each in before:
        listener(each)
    assert listener.show(printed("x")) is (shown_by is not None)
    assert not listener.show(printed("y", "another"))
    rows = [msgspec.json.decode(row.body) for row in await store.events(1) if row.type == "stream"]
    found = [(row["text"], row["widget"], row["execution"]) for row in rows]
    assert found == ([] if shown_by is None else [("x", shown_by, None)])


def test_no_more_widgets_take_outputs_than_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "MOST_CAPTURES", 1)
    listener = widgets.WidgetMessages(EventLog(MemoryStore(), 1, "s"))
    listener(shows("theirs"))
    listener(shows("theirs", "d"))
    listener(shows("", "c"))
    assert not listener.show(printed("x"))


def test_outputs_of_widgets_count_as_what_widgets_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "MOST_BYTES", 1000)
    log = EventLog(MemoryStore(), 1, "s")
    listener = widgets.WidgetMessages(log)
    listener(shows("theirs"))
    for each in (printed("x"), printed("x" * 1000), printed("x")):
        assert listener.show(each)
    assert log.last_seq == 2
    assert listener.spent


class Spent:
    """A session of which nothing more is recorded."""

    def __init__(self) -> None:
        self.widgets = widgets.WidgetMessages(EventLog(MemoryStore(), 1, "s"))


async def test_nothing_is_moved_that_would_not_be_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "MOST_BYTES", 0)
    with pytest.raises(Conflict, match="can't be moved here any more"):
        await send_to_widget(cast(Session, Spent()), widget_message("c", WidgetBody(state={"value": 1})))


class FullStore(MemoryStore):
    """Takes no row."""

    def append(self, row: EventRow, **_: Any) -> None:
        raise StorageFull("no room")


def test_widgets_that_a_full_storage_does_not_take_are_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    listener = widgets.WidgetMessages(EventLog(FullStore(), 1, "s"))
    for _ in range(3):
        listener(said("comm_msg", {"comm_id": "c", "data": {"state": {"value": 2}}}))
    assert len(caplog.records) == 1, "it is said once"


class OfRun:
    """As much of a session as a run sees."""

    def __init__(self, listener: widgets.WidgetMessages) -> None:
        self._listener = listener

    @property
    def widgets_full(self) -> bool:
        return self._listener.full

    def wake(self) -> None: ...

    def listener_failed(self, error: Exception) -> None: ...

    def take_loss(self) -> None: ...


async def test_a_session_records_so_many_widgets_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "MOST_MODELS", 3)
    store = MemoryStore()
    log = EventLog(store, 1, "s")
    listener = widgets.WidgetMessages(log)
    context = RunContext(log, ExecutionSettings(OutputCaps()), OfRun(listener))
    run = ExecutionRun(ExecuteRequest("code"), context, number=1, timeout=None)
    run.machine.msg_id = "ours"
    run.machine.sent()
    for number in range(5):
        message = said("comm_open", opened(comm_id=f"other {number}")) if number < 2 else _in_cell(number)
        listener(message)
        if number >= 2:
            run.receive(message)
    rows = await store.events(1)
    assert [(row.type, row.execution is None) for row in rows] == [
        ("comm_open", True),
        ("comm_open", True),
        ("comm_open", False),
        ("display_data", False),
        ("display_data", False),
    ]
    assert b"widget state left out" in rows[3].body


def _in_cell(number: int) -> Message:
    frame, header = msgspec.json.encode(opened(comm_id=f"c{number}")), Header("m", "comm_open")
    parent = Header("ours", "execute_request")
    return Message(Channel.IOPUB, EMPTY, EMPTY, EMPTY, frame, (), header, parent)


# ---- from events to the notebook


def comm(**fields: Any) -> dict[str, Any]:
    return {"comm_id": "c", "data": {"state": dict(MODEL)}, "buffers": [], **fields}


def test_states_that_make_no_sense_are_passed_over() -> None:
    states = WidgetStates()
    states.apply(comm(data={"state": {"value": 1}}))
    assert states.metadata() == {}, "a model without a name is none"
    states.apply(comm(data={"state": 3, "buffer_paths": 4}))
    states.apply(comm(data={"state": MODEL, "buffer_paths": [[[]], None, 1]}, buffers=["a", "b"]))
    model = states.metadata()["widgets"][STATE]["state"]["c"]
    assert model["state"] == {"value": 1, **MODEL}
    assert [buffer["path"] for buffer in model["buffers"]] == [[[]], None]


def test_closed_widgets_keep_their_state_and_are_told_of() -> None:
    states = WidgetStates()
    states.apply(comm(type="comm_open"))
    states.apply(comm(type="comm_open", comm_id="d"))
    states.apply({"type": "comm_close", "comm_id": "c"})
    states.apply({"type": "comm_close", "comm_id": "unknown"})
    assert states.closed == ["c"]
    assert list(states.models()) == ["c", "d"]
    states.apply(comm(type="comm_open"))
    assert states.closed == []


def test_what_an_output_widget_shows_outside_of_cells_is_in_its_state() -> None:
    output = {"_model_name": "OutputModel", "_model_module": "@jupyter-widgets/output"}
    shown = {"name": "stdout", "text": "x", "widget": "c"}
    events = [
        {"type": "comm_open", "execution": "e", **comm(data={"state": output})},
        {"type": "stream", "execution": None, **shown},
        {"type": "stream", "execution": None, **shown},
    ]
    rows = []
    for seq, event in enumerate(events, 1):
        body = msgspec.json.encode({"seq": seq, "session": "s", "at": "", **event})
        rows.append(EventRow(1, seq, event["type"], event["execution"], body, GENESIS))
    survey = Survey()
    for row in rows:
        survey.add(row)
    metadata = Notebook(session_row(1, "s"), survey, ListedRows(rows), Export("0.1.0", "")).metadata()
    (model,) = metadata["widgets"][STATE]["state"].values()
    assert model["state"]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": "xx"}]


def test_more_state_than_fits_into_memory_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    events = [
        {
            "seq": seq,
            "session": "s",
            "execution": "e",
            "type": "comm_msg",
            "at": "",
            **comm(comm_id=f"c{seq}"),
        }
        for seq in (1, 2, 3)
    ]
    rows = [EventRow(1, e["seq"], e["type"], "e", msgspec.json.encode(e), GENESIS) for e in events]
    monkeypatch.setattr(surveys, "MOST_WIDGET_BYTES", 2 * len(rows[0].body))
    survey = Survey()
    for row in rows:
        survey.add(row)
    metadata = Notebook(session_row(1, "s"), survey, ListedRows(rows), Export("0.1.0", "")).metadata()
    assert list(metadata["widgets"][STATE]["state"]) == ["c1", "c2"]
    assert metadata["cellgate"]["widget_messages_left_out"] == 1
