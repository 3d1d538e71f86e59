"""The tasks of the interface, with an example of each operation. ``examples.json`` has them.

``document`` puts the examples into the document, where ``page`` shows them as commands, grouped by task. They
tell one story: a user looks at populations in the session `analysis`. Tests compare them with the schemas,
and check that every operation is in one task. Nothing here is sent or answered.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import msgspec


class Example(msgspec.Struct, frozen=True):
    """A request and its answer. `body` and `answer` are JSON; `answer` is None for other answers.

    `parts`: of its path, if they differ from the common ones. `options`: further words for curl, such as a
    file to send or to write. `command`: the whole command, if curl can't do it.
    """

    query: dict[str, str | int] = {}
    body: dict[str, Any] | None = None
    answer: dict[str, Any] | None = None
    options: str = ""
    command: str = ""
    parts: dict[str, str | int] = {}


class Task(msgspec.Struct, frozen=True):
    """A task, its explanation, and the names of its operations, the usual one first."""

    title: str
    text: str
    operations: tuple[str, ...]


class Examples(msgspec.Struct, frozen=True):
    """All tasks, and the example of each operation by its name. `parts`: of the examples' paths, by name."""

    tasks: tuple[Task, ...]
    parts: dict[str, str | int]
    examples: dict[str, Example]

    def of(self, operation: str) -> Example:
        """Return the example of an operation; an empty one if there is none."""
        return self.examples.get(operation, Example())

    def part(self, example: Example, name: str) -> str | int:
        """Return the value for a name in an example's path."""
        return example.parts.get(name, self.parts[name])


@cache
def load_examples() -> Examples:
    """Return the examples, read on the first call."""
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes(), type=Examples)
