"""A kernel that sends the worst messages: others are served, its own cell ends, and nothing fails inside."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import serving
from tests.support.attacks import ATTACKS, attack, unfinished
from tests.support.nightly import mostly_nightly
from tests.support.server import GatewayProcess


@pytest.fixture(scope="module")
def attacked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway of kernels that see no wall: a cell reaches the descriptors of its own process."""
    with serving(tmp_path_factory.mktemp("attacked") / "data") as gateway:
        yield gateway
        log = gateway.log.read_text()
        assert "Traceback" not in log
        assert "listener" not in log


AT_EACH_CHANGE = (
    "status of 28 MB of empty lists",
    "displays just not too large for the loop",
    "bytes that are no text",
    "tiny outputs without end",
    "forged questions without end",
    "forged replies and states",
    "ten thousand buffers",
)


@pytest.mark.parametrize("name", mostly_nightly(ATTACKS, AT_EACH_CHANGE))
def test_a_cell_that_attacks_ends_and_others_go_on(attacked: GatewayProcess, name: str) -> None:
    key = f"attack-{list(ATTACKS).index(name)}"
    # A cell with lines of input may ask, so that forged questions are heard and answered.
    execution = attacked.submit(key, attack(name, 0.2), timeout=60, stdin=["a line"])
    assert attacked.execute("other", "1+1")["status"] == "ok"
    assert attacked.get("/healthz").status == 200
    result = attacked.ended(key, execution)
    status = "error" if name == "forged questions without end" else "ok"
    assert (result["status"], result["execution_count"]) == (status, 1), result
    after = attacked.execute(key, "print('still here')")
    assert (after["status"], after["stdout"]) == ("ok", "still here\n")
    attacked.delete(f"/v1/sessions/{key}")


def test_what_was_too_large_is_told(attacked: GatewayProcess) -> None:
    result = attacked.execute("told", attack("display of 21 MB of empty lists", 0.1))
    assert result["status"] == "ok"
    assert result["truncated"]
    assert "left out" in result["outputs"][0]["data"]["text/plain"]


def test_frames_that_never_end_cost_others_nothing(attacked: GatewayProcess) -> None:
    process = Path("/proc", str(attacked.process.pid), "status")

    def resident() -> int:
        fields = dict(line.split(":", 1) for line in process.read_text().splitlines())
        return int(fields["VmRSS"].split()[0]) // 1024

    before = resident()
    for number in range(3):
        attacked.submit(f"unfinished-{number}", unfinished(500_000_000, 150_000_000), timeout=5)
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        assert attacked.execute("other", "1+1")["status"] == "ok"
        time.sleep(0.05)
    assert resident() - before < 200, "MiB; 3 kernels sent 150 MB on each of 4 channels"
    for number in range(3):
        attacked.delete(f"/v1/sessions/unfinished-{number}")
