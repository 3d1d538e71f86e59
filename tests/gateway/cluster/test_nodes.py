"""Gateways that share a record, as users and operators see them: deaths, freezes, stops and restarts."""

from __future__ import annotations

import json
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.conftest import StartGateway
from tests.support import commands
from tests.support.nodes import cluster_key
from tests.support.postgresql import PostgresServer
from tests.support.server import PATIENCE, GatewayProcess, until

FLOOD = "import time\nwhile True: print('tick', flush=True) or time.sleep(0.01)"
SHORT = {"lease": 2, "beat": 0.3}
"""The times of nodes that are to be found dead."""

StartNode = Callable[..., GatewayProcess]


@pytest.fixture
def start_node(start_gateway: StartGateway, database: str, tmp_path: Path) -> StartNode:
    """Starts gateways of one cluster, whose names for each other are one, two and so on."""
    names = iter(("one", "two", "three"))
    key = cluster_key(tmp_path)

    def start(data_dir: Path | None = None, **options: Any) -> GatewayProcess:
        advertise = options.pop("advertise", None) or url(next(names))
        return start_gateway(data_dir, cluster=database, cluster_key=key, advertise=advertise, **options)

    return start


def taken_over(node: GatewayProcess, session: str, code: str = "1") -> dict[str, Any]:
    """The result of the first cell that another node runs in a session whose owner is gone."""

    def answer() -> dict[str, Any] | None:
        found = node.post(f"/v1/sessions/{session}/execute", {"code": code}, timeout=120)
        if found.status == 503:
            assert found.reason == "owner_unreachable"
            return None
        assert found.status == 200, found.body
        result = found.json()
        assert isinstance(result, dict)
        return result

    return until(answer, "nobody takes the session over")


def url(name: str) -> str:
    """Where the other gateways of a cluster look for one, in vain: nobody hands a request on."""
    return f"http://127.0.0.1:{('one', 'two', 'three').index(name) + 1}"


def states(node: GatewayProcess) -> dict[str, str]:
    """The states of all nodes, by their addresses, as one of them sees them."""
    return {each["url"]: each["state"] for each in node.get("/v1/cluster").json()["nodes"]}


def finished(node: GatewayProcess, session: str) -> Counter[str]:
    """How often each execution has ended."""
    ends = [event["execution"] for event in node.recorded(session) if event["type"] == "finished"]
    return Counter(ends)


def is_valid(database: str) -> bool:
    """Whether the record is what it was when it was written."""
    done = commands.cellgate("verify", f"--record={database}")
    assert "Traceback" not in done.stderr
    return done.returncode == 0


def test_a_session_has_one_owner_and_goes_on_elsewhere_after_an_orderly_stop(
    start_node: StartNode, database: str
) -> None:
    """The other gateway is told where it is, and has it at once when it was stopped: nobody waits a lease."""
    one, two = start_node(), start_node()
    one.execute("s", "x = 1; open('a', 'w').write('b')")
    for method, path, body in (
        ("POST", "/v1/sessions/s/execute", {"code": "1"}),
        ("POST", "/v1/sessions", {"session": "s"}),
        ("DELETE", "/v1/sessions/s", None),
    ):
        refused = two.request(method, path, body)
        assert (refused.status, refused.reason) == (503, "owner_unreachable"), (method, path)
        assert url("one") in refused.json()["detail"]
    assert one.execute("s", "x")["kernel"]["replaced"] is False
    assert two.execute("t", "1")["status"] == "ok"
    assert one.post("/v1/sessions/t/execute", {"code": "1"}).status == 503
    nodes = {url(name): "up" for name in ("one", "two")}
    until(lambda: states(one) == states(two) == nodes, "the gateways do not see each other")
    assert one.stop() == 0
    result = two.execute("s", "import os; os.listdir()")
    assert result["kernel"]["replaced"] is True
    assert result["kernel"]["cause"] == "gateway_shutdown"
    assert result["kernel"]["files"] == "none"
    assert "[]" in result["text"]
    assert two.delete("/v1/sessions/t").status == 204
    assert is_valid(database)


