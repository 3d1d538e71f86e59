"""A kernel tells its Python and its packages; whatever else it says is no answer."""

from __future__ import annotations

from typing import Any

import pytest

from kernels.environment import EXPRESSION, MISSING, Environment, _environment, _read
from kernels.messages import Channel, new_message


def test_the_expression_tells_this_interpreters_packages() -> None:
    from importlib.metadata import version
    from platform import python_version

    told = _reply(repr(eval(EXPRESSION)))
    assert told is not None
    assert (told.python, told.packages["tornado"]) == (python_version(), version("tornado"))
    assert list(told.packages) == sorted(told.packages, key=str.lower)


def _reply(text: Any) -> Environment | None:
    content = {"user_expressions": {"value": {"status": "ok", "data": {"text/plain": text}}}}
    return _environment(_read(new_message(Channel.SHELL, "execute_reply", content, session="s")))


def test_the_other_expression_tells_modules_that_are_missing() -> None:
    names = ["json", "sys", "tornado", "pytest", "_pytest", "no_such_module"]
    assert eval(MISSING.format(names=names)) == ["no_such_module"]


@pytest.mark.parametrize(
    "text", [None, 5, "", "{", "'{}'", "'[1]'", """'{"python":"3","packages":{"a":1}}'""", "(" * 5000]
)
def test_what_is_no_list_of_packages_is_none(text: Any) -> None:
    assert _reply(text) is None


def test_a_reply_without_the_expression_is_none() -> None:
    content = {"status": "error", "user_expressions": {}}
    assert _read(new_message(Channel.SHELL, "execute_reply", content, session="s")) is None
