"""The table of paths against paths that are made to take long."""

from __future__ import annotations

import re

import pytest

from cellgate.doors.table import DOORS
from cellgate.http.routes import CONSOLE, JUPYTER, TABLE, pattern

LONGEST = 64 * 1024
"""Bytes of the longest head that a client can send."""

DOOR_PATHS = [path for routes in DOORS.values() for path, _ in routes]
PATHS = [path for path, _ in (*TABLE, *JUPYTER, *CONSOLE)]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("unit", [".", "/", "a.", ".a", "./", "%2e", "a/b.c/"])
@pytest.mark.parametrize("end", ["", "/", "?", ".", "/x/"])
def test_no_path_is_looked_at_again_and_again(unit: str, end: str) -> None:
    """Whoever is refused is matched too. One whose time grows with the square of its length takes minutes."""
    for path in PATHS:
        begin = path.partition("{")[0]
        asked = begin + unit * ((LONGEST - len(begin)) // len(unit)) + end
        re.match(f"{pattern(path)}$", asked)
    for path in DOOR_PATHS:
        begin = re.split(r"[({]", path)[0]
        asked = begin + unit * ((LONGEST - len(begin)) // len(unit)) + end
        re.match(f"{pattern(path)}$", asked)


@pytest.mark.parametrize("name", ["app.css", "app/main.js", "vendor/preact-10.0/preact.js", "icon.svg"])
def test_files_of_the_console_have_a_path(name: str) -> None:
    found = [re.match(f"{pattern(path)}$", f"/console/{name}") for path, _ in CONSOLE]
    assert [each[1] for each in found if each] == [name]