def test_a_killed_nodes_sessions_go_on_elsewhere(start_node: StartNode, database: str) -> None:
    """Cells that ran or waited have died once each; whoever asks next gets a fresh kernel and the reason."""
    one, two = start_node(**SHORT), start_node(**SHORT)
    one.execute("idle", "x = 1")
    one.execute("deleted", "x = 1")
    done = one.execute("runs", "x = 2")
    runs = one.submit("runs", FLOOD)
    waits = one.submit("runs", "2")
    asks = one.hold("asks")
    until(lambda: one.printed("runs", "tick"), "nothing is printed")
    one.kill()
    for session in ("idle", "runs", "asks"):
        result = taken_over(two, session, "'x' in globals()")
        assert result["status"] == "ok"
        assert result["text"].strip().endswith("False")
        assert (result["kernel"]["replaced"], result["kernel"]["cause"]) == (True, "node_lost")
    for session, execution in (("runs", runs), ("runs", waits), ("asks", asks)):
        ended = two.result(session, execution)
        assert (ended["status"], ended["cause"]) == ("died", "node_lost")
        assert set(finished(two, session).values()) == {1}
    assert two.result("runs", done["execution"])["status"] == "ok"
    assert two.delete("/v1/sessions/deleted").status == 204
    assert (two.model("deleted")["state"], two.model("deleted")["cause"]) == ("ended", "node_lost")
    until(lambda: two.get("/v1/cluster").json()["takeovers"] == 4, "takeovers are not counted")
    assert states(two) == {url("one"): "down", url("two"): "up"}
    log = two.log.read_text()
    assert log.count("A session is taken over from the node") == 4
    assert is_valid(database)


def test_a_node_that_was_frozen_is_fenced(start_node: StartNode, database: str) -> None:
    """It ends the kernels of what others took over, and says so; it keeps what nobody asked for."""
    one, two = start_node(**SHORT), start_node(**SHORT)
    one.execute("kept", "x = 1")
    one.execute("idle", "x = 1")
    one.submit("s", FLOOD)
    until(lambda: one.printed("s", "tick"), "nothing is printed")
    kernels = {one.model(session)["kernel_id"] for session in ("s", "idle")}
    before = psutil.Process(one.process.pid).children(recursive=True)
    problems: list[dict[str, Any]] = []
    waits = one.hold("waits")
    following = threading.Event()

    def follow() -> None:
        for event in one.events("GET", "/v1/sessions/s/events?after=0"):
            following.set()
            if event["type"] == "problem":
                problems.append(event)

    def wait() -> None:
        answer = one.post("/v1/sessions/waits/execute", {"code": "1"}, timeout=PATIENCE)
        problems.append({"reason": answer.reason})

    clients = [threading.Thread(target=follow), threading.Thread(target=wait)]
    for client in clients:
        client.start()
    following.wait(PATIENCE)
    until(lambda: len(one.get("/v1/sessions/waits/executions").json()["executions"]) == 2, "it is not queued")
    one.process.send_signal(signal.SIGSTOP)
    try:
        for session in ("s", "idle", "waits"):
            assert taken_over(two, session)["kernel"]["cause"] == "node_lost"
    finally:
        one.process.send_signal(signal.SIGCONT)
    for client in clients:
        client.join(PATIENCE)
    assert [problem["reason"] for problem in problems] == ["fenced"] * 2
    assert two.result("waits", waits)["cause"] == "node_lost"

    def gone() -> bool:
        return one.get("/v1/info").json()["pool"]["in_use"] == 1

    until(gone, "the kernels of fenced sessions are still there")
    assert len(kernels) == 2
    assert sum(each.is_running() for each in before) < len(before)
    assert one.execute("kept", "x")["kernel"]["replaced"] is False
    assert one.post("/v1/sessions/s/execute", {"code": "1"}).reason == "owner_unreachable"
    assert two.execute("s", "1")["kernel"]["replaced"] is False
    assert set(finished(two, "s").values()) == {1}
    assert "Another gateway goes on with a session" in one.log.read_text()
    # It comes back once the other one has stopped, and not with the files of its first time there.
    assert two.stop() == 0
    assert one.execute("s", "1")["kernel"] | {"state": "idle"} == {
        "state": "idle",
        "replaced": True,
        "cause": "gateway_shutdown",
        "files": "none",
    }
    assert is_valid(database)


