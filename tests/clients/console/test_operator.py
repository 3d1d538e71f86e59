"""The operator's view: the gateway's metrics as numbers with lines, alerts of the runbook, and quotas."""

from __future__ import annotations

import itertools
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from tests.clients.console.mounting import show
from tests.support.server import GatewayProcess

ROOT = Path(__file__).parents[3]
ALERTS = ROOT / "gateway" / "cellgate" / "console" / "static" / "operator" / "alerts.js"

NOTHING = "\N{EN DASH}"
TROUBLE = """\
# HELP cellgate_kernels Kernels by state.
cellgate_kernels{state="warm"} 1.0
cellgate_kernels{state="in_use"} 7.0
cellgate_pool_places 8.0
cellgate_problems{problem="storage"} 1.0
cellgate_storage_bytes 1000.0
cellgate_storage_free_bytes 50.0
cellgate_queued_executions 12.0
cellgate_kernel_deaths_total{cause="out_of_memory"} %d
cellgate_kernel_deaths_total{cause="kernel_exit"} 3.0
cellgate_kernel_deaths_total{cause="pids_limit"} 0.0
cellgate_quota_refusals_total{quota="memory"} 5.0
this is no sample
cellgate_broken{state="x 1.0
"""


def gauge(place: Any, label: str) -> Any:
    return place.locator(".gauge").filter(has=place.page.locator("dt", has_text=re.compile(f"^{label}$")))


def test_alerts_have_the_names_of_the_rules_and_the_runbook() -> None:
    named = set(re.findall(r'^    "(Cellgate\w+)",$', ALERTS.read_text(), re.MULTILINE))
    rules = yaml.safe_load((ROOT / "deploy" / "alerts.yaml").read_text())["groups"][0]["rules"]
    runbook = (ROOT / "docs" / "how-to" / "runbook.md").read_text()
    assert len(named) > 10
    assert named <= {rule["alert"] for rule in rules}
    assert {name for name in named if f"\n## {name}\n" not in runbook} == set()


def test_what_the_gateway_is(page: Any, console: GatewayProcess) -> None:
    info = console.get("/v1/info").json()
    told = f"Cellgate {info['version']}, isolation: {info['isolation']}, doors: dify, e2b"
    show(page, "operator/operator.js", "Operator").get_by_text(told, exact=True).wait_for()
    page.route("**/v1/info", lambda route: route.fulfill(json=info | {"doors": []}))
    show(page, "operator/operator.js", "Operator").get_by_text("doors: none").wait_for()


def test_the_gateways_own_numbers(page: Any, console: GatewayProcess) -> None:
    console.execute("operated", "1")
    place = show(page, "operator/operator.js", "Operator")
    in_use = gauge(place, "In use, of places").locator("strong")
    in_use.get_by_text(re.compile(r"^\d+ of \d+$")).wait_for()
    text = console.get("/metrics").body.decode()
    places = re.search(r"^cellgate_pool_places (\d+)", text, re.MULTILINE)
    assert places is not None
    assert in_use.text_content().endswith(f" of {int(places[1]):,}")
    assert re.fullmatch(r"[\d.]+ \w+", gauge(place, "Record").locator("strong").text_content())
    place.get_by_role("table").get_by_text("sessions", exact=True).wait_for()


