"""Tool calls of OpenAI's APIs, and of the many that speak as they do: calls in, messages out, as plain JSON.

It needs no package of OpenAI's: what a client returns is given as objects of JSON (``model_dump()`` makes
them).

    async with OpenAITools(Gateway(url, token).session(checkpoint="auto")) as tools:
        reply = ...  # of the model, asked with tools=tools.schemas
        messages += [reply, *await tools.messages(reply["tool_calls"])]

``OpenAITools.sync(...)`` is the same without ``await``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from cellgate.client import InvalidInput
from cellgate.integrations.sync import SyncOpenAITools
from cellgate.integrations.tools import Picture, SessionTools, ToolAnswer, tool_schemas

T = TypeVar("T")


_Arguments = str | dict[str, object] | None
"""JSON, as OpenAI's own models have them; of others also an object, or nothing for a tool without any."""


class _Function(msgspec.Struct):
    name: str
    arguments: _Arguments = ""


class _ChatCall(msgspec.Struct):
    """An element of ``tool_calls``."""

    id: str
    function: _Function


class _Item(msgspec.Struct):
    """An element of a response's ``output``, of which only calls matter."""

    type: str = ""
    call_id: str = ""
    name: str = ""
    arguments: _Arguments = ""


class OpenAITools(SessionTools):
    """The tools of one session for Chat Completions (`schemas`, `messages`) and Responses (`outputs`).

    Calls of one reply run one after the other, in the order given.
    """

    facade = SyncOpenAITools

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as Chat Completions take them."""
        return tool_schemas("openai")

    @property
    def response_schemas(self) -> list[dict[str, Any]]:
        """The tools as Responses take them."""
        return tool_schemas("openai-responses")

    async def messages(self, tool_calls: Iterable[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
        """Return the messages that answer a reply's ``tool_calls``. Raises InvalidInput for what is no call.

        One for each call, as the API wants it. Such messages hold text alone, so pictures are in one more of
        the user's, which must come after all answers to this reply.
        """
        answered: list[dict[str, Any]] = []
        pictures: list[dict[str, Any]] = []
        for each in _read(tool_calls or (), _ChatCall):
            answer = await self.answer(each.function.name, each.function.arguments or "")
            text = answer.text
            if answer.pictures:
                text += f"\n[cellgate: pictures: {len(answer.pictures)}, in the user's next message]"
                pictures.append({"type": "text", "text": f"[cellgate: pictures of the call {each.id}]"})
                pictures += [
                    {"type": "image_url", "image_url": {"url": _data_url(part)}} for part in answer.pictures
                ]
            answered.append({"role": "tool", "tool_call_id": each.id, "content": text})
        if pictures:
            answered.append({"role": "user", "content": pictures})
        return answered

    async def outputs(self, output: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the items that answer the calls in a response's ``output``; its other items are passed over.

        Empty if there is no call. Raises InvalidInput for what is no item.
        """
        calls = [each for each in _read(output, _Item) if each.type == "function_call"]
        return [
            {
                "type": "function_call_output",
                "call_id": each.call_id,
                "output": _parts(await self.answer(each.name, each.arguments or "")),
            }
            for each in calls
        ]


def _read(objects: Iterable[Mapping[str, Any]], kind: type[T]) -> list[T]:
    try:
        return msgspec.convert(list(objects), list[kind])  # type: ignore[valid-type]
    except msgspec.ValidationError as error:
        raise InvalidInput(f"these are no tool calls of OpenAI's APIs: {error}") from error


def _parts(answer: ToolAnswer) -> str | list[dict[str, Any]]:
    """Text alone as a text, which servers take that know no more."""
    if not answer.pictures:
        return answer.text
    return [
        {"type": "input_image", "image_url": _data_url(part)}
        if isinstance(part, Picture)
        else {"type": "input_text", "text": part}
        for part in answer.content
    ]


def _data_url(picture: Picture) -> str:
    return f"data:{picture.type};base64,{picture.data}"
