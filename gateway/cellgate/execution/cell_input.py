"""A cell's `input()`: its question, and the answers, which are lines from its request or from a client.

Pure: ``run`` sends them to the kernel.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cellgate_kernels.base.errors import InvalidInput

END_OF_FILE = "\x04"
MOST_RECORDED = 10_000
"""Characters of an answer that are recorded."""


@dataclass(slots=True)
class CellInput:
    """The input of one cell. `awaited`: whether a client has to answer.

    `lines`: all lines, as in a pipe, so that `input()` raises EOFError after the last one; None if clients
    answer. `question`: the content of the input_request that a client has to answer.
    """

    lines: deque[str] | None
    awaited: bool = False
    question: Mapping[str, Any] | None = None

    def next_line(self, question: Mapping[str, Any]) -> str | None:
        """Return the next line for `input()`; None if a client has to answer this question."""
        if self.lines is None:
            self.awaited = True
            self.question = question
            return None
        return self.lines.popleft() if self.lines else END_OF_FILE

    def reply(self, value: object, mask: Callable[[str], str]) -> dict[str, Any] | None:
        """Return what to record of a client's answer to the question; None if there is no question.

        `value`: what the client sent, which may be anything. `mask`: takes secrets out of a text. A password
        is not recorded.
        """
        question, self.question = self.question, None
        if question is None:
            return None
        if question["password"]:
            return {"prompt": question["prompt"]}
        line = mask(value) if isinstance(value, str) else ""
        return {"prompt": question["prompt"], "value": line[:MOST_RECORDED]}

    def take_answer(self) -> None:
        """Accept a client's answer. Raises InvalidInput if none is awaited."""
        if not self.awaited:
            raise InvalidInput("This execution does not wait for input")
        self.awaited = False
