"""The documentation as text: links lead somewhere, tables are readable, names exist, words are consistent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cellgate.cli.main import CellgateApp
from cellgate.cli.serve import ServeApp
from tests.support.reference_pages import PAGES, REFERENCE

ROOT = Path(__file__).parents[2]
FOR_AGENTS = ROOT / "docs" / "llms.txt"
ALL = [FOR_AGENTS, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WIDEST_TABLE = 200
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(`{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
SETTING = re.compile(r"(?:--|\bc\.)ServeApp\.(\w+)")
COMMAND = re.compile(r"(?:^|`|\$ |bin/)cellgate (?:help )?([a-z]\w*)", re.MULTILINE)
NOT_OURS = re.compile(r"\b(?:meanwhile|lacking|lets? go|heard|wish|wishes|bounds?|bounded)\b", re.IGNORECASE)

pages = pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), flags=re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


def broken_links(page: Path) -> Iterator[str]:
    """Links of a page to a file or a heading that there is not."""
    for link in LINK.findall(FENCE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        if "://" in link or link.startswith("mailto:"):
            continue
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@pages
def test_links_lead_to_a_file_and_a_heading(page: Path) -> None:
    """Every relative link and its anchor."""
    assert list(broken_links(page)) == []


@pages
def test_lines_of_tables_are_short_enough_to_read(page: Path) -> None:
    """A table is no place for paragraphs."""
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")]
    assert [row for row in rows if len(row) > WIDEST_TABLE] == []


@pages
def test_settings_and_commands_exist(page: Path) -> None:
    """What a page tells to set or to call is there."""
    text = page.read_text()
    assert set(SETTING.findall(text)) - {"NAME"} <= set(ServeApp.class_trait_names(config=True))
    assert set(COMMAND.findall(text)) <= set(CellgateApp.subcommands)


@pages
def test_words_are_those_of_the_glossary(page: Path) -> None:
    """One word for one thing; the glossary itself names the words that are not used."""
    if page.name != "glossary.md":
        assert NOT_OURS.findall(page.read_text()) == []


def test_agents_find_every_page() -> None:
    """llms.txt has each page of the documentation once, on a line that says what is there."""
    entries = re.findall(r"^- \[[^\]]+\]\(([^)]+)\): .", FOR_AGENTS.read_text(), flags=re.MULTILINE)
    documents = (path.relative_to(FOR_AGENTS.parent) for path in FOR_AGENTS.parent.rglob("*.md"))
    assert sorted(entries) == sorted(map(str, documents))


@pytest.mark.parametrize("name", PAGES)
def test_generated_pages_are_up_to_date(name: str) -> None:
    """`make reference` writes them."""
    assert (REFERENCE / name).read_text() == PAGES[name]()
