"""LangChain (langchain-core 1): the tools of one session as `BaseTool`, with and without ``await``.

    async with CellgateToolkit(Gateway(url, token).session(checkpoint="auto")) as toolkit:
        agent = create_agent(model, toolkit.tools)

With ``with`` it is the same for programs that do not await. Pictures are content blocks of type ``image``.
"""

from __future__ import annotations

from typing import Any

from cellgate.integrations.definitions import Definition
from cellgate.integrations.toolkit import Toolkit
from cellgate.integrations.tools import Picture, ToolAnswer

try:
    from langchain_core.tools import BaseTool, ToolException
    from pydantic import PrivateAttr
except ImportError as error:
    raise ImportError(
        "cellgate.integrations.langchain needs langchain-core: pip install 'cellgate[langchain]'"
    ) from error


class CellgateTool(BaseTool):  # type: ignore[misc]  # has no type without langchain-core
    """One tool; `CellgateToolkit` makes them. A refusal is a tool message with the status ``error``."""

    handle_tool_error: Any = True
    _toolkit: CellgateToolkit = PrivateAttr()

    def __init__(self, definition: Definition, toolkit: CellgateToolkit) -> None:
        super().__init__(
            name=definition.name, description=definition.description, args_schema=definition.parameters()
        )
        self._toolkit = toolkit

    def _run(self, **arguments: Any) -> str | list[dict[str, Any]]:
        return _content(self._toolkit.answer_now(self.name, arguments))

    async def _arun(self, **arguments: Any) -> str | list[dict[str, Any]]:
        return _content(await self._toolkit.answer(self.name, arguments))


class CellgateToolkit(Toolkit):
    """The session's tools, all or those named. As a context manager it ends the session."""

    def tool(self, definition: Definition) -> CellgateTool:
        return CellgateTool(definition, self)


def _content(answer: ToolAnswer) -> str | list[dict[str, Any]]:
    """Return the content of a tool message. Raises ToolException for a refusal."""
    if answer.failed:
        raise ToolException(answer.text)
    if not answer.pictures:
        return answer.text
    return [
        {"type": "image", "base64": part.data, "mime_type": part.type}
        if isinstance(part, Picture)
        else {"type": "text", "text": part}
        for part in answer.content
    ]
