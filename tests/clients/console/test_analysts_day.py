"""An analyst's day in the console: a table of 20 MB, charts, a widget, an undo, a branch, export, replay.

At each station the page is looked at in four sizes, light and dark: axe-core finds nothing, nothing is wider
than the screen, and with CELLGATE_SCREENS a picture is taken.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.clients.console.test_access import AXE, check
from tests.clients.console.test_notebook import checkpoints
from tests.clients.console.test_widgets import has
from tests.clients.console.using import act, answer, ended, expect, show, tab, write
from tests.support.browser import link, opened
from tests.support.requirements import require
from tests.support.server import GatewayProcess, until

FOLDER = os.environ.get("CELLGATE_SCREENS")
LOOKS = [
    (f"{width}-{scheme}", scheme, {"width": width, "height": height})
    for width, height in ((390, 844), (768, 1024), (1280, 800), (1920, 1080))
    for scheme in ("light", "dark")
]
KEY = "analysts-day"
TOWNS = ("Köln", "Łódź", "Αθήνα", "東京", "São Paulo", "القاهرة")
ROWS = 330_000

LOAD = """\
import pandas as pd
flow = pd.read_csv("flüsse 2026.csv", parse_dates=["day"])
print(f"{len(flow):,} rows, {flow.flow.isna().sum():,} gaps, {flow.town.nunique()} towns")
flow.head()"""
CLEAN = """\
daily = flow.dropna().groupby(["day", "town"], as_index=False).flow.mean().round(2)
print(len(daily), "days of towns")
daily.describe()"""
PLOTLY = """\
import plotly.express as px
months = daily.assign(month=daily.day.dt.to_period("M").astype(str)).groupby(["month", "town"]).flow.mean()
px.line(months.reset_index(), x="month", y="flow", color="town", height=320)"""
ALTAIR = """\
import altair as alt
means = daily.groupby("town", as_index=False).flow.mean()
alt.Chart(means, height=200).mark_bar().encode(x="flow:Q", y="town:N")"""
WIDGET = """\
import ipywidgets as w
window = w.IntSlider(value=7, min=1, max=30, description="Days")
window"""
MISTAKE = "daily = daily.iloc[:0]\nprint(len(daily), 'left')"
QUANTILES = "print(daily.flow.quantile([0.1, 0.9]).round(1).to_dict())"


@pytest.fixture
def page(console: GatewayProcess, browser: Any) -> Iterator[Any]:
    """The console, with axe-core in it."""
    if not AXE.exists():
        require("clients", "axe-core is not installed; run: make clients")
    with opened(browser, viewport={"width": 1280, "height": 800}) as shown:
        shown.goto(link(console))
        expect(shown.get_by_role("heading", name="Sessions")).to_be_visible()
        shown.evaluate(AXE.read_text())
        yield shown


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """A CSV file of 20 MB with gaps, dates and letters of many scripts."""
    some = random.Random(2026)
    first = date(2025, 1, 1)
    path = tmp_path / "flüsse 2026.csv"
    with path.open("w", encoding="utf-8") as file:
        file.write("day,town,flow,note\n")
        for number in range(ROWS):
            flow = "" if some.random() < 0.03 else f"{some.gauss(120, 30):.3f}"
            town = TOWNS[number % len(TOWNS)]
            day = first + timedelta(days=number * 365 // ROWS)
            file.write(
                f'{day},{town},{flow},"gauge {some.randrange(900):03}, „ruhig“, 平穏 no. {number:06}"\n'
            )
    assert path.stat().st_size > 20_000_000
    return path


def ran(page: Any, console: GatewayProcess, session: str, code: str) -> Any:
    """Type a cell, run it with the keys and wait until it is done.

    Return it by its id: of a session with high outputs the page has only the cells near the screen.
    """

    def newest() -> list[str]:
        found = console.get(f"/v1/sessions/{session}/executions?newest=true&limit=1").json()["executions"]
        return [each["execution"] for each in found]

    before = newest()
    write(page, code)
    page.keyboard.press("Shift+Enter")
    until(lambda: newest() != before, "the cell is not sent")
    cell = page.locator(f"#cell-{newest()[0]}")
    ended(cell)
    cell.scroll_into_view_if_needed()
    return cell


def framed(cell: Any) -> Any:
    """The document that a cell's output is drawn in."""
    return cell.frame_locator("iframe.out-frame").first


