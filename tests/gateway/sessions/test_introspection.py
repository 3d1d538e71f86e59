"""What a kernel is asked between its cells: completions, names and variables. Nothing of it is recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartGateway
from tests.support.commands import cellgate
from tests.support.server import GatewayProcess, Response, until

DATA = """
import collections, datetime, numpy as np, pandas as pd
table = pd.DataFrame({"a": [1, 2, 3], "b": [0.5, 1.5, 2.5]})
array = np.zeros((3, 4), dtype="float32")
structured = np.zeros(2, dtype=[("a", "i4"), ("b", "f8")])
column = table.a
number, flag, nothing, large = 6, True, None, 1 << 100_000
text, raw, items, pairs = "line\\n" * 1000, b"raw", [1, 2], {"one": 1}
frames = {"one": [np.zeros(250_000)], "same": [table]}
owned, many = [type("Own", (), {})()], list(range(50_000))
moment = datetime.date(2024, 2, 29)
counter = collections.Counter("aab")
def scale(value, factor=2): return value * factor
_hidden = 1
"""
HOSTILE = """
import time
def called(*_): open("called", "w").close(); time.sleep(60)
class Meta(type):
    __hash__ = __eq__ = __repr__ = __getattribute__ = called
    __name__ = property(called)
class Hostile(metaclass=Meta):
    __repr__ = __len__ = __str__ = __sizeof__ = __getattribute__ = __hash__ = __eq__ = __bool__ = called
class Items(list):
    __len__ = __iter__ = __repr__ = called
class Text(str):
    __getitem__ = __len__ = __str__ = __repr__ = called
