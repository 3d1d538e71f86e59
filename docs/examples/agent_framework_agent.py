"""An agent of Microsoft Agent Framework that acts by code, in a session of Cellgate.

    CELLGATE_TOKEN=... OPENAI_API_KEY=... OPENAI_MODEL=... python agent_framework_agent.py "How many ...?"

It needs cellgate[agent-framework] and, for the model, agent-framework-openai.
"""

import asyncio
import os
import sys
from typing import Any

from agent_framework import Agent

from cellgate import Gateway
from cellgate.integrations.agent_framework import AgentFrameworkCodeActProvider


async def ask(question: str, client: Any, gateway: Gateway) -> str:
    """The model's answer. The session ends with the block."""
    async with gateway.session(checkpoint="auto") as session:
        agent = Agent(client=client, context_providers=[AgentFrameworkCodeActProvider(session)])
        return str((await agent.run(question)).text)


if __name__ == "__main__":
    from agent_framework.openai import OpenAIChatClient

    gateway = Gateway(os.environ.get("CELLGATE_URL", "http://127.0.0.1:8888"), os.environ["CELLGATE_TOKEN"])
    print(asyncio.run(ask(sys.argv[1], OpenAIChatClient(), gateway)))