def looked_at(page: Any, station: str) -> None:
    """Check what is shown in each look, and take its picture; the last look is that of the work."""
    for name, scheme, size in LOOKS:
        page.set_viewport_size(size)
        page.emulate_media(color_scheme=scheme)
        # Texts of outputs get the colours of a scheme after those around them.
        page.wait_for_timeout(300)
        check(page, f"{station}, {name}")
        if FOLDER:
            Path(FOLDER).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(FOLDER) / f"day-{station}-{name}.png")
    page.set_viewport_size({"width": 1280, "height": 800})
    page.emulate_media(color_scheme="light")


def beside(page: Any, name: str) -> Any:
    """A panel beside the cells, shown if none is."""
    if page.get_by_role("tabpanel").count() == 0:
        page.get_by_role("button", name="Show the panel").click()
    return tab(page, name)


def begin(page: Any, table: Path) -> None:
    """Start a session with undo, and upload the table."""
    page.get_by_role("button", name="New session").click()
    page.get_by_role("dialog").get_by_label("Undo").select_option("auto")
    answer(page, "Start", Key=KEY, Title="Flüsse 2026")
    expect(page.get_by_role("heading", level=1)).to_have_text("Flüsse 2026")
    files = tab(page, "Files")
    page.locator("input[type=file]").set_input_files(table)
    expect(files.get_by_role("listitem").filter(has_text=table.name)).to_contain_text("MiB")
    expect(page.get_by_role("list", name="Uploads")).to_have_count(0)


def read(page: Any, console: GatewayProcess) -> None:
    """Read the table, and clean it."""
    loaded = ran(page, console, KEY, LOAD)
    expect(loaded).to_contain_text("330,000 rows")
    expect(framed(loaded).get_by_role("table")).to_be_visible()
    ran(page, console, KEY, CLEAN)
    tab(page, "Variables")
    expect(page.get_by_role("listitem").filter(has_text="daily").first).to_be_visible()


def draw(page: Any, console: GatewayProcess) -> None:
    """Draw a chart by each of two libraries; without a panel, which would cover them on a phone."""
    page.get_by_role("button", name="Hide the panel").click()
    for code, drawn in ((PLOTLY, ".main-svg"), (ALTAIR, "svg, canvas")):
        chart = ran(page, console, KEY, code)
        expect(framed(chart).locator(drawn).first).to_be_visible()


def move(page: Any, console: GatewayProcess) -> None:
    """Click on a slider, and move it by its keys."""
    moved = ran(page, console, KEY, WIDGET)
    # The editor has the focus; an output gets it once the pointer is there.
    page.keyboard.press("Escape")
    slider = framed(moved).get_by_role("slider", name="Days")
    slider.hover()
    slider.click()
    page.keyboard.press("ArrowRight")
    until(lambda: has(console, KEY, "value", 8), "the slider is not moved")


def undo_and_branch(page: Any, console: GatewayProcess) -> None:
    """Take a mistake back, and try something else in a branch."""
    wrong = ran(page, console, KEY, MISTAKE)
    expect(wrong).to_contain_text("0 left")
    until(lambda: "auto-5" in checkpoints(console, KEY), "there is no checkpoint to go back to")
    page.get_by_role("button", name="Undo", exact=True).click()
    expect(wrong.get_by_text("undone")).to_be_visible()
    act(page, KEY, "Branch")
    answer(page, "Branch", Key=f"{KEY}-quantiles")
    expect(page.get_by_role("region", name="Cells before this branch")).to_be_visible()
    ran(page, console, f"{KEY}-quantiles", QUANTILES)
    beside(page, "Tree")
    expect(page.get_by_role("list", name="Branches").get_by_role("link")).to_have_count(2)


def export_and_replay(page: Any) -> None:
    """Save the notebook, and run its cells again, which give the same."""
    show(page, KEY)
    panel = beside(page, "Record")
    with page.expect_download() as saved:
        panel.get_by_role("link", name="Notebook", exact=True).click()
    made = json.loads(Path(saved.value.path()).read_text())
    assert [each["cell_type"] for each in made["cells"]] == ["code"] * 5 + ["raw"]
    panel.get_by_role("button", name="Run all cells again").click()
    told = panel.get_by_role("region", name="Replay").get_by_role("status")
    expect(told).to_contain_text("5 same")
    expect(told).not_to_contain_text("different")


@pytest.mark.nightly
def test_an_analysts_day(page: Any, console: GatewayProcess, table: Path) -> None:
    begin(page, table)
    looked_at(page, "1-uploaded")
    read(page, console)
    looked_at(page, "2-table")
    draw(page, console)
    looked_at(page, "3-charts")
    move(page, console)
    looked_at(page, "4-widget")
    undo_and_branch(page, console)
    looked_at(page, "5-branch")
    export_and_replay(page)
    looked_at(page, "6-replayed")
