"""A real browser for tests of the console: Debian's Chromium, driven by Playwright in the test's own process.

Playwright is one of the clients that ``make clients`` installs in an environment of their own, of the same
Python; it is imported from there, behind everything else. As long as it runs, it has the event loop of its
thread: nothing else can run one there.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.support.requirements import require
from tests.support.server import PATIENCE, TOKEN, GatewayProcess

CLIENTS = Path(__file__).parents[2] / ".venv" / "clients"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
WITHOUT_WINDOW = "chromium-headless-shell"
"""Chromium's pages without what is around them in a window: it starts, and draws, for half the price."""
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-dev-shm-usage")
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 360, "height": 740}


def driver() -> Any:
    """Playwright's synchronous interface. Skips the test where the clients are not installed."""
    found = list((CLIENTS / "lib").glob("python*/site-packages/playwright"))
    if not found or not (CLIENTS / ".setup-done").exists():
        require("clients", "the clients are not installed; run: make clients")
    if str(found[0].parent) not in sys.path:
        sys.path.append(str(found[0].parent))
    from playwright import sync_api

    return sync_api


def program(*, whole: bool = False) -> str:
    """The path of a browser; skips the test where there is none.

    `whole`: with all that one with windows has; else without, where that is installed.
    """
    wanted = BROWSERS if whole else (WITHOUT_WINDOW, *BROWSERS)
    found = next(filter(None, map(shutil.which, wanted)), None)
    if found is None:
        require("browser", "there is no Chromium; with apt-get: chromium")
    return found


class Browsers:
    """Playwright, and the browsers that it has launched: one of each kind, when it is first asked for."""

    def __init__(self) -> None:
        sync_api = driver()
        sync_api.expect.set_options(timeout=1000 * PATIENCE)
        self._stack = ExitStack()
        self._playwright = self._stack.enter_context(sync_api.sync_playwright())
        self._launched: dict[str, Any] = {}

    def get(self, *, whole: bool = False) -> Any:
        """A browser, as `program` has it."""
        path = program(whole=whole)
        if path not in self._launched:
            browser = self._playwright.chromium.launch(executable_path=path, args=list(OPTIONS))
            self._stack.callback(browser.close)
            self._launched[path] = browser
        return self._launched[path]

    def close(self) -> None:
        """End them all."""
        self._stack.close()


@contextmanager
def opened(browser: Any, **options: Any) -> Iterator[Any]:
    """A page of a profile of its own. Nothing moves by itself in it: each frame costs a processor."""
    usual = {"viewport": DESKTOP, "locale": "en-GB", "reduced_motion": "reduce"}
    context = browser.new_context(**{**usual, **options})
    try:
        context.set_default_timeout(1000 * PATIENCE)
        yield context.new_page()
    finally:
        context.close()


NOTICED = """(text) => {
  window.noticed = new Promise((resolve) => {
    const said = () => [...document.querySelectorAll("[role=status]")].map((each) => each.textContent);
    const shown = () => said().some((each) => each.includes(text));
    new MutationObserver(() => shown() && resolve(true)).observe(document.body, {
      subtree: true, childList: true, characterData: true,
    });
  });
}"""


@contextmanager
def noticed(page: Any, text: str) -> Iterator[None]:
    """A status with this text comes up in the block or behind it, in however short a moment it goes again."""
    page.evaluate(NOTICED, text)
    yield
    assert page.evaluate("window.noticed")


def complaints(page: Any) -> list[str]:
    """What the browser complains of from now on: errors of scripts, and what a policy forbade."""
    found: list[str] = []
    page.on("console", lambda told: found.append(told.text) if told.type == "error" else None)
    page.on("pageerror", lambda error: found.append(f"{error.message}\n{error.stack}"))
    return found


def link(gateway: GatewayProcess, fragment: str = "", token: str = TOKEN) -> str:
    """The address that signs a browser in, as ``cellgate open`` prints it."""
    answer = gateway.post("/v1/console", token=token)
    assert answer.status == 200, answer.body
    return str(answer.json()["url"]) + fragment
