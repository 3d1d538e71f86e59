"""The stubs of the blocking facades: made from the asynchronous classes, and true of what is there."""

from __future__ import annotations

import ast

import pytest

from cellgate.client import Files, Gateway, Session
from cellgate.client.blocking import Asynchronous, Blocking, Owning
from cellgate.integrations.anthropic import AnthropicTools
from cellgate.integrations.openai import OpenAITools
from cellgate.integrations.tools import SessionTools
from tests.support import stubs

OWN = {"__enter__", "__exit__", "close"}


def test_the_stubs_are_up_to_date() -> None:
    for path, content in stubs.facades().items():
        assert path.read_text() == content, f"{path.name} is out of date: make reference"


@pytest.mark.parametrize("kind", [Gateway, Session, Files, SessionTools, OpenAITools, AnthropicTools])
def test_a_facade_has_what_its_stub_says(kind: type[Asynchronous]) -> None:
    """Every public name of the class but `sync`, and nothing else; `close` only where there is a thread."""
    facade = kind.facade
    assert issubclass(facade, Blocking)
    trees = [ast.parse(content) for content in stubs.facades().values()]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    told: set[str] = set()
    names = [facade.__name__]
    while names:
        node = classes[names.pop()]
        told |= {each.name for each in node.body if isinstance(each, ast.FunctionDef)}
        names += [base.id for base in node.bases if isinstance(base, ast.Name)]
    there = {name for name in dir(kind) if not name.startswith("_")} - {"sync", "facade"}
    assert told - OWN == there
    assert ("close" in told) == issubclass(facade, Owning)
