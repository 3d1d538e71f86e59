"""The operator's ceilings: by no way does a session or a cell get more than they allow."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cellgate.execution.limits import LimitCeilings, SessionLimits, lowered_limits, merge_limits
from cellgate.server import machine
from cellgate.wire.models import LimitsBody
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB, ResourceLimits
from tests.conftest import StartGateway, serving
from tests.support.server import GatewayProcess

CEILINGS = {
    "memory": 512 * MIB,
    "cpus": 1.5,
    "pids": 300,
    "disk": 256 * MIB,
    "cell_timeout": 20.0,
    "lifetime": 7200.0,
}

ABOVE: list[tuple[str, Any, str]] = [
    ("memory", "513m", "536870912 bytes"),
    ("memory", "1024t", "536870912 bytes"),
    ("memory", 512 * MIB + 1, "536870912 bytes"),
    ("cpus", 1.6, "1.5"),
    ("pids", 301, "300"),
    ("pids", 1_000_000, "300"),
    ("disk", "257m", "268435456 bytes"),
    ("cell_timeout", 20.5, "20 s"),
    ("lifetime", 30 * 86400, "7200 s"),
]
above = pytest.mark.parametrize(("name", "value", "most"), ABOVE)


@pytest.fixture(scope="module")
def capped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with small ceilings, some of them below its defaults."""
    with serving(
        tmp_path_factory.mktemp("capped") / "data",
        max_memory="512m",
        max_cpus=1.5,
        max_pids=300,
        max_disk="256m",
        max_cell_timeout=20,
        max_lifetime=7200,
    ) as process:
        yield process


def refused(answer: Any, name: str, most: str) -> None:
    assert (answer.status, answer.reason) == (400, "bad_request")
    detail = answer.json()["detail"]
    assert f"max_{name}" in detail
    assert most in detail


def test_ceilings_are_told_and_defaults_above_them_are_lowered(capped: GatewayProcess) -> None:
    info = capped.get("/v1/info").json()
    assert info["ceilings"] == CEILINGS
    assert {name: info["limits"][name] for name in CEILINGS} == CEILINGS | {"cpus": 1.0, "pids": 256}
    log = capped.log.read_text()
    lowered = [name for name in CEILINGS if f"{name} from" in log]
    assert lowered == ["memory", "disk", "cell_timeout", "lifetime"]


@above
def test_a_session_that_asks_for_more_is_refused_and_not_made(
    capped: GatewayProcess, name: str, value: Any, most: str
) -> None:
    body = {"session": "greedy", "limits": {name: value}}
    refused(capped.post("/v1/sessions", body), name, most)
    refused(capped.post("/v1/execute", {"code": "1", "limits": {name: value}}), name, most)
    refused(capped.post("/v1/execute", {"code": "1", "record": True, "limits": {name: value}}), name, most)
    assert capped.get("/v1/sessions/greedy").status == 404
    assert capped.get("/v1/info").json()["pool"]["in_use"] == 0


def test_a_session_that_exists_does_not_hide_a_limit_above_its_ceiling(capped: GatewayProcess) -> None:
    capped.execute("there", "1")
    body = {"session": "there", "limits": {"memory": "1t"}}
    refused(capped.post("/v1/sessions", body), "memory", "536870912")
    capped.delete("/v1/sessions/there")


def test_all_that_is_allowed_can_be_had(capped: GatewayProcess) -> None:
    answer = capped.post("/v1/sessions", {"session": "full", "limits": CEILINGS})
    assert answer.status == 201
    limits = answer.json()["limits"]
    assert {name: limits[name] for name in CEILINGS} == CEILINGS
    assert capped.execute("full", "1 + 1", timeout=20)["text"] == "2"
    capped.delete("/v1/sessions/full")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/sessions/new/execute", {"code": "1"}),
        ("/v1/sessions/new/execute", {"code": "1", "wait": False}),
        ("/v1/execute", {"code": "1"}),
        ("/v1/sessions/new/execute-blocks", {"markdown": "```python\n1\n```"}),
    ],
)
def test_a_cell_that_asks_for_more_time_is_refused_and_makes_nothing(
    capped: GatewayProcess, path: str, body: dict[str, Any]
) -> None:
    refused(capped.post(path, {**body, "timeout": 20.5}), "cell_timeout", "20 s")
    assert capped.get("/v1/sessions/new").status == 404
    assert capped.get("/v1/info").json()["pool"]["in_use"] == 0


