"""Counts of what makes the house hard to live in: large classes, long functions, names used twice.

``tests/gauge.toml`` has the highest number of each that is allowed. ``make check`` fails when one is higher,
and names it; a change that lowers a number lowers it in the file, too. This module reads source text only and
imports nothing of the project. ``tests/house.py`` holds the rules that have no exception.
"""

from __future__ import annotations

import ast
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

LIMITS = Path(__file__).with_suffix(".toml")
PRODUCT = ("gateway", "kernels")
TESTING = "testing"
"""Rooms of fakes and contracts, which tests of this and of other projects use."""
PAIRED = "gateway/cellgate/wire/"
"""The client has a class of its own for what the wire has: two of one name are no problem there."""
MOST_METHODS, MOST_ATTRIBUTES = 30, 20
MOST_LINES_OF_FUNCTION, MOST_LINES_OF_MODULE = 60, 600
STORES = ("gateway/cellgate/record/store/sqlite/", "gateway/cellgate/identity/store")
"""Where SQLite may be known."""
INSIDE = "kernels/cellgate_kernels/inside/"
"""Programs that run beside a kernel's code, with their own folder as the only one that they import from."""
SETTINGS = Path("docs/reference/settings.md")
SERVICES = Path("gateway/cellgate/http/services.py")
NO_VERBS = frozenset(
    {"What", "Who", "Whose", "Where", "When", "How", "As", "Those", "That", "It", "They", "Its"}
    | {"Nothing", "Nobody", "Others"}
)
"""First words of docstrings that name neither an action nor an object."""
SELF_EXPLAINING = frozenset({"get", "post", "put", "patch", "delete", "head", "options"})
"""Handlers' verbs of HTTP, whose route's description says all."""
LEAST_WORDS = 4


@dataclass(frozen=True)
class Source:
    """A file of Python, by its path from the top."""

    path: Path

    @cached_property
    def text(self) -> str:
        """Return what is in the file."""
        return self.path.read_text()

    @cached_property
    def tree(self) -> ast.Module:
        """Return the parsed text."""
        return ast.parse(self.text)

    @property
    def lines(self) -> int:
        """Return the number of lines."""
        return self.text.count("\n")

    @property
    def classes(self) -> Iterator[ast.ClassDef]:
        """Iterate over all classes, nested ones too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    @property
    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Iterate over all functions and methods, nested ones too."""
        return (
            node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        )


def sources(*roots: str) -> list[Source]:
    """Return the files of Python below these folders, in order."""
    return [Source(path) for root in roots for path in sorted(Path(root).rglob("*.py"))]


def methods(node: ast.ClassDef) -> int:
    """Count the methods and properties that a class defines."""
    return sum(isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) for each in node.body)


