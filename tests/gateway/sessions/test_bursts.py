"""Many sessions at once on forked kernels, through HTTP: each in its turn, and nothing is left of them."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellgate_kernels.limits.cgroups import hierarchies
from tests.conftest import StartGateway
from tests.gateway.kernels.test_fork_server import cgroups
from tests.support.server import GatewayProcess, until

__all__ = ["cgroups"]  # a fixture

SESSIONS = 50


@pytest.fixture
def data() -> Iterator[Path]:
    """A data folder whose path is short enough for the kernels' sockets to be in it."""
    with tempfile.TemporaryDirectory(prefix="cg-") as folder:
        yield Path(folder) / "data"


def pool_of(gateway: GatewayProcess) -> dict[str, int]:
    pool: dict[str, int] = gateway.get("/v1/info").json()["pool"]
    return pool


def groups(gateway: GatewayProcess) -> list[Path]:
    """The folders in which the gateway makes the cgroups of kernels."""
    name = hashlib.sha256(os.fsencode(gateway.data_dir.resolve())).hexdigest()[:16]
    own = Path(f"/proc/{gateway.process.pid}/cgroup").read_text()
    found = hierarchies(own, Path("/proc/self/mountinfo").read_text())
    return [each.folder / f"cellgate-{name}" for each in found if each.controllers]


def left(gateway: GatewayProcess, parents: list[Path]) -> dict[str, Any]:
    """What there is of kernels: the gateway's descendants, its descriptors, cgroups and folders."""
    process = psutil.Process(gateway.process.pid)
    opened = []
    for link in Path(f"/proc/{process.pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # it was closed just now
            opened.append(link.readlink().name)
    folders = [folder for name in ("run", "workspaces") for folder in (gateway.data_dir / name).iterdir()]
    return {
        "processes": {child.pid for child in process.children(recursive=True)},
        # Files of the record are opened as they are needed, and some user namespaces are kept (kernel_uids).
        "descriptors": len([name for name in opened if name.startswith(("socket:", "pipe:", "anon_inode:"))]),
        "cgroups": [folder for parent in parents for folder in parent.glob("*/")],
        "folders": [folder for folder in folders if not folder.name.startswith("session-")],
    }


@pytest.mark.nightly
def test_fifty_sessions_at_once_are_served_in_order_of_arrival(
    sandbox: None, cgroups: None, data: Path, start_gateway: StartGateway
) -> None:
    gateway = start_gateway(
        data,
        backend="sandbox",
        concurrent_starts=1,  # so that the order in which sessions begin is that of their turns
        memory="256m",
        max_kernels=SESSIONS,
        claim_timeout=120,
    )
    parents = groups(gateway)
    gateway.execute("first", "1")
    gateway.delete("/v1/sessions/first")
    until(lambda: left(gateway, parents)["folders"] == [], "the first session leaves folders")
    before = left(gateway, parents)
    descriptors = before.pop("descriptors")  # with those of connections of a moment ago

    names = [f"burst-{number}" for number in range(SESSIONS)]
    with ThreadPoolExecutor(SESSIONS) as threads:
        answers = []
        for number, name in enumerate(names):
            answers.append(threads.submit(gateway.post, "/v1/sessions", {"session": name}, timeout=200))
            until(
                lambda: pool_of(gateway)["waiting"] + pool_of(gateway)["in_use"] > number,  # noqa: B023
                "the request does not arrive",
            )
        assert [answer.result(200).status for answer in answers] == [201] * SESSIONS
    assert gateway.get("/v1/info").json()["fork_server"]["python3"] == "fork"
    models = [gateway.model(name) for name in names]
    began = [model["created_at"] for model in models]
    assert began == sorted(began)
    assert len({model["kernel_id"] for model in models}) == SESSIONS
    # Each has a cgroup, so none was started cold.
    assert [len(list(parent.glob("*/"))) for parent in parents] == [SESSIONS] * len(parents)
    with ThreadPoolExecutor(4) as threads:
        results = list(threads.map(lambda name: gateway.execute(name, f"{name!r}"), names))
        assert [result["text"] for result in results] == [f"{name!r}" for name in names]
        ended = list(threads.map(lambda name: gateway.delete(f"/v1/sessions/{name}").status, names))
        assert ended == [204] * SESSIONS

    def as_before() -> bool:
        now = left(gateway, parents)
        return now.pop("descriptors") <= descriptors and now == before

    until(as_before, "something of a kernel is left", 60)
    assert gateway.stop() == 0
    assert [parent for parent in parents if parent.exists()] == []
