"""A session of 300 cells, at night 10,000: what is in the document, and whether everything can be reached.

Times are not asserted; ``pytest -s`` shows them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.clients.console.using import cells, ended, expect, run, show, tab
from tests.conftest import StartGateway
from tests.support.browser import link, opened
from tests.support.server import GatewayProcess, until

pytestmark = [pytest.mark.usefixtures("quiet"), pytest.mark.timeout(600)]

COUNT, AT_NIGHT = 300, 10_000
"""Cells of the session at first; a test adds one of the same form, whenever its turn is."""
AT_ONCE = 60
MOST_DRAWN = 80
"""Cells in the document, of any session and on any screen of a test."""

WATCH = """
() => {
  window.frames = [];
  window.drawn = 0;
  let last = performance.now();
  const frame = (now) => {
    window.frames.push(now - last);
    window.drawn = Math.max(window.drawn, document.querySelectorAll("article").length);
    last = now;
    window.watching = requestAnimationFrame(frame);
  };
  window.watching = requestAnimationFrame(frame);
}
"""
TOLD = """
() => {
  cancelAnimationFrame(window.watching);
  const frames = window.frames.slice(1).sort((one, other) => one - other);
  const at = (part) => Math.round(frames[Math.floor(part * (frames.length - 1))]);
  const heap = performance.memory ? Math.round(performance.memory.usedJSHeapSize / 2 ** 20) : 0;
  return {frames: frames.length, p50: at(0.5), p99: at(0.99), longest: at(1), heap, drawn: window.drawn};
}
"""


def code(number: int) -> str:
    """The code of the cell of this number; its output is another than any number's code."""
    return f"# {number}\nprint({number} * 2)"


def count(console: GatewayProcess) -> int:
    """How many cells the session has now."""
    counted: int = console.get("/v1/sessions/long?usage=true").json()["executions"]
    return counted


@pytest.fixture(scope="module")
def long(console: GatewayProcess, pytestconfig: pytest.Config) -> str:
    """The key of a session of so many cells."""
    total = AT_NIGHT if pytestconfig.getoption("--nightly") else COUNT
    for start in range(0, total, AT_ONCE):
        numbers = range(start, min(total, start + AT_ONCE))
        blocks = [{"language": "python", "code": code(n)} for n in numbers]
        answer = console.post("/v1/sessions/long/execute-blocks", {"blocks": blocks}, timeout=120)
        assert answer.status == 200, answer.body
        assert answer.json()["exit_code"] == 0
    return "long"


SCROLLED = """
async (box, part) => {
  box.scrollTop = part * (box.scrollHeight - box.clientHeight);
  for (let frames = 0; frames < 3; frames += 1) await new Promise(requestAnimationFrame);
}
"""
ON_SCREEN = """
box => {
  const around = box.getBoundingClientRect();
  const shown = [...box.querySelectorAll("article")].filter((each) => {
    const {top, bottom} = each.getBoundingClientRect();
    return bottom > around.top && top < around.bottom;
  });
  return shown.map((each) => each.querySelector(".source")?.innerText ?? null);
}
"""


def memory(page: Any) -> int:
    """MiB that the browser has for pages, where this is the only one; what is shared counts in parts."""
    browser = page.context.browser.new_browser_cdp_session()
    processes = browser.send("SystemInfo.getProcessInfo")["processInfo"]
    browser.detach()
    found = 0
    for each in processes:
        if each["type"] == "renderer":
            told = Path(f"/proc/{each['id']}/smaps_rollup").read_text()
            found += int(re.findall(r"^Pss: +(\d+) kB", told, re.MULTILINE)[0])
    return found // 1024


def scroll(page: Any, part: float) -> None:
    """Move the list's scroll bar."""
    page.locator(".feed-box").evaluate(SCROLLED, part)


def visible(page: Any) -> list[str]:
    """What the cells on the screen show, once all of them have been read."""

    def read() -> list[str] | None:
        shown: list[str] = page.locator(".feed-box").evaluate(ON_SCREEN)
        return shown if shown and None not in shown else None

    return until(read, "cells are not read")


