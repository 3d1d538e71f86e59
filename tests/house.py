"""The house rules that no linter checks: a docstring opens each module, tasks have owners, what is given to a
constructor is grouped by meaning, and people are told the system's errors in words.

Run by ``make check``, with the counts of ``gauge``. It reads source text only and imports nothing of the
project.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests import gauge

ROOTS = ("gateway", "kernels", "benchmarks")
SUPERVISED = ("gateway", "kernels")
UNSUPERVISED = (
    "kernels/cellgate_kernels/base/tasks.py",
    "gateway/cellgate/client/",
    "gateway/cellgate/cli/",
    "gateway/cellgate/integrations/",
    "kernels/cellgate_kernels/inside/",
)
"""The one place that starts tasks, and programs that are no gateway."""
BARE = frozenset({"create_task", "ensure_future"})
CALLBACK_OF = {
    "call_later": 1,
    "call_at": 1,
    "call_soon": 0,
    "call_soon_threadsafe": 0,
    "add_reader": 1,
    "add_writer": 1,
}
"""Where a method of the event loop takes its callback."""
HARMLESS = frozenset({"set", "cancel", "set_result"})
"""Methods of futures and events: they raise nothing."""

GROUPED = "gateway"
MOST_GIVEN = 6
"""Parameters of a constructor besides `self`; more are values of their own, such as settings or parts."""

TELLER = "in_words"
"""What tells people of the system's errors; ``str`` of one has its number, as in "[Errno 2]"."""
TELLER_PLACE = "kernels/cellgate_kernels/base/errors.py"
ALONE = ("kernels/cellgate_kernels/inside/", "kernels/cellgate_kernels/launch/name_maker.py")
"""Programs that import nothing of ours. They tell the system's words by `strerror`."""
LOGGING = frozenset({"debug", "info", "warning", "error", "exception", "critical", "log"})
SYSTEM = frozenset(
    name for name, value in vars(builtins).items() if isinstance(value, type) and issubclass(value, OSError)
) | {"RequestException", "gaierror", "SSLError", "herror"}
"""Names of errors that are the system's."""
SAID_BY = frozenset({"operation", "overload", "setter", "override"})
"""Decorators of methods that are described elsewhere."""
IMPLEMENTS = {
    "Journal": "RecordStore",
    "PostgresStore": "RecordStore",
    "Room": "EventStore",
    "Failures": "EventStore",
}
"""Classes that are a protocol's without naming it as a base: their attributes stand for its properties."""
BROAD = frozenset({"Exception", "BaseException"})


def problems(path: Path) -> Iterator[str]:
    """What is wrong in one file."""
    tree = ast.parse(path.read_text())
    if not ast.get_docstring(tree):
        yield f"{path}: the module has no docstring"
    if path.parts[0] in SUPERVISED and not path.as_posix().startswith(UNSUPERVISED):
        yield from unsupervised(path, tree)
    if path.parts[0] in SUPERVISED and path.as_posix() != TELLER_PLACE:
        yield from numbered(path, tree)
    if path.parts[0] == GROUPED:
        yield from ungrouped(path, tree)


def ungrouped(path: Path, tree: ast.AST) -> Iterator[str]:
    """Constructors with too many parameters."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name == "__init__":
            given = node.args
            number = len([*given.posonlyargs, *given.args, *given.kwonlyargs]) - 1
            if number > MOST_GIVEN:
                yield f"{path}:{node.lineno}: {number} parameters: group those that belong together"


def unsupervised(path: Path, tree: ast.AST) -> Iterator[str]:
    """Tasks without an owner, and callbacks of the event loop that nobody guards."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = _name(node.func)
        if name in BARE:
            yield f"{path}:{node.lineno}: {name}: start tasks by cellgate_kernels.base.tasks.Supervisor"
        elif name in CALLBACK_OF and isinstance(node.func, ast.Attribute):
            place = CALLBACK_OF[name]
            if len(node.args) <= place or not _is_guarded(node.args[place]):
                yield f"{path}:{node.lineno}: {name}: guard the callback by cellgate_kernels.base.tasks"