hostile, items, text = object.__new__(Hostile), Items(), Text("x")
globals()[Text("key")] = globals()[5] = globals()["not a name"] = 1
"""


def ask(gateway: GatewayProcess, session: str, what: str, code: str, **fields: object) -> dict[str, Any]:
    answer = gateway.post(f"/v1/sessions/{session}/{what}", {"code": code, **fields})
    assert answer.status == 200, answer.body
    found = answer.json()
    assert isinstance(found, dict)
    return found


def variables(gateway: GatewayProcess, session: str) -> dict[str, dict[str, Any]]:
    answer = gateway.get(f"/v1/sessions/{session}/variables")
    assert answer.status == 200, answer.body
    return {each.pop("name"): each for each in answer.json()["variables"]}


def asked(gateway: GatewayProcess, session: str) -> list[Response]:
    """The answers to all three questions."""
    return [
        gateway.post(f"/v1/sessions/{session}/complete", {"code": "prin"}),
        gateway.post(f"/v1/sessions/{session}/inspect", {"code": "print"}),
        gateway.get(f"/v1/sessions/{session}/variables"),
    ]


def test_completions_are_those_of_the_session(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "a_long_name = 1\nimport math")
    found = ask(gateway, session, "complete", "x = a_long")
    assert found["matches"] == ["a_long_name"]
    assert (found["start"], found["end"], found["truncated"]) == (4, 10, False)
    found = ask(gateway, session, "complete", "math.sq + 1", cursor=7)
    assert found["matches"] == ["sqrt"]
    assert (found["start"], found["end"]) == (5, 7)
    assert found["types"] == ["function"]


def test_positions_count_code_points(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "a_long_name = 1")
    found = ask(gateway, session, "complete", "'\U0001f600é'; a_long")
    assert (found["matches"], found["start"], found["end"]) == (["a_long_name"], 6, 12)
    refused = gateway.post(f"/v1/sessions/{session}/complete", {"code": "\U0001f600", "cursor": 2})
    assert (refused.status, refused.reason) == (400, "bad_request")


def test_names_are_looked_up(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "def scale(value, factor=2):\n    'Multiplies.'\n    return value * factor")
    found = ask(gateway, session, "inspect", "scale(1)", cursor=3)
    assert found["found"]
    assert "Signature: scale(value, factor=2)" in found["text"]
    assert "Multiplies." in found["text"]
    assert "\x1b" not in found["text"]
    assert "\x1b" in found["data"]["text/plain"]
    assert "return value" not in found["text"]
    assert "return value" in ask(gateway, session, "inspect", "scale", detail=1)["text"]
    assert ask(gateway, session, "inspect", "nowhere") == {"found": False, "text": "", "data": {}}


def test_variables_have_types_and_summaries(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, DATA)
    found = variables(gateway, session)
    assert found["table"] == {"type": "DataFrame", "summary": "3 rows, 2 columns", "size": 48, "rows": 3}
    assert found["array"] == {"type": "ndarray", "summary": "(3, 4) float32", "size": 48, "rows": 3}
    assert found["structured"] == {"type": "ndarray", "summary": "(2,) 2 fields", "size": 24, "rows": 2}
    assert found["column"] == {"type": "Series", "summary": "3 items int64", "size": 24, "rows": 3}
    assert found["number"] == {"type": "int", "summary": "6", "size": 28}
    assert found["flag"] == {"type": "bool", "summary": "True", "size": 28}
    assert found["nothing"] == {"type": "NoneType", "summary": "None", "size": 16}
    assert (found["large"]["type"], found["large"]["summary"]) == ("int", "100001 bits")
    assert 12_500 < found["large"]["size"] < 14_000
    assert found["text"]["summary"].startswith("'line\\nline")
    assert len(found["text"]["summary"]) == 80
    assert found["raw"] == {"type": "bytes", "summary": "b'raw'", "size": 3}
    assert found["items"]["summary"] == "2 items"
    assert found["items"]["size"] > 2 * found["number"]["size"]
    assert found["frames"]["size"] > 2_000_000
    assert found["pairs"]["summary"] == "1 item"
    assert found["moment"] == {"type": "date", "summary": "datetime.date(2024, 2, 29)", "size": 32}
    assert found["counter"]["summary"] == "2 items"
    assert found["owned"] == {"type": "list", "summary": "1 item"}, "it has a value of an unknown type in it"
    assert found["many"] == {"type": "list", "summary": "50000 items"}
    assert found["scale"] == {"type": "function", "summary": "(value, factor)"}
    assert found["np"]["type"] == "module"
    assert list(found)[:4] == ["collections", "datetime", "np", "pd"]
    assert not found.keys() & {"In", "Out", "exit", "quit", "get_ipython", "_hidden", "_"}


def test_methods_of_classes_are_not_called(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, HOSTILE)
    answer = gateway.get(f"/v1/sessions/{session}/variables").json()
    found = {each["name"]: (each["type"], each["summary"]) for each in answer["variables"]}
    assert found["hostile"] == ("Hostile", "")
    assert (found["items"], found["text"]) == (("Items", ""), ("Text", ""))
    assert answer["truncated"], "some keys of its namespace are no names"
    assert not found.keys() & {"key", "not a name"}
    assert gateway.execute(session, "import os; os.path.exists('called')")["text"] == "False"


def test_of_very_many_variables_the_last_are_told(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "globals().update({f'v{n}': n for n in range(1500)}); last = 1")
    answer = gateway.get(f"/v1/sessions/{session}/variables").json()
    assert len(answer["variables"]) == 1000
    assert answer["variables"][-1]["name"] == "last"
    assert answer["truncated"]


def test_nothing_is_recorded_counted_or_remembered(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "a = 1\n41 + 1")
    before = gateway.model(session)
    for answer in asked(gateway, session):
        assert answer.status == 200, answer.body
    after = gateway.model(session)
    use = {"last_activity": "", "ends": None}
    assert after | use == before | use
    assert after["last_activity"] > before["last_activity"]
    shown = gateway.execute(session, "_, len(In), sorted(Out)")
    assert shown["text"] == "(42, 3, [1])"
    assert shown["execution_count"] == 2


def test_while_a_cell_runs_the_answer_is_busy(gateway: GatewayProcess, session: str) -> None:
    execution = gateway.hold(session)
    for answer in asked(gateway, session):
        assert (answer.status, answer.reason) == (409, "busy")
    gateway.answer(session, execution)
    gateway.ended(session, execution)
    assert [answer.status for answer in asked(gateway, session)] == [200, 200, 200]


@pytest.mark.nightly
def test_a_question_that_takes_too_long_is_interrupted(gateway: GatewayProcess, session: str) -> None:
    """The kernel is free for the next cell."""
    slow = "import time\nclass Slow:\n    def __repr__(self): time.sleep(600)\nslow = Slow()"
    gateway.execute(session, slow)
    kernel = gateway.model(session)["kernel_id"]
    answer = gateway.post(f"/v1/sessions/{session}/inspect", {"code": "slow"})
    assert (answer.status, answer.reason) == (409, "busy")
    assert gateway.execute(session, "1 + 1")["text"] == "2"
    assert gateway.model(session)["kernel_id"] == kernel


def test_a_session_without_a_kernel_has_died(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "import os; os._exit(1)")
    until(lambda: gateway.model(session)["state"] == "dead", "the kernel lives")
    for answer in asked(gateway, session):
        assert (answer.status, answer.reason) == (409, "kernel_died")


def test_a_session_that_is_not_live_is_not_found(gateway: GatewayProcess, session: str) -> None:
    assert [answer.status for answer in asked(gateway, session)] == [404, 404, 404]
    gateway.execute(session, "1")
    gateway.delete(f"/v1/sessions/{session}")
    assert [answer.status for answer in asked(gateway, session)] == [404, 404, 404]


def test_a_kernel_of_another_language_completes_but_has_no_variables(
    gateway: GatewayProcess, session: str
) -> None:
    assert gateway.post("/v1/sessions", {"session": session, "language": "bash"}).status == 201
    found = ask(gateway, session, "complete", "comple")
    assert "compgen" not in found["matches"]
    assert "complete" in found["matches"]
    answer = gateway.get(f"/v1/sessions/{session}/variables")
    assert (answer.status, answer.reason) == (409, "conflict")


def test_a_false_answer_is_none(gateway: GatewayProcess, session: str) -> None:
    """Cells can replace what answers."""
    gateway.execute(
        session,
        "kernel = get_ipython().kernel\n"
        "def lie(*_): return {'status': 'ok', 'matches': 5, 'cursor_start': -1, 'found': 'x'}\n"
        "kernel.do_complete = kernel.do_inspect = lie\n"
        "handler = kernel.shell_handlers['cellgate_variables_request']\n"
        "handler.__self__.listed = lambda *_: ([{'name': 'x' * 10**6}] * 10, 7)",
    )
    complete, inspect, listed = (answer.json() for answer in asked(gateway, session))
    assert complete == {"matches": [], "start": 4, "end": 4, "truncated": False}
    assert inspect == {"found": False, "text": "", "data": {}}
    assert listed == {"variables": [], "truncated": True}


def test_a_kernel_that_fails_to_answer_has_none(gateway: GatewayProcess, session: str) -> None:
    """It says that it is done, and sends no reply."""
    gateway.execute(session, "kernel = get_ipython().kernel; kernel.do_complete = lambda *_: 1 / 0")
    assert ask(gateway, session, "complete", "prin")["matches"] == []
    assert gateway.execute(session, "1 + 1")["text"] == "2"


@pytest.mark.nightly
@pytest.mark.usefixtures("sandbox")
def test_a_branch_has_the_variables_too(start_gateway: StartGateway) -> None:
    gateway = start_gateway(backend="sandbox")
    gateway.execute("s", "inherited = 1")
    assert gateway.post("/v1/sessions/s/branch", {"session": "b"}).status == 201
    gateway.execute("b", "own = 2")
    assert variables(gateway, "b").keys() == {"inherited", "own"}
    assert variables(gateway, "s").keys() == {"inherited"}
    assert ask(gateway, "b", "complete", "inheri")["matches"] == ["inherited"]


def test_text_is_told_of_by_its_length_where_there_are_secrets(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    """A secret that the kernel has cut could not be found."""
    data = tmp_path / "data"
    value = "0123456789" * 20
    made = cellgate("secret", "set", "KEY", "--user", "default", f"--data-dir={data}", stdin=f"{value}\n")
    assert made.returncode == 0, made.stderr
    gateway = start_gateway(data)
    assert gateway.post("/v1/sessions", {"session": "s", "secrets": ["KEY"]}).status == 201
    gateway.execute("s", "import os; key = os.environ['KEY']; number = 5")
    found = variables(gateway, "s")
    assert found["key"]["summary"] == "200 characters"
    assert found["number"]["summary"] == "5"