@pytest.mark.nightly
def test_any_part_of_it_is_a_moment_away(
    page: Any, long: str, console: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    total = count(console)
    show(page, long)
    expect(page.locator(".session-head")).to_contain_text(f"{total:,} cells")
    expect(page.get_by_text(f"print({total - 1} * 2)")).to_be_visible()
    page.evaluate(WATCH)
    for part in (0.5, 0.0, 0.25, 0.9, 0.33, 1.0, 0.66):
        scroll(page, part)
        shown = visible(page)
        numbers = [int(each.split("\n")[0].removeprefix("# ")) for each in shown]
        assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
        assert len(numbers) > 2
        assert abs(numbers[0] / total - part) < 0.1
    page.locator(".feed-box").hover()
    for _ in range(60):
        page.mouse.wheel(0, 900)
        page.wait_for_timeout(16)
    assert visible(page)
    told = page.evaluate(TOLD)
    with capsys.disabled():
        print(f"\n{total:,} cells, jumps and wheel: {told}; the tab has {memory(page)} MiB")
    assert told["drawn"] < MOST_DRAWN


def test_its_first_cell_is_found_by_its_link(page: Any, long: str, console: GatewayProcess) -> None:
    first = console.get(f"/v1/sessions/{long}/executions?limit=1").json()["executions"][0]["execution"]
    show(page, long, first)
    cell = page.locator(f"#cell-{first}")
    expect(cell).to_be_in_viewport()
    expect(cell).to_contain_text("print(0 * 2)")
    expect(cell).to_have_attribute("aria-posinset", "1")
    expect(cell).to_have_attribute("aria-setsize", str(count(console)))


def test_a_new_cell_is_seen_at_its_end(page: Any, long: str, console: GatewayProcess) -> None:
    total = count(console)
    show(page, long)
    expect(page.get_by_text(f"print({total - 1} * 2)")).to_be_visible()
    tab(page, "Files")
    scroll(page, 0.5)
    visible(page)
    page.locator(".cm-content").focus()
    page.keyboard.insert_text(code(total))
    page.keyboard.press("Shift+Enter")
    expect(page.get_by_text(str(total * 2), exact=True)).to_be_in_viewport()
    expect(page.get_by_role("button", name="Latest")).to_have_count(0)
    assert cells(page).count() < MOST_DRAWN


def test_the_way_to_the_end_covers_nothing_and_goes(page: Any, long: str, console: GatewayProcess) -> None:
    show(page, long)
    latest = page.get_by_role("button", name="Latest")
    expect(page.get_by_text(f"print({count(console) - 1} * 2)")).to_be_visible()
    expect(latest).to_have_count(0)
    scroll(page, 0.5)
    feed, button = page.locator(".feed-box").bounding_box(), latest.bounding_box()
    assert feed["y"] + feed["height"] <= button["y"]
    latest.click()
    expect(page.get_by_text(f"print({count(console) - 1} * 2)")).to_be_in_viewport()
    expect(latest).to_have_count(0)


@pytest.mark.nightly
def test_a_flood_of_output_leaves_the_page_alive(
    page: Any, console: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """What 200,000 lines leave in the document is a window of them."""
    console.post("/v1/sessions", {"session": "flood"})
    show(page, "flood")
    page.evaluate(WATCH)
    cell = run(page, "for number in range(200_000): print('line', number, 'x' * 40)")
    expect(cell.locator(".cell-status")).to_have_text("done")
    told = page.evaluate(TOLD)
    with capsys.disabled():
        print(f"\n200,000 lines: {told}")
    assert page.evaluate("document.querySelectorAll('*').length") < 20_000


@pytest.mark.nightly
def test_fifty_megabytes_leave_the_page_alive(
    browser: Any, sandbox: None, start_gateway: StartGateway, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a gateway that keeps so much; while the cell prints them, and as its record has them."""
    gateway = start_gateway(backend="sandbox", text_cap="64m")
    gateway.post("/v1/sessions", {"session": "large"})
    with opened(browser) as page:
        page.goto(link(gateway, "#/sessions/large"))
        page.evaluate(WATCH)
        cell = run(
            page, "text = ('x' * 49 + '\\n') * 10_000\nfor _ in range(100): print(text, end='', flush=True)"
        )
        ended(cell)
        told = page.evaluate(TOLD)
        whole = cell.get_by_role("link", name="Download the whole text")
        expect(whole).to_be_visible()
        page.reload()
        page.evaluate(WATCH)
        expect(cells(page).first.get_by_role("link", name="Download the whole text")).to_be_visible()
        again = page.evaluate(TOLD)
        with page.expect_download() as saved:
            cells(page).first.get_by_role("link", name="Download the whole text").click()
        assert saved.value.path().stat().st_size == 50_000_000
        with capsys.disabled():
            print(f"\n50 MB: {told}; out of the record: {again}; the tab has {memory(page)} MiB")


SEEN = """
() => {
  window.delays = new Map();
  const look = () => {
    const now = Date.now() / 1000;
    // Between two views there is none.
    const shown = document.querySelector("article")?.textContent ?? "";
    for (const found of shown.matchAll(/t=([0-9.]+);/g))
      if (!window.delays.has(found[1])) window.delays.set(found[1], 1000 * (now - Number(found[1])));
  };
  new MutationObserver(() => requestAnimationFrame(look)).observe(document.body, {
    subtree: true, childList: true, characterData: true,
  });
}
"""


def test_every_line_is_seen_as_it_is_printed(
    page: Any, console: GatewayProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """60 lines, a moment apart; it is told how long each took from the kernel to the frame that shows it."""
    console.post("/v1/sessions", {"session": "prompt"})
    show(page, "prompt")
    page.evaluate(SEEN)
    line = "print(f't={time.time()};', flush=True)"
    cell = run(page, f"import time\nfor _ in range(60):\n    {line}\n    time.sleep(0.05)")
    expect(cell.locator(".cell-status")).to_have_text("done")
    page.wait_for_function("window.delays.size === 60")
    delays = sorted(page.evaluate("[...window.delays.values()]"))
    with capsys.disabled():
        print(f"\nfrom kernel to pixels, in ms: p50 {delays[30]:.0f}, p95 {delays[57]:.0f}")
