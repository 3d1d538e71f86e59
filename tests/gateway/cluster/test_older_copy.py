"""Gateways whose PostgreSQL goes back to an older state while they serve, as users see it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import StartGateway
from tests.gateway.cluster.test_nodes import is_valid
from tests.support.free_ports import free_port
from tests.support.nodes import OWNER, cluster_key
from tests.support.postgresql import PostgresServer, postgresql
from tests.support.server import PATIENCE, GatewayProcess, until

SET_BACK = "record_set_back"


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server that no other test has."""
    with postgresql() as found:
        yield found


def is_ready(node: GatewayProcess) -> bool:
    return node.get("/readyz").status == 200


def marks(node: GatewayProcess, session: str) -> list[int]:
    """The numbers of the events by which a record says that it lacks some."""
    found = [event for event in node.recorded(session) if event["type"] == "session"]
    return [event["seq"] for event in found if (event["state"], event["cause"]) == ("ended", SET_BACK)]


def check_told(node: GatewayProcess, session: str) -> None:
    """Check that the next cell of a session is told of the loss, once, and that its record says so."""
    result = node.execute(session, "'x' in globals()")
    assert (result["kernel"]["replaced"], result["kernel"].get("cause")) == (True, SET_BACK), session
    assert result["text"] == "False"
    assert node.execute(session, "1")["kernel"]["replaced"] is False
    assert len(marks(node, session)) == 1, session
    events = node.recorded(session)
    assert [event["seq"] for event in events] == [*range(1, len(events) + 1)]
    found = node.get(f"/v1/sessions/{session}/executions").json()["executions"]
    assert [each["number"] for each in found] == [*range(1, len(found) + 1)]
    ends = Counter(event["execution"] for event in events if event["type"] == "finished")
    assert ends == Counter({each["execution"]: 1 for each in found})


def test_sessions_whose_last_events_a_restored_copy_lacks_say_so(
    start_gateway: StartGateway, server: PostgresServer, tmp_path: Path
) -> None:
    """Whichever gateway is asked; sessions that lack nothing go on, and nothing follows on an older head."""
    database, key = server.database(), cluster_key(tmp_path)

    def start(data_dir: Path | None = None, port: int = 0) -> GatewayProcess:
        port = port or free_port()
        where = f"http://127.0.0.1:{port}"
        return start_gateway(
            data_dir, cluster=database, cluster_key=key, advertise=where, port=port, lease=4, beat=0.3
        )

    one, two = start(), start()
    for session in ("kept", "quiet", "again"):
        one.execute(session, "x = 1")
    two.execute("others", "x = 1")
    running = one.hold("runs", "print('got', input())")
    assert one.delete("/v1/sessions/again").status == 204

    server.keep_copy()
    for node in (one, two):
        until(lambda node=node: is_ready(node), "the gateway does not go on")  # type: ignore[misc]
    assert two.stop() == 0
    two = start(two.data_dir, int(two.url.rpartition(":")[2]))
    lost = one.execute("kept", "x += 1; x", idempotency_key="k")
    assert (lost["status"], lost["text"]) == ("ok", "2")
    for session in ("new", "again"):
        one.execute(session, "x = 1")
    two.execute("others", "x = 1")
    two.execute("newer", "x = 1")
    last = one.recorded("kept")[-1]["seq"]
    problems: list[dict[str, Any]] = []
    following = threading.Event()

    def follow() -> None:
        for event in one.events("GET", f"/v1/sessions/kept/events?after={last - 1}"):
            following.set()
            if event["type"] == "problem":
                problems.append(event)

    follower = threading.Thread(target=follow)
    follower.start()
    assert following.wait(PATIENCE)

    server.put_copy_back()
    follower.join(PATIENCE)
    assert [problem["reason"] for problem in problems] == [SET_BACK]
    for node in (one, two):
        until(lambda node=node: is_ready(node), "the gateway does not go on")  # type: ignore[misc]
    for node, sessions in ((one, ("kept", "new", "again")), (two, ("others", "newer"))):
        for session in sessions:
            until(lambda: marks(node, session) != [], f"{session} is not marked")  # noqa: B023
    behind = one.get(f"/v1/sessions/kept/events?after={last + 100}")
    assert (behind.status, behind.reason) == (503, SET_BACK)
    assert one.get(f"/v1/sessions/kept/executions/{lost['execution']}").status == 404
    again = two.execute("kept", "'x' in globals()", idempotency_key="k")
    assert (again["execution"] != lost["execution"], again["text"]) == (True, "False")
    assert (again["kernel"]["replaced"], again["kernel"]["cause"]) == (True, SET_BACK)
    assert len(marks(one, "kept")) == 1
    for node, session in ((two, "new"), (two, "again"), (one, "newer")):
        check_told(node, session)
    result = one.execute("others", "1")
    assert (result["kernel"]["replaced"], result["kernel"]["cause"]) == (True, SET_BACK)
    one.answer("runs", running, "it")
    assert one.ended("runs", running)["status"] == "ok"
    assert one.printed("runs", "got it")
    result = one.execute("quiet", "x")
    assert (result["kernel"]["replaced"], result["text"]) == (False, "1")
    assert marks(one, "quiet") == []
    notebook = one.get("/v1/sessions/kept/export.ipynb").body.decode()
    assert SET_BACK in notebook
    assert is_valid(database)
    assert one.get("/healthz").headers[OWNER] != two.get("/healthz").headers[OWNER]


def test_the_only_gateway_of_a_record_goes_on_after_a_restore(
    start_gateway: StartGateway, server: PostgresServer
) -> None:
    database = server.database()
    gateway = start_gateway(record=database)
    for session in ("kept", "quiet", "over"):
        gateway.execute(session, "x = 1")
    server.keep_copy()
    until(lambda: is_ready(gateway), "the gateway does not go on")
    for session in ("kept", "new"):
        gateway.execute(session, "x = 2")
    assert gateway.delete("/v1/sessions/over").status == 204
    server.put_copy_back()
    until(lambda: is_ready(gateway), "the gateway does not go on")
    for session in ("kept", "new", "over"):
        check_told(gateway, session)
    assert gateway.execute("quiet", "x")["kernel"]["replaced"] is False
    assert is_valid(database)
