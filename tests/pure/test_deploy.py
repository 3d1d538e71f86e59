"""What is deployed beside a gateway: dashboard and alerts name metrics that exist, the runbook has a section
for each alert. `promtool` checks the alerts, and tries each on series that fire it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from cellgate.http.metrics import Metrics
from tests.support.requirements import require

ROOT = Path(__file__).parents[2]
RUNBOOK = ROOT / "docs" / "how-to" / "runbook.md"
ALERTS = ROOT / "deploy" / "alerts.yaml"
DASHBOARD = ROOT / "deploy" / "grafana.json"
# Of the client library's own collector, and of Prometheus.
OTHERS = frozenset({
    *("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds", "process_max_fds"),
    "up",
})  # fmt: skip
LEAST_LINES = 5
SELECTOR = re.compile(r"\b((?:cellgate|process)_\w+|up)\b(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)(=~|!~|!=|=)"([^"]*)"')


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return found


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def expressions() -> Iterator[tuple[str, str]]:
    """Everything that asks for a metric, with the name of who asks."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.fixture(scope="module")
def samples() -> Mapping[str, Mapping[str, set[str]]]:
    """Every sample's name with its labels and their values."""
    found: dict[str, dict[str, set[str]]] = {name: {} for name in OTHERS}
    for family in Metrics().registry.collect():
        for sample in family.samples:
            labels = found.setdefault(sample.name, {})
            for label, value in sample.labels.items():
                labels.setdefault(label, set()).add(value)
    return found


def test_dashboard_and_alerts_name_only_what_there_is(samples: Mapping[str, Mapping[str, set[str]]]) -> None:
    """Metrics, labels, and the values of labels."""
    for asker, expression in expressions():
        selectors = SELECTOR.findall(expression)
        assert selectors, f"{asker} asks for no metric"
        for name, matchers in selectors:
            assert name in samples, f"{asker} asks for {name}"
            for label, operator, value in MATCHER.findall(matchers):
                if label in {"instance", "job"}:
                    continue
                assert label in samples[name], f"{asker} asks for the label {label} of {name}"
                values = set(value.split("|")) if "~" in operator else {value}
                assert values <= samples[name][label], f"{asker} asks for {label}={value} of {name}"


def test_every_metric_is_on_the_dashboard(samples: Mapping[str, Mapping[str, set[str]]]) -> None:
    asked = [target["expr"] for panel in panels() for target in panel["targets"]]
    shown = {name for expression in asked for name, _ in SELECTOR.findall(expression)}
    ours = {name for name in samples if name.startswith("cellgate_")}
    parts = {name for name in ours if name.endswith(("_sum", "_count", "_created"))}
    assert ours - parts - shown == set()