def numbered(path: Path, tree: ast.AST) -> Iterator[str]:
    """The system's errors in texts for people, as they are: those caught, and those that a function gets."""
    alone = path.as_posix().startswith(ALONE)
    teller = "its strerror" if alone else f"cellgate_kernels.base.errors.{TELLER}"
    for name, scope in _errors_in(tree, broad=not alone):
        for node in ast.walk(scope):
            if any(_is_name(told, name) for told in _told(node)) or (
                not alone
                and isinstance(node, ast.Attribute)
                and node.attr == "strerror"
                and _is_name(node.value, name)
            ):
                line = getattr(node, "lineno", 0)
                yield f"{path}:{line}: an error of the system, told with its number: use {teller}"


def _errors_in(tree: ast.AST, *, broad: bool) -> Iterator[tuple[str, ast.AST]]:
    """The names of errors that may be the system's, each with the code in which it has that name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler):
            if node.name is not None and _may_be_system(node.type, broad):
                yield node.name, node
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            given = node.args
            for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]:
                if _may_be_system(each.annotation, broad):
                    yield each.arg, node


def _may_be_system(type_: ast.expr | None, broad: bool) -> bool:
    """Whether a type of errors has the system's. A constant may hold any; so may what all are, if `broad`."""
    nodes = () if type_ is None else ast.walk(type_)
    named = {_name(node) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
    return any(
        name in SYSTEM or (name.isupper() and len(name) > 1) or (broad and name in BROAD) for name in named
    )


def _told(node: ast.AST) -> Iterator[ast.expr]:
    """The expressions that this node makes a text of, or that a log does; also the choices of an `or`."""
    given: list[ast.expr] = []
    if isinstance(node, ast.FormattedValue):
        given = [node.value]
    elif isinstance(node, ast.Call) and (_name(node.func) in LOGGING | {"str", "repr", "format", "print"}):
        given = list(node.args)
    for each in given:
        yield from each.values if isinstance(each, ast.BoolOp) else [each]


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_guarded(callback: ast.expr) -> bool:
    """A call of a guard, a name that says that one was called, or a harmless method."""
    if isinstance(callback, ast.Call):
        return _name(callback.func).lstrip("_") in {"guard", "guarded"}
    name = _name(callback)
    return name.lstrip("_").startswith("guarded_") or name in HARMLESS


def undocumented(trees: Mapping[Path, ast.Module]) -> Iterator[str]:
    """Public methods without a docstring, but for overrides and what `operation` describes."""
    classes = {
        node.name: node for tree in trees.values() for node in tree.body if isinstance(node, ast.ClassDef)
    }

    def is_said(node: ast.ClassDef, method: str, seen: frozenset[str] = frozenset()) -> bool:
        """Whether a base of a class describes the method."""
        bases = [_name(base.value if isinstance(base, ast.Subscript) else base) for base in node.bases]
        for name in [*bases, IMPLEMENTS.get(node.name, "")]:
            if name in classes and name not in seen:
                base = classes[name]
                own = next((each for each in methods(base) if each.name == method), None)
                if (own is not None and ast.get_docstring(own)) or is_said(base, method, seen | {name}):
                    return True
        return False

    for path, tree in trees.items():
        for node in (each for each in tree.body if isinstance(each, ast.ClassDef) and each.name[0] != "_"):
            for method in methods(node):
                marks = {
                    _name(each.func if isinstance(each, ast.Call) else each) for each in method.decorator_list
                }
                # The name of a test says what it is about.
                silent = not method.name.startswith(("_", "test_")) and not ast.get_docstring(method)
                if silent and not marks & SAID_BY and not is_said(node, method.name):
                    yield f"{path}:{method.lineno}: {node.name}.{method.name} has no docstring"


def methods(node: ast.ClassDef) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """The methods of a class."""
    return (each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef)))


def main() -> int:
    """Print all problems; 1 when there are any."""
    found = [line for root in ROOTS for path in sorted(Path(root).rglob("*.py")) for line in problems(path)]
    files = [path for root in SUPERVISED for path in sorted(Path(root).rglob("*.py"))]
    found += undocumented({path: ast.parse(path.read_text()) for path in files})
    found += gauge.problems()
    sys.stdout.write("\n".join([*found, f"house: {len(found)} problems"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
