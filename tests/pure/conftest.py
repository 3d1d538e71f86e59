"""What tests of several rooms need that no test of one room should pay for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="module")
def templates_compiled_once() -> Iterator[None]:
    from tests.support.templates import compiled_once  # nbconvert loads slowly; most tests need none

    with compiled_once():
        yield
