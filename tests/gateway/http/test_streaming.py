"""Events as they happen: NDJSON, SSE and pages; from the record, then live; for any number of readers."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import StartGateway
from tests.support.server import GatewayProcess, until

FLOOD = "for n in range(300): print(f'{n}:' + 'x' * 50_000, flush=True)"


def sse(answer: http.client.HTTPResponse) -> Iterator[dict[str, str]]:
    """Server-Sent Events as their fields; a comment is one with the key `comment`."""
    fields: dict[str, str] = {}
    for line in answer:
        name, _, value = line.decode().rstrip("\n").partition(": ")
        if name:
            fields[name] = value
        elif value:
            fields["comment"] = value
        elif fields:
            yield fields
            fields = {}


def follow(gateway: GatewayProcess, session: str, after: int = 0) -> Iterator[dict[str, Any]]:
    """The session's events from the record, then live."""
    return gateway.events("GET", f"/v1/sessions/{session}/events?after={after}")


# ---- of one execution


def test_events_come_while_the_cell_runs(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session})
    workspace = gateway.workspace(session)
    code = "\n".join(
        [
            "import os, time",
            "for n in range(3):",
            "    print(n, end='', flush=True)",
            "    while not os.path.exists(f'go-{n}'): time.sleep(0.005)",
        ]
    )
    events = gateway.events("POST", f"/v1/sessions/{session}/execute", {"code": code})
    assert [next(events)["type"], next(events)["type"]] == ["queued", "started"]
    for number in range(3):
        event = next(events)
        assert (event["type"], event["name"], event["text"]) == ("stream", "stdout", str(number))
        (workspace / f"go-{number}").touch()
    finished = next(event for event in events if event["type"] != "file")
    assert (finished["type"], finished["status"]) == ("finished", "ok")
    assert next(events, None) is None


def test_a_stream_has_every_kind_of_event_with_its_fields(gateway: GatewayProcess, session: str) -> None:
    code = "\n".join(
        [
            "from IPython.display import clear_output, display",
            "print('out', end='')",
            "shown = display({'text/plain': 'a', 'text/html': '<b>a</b>'}, raw=True, display_id='d')",
            "shown.update({'text/plain': 'b'}, raw=True)",
            "clear_output(wait=True)",
            "1 / 0",
        ]
    )
    events = list(gateway.events("POST", f"/v1/sessions/{session}/execute", {"code": code}))
    by_type = {event["type"]: event for event in events}
    assert [event["type"] for event in events] == [
        "queued",
        "started",
        "stream",
        "display_data",
        "update_display_data",
        "clear_output",
        "error",
        "finished",
    ]
    assert (by_type["queued"]["position"], by_type["started"]["code"]) == (0, code)
    assert by_type["display_data"]["data"] == {"text/plain": "a", "text/html": "<b>a</b>"}
    assert by_type["display_data"]["display_id"] == by_type["update_display_data"]["display_id"] == "d"
    assert by_type["clear_output"]["wait"] is True
    assert by_type["error"]["ename"] == "ZeroDivisionError"
    finished = by_type["finished"]
    assert (finished["status"], finished["error"]["ename"]) == ("error", "ZeroDivisionError")
    assert "outputs" not in finished
    result = gateway.result(session, finished["execution"])
    assert {name: result[name] for name in finished if name in result} == {
        name: value for name, value in finished.items() if name in result
    }
    assert len({event["execution"] for event in events}) == 1
    assert events == [e for e in gateway.recorded(session) if e["execution"] is not None]


def test_a_stream_ends_with_its_execution_and_shows_no_other(gateway: GatewayProcess, session: str) -> None:
    held = gateway.hold(session)
    events = gateway.events("POST", f"/v1/sessions/{session}/execute", {"code": "print('mine')"})
    mine = next(events)
    assert (mine["type"], mine["position"]) == ("queued", 1)
    other = gateway.submit(session, "print('other')")
    gateway.answer(session, held)
    rest = list(events)
    assert {event["execution"] for event in rest} == {mine["execution"]}
    assert rest[-1]["type"] == "finished"
    assert gateway.ended(session, other)["stdout"] == "other\n"


