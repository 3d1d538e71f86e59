"""A gateway, and its console in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.conftest import serving
from tests.support.browser import complaints, driver, launched, link, opened
from tests.support.server import PATIENCE, GatewayProcess


@pytest.fixture(scope="session")
def console(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway for tests that need no options of their own; use a `session` key of your own."""
    with serving(tmp_path_factory.mktemp("console") / "data", "sandbox", pool_size=1) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for the tests of a module; each has a profile of its own in it."""
    with launched() as running:
        driver().expect.set_options(timeout=1000 * PATIENCE)
        yield running


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
