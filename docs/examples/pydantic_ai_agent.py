"""An agent of Pydantic AI with the tools of a session of Cellgate.

    CELLGATE_TOKEN=... OPENAI_API_KEY=... MODEL=openai:... python pydantic_ai_agent.py "How many ...?"

It needs cellgate[pydantic-ai] and, for the model, its provider's extra of pydantic-ai-slim.
"""

import asyncio
import os
import sys
from typing import Any

from pydantic_ai import Agent

from cellgate import Gateway
from cellgate.integrations.pydantic_ai import CellgateToolset


async def ask(question: str, model: Any, gateway: Gateway) -> Any:
    """The model's answer. The session ends with the block."""
    async with gateway.session(checkpoint="auto") as session:
        agent = Agent(model, toolsets=[CellgateToolset(session)])
        return (await agent.run(question)).output


if __name__ == "__main__":
    gateway = Gateway(os.environ.get("CELLGATE_URL", "http://127.0.0.1:8888"), os.environ["CELLGATE_TOKEN"])
    print(asyncio.run(ask(sys.argv[1], os.environ["MODEL"], gateway)))
