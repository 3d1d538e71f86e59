"""Private names of tornado: the gateway uses those of its table alone, and the installed tornado has them."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import tornado

import cellgate
from cellgate.http.listener.private_names import PRIVATE_NAMES

ROOT = Path(cellgate.__file__).parent
ROOMS = ("http", "doors", "server")
"""Where handlers are; elsewhere it is enough to look into files that speak of tornado."""
OWN = ("self", "cls", "super()")


def definitions(body: list[ast.stmt]) -> set[str]:
    """The private names that statements define, at any depth but within classes."""
    found: set[str] = set()
    for node in body:
        for each in [node] if isinstance(node, ast.ClassDef) else ast.walk(node):
            if isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(each.name)
            elif isinstance(each, ast.Attribute | ast.Name) and isinstance(each.ctx, ast.Store):
                found.add(each.attr if isinstance(each, ast.Attribute) else each.id)
    return {name for name in found if re.fullmatch(r"_[A-Za-z0-9]\w*", name)}


def read_tornado() -> dict[str, set[str]]:
    """The private names of each module and class of tornado, by its name."""
    places: dict[str, set[str]] = {}
    for path in Path(tornado.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text())
        places[path.stem] = definitions(tree.body)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                places[f"{path.stem}.{node.name}"] = definitions(node.body)
    return places


PLACES = read_tornado()
ALL = set().union(*PLACES.values())


def attributes(tree: ast.AST, *, own: bool) -> set[str]:
    """The names of tornado's that are used of the object itself whose class this is, or of others."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ALL)
    return {node.attr for node in nodes if (ast.unparse(node.value) in OWN) == own}


def uses(tree: ast.Module, classes: dict[str, type]) -> set[str]:
    """The private names of tornado that a file uses. `classes`: its own, by name."""
    found = attributes(tree, own=False)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tornado"):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.add(node.value)
    nodes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    known = set().union(*(definitions(node.body) for node in nodes))
    for node in nodes:
        bases = (f"{each.__module__}.{each.__name__}" for each in classes[node.name].__mro__)
        theirs = set().union(*(PLACES.get(name.removeprefix("tornado."), set()) for name in bases))
        own = attributes(node, own=True)
        # What is neither from a class of tornado's nor from here: a part of a handler may derive from none.
        found |= theirs & (own | definitions(node.body)) | (own - known)
    return found & ALL


def test_the_gateway_uses_those_of_the_table_and_no_others() -> None:
    found: set[str] = set()
    for path in ROOT.rglob("*.py"):
        place, text = path.relative_to(ROOT), path.read_text()
        if (place.parts[0] in ROOMS or "tornado" in text) and place.stem != "private_names":
            module = importlib.import_module(".".join(("cellgate", *place.with_suffix("").parts)))
            found |= uses(ast.parse(text), vars(module))
    assert found == {name.rpartition(".")[2] for name in PRIVATE_NAMES}


def test_the_installed_tornado_has_each_of_them_where_the_table_says() -> None:
    for place, _, name in (each.rpartition(".") for each in PRIVATE_NAMES):
        assert name in PLACES[place]


def test_a_use_is_found_in_whatever_form() -> None:
    text = """
from tornado.iostream import IOStream, _StreamBuffer
class Part:
    def mine(self): return self._read_delimiter
class Stream(IOStream):
    def _handle_write(self): self._handlers = self._mine
    def mine(self, other):
        self._read_until_close = super()._connecting or other._write_futures
        setattr(other, "_parse_headers", self._handlers)
"""
    classes: dict[str, type] = {}
    exec(text, classes)
    named = {"_StreamBuffer", "_read_delimiter", "_handle_write", "_read_until_close", "_connecting"}
    assert uses(ast.parse(text), classes) == named | {"_write_futures", "_parse_headers"}
