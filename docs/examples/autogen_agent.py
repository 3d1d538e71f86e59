"""An agent of AutoGen that writes code and runs it in a session of Cellgate.

    CELLGATE_TOKEN=... OPENAI_API_KEY=... MODEL=... python autogen_agent.py "How many ...?"

It needs cellgate[autogen], autogen-agentchat and, for the model, autogen-ext[openai].
"""

import asyncio
import os
import sys
from typing import Any

from autogen_agentchat.agents import CodeExecutorAgent

from cellgate.integrations.autogen import CellgateCodeExecutor


async def ask(question: str, model: Any, executor: Any) -> Any:
    """What the agent says of the question, having run its code. The session ends with the executor."""
    async with executor:
        agent = CodeExecutorAgent("coder", code_executor=executor, model_client=model)
        return (await agent.run(task=question)).messages[-1].content


if __name__ == "__main__":
    from autogen_ext.models.openai import OpenAIChatCompletionClient

    url = os.environ.get("CELLGATE_URL", "http://127.0.0.1:8888")
    print(
        asyncio.run(
            ask(
                sys.argv[1],
                OpenAIChatCompletionClient(model=os.environ["MODEL"]),
                CellgateCodeExecutor(url, os.environ["CELLGATE_TOKEN"]),
            )
        )
    )
