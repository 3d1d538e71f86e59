"""An agent on Anthropic's Messages API with a session of Cellgate.

    CELLGATE_TOKEN=... ANTHROPIC_API_KEY=... ANTHROPIC_MODEL=... python anthropic_agent.py "How many ...?"

It needs no package besides cellgate.
"""

import json
import os
import sys
import urllib.request
from typing import Any

from cellgate import Gateway
from cellgate.integrations.anthropic import AnthropicTools

URL = os.environ.get("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
MOST_TURNS = 20


def ask(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> dict[str, Any]:
    """The model's next message."""
    body = {"model": os.environ["ANTHROPIC_MODEL"], "max_tokens": 4000, "messages": messages, "tools": tools}
    headers = {
        "Content-Type": "application/json",
        "anthropic-version": "2023-06-01",
        "x-api-key": os.environ.get("ANTHROPIC_API_KEY", ""),
    }
    request = urllib.request.Request(f"{URL}/v1/messages", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=300) as answer:
        reply: dict[str, Any] = json.load(answer)
    return reply


def main() -> None:
    """Ask, run what the model calls, ask again, until it calls nothing more."""
    gateway = Gateway(os.environ.get("CELLGATE_URL", "http://127.0.0.1:8888"), os.environ["CELLGATE_TOKEN"])
    messages: list[dict[str, Any]] = [{"role": "user", "content": sys.argv[1]}]
    with AnthropicTools.sync(gateway.session(checkpoint="auto")) as tools:
        for _ in range(MOST_TURNS):
            reply = ask(messages, tools.schemas)
            messages.append({"role": "assistant", "content": reply["content"]})
            results = tools.results(reply["content"])
            if not results:
                print("".join(part.get("text", "") for part in reply["content"]))
                return
            messages.append({"role": "user", "content": results})
    sys.exit(f"no answer after {MOST_TURNS} turns")


if __name__ == "__main__":
    main()