def test_on_a_disk_that_gateways_share_files_come_along(
    start_node: StartNode, database: str, tmp_path: Path
) -> None:
    """After a crash, of sessions with a running cell, idle and ended; and back after an orderly stop."""
    disk = tmp_path / "disk"
    disk.mkdir()
    options = {"workspaces_shared": disk, "cull_interval": 0.1, **SHORT}
    one, two = start_node(**options), start_node(**options)
    one.post("/v1/sessions", {"session": "ended", "limits": {"idle_timeout": 0.5}})
    for session in ("idle", "runs", "ended"):
        one.execute(session, f"open('a', 'w').write('{session}')")
    one.request("PUT", "/v1/sessions/idle/files/folder/b", b"uploaded")
    one.submit("runs", FLOOD)
    until(lambda: one.printed("runs", "tick"), "nothing is printed")
    until(lambda: one.model("ended")["state"] == "ended", "the session does not end")
    one.kill()
    until(lambda: two.get("/v1/sessions/ended/files/a").body == b"ended", "its files are not read")
    for session in ("idle", "runs", "ended"):
        result = taken_over(two, session, "open('a').read()")
        assert (result["kernel"]["files"], result["text"]) == ("kept", f"'{session}'")
    assert two.get("/v1/sessions/idle/files/folder/b").body == b"uploaded"
    one = start_node(one.data_dir, advertise=url("one"), **options)
    assert "belongs to no recorded session" not in one.log.read_text()
    assert two.stop() == 0
    result = taken_over(one, "idle", "open('folder/b').read()")
    assert (result["kernel"]["files"], result["text"]) == ("kept", "'uploaded'")
    assert len([*two.workspaces.iterdir()]) == 2
    assert is_valid(database)


def test_an_outage_of_the_database_moves_no_session(
    start_node: StartNode, postgres_server: PostgresServer, database: str
) -> None:
    """Two leases long: cells that run go on, and no end that they had is lost; nothing new begins."""
    nodes = start_node(**SHORT), start_node(**SHORT)
    running = [node.hold(f"s{number}", "print('got', input())") for number, node in enumerate(nodes)]
    postgres_server.stop()
    try:
        end = time.monotonic() + 2 * SHORT["lease"]
        for number, node in enumerate(nodes):
            node.answer(f"s{number}", running[number], "it")
            assert node.post("/v1/sessions/new/execute", {"code": "1"}).reason == "storage_error"
        time.sleep(end - time.monotonic())
    finally:
        postgres_server.start()
    for number, node in enumerate(nodes):
        session, other = f"s{number}", nodes[1 - number]
        until(lambda node=node: node.get("/readyz").status == 200, "the gateway does not go on")  # type: ignore[misc]
        assert node.ended(session, running[number])["status"] == "ok"
        assert node.printed(session, "got it")
        assert node.execute(session, "1")["kernel"]["replaced"] is False
        assert other.post(f"/v1/sessions/{session}/execute", {"code": "1"}).reason == "owner_unreachable"
        assert set(finished(node, session).values()) == {1}
    assert {node.get("/v1/cluster").json()["takeovers"] for node in nodes} == {0}
    assert is_valid(database)


def test_a_node_that_starts_again_ends_its_own_sessions_alone(start_node: StartNode, database: str) -> None:
    """Kernels of processes end with their gateway; the other gateway's cells run on."""
    one, two = start_node(), start_node()
    one.execute("mine", "x = 1")
    runs = two.hold("others", "print('got', input())")
    one.kill()
    one = start_node(one.data_dir, advertise=url("one"))
    assert one.model("mine")["state"] == "ended"
    result = one.execute("mine", "1")
    assert (result["kernel"]["replaced"], result["kernel"]["cause"]) == (True, "gateway_restart")
    assert one.post("/v1/sessions/others/execute", {"code": "1"}).status == 503
    two.answer("others", runs, "it")
    assert two.ended("others", runs)["status"] == "ok"
    assert is_valid(database)


def test_of_two_processes_with_one_name_the_elder_stops(start_node: StartNode, tmp_path: Path) -> None:
    elder = start_node(**SHORT)
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(elder.data_dir / "instance", copy)
    younger = start_node(copy, **SHORT)
    assert elder.process.wait(PATIENCE) == 1
    assert "Each gateway needs a data folder of its own" in elder.log.read_text()
    assert younger.execute("s", "1")["status"] == "ok"


