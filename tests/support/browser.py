"""A real browser for tests of the console: Debian's Chromium, driven by Playwright in the test's own process.

Playwright is one of the clients that ``make clients`` installs in an environment of their own, of the same
Python; it is imported from there, behind everything else. As long as it runs, it has the event loop of its
thread: nothing else can run one there.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.requirements import require
from tests.support.server import PATIENCE, TOKEN, GatewayProcess

CLIENTS = Path(__file__).parents[2] / ".venv" / "clients"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
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


@contextmanager
def launched() -> Iterator[Any]:
    """A browser without a window, for as long as the context lasts."""
    sync_api = driver()
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        require("browser", "there is no Chromium; with apt-get: chromium")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(OPTIONS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser: Any, **options: Any) -> Iterator[Any]:
    """A page of a profile of its own."""
    context = browser.new_context(**{"viewport": DESKTOP, "locale": "en-GB", **options})
    try:
        context.set_default_timeout(1000 * PATIENCE)
        yield context.new_page()
    finally:
        context.close()


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
