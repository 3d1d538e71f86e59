"""No regular expression of the product takes more than linear time, whatever text it meets.

One that does holds up everybody who shares the interpreter: a thread that runs it gives no other a turn.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cellgate
import cellgate_kernels
from tests.support.growth import LINEAR, growth
from tests.support.near_misses import near_misses

ROOTS = [Path(package.__path__[0]) for package in (cellgate, cellgate_kernels)]
IN_KERNELS = "cellgate_kernels.image"
"""Modules that run in kernels' environments and can't be imported here."""
WHOLE = {"match", "fullmatch"}
"""Methods that begin at one place; all others try every place of a text."""
METHODS = WHOLE | {"search", "sub", "subn", "split", "findall", "finditer"}


@dataclass(frozen=True, slots=True)
class Use:
    """A pattern, and a method that the product calls of it."""

    place: str
    pattern: re.Pattern[Any]
    method: str

    def call(self, text: Any) -> None:
        """Call it, to the end of the text."""
        if self.method in WHOLE:
            getattr(self.pattern, self.method)(text)
        else:
            for _ in self.pattern.finditer(text):
                pass


def module_of(path: Path, root: Path) -> str:
    return ".".join([root.name, *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")


SOURCES = {module_of(path, root): path.read_text() for root in ROOTS for path in sorted(root.rglob("*.py"))}


def namespace(module: str) -> dict[str, Any]:
    return {"re": re} if module.startswith(IN_KERNELS) else vars(importlib.import_module(module))


def uses() -> Iterator[Use]:
    """All patterns that are written down, and how each is called."""
    for module, source in SOURCES.items():
        if "re." not in source:
            continue
        tree = ast.parse(source)
        names = {
            id(node.value): ast.unparse(target)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (called := method_of_re(node)) is not None:
                yield from found(module, node, called, names.get(id(node)))


def method_of_re(call: ast.Call) -> str | None:
    func = call.func
    if isinstance(func, ast.Attribute) and isinstance(func.value, ast.Name) and func.value.id == "re":
        return func.attr if func.attr in METHODS | {"compile"} else None
    return None


def found(module: str, call: ast.Call, called: str, name: str | None) -> Iterator[Use]:
    flags = [each.value for each in call.keywords if each.arg == "flags"] or call.args[1:2] * (
        called == "compile"
    )
    expression = ast.Call(ast.parse("re.compile", mode="eval").body, [call.args[0], *flags], [])
    code = compile(ast.fix_missing_locations(ast.Expression(expression)), module, "eval")
    place = f"{module}:{call.lineno}"
    try:
        pattern = eval(code, namespace(module))
    except NameError:
        MADE_LATER.append(place)
        return
    if called == "compile":
        methods = called_of(module, name) if name is not None else set()
        # One in a table is called by who reads the table.
        for method in sorted(methods or {"finditer"}):
            yield Use(place, pattern, method)
    else:
        yield Use(place, pattern, called)


def called_of(module: str, name: str) -> set[str]:
    """The methods that are called of a name: of a private one in its own module, else in any."""
    sources = [SOURCES[module]] if name.startswith("_") else list(SOURCES.values())
    calls = re.compile(rf"\b{re.escape(name)}(?:\[[^\]]*\])?\.(\w+)\b")
    return {method for source in sources for method in calls.findall(source)} & METHODS


MADE_LATER: list[str] = []
"""Places of patterns that are made from values."""
USES = list(uses())


def test_patterns_were_found() -> None:
    assert len(USES) > 100
    assert len(MADE_LATER) <= 2, MADE_LATER


def slowest(call: Callable[[Any], None], pattern: re.Pattern[Any]) -> tuple[float, str]:
    """The largest growth, and of which text."""
    binary = isinstance(pattern.pattern, bytes)
    worst = (0.0, "")
    for text in near_misses(pattern):

        def make(size: int, text: Any = text) -> Any:
            made = text.of(size)
            return made.encode("latin-1", "replace") if binary else made

        worst = max(worst, (growth(call, make), repr(text)))
        if worst[0] > LINEAR:
            break
    return worst


@pytest.mark.parametrize("use", [pytest.param(use, id=f"{use.place}-{use.method}") for use in USES])
def test_twice_the_text_takes_about_twice_the_time(use: Use) -> None:
    found, text = slowest(use.call, use.pattern)
    assert found <= LINEAR, text


@pytest.mark.parametrize(
    "pattern", [r"(?:a+)+b", r"<style[^>]*>", r"\s+x", r"#[ \t]*(\S[^\n]*\S)[ \t]*\n", r"(\w*?)[ab]*\d*!"]
)
def test_what_takes_more_is_found(pattern: str) -> None:
    compiled = re.compile(pattern)
    found, _ = slowest(Use("", compiled, "search").call, compiled)
    assert found > LINEAR
