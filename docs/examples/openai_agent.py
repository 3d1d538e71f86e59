"""An agent on OpenAI's Chat Completions, or on any server that speaks as they do, with a session of Cellgate.

    CELLGATE_TOKEN=... OPENAI_API_KEY=... OPENAI_MODEL=... python openai_agent.py "How many ...?"

OPENAI_BASE_URL names another server, such as http://127.0.0.1:11434/v1. It needs no package besides cellgate.
"""

import json
import os
import sys
import urllib.request
from typing import Any

from cellgate import Gateway
from cellgate.integrations.openai import OpenAITools

URL = os.environ.get("OPENAI_BASE_URL", "https://api.openai.com/v1")
MOST_TURNS = 20


def ask(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message."""
    body = {"model": os.environ["OPENAI_MODEL"], "messages": messages, "tools": tools}
    headers = {
        "Content-Type": "application/json",
        "Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY', '')}",
    }
    request = urllib.request.Request(f"{URL}/chat/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        reply: dict[str, Any] = json.load(answer)["choices"][0]["message"]
    return reply


def main() -> None:
    """Ask, run what the model calls, ask again, until it calls nothing more."""
    gateway = Gateway(os.environ.get("CELLGATE_URL", "http://127.0.0.1:8888"), os.environ["CELLGATE_TOKEN"])
    messages: list[dict[str, Any]] = [{"role": "user", "content": sys.argv[1]}]
    with OpenAITools.sync(gateway.session(checkpoint="auto")) as tools:
        for _ in range(MOST_TURNS):
            reply = ask(messages, tools.schemas)
            messages.append(reply)
            if not reply.get("tool_calls"):
                print(reply["content"])
                return
            messages += tools.messages(reply["tool_calls"])
    sys.exit(f"no answer after {MOST_TURNS} turns")


if __name__ == "__main__":
    main()
