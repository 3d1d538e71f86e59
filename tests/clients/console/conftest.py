"""A gateway, and its console in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from cellgate_kernels.forking.server import MODULES
from tests.conftest import serving
from tests.support.browser import Browsers, complaints, link, opened
from tests.support.server import GatewayProcess

_BROWSERS = pytest.StashKey[Browsers]()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End the browsers after the last test in a row of this folder: Playwright has the thread's loop."""
    stash = item.config.stash
    if _BROWSERS in stash and (nextitem is None or nextitem.path.parent != item.path.parent):
        stash[_BROWSERS].close()
        del stash[_BROWSERS]


@pytest.fixture(scope="session")
def console(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway for tests that need no options of their own; use a `session` key of your own.

    It has room for the sessions of all of them, which last until its end.
    """
    data = tmp_path_factory.mktemp("console") / "data"
    options = {"max_kernels": 256, "doors": "dify,e2b", "zygote_modules": MODULES}
    with serving(data, "sandbox", pool_size=1, **options) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def browsers(pytestconfig: pytest.Config) -> Browsers:
    """Those of all tests of this folder that run in a row: a start costs more than most tests do."""
    if _BROWSERS not in pytestconfig.stash:
        pytestconfig.stash[_BROWSERS] = Browsers()
    return pytestconfig.stash[_BROWSERS]


@pytest.fixture(scope="module")
def browser(browsers: Browsers) -> Any:
    """A browser; each test has a profile of its own in it."""
    return browsers.get()


@pytest.fixture
def page(console: GatewayProcess, browser: Any) -> Iterator[Any]:
    """The console, signed in by a ticket."""
    with opened(browser) as shown:
        shown.goto(link(console))
        yield shown


@pytest.fixture
def quiet(page: Any) -> Iterator[list[str]]:
    """What the browser complains of; a test that expects some of it takes that out."""
    found = complaints(page)
    yield found
    assert found == []
