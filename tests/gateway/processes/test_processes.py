"""Programs beside a session's kernel, over HTTP: run, streamed, fed, signalled, ended, recorded."""

from __future__ import annotations

import base64
import time
from pathlib import Path
from typing import Any

import pytest

from cellgate.processes.outputs import MOST_OF_PROGRAM
from cellgate.processes.table import MOST_KEPT
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.location import RECORD
from tests.conftest import StartGateway
from tests.support.commands import cellgate
from tests.support.server import IN_TIME, GatewayProcess, Response, together, until

KEY = "sk-live-0123456789"
FULL = MOST_KEPT // MOST_OF_PROGRAM
"""So many processes keep all that one may keep."""


def path_of(session: str, *more: str) -> str:
    return "/".join(("/v1/sessions", session, "processes", *more))


def run(gateway: GatewayProcess, session: str, *argv: str, **fields: Any) -> dict[str, Any]:
    """Run a program to its end."""
    answer = gateway.post(path_of(session), {"argv": argv, **fields}, timeout=120)
    assert answer.status == 200, answer.body
    model = answer.json()
    assert isinstance(model, dict)
    return model


def begin(gateway: GatewayProcess, session: str, *argv: str, **fields: Any) -> str:
    """Start a program and don't wait for it; returns its id."""
    answer = gateway.post(path_of(session), {"argv": argv, "wait": False, **fields}, timeout=120)
    assert answer.status == 202, answer.body
    assert answer.headers["Location"] == path_of(session, answer.json()["process"])
    return str(answer.json()["process"])


def get(gateway: GatewayProcess, session: str, process: str) -> dict[str, Any]:
    answer = gateway.get(path_of(session, process))
    assert answer.status == 200, answer.body
    model = answer.json()
    assert isinstance(model, dict)
    return model


def ended(gateway: GatewayProcess, session: str, process: str) -> dict[str, Any]:
    """The process, once it has ended."""

    def look() -> dict[str, Any] | None:
        found = get(gateway, session, process)
        return found if found["state"] == "exited" else None

    return until(look, "the process does not end")


def wrote(gateway: GatewayProcess, session: str, process: str, text: str) -> None:
    until(lambda: text in get(gateway, session, process)["stdout"], f"it does not write {text!r}")


def of_process(gateway: GatewayProcess, session: str, process: str) -> list[dict[str, Any]]:
    """The recorded events of a process."""
    return [event for event in gateway.recorded(session) if event.get("process") == process]


def refused(answer: Response, status: int, reason: str) -> None:
    assert (answer.status, answer.reason) == (status, reason), answer.body


def test_a_program_runs_to_its_end(gateway: GatewayProcess, session: str) -> None:
    model = run(gateway, session, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert model["stdout"] == "out\n"
    assert model["stderr"] == "err\n"
    assert (model["state"], model["exit_code"], model["signal"], model["cause"]) == ("exited", 3, None, None)
    assert model["session"] == session
    assert model["argv"] == ["sh", "-c", "echo out; echo err >&2; exit 3"]
    assert model["started_at"] < model["finished_at"]
    assert get(gateway, session, model["process"]) == model
    listed = gateway.get(path_of(session)).json()["processes"]
    assert listed == [model]


def test_a_list_of_much_output_has_that_of_the_last_and_says_where_the_rest_is(
    gateway: GatewayProcess, session: str
) -> None:
    write = "x=$(head -c 120000 /dev/zero | tr '\\0' x); printf %s $x; printf %s $x >&2"
    models = [run(gateway, session, "sh", "-c", write) for _ in range(FULL + 2)]
    assert {len(model["stdout"]) for model in models} == {len(models[0]["stdout"])}
    answer = gateway.get(path_of(session))
    assert answer.headers["Content-Type"] == "application/json; charset=utf-8"
    listed = answer.json()["processes"]
    assert listed[2:] == models[2:]
    for shown, model in zip(listed[:2], models, strict=False):
        place = f"GET {path_of(session, model['process'])} as a stream"
        mark = f"\n[cellgate: 120000 characters, cut here; {place} has them all]\n"
        assert shown == {**model, "stdout": mark, "stderr": mark}


def test_it_shares_files_and_variables_with_the_cells(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session, "env": {"GIVEN": "to the session"}}, timeout=120)
    gateway.execute(session, "import os; os.mkdir('below'); _ = open('below/f', 'w').write('written')")
    assert run(gateway, session, "cat", "f", cwd="below")["stdout"] == "written"
    shown = run(gateway, session, "sh", "-c", "echo $GIVEN, $OWN", env={"OWN": "to it"})
    assert shown["stdout"] == "to the session, to it\n"


