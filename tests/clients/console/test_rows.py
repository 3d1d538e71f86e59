"""Tables of a session's kernel in the console: they open as rows, by pages, sorted and filtered.

Times are not asserted; ``pytest -s`` shows them.
"""

from __future__ import annotations

import statistics
from typing import Any

import pytest

from tests.clients.console.using import expect, show, tab
from tests.support.server import GatewayProcess

TABLES = """
import numpy as np, pandas as pd
cities = pd.DataFrame({"city": ["Oslo", "nan", None], "height": [23.0, None, 7.5]})
cities["text"] = ["a\\nb", "x" * 500, ""]
wide = pd.DataFrame(np.zeros((2, 250)))
plain = [1, 2]
def scale(value): return value
"""
LARGE = """
import numpy as np, pandas as pd
rng = np.random.default_rng(1)
n = 1_000_000
large = pd.DataFrame({f"c{i}": rng.normal(size=n) for i in range(8)} | {
    "place": rng.integers(0, 1000, n), "name": rng.choice(["Oslo", "Bergen", "Hamar"], n),
    "day": pd.date_range("2000-01-01", periods=n, freq="min"), "row": range(n)})
"""
# From the click to the frame after the one that shows the first row whose number is another than before.
PAINTED = """
async (act) => {
  const before = document.querySelector(".rows-pages [role=status]")?.textContent;
  const begun = performance.now();
  document.querySelector(act).click();
  for (;;) {
    const now = document.querySelector(".rows-pages [role=status]")?.textContent;
    if (now && now !== before) break;
    await new Promise((resolve) => setTimeout(resolve));
  }
  await new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
  return performance.now() - begun;
}
"""


def opened(page: Any, console: GatewayProcess, session: str, code: str = TABLES) -> Any:
    """The panel of variables of a session with these."""
    assert console.execute(session, code)["status"] == "ok"
    show(page, session)
    return tab(page, "Variables")


def texts(page: Any) -> list[list[str]]:
    """What the rows show."""
    found: list[list[str]] = page.locator("table.rows tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.children].map((cell) => cell.textContent))"
    )
    return found


def test_data_comes_first_and_the_rest_is_folded(page: Any, console: GatewayProcess) -> None:
    panel = opened(page, console, "folded", "plain = [1, 2]\nimport math\n" + TABLES)
    names = panel.get_by_role("list", name="Variables", exact=True).get_by_role("listitem").locator(".name")
    expect(names).to_have_text(["cities", "wide", "plain"])
    expect(panel.get_by_role("listitem").filter(has_text="cities")).to_contain_text("3 rows, 3 columns")
    expect(panel.get_by_role("listitem").filter(has_text="wide").locator(".size")).to_have_text("3.9 KiB")
    expect(panel.get_by_role("listitem").filter(has_text="plain").locator(".size")).to_have_text("128 B")
    expect(panel.get_by_text("scale", exact=True)).to_be_hidden()
    panel.get_by_text("4 modules, functions and classes").click()
    expect(panel.get_by_text("scale", exact=True)).to_be_visible()
    panel.get_by_role("button", name="Describe cities").click()
    expect(panel.get_by_label("About cities")).to_contain_text("DataFrame")


def test_a_table_opens_as_rows(page: Any, console: GatewayProcess, quiet: list[str]) -> None:
    panel = opened(page, console, "rows")
    panel.get_by_role("button", name="cities", exact=True).click()
    dialog = page.get_by_role("dialog", name="Rows of cities")
    expect(dialog).to_contain_text("DataFrame, 3 rows, 3 columns")
    expect(dialog.get_by_role("columnheader", name="height float64")).to_be_visible()
    found = texts(page)
    assert [row[:3] for row in found] == [
        ["0", "Oslo", "23"],
        ["1", "nan", "missing"],
        ["2", "missing", "7.5"],
    ]
    assert found[0][3] == "a↵b"
    assert found[1][3].startswith("500 characters xxx")
    expect(dialog.get_by_role("status")).to_have_text("Rows 0 to 2 of 3")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(panel.get_by_role("button", name="cities", exact=True)).to_be_focused()


def test_rows_are_sorted_by_the_keyboard(page: Any, console: GatewayProcess) -> None:
    panel = opened(page, console, "sorted-rows")
    panel.get_by_role("button", name="cities", exact=True).press("Enter")
    head = page.get_by_role("columnheader", name="height float64")
    expect(head).to_have_attribute("aria-sort", "none")
    for order, cities in (
        ("ascending", ["missing", "Oslo", "nan"]),
        ("descending", ["Oslo", "missing", "nan"]),
        ("none", ["Oslo", "nan", "missing"]),
    ):
        head.get_by_role("button").press("Enter")
        expect(head).to_have_attribute("aria-sort", order)
        expect(page.locator("table.rows tbody td:nth-child(2)")).to_have_text(cities)
        expect(head.get_by_role("button")).to_be_focused()


