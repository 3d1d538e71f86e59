"""What tools do around their own work: open the session, report refusals, tell how long they run.

``tools`` and ``programs`` use it, and by `offered` the tools that the protocol shares with others. A refusal
by the gateway becomes a tool error that begins with its reason.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import ImageContent, TextContent
from pydantic import WithJsonSchema

from cellgate.client import Session
from cellgate.integrations import tools
from cellgate.integrations.tools import Picture
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.tasks import Supervisor

Content = list[TextContent | ImageContent]

_PROGRESS = 2.0  # seconds between two progress reports


@asynccontextmanager
async def told(session: Session) -> AsyncIterator[None]:
    """Work on the session, reporting a refusal by the gateway to the model."""
    try:
        await session.opened()
        yield
    except CellgateError as error:
        raise ToolError(f"{error.reason}: {error.message}") from error


@asynccontextmanager
async def progress(context: Context) -> AsyncIterator[None]:
    """Report progress to the client every few seconds, if it has requested that."""

    async def tell() -> None:
        begun = time.monotonic()
        while True:
            await asyncio.sleep(_PROGRESS)
            seconds = round(time.monotonic() - begun, 1)
            await context.report_progress(seconds, message=f"running for {seconds:.0f} s")

    tasks = Supervisor()
    tasks.start(tell(), "progress")
    try:
        yield
    finally:
        await tasks.cancel()


def text_content(text: str) -> TextContent:
    """Return a text in the form of a tool's result."""
    return TextContent(type="text", text=text)


def as_content(parts: Iterable[str | Picture]) -> Content:
    """Return texts and pictures as the protocol has them."""
    return [
        text_content(part)
        if isinstance(part, str)
        else ImageContent(type="image", data=part.data, mime_type=part.type)
        for part in parts
    ]


def offered(
    tool: Callable[..., Awaitable[tools.Content]], session: Session, languages: Sequence[str]
) -> Callable[..., Awaitable[Content]]:
    """Return a tool of ``integrations`` as the SDK takes it, with the same name, description and parameters.

    It reports refusals and progress as the protocol's own tools do. `languages`: those that are served.
    """

    async def call(context: Context, **arguments: Any) -> Content:
        async with told(session), progress(context):
            return as_content(await tool(**arguments))

    # The schema lists the usual names; the gateway knows shorter ones, such as js, and refuses others.
    named = Annotated[str, WithJsonSchema({"type": "string", "enum": list(languages)})] | None
    signature = inspect.signature(tool, eval_str=True)
    parameters = [
        each.replace(annotation=named) if each.name == "language" else each
        for each in signature.parameters.values()
    ]
    given = inspect.Parameter("context", inspect.Parameter.KEYWORD_ONLY, annotation=Context)
    call.__name__ = tool.__name__
    call.__doc__ = inspect.getdoc(tool)
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=[*parameters, given], return_annotation=Content
    )
    return call
