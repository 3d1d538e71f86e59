"""Widgets of a session by `/v1`: their states, and what is done to them, with ipywidgets in the kernel."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.support.requirements import require
from tests.support.server import GatewayProcess, Response, until

CELL = """
import ipywidgets as w
slider = w.IntSlider(value=1, max=100)
both = w.interact(lambda x: print("x is", x), x=slider)
button, picture = w.Button(description="Go"), w.Image(value=b"\\x00\\xff")
"""
PRESSED = "button.on_click(lambda _: {})"
PRESS = {"content": {"event": "click"}}


@pytest.fixture
def shown(gateway: GatewayProcess, session: str) -> str:
    """The key of a session with a slider, what follows it, a button and a picture."""
    result = gateway.execute(session, CELL)
    if "No module named 'ipywidgets'" in result["text"]:
        require("ipywidgets", "the kernel environment has no ipywidgets")
    assert result["status"] == "ok", result["text"]
    return session


def states(gateway: GatewayProcess, session: str) -> dict[str, Any]:
    answer = gateway.get(f"/v1/sessions/{session}/widgets")
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def named(gateway: GatewayProcess, session: str, name: str) -> str:
    """The id of the only widget of this model."""
    models = states(gateway, session)["widgets"]
    (found,) = [comm_id for comm_id, model in models.items() if model["model_name"] == name]
    return str(found)


def send(gateway: GatewayProcess, session: str, widget: str, body: object) -> Response:
    return gateway.post(f"/v1/sessions/{session}/widgets/{widget}", body)


def done(gateway: GatewayProcess, session: str, widget: str, body: object) -> dict[str, Any]:
    answer = send(gateway, session, widget, body)
    assert answer.status == 200, answer.body
    found: dict[str, Any] = answer.json()
    return found


def told(gateway: GatewayProcess, session: str, code: str) -> str:
    """What an expression is in the kernel."""
    return str(gateway.execute(session, code)["text"])


def test_a_slider_is_moved_and_what_follows_it_is_seen(gateway: GatewayProcess, shown: str) -> None:
    slider = named(gateway, shown, "IntSliderModel")
    before = states(gateway, shown)["seq"]
    handled = done(gateway, shown, slider, {"state": {"value": 7}})
    assert (handled["text"], handled["late"]) == ("", False)
    events = gateway.get(f"/v1/sessions/{shown}/events?after={before}").json()["events"]
    assert events[-1]["seq"] == handled["seq"]
    assert {event["execution"] for event in events} == {None}
    output = named(gateway, shown, "OutputModel")
    assert [(event["text"], event["widget"]) for event in events if event["type"] == "stream"] == [
        ("x is 7\n", output)
    ]
    after = states(gateway, shown)
    assert after["seq"] == handled["seq"]
    assert after["widgets"][slider]["state"]["value"] == 7
    assert after["widgets"][output]["state"]["outputs"] == [
        {"output_type": "stream", "name": "stdout", "text": "x is 7\n"}
    ]
    assert told(gateway, shown, "slider.value") == "7"
    assert gateway.get(f"/v1/sessions/{shown}/audit/verify").json()["valid"]


def test_a_picture_gets_bytes(gateway: GatewayProcess, shown: str) -> None:
    picture = named(gateway, shown, "ImageModel")
    done(gateway, shown, picture, {"state": {}, "buffer_paths": [["value"]], "buffers": ["AQID"]})
    assert told(gateway, shown, "bytes(picture.value)") == r"b'\x01\x02\x03'"


def test_a_button_is_pressed_and_what_no_widget_shows_is_answered(
    gateway: GatewayProcess, shown: str
) -> None:
    button = named(gateway, shown, "ButtonModel")
    gateway.execute(shown, PRESSED.format("print('\\x1b[1mpressed')"))
    before = states(gateway, shown)["seq"]
    handled = done(gateway, shown, button, PRESS)
    assert handled == {"seq": before, "text": "pressed\n", "late": False}, "it is not recorded"
    gateway.execute(shown, PRESSED.format("1 / 0"))
    assert "ZeroDivisionError: division by zero\n" in done(gateway, shown, button, PRESS)["text"]
    gateway.execute(shown, PRESSED.format("print('y' * 100_000)"))
    assert len(done(gateway, shown, button, PRESS)["text"]) == 20_000


def test_closed_widgets_are_told_of_and_take_nothing(gateway: GatewayProcess, shown: str) -> None:
    slider = named(gateway, shown, "IntSliderModel")
    gateway.execute(shown, "slider.close()")
    assert states(gateway, shown)["closed"] == [slider]
    assert send(gateway, shown, slider, {"state": {"value": 7}}).status == 404


@pytest.mark.parametrize(
    ("widget", "body", "status", "reason"),
    [
        ("unknown", {"state": {"value": 1}}, 404, "not_found"),
        ("unknown", {}, 400, "bad_request"),
        ("unknown", {"state": {}, "content": 1}, 400, "bad_request"),
        ("unknown", {"state": [1]}, 400, "bad_request"),
        ("unknown", {"state": {}, "buffers": ["=="]}, 400, "bad_request"),
        ("x" * 201, {"state": {}}, 400, "bad_request"),
    ],
)
def test_what_can_not_be_sent_is_refused(
    gateway: GatewayProcess, session: str, widget: str, body: object, status: int, reason: str
) -> None:
    gateway.execute(session, "1")
    answer = send(gateway, session, widget, body)
    assert (answer.status, answer.json()["reason"]) == (status, reason)


def test_a_kernel_that_runs_a_cell_is_busy(gateway: GatewayProcess, shown: str) -> None:
    slider = named(gateway, shown, "IntSliderModel")
    waits = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)"
    gateway.post(f"/v1/sessions/{shown}/execute", {"code": waits, "wait": False})
    answer = send(gateway, shown, slider, {"state": {"value": 7}})
    assert (answer.status, answer.json()["reason"]) == (409, "busy")
    (gateway.workspace(shown) / "go").touch()
    assert told(gateway, shown, "slider.value") == "1"


def test_an_ended_session_has_widgets_and_takes_nothing(gateway: GatewayProcess, shown: str) -> None:
    slider = named(gateway, shown, "IntSliderModel")
    assert gateway.request("DELETE", f"/v1/sessions/{shown}").status == 204
    found = states(gateway, shown)
    assert found["widgets"][slider]["state"]["value"] == 1
    assert found["closed"] == []
    assert send(gateway, shown, slider, {"state": {"value": 7}}).status == 404


def test_what_takes_longer_than_a_cell_may_is_interrupted(gateway: GatewayProcess, shown: str) -> None:
    button = named(gateway, shown, "ButtonModel")
    gateway.execute(shown, "import time\n" + PRESSED.format("time.sleep(600)"))
    answer = gateway.request("PATCH", f"/v1/sessions/{shown}", {"limits": {"cell_timeout": 0.5}})
    assert answer.status == 200, answer.body
    handled = done(gateway, shown, button, PRESS)
    assert handled["late"]
    assert told(gateway, shown, "1 + 1") == "2"


def test_an_interrupt_ends_what_a_widget_does(gateway: GatewayProcess, shown: str) -> None:
    button = named(gateway, shown, "ButtonModel")
    gateway.execute(
        shown,
        "import time, pathlib\ndef press(_):\n    pathlib.Path('begun').touch()\n    time.sleep(600)\n"
        "button.on_click(press)",
    )
    with ThreadPoolExecutor(1) as threads:
        pressing = threads.submit(done, gateway, shown, button, PRESS)
        until((gateway.workspace(shown) / "begun").exists, otherwise="it has not begun")
        assert gateway.post(f"/v1/sessions/{shown}/interrupt").status == 204
        handled = pressing.result()
    assert not handled["late"]
    assert told(gateway, shown, "1 + 1") == "2"
