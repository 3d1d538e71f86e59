"""The stills of a kernel's charts, with a program that draws as a test likes instead of Deno's."""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from cellgate_kernels.specs.environments import INSIDE
from tests.support.server import IN_TIME

VEGA, SVG, TEXT = "application/vnd.vega.v6+json", "image/svg+xml", "text/plain"
DRAWS = f"""#!{sys.executable} -S
import json, sys
for line in sys.stdin:
    value = json.loads(line)["value"]
    while value == "endless":
        sys.stdout.write("x" * 2**16)
    while value == "silent":
        sys.stdin.read()
    print(json.dumps({{"svg": value}}), flush=True)
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module, with such a program in the place of Deno."""
    spec = importlib.util.spec_from_file_location("stills", INSIDE / "stills.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    program = tmp_path / "deno"
    program.write_text(DRAWS)
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    return made


@pytest.fixture
def stills(module: ModuleType) -> Iterator[Any]:
    made = module.Stills()
    yield made
    made.end_cell()


def shown(stills: Any, value: str) -> dict[str, Any]:
    data = {VEGA: f'"{value}"'}
    stills.with_still({"content": {"data": data}})
    return data


def test_an_answer_without_end_is_not_read_to_its_end(stills: Any) -> None:
    stills.begin_cell()
    assert "without a still: it would be large." in shown(stills, "endless")[TEXT]
    assert stills.drawings == {}
    assert shown(stills, "next")[SVG] == "next"


def test_a_cell_has_so_much_time_for_all(
    stills: Any, module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    stills.begin_cell()
    assert shown(stills, "first")[SVG] == "first"
    assert 0 < stills.seconds < IN_TIME
    monkeypatch.setattr(module, "MOST_SECONDS", stills.seconds)
    data = shown(stills, "second")
    assert SVG not in data
    assert "the charts of this cell took" in data[TEXT]
    stills.end_cell()
    # The next cell's is its own.
    monkeypatch.setattr(module, "MOST_SECONDS", IN_TIME)
    stills.begin_cell()
    assert shown(stills, "third")[SVG] == "third"


def test_the_end_of_a_cell_does_not_wait_for_a_thread_s_chart(stills: Any) -> None:
    stills.begin_cell()
    shown(stills, "first")
    data: dict[str, Any] = {}
    thread = threading.Thread(target=lambda: data.update(shown(stills, "silent")))
    thread.start()
    while not stills.lock.locked():
        thread.join(0.001)
    stills.end_cell()
    thread.join(IN_TIME)
    assert SVG not in data
    assert TEXT in data


def test_between_cells_nothing_stays(stills: Any) -> None:
    assert shown(stills, "first")[SVG] == "first"
    assert stills.drawings == {}
    stills.begin_cell()
    assert shown(stills, "second")[SVG] == "second"
    assert len(stills.drawings) == 1
    stills.end_cell()
    assert stills.drawings == {}


def test_a_child_has_nothing_of_its_parent_s(stills: Any) -> None:
    stills.begin_cell()
    shown(stills, "first")
    (drawing,) = stills.drawings.values()
    with stills.lock:
        stills.let_go()
        assert not stills.lock.locked()
        # Here its pipes were the only ones: it ends by itself, and was not killed.
        assert drawing.process.wait(IN_TIME) == 0
    assert shown(stills, "second")[SVG] == "second"
    drawing.end()
