"""What a client repeats after the death of what stood between it and its session's gateway is done once."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellgate.client import Gateway
from tests.support.free_ports import free_port
from tests.support.nodes import Pair, pair_of
from tests.support.proxies import haproxy, replaced, require_proxy, started
from tests.support.server import PATIENCE, TOKEN, until

UNTIL_TOLD = """
import pathlib, time
open("runs", "a").write("x")
print("begun", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.02)
print("ended")
"""
"""A cell that says when it begins, and ends when it is told so."""


@pytest.fixture
def own_pair(tmp_path: Path) -> Iterator[Pair]:
    """Two gateways of a cluster, to be killed."""
    folder = tmp_path / "pair"
    folder.mkdir()
    with pair_of(folder) as pair:
        yield pair


def end(pair: Pair, session: str) -> None:
    """Let the session's cell end."""
    assert pair.one.request("PUT", f"/v1/sessions/{session}/files/go", b"").status < 300


def runs(pair: Pair, session: str) -> bytes:
    """One letter for each time that the cell ran."""
    return pair.one.get(f"/v1/sessions/{session}/files/runs").body


def test_a_gateway_that_dies_while_it_hands_on_loses_no_cell(own_pair: Pair) -> None:
    """The same request at another gateway, with its key, gets the same execution."""
    own_pair.one.execute("s", "1")
    begun = threading.Event()
    key = {"Idempotency-Key": "once"}

    def follow() -> list[str]:
        lines = []
        path = "/v1/sessions/s/execute"
        with own_pair.other.stream("POST", path, {"code": UNTIL_TOLD}, **key) as answer:
            for line in answer:
                lines.append(json.loads(line)["type"])
                if lines[-1] == "stream":
                    begun.set()
        return lines

    with ThreadPoolExecutor(2) as threads:
        followed = threads.submit(follow)
        assert begun.wait(PATIENCE)
        own_pair.other.kill()
        assert followed.exception(PATIENCE) is not None or "finished" not in followed.result()
        path = "/v1/sessions/s/execute"
        repeated = threads.submit(own_pair.one.post, path, {"code": UNTIL_TOLD}, headers=key)
        end(own_pair, "s")
        result = repeated.result(PATIENCE).json()
    assert (result["status"], result["stdout"]) == ("ok", "begun\nended\n")
    assert runs(own_pair, "s") == b"x"
    ended = [each for each in own_pair.one.recorded("s") if each["type"] == "finished"]
    assert len(ended) == 2


def test_a_cell_outlives_the_proxy_in_front(own_pair: Pair, tmp_path: Path) -> None:
    require_proxy("haproxy")
    port = free_port()
    changes = {
        "bind :8888": f"bind 127.0.0.1:{port}",
        "gateway-1:8888": own_pair.one.host,
        "gateway-2:8888": own_pair.other.host,
        "11111111": own_pair.node(own_pair.one)[:8],
        "22222222": own_pair.node(own_pair.other)[:8],
        "    server 33333333 gateway-3:8888\n": "",
    }
    command = haproxy(tmp_path, replaced("haproxy/haproxy.cfg", changes))
    client = Gateway.sync(f"http://127.0.0.1:{port}", TOKEN, attempts=10)
    with client, ThreadPoolExecutor(1) as threads:
        with started(command, tmp_path, port):
            client.session("t").run("1")
            running = threads.submit(client.session("t").run, UNTIL_TOLD)
            until(
                lambda: own_pair.one.get("/v1/sessions/t/files/runs").status == 200, "the cell does not begin"
            )
        with started(command, tmp_path, port):
            end(own_pair, "t")
            assert running.result(PATIENCE).stdout == "begun\nended\n"
    assert runs(own_pair, "t") == b"x"