def test_server_sent_events_have_an_id_a_name_and_data(gateway: GatewayProcess, session: str) -> None:
    path = f"/v1/sessions/{session}/execute"
    with gateway.stream(
        "POST", path, {"code": "print('a\\nb', end='')"}, accept="text/event-stream"
    ) as answer:
        assert answer.headers["Content-Type"] == "text/event-stream; charset=utf-8"
        events = list(sse(answer))
    assert [event["event"] for event in events] == ["queued", "started", "stream", "finished"]
    data = [json.loads(event["data"]) for event in events]
    assert [event["id"] for event in events] == [str(each["seq"]) for each in data]
    assert [event["event"] for event in events] == [each["type"] for each in data]
    assert data == gateway.recorded(session)[1:]


@pytest.mark.parametrize(
    ("accept", "kind"),
    [
        ("application/x-ndjson", "application/x-ndjson"),
        ("application/x-ndjson; q=0.9, */*", "application/x-ndjson"),
        ("text/event-stream", "text/event-stream"),
        ("*/*", "application/json"),
        ("text/html, application/json", "application/json"),
    ],
)
def test_the_accept_header_chooses_the_form(
    gateway: GatewayProcess, session: str, accept: str, kind: str
) -> None:
    answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": "1"}, headers={"Accept": accept})
    assert (answer.status, answer.headers["Content-Type"].partition(";")[0]) == (200, kind), answer.body


# ---- of a session


def test_seq_rises_by_one_over_all_executions(gateway: GatewayProcess, session: str) -> None:
    for code in ("print(1)", "1 / 0", "2"):
        gateway.execute(session, code)
    gateway.post(f"/v1/sessions/{session}/restart")
    gateway.execute(session, "3")
    events = gateway.recorded(session)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert {event["session"] for event in events} == {session}
    times = [event["at"] for event in events]
    assert times == sorted(times)


def test_events_are_replayed_after_a_seq_and_then_followed(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "print('before')")
    recorded = gateway.recorded(session)
    events = follow(gateway, session, after=2)
    assert [next(events) for _ in recorded[2:]] == recorded[2:]
    execution = gateway.execute(session, "print('after', end='')")["execution"]
    live = [next(events) for _ in range(4)]
    assert [event["type"] for event in live] == ["queued", "started", "stream", "finished"]
    assert {event["execution"] for event in live} == {execution}
    assert live == gateway.recorded(session, after=recorded[-1]["seq"])


def test_a_reader_that_comes_back_goes_on_where_it_was(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "print('a')")
    path = f"/v1/sessions/{session}/events"
    with gateway.stream("GET", path, accept="text/event-stream") as answer:
        first = next(sse(answer))
    with gateway.stream("GET", path, accept="text/event-stream", **{"Last-Event-ID": first["id"]}) as answer:
        second = next(sse(answer))
    assert (first["id"], second["id"]) == ("1", "2")
    # A browser's EventSource sends the address of its first connection with it.
    with gateway.stream(
        "GET", f"{path}?after=0", accept="text/event-stream", **{"Last-Event-ID": "1"}
    ) as answer:
        assert next(sse(answer)) == second
    with gateway.stream(
        "GET", f"{path}?after=1", accept="text/event-stream", **{"Last-Event-ID": "0"}
    ) as answer:
        assert next(sse(answer)) == second
    assert json.loads(second["data"]) == gateway.recorded(session)[1]


def test_pages_of_events_have_all_of_them(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "for n in range(700): print(n, flush=True)")
    path = f"/v1/sessions/{session}/events"
    first = gateway.get(path).json()
    assert first["next"] == first["events"][-1]["seq"] < gateway.recorded(session)[-1]["seq"]
    events = gateway.recorded(session)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    text = "".join(event["text"] for event in events if event["type"] == "stream")
    assert text.split() == [str(number) for number in range(700)]
    assert gateway.get(f"{path}?after={len(events)}").json() == {"events": [], "next": None}
    assert gateway.get(f"{path}?after={len(events) + 5}").json() == {"events": [], "next": None}