def test_rows_are_filtered(page: Any, console: GatewayProcess) -> None:
    panel = opened(page, console, "filtered-rows")
    panel.get_by_role("button", name="cities", exact=True).click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Filter rows").fill("OSL")
    expect(dialog.get_by_role("status")).to_have_text("Rows 0 to 0 of 1, filtered from 3")
    assert [row[1] for row in texts(page)] == ["Oslo"]
    dialog.get_by_label("Filter rows").fill("> 5")
    dialog.get_by_label("Column to filter").select_option("height")
    expect(dialog.get_by_role("status")).to_have_text("Rows 0 to 1 of 2, filtered from 3")
    dialog.get_by_label("Filter rows").fill("> high")
    expect(dialog.get_by_role("alert")).to_contain_text("can't be compared")
    dialog.get_by_label("Filter rows").fill("=")
    expect(dialog.get_by_role("status")).to_have_text("Rows 0 to 0 of 1, filtered from 3")
    expect(dialog.get_by_role("alert")).to_have_count(0)


def test_of_many_columns_some_are_shown(page: Any, console: GatewayProcess) -> None:
    panel = opened(page, console, "wide-rows")
    panel.get_by_role("button", name="wide", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_text("Columns 0 to 99 of 250")).to_be_visible()
    dialog.get_by_role("button", name="More").click()
    expect(dialog.get_by_role("columnheader", name="100 float64")).to_be_attached()
    dialog.get_by_role("button", name="More").click()
    expect(dialog.get_by_text("Columns 200 to 249 of 250")).to_be_visible()


def test_rows_follow_the_cells_and_wait_for_them(page: Any, console: GatewayProcess) -> None:
    panel = opened(page, console, "followed-rows")
    panel.get_by_role("button", name="cities", exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog.get_by_role("cell", name="Oslo")).to_be_visible()
    execution = console.submit("followed-rows", "cities.loc[0, 'city'] = 'Bodø'; input()")
    expect(dialog.get_by_text("The kernel is working")).to_be_visible()
    dialog.get_by_role("columnheader", name="height").get_by_role("button").click()
    expect(dialog.get_by_role("cell", name="Oslo")).to_be_visible()
    console.answer("followed-rows", execution)
    expect(dialog.get_by_role("cell", name="Bodø")).to_be_visible()
    expect(dialog.get_by_text("The kernel is working")).to_have_count(0)
    console.execute("followed-rows", "del cities")
    expect(dialog.get_by_role("alert")).to_contain_text("no variable 'cities'")


def test_hostile_names_and_texts_stay_text(page: Any, console: GatewayProcess) -> None:
    mark = "<img src=x onerror=document.title='taken'>"
    code = f"import pandas as pd; odd = pd.DataFrame({{{mark!r}: [{mark!r}, 'a\\u202eb']}})"
    panel = opened(page, console, "hostile-rows", code)
    panel.get_by_role("button", name="odd", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("cell", name=mark)).to_be_visible()
    assert texts(page)[1][1] == "a\ufffdb"
    expect(page.locator("img[src=x]")).to_have_count(0)


def test_a_million_rows(page: Any, console: GatewayProcess, capsys: pytest.CaptureFixture[str]) -> None:
    panel = opened(page, console, "large-rows", LARGE)
    expect(panel.get_by_role("button", name="large", exact=True)).to_be_visible()
    took: dict[str, list[float]] = {"open": [], "next": [], "last": []}
    for _ in range(7):
        took["open"].append(page.evaluate(PAINTED, "button.name[aria-haspopup=dialog]"))
        dialog = page.get_by_role("dialog")
        for _ in range(3):
            took["next"].append(page.evaluate(PAINTED, ".rows-pages button:nth-last-of-type(2)"))
        took["last"].append(page.evaluate(PAINTED, ".rows-pages button:last-of-type"))
        expect(dialog.get_by_role("status")).to_have_text("Rows 999,900 to 999,999 of 1,000,000")
        assert texts(page)[-1][-1] == "999999"
        page.keyboard.press("Escape")
        expect(dialog).to_have_count(0)
    panel.get_by_role("button", name="large", exact=True).click()
    page.get_by_label("Go to row").fill("123456")
    page.get_by_label("Go to row").press("Enter")
    expect(page.get_by_role("status").filter(has_text="Rows")).to_have_text(
        "Rows 123,456 to 123,555 of 1,000,000"
    )
    assert texts(page)[0][-1] == "123456"
    told = {name: (round(statistics.median(each)), round(max(each))) for name, each in took.items()}
    with capsys.disabled():
        print(f"\na million rows, in ms to the pixels (median, most): {told}")
