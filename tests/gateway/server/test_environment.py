"""What `/v1/info` says of the environment of cells: what a cell finds there, and nothing else."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from cellgate_kernels.specs.catalog import data_folder
from tests.conftest import StartGateway
from tests.support.server import GatewayProcess

KERNELSPECS = data_folder(Path(sys.prefix)) / "kernels"
FOUND = """
import importlib.metadata, json, platform, shutil
print(json.dumps({
    "python": platform.python_version(),
    "packages": {each.metadata["Name"]: each.version for each in importlib.metadata.distributions()},
    "programs": [name for name in PROGRAMS if shutil.which(name)],
}))
"""


def test_it_is_what_a_cell_finds(gateway: GatewayProcess, session: str) -> None:
    info = gateway.get("/v1/info").json()
    assert set(info["environment"]) == {"python3"}
    told = info["environment"]["python3"]
    result = gateway.execute(session, f"PROGRAMS = {told['programs']}\n{FOUND}")
    assert told == {"name": "standard", **json.loads(result["stdout"])}
    assert {"bash", "deno"} <= set(told["programs"])
    assert {"numpy", "polars", "duckdb", "plotly"} <= set(told["packages"])
    assert info["packages_allowed"] == info["packages"] == []


def test_kernelspecs_of_which_nothing_is_known_are_left_out(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    shutil.copytree(KERNELSPECS / "python3", tmp_path / "python3")
    spec = json.loads((KERNELSPECS / "python3" / "kernel.json").read_text())
    spec["argv"] = ["/usr/bin/python3", *spec["argv"][1:]]
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs" / "kernel.json").write_text(json.dumps(spec))
    gateway = start_gateway(kernel_dirs=tmp_path, pool_size=0)
    info = gateway.get("/v1/info").json()
    assert set(info["kernelspecs"]) == {"python3", "theirs"}
    assert set(info["environment"]) == {"python3"}


def test_only_kernels_without_isolation_have_the_machine_s_network(
    sandbox: None, start_gateway: StartGateway
) -> None:
    for backend, is_open in (("process", True), ("sandbox", False)):
        gateway = start_gateway(backend=backend, pool_size=0)
        assert gateway.get("/v1/info").json()["open_network"] is is_open
