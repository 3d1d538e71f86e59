"""The house rules that no linter checks: a docstring opens each module, files and functions keep their size.

Run by ``make check``. It reads source text only and imports nothing of the project.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MOST_LINES_OF_FILE = 400
MOST_LINES_OF_FUNCTION = 60
ROOTS = ("gateway", "kernels", "benchmarks")


def problems(path: Path) -> Iterator[str]:
    """What is wrong in one file."""
    text = path.read_text()
    tree = ast.parse(text)
    if not ast.get_docstring(tree):
        yield f"{path}: the module has no docstring"
    if (lines := text.count("\n")) > MOST_LINES_OF_FILE:
        yield f"{path}: {lines} lines; split it by concept"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            size = (node.end_lineno or 0) - body[0].lineno + 1 if body else 0
            if size > MOST_LINES_OF_FUNCTION:
                yield f"{path}:{node.lineno}: {node.name} has {size} lines"


def main() -> int:
    """Print all problems; 1 when there are any."""
    found = [line for root in ROOTS for path in sorted(Path(root).rglob("*.py")) for line in problems(path)]
    sys.stdout.write("\n".join([*found, f"house: {len(found)} problems"]) + "\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
