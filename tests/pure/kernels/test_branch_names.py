"""Branches need names that are nobody's promise: each of them is looked for when a kernel starts.

A canary: whoever uses one more in ``branch.py`` is told to look for it, so that a kernel of an ipykernel that
has moved it says that it can't branch, instead of failing at each request.
"""

from __future__ import annotations

import ast
from pathlib import Path

import cellgate_kernels

BRANCH = Path(cellgate_kernels.__file__).parent / "inside" / "branch.py"

FOUND_OTHERWISE = {
    "_exit": "os has it by its documentation",
    "_executor": "joblib's; without it there is nothing to exchange",
}


def test_each_private_name_that_branches_need_is_looked_for() -> None:
    tree = ast.parse(BRANCH.read_text())
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    looks = functions["names_not_found"]
    looked_for = {
        name
        for node in ast.walk(looks)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in node.value.split()
    }
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__")
    }
    assert "_recv_callback" in used
    assert used - looked_for - FOUND_OTHERWISE.keys() == set()
