"""Run by the clients' interpreter: frameworks of agents with Cellgate's classes, and the docs' examples.

Arguments as in server.py, and which framework. The models are scripts. Prints one JSON object with what
happened.
"""

import asyncio
import json
import os
import runpy
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(ROOT / "gateway"), str(ROOT / "kernels")]
URL, TOKEN, FOLDER, WHICH = sys.argv[1:]
PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"


def example(name):
    """What is asked of the example's agent."""
    return runpy.run_path(str(ROOT / "docs" / "examples" / name))["ask"]


def with_smolagents():
    from smolagents import CodeAgent, tool
    from smolagents.models import ChatMessage, Model
    from smolagents.utils import AgentError

    from cellgate import Gateway
    from cellgate.integrations.smolagents import CellgateExecutor

    gateway = Gateway(URL, TOKEN)

    class Scripted(Model):
        """A model that writes these cells, one at each step."""

        def __init__(self, *cells):
            super().__init__()
            self.cells = list(cells)

        def generate(self, messages, **options):
            return ChatMessage(
                role="assistant", content=f"Thought: so.\n<code>\n{self.cells.pop(0)}\n</code>"
            )

    @tool
    def double(number: int) -> int:
        """Double a number.

        Args:
            number: What is doubled.
        """
        return 2 * number

    found = {
        "example": example("smolagents_agent.py")(
            "?", Scripted("x = 6\nprint(x)", "final_answer(x * 7)"), gateway
        )
    }
    executor = CellgateExecutor(gateway.session(), additional_imports=["numpy"])
    with CodeAgent(
        tools=[double],
        model=Scripted("1 / 0", "final_answer([double(given), 'a' * 300_000])"),
        executor=executor,
        verbosity_level=0,
    ) as agent:
        number, text = agent.run("?", additional_args={"given": 4})
        found |= {
            "tool": number,
            "long": len(text),
            "error": "ZeroDivisionError" in str(agent.memory.steps[-2].error),
        }
        figure = "import matplotlib.pyplot as plt; figure = plt.figure(); plt.plot([1, 2]); figure"
        found["picture"] = executor.run_code_raise_errors(figure).output.format
        found["value"] = executor.run_code_raise_errors("print('said'); [1, 2]").output
        found["logs"] = executor.run_code_raise_errors("print('said')").logs
        try:
            executor.run_code_raise_errors("import os; os._exit(3)")
        except AgentError as error:
            found["died"] = "died" in str(error)
    return found


WITH = {"smolagents": with_smolagents}
print(json.dumps(WITH[WHICH]()))