def test_a_lone_gateway_and_a_cluster_keep_out_of_each_others_way(
    start_node: StartNode, start_gateway: StartGateway, database: str, tmp_path: Path
) -> None:
    def refusal(*words: str) -> str:
        done = commands.cellgate(
            "serve", "--port=0", "--backend=process", f"--data-dir={tmp_path / 'other'}", *words
        )
        assert done.returncode != 0
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    cluster = [f"--cluster={database}", "--advertise=http://three.example:8888"]
    uses = "Another gateway, or a command, uses the record"
    node = start_node()
    assert f"cluster    as {url('one')}" in node.log.read_text()
    assert uses in refusal(f"--record={database}")
    assert "--cluster has the record as well" in refusal(*cluster, "--record=postgresql://other/record")
    assert "--advertise is missing: with --cluster, give the address" in refusal(cluster[0])
    assert "--beat needs --cluster" in refusal("--beat=1")
    assert "--cluster takes a database of PostgreSQL" in refusal("--cluster=mysql://db/record", cluster[1])
    node.execute("s", "1")
    assert node.stop() == 0
    lone = start_gateway(record=database)
    assert uses in refusal(*cluster)
    assert lone.execute("s", "1")["kernel"]["cause"] == "gateway_shutdown"


def wait_for_use(node: GatewayProcess, name: str, used: int) -> None:
    """Wait until `node` knows that the node of this name, which has place for one kernel, uses so many."""

    def known() -> bool:
        nodes = {each["url"]: each for each in node.get("/v1/cluster").json()["nodes"]}
        found = nodes.get(url(name), {"capacity": 0})
        return found["capacity"] == 1 and found["used"] == used

    until(known, f"{name} does not use {used}")


def test_a_full_node_sends_new_sessions_elsewhere(start_node: StartNode) -> None:
    """As long as another one has room; a session whose files it has, and all once all are full, wait."""
    full = {"max_kernels": 1, "pool_size": 0, "claim_timeout": 60, "beat": 0.2, "cull_interval": 0.1}
    one, two = start_node(**full), start_node(**full)
    uses = partial(wait_for_use, one)
    one.post("/v1/sessions", {"session": "kept", "limits": {"idle_timeout": 0.5}})
    one.execute("kept", "open('a', 'w').write('1')")
    until(lambda: one.model("kept")["state"] == "ended", "the session does not end")
    uses("two", 0)
    assert one.get("/readyz?new=true").status == 200
    one.execute("held", "1")
    ready = one.get("/readyz?new=true")
    assert (ready.status, ready.json()["missing"]) == (503, ["room"])
    assert one.get("/readyz").status == 200
    for path in ("/v1/sessions/new/execute", "/v1/execute"):
        refused = one.post(path, {"code": "1"})
        assert (refused.status, refused.reason) == (503, "node_full")
        assert (refused.headers["Cellgate-Full"], refused.headers["Retry-After"]) == ("1", "1")
    with ThreadPoolExecutor(1) as thread:
        waiting = thread.submit(one.execute, "kept", "open('a').read()")
        uses("one", 2)
        assert one.delete("/v1/sessions/held").status == 204
        assert waiting.result(PATIENCE)["outputs"][0]["data"]["text/plain"] == "'1'"
        until(lambda: one.model("kept")["state"] == "ended", "the session does not end")
        one.execute("first", "1")
        two.execute("new", "1")
        uses("two", 1)
        waiting = thread.submit(one.execute, "second", "2")
        uses("one", 2)
        assert one.delete("/v1/sessions/first").status == 204
        assert waiting.result(PATIENCE)["status"] == "ok"


