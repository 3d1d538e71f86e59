"""Gateways whose PostgreSQL goes back to an older state while they serve, as users see it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conftest import StartGateway
from tests.gateway.cluster.test_nodes import is_valid
from tests.support.free_ports import free_port
from tests.support.nodes import cluster_key
from tests.support.postgresql import PostgresServer
from tests.support.server import PATIENCE, GatewayProcess, until

SET_BACK = "record_set_back"
AGAIN = {"Idempotency-Key": "again"}


def wait_until_ready(*nodes: GatewayProcess) -> None:
    """Wait until each gateway has noticed the restart of the server, by a session that only this uses."""
    for node in nodes:
        path = f"/v1/sessions/ready-{node.process.pid}/execute"
        until(lambda: node.post(path, {"code": "1"}).status == 200, "the gateway does not go on")  # noqa: B023


def marks(node: GatewayProcess, session: str) -> list[int]:
    """The numbers of the events by which a session's record says that it lacks some."""
    page = node.get(f"/v1/sessions/{session}/events")
    if page.status != 200:
        return []  # the gateway does not know yet
    found = [event for event in page.json()["events"] if event["type"] == "session"]
    return [event["seq"] for event in found if (event["state"], event["cause"]) == ("ended", SET_BACK)]


def check_goes_on(node: GatewayProcess, session: str) -> None:
    """Check that a session lacks nothing: neither its variables nor its record."""
    result = node.execute(session, "x")
    assert (result["kernel"]["replaced"], result["text"]) == (False, "1"), session
    assert marks(node, session) == []


def check_told(node: GatewayProcess, session: str) -> None:
    """Check that the next cell of a session tells the loss, once, and that its record does, too."""
    result = node.execute(session, "'x' in globals()")
    assert (result["kernel"]["replaced"], result["kernel"].get("cause")) == (True, SET_BACK), session
    assert result["outputs"][0]["data"]["text/plain"] == "False"
    assert "The record lacks the last cells before this one" in result["text"]
    assert "The record lacks the last cells" in node.get(f"/v1/sessions/{session}/notebook").body.decode()
    assert node.execute(session, "1")["kernel"]["replaced"] is False
    assert len(marks(node, session)) == 1, session
    events = node.recorded(session)
    assert [event["seq"] for event in events] == [*range(1, len(events) + 1)]
    found = node.get(f"/v1/sessions/{session}/executions").json()["executions"]
    assert [each["number"] for each in found] == [*range(1, len(found) + 1)]
    ends = Counter(event["execution"] for event in events if event["type"] == "finished")
    assert ends == Counter({each["execution"]: 1 for each in found})


@contextmanager
def following(node: GatewayProcess, session: str, after: int) -> Iterator[list[str]]:
    """Follow a session until the stream ends; at the end of the block the list has the reasons of its end."""
    reasons: list[str] = []
    begun = threading.Event()

    def follow() -> None:
        for event in node.events("GET", f"/v1/sessions/{session}/events?after={after}"):
            begun.set()
            if event["type"] == "problem":
                reasons.append(event["reason"])

    follower = threading.Thread(target=follow)
    follower.start()
    assert begun.wait(PATIENCE)
    yield reasons
    follower.join(PATIENCE)
    assert not follower.is_alive()


def test_sessions_whose_last_events_a_restored_copy_lacks_say_so(
    start_gateway: StartGateway, postgres_server: PostgresServer, database: str, tmp_path: Path
) -> None:
    """Whichever gateway is asked; sessions that lack nothing go on, and nothing follows on an older head."""
    options = {"cluster": database, "cluster_key": cluster_key(tmp_path), "lease": 4, "beat": 0.3}

    def start(data_dir: Path | None = None, port: int = 0) -> GatewayProcess:
        port = port or free_port()
        return start_gateway(data_dir, advertise=f"http://127.0.0.1:{port}", port=port, **options)

    one, two = start(), start()
    for session in ("kept", "quiet", "again"):
        one.execute(session, "x = 1")
    two.execute("others", "x = 1")
    running = one.hold("runs", "print('got', input())")
    assert one.delete("/v1/sessions/again").status == 204
    assert two.stop() == 0
    postgres_server.keep_copy()
    wait_until_ready(one)
    # Its second incarnation is not in the copy.
    two = start(two.data_dir, int(two.url.rpartition(":")[2]))
    lost = one.post("/v1/sessions/kept/execute", {"code": "x += 1; x"}, headers=AGAIN).json()
    assert (lost["status"], lost["text"]) == ("ok", "2")
    for node, session in ((one, "new"), (one, "again"), (two, "others"), (two, "newer")):
        node.execute(session, "x = 1")
    last = one.recorded("kept")[-1]["seq"]

    with following(one, "kept", last - 1) as reasons:
        postgres_server.put_copy_back()
    assert reasons == [SET_BACK]
    wait_until_ready(one, two)
    for node, session in ((one, "kept"), (one, "new"), (one, "again"), (two, "others"), (two, "newer")):
        until(lambda: marks(node, session), f"the record of {session} does not tell")  # noqa: B023
    stream = {"Accept": "application/x-ndjson"}
    behind = one.get(f"/v1/sessions/kept/events?after={last + 100}", headers=stream)
    assert (behind.status, behind.reason) == (503, SET_BACK)
    assert one.get(f"/v1/sessions/kept/executions/{lost['execution']}").status == 404
    for node, session in ((two, "kept"), (two, "new"), (two, "again"), (one, "others"), (one, "newer")):
        check_told(node, session)
    again = two.post("/v1/sessions/kept/execute", {"code": "x += 1; x"}, headers=AGAIN).json()
    assert (again["status"], again["execution"] != lost["execution"]) == ("error", True)
    one.answer("runs", running, "it")
    assert one.ended("runs", running)["status"] == "ok"
    assert one.printed("runs", "got it")
    check_goes_on(one, "quiet")
    assert [node.get("/readyz").json().get("sessions_not_recorded", 0) for node in (one, two)] == [0, 0]
    assert is_valid(database)


def test_the_only_gateway_of_a_record_goes_on_after_a_restore(
    start_gateway: StartGateway, postgres_server: PostgresServer, database: str
) -> None:
    """Also with sessions that have ended since the copy, in which they had not."""
    gateway = start_gateway(record=database)
    for session in ("kept", "quiet", "over"):
        gateway.execute(session, "x = 1")
    postgres_server.keep_copy()
    wait_until_ready(gateway)
    for session in ("kept", "new"):
        gateway.execute(session, "x = 1")
    assert gateway.delete("/v1/sessions/over").status == 204
    postgres_server.put_copy_back()
    wait_until_ready(gateway)
    for session in ("kept", "new"):
        until(lambda: marks(gateway, session), f"the record of {session} does not tell")  # noqa: B023
    for session in ("kept", "new", "over"):
        check_told(gateway, session)
    check_goes_on(gateway, "quiet")
    assert is_valid(database)
