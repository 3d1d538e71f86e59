"""Cells that run and wait, and a minute's requests, of one user at three gateways: they share each quota."""

from __future__ import annotations

from pathlib import Path

from tests.gateway.cluster.test_nodes import SHORT, StartNode, start_node
from tests.support.nodes import pair_of
from tests.support.server import GatewayProcess, until

__all__ = ["start_node"]

RUNS = "import time\nopen('began', 'w').close()\ntime.sleep(1000)"


def limits(folder: Path, text: str) -> Path:
    """The file of quotas of all gateways."""
    file = folder / "quotas.toml"
    file.write_text(f"[roles.admin]\n{text}\n")
    return file


def used(node: GatewayProcess, quota: str) -> object:
    """What a gateway shows as the use of a quota."""
    return node.get("/v1/me").json()["quotas"][quota]["used"]


def began(nodes: list[GatewayProcess], sessions: int) -> int:
    """The number of cells that have begun in sessions a0, a1 and so on of these gateways."""
    names = [(node, f"{node.data_dir.name}-{number}") for node in nodes for number in range(sessions)]
    return sum((node.workspace(name) / "began").exists() for node, name in names)


def test_cells_of_all_nodes_share_the_turns(start_node: StartNode, tmp_path: Path) -> None:
    """Never more run than the quota; and those of a node that is killed are the others' after its lease."""
    quotas = limits(tmp_path, "running = 3\nqueued = 7")
    nodes = [start_node(tmp_path / name, quotas=quotas, pool_size=0, **SHORT) for name in ("k", "l", "m")]
    for number in range(3):
        for node in nodes:
            session = f"{node.data_dir.name}-{number}"
            node.post("/v1/sessions", {"session": session})
            node.submit(session, RUNS, timeout=900)
    for node in nodes:
        until(lambda node=node: (used(node, "running"), used(node, "queued")) == (3, 6), "not all are known")
    assert began(nodes, 3) == 3
    first, second, third = nodes
    everybody = third.get("/v1/usage").json()["principals"]
    assert [each["quotas"]["running"]["used"] for each in everybody] == [3]
    second.submit("l-0", "1")
    until(lambda: used(third, "queued") == 7, "it is not known")
    refused = third.post("/v1/sessions/m-0/execute", {"code": "1", "wait": False})
    assert (refused.status, refused.reason, refused.json()["used"]) == (429, "quota_exceeded", 7)
    gone = began([first], 3)
    assert gone >= 1, "it was asked first"
    first.kill()
    until(lambda: began([second, third], 3) == 3, "its turns are not the others'")
    for node in (second, third):
        until(lambda node=node: (used(node, "running"), used(node, "queued")) == (3, 4), "it still counts")
    assert began([second, third], 3) == 3


def test_the_only_turn_is_where_a_cell_waits_for_it(start_node: StartNode, tmp_path: Path) -> None:
    quotas = limits(tmp_path, "running = 1")
    one, two = (start_node(quotas=quotas, **SHORT) for _ in range(2))
    for node, session in ((one, "a"), (two, "b")) * 3:
        assert node.execute(session, "6 * 7")["text"] == "42"
    held = one.hold("a")
    waiting = two.submit("b", "1")
    until(lambda: used(one, "queued") == 1, "nobody waits")
    one.answer("a", held)
    assert two.ended("b", waiting)["status"] == "ok"


def test_requests_of_all_nodes_are_at_most_the_quota(start_node: StartNode, tmp_path: Path) -> None:
    """As many as fit are let in, wherever they come; what one holds and does not use, within a beat."""
    quotas = limits(tmp_path, "requests_per_minute = 60")
    nodes = [start_node(quotas=quotas, beat=0.3) for _ in range(3)]
    let_in = sum(node.get("/v1/info").status == 200 for _ in range(30) for node in nodes)
    assert let_in <= 60

    def more() -> int:
        return sum(node.get("/v1/info").status == 200 for node in nodes)

    def all_are_let_in() -> bool:
        nonlocal let_in
        let_in += more()
        return let_in >= 60

    until(all_are_let_in, "some are not let in")
    assert let_in == 60
    assert more() == 0
    refused = nodes[2].get("/v1/info")
    assert (refused.status, refused.reason, refused.json()["limit"]) == (429, "quota_exceeded", 60)


def test_a_request_that_is_handed_on_counts_once(tmp_path: Path) -> None:
    quotas = limits(tmp_path, "requests_per_minute = 1000\nbytes_per_minute = '3m'\nrunning = 2")
    with pair_of(tmp_path, quotas=quotas) as pair:
        pair.one.execute("s", "1")
        for _ in range(5):
            assert pair.other.get("/v1/sessions/s").status == 200
        assert pair.other.request("PUT", "/v1/sessions/s/files/a", b"x" * 1_000_000).status in {200, 201}
        sent = 7

        def counted() -> bool:
            nonlocal sent
            sent += 1
            return used(pair.one, "requests_per_minute") == sent

        until(counted, "they were counted otherwise")
        passed = pair.one.get("/v1/me").json()["quotas"]["bytes_per_minute"]["used"]
        # A twentieth of a megabyte is forgotten in each second.
        assert 500_000 < passed < 1_100_000
        assert pair.other.execute("s", "6 * 7")["text"] == "42"