def sections() -> dict[str, str]:
    """The runbook's sections by their titles."""
    found = re.split(r"^## (.+)$", RUNBOOK.read_text(), flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


def test_every_alert_has_a_section_and_names_it() -> None:
    names = [rule["alert"] for rule in alerts()]
    assert len(set(names)) == len(names)
    assert list(sections()) == ["Set it up", *names]
    for rule in alerts():
        url = rule["annotations"]["runbook_url"]
        assert url == f"docs/how-to/runbook.md#{rule['alert'].lower()}"
        assert rule["labels"]["severity"] in {"critical", "warning", "info"}
        assert rule["annotations"]["summary"]


@pytest.mark.parametrize("name", [rule["alert"] for rule in alerts()])
def test_every_section_says_what_to_do(name: str) -> None:
    text = sections()[name]
    assert "- Do: " in text or re.search(r"^- `\w+`: ", text, flags=re.MULTILINE)
    assert len(text.strip().splitlines()) >= 3


def test_the_runbook_names_what_there_is(samples: Mapping[str, Mapping[str, set[str]]]) -> None:
    """Metrics, lines of the log, and names of settings, causes and fields."""
    sources = [path.read_text() for part in ("gateway", "kernels") for path in (ROOT / part).rglob("*.py")]
    code = "\n".join(sources)
    known = set(re.findall(r"\w+", code + ALERTS.read_text()))
    # Of lines as of commands and addresses: names are looked for.
    quoted = re.findall(r"`([^`\n]+)`", RUNBOOK.read_text())
    lines = {line for line in quoted if re.match(r"[A-Z][a-z]* [^/]", line)}
    assert len(lines) >= LEAST_LINES
    assert [line for line in lines if line.replace(" N ", " %d ") not in code] == []
    names = {name for name in quoted if re.fullmatch(r"[a-z]\w*_\w+", name)}
    metrics = {name for name in names if name.startswith(("cellgate_", "process_"))}
    families = {re.sub(r"_(bucket|count|sum)$", "", name) for name in samples}
    assert metrics - samples.keys() - families == set()
    assert names - metrics - known == set()


def test_the_dashboard_is_laid_out_without_overlaps() -> None:
    """In 24 columns, with ids of their own."""
    everything = dashboard()["panels"]
    assert len({panel["id"] for panel in everything}) == len(everything)
    taken: dict[tuple[int, int], str] = {}
    for panel in everything:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert (x, y) not in taken, f"{panel['title']} covers {taken[x, y]}"
                taken[x, y] = panel["title"]


def test_every_panel_has_a_unit_a_source_and_its_gateway() -> None:
    for panel in panels():
        assert panel["fieldConfig"]["defaults"]["unit"]
        for target in panel["targets"]:
            assert target["datasource"] == {"type": "prometheus", "uid": "${datasource}"}
            assert target["expr"].count('instance=~"$instance"') == len(SELECTOR.findall(target["expr"]))
    assert [variable["name"] for variable in dashboard()["templating"]["list"]] == ["datasource", "instance"]


# ---- what Prometheus says ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def promtool() -> str:
    """Of Debian's package prometheus, of which nothing else is needed."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    found = shutil.which("promtool", path=path)
    return require("promtool", "no promtool") if found is None else found


def run(promtool: str, *arguments: str | Path) -> None:
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_alerts_are_valid_rules(promtool: str) -> None:
    run(promtool, "check", "rules", ALERTS)


def test_the_dashboard_asks_valid_questions(promtool: str, tmp_path: Path) -> None:
    rules = []
    for number, (_, expression) in enumerate(expressions()):
        plain = expression.replace("$__rate_interval", "5m").replace("$instance", ".*")
        rules.append({"record": f"dashboard:question:{number}", "expr": plain})
    file = tmp_path / "rules.json"
    file.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))
    run(promtool, "check", "rules", file)


I = 'instance="here"'  # noqa: E741
J = 'job="cellgate"'
HALF_A_DAY = 720

FIRING: Mapping[str, Mapping[str, str]] = {
    "CellgateDown": {f"up{{{J},{I}}}": "0x{n}"},
    "CellgateNotReady": {f'cellgate_problems{{{I},problem="container_engine"}}': "1x{n}"},
    "CellgateRecordNotWritable": {f'cellgate_problems{{{I},problem="storage"}}': "1x{n}"},
    "CellgateSessionsNotRecorded": {f"cellgate_unrecorded_sessions{{{I}}}": "2x{n}"},
    "CellgateDiskNearlyFull": {
        f"cellgate_storage_free_bytes{{{I}}}": "9x{n}",
        f"cellgate_storage_bytes{{{I}}}": "100x{n}",
    },
    "CellgateDiskFullSoon": {f"cellgate_storage_free_bytes{{{I}}}": "1000000-1000x{n}"},
    "CellgateInternalErrors": {
        f'cellgate_executions_total{{{I},status="died",cause="internal_error"}}': "0x{n}",
        f'cellgate_http_responses_total{{{I},status="500"}}': "0+1x{n}",
    },
    "CellgatePoolExhausted": {f'cellgate_pool_claims_total{{{I},end="exhausted"}}': "0+1x{n}"},
    "CellgatePoolNearlyFull": {
        f'cellgate_kernels{{{I},state="in_use"}}': "60x{n}",
        f'cellgate_kernels{{{I},state="ending"}}': "2x{n}",
        f"cellgate_pool_places{{{I}}}": "64x{n}",
    },
    "CellgateKernelsDoNotStart": {f"cellgate_kernel_start_failures_total{{{I}}}": "0+1x{n}"},
    "CellgateKernelsDie": {f'cellgate_kernel_deaths_total{{{I},cause="kernel_exit"}}': "0+1x{n}"},
    "CellgateLimitsEndCells": {f'cellgate_kernel_deaths_total{{{I},cause="out_of_memory"}}': "0+2x{n}"},
    "CellgateMachineMemoryLow": {
        f"cellgate_machine_memory_available_bytes{{{I}}}": "9x{n}",
        f"cellgate_machine_memory_bytes{{{I}}}": "100x{n}",
    },
    "CellgateLoopLags": {
        f'cellgate_loop_lag_seconds_bucket{{{I},le="0.25"}}': "0x{n}",
        f'cellgate_loop_lag_seconds_bucket{{{I},le="0.5"}}': "0+60x{n}",
        f'cellgate_loop_lag_seconds_bucket{{{I},le="+Inf"}}': "0+60x{n}",
    },
    "CellgateCommitsAreSlow": {
        f'cellgate_execution_commit_seconds_bucket{{{I},le="0.5"}}': "0x{n}",
        f'cellgate_execution_commit_seconds_bucket{{{I},le="1"}}': "0+60x{n}",
        f'cellgate_execution_commit_seconds_bucket{{{I},le="+Inf"}}': "0+60x{n}",
    },
    "CellgateCellsWaitLong": {
        f'cellgate_execution_queue_seconds_bucket{{{I},le="10"}}': "0x{n}",
        f'cellgate_execution_queue_seconds_bucket{{{I},le="30"}}': "0+60x{n}",
        f'cellgate_execution_queue_seconds_bucket{{{I},le="+Inf"}}': "0+60x{n}",
    },
    "CellgateTokensGuessed": {f'cellgate_http_refusals_total{{{I},reason="not_authenticated"}}': "0+120x{n}"},
    "CellgateCertificateEnds": {f"cellgate_certificate_expiry_timestamp_seconds{{{I}}}": "600000x{n}"},
    "CellgateIdentityUnavailable": {
        f'cellgate_http_refusals_total{{{I},reason="identity_unavailable"}}': "0+1x{n}"
    },
    "CellgateQuotasRefuse": {f'cellgate_quota_refusals_total{{{I},quota="sessions"}}': "0+60x{n}"},
    "CellgateConnectionsRefused": {f'cellgate_connections_closed_total{{{I},reason="refused"}}': "0+5x{n}"},
    "CellgateFewOpenFilesLeft": {
        f"process_open_fds{{{J},{I}}}": "900x{n}",
        f"process_max_fds{{{J},{I}}}": "1000x{n}",
    },
}
"""Series, by the minute, that fire an alert."""

QUIET: Mapping[str, str] = {
    f"up{{{J},{I}}}": "1x{n}",
    f'cellgate_problems{{{I},problem="shutting_down"}}': "1x{n}",
    f'cellgate_problems{{{I},problem="storage"}}': "0x{n}",
    f"cellgate_unrecorded_sessions{{{I}}}": "0x{n}",
    f"cellgate_storage_free_bytes{{{I}}}": "50x{n}",
    f"cellgate_storage_bytes{{{I}}}": "100x{n}",
    f"cellgate_machine_memory_available_bytes{{{I}}}": "50x{n}",
    f"cellgate_machine_memory_bytes{{{I}}}": "100x{n}",
    f'cellgate_executions_total{{{I},status="died",cause="internal_error"}}': "1x{n}",
    f'cellgate_http_responses_total{{{I},status="500"}}': "1x{n}",
    f'cellgate_pool_claims_total{{{I},end="exhausted"}}': "7x{n}",
    f'cellgate_pool_claims_total{{{I},end="warm"}}': "0+60x{n}",
    f'cellgate_kernels{{{I},state="in_use"}}': "30x{n}",
    f'cellgate_kernels{{{I},state="warm"}}': "30x{n}",
    f"cellgate_pool_places{{{I}}}": "64x{n}",
    f'cellgate_kernel_deaths_total{{{I},cause="cell_timeout"}}': "0+1x{n}",
    f'cellgate_loop_lag_seconds_bucket{{{I},le="0.01"}}': "0+60x{n}",
    f'cellgate_loop_lag_seconds_bucket{{{I},le="+Inf"}}': "0+60x{n}",
    f'cellgate_http_refusals_total{{{I},reason="not_authenticated"}}': "0+10x{n}",
    f'cellgate_http_refusals_total{{{I},reason="identity_unavailable"}}': "9x{n}",
    f"cellgate_certificate_expiry_timestamp_seconds{{{I}}}": "9000000x{n}",
    f'cellgate_certificate_expiry_timestamp_seconds{{{J},instance="without"}}': "0x{n}",
    f"process_open_fds{{{J},{I}}}": "100x{n}",
    f"process_max_fds{{{J},{I}}}": "1000x{n}",
}
"""A gateway that is well: it may have had trouble once, but not lately."""


def written_test(
    folder: Path, rules: Path, series: Mapping[str, str], checked: Mapping[str, int | None]
) -> Path:
    """A file for `promtool test rules`: these alerts fire, or for None nothing does."""
    minutes = HALF_A_DAY
    questions = [
        {
            "expr": f'count(ALERTS{{alertstate="firing",alertname=~"{name}"}})',
            "eval_time": f"{minutes}m",
            "exp_samples": [] if count is None else [{"labels": "{}", "value": count}],
        }
        for name, count in checked.items()
    ]
    values = [{"series": name, "values": value.format(n=minutes)} for name, value in series.items()]
    content = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": values, "promql_expr_test": questions}],
    }
    file = folder / "test.json"
    file.write_text(json.dumps(content))
    return file


@pytest.mark.parametrize("name", [rule["alert"] for rule in alerts()])
def test_each_alert_fires(promtool: str, tmp_path: Path, name: str) -> None:
    alone = tmp_path / "alone.json"
    rules = [rule for rule in alerts() if rule["alert"] == name]
    alone.write_text(json.dumps({"groups": [{"name": "alone", "rules": rules}]}))
    run(promtool, "test", "rules", written_test(tmp_path, alone, FIRING[name], {name: 1}))


def test_no_alert_fires_while_all_is_well(promtool: str, tmp_path: Path) -> None:
    run(promtool, "test", "rules", written_test(tmp_path, ALERTS, QUIET, {".+": None}))
