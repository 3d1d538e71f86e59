"""LlamaIndex (llama-index-core 0.14): the tools of one session, with and without ``await``.

    async with CellgateToolkit(Gateway(url, token).session(checkpoint="auto")) as toolkit:
        agent = FunctionAgent(tools=toolkit.tools, llm=llm)

With ``with`` it is the same for programs that do not await. Pictures are `ImageBlock`s.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from cellgate.integrations.definitions import Definition
from cellgate.integrations.toolkit import Toolkit
from cellgate.integrations.tools import Picture, ToolAnswer

try:
    from llama_index.core.base.llms.types import ImageBlock, TextBlock
    from llama_index.core.tools import AsyncBaseTool, ToolMetadata, ToolOutput
except ImportError as error:
    raise ImportError(
        "cellgate.integrations.llama_index needs llama-index-core: pip install 'cellgate[llama-index]'"
    ) from error


class _Metadata(ToolMetadata):  # type: ignore[misc]  # has no type without llama-index-core
    """A tool's name, description and parameters, without a class of pydantic's for these."""

    def __init__(self, definition: Definition) -> None:
        super().__init__(definition.description, definition.name, None)
        self._parameters = definition.parameters()

    def get_parameters_dict(self) -> dict[str, Any]:
        """Return the parameters as a JSON schema."""
        return self._parameters

    @property
    def fn_schema_str(self) -> str:
        """The schema as JSON, for agents that read the description of a tool as text."""
        return json.dumps(self._parameters)


class SessionTool(AsyncBaseTool):  # type: ignore[misc]
    """One tool; `CellgateToolkit` makes them. A refusal is an output with `is_error`."""

    def __init__(self, definition: Definition, toolkit: CellgateToolkit) -> None:
        self._metadata = _Metadata(definition)
        self._name = definition.name
        self._toolkit = toolkit

    @property
    def metadata(self) -> ToolMetadata:
        """The tool as a model is told of it."""
        return self._metadata

    def call(self, **arguments: Any) -> ToolOutput:
        """Call the tool and wait for its output."""
        return self._output(arguments, self._toolkit.answer_now(self._name, arguments))

    async def acall(self, **arguments: Any) -> ToolOutput:
        """Call the tool on the running event loop."""
        return self._output(arguments, await self._toolkit.answer(self._name, arguments))

    def _output(self, arguments: dict[str, Any], answer: ToolAnswer) -> ToolOutput:
        blocks = [
            ImageBlock(image=base64.b64decode(part.data), image_mimetype=part.type)
            if isinstance(part, Picture)
            else TextBlock(text=part)
            for part in answer.content
        ]
        return ToolOutput(
            self._name, blocks=blocks, raw_input=arguments, raw_output=answer.text, is_error=answer.failed
        )


class CellgateToolkit(Toolkit):
    """The session's tools, all or those named. As a context manager it ends the session."""

    def tool(self, definition: Definition) -> SessionTool:
        return SessionTool(definition, self)
