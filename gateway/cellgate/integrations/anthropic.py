"""Tool calls of Anthropic's Messages API: ``tool_use`` blocks in, ``tool_result`` blocks out, as plain JSON.

It needs no package of Anthropic's: what a client returns is given as objects of JSON (``model_dump()`` makes
them).

    async with AnthropicTools(Gateway(url, token).session(checkpoint="auto")) as tools:
        reply = ...  # of the model, asked with tools=tools.schemas
        messages.append({"role": "assistant", "content": reply["content"]})
        messages.append({"role": "user", "content": await tools.results(reply["content"])})

``AnthropicTools.sync(...)`` is the same without ``await``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from cellgate.client import InvalidInput
from cellgate.integrations.sync import SyncAnthropicTools
from cellgate.integrations.tools import Picture, SessionTools, tool_schemas


class _Block(msgspec.Struct):
    """A block of a message's content, of which only calls matter."""

    type: str = ""
    id: str = ""
    name: str = ""
    input: dict[str, Any] = {}


class AnthropicTools(SessionTools):
    """The tools of one session for the Messages API. Calls of one message run in the order given."""

    facade = SyncAnthropicTools

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as the API takes them."""
        return tool_schemas("anthropic")

    async def results(self, content: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the blocks that answer the calls in a message's content; its other blocks are passed over.

        Empty if there is no call. Raises InvalidInput for what is no content.
        """
        try:
            blocks = msgspec.convert(list(content), list[_Block])
        except msgspec.ValidationError as error:
            raise InvalidInput(f"this is no content of Anthropic's Messages API: {error}") from error
        results = []
        for each in blocks:
            if each.type == "tool_use":
                answer = await self.answer(each.name, each.input)
                result = {
                    "type": "tool_result",
                    "tool_use_id": each.id,
                    "content": [_part(part) for part in answer.content],
                }
                results.append({**result, "is_error": True} if answer.failed else result)
        return results


def _part(part: str | Picture) -> dict[str, Any]:
    if isinstance(part, Picture):
        source = {"type": "base64", "media_type": part.type, "data": part.data}
        return {"type": "image", "source": source}
    # A text may not be empty.
    return {"type": "text", "text": part or "[nothing]"}