def test_trouble_is_told_with_its_place_in_the_runbook(page: Any) -> None:
    asked = iter(range(1000))

    def answer(route: Any) -> None:
        route.fulfill(body=TROUBLE % (2 + 30 * next(asked)), content_type="text/plain")

    page.route("**/metrics", answer)
    place = show(page, "operator/operator.js", "Operator")
    alerts = place.get_by_role("region", name="Alerts")
    alerts.get_by_text("docs/how-to/runbook.md#cellgatedisknearlyfull").wait_for()
    alerts.get_by_text("docs/how-to/runbook.md#cellgaterecordnotwritable").wait_for()
    assert gauge(place, "In use, of places").locator("strong").text_content() == "7 of 8"
    assert gauge(place, "Cells in queues").locator("strong").text_content() == "12"
    # With the second answer there is something to compare with.
    alerts.get_by_text("docs/how-to/runbook.md#cellgatelimitsendcells").wait_for()
    deaths = place.get_by_role("region", name="Deaths by cause")
    # What was before the page came is told, too.
    assert gauge(deaths, "kernel exit").locator("dd").text_content().strip() == "3"
    killed = gauge(deaths, "out of memory")
    assert int(killed.locator("strong").text_content()) >= 32
    assert re.match(r"\d+ in ", killed.locator("small").text_content())
    killed.locator("polyline").wait_for(state="attached")
    assert deaths.get_by_text("pids limit").count() == 0
    quotas = place.get_by_role("region", name="Refusals by quota")
    assert gauge(quotas, "memory").locator("strong").text_content() == "5"
    assert gauge(place, "Cells in queues").locator("polyline").get_attribute("points").count(",") >= 2


def test_what_everybody_uses_is_shown_in_pages(page: Any) -> None:
    def answer(route: Any) -> None:
        limit = int(re.search(r"limit=(\d+)", route.request.url)[1])
        quotas = {
            "sessions": {"limit": 20, "used": 18},
            "memory": {"limit": None, "used": 2**30},
            "queued": {"limit": None, "used": 0},
        }
        listed = [
            {"principal": f"user-{n:03d}", "role": "user", "quotas": quotas} for n in range(min(limit, 150))
        ]
        route.fulfill(json={"principals": listed, "next": listed[-1]["principal"] if limit < 150 else None})

    page.route("**/v1/usage*", answer)
    place = show(page, "operator/operator.js", "Operator")
    used = place.get_by_role("region", name="Use by principal")
    first = used.get_by_role("row", name="user-000")
    first.get_by_text("sessions 18 of 20").wait_for()
    assert first.get_by_role("meter", name="Used of sessions by user-000").get_attribute("value") == "18"
    assert [text.strip() for text in first.get_by_role("listitem").all_text_contents()] == [
        "sessions 18 of 20",
        "memory 1.0 GiB",
    ]
    assert used.get_by_role("row").count() == 101
    used.get_by_role("button", name="Show more").click()
    used.get_by_role("row", name="user-149").wait_for()
    assert used.get_by_role("button").count() == 0


def test_who_may_not_read_metrics_sees_their_quotas(page: Any) -> None:
    problem = {
        "type": "about:blank",
        "title": "Forbidden",
        "status": 403,
        "reason": "forbidden",
        "detail": "No.",
    }
    page.route("**/metrics", lambda route: route.fulfill(status=403, json=problem))
    place = show(page, "operator/operator.js", "Operator")
    place.get_by_text("may not read the gateway's metrics").wait_for()
    place.get_by_role("table").get_by_text("sessions", exact=True).wait_for()
    assert place.locator(".gauge").count() == 0


HUGE = """
async () => {
  const { parse, sum } = await import(new URL("console/operator/prometheus.js", document.baseURI).href);
  const line = (number) => `metric{label="${number}"} 1`;
  const metrics = parse(Array.from({ length: 300_000 }, (_, number) => line(number)).join("\\n"));
  return { samples: metrics.get("metric").length, sum: sum(metrics, "metric", { label: ["0", "1"] }) };
}
"""


def test_what_is_read_is_limited(page: Any) -> None:
    assert page.evaluate(HUGE) == {"samples": 20_000, "sum": 2}


def test_all_metrics_that_are_shown_are_kept() -> None:
    kept = set(re.findall(r'^  \["(\w+)", \[', (ALERTS.parent / "history.js").read_text(), re.MULTILINE))
    shown = set[str]()
    for name in ("alerts.js", "operator.js"):
        text = (ALERTS.parent / name).read_text()
        shown |= set(re.findall(r'"((?:cellgate|process)_\w+)"', text))
        shown -= (buckets := set(re.findall(r'quantile\(moments, "(\w+)"', text)))
        shown |= {f"{bucket}_bucket" for bucket in buckets}
    assert kept == shown


