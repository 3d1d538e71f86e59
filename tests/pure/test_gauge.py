"""The counts of ``tests/gauge.py`` count what they are named after."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import gauge
from tests.gauge import Source, attributes, begins_vaguely, chains, fits, imported, methods


def class_of(text: str) -> ast.ClassDef:
    (node,) = ast.parse(text).body
    assert isinstance(node, ast.ClassDef)
    return node


def test_methods_are_counted_and_nested_functions_are_not() -> None:
    node = class_of(
        "class A:\n    @property\n    def a(self): ...\n    async def b(self):\n        def c(): ...\n"
    )
    assert methods(node) == 2


def test_fields_and_what_methods_assign_are_counted_once() -> None:
    node = class_of(
        "class A:\n    a: int\n    def __init__(self):\n        self.a = self.b = 1\n        other.c = 2\n"
        "    def set(self):\n        self.d += 1\n        self.e.f = 3\n"
    )
    assert attributes(node) == 3


@pytest.mark.parametrize(
    ("class_name", "module", "fit"),
    [
        ("SessionRegistry", "registry", True),
        ("Account", "accounts", True),
        ("EventStore", "event_store", True),
        ("SessionManager", "registry", False),
        ("Archive", "reader", False),
    ],
)
def test_a_class_and_its_file_have_a_word_in_common(class_name: str, module: str, fit: bool) -> None:
    assert fits(class_name, module) is fit


@pytest.mark.parametrize(
    ("text", "vague"),
    [
        ("Return the session of a key.", False),
        ("Its pictures.", True),
        ("What a cell printed.", True),
        ("All that a kernel holds.", True),
        ("All sessions of a principal.", False),
    ],
)
def test_a_docstring_that_begins_without_its_subject_is_found(text: str, vague: bool) -> None:
    assert begins_vaguely(text) is vague


def test_imports_are_followed_by_full_and_relative_names_and_not_for_types() -> None:
    known = {"a.b", "a.c", "a.d", "a.e"}
    text = (
        "import a.b, os\nfrom a import c\nfrom .d import x\n"
        "if TYPE_CHECKING:\n    from a import e\ndef f():\n    from a.missing import y\n"
    )
    assert imported(ast.parse(text), "a", known) == {"a.b", "a.c", "a.d"}
    assert imported(ast.parse("def f():\n    import a.e\n"), "a", known) == {"a.e"}


def test_the_longest_chain_and_circles_are_found() -> None:
    assert chains({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == (3, 0)
    assert chains({"a": {"b"}, "b": {"a"}})[1] == 1
    assert chains({}) == (0, 0)


def test_a_number_above_its_limit_is_a_problem_and_one_below_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = tmp_path / "gauge.toml"
    limits.write_text('"large classes" = 2\n"settings" = 5\n')
    monkeypatch.setattr(gauge, "LIMITS", limits)
    monkeypatch.setattr(gauge, "counts", lambda: {"large classes": 3, "settings": 4})
    assert list(gauge.problems()) == ["large classes: 3, and tests/gauge.toml allows 2"]


def test_a_file_is_read_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / "a.py"
    path.write_text("import sqlite3\nclass A: ...\n")
    source = Source(path)
    assert (source.lines, [node.name for node in source.classes]) == (2, ["A"])
    assert gauge.imports_sqlite(source)
    assert gauge.main_class(source) == "A"