def test_a_gateway_that_is_told_nothing_has_the_machines_ceilings(gateway: GatewayProcess) -> None:
    ceilings = gateway.get("/v1/info").json()["ceilings"]
    disk = (machine.disk(gateway.data_dir) or 0) // 2
    assert ceilings["memory"] == machine.memory()
    assert ceilings["cpus"] == machine.processors()
    assert (ceilings["pids"], ceilings["disk"]) == (4096, disk)
    assert (ceilings["cell_timeout"], ceilings["lifetime"]) == (86400, 30 * 86400)
    answer = gateway.post("/v1/sessions", {"limits": {"memory": "1024t"}})
    refused(answer, "memory", f"limits.memory is {1024 << 40} bytes")
    refused(answer, "memory", str(machine.memory()))


def test_a_session_of_former_ceilings_is_replayed_within_those_of_today(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    former = start_gateway(tmp_path / "data")
    former.post("/v1/sessions", {"session": "s", "limits": {"memory": "700m", "cell_timeout": 100}})
    former.execute("s", "print('a')", timeout=90)
    former.stop()
    today = start_gateway(tmp_path / "data", max_memory="512m", max_cell_timeout=30)
    answer = today.post("/v1/sessions/s/replay")
    assert answer.status == 200
    assert [cell["verdict"] for cell in answer.json()["cells"]] == ["equal"]


# ---- what ceilings are made of -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "value", [float("nan"), float("inf"), -1.0, 0.0, 1e308], ids=["nan", "inf", "negative", "zero", "huge"]
)
def test_a_time_that_is_none_is_no_ceiling_and_no_timeout(value: float) -> None:
    with pytest.raises(InvalidInput, match="max_lifetime"):
        LimitCeilings(lifetime=value)
    with pytest.raises(InvalidInput, match="timeout"):
        LimitCeilings().check_timeout(value)


@above
def test_limits_of_a_record_are_lowered(name: str, value: Any, most: str) -> None:
    ceilings = LimitCeilings(
        ResourceLimits(*(CEILINGS[field.name] for field in dataclasses.fields(ResourceLimits))),  # type: ignore[arg-type]
        CEILINGS["cell_timeout"],
        CEILINGS["lifetime"],
    )
    defaults = SessionLimits(ResourceLimits(memory=100 * MIB, disk=MIB), 1.0, 1.0, 1.0)
    body = LimitsBody(**{name: value})
    assert lowered_limits(defaults, body, ceilings).to_wire() == {**defaults.to_wire(), name: CEILINGS[name]}
    with pytest.raises(InvalidInput, match=f"max_{name}"):
        merge_limits(defaults, body, ceilings)


@pytest.mark.parametrize("version", [1, 2])
def test_the_gateways_control_groups_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    files = {
        1: {"memory/a/memory.limit_in_bytes": "100000000", "memory/memory.limit_in_bytes": str(2**63 - 4096)}
        | {"cpu/a/b/cpu.cfs_quota_us": "-1", "cpu/a/b/cpu.cfs_period_us": "100000"}
        | {"cpu/a/cpu.cfs_quota_us": "50000", "cpu/a/cpu.cfs_period_us": "100000"},
        2: {"a/b/memory.max": "max", "a/memory.max": "100000000"}
        | {"a/b/cpu.max": "max 100000", "a/cpu.max": "50000 100000"},
    }
    for name, text in files[version].items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"{text}\n")
    groups = {1: "3:cpu,cpuacct:/a/b\n2:memory:/a/b\n1:name=systemd:/c\n", 2: "0::/a/b\n"}
    monkeypatch.setattr(machine, "_text", reading(groups[version]))
    assert machine.memory(tmp_path) == 100_000_000
    assert machine.processors(tmp_path) == 0.5
    assert machine.memory(None) > 100_000_000


def reading(groups: str) -> Any:
    """Reads files as `machine` does, but for this process's groups."""
    real = machine._text
    return lambda path: groups if str(path) == "/proc/self/cgroup" else real(path)


def test_a_machine_without_control_groups_has_what_it_has(tmp_path: Path) -> None:
    assert machine.memory(tmp_path) == machine.memory(None)
    assert json.dumps(machine.processors(tmp_path))
    assert machine.disk(tmp_path / "not" / "made" / "yet") == machine.disk(tmp_path)
    assert machine.disk(Path("/proc/data")) is None