def test_what_is_kept_of_metrics_is_limited(page: Any) -> None:
    kept = page.evaluate("""async () => {
      const its = await import(new URL("console/operator/history.js", document.baseURI).href);
      const sample = (labels) => ({ name: "", labels, value: 1 });
      const many = Array.from({ length: 5000 }, (_, number) => sample({ reason: `r${number}`, route: "a" }));
      const metrics = new Map([
        ["cellgate_http_refusals_total", many],
        ["cellgate_http_responses_total", many.map((_, route) => sample({ status: "200", route }))],
        ["cellgate_tasks", many],
      ]);
      for (let number = 0; number < 300; number += 1) its.add(1000 + number, metrics, "one");
      const { moments } = its.history.value;
      for (let number = 0; number < 40; number += 1) its.add(2000 + number, metrics, `n${number}`);
      its.add(3000, metrics, "one");
      const anew = its.history.value.moments.length;
      const kept = [...moments[0].metrics];
      const values = Object.fromEntries(kept.map(([name, samples]) => [name, samples.length]));
      const sums = kept.map(([name]) => its.values(moments, name)[0][1]);
      return { number: moments.length, last: moments.at(-1).at, values, sums, anew };
    }""")
    assert kept == {
        "number": 256,
        "last": 1299,
        "values": {"cellgate_http_refusals_total": 101, "cellgate_http_responses_total": 1},
        "sums": [5000, 5000],
        "anew": 1,
    }


def test_the_gateways_of_a_cluster_and_what_room_they_have(page: Any) -> None:
    beat = datetime.now(UTC) - timedelta(seconds=2)
    states = ("up", "draining", "late", "down")
    nodes = [
        {
            "node": f"{number}" * 32,
            "url": f"http://10.0.0.{number}:8888",
            "state": state,
            "capacity": 64,
            "used": 16 * number,
            "warm": 2,
            "beat_at": (beat - timedelta(hours=number - 1)).isoformat(timespec="milliseconds"),
        }
        for number, state in enumerate(states, 1)
    ]
    page.route("**/v1/cluster", lambda route: route.fulfill(json={"nodes": nodes, "takeovers": 3}))
    turns = itertools.cycle(("1" * 32, "2" * 32))

    def metrics(route: Any) -> None:
        node = next(turns)
        text = f'cellgate_pool_places 64\ncellgate_kernels{{state="in_use"}} {16 * int(node[0])}\n'
        route.fulfill(body=text, content_type="text/plain", headers={"Cellgate-Owner": node})

    page.route("**/metrics", metrics)
    place = show(page, "operator/operator.js", "Operator")
    cluster = place.get_by_role("region", name="Gateways of the cluster")
    first = cluster.get_by_role("row", name="11111111 (the numbers above)")
    first.get_by_text("up", exact=True).wait_for()
    told = [text.strip() for text in first.get_by_role("cell").all_inner_texts()]
    assert told[:3] == ["http://10.0.0.1:8888", "up", "16 of 64"]
    assert first.get_by_role("meter").get_attribute("value") == "16"
    cluster.get_by_role("row", name="22222222").get_by_text("1 h ago").wait_for()
    cluster.get_by_role("row", name="22222222").get_by_text("opens no more sessions").wait_for()
    down = cluster.get_by_role("row", name="44444444")
    assert down.get_by_role("cell").all_inner_texts()[1:4] == ["down", NOTHING, NOTHING]
    cluster.get_by_text("from others since their start: 3").wait_for()
    # Another gateway behind the same address answers in between.
    in_use = gauge(place, "In use, of places")
    in_use.locator("polyline").wait_for(state="attached")
    assert in_use.locator("strong").text_content() == "16 of 64"


def test_without_a_cluster_there_is_no_list_of_gateways(page: Any) -> None:
    with page.expect_response("**/v1/cluster"):
        place = show(page, "operator/operator.js", "Operator")
    place.get_by_role("region", name="Quotas").wait_for()
    assert place.get_by_role("region", name="Gateways of the cluster").count() == 0
