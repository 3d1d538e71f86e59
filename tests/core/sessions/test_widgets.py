"""The state of widgets: recorded with the cell that made it, within limits, and in the notebook."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from cellgate.record import survey as surveys
from cellgate.record.chain import GENESIS
from cellgate.record.events import EventLog, MemoryStore
from cellgate.record.notebook import Export, Notebook
from cellgate.record.rows import EventRow
from cellgate.record.survey import ListedRows, Survey
from cellgate.record.widgets import STATE, WidgetStates
from cellgate.sessions import widgets
from cellgate.wire.errors import StorageFull
from cellgate_kernels.execution import Execution
from cellgate_kernels.messages import EMPTY, Channel, Header, Message
from cellgate_kernels.outputs import KernelEvent, OutputCaps, OutputLimiter
from tests.pure.record.conftest import session_row

MODEL = {"_model_name": "IntSliderModel", "_model_module": "@jupyter-widgets/controls"}


# ---- from messages to events


def receive(kind: str, content: Any, *buffers: bytes, caps: OutputCaps | None = None) -> list[KernelEvent]:
    run = Execution("ours", "code", OutputLimiter(caps or OutputCaps()))
    run.sent()
    frame = msgspec.json.encode(content)
    parent = Header("ours", "execute_request")
    message = Message(Channel.IOPUB, EMPTY, EMPTY, EMPTY, frame, buffers, Header("m", kind), parent)
    return [event for _ in range(2) for event in run.receive(message)]


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
    log, handed_on = EventLog(MemoryStore(), 1, "s"), list[Message]()
    listener = widgets.WidgetMessages(log, handed_on.append, lambda _: 0)
    update = {"comm_id": "c", "data": {"method": "echo_update", "state": {"value": 2}}}
    messages = [
        said("comm_msg", update),
        said("comm_msg", update, parent="execute_request"),
        said("comm_msg", {"comm_id": "c", "data": {"method": "custom", "content": {}}}),
        said("stream", {"name": "stdout", "text": "no comm"}),
        said("comm_msg", update, bytes(1000)),
        said("comm_msg", update),
    ]
    for message in messages:
        listener(message)
    assert handed_on == messages
    assert log.last_seq == 1, "one is a cell's, two hold no state, and what follows crosses the bound"


class FullStore(MemoryStore):
    """Takes no row."""

    def append(self, row: EventRow, *, reserved: bool = False) -> None:
        raise StorageFull("no room")


def test_clients_hear_of_widgets_while_the_storage_is_full(caplog: pytest.LogCaptureFixture) -> None:
    handed_on = list[Message]()
    listener = widgets.WidgetMessages(EventLog(FullStore(), 1, "s"), handed_on.append, lambda _: 0)
    messages = [said("comm_msg", {"comm_id": "c", "data": {"state": {"value": 2}}})] * 3
    for message in messages:
        listener(message)
    assert handed_on == messages
    assert len(caplog.records) == 1, "it is said once"


def test_a_session_records_so_many_widgets_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(widgets, "MOST_MODELS", 3)
    log, run = EventLog(MemoryStore(), 1, "s"), Execution("ours", "code", OutputLimiter(OutputCaps()))
    run.sent()
    events = list[KernelEvent]()
    listener = widgets.WidgetMessages(log, lambda message: events.extend(run.receive(message)), lambda _: 0)
    for number in range(5):
        listener(said("comm_open", opened(comm_id=f"other {number}")) if number < 2 else _in_cell(number))
    assert log.last_seq == 2
    assert [event.type for event in events] == ["comm_open", "display_data", "display_data"]
    assert "widget state left out" in events[1].content["data"]["text/plain"]


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
