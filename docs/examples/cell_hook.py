#!/usr/bin/env python3
"""A cell hook with the rules of AgentRun: no modules and no calls by which programs reach their system.

    cellgate serve --cell-hook docs/examples/cell_hook.py

It reads questions from stdin and writes an answer to each, a line of JSON each time. Rules about text are no
walls: ``getattr`` has other names. They tell a model early what it should not try.
"""

import ast
import json
import sys
import warnings
from collections.abc import Iterator

MODULES = {"os", "sys", "subprocess", "builtins"}
CALLS = {
    *("exec", "eval", "compile", "open", "input", "__import__"),
    *("getattr", "setattr", "delattr", "hasattr", "globals", "locals", "vars", "dir"),
}


def faults(tree: ast.AST) -> Iterator[str]:
    """Yield what is not allowed in a cell."""
    for node in ast.walk(tree):
        match node:
            case ast.Import():
                names = [alias.name for alias in node.names]
            case ast.ImportFrom():
                names = [node.module or ""]
            case _:
                names = []
        yield from (f"Unsafe module import: {name}" for name in names if name.split(".")[0] in MODULES)
        match node:
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in CALLS:
                yield f"Unsafe function call: {name}"
            case ast.Name(id=name) | ast.Attribute(attr=name) if name.startswith("_"):
                # RestrictedPython, which AgentRun asks as well, refuses such names.
                yield f"Unsafe name: {name} begins with an underscore"


def refusal(language: str, texts: list[str]) -> str | None:
    """Return why these texts may not run; None if they may."""
    if language != "python":
        return f"Cells in {language} are not allowed here"
    for text in texts:
        try:
            tree = ast.parse(text)
        except (SyntaxError, ValueError, MemoryError, RecursionError) as error:
            # Magics and shell commands of IPython, too.
            return f"Syntax error: {error}"
        if (fault := next(faults(tree), None)) is not None:
            return fault
    return None


# Python warns of odd texts in cells, which would fill the gateway's log.
warnings.simplefilter("ignore")
for line in sys.stdin:
    cell = json.loads(line)
    why = refusal(cell["language"], [cell["code"], *cell["user_expressions"].values()])
    answer = {"id": cell["id"], "allow": why is None, "message": (why or "")[:2000]}
    print(json.dumps(answer), flush=True)
