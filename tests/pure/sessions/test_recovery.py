"""How an adopted cell's messages are matched with what the record holds of them."""

from __future__ import annotations

from typing import Any

from cellgate.execution.resumed import RecordedOutputs
from cellgate.sessions.adoption import unfinished_cells
from cellgate_kernels.channels.spool import Spooled
from cellgate_kernels.protocol.messages import EMPTY, Channel, Header, Message


def recorded(*texts: str) -> RecordedOutputs:
    events: list[dict[str, Any]] = [{"seq": 1, "type": "queued", "code": "x"}]
    events += [stream(seq, text) for seq, text in enumerate(texts, 2)]
    return RecordedOutputs(events)


def stream(seq: int, text: str) -> dict[str, Any]:
    return {"seq": seq, "type": "stream", "at": "then", "name": "stdout", "text": text}


def met(known: RecordedOutputs, text: str) -> bool:
    return known.meet("stream", {"text": text, "name": "stdout"}) is not None


def test_what_is_recorded_is_met_once_and_in_any_order() -> None:
    known = recorded("a", "b", "a")
    assert [met(known, text) for text in ("b", "a", "a", "a", "c")] == [True, True, True, False, False]


def test_what_the_ring_lost_is_not_taken_for_what_came_later() -> None:
    known = recorded("x", "x", "x")
    assert known.gap(0, 2) is False
    assert [met(known, "x") for _ in range(3)] == [True, False, False]


def test_a_gap_beyond_the_record_is_a_loss() -> None:
    known = recorded("x", "y")
    assert known.gap(0, 3) is True
    assert not met(known, "x")
    assert not met(known, "y")


def status(cell: str, state: str) -> Spooled:
    content = b'{"execution_state":"%s"}' % state.encode()
    parent = Header(cell, "execute_request")
    return Spooled(0, Message(Channel.IOPUB, EMPTY, EMPTY, EMPTY, content, (), Header("m", "status"), parent))


def test_a_cell_without_an_idle_status_has_not_ended() -> None:
    assert unfinished_cells([status("a", "busy"), status("a", "idle"), status("b", "busy")]) == {"b"}
