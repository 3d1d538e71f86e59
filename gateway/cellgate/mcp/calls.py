"""What tools do around their own work: open the session, report refusals, tell how long they run.

``tools`` and ``programs`` use it. A refusal by the gateway becomes a tool error that begins with its reason.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import TextContent

from cellgate.client import Session
from cellgate_kernels.errors import CellgateError
from cellgate_kernels.tasks import Supervisor

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
    """Reports progress to the client every few seconds, if it has requested that."""

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
    """A text as a tool returns it."""
    return TextContent(type="text", text=text)