def attributes(node: ast.ClassDef) -> int:
    """Count the names that methods of a class assign to `self`, and the fields that it declares."""
    declared = {
        each.target.id
        for each in node.body
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    assigned = {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }
    return len(declared | assigned)


def is_of_values(path: Path, node: ast.ClassDef) -> bool:
    """Whether a class is one of the wire's structs or of settings, which have as many fields as there are."""
    return path.as_posix().startswith(PAIRED) or node.name.endswith(("Settings", "Body", "Model", "App"))


def main_class(source: Source) -> str | None:
    """Return the only public class of a module that has no public function beside it."""
    public = [
        node.name
        for node in source.tree.body
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and not node.name.startswith("_")
    ]
    classes = [node.name for node in source.tree.body if isinstance(node, ast.ClassDef)]
    return public[0] if len(public) == 1 and public[0] in classes else None


def fits(name: str, module: str) -> bool:
    """Whether a class and its file have a word in common."""
    plain = module.replace("_", "").rstrip("s")
    return plain in name.lower() or name.lower() in plain


def first_word(text: str) -> str:
    """Return the first word of a docstring, without punctuation."""
    return text.split(maxsplit=1)[0].strip("`.,:;\"'") if text.split() else ""


def docstrings() -> Iterator[tuple[ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Iterate over the functions of the product and the first line of their docstrings."""
    for source in sources(*PRODUCT):
        for node in source.functions:
            if text := ast.get_docstring(node):
                yield node, text.splitlines()[0]


def begins_vaguely(text: str) -> bool:
    """Whether a docstring begins with a word that names neither an action nor an object."""
    return first_word(text) in NO_VERBS or text.startswith("All that")


def is_too_short(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> bool:
    """Whether a docstring says no more than the function's name."""
    return node.name not in SELF_EXPLAINING and len(text.split()) < LEAST_WORDS


def repeated_names() -> int:
    """Count the public class names that the product uses more than once, apart from the wire's."""
    names = Counter(
        node.name
        for source in sources(*PRODUCT)
        if not source.path.as_posix().startswith(PAIRED)
        for node in source.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sum(number > 1 for number in names.values())


def imports_sqlite(source: Source) -> bool:
    """Whether a file imports SQLite's module."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import) and any(alias.name == "sqlite3" for alias in node.names):
            return True
        if isinstance(node, ast.ImportFrom) and node.module == "sqlite3":
            return True
    return False


def settings() -> int:
    """Count the options of `cellgate serve` that the reference lists."""
    return sum(line.startswith("| `") for line in SETTINGS.read_text().splitlines())


def services() -> int:
    """Count the fields of what handlers of HTTP get."""
    (node,) = (each for each in Source(SERVICES).classes if each.name == "Services")
    return attributes(node)


def module_name(path: Path) -> str:
    """Return the dotted name of a file below one of the roots."""
    parts = path.with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(tree: ast.AST, package: str, known: Set[str]) -> set[str]:
    """Return the modules among `known` that a file imports when it runs, by full or relative names."""
    found: set[str] = set()
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            levels = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*levels, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names} | {base}
        elif not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)):
            found |= imported(node, package, known)
    return found & known


def import_graph() -> dict[str, set[str]]:
    """Return what each module of the product imports."""
    files = {module_name(source.path): source for source in sources(*PRODUCT)}
    graph: dict[str, set[str]] = {}
    for name, source in files.items():
        package = name if source.path.stem == "__init__" else name.rpartition(".")[0]
        graph[name] = imported(source.tree, package, files.keys()) - {name}
        if source.path.as_posix().startswith(INSIDE):
            beside = {each.rpartition(".")[2] for each in files if each.rpartition(".")[0] == package}
            graph[name] |= {f"{package}.{each}" for each in imported(source.tree, "", beside)}
    return graph


def chains(graph: Mapping[str, Set[str]]) -> tuple[int, int]:
    """Return the modules in the longest chain of imports of a graph, and the number of its circles.

    A circle is left at its first module that is met twice, so its modules count once in a chain.
    """
    lengths: dict[str, int] = {}
    open_: set[str] = set()
    circles = 0

    def length(name: str) -> int:
        nonlocal circles
        if name in lengths:
            return lengths[name]
        if name in open_:
            circles += 1
            return 0
        open_.add(name)
        found = 1 + max((length(each) for each in sorted(graph[name])), default=0)
        open_.discard(name)
        lengths[name] = found
        return found

    return max(map(length, sorted(graph)), default=0), circles


def counts() -> dict[str, int]:
    """Return all counts, by the names that ``gauge.toml`` has for them."""
    product = sources(*PRODUCT)
    for_tests = [source for source in product if TESTING in source.path.parts]
    classes = [(source.path, node) for source in product for node in source.classes]
    functions = [node for source in product for node in source.functions]
    told = list(docstrings())
    longest, circles = chains(import_graph())
    mains = [(source.path.stem, main_class(source)) for source in product]
    return {
        "lines of the product": sum(source.lines for source in product if source not in for_tests),
        "lines of the product for tests": sum(source.lines for source in for_tests),
        "lines of benchmarks": sum(source.lines for source in sources("benchmarks")),
        "lines of tests": sum(source.lines for source in sources("tests")),
        "classes above 30 methods": sum(methods(node) > MOST_METHODS for _, node in classes),
        "classes above 20 attributes": sum(
            attributes(node) > MOST_ATTRIBUTES for path, node in classes if not is_of_values(path, node)
        ),
        "functions above 60 lines": sum(
            (node.end_lineno or 0) - node.lineno + 1 > MOST_LINES_OF_FUNCTION for node in functions
        ),
        "modules above 600 lines": sum(source.lines > MOST_LINES_OF_MODULE for source in product),
        "longest chain of imports": longest,
        "circles of imports": circles,
        "files that import sqlite3 outside the stores": sum(
            imports_sqlite(source) and not source.path.as_posix().startswith(STORES) for source in product
        ),
        "settings": settings(),
        "fields of Services": services(),
        "public class names used twice": repeated_names(),
        "files whose class has another name": sum(
            name is not None and not fits(name, stem) for stem, name in mains
        ),
        "docstrings of functions that begin vaguely": sum(begins_vaguely(text) for _, text in told),
        "docstrings of functions below four words": sum(is_too_short(node, text) for node, text in told),
        "words of CHANGELOG": len(Path("CHANGELOG.md").read_text().split()),
    }


def problems() -> Iterator[str]:
    """Iterate over the counts that are above their limits, in words."""
    limits = tomllib.loads(LIMITS.read_text())
    for name, number in counts().items():
        if number > limits[name]:
            yield f"{name}: {number}, and tests/gauge.toml allows {limits[name]}"


if __name__ == "__main__":
    for name, number in counts().items():
        sys.stdout.write(f'"{name}" = {number}\n')
