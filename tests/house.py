"""The house rules that no linter checks: a docstring opens each module, tasks have owners, and what is given
to a constructor is grouped by meaning.

Run by ``make check``. It reads source text only and imports nothing of the project.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOTS = ("gateway", "kernels", "benchmarks")
SUPERVISED = ("gateway", "kernels")
UNSUPERVISED = (
    "kernels/cellgate_kernels/tasks.py",
    "gateway/cellgate/client/",
    "gateway/cellgate/cli/",
    "kernels/cellgate_kernels/image/",
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


def problems(path: Path) -> Iterator[str]:
    """What is wrong in one file."""
    tree = ast.parse(path.read_text())
    if not ast.get_docstring(tree):
        yield f"{path}: the module has no docstring"
    if path.parts[0] in SUPERVISED and not path.as_posix().startswith(UNSUPERVISED):
        yield from unsupervised(path, tree)
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
            yield f"{path}:{node.lineno}: {name}: start tasks by cellgate_kernels.tasks.Supervisor"
        elif name in CALLBACK_OF and isinstance(node.func, ast.Attribute):
            place = CALLBACK_OF[name]
            if len(node.args) <= place or not _is_guarded(node.args[place]):
                yield f"{path}:{node.lineno}: {name}: guard the callback by cellgate_kernels.tasks"


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _is_guarded(callback: ast.expr) -> bool:
    """A call of a guard, a name that says that one was called, or a harmless method."""
    if isinstance(callback, ast.Call):
        return _name(callback.func).lstrip("_") in {"guard", "guarded"}
    name = _name(callback)
    return name.lstrip("_").startswith("guarded_") or name in HARMLESS


def main() -> int:
    """Print all problems; 1 when there are any."""
    found = [line for root in ROOTS for path in sorted(Path(root).rglob("*.py")) for line in problems(path)]
    sys.stdout.write("\n".join([*found, f"house: {len(found)} problems"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