def test_cells_run_beside_it(gateway: GatewayProcess, session: str) -> None:
    process = begin(gateway, session, "sleep", "600")
    assert gateway.execute(session, "6 * 7")["text"] == "42"
    assert get(gateway, session, process)["state"] == "running"
    cell = gateway.hold(session)
    assert run(gateway, session, "echo", "at once")["stdout"] == "at once\n"
    gateway.answer(session, cell)


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ({"argv": []}, "argv"),
        ({"argv": [""]}, "argv"),
        ({"argv": ["ls", "a\0b"]}, "NUL"),
        ({"argv": ["x"] * 2000}, "argv"),
        ({"argv": ["x" * 70_000]}, "argv"),
        ({"argv": ["ls"], "cwd": "/etc"}, "path"),
        ({"argv": ["ls"], "cwd": "../.."}, "path"),
        ({"argv": ["ls"], "env": {"A=B": ""}}, "env"),
        ({"argv": ["ls"], "env": {"CELLGATE_X": ""}}, "env"),
        ({"argv": ["ls"], "timeout": 0}, "timeout"),
        ({"argv": ["ls"], "shell": True}, "shell"),
        ({"argv": ["no-such-program"]}, "No such file"),
        ({"argv": ["ls"], "cwd": "missing"}, "No such file"),
        ({"argv": ["/etc/passwd"]}, "Permission denied"),
    ],
)
def test_what_can_not_be_run_changes_nothing(
    gateway: GatewayProcess, session: str, body: dict[str, Any], named: str
) -> None:
    answer = gateway.post(path_of(session), body, timeout=120)
    refused(answer, 400, "bad_request")
    assert named in answer.json()["detail"]
    events = gateway.get(f"/v1/sessions/{session}/events")
    assert "process_started" not in str(events.body)


def test_its_events_are_streamed_and_recorded(gateway: GatewayProcess, session: str) -> None:
    body = {"argv": ["sh", "-c", "echo one; read line; echo got $line; exit 4"], "stdin": True}
    events: list[dict[str, Any]] = []
    for event in gateway.events("POST", path_of(session), body):
        events.append(event)
        if event["type"] == "process_output" and event["text"] == "one\n":
            answer = gateway.post(path_of(session, event["process"], "input"), {"data": "this\n"})
            assert answer.status == 204, answer.body
    process = events[0]["process"]
    assert [event["type"] for event in events] == [
        "process_started",
        "process_output",
        "process_output",
        "process_exited",
    ]
    first, *outputs, last = events
    assert first["argv"] == body["argv"]
    assert first["stdin"] is True
    assert first["timeout"] is None
    assert [(each["name"], each["text"]) for each in outputs] == [
        ("stdout", "one\n"),
        ("stdout", "got this\n"),
    ]
    assert (last["exit_code"], last["signal"], last["cause"], last["truncated"]) == (4, None, None, False)
    assert of_process(gateway, session, process) == events
    assert list(gateway.events("GET", path_of(session, process))) == events
    with gateway.stream("GET", path_of(session, process), accept="text/event-stream") as answer:
        text = answer.read().decode()
    assert [line for line in text.splitlines() if line.startswith("event:")] == [
        f"event: {event['type']}" for event in events
    ]


