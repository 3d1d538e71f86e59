"""An agent of AG2 1.x that runs code as cells, and commands, in a session of Cellgate.

    CELLGATE_TOKEN=... OPENAI_API_KEY=... MODEL=... python ag2_agent.py "How many ...?"

It needs cellgate[ag2] and, for the model, ag2[openai].
"""

import asyncio
import os
import sys
from typing import Any

from ag2 import Agent
from ag2.tools import SandboxCodeTool, SandboxShellTool
from ag2.tools.sandbox.factory import SingletonFactory

from cellgate import Gateway
from cellgate.integrations.ag2 import CellgateCode, CellgateSandbox


async def ask(question: str, config: Any, gateway: Gateway) -> Any:
    """The agent's answer. The session ends with the block."""
    async with gateway.session() as session:
        code = SandboxCodeTool(CellgateCode(session))
        shell = SandboxShellTool(SingletonFactory(CellgateSandbox(session)))
        agent = Agent("coder", config=config, tools=[code, shell])
        return (await agent.ask(question)).body


if __name__ == "__main__":
    from ag2.config import OpenAIConfig

    gateway = Gateway(os.environ.get("CELLGATE_URL", "http://127.0.0.1:8888"), os.environ["CELLGATE_TOKEN"])
    print(asyncio.run(ask(sys.argv[1], OpenAIConfig(model=os.environ["MODEL"]), gateway)))
