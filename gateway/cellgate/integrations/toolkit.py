"""A session's tools for frameworks whose tools are objects, called with and without ``await``.

``langchain`` and ``llama_index`` say how one of their tools is made; whose session it is, and the loop of
callers that do not await, are here.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Iterable
from types import TracebackType
from typing import Any, Self

from cellgate.client.blocking import Asynchronous
from cellgate.integrations.definitions import Definition
from cellgate.integrations.tools import AnySession, SessionTools, ToolAnswer, chosen


class _Shared(Asynchronous):
    """The tools of one session for a blocking facade, which all tools of a toolkit share."""

    def __init__(self, tools: SessionTools) -> None:
        self._tools = tools

    async def answer(self, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        return await self._tools.answer(name, arguments)

    async def start(self) -> None:
        await self._tools.__aenter__()

    async def end(self) -> None:
        await self._tools.__aexit__(None, None, None)


class Toolkit(ABC):
    """The tools that work in the session, all or those of these names, as `tools`.

    As a context manager it ends the session. Raises InvalidInput for a name of none.
    """

    def __init__(self, session: AnySession, names: Iterable[str] | None = None) -> None:
        self.session_tools = SessionTools(session)
        self.tools = [self.tool(definition) for definition in chosen(names)]

    @abstractmethod
    def tool(self, definition: Definition) -> Any:
        """Return the framework's object for a tool; it calls `answer` or `answer_now`."""

    async def answer(self, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """Call a tool by its name."""
        return await self.session_tools.answer(name, arguments)

    def answer_now(self, name: str, arguments: dict[str, Any]) -> ToolAnswer:
        """Call a tool by its name, for a caller that does not await."""
        answer: ToolAnswer = self._blocking.answer(name, arguments)
        return answer

    @functools.cached_property
    def _blocking(self) -> Any:
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
        self._blocking.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._blocking.end()
        finally:
            self._blocking.close()
