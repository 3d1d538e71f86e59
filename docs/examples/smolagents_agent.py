"""A code agent of smolagents whose code runs in a session of Cellgate.

    CELLGATE_TOKEN=... HF_TOKEN=... MODEL=... python smolagents_agent.py "How many ...?"

MODEL is the id of a model at Hugging Face. It needs cellgate[smolagents].
"""

import os
import sys
from typing import Any

from smolagents import CodeAgent, InferenceClientModel

from cellgate import Gateway
from cellgate.integrations.smolagents import CellgateExecutor


def ask(question: str, model: Any, gateway: Gateway, **session: Any) -> Any:
    """The agent's answer. The session ends with the agent."""
    executor = CellgateExecutor(gateway.session(**session))
    with CodeAgent(tools=[], model=model, executor=executor) as agent:
        return agent.run(question)


if __name__ == "__main__":
    url = os.environ.get("CELLGATE_URL", "http://127.0.0.1:8888")
    print(
        ask(
            sys.argv[1], InferenceClientModel(os.environ["MODEL"]), Gateway(url, os.environ["CELLGATE_TOKEN"])
        )
    )
