"""How `cellgate session tree` draws a session's ancestors and branches."""

from __future__ import annotations

from itertools import pairwise

from cellgate.cli.run.branch_tree import tree_lines
from cellgate.client import BranchedFrom, SessionModel
from cellgate.wire.answers import SessionTree, TreeNode


def node(name: str, parent: str | None = None, seq: int = 1) -> TreeNode:
    if parent is None:
        return TreeNode(session=name, state="idle")
    return TreeNode(
        session=name, state="idle", branched_from=BranchedFrom(session=parent, seq=seq, head="00")
    )


def lines(tree: SessionTree, parent: str | None = None) -> list[str]:
    origin = {} if parent is None else {"branched_from": BranchedFrom(session=parent, seq=9, head="00")}
    own = SessionModel(session=tree.session, state="busy", **origin)
    return list(tree_lines(tree, own))


def test_each_session_is_below_the_one_it_is_from() -> None:
    # Branches come in the order in which they were made.
    branches = [node("b", "own", 2), node("c", "own", 3), node("b1", "b", 4), node("b2", "b1", 5)]
    tree = SessionTree(session="own", ancestors=[node("root"), node("mid", "root", 7)], branches=branches)
    assert lines(tree, "mid") == [
        "root (idle)",
        "  mid (idle, from root at event 7)",
        "    own (busy, from mid at event 9)",
        "      b (idle, from own at event 2)",
        "        b1 (idle, from b at event 4)",
        "          b2 (idle, from b1 at event 5)",
        "      c (idle, from own at event 3)",
    ]


def test_what_is_left_out_is_said() -> None:
    tree = SessionTree(
        session="own", ancestor_left_out="purged", branches=[node("far", "hidden")], complete=False
    )
    assert lines(tree) == [
        "(continues a session that is not named: it has been purged)",
        "own (busy)",
        "  far (idle, from hidden at event 1)",
        "(there are more branches)",
    ]


def test_a_chain_of_any_length_is_drawn_and_no_name_reaches_the_terminal_raw() -> None:
    names = ["own", *(f"b{number}" for number in range(1500))]
    branches = [node(name, parent) for parent, name in pairwise(names)]
    assert len(lines(SessionTree(session="own", branches=branches))) == 1501
    assert "\x1b" not in "".join(lines(SessionTree(session="own", branches=[node("\x1b]0;x\x07", "own")])))
