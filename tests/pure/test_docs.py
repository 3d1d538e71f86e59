"""The documentation as text: links lead somewhere, tables are readable, names exist, words are consistent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from cellgate.cli.main import CellgateApp
from cellgate.cli.serve.serve import ServeApp
from tests.support.reference_pages import PAGES, PROFILE, REFERENCE, profile

ROOT = Path(__file__).parents[2]
FOR_AGENTS = ROOT / "docs" / "llms.txt"
ALL = [FOR_AGENTS, *sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
WIDEST_TABLE = 200
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(`{3,}).*?^\1$", re.DOTALL | re.MULTILINE)
SETTING = re.compile(r"(?:--|\bc\.)ServeApp\.(\w+)")
COMMAND = re.compile(r"(?:^|`|\$ |bin/)cellgate (?:help )?([a-z]\w*)", re.MULTILINE)
# What stands behind ` -- ` is a cell's or a program's.
OPTIONS = re.compile(r"(?:^|`|\$ |bin/)cellgate (?:help )?([a-z]\w*)((?:(?! -- )[^`\n|>#])*)", re.MULTILINE)
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
NOT_OURS = re.compile(r"\b(?:meanwhile|lacking|lets? go|heard|wish|wishes|bounds?|bounded)\b", re.IGNORECASE)

pages = pytest.mark.parametrize("page", ALL, ids=lambda page: str(page.relative_to(ROOT)))


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), flags=re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)


@cache
def known_options() -> dict[str, str]:
    """The reference's section of each command."""
    found = re.split(r"^## cellgate (\w+)$", PAGES["commands.md"](), flags=re.MULTILINE)[1:]
    return dict(zip(found[::2], found[1::2], strict=True))


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
def test_commands_have_the_options_that_a_page_gives_them(page: Path) -> None:
    """Each long option of a command, also of one whose line goes on below."""
    text = page.read_text().replace("\\\n", " ")
    for command, rest in OPTIONS.findall(text):
        given = set(OPTION.findall(rest))
        assert given - set(OPTION.findall(known_options()[command])) == set(), f"cellgate {command}"


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


def test_the_seccomp_profile_is_what_the_code_has() -> None:
    """``make reference`` writes it."""
    assert PROFILE.read_text() == profile()
