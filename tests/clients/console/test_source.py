"""What the page's files must not have, and what its document must name: read as text, without a browser."""

from __future__ import annotations

import re

import pytest

from cellgate.console.assets import STATIC

OWN = sorted(
    path.relative_to(STATIC).as_posix()
    for path in STATIC.rglob("*")
    if path.is_file() and not path.is_relative_to(STATIC / "vendor")
)
IMPORT = re.compile(r'^(?:import|export)\b[^;"]*?(?:from )?"(\.{1,2}/[^"]+)";', re.MULTILINE)
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|dangerouslySetInnerHTML|\beval\(|new Function\b"
)


def imported(module: str) -> set[str]:
    """The modules that one needs before it runs, and those that these need."""
    found: set[str] = set()
    todo = [module]
    while todo:
        each = todo.pop()
        if each in found:
            continue
        found.add(each)
        for path in IMPORT.findall((STATIC / each).read_text()):
            target = ((STATIC / each).parent / path).resolve()
            assert target.is_file(), f"{each} imports {path}"
            todo.append(target.relative_to(STATIC.resolve()).as_posix())
    return found


def test_the_document_names_every_module_that_its_start_needs() -> None:
    """They are then fetched side by side; each would otherwise wait for the one that imports it."""
    document = (STATIC / "index.html").read_text()
    named = re.findall(r'<link rel="modulepreload" href="console/([^"]+)">', document)
    assert sorted([*named, "app/main.js"]) == sorted(imported("app/main.js"))
    assert '<script type="module" src="console/app/main.js"></script>' in document
    assert document.count("<script") == 1


def test_the_document_has_nothing_inline() -> None:
    document = (STATIC / "index.html").read_text()
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=", document)


@pytest.mark.parametrize("name", [name for name in OWN if name.startswith("app/") and name.endswith(".js")])
def test_modules_make_no_markup_of_text(name: str) -> None:
    text = (STATIC / name).read_text()
    assert text.startswith("/**\n * "), "it does not say what it is"
    assert not UNSAFE.search(text)
    assert not re.search(r'\bstyle="', text), "the policy allows no style attributes"


def test_nothing_comes_from_elsewhere() -> None:
    for name in OWN:
        if (STATIC / name).suffix in {".js", ".css", ".html"}:
            text = (STATIC / name).read_text()
            assert not re.search(r"""(?:from|import\(|url\(|src=|href=)\s*["']?https?:""", text), name
