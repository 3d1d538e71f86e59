"""The client's page names each method, and each option of a session's."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.client import Gateway, Session
from cellgate.client.files import Files
from cellgate.wire.models import CellKeywords

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "python.md"
OF_THE_CLIENT = {"opened", "provenance"}
"""What the client and its own commands need."""


def methods() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield the methods with their options; the gateway's have those of the session's."""
    for kind in (Gateway, Session, Files):
        for name, method in inspect.getmembers(kind, inspect.isfunction):
            if name.startswith("_") or name in OF_THE_CLIENT:
                continue
            given = inspect.signature(method).parameters.values()
            options = [each.name for each in given if each.kind is each.KEYWORD_ONLY]
            options += CellKeywords.__annotations__ if (kind, name) == (Session, "run") else []
            yield name, () if kind is Gateway else tuple(options)


@pytest.mark.parametrize(("name", "options"), [*methods()])
def test_the_page_has_it(name: str, options: tuple[str, ...]) -> None:
    lines = [line for line in PAGE.read_text().splitlines() if re.search(rf"\b{name}\b", line)]
    assert lines
    assert [option for option in options if not re.search(rf"\b{option}\b", "\n".join(lines))] == []