def test_kernels_of_jupyter_wait_at_a_full_node(start_node: StartNode) -> None:
    """Though another one has room: the proxy sends all such requests of a token to one node."""
    full = {"max_kernels": 1, "pool_size": 0, "claim_timeout": 60, "beat": 0.2}
    one, two = start_node(**full), start_node(**full)
    wait_for_use(one, "two", 0)
    document = {"path": "a.ipynb", "type": "notebook", "name": "", "kernel": {"name": "python3"}}
    for path, body in (("/api/kernels", {}), ("/api/sessions", document)):
        one.execute("held", "1")
        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(one.post, path, body, timeout=PATIENCE)
            wait_for_use(one, "one", 2)
            assert one.delete("/v1/sessions/held").status == 204
            made = waiting.result(PATIENCE)
        assert made.status == 201, made.body
        kernel = made.json().get("kernel", made.json())["id"]
        assert [each["id"] for each in one.get("/api/kernels").json()] == [kernel]
        assert two.get("/api/kernels").json() == []
        assert one.delete(f"/api/kernels/{kernel}").status == 204
        wait_for_use(one, "one", 0)


def test_quotas_are_for_all_nodes_together(start_node: StartNode, tmp_path: Path) -> None:
    """A node's use counts until its sessions end, or the node is gone."""
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[roles.admin]\nsessions = 3\n")
    one, two = (start_node(quotas=quotas, max_kernels=8, **SHORT) for _ in range(2))

    def sessions(node: GatewayProcess) -> object:
        return node.get("/v1/me").json()["quotas"]["sessions"]

    for node, session in ((one, "a"), (two, "b"), (one, "c")):
        node.execute(session, "1")
    assert sessions(one) == sessions(two) == {"limit": 3, "used": 3}
    for node in (one, two):
        for path in ("/v1/sessions/new/execute", "/v1/execute"):
            refused = node.post(path, {"code": "1"})
            assert (refused.status, refused.reason, refused.json()["used"]) == (403, "quota_exceeded", 3)
    assert two.get("/v1/usage").json()["principals"][0]["quotas"]["sessions"]["used"] == 3
    assert one.delete("/v1/sessions/a").status == 204
    until(lambda: sessions(two) == {"limit": 3, "used": 2}, "the end is not known")
    two.execute("d", "1")
    one.kill()
    until(lambda: sessions(two) == {"limit": 3, "used": 2}, "the dead node still counts")
    two.execute("e", "1")
    again = start_node(one.data_dir, quotas=quotas, advertise=url("one"), **SHORT)
    refused = again.post("/v1/sessions/f/execute", {"code": "1"})
    assert (refused.status, refused.json()["used"]) == (403, 3)


def test_what_is_used_at_a_node_without_quotas_counts_at_one_with_them(
    start_node: StartNode, tmp_path: Path
) -> None:
    quotas = tmp_path / "quotas.toml"
    quotas.write_text("[roles.admin]\nsessions = 1\n")
    one, two = start_node(quotas=quotas, **SHORT), start_node(**SHORT)

    def used() -> object:
        return one.get("/v1/me").json()["quotas"]["sessions"]["used"]

    for session in ("a", "b"):
        two.execute(session, "1")
    until(lambda: used() == 2, "its use is not known")
    refused = one.post("/v1/sessions/c/execute", {"code": "1"})
    assert (refused.status, refused.json()["used"]) == (403, 2)


def test_a_node_is_drained_and_removed(start_node: StartNode, database: str) -> None:
    """It goes on with what it has, tells proxies to go elsewhere, and is forgotten once it is down."""

    def node(*words: str, status: int = 0) -> str:
        done = commands.cellgate("node", *words, f"--cluster={database}")
        assert done.returncode == status, (done.stdout, done.stderr)
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    assert "There is no cluster" in node("list", status=1)
    one = start_node(beat=0.2)
    one.execute("s", "x = 1")
    name = (one.data_dir / "instance").read_text()
    assert f"{name}  up" in node("list")
    assert "is not down: stop its gateway first" in node("remove", name, status=1)
    node("drain", name)
    until(lambda: states(one) == {url("one"): "draining"}, "the gateway does not know")
    for path in ("/v1/sessions/new/execute", "/v1/execute"):
        refused = one.post(path, {"code": "1"})
        assert (refused.status, refused.reason, refused.headers["Cellgate-Full"]) == (503, "draining", "1")
    assert one.get("/readyz").json()["missing"] == ["draining"]
    assert one.execute("s", "x")["kernel"]["replaced"] is False
    assert "is not up" in node("drain", name, status=1)
    assert one.stop() == 0
    assert json.loads(node("list", "--json"))[0]["state"] == "down"
    node("remove", name)
    assert node("list") == ""
    assert "There is no node" in node("remove", name, status=1)
