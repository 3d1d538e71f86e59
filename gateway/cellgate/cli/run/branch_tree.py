"""A session's ancestors and branches as lines for a terminal, each indented below the one it is from."""

from __future__ import annotations

from collections.abc import Iterator

from cellgate.cli.terminal.escaping import printed_line
from cellgate.client import BranchedFrom, SessionModel
from cellgate.wire.answers import SessionTree, TreeNode

LEFT_OUT = {"purged": "it has been purged", "out_of_reach": "your token does not reach it"}


def tree_lines(tree: SessionTree, own: SessionModel) -> Iterator[str]:
    """Yield the lines of a tree. `own`: the session that it is the tree of."""
    if isinstance(tree.ancestor_left_out, str):
        yield f"(continues a session that is not named: {LEFT_OUT[tree.ancestor_left_out]})"
    for depth, node in enumerate(tree.ancestors):
        yield _line(depth, node.session, node.state, node.branched_from)
    depth = len(tree.ancestors)
    yield _line(depth, own.session, own.state, own.branched_from)
    yield from _branch_lines(tree, depth + 1)
    if not tree.complete:
        yield "(there are more branches)"


def _branch_lines(tree: SessionTree, depth: int) -> Iterator[str]:
    named = {tree.session, *(node.session for node in tree.branches)}
    children: dict[str, list[TreeNode]] = {}
    for node in tree.branches:
        parent = _parent(node)
        # One whose parent is left out is shown as if it were the session's own.
        children.setdefault(parent if parent in named else tree.session, []).append(node)
    # No recursion: a branch of a branch may be any number deep.
    waiting = [(depth, node) for node in reversed(children.get(tree.session, []))]
    while waiting:
        depth, node = waiting.pop()
        yield _line(depth, node.session, node.state, node.branched_from)
        waiting += [(depth + 1, child) for child in reversed(children.get(node.session, []))]


def _parent(node: TreeNode) -> str:
    return node.branched_from.session if isinstance(node.branched_from, BranchedFrom) else ""


def _line(depth: int, name: str, state: str, origin: object) -> str:
    since = f", from {origin.session} at event {origin.seq}" if isinstance(origin, BranchedFrom) else ""
    return f"{'  ' * depth}{printed_line(name)} ({state}{printed_line(since)})"
