"""The console's third-party files are those that the manifest tells of, and they bring in nothing else."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.vendor import (
    DRAWING,
    IMAGE,
    LOCK,
    MANIFEST,
    MAPS,
    SCRIPTS,
    SOURCES,
    STILLS,
    STILLS_MAPS,
    VENDOR,
)

Entry = dict[str, Any]

MANIFESTED: dict[str, Any] = json.loads((VENDOR / MANIFEST).read_text())
ENTRIES: list[Entry] = MANIFESTED["scripts"]
OF_STILLS: list[Entry] = MANIFESTED["stills"]
LICENCES = {"MIT", "ISC", "BSD-2-Clause", "BSD-3-Clause", "Apache-2.0"}
"""Those that let a program under Apache-2.0 ship the code; a renewal that brings another needs a decision."""
IMPORTED = re.compile(rb"""\b(?:import|from)\s*\(?\s*["'`](?:https?:|//)""")
MAPPED = re.compile(rb"^\s*(?://|/\*)[#@] sourceMappingURL", re.MULTILINE)
"""The comment that leads a browser's tools to a map of the sources; a text in postcss names it, too."""
MOST_GZIPPED = {
    "preact": 12_000,
    "sha256": 4_000,
    "codemirror": 200_000,
    "tables": 50_000,
    "markdown-it": 50_000,
    "katex": 90_000,
    "vega": 330_000,
    "plotly": 1_600_000,
    "plotly-maps": 260_000,
    "widgets": 270_000,
}
"""Bytes as they are sent. Who opens the page waits for the first; the others come when they are needed."""

each_script = pytest.mark.parametrize("entry", ENTRIES, ids=[entry["name"] for entry in ENTRIES])


def facts(path: Path) -> dict[str, Any]:
    data = path.read_bytes()
    return {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}


def test_every_file_is_in_the_manifest_and_nothing_else_is() -> None:
    expected = {MANIFEST, *MANIFESTED["index"]}
    expected |= {f"{entry['folder']}/{name}" for entry in ENTRIES for name in entry["files"]}
    found = {path.relative_to(VENDOR).as_posix() for path in VENDOR.rglob("*") if path.is_file()}
    assert found == expected


def test_every_script_for_stills_is_in_the_manifest_and_nothing_else_is() -> None:
    assert {path.name for path in DRAWING.iterdir()} == {f"{entry['name']}.js" for entry in OF_STILLS}


def test_the_short_names_are_as_they_were_made() -> None:
    assert {name: facts(VENDOR / name) for name in MANIFESTED["index"]} == MANIFESTED["index"]


@each_script
def test_a_script_is_as_it_was_made_and_named_after_its_content(entry: Entry) -> None:
    folder = VENDOR / entry["folder"]
    assert {name: facts(folder / name) for name in entry["files"]} == entry["files"]
    script = entry["files"][f"{entry['name']}.js"]
    assert entry["folder"] == f"{entry['name']}-{entry['version']}-{script['sha256'][:8]}"


@each_script
def test_a_script_tells_what_it_is_made_of_and_under_which_licences(entry: Entry) -> None:
    texts = (VENDOR / entry["folder"] / "LICENSE").read_text()
    check_parts(entry, texts)


def check_parts(entry: Entry, texts: str) -> None:
    packages = json.loads((SOURCES / LOCK).read_text())["packages"]
    locked = {
        (path.rpartition("node_modules/")[2], each["version"]): each
        for path, each in packages.items()
        if path
    }
    locked[MAPS["name"], MAPS["version"]] = MAPS
    assert entry["made_of"]
    for part in entry["made_of"]:
        assert part["integrity"] == locked[part["name"], part["version"]]["integrity"]
        assert part["licence"] in LICENCES, part
        assert f"==== {part['name']} {part['version']}: {part['licence']}\n" in texts


@each_script
def test_a_script_brings_in_nothing_from_elsewhere(entry: Entry) -> None:
    code = (VENDOR / entry["folder"] / f"{entry['name']}.js").read_bytes()
    assert MAPPED.findall(code) == []
    assert IMPORTED.findall(code) == []


@each_script
def test_a_script_is_no_larger_than_its_readers_may_wait_for(entry: Entry) -> None:
    code = (VENDOR / entry["folder"] / f"{entry['name']}.js").read_bytes()
    assert len(gzip.compress(code, 9)) <= MOST_GZIPPED[entry["name"]]


@pytest.mark.parametrize("entry", OF_STILLS, ids=[entry["name"] for entry in OF_STILLS])
def test_a_script_for_stills_is_as_it_was_made_and_begins_with_its_licences(entry: Entry) -> None:
    script = DRAWING / f"{entry['name']}.js"
    assert facts(script) == entry["file"]
    assert IMPORTED.findall(script.read_bytes()) == []
    check_parts(entry, script.read_text().partition("*/")[0])


def test_the_console_draws_plotly_figures_with_the_plotly_js_that_they_are_made_for() -> None:
    """Figures of one major are drawn wrongly by another: the lock says which plotly makes them."""
    major = {"6": "3"}  # of plotly.py, and of the plotly.js that is in its package
    (made_by,) = re.findall(r"^plotly==(\d+)\.", (IMAGE / "standard.lock").read_text(), re.MULTILINE)
    assert {entry["version"].partition(".")[0] for entry in ENTRIES if "plotly" in entry["name"]} == {
        major[made_by]
    }


def test_the_versions_are_pinned_and_the_lock_names_no_address() -> None:
    pinned = json.loads((SOURCES / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+", version) for version in pinned.values())
    lock = json.loads((SOURCES / LOCK).read_text())["packages"]
    assert lock[""]["dependencies"] == pinned
    assert [name for name, package in lock.items() if "resolved" in package] == []
    versions = {script.name: pinned[script.package] for script in SCRIPTS} | {"plotly-maps": MAPS["version"]}
    assert {entry["name"]: entry["version"] for entry in ENTRIES} == versions
    stills = {script.name: pinned[script.package] for script in STILLS} | {STILLS_MAPS: MAPS["version"]}
    assert {entry["name"]: entry["version"] for entry in OF_STILLS} == stills
