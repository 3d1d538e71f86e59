"""A loop of LangChain around a chat model with the tools of a session of Cellgate.

    CELLGATE_TOKEN=... OPENAI_API_KEY=... MODEL=openai:... python langchain_agent.py "How many ...?"

It needs cellgate[langchain] and, for the model, langchain and its provider's package.
"""

import asyncio
import os
import sys
from typing import Any

from langchain_core.messages import HumanMessage

from cellgate import Gateway
from cellgate.integrations.langchain import CellgateToolkit

MOST_TURNS = 20


async def ask(question: str, model: Any, gateway: Gateway) -> Any:
    """The model's answer. The session ends with the toolkit."""
    messages = [HumanMessage(question)]
    async with CellgateToolkit(gateway.session(checkpoint="auto")) as toolkit:
        tools = {tool.name: tool for tool in toolkit.tools}
        bound = model.bind_tools(toolkit.tools)
        for _ in range(MOST_TURNS):
            reply = await bound.ainvoke(messages)
            messages.append(reply)
            if not reply.tool_calls:
                return reply.text
            messages += [await tools[call["name"]].ainvoke(call) for call in reply.tool_calls]
    raise RuntimeError(f"no answer after {MOST_TURNS} turns")


if __name__ == "__main__":
    from langchain.chat_models import init_chat_model

    gateway = Gateway(os.environ.get("CELLGATE_URL", "http://127.0.0.1:8888"), os.environ["CELLGATE_TOKEN"])
    print(asyncio.run(ask(sys.argv[1], init_chat_model(os.environ["MODEL"]), gateway)))