def test_the_end_of_a_session_ends_its_streams(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    events = follow(gateway, session)
    assert next(events)["type"] == "session"
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    last = list(events)[-1]
    assert (last["type"], last["state"], last["cause"]) == ("session", "ended", "deleted")
    assert list(follow(gateway, session)) == gateway.recorded(session)


def test_a_quiet_stream_shows_signs_of_life(strict: GatewayProcess, strict_session: str) -> None:
    strict.post("/v1/sessions", {"session": strict_session})
    path = f"/v1/sessions/{strict_session}/events?after=1"
    with strict.stream("GET", path) as answer:
        assert [json.loads(answer.readline()) for _ in range(2)] == [{"type": "keepalive"}] * 2
        strict.execute(strict_session, "1")
        types = (json.loads(line)["type"] for line in answer)
        events = (kind for kind in types if kind != "keepalive")
        assert [next(events), next(events)] == ["queued", "started"]
    with strict.stream("GET", path.replace("=1", "=5"), accept="text/event-stream") as answer:
        assert answer.readline() == b": keep-alive\n"
        assert answer.readline() == b"\n"


# ---- many readers


def test_all_readers_see_the_same(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session})
    seen: list[list[dict[str, Any]]] = [[], [], []]

    def read(index: int) -> None:
        seen[index].extend(follow(gateway, session))

    threads = [threading.Thread(target=read, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    until(lambda: all(seen), "the readers see nothing")
    gateway.execute(session, "for n in range(600): print(n, flush=True)")
    gateway.delete(f"/v1/sessions/{session}")
    for thread in threads:
        thread.join(60)
    recorded = gateway.recorded(session)
    assert seen[0] == recorded
    assert seen[1] == seen[2] == recorded


def test_a_reader_that_does_not_read_holds_nobody_up(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session, "limits": {"cell_timeout": 60}})
    path = f"/v1/sessions/{session}/events"
    with gateway.stream("GET", path) as lazy:
        readable = follow(gateway, session)
        assert next(readable)["type"] == "session"
        for number in range(2):
            result = gateway.execute(session, FLOOD if number == 0 else "'next'", "?max_text=0")
            assert result["status"] == "ok"
            if number == 0:
                whole = result["stdout"]
        text = ""
        for event in readable:
            text += event.get("text", "")
            if event["type"] == "execute_result":
                break
        assert text == whole
        assert len(text) > 10_000_000
        late = "".join(event.get("text", "") for event in _until_result(lazy))
    assert late == whole


def _until_result(answer: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    for line in answer:
        event = json.loads(line)
        yield event
        if event["type"] == "execute_result":
            return


# ---- durability


def test_what_was_seen_to_finish_is_in_the_record_after_a_crash(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    gateway.execute("s", "x = 1")
    held = None
    for event in gateway.events("POST", "/v1/sessions/s/execute", {"code": "print('seen'); x"}):
        if event["type"] == "finished":
            gateway.kill()
            held = event["execution"]
            break
    assert held is not None
    gateway = start_gateway(gateway.data_dir)
    result = gateway.result("s", held)
    assert (result["status"], result["text"]) == ("ok", "seen\n1")
    model = gateway.model("s")
    assert (model["state"], model["cause"], model["kernel_id"]) == ("ended", "gateway_restart", None)
    cells = gateway.get("/v1/sessions/s/notebook").json()["cells"]
    assert [cell["execution_count"] for cell in cells] == [1, 2]
    before = gateway.recorded("s")
    assert gateway.execute("s", "'x' in globals()")["text"] == "False"
    after = gateway.recorded("s")
    assert after[: len(before)] == before
    assert [event["seq"] for event in after] == list(range(1, len(after) + 1))


def test_a_crash_in_a_cell_is_told_in_the_record(start_gateway: StartGateway) -> None:
    gateway = start_gateway()
    held = gateway.hold("s", "print('so far'); open('file.txt', 'w').write('kept'); input()")
    waiting = gateway.submit("s", "1")
    events = follow(gateway, "s")
    assert next(event for event in events if event["type"] == "input_request")
    until(lambda: gateway.printed("s", "so far\n"), "its output is not there")
    gateway.kill()
    gateway = start_gateway(gateway.data_dir)
    running, queued = gateway.result("s", held), gateway.result("s", waiting)
    assert (running["status"], running["cause"]) == ("died", "gateway_restart")
    assert running["stdout"] == "so far\n"
    assert (queued["status"], queued["cause"]) == ("died", "gateway_restart")
    assert gateway.get("/v1/sessions/s/executions").json()["executions"][0]["status"] == "died"


# ---- in line for a kernel


@pytest.fixture
def crowded(start_gateway: StartGateway) -> GatewayProcess:
    """Its only kernel is in use; whoever wants another waits for a minute."""
    gateway = start_gateway(pool_size=0, max_kernels=1, claim_timeout=60, keep_alive=0.2)
    gateway.execute("holder", "1")
    return gateway


WAITING = {"type": "keepalive", "waiting_for": "kernel", "position": 0}


def test_a_stream_tells_the_position_of_a_session_that_waits_for_its_first_kernel(
    crowded: GatewayProcess,
) -> None:
    with crowded.stream("POST", "/v1/sessions/new/execute", {"code": "1 + 1"}) as answer:
        assert answer.headers["Content-Type"] == "application/x-ndjson; charset=utf-8"
        assert json.loads(answer.readline()) == WAITING
        assert json.loads(answer.readline()) == {"type": "keepalive"}
        assert crowded.get("/v1/sessions/new").status == 404, "there is nothing yet"
        assert crowded.delete("/v1/sessions/holder").status == 204
        events = [event for line in answer if (event := json.loads(line))["type"] != "keepalive"]
    assert [event["type"] for event in events] == ["queued", "started", "execute_result", "finished"]
    assert events[-1]["status"] == "ok"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions/new/execute", {"code": "1", "timeout": 0.5}),
        ("/v1/execute", {"code": "1", "timeout": 0.5}),
    ],
)
def test_a_refusal_after_a_position_is_the_last_line(
    crowded: GatewayProcess, path: str, body: dict[str, Any]
) -> None:
    with crowded.stream("POST", path, body) as answer:
        lines = [json.loads(line) for line in answer]
    assert lines[0] == WAITING
    problem = {"type": "problem", "status": 503, "reason": "pool_exhausted"}
    assert {name: lines[-1][name] for name in problem} == problem
    refused = crowded.post(path, body)
    assert (refused.status, refused.reason) == (503, "pool_exhausted")
    assert "Retry-After" in refused.headers


def test_who_makes_a_session_may_have_its_position_first(crowded: GatewayProcess) -> None:
    with crowded.stream("POST", "/v1/sessions", {"session": "new"}) as answer:
        assert json.loads(answer.readline()) == WAITING
        assert crowded.delete("/v1/sessions/holder").status == 204
        last = [json.loads(line) for line in answer][-1]
    assert last == crowded.model("new")
    assert last["state"] == "idle"
    again = crowded.request(
        "POST", "/v1/sessions", {"session": "new"}, headers={"Accept": "application/x-ndjson"}
    )
    assert (again.status, json.loads(again.body)) == (200, last)


def test_server_sent_events_tell_the_position_as_an_event_that_browsers_ignore(
    crowded: GatewayProcess,
) -> None:
    path = "/v1/sessions/new/processes"
    with crowded.stream("POST", path, {"argv": ["true"]}, accept="text/event-stream") as answer:
        assert answer.readline() == b"event: keepalive\n"
        assert json.loads(answer.readline().removeprefix(b"data: ")) == WAITING
        assert [answer.readline() for _ in range(3)] == [b"\n", b": keep-alive\n", b"\n"]
        assert crowded.delete("/v1/sessions/holder").status == 204
        rest = answer.read().decode()
    assert "event: process_exited\n" in rest


def test_a_client_that_leaves_the_line_is_no_fault(crowded: GatewayProcess) -> None:
    with crowded.stream("POST", "/v1/sessions/new/execute", {"code": "1"}) as answer:
        assert json.loads(answer.readline()) == WAITING
    assert crowded.delete("/v1/sessions/holder").status == 204
    until(lambda: crowded.get("/v1/sessions/new").status == 200, "its session is not made")
    assert crowded.execute("new", "1")["status"] == "ok"
    assert "Traceback" not in crowded.log.read_text()
