"""No regular expression of the product takes more than linear time, whatever text it meets.

One that does holds up everybody who shares the interpreter: a thread that runs it gives no other a turn. Each
change is judged by the parsed form of its expressions, which is the same on every machine; the night measures
them.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import cellgate
import cellgate_kernels
from tests.support.backtracking import faults
from tests.support.growth import MOST_IN_SECONDS, in_seconds
from tests.support.near_misses import near_misses

ROOTS = [Path(package.__path__[0]) for package in (cellgate, cellgate_kernels)]
IN_KERNELS = "cellgate_kernels.inside"
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


FAILS_AT_END = "a turn can fail at the text's end alone; an atomic group would take memory for each turn"
LINEAR_ALL_THE_SAME: dict[str | bytes, str] = {
    r"""r?(\"\"\"|''')(?P<text>.*)\1""": "once gives back: what follows is short, and ends the text",
    r"\((?:[^()]|\([^()]*\))*\)\??": "a second open bracket ends the search that began at the first",
    r"\\begin\{(?P<name>[a-z]{1,20}\*?)\}(?P<body>.*)\\end\{(?P=name)\}": "once gives back to what is short",
    r"(?:===?|~=|!=|<=|>=|<|>)[A-Za-z0-9][A-Za-z0-9._+!-]*(?:\.\*)?": "once gives back to two characters",
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?': FAILS_AT_END,
    rb"[^\"\\]*+(?:\\.[^\"\\]*+)*+": FAILS_AT_END,
    r"<script\b[^<>]*\ssrc=[\"']https?://|[\"']https?://[^\"'\s<>]{1,200}/npm/": (
        "once gives back to what is short; a search begins anew at an angle bracket, and the repeat has none"
    ),
    r"application/(.*\+)?json": "once gives back to five characters, which end the text",
    r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?": "once gives back to one character, which ends the text",
    r"(?<!\s)\s++at file://\S*stdin\.ts:(?P<line>\d+):(?P<column>\d+)": (
        "once gives back to what is short; a search begins behind white space, and the repeat has none"
    ),
}
"""The expressions that are refused by their form and are right and linear, each with the reason why."""


def broken_rules(use: Use) -> list[str]:
    """The rules about the form of expressions that a use breaks."""
    return faults(use.pattern, searches=use.method not in WHOLE, whole=use.method == "fullmatch")


@pytest.mark.parametrize("use", [pytest.param(use, id=f"{use.place}-{use.method}") for use in USES])
def test_the_form_of_an_expression_makes_it_linear(use: Use) -> None:
    if use.pattern.pattern not in LINEAR_ALL_THE_SAME:
        assert broken_rules(use) == []


def test_each_exception_is_one() -> None:
    refused = {use.pattern.pattern for use in USES if broken_rules(use)}
    assert LINEAR_ALL_THE_SAME.keys() - refused == set()


MORE_THAN_LINEAR = [
    r"(?:a+)+b",
    r"<style[^>]*>",
    r"\s+x",
    r"#[ \t]*(\S[^\n]*\S)[ \t]*\n",
    r"(\w*?)[ab]*\d*!",
    r"(a|a)*b",
    r"(?:a|ab|b)*c",
    r"(?:a?){50}b",
    r"(?:a?a)*b",
    r"(?:a{1,50}){1,50}b",
    r"^(\s+)*$",
    r"(?:.*,)*x",
    r"\s*$",
    r"\s++x",
    r"(?>\s+)x",
    r"(?m)^\s+x",
    r"\b[\w ]+x",
    r"(?<!a)[ab]+c",
    r"(?i)k+K!",
    r"é*[^a]*É",
    r"(?:x*y*)*z",
    r"(?=(a+)+b)a",
    r"x(?:ab?c)*+",
]


@pytest.mark.parametrize("pattern", MORE_THAN_LINEAR)
def test_a_form_that_may_take_more_is_refused(pattern: str) -> None:
    assert faults(re.compile(pattern), searches=True, whole=False)


@pytest.mark.parametrize(
    ("pattern", "searches"),
    [
        (r'"[^"]*"', True),
        (r"(?<!\s)\s++x", True),
        (r"\b\w++x", True),
        (r"^\s+x", True),
        (r"(?m)^[ \t]+x", True),
        (r"\s+x", False),
        (r"\w+", True),
        (r"(?:a++b)*c", False),
        (r"(?>(?:a++b?)*)c", False),
        (r'(?:[^"\\]|\\.)*"', False),
        (r"(?:a|b)*c", False),
        (r"(?>.*)x", False),
        (r"\w{1,100}\d{1,100}x", True),
        (r"(?i:[a-z])+[0-9]", False),
    ],
)
def test_a_form_that_is_linear_is_not(pattern: str, searches: bool) -> None:
    assert faults(re.compile(pattern), searches=searches, whole=False) == []


def slowest(use: Use) -> tuple[float, str]:
    """The largest growth, and of which text."""
    binary = isinstance(use.pattern.pattern, bytes)
    worst = (0.0, "")
    for text in near_misses(use.pattern):

        def make(size: int, text: Any = text) -> Any:
            made = text.of(size)
            return made.encode("latin-1", "replace") if binary else made

        worst = max(worst, (in_seconds(use.call, make), repr(text)))
        if worst[0] > MOST_IN_SECONDS:
            break
    return worst


@pytest.mark.nightly
@pytest.mark.parametrize("use", [pytest.param(use, id=f"{use.place}-{use.method}") for use in USES])
def test_sixteen_times_the_text_takes_about_sixteen_times_the_time(use: Use) -> None:
    found, text = slowest(use)
    assert found <= MOST_IN_SECONDS, text


@pytest.mark.nightly
@pytest.mark.parametrize(
    "pattern", [r"(?:a+)+b", r"<style[^>]*>", r"\s+x", r"#[ \t]*(\S[^\n]*\S)[ \t]*\n", r"(\w*?)[ab]*\d*!"]
)
def test_what_takes_more_is_measured(pattern: str) -> None:
    found, _ = slowest(Use("", re.compile(pattern), "search"))
    assert found > MOST_IN_SECONDS
