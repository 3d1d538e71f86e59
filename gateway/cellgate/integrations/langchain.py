"""LangChain (langchain-core 1): the tools of one session as `BaseTool`, with and without ``await``.

    async with CellgateToolkit(Gateway(url, token).session(checkpoint="auto")) as toolkit:
        agent = create_agent(model, toolkit.tools)

With ``with`` it is the same for programs that do not await. Pictures are content blocks of type ``image``.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from cellgate.client import InvalidInput, Session
from cellgate.client.blocking import Asynchronous
from cellgate.integrations.tools import DEFINITIONS, Answer, Picture, SessionTools

try:
    from langchain_core.tools import BaseTool, ToolException
    from pydantic import PrivateAttr
except ImportError as error:
    raise ImportError(
        "cellgate.integrations.langchain needs langchain-core: pip install 'cellgate[langchain]'"
    ) from error


class _Shared(Asynchronous):
    """The tools of one session for a blocking facade, which all tools of a toolkit share."""

    def __init__(self, tools: SessionTools) -> None:
        self._tools = tools

    async def answer(self, name: str, arguments: dict[str, Any]) -> Answer:
        return await self._tools.answer(name, arguments)

    async def start(self) -> None:
        await self._tools.__aenter__()

    async def end(self) -> None:
        await self._tools.__aexit__(None, None, None)


class CellgateTool(BaseTool):  # type: ignore[misc]  # has no type without langchain-core
    """One tool; `CellgateToolkit` makes them. A refusal is a tool message with the status ``error``."""

    handle_tool_error: Any = True
    _toolkit: CellgateToolkit = PrivateAttr()

    def __init__(self, name: str, toolkit: CellgateToolkit) -> None:
        definition = DEFINITIONS[name]
        super().__init__(name=name, description=definition.description, args_schema=definition.parameters())
        self._toolkit = toolkit

    def _run(self, **arguments: Any) -> str | list[dict[str, Any]]:
        return _content(self._toolkit.blocking.answer(self.name, arguments))

    async def _arun(self, **arguments: Any) -> str | list[dict[str, Any]]:
        return _content(await self._toolkit.session_tools.answer(self.name, arguments))


class CellgateToolkit:
    """The tools that work in the session, all or those of these names.

    As a context manager it ends the session.
    """

    def __init__(self, session: Session, names: Iterable[str] | None = None) -> None:
        self.session_tools = SessionTools(session)
        wanted = list(DEFINITIONS if names is None else names)
        if unknown := sorted(set(wanted) - DEFINITIONS.keys()):
            raise InvalidInput(f"there is no tool {unknown[0]!r}; there are {', '.join(DEFINITIONS)}")
        self.tools = [CellgateTool(name, self) for name in wanted]

    @functools.cached_property
    def blocking(self) -> Any:
        """The tools for a caller that does not await; their loop runs in a thread."""
        return _Shared.sync(self.session_tools)

    async def __aenter__(self) -> Self:
        await self.session_tools.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.session_tools.__aexit__(kind, error, trace)

    def __enter__(self) -> Self:
        self.blocking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.blocking.end()
        finally:
            self.blocking.close()


def _content(answer: Answer) -> str | list[dict[str, Any]]:
    """What a tool message holds. Raises ToolException for a refusal."""
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