def test_streams_of_two_programs_stay_apart(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")

    def one(number: int) -> list[str]:
        script = f"for i in 1 2 3; do echo {number}; sleep 0.05; done"
        events = gateway.events("POST", path_of(session), {"argv": ["sh", "-c", script]})
        return [event["text"] for event in events if event["type"] == "process_output"]

    found = together(4, one)
    assert ["".join(texts) for texts in found] == [f"{n}\n{n}\n{n}\n" for n in range(4)]


def test_input_as_bytes_and_its_end(gateway: GatewayProcess, session: str) -> None:
    process = begin(gateway, session, "od", "-An", "-tx1", stdin=True)
    sent = base64.b64encode(b"\x00\xff\n").decode()
    answer = gateway.post(path_of(session, process, "input"), {"data_b64": sent, "close": True})
    assert answer.status == 204, answer.body
    assert ended(gateway, session, process)["stdout"] == " 00 ff 0a\n"


def test_input_that_fits_nothing_is_refused(gateway: GatewayProcess, session: str) -> None:
    process = begin(gateway, session, "sleep", "600")
    refused(gateway.post(path_of(session, process, "input"), {"data": "x"}), 409, "conflict")
    hungry = begin(gateway, session, "sleep", "600", stdin=True)
    place = path_of(session, hungry, "input")
    refused(gateway.post(place, {"data": "x", "data_b64": "eA=="}), 400, "bad_request")
    refused(gateway.post(place, {"data_b64": "?"}), 400, "bad_request")
    refused(gateway.post(place, {"data": "x" * 600_000}), 400, "bad_request")
    assert gateway.post(place, {"data": "x" * 500_000}).status == 204
    assert gateway.post(place, {"data": "x" * 500_000}).status == 204
    refused(gateway.post(place, {"data": "x" * 500_000}), 400, "bad_request")
    assert gateway.post(path_of(session, hungry, "signal"), {"signal": "SIGKILL"}).status == 204
    assert ended(gateway, session, hungry)["signal"] == "SIGKILL"
    refused(gateway.post(place, {"data": "x"}), 409, "conflict")
    refused(gateway.post(path_of(session, hungry, "signal"), {"signal": "SIGINT"}), 409, "conflict")


def test_a_signal_by_name(gateway: GatewayProcess, session: str) -> None:
    script = "trap 'echo caught; exit 5' USR1; echo ready; while :; do sleep 0.05; done"
    process = begin(gateway, session, "sh", "-c", script)
    wrote(gateway, session, process, "ready")
    for wrong in ("SIGNOTHING", "10", "usr1", "SIGSEGV"):
        refused(gateway.post(path_of(session, process, "signal"), {"signal": wrong}), 400, "bad_request")
    assert gateway.post(path_of(session, process, "signal"), {"signal": "SIGUSR1"}).status == 204
    model = ended(gateway, session, process)
    assert (model["stdout"], model["exit_code"]) == ("ready\ncaught\n", 5)


def test_delete_ends_it_and_its_children(gateway: GatewayProcess, session: str) -> None:
    process = begin(gateway, session, "sh", "-c", "sleep 600 & echo ready; wait")
    wrote(gateway, session, process, "ready")
    assert gateway.delete(path_of(session, process)).status == 204
    model = ended(gateway, session, process)
    assert (model["signal"], model["cause"]) == ("SIGTERM", "terminated")
    assert gateway.delete(path_of(session, process)).status == 204
    listing = ["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"]
    until(lambda: "600" not in run(gateway, session, *listing)["stdout"], "its child is left")


def test_its_deadline_ends_it(gateway: GatewayProcess, session: str) -> None:
    model = run(gateway, session, "sh", "-c", "echo before; sleep 600", timeout=IN_TIME)
    assert (model["stdout"], model["cause"], model["signal"]) == ("before\n", "timeout", "SIGTERM")
    body = {"session": session + "-short", "limits": {"cell_timeout": 0.5}}
    gateway.post("/v1/sessions", body, timeout=120)
    assert run(gateway, session + "-short", "sleep", "600")["cause"] == "timeout"
    process = begin(gateway, session + "-short", "sleep", "1.5")
    assert ended(gateway, session + "-short", process)["exit_code"] == 0
    gateway.delete(f"/v1/sessions/{session}-short")


def test_its_output_is_capped_and_says_so(strict: GatewayProcess, strict_session: str) -> None:
    script = "head -c 100000 /dev/zero | tr '\\0' x; echo end >&2"
    model = run(strict, strict_session, "sh", "-c", script)
    assert model["truncated"] is True
    assert model["exit_code"] == 0
    assert model["stdout"].endswith("x\n[cellgate: output beyond 65536 bytes is left out]\n")
    assert model["stderr"] == ""
    texts = [e["text"] for e in of_process(strict, strict_session, model["process"]) if "text" in e]
    assert "".join(texts) == model["stdout"]
    assert len("".join(texts)) < 66_000


def test_a_long_text_is_cut_in_answers_and_whole_in_the_record(gateway: GatewayProcess, session: str) -> None:
    model = run(gateway, session, "seq", "100000")
    assert model["truncated"] is False
    assert model["stdout"].startswith("1\n2\n")
    assert model["stdout"].endswith("\n100000\n")
    assert "588895 characters, cut here" in model["stdout"]
    assert len(model["stdout"]) < 100_300
    texts = [e["text"] for e in of_process(gateway, session, model["process"]) if "text" in e]
    assert "".join(texts) == "".join(f"{n}\n" for n in range(1, 100_001))


def test_what_is_no_utf_8_is_replaced_and_characters_are_never_cut(
    gateway: GatewayProcess, session: str
) -> None:
    script = "import os, time\nfor b in 'é🔑'.encode(): os.write(1, bytes([b])); time.sleep(0.05)\n"
    script += "os.write(1, b'\\xff')"
    model = run(gateway, session, "python3", "-c", script)
    assert model["stdout"] == "é🔑\ufffd"


def test_no_more_than_so_many_run_at_once(gateway: GatewayProcess, session: str) -> None:
    processes = [begin(gateway, session, "sleep", "600") for _ in range(16)]
    answer = gateway.post(path_of(session), {"argv": ["ls"]})
    refused(answer, 429, "queue_full")
    assert answer.headers["Retry-After"]
    gateway.delete(path_of(session, processes[0]))
    ended(gateway, session, processes[0])
    assert run(gateway, session, "echo", "room again")["exit_code"] == 0
    assert len(gateway.get(path_of(session)).json()["processes"]) == 17


def test_a_restart_ends_it_and_says_why(gateway: GatewayProcess, session: str) -> None:
    process = begin(gateway, session, "sleep", "600")
    assert gateway.post(f"/v1/sessions/{session}/restart", timeout=120).status == 200
    model = get(gateway, session, process)
    assert (model["state"], model["exit_code"], model["signal"]) == ("exited", None, None)
    assert model["cause"] == "kernel_restarted"
    assert run(gateway, session, "echo", "next")["stdout"] == "next\n"


def test_the_kernels_death_ends_it_and_the_next_program_gets_a_fresh_kernel(
    gateway: GatewayProcess, session: str
) -> None:
    process = begin(gateway, session, "sleep", "600")
    died = gateway.execute(session, "import os; os._exit(1)")
    assert died["status"] == "died"
    assert ended(gateway, session, process)["cause"] == "kernel_exit"
    assert run(gateway, session, "echo", "fresh")["stdout"] == "fresh\n"
    assert gateway.execute(session, "1")["kernel"]["replaced"] is True


def test_the_sessions_end_ends_it_and_is_recorded(gateway: GatewayProcess, session: str) -> None:
    process = begin(gateway, session, "sleep", "600")
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    refused(gateway.get(path_of(session, process)), 404, "not_found")
    last = of_process(gateway, session, process)[-1]
    assert (last["type"], last["cause"]) == ("process_exited", "deleted")
    assert [event["type"] for event in gateway.recorded(session)][-1] == "session"


def test_who_leaves_does_not_end_it(gateway: GatewayProcess, session: str) -> None:
    body = {"argv": ["sh", "-c", "echo one; sleep 600"]}
    events = gateway.events("POST", path_of(session), body)
    process = next(events)["process"]
    next(events)
    events.close()  # type: ignore[attr-defined]
    time.sleep(0.3)
    assert get(gateway, session, process)["state"] == "running"


def test_a_program_keeps_its_session(start_gateway: StartGateway) -> None:
    gateway = start_gateway(cull_interval=0.05)
    gateway.post("/v1/sessions", {"session": "s", "limits": {"idle_timeout": 0.5}}, timeout=120)
    process = begin(gateway, "s", "sleep", "2")
    assert ended(gateway, "s", process)["exit_code"] == 0
    until(lambda: gateway.model("s")["state"] == "ended", "the session is not culled")
    assert gateway.model("s")["cause"] == "idle_timeout"


def test_a_process_that_is_not_there(gateway: GatewayProcess, session: str) -> None:
    refused(gateway.get(path_of(session)), 404, "not_found")
    gateway.execute(session, "1")
    for answer in (
        gateway.get(path_of(session, "p-unknown")),
        gateway.delete(path_of(session, "p-unknown")),
        gateway.post(path_of(session, "p-unknown", "signal"), {"signal": "SIGINT"}),
    ):
        refused(answer, 404, "not_found")


@pytest.fixture
def secretive(start_gateway: StartGateway, tmp_path: Path) -> GatewayProcess:
    data = tmp_path / "secretive"
    done = cellgate("secret", "set", "API_KEY", "--user", "default", f"--data-dir={data}", stdin=f"{KEY}\n")
    assert done.returncode == 0, done.stderr
    return start_gateway(data)


def test_secrets_are_masked_and_the_record_is_valid(secretive: GatewayProcess) -> None:
    gateway = secretive
    gateway.post("/v1/sessions", {"session": "s", "secrets": ["API_KEY"]}, timeout=120)
    script = "import os, time\nfor c in os.environ['API_KEY']: os.write(1, c.encode()); time.sleep(0.02)"
    model = run(gateway, "s", "python3", "-c", script)
    assert model["stdout"] == "[secret API_KEY]"
    shown = run(gateway, "s", "echo", KEY, env={"MINE": "value-of-mine"})
    assert shown["stdout"] == "[secret API_KEY]\n"
    assert shown["argv"] == ["echo", "[secret API_KEY]"]
    recorded = str(gateway.recorded("s"))
    assert KEY not in recorded
    assert "value-of-mine" not in recorded
    assert gateway.get("/v1/sessions/s/audit/verify").json()["valid"] is True
    notebook = gateway.get("/v1/sessions/s/notebook")
    assert notebook.json()["metadata"]["cellgate"]["processes"] == 2
    assert notebook.json()["cells"] == []
    assert gateway.get("/v1/sessions/s/bundle").status == 200
    data = gateway.data_dir
    gateway.stop()
    assert all(each.valid for each in check_record(data / RECORD))


def test_a_gateway_that_stops_ends_its_programs(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    process = begin(gateway, "s", "sleep", "600")
    data = gateway.data_dir
    gateway.stop()
    again = start_gateway(data)
    last = of_process(again, "s", process)[-1]
    assert (last["type"], last["cause"]) == ("process_exited", "gateway_shutdown")
