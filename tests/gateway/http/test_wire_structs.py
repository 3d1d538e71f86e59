"""The structs of the wire against what a gateway sends and records: every field is declared, and comes."""

from __future__ import annotations

import json
from typing import TypeVar

import msgspec
import pytest

from cellgate.wire import answers
from cellgate.wire.events import BY_TYPE, Event
from tests.support.server import GatewayProcess

T = TypeVar("T")

CELLS = (
    "import sys; from IPython.display import clear_output, display; print('out', file=sys.stderr); print(1)",
    "shown = display(1, display_id='d'); shown.update(2); clear_output(wait=True)",
    "display({'text/html': '<b>'}, raw=True)",
    "open('a file', 'w').write('1')",
    "1 / 0",
    "input('?')",
)
WIDGET = "import ipywidgets; slider = ipywidgets.IntSlider(); slider.value = 3; slider.close(); slider"


def same(body: bytes | str, kind: type[T]) -> T:
    """The value, if its JSON has just the fields that the struct declares."""
    value = msgspec.json.decode(body, type=kind)
    assert json.loads(msgspec.json.encode(value)) == json.loads(body)
    return value


@pytest.fixture
def used(gateway: GatewayProcess, session: str) -> str:
    """A session with an event of every kind that needs nothing installed."""
    for code in CELLS:
        gateway.execute(session, code, stdin=["answer"], env={"A": "1"}, timeout=30)
    execution = gateway.hold(session)
    gateway.answer(session, execution, "answer")
    gateway.ended(session, execution)
    gateway.execute(session, WIDGET)
    gateway.execute(session, "1", silent=True)
    gateway.post(f"/v1/sessions/{session}/execute", {"code": "2"}, headers={"Idempotency-Key": "k"})
    gateway.request("PUT", f"/v1/sessions/{session}/files/b", b"1")
    gateway.delete(f"/v1/sessions/{session}/files/b")
    gateway.post(f"/v1/sessions/{session}/processes", {"argv": ["echo", "hi"]})
    assert gateway.post(f"/v1/sessions/{session}/checkpoints", {}).status == 201
    assert gateway.post(f"/v1/sessions/{session}/rollback", {}).status == 200
    gateway.post(f"/v1/sessions/{session}/restart")
    return session


def test_recorded_events_are_the_structs(gateway: GatewayProcess, used: str) -> None:
    found = set()
    for line in gateway.get(f"/v1/sessions/{used}/audit").body.splitlines():
        row = line[line.index(b'"row":') + 6 : -1]
        kind = msgspec.json.decode(row, type=Event).type
        event = same(row, BY_TYPE[kind])
        assert event.type == kind
        found.add(kind)
    # These are recorded where a gateway allows them: see the tests of those.
    elsewhere = {"branched", "connection", "connections", "packages", "port_opened", "port_closed"}
    assert found == BY_TYPE.keys() - elsewhere


def test_the_first_fields_of_an_event_come_in_their_order(gateway: GatewayProcess, used: str) -> None:
    for event in gateway.recorded(used):
        assert list(event)[:5] == ["seq", "session", "execution", "type", "at"]


def test_answers_are_the_structs(gateway: GatewayProcess, used: str) -> None:
    path = f"/v1/sessions/{used}"
    execution = gateway.get(f"{path}/executions").json()["executions"][0]["execution"]
    for address, kind in (
        (path, answers.SessionModel),
        (f"{path}?usage=true", answers.SessionModel),
        (f"{path}/variables", answers.VariableList),
        ("/v1/sessions?limit=1000", answers.SessionPage),
        (f"{path}/executions", answers.ExecutionPage),
        (f"{path}/executions/{execution}", answers.Result),
        (f"{path}/files", answers.FilePage),
        (f"{path}/packages", answers.Packages),
        (f"{path}/checkpoints", answers.CheckpointList),
        (f"{path}/tree", answers.SessionTree),
        (f"{path}/audit/verify", answers.ChainCheck),
        (f"{path}/widgets", answers.SessionWidgets),
        ("/v1/info", answers.GatewayInfo),
        ("/healthz", answers.Health),
        ("/readyz", answers.Readiness),
    ):
        same(gateway.get(address).body, kind)
    same(gateway.post(f"{path}/complete", {"code": "prin"}).body, answers.Completion)
    same(gateway.post(f"{path}/inspect", {"code": "print"}).body, answers.Inspection)
    same(gateway.request("PUT", f"{path}/files/c", b"1").body, answers.FileChange)
    gateway.execute(used, "import numpy; grid = numpy.array([['x' * 500, None]], dtype=object)")
    same(gateway.get(f"{path}/variables/grid").body, answers.TableRows)
    body = {"blocks": [{"language": "python", "code": "print(1)"}]}
    same(gateway.post(f"{path}/execute-blocks", body).body, answers.BlocksResult)


def test_a_replays_report_is_the_struct(gateway: GatewayProcess, session: str) -> None:
    for code in ("1", "import random; random.random()", "input()"):
        gateway.execute(session, code)
    report = same(gateway.post(f"/v1/sessions/{session}/replay").body, answers.ReplayReport)
    assert {cell.verdict for cell in report.cells} >= {"equal", "different"}
