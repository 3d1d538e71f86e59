"""What somebody waits for who comes for the first time: what is fetched, and how soon something is seen.

Times are not asserted; ``pytest -s`` shows them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.clients.console.mounting import display, framed, mount, wait_until
from tests.clients.console.using import cells, expect, show
from tests.support.browser import link, opened
from tests.support.commands import INSTALLED, environment
from tests.support.server import PATIENCE, GatewayProcess
from tests.support.terminal import Terminal

MOST_AT_FIRST = 300_000
"""Bytes of what is sent at first, compressed, with the editor; without answers of `/v1/`."""
MOST_WARM = 20_000
"""Bytes of a later load, fields of answers included: that nothing has changed."""
RENDERERS = ("markdown-it", "katex", "vega", "plotly")
WARM = 7

FETCHED = """
() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
  .filter(({ name }) => !name.startsWith("data:"))
  .map(({ name, encodedBodySize, transferSize }) => [name, { body: encodedBodySize, whole: transferSize }])
"""
SEEN = """
() => ({
  paint: performance.getEntriesByName("first-contentful-paint")[0]?.startTime,
  list: window.listed,
})
"""
LISTED = """
new MutationObserver(() => {
  if (window.listed === undefined && document.querySelector("table.sessions tbody tr")) {
    window.listed = 0;
    requestAnimationFrame(() => requestAnimationFrame(() => { window.listed = performance.now(); }));
  }
}).observe(document, { subtree: true, childList: true });
"""


@pytest.fixture
def page(console: GatewayProcess, browser: Any) -> Iterator[Any]:
    """A page of a browser that was never here, not yet signed in."""
    with opened(browser) as shown:
        yield shown


def fetched(page: Any) -> dict[str, dict[str, int]]:
    """What the document has asked for, and the bytes of each: its body's, and what was sent just now."""
    return dict(page.evaluate(FETCHED))


def test_the_first_load_is_small_and_all_the_gateways(
    page: Any, console: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    console.execute("looked-at", "1 + 1")
    asked: list[str] = []
    page.context.on("request", lambda request: asked.append(request.url))
    page.goto(link(console))
    expect(page.get_by_role("row").get_by_role("link", name="looked-at")).to_be_visible()
    expect(page.locator(".cm-content")).to_be_visible()
    # What the API answers grows with the sessions that others have made here.
    listed = sum(size["body"] for name, size in fetched(page).items() if "/v1/" not in name)
    show(page, "looked-at")
    expect(cells(page).first).to_contain_text("1 + 1")
    found = fetched(page)
    assert [url for url in found if any(name in url for name in RENDERERS)] == []
    assert any("codemirror-" in url for url in found)
    total = sum(size["body"] for size in found.values())
    assert 50_000 < listed <= MOST_AT_FIRST
    mount(page, display({"text/latex": "$x^2$"}))
    framed(page).locator("math msup").wait_for(timeout=1000 * PATIENCE)
    assert any("/vendor/katex-" in url for url in asked)
    assert [url for url in asked if any(name in url for name in ("vega", "plotly"))] == []
    elsewhere = [url for url in asked if not url.startswith((f"{console.url}/", "data:", "blob:", "about:"))]
    assert elsewhere == []
    with capsys.disabled():
        print(f"\nfirst load: {listed:,} bytes with the editor; with a session, {total:,}")


def test_a_page_that_was_seen_comes_out_of_the_browsers_cache(
    page: Any, console: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    console.execute("seen-again", "1 + 1")
    page.goto(link(console))
    expect(page.get_by_role("row").get_by_role("link", name="seen-again")).to_be_visible()
    page.add_init_script(LISTED)
    times = []
    for _ in range(WARM):
        page.goto(f"{console.url}/healthz")
        page.goto(f"{console.url}/")
        expect(page.get_by_role("row").get_by_role("link", name="seen-again")).to_be_visible()
        wait_until(page, "window.listed > 0")
        times.append(page.evaluate(SEEN))
    code = [size["whole"] for name, size in fetched(page).items() if "/console/" in name]
    assert len(code) > 30
    assert sum(code) < MOST_WARM
    paint, shown = (sorted(each[name] for each in times)[WARM // 2] for name in ("paint", "list"))
    with capsys.disabled():
        print(f"\nwarm, in ms: first paint {paint:.0f}, the list of sessions {shown:.0f}")


def test_from_the_start_of_a_gateway_to_a_plot(
    browser: Any, sandbox: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three actions, as the README has them: start it, open the link that it prints, run a cell."""
    times = [time.monotonic()]
    words = [str(INSTALLED), "serve", "--port=0", f"--data-dir={tmp_path / 'data'}"]
    with Terminal(words, tmp_path, environment()) as terminal:
        printed = re.search(r"^ +console +(\S+)\r?$", terminal.until("Stop:"), re.MULTILINE)
        assert printed is not None
        times.append(time.monotonic())
        with opened(browser) as page:
            page.goto(printed[1])
            first = page.locator(".cm-content[aria-label='Code of the first cell']")
            expect(first).to_be_focused()
            times.append(time.monotonic())
            page.keyboard.insert_text("import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.show()")
            page.keyboard.press("Shift+Enter")
            picture = cells(page).first.get_by_role("img")
            expect(picture).to_be_visible()
            assert picture.evaluate("image => image.decode().then(() => image.naturalWidth)") > 100
            times.append(time.monotonic())
        terminal.send("\x03")
        assert terminal.ended() == 0
    start, shown, plotted = (after - before for before, after in pairwise(times))
    with capsys.disabled():
        print(f"\nserve {start:.1f} s, the page {shown:.1f} s, a plot {plotted:.1f} s")
