"""Pictures of the console for README and docs/console/: made when CELLGATE_SCREENS names their folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.console.using import cells, expect, show, tab
from tests.conftest import serving
from tests.support.browser import PHONE, link, opened
from tests.support.server import GatewayProcess, until

FOLDER = os.environ.get("CELLGATE_SCREENS")
pytestmark = pytest.mark.skipif(not FOLDER, reason="CELLGATE_SCREENS names no folder for pictures")

WIDE = {"width": 1440, "height": 900}

LOAD = """\
import numpy as np, pandas as pd

rng = np.random.default_rng(7)
days = pd.date_range("2026-01-01", periods=180)
demand = pd.DataFrame({
    "north": 52 + np.cumsum(rng.normal(0, 1.1, 180)),
    "south": 47 + np.cumsum(rng.normal(0, 0.9, 180)),
}, index=days).round(1)
demand.tail(4)"""
PLOT = """\
import matplotlib.pyplot as plt

axes = demand.plot(figsize=(8, 2.6), lw=1.6, color=["#2f6fd0", "#d0752f"])
axes.set(ylabel="GW"); axes.grid(alpha=0.25)
plt.tight_layout()"""
FIT = """\
slope = np.polyfit(range(180), demand.north, 1)[0]
print(f"north changes by {slope:+.3f} GW a day")
demand.to_csv("demand.csv")"""
WRONG = "demand.east.mean()"
MODEL = """\
from IPython.display import Markdown, Math, display

display(Markdown("### Seasonal model\\nThe demand of a **region** $i$ on day $t$, with its trend:"))
Math(r"D_i(t) = \\alpha_i + \\beta_i t + \\sum_{k=1}^{K} c_k \\cos\\frac{2\\pi k t}{365} + \\varepsilon_t")"""
FIGURE = """\
from IPython.display import display

month = ["Jan", "Feb", "Mar", "Apr", "May", "Jun"]
bars = [{"type": "bar", "name": name, "x": month, "y": demand[name].resample("MS").mean().round(1).tolist()}
        for name in demand]
layout = {"height": 300, "margin": {"t": 20, "r": 10, "b": 30, "l": 40}}
display({"application/vnd.plotly.v1+json": {"data": bars, "layout": layout}}, raw=True)"""
BUSY = """\
import time
for epoch in range(1, 1000):
    print(f"epoch {epoch:2}  loss {1 / epoch ** 0.7:.4f}", flush=True)
    time.sleep(0.4)"""


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One with sessions that look like work."""
    with serving(tmp_path_factory.mktemp("screens") / "data", "sandbox", pool_size=2) as process:
        process.post("/v1/sessions", {"session": "demand-forecast", "checkpoint": "auto"})
        for code in (LOAD, PLOT, FIT, WRONG):
            process.execute("demand-forecast", code)
        process.post("/v1/sessions/demand-forecast/branch", {"session": "demand-forecast-quantiles"})
        for code in ("demand.quantile([0.1, 0.9])", MODEL, FIGURE):
            process.execute("demand-forecast-quantiles", code)
        process.execute("agent-7f3a", "import math\nmath.factorial(30)")
        for number in range(12):
            process.execute("nightly-report", f"print('part {number}')")
        process.execute("scratch", "x = 1")
        process.delete("/v1/sessions/scratch")
        execution = process.submit("train-baseline", BUSY)
        until(lambda: process.printed("train-baseline", "epoch  3"), "nothing is trained")
        yield process
        process.post(f"/v1/sessions/train-baseline/executions/{execution}/cancel")


def taken(page: Any, name: str) -> None:
    """Save what is shown."""
    assert FOLDER is not None
    page.evaluate("document.fonts.ready")
    page.wait_for_timeout(300)
    Path(FOLDER).mkdir(parents=True, exist_ok=True)
    page.screenshot(path=Path(FOLDER) / f"{name}.png")


def shown(page: Any, session: str, first: bool = False) -> None:
    """Go to a session, and wait until what is on the screen has been drawn."""
    show(page, session)
    expect(page.locator(".skeleton")).to_have_count(0)
    if first:
        page.locator(".feed-box").evaluate("box => { box.scrollTop = 0 }")
    page.wait_for_timeout(500)


def verified(page: Any) -> None:
    """Verify the chain in the panel."""
    if page.get_by_role("tabpanel").count() == 0:
        page.get_by_role("button", name="Show the panel").click()
    panel = tab(page, "Record")
    panel.get_by_role("button", name="Verify").click()
    expect(panel).to_contain_text("Valid")


def operated(page: Any) -> None:
    """The gateway's numbers, once there are lines."""
    page.evaluate("location.hash = '#/gateway'")
    expect(page.locator(".sparkline polyline").nth(3)).to_be_attached()
    page.wait_for_timeout(7000)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures(gateway: GatewayProcess, browser: Any, scheme: str) -> None:
    with opened(browser, color_scheme=scheme, viewport=WIDE) as page:
        page.goto(link(gateway))
        expect(page.get_by_role("row").get_by_role("link", name="train-baseline")).to_be_visible()
        expect(page.locator("tr").filter(has_text="train-baseline")).to_contain_text("%")
        taken(page, f"sessions-{scheme}")
        shown(page, "demand-forecast", first=True)
        tab(page, "Variables")
        expect(page.get_by_role("listitem").filter(has_text="demand").first).to_be_visible()
        table = page.frame_locator("iframe.out-frame").first.get_by_role("table")
        expect(table).to_be_visible()
        taken(page, f"session-{scheme}")
        tab(page, "Tree")
        expect(page.get_by_role("list", name="Branches")).to_be_visible()
        taken(page, f"tree-{scheme}")
        shown(page, "demand-forecast-quantiles")
        bars = page.frame_locator("iframe.out-frame").last.locator(".bars .point").nth(3)
        expect(bars).to_be_visible()
        verified(page)
        taken(page, f"record-{scheme}")
        tab(page, "Files")
        show(page, "train-baseline")
        expect(cells(page).first).to_contain_text("loss")
        taken(page, f"running-{scheme}")
        operated(page)
        taken(page, f"gateway-{scheme}")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pictures_of_a_phone(gateway: GatewayProcess, browser: Any, scheme: str) -> None:
    with opened(
        browser, color_scheme=scheme, viewport=PHONE, device_scale_factor=2, has_touch=True, is_mobile=True
    ) as page:
        page.goto(link(gateway))
        expect(page.get_by_role("row").get_by_role("link", name="train-baseline")).to_be_visible()
        taken(page, f"phone-sessions-{scheme}")
        shown(page, "demand-forecast")
        taken(page, f"phone-session-{scheme}")
        shown(page, "demand-forecast-quantiles")
        bars = page.frame_locator("iframe.out-frame").last.locator(".bars .point").nth(3)
        expect(bars).to_be_visible()
        taken(page, f"phone-figure-{scheme}")
        verified(page)
        taken(page, f"phone-record-{scheme}")
        page.get_by_role("button", name="Close the panel").click()
        operated(page)
        taken(page, f"phone-gateway-{scheme}")
