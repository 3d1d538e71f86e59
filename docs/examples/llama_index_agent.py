"""An agent of LlamaIndex with the tools of a session of Cellgate.

    CELLGATE_TOKEN=... OPENAI_API_KEY=... MODEL=gpt-... python llama_index_agent.py "How many ...?"

It needs cellgate[llama-index] and, for the model, llama-index-llms-openai or another provider's package.
"""

import asyncio
import os
import sys
from typing import Any

from llama_index.core.agent.workflow import FunctionAgent

from cellgate import Gateway
from cellgate.integrations.llama_index import CellgateToolkit


async def ask(question: str, llm: Any, gateway: Gateway) -> Any:
    """The model's answer. The session ends with the toolkit."""
    async with CellgateToolkit(gateway.session(checkpoint="auto")) as toolkit:
        agent = FunctionAgent(tools=toolkit.tools, llm=llm)
        return str(await agent.run(question))


if __name__ == "__main__":
    from llama_index.llms.openai import OpenAI

    gateway = Gateway(os.environ.get("CELLGATE_URL", "http://127.0.0.1:8888"), os.environ["CELLGATE_TOKEN"])
    print(asyncio.run(ask(sys.argv[1], OpenAI(model=os.environ["MODEL"]), gateway)))
