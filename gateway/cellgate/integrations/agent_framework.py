"""Microsoft Agent Framework (agent-framework-core 1): a CodeAct provider, the tools of one session.

    async with Gateway(url, token).session(checkpoint="auto") as session:
        agent = Agent(client=client, context_providers=[AgentFrameworkCodeActProvider(session)])

A context provider gives an agent tools and instructions anew with each run, and variables are to stay, so it
does not end the session: whoever made it does. Pictures are `Content` of the type ``data``. Tools of the
agent's own stay tools: cells can't call them.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Iterable
from typing import Any, Final

from cellgate.integrations.definitions import Definition
from cellgate.integrations.tools import AnySession, Picture, SessionTools, ToolAnswer, chosen

try:
    from agent_framework import Content, ContextProvider, FunctionTool
except ImportError as error:
    raise ImportError(
        "cellgate.integrations.agent_framework needs agent-framework-core 1:"
        " pip install 'cellgate[agent-framework]'"
    ) from error

INSTRUCTIONS: Final = (
    "Act by running code: `run_code` runs a cell of a notebook, and its variables, imports and files stay for"
    " the next one. Do in one cell what belongs together, look at what it shows, and go on from there."
)


class AgentFrameworkCodeActProvider(ContextProvider):  # type: ignore[misc]  # has no type without the extra
    """The tools that work in the session, all or those of these names, with instructions to act by code.

    Calls that a model makes at once run one after the other, as cells do. A refusal is a result that begins
    with its reason. `source_id` names the provider among those of an agent.
    """

    def __init__(
        self, session: AnySession, names: Iterable[str] | None = None, *, source_id: str = "cellgate"
    ) -> None:
        super().__init__(source_id)
        self.session_tools = SessionTools(session)
        self._turn = asyncio.Lock()
        self._tools = [self._tool(definition) for definition in chosen(names)]

    async def before_run(self, *, context: Any, **_: Any) -> None:
        """Give the agent's run the tools and, with `run_code`, the instructions."""
        if any(tool.name == "run_code" for tool in self._tools):
            context.extend_instructions(self.source_id, INSTRUCTIONS)
        context.extend_tools(self.source_id, self._tools)

    def _tool(self, definition: Definition) -> Any:
        async def call(**arguments: Any) -> ToolAnswer:
            async with self._turn:
                return await self.session_tools.answer(definition.name, arguments)

        return FunctionTool(
            name=definition.name,
            description=definition.description,
            func=call,
            input_model=definition.parameters(),
            result_parser=_contents,
        )


def _contents(answer: ToolAnswer) -> list[Any]:
    """Return a tool's answer as the framework's contents."""
    return [
        Content.from_data(base64.b64decode(part.data), part.type)
        if isinstance(part, Picture)
        else Content.from_text(part)
        for part in answer.content
    ]
