"""Pydantic AI (pydantic-ai-slim 2): the tools of one session as a toolset.

    async with Gateway(url, token).session(checkpoint="auto") as session:
        agent = Agent(model, toolsets=[CellgateToolset(session)])

An agent enters and leaves its toolsets with each run, and variables are to stay, so it does not end the
session: whoever made it does. Pictures are `BinaryContent`.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable
from typing import Any

from cellgate.integrations.definitions import Definition
from cellgate.integrations.tools import AnySession, Picture, SessionTools, ToolAnswer, chosen

try:
    from pydantic_ai import BinaryContent, Tool
    from pydantic_ai.exceptions import ToolFailed
    from pydantic_ai.toolsets import FunctionToolset
except ImportError as error:
    raise ImportError(
        "cellgate.integrations.pydantic_ai needs pydantic-ai-slim 2: pip install 'cellgate[pydantic-ai]'"
    ) from error


class CellgateToolset(FunctionToolset[Any]):  # type: ignore[misc]  # has no type without pydantic-ai-slim
    """The tools that work in the session, all or those of these names.

    Calls that a model makes at once run one after the other, as cells do. A refusal is a failed call, which
    the model is told of.
    """

    def __init__(self, session: AnySession, names: Iterable[str] | None = None) -> None:
        self.session_tools = SessionTools(session)
        super().__init__([self._tool(definition) for definition in chosen(names)])

    def _tool(self, definition: Definition) -> Any:
        async def call(**arguments: Any) -> str | list[Any]:
            return _content(await self.session_tools.answer(definition.name, arguments))

        return Tool.from_schema(
            call, definition.name, definition.description, definition.parameters(), sequential=True
        )


def _content(answer: ToolAnswer) -> str | list[Any]:
    """Return a tool's content. Raises ToolFailed for a refusal."""
    if answer.failed:
        raise ToolFailed(answer.text)
    if not answer.pictures:
        return answer.text
    return [
        BinaryContent(base64.b64decode(part.data), media_type=part.type)
        if isinstance(part, Picture)
        else part
        for part in answer.content
    ]
