"""The dashboard, checked by the types that Grafana publishes: every field exists and has such a value."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.clients.processes import COMPLETE, ENVIRONMENT
from tests.support.requirements import require

DASHBOARD = Path(__file__).parents[2] / "deploy" / "grafana.json"
PANELS = "@grafana/schema/dist/esm/raw/composable"
COMPILER = ENVIRONMENT / "node_modules" / ".bin" / "tsc"

# In JSON an enum's member is its value.
PROGRAM = f"""
import type {{ Dashboard }} from "@grafana/schema";
import type {{ FieldConfig, Options as TimeSeries }}
  from "{PANELS}/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";
import type {{ Options as Stat }} from "{PANELS}/stat/panelcfg/x/StatPanelCfg_types.gen";
type Plain<T> = unknown extends T ? T
  : T extends string ? `${{T}}`
  : T extends number | boolean | null | undefined ? T
  : T extends (infer U)[] ? Plain<U>[]
  : {{ [K in keyof T]: Plain<T[K]> }};
"""


def program(dashboard: dict[str, Any]) -> str:
    """A program that is valid if the dashboard is."""
    checked = [("Dashboard", dashboard)]
    for panel in dashboard["panels"]:
        if panel["type"] == "timeseries":
            checked += [
                ("TimeSeries", panel["options"]),
                ("FieldConfig", panel["fieldConfig"]["defaults"]["custom"]),
            ]
        elif panel["type"] == "stat":
            checked.append(("Stat", panel["options"]))
        else:
            assert panel["type"] == "row", f"panels of type {panel['type']} are not checked yet"
    lines = [
        f"export const value{number}: Plain<{kind}> = {json.dumps(value)};"
        for number, (kind, value) in enumerate(checked)
    ]
    return PROGRAM + "\n".join(lines)


@pytest.fixture
def complaints(tmp_path: Path) -> Any:
    """What the compiler says of a dashboard."""
    if not COMPLETE.exists() or not COMPILER.exists() or shutil.which("node") is None:
        require("clients", "Grafana's types are not installed: make clients")
    (tmp_path / "node_modules").symlink_to(ENVIRONMENT / "node_modules")
    options = ["--noEmit", "--strict", "--skipLibCheck", "--module", "nodenext", "--target", "es2022"]

    def compile_it(dashboard: dict[str, Any]) -> str:
        (tmp_path / "dashboard.ts").write_text(program(dashboard))
        command = [COMPILER, *options, "dashboard.ts"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        return done.stdout + done.stderr

    return compile_it


def test_the_dashboard_is_one_of_grafanas(complaints: Any) -> None:
    assert complaints(json.loads(DASHBOARD.read_text())) == ""


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('"graphTooltip": 1', '"graphTooltip": "one"'),
        ('"stacking": {', '"staking": {'),
        ('"reduceOptions": {', '"reduces": {'),
        ('"mode": "absolute"', '"mode": "somehow"'),
        ('"gridPos": {', '"place": {'),
    ],
)
def test_a_mistake_in_it_is_found(complaints: Any, right: str, wrong: str) -> None:
    text = DASHBOARD.read_text()
    assert right in text
    assert "error TS" in complaints(json.loads(text.replace(right, wrong)))
