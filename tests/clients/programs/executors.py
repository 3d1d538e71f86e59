"""Run by the clients' interpreter: the code executors of AutoGen and AG2 on the gateway.

Arguments as in server.py, and which of the two. Prints one JSON object with what happened.
"""

import asyncio
import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

URL, TOKEN, FOLDER, WHICH = sys.argv[1:]
ADDRESS = urlsplit(URL)
PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()"


class AutoGen:
    """DockerJupyterCodeExecutor, on a server that is there already instead of a container."""

    def __init__(self):
        from autogen_ext.code_executors.docker_jupyter import DockerJupyterCodeExecutor
        from autogen_ext.code_executors.docker_jupyter._jupyter_server import JupyterConnectionInfo

        server = JupyterConnectionInfo(host=ADDRESS.hostname, port=ADDRESS.port, use_https=False, token=TOKEN)
        self.loop = asyncio.Runner()
        self.executor = DockerJupyterCodeExecutor(server, output_dir=Path(FOLDER))

    def run(self, *cells):
        from autogen_core import CancellationToken
        from autogen_core.code_executor import CodeBlock

        blocks = [CodeBlock(code=code, language="python") for code in cells]
        return self.loop.run(self.executor.execute_code_blocks(blocks, CancellationToken()))

    def restart(self):
        self.loop.run(self.executor.restart())

    def stop(self):
        self.loop.run(self.executor.stop())


class AG2:
    """JupyterCodeExecutor."""

    def __init__(self):
        from autogen.coding.jupyter import JupyterCodeExecutor, JupyterConnectionInfo

        server = JupyterConnectionInfo(host=ADDRESS.hostname, port=ADDRESS.port, use_https=False, token=TOKEN)
        self.executor = JupyterCodeExecutor(server, output_dir=FOLDER)
        self.restart, self.stop = self.executor.restart, self.executor.stop

    def run(self, *cells):
        from autogen.coding import CodeBlock

        return self.executor.execute_code_blocks([CodeBlock(code=code, language="python") for code in cells])


def use(executor):
    first = executor.run("x = 6", "print('hi'); x * 7")
    plot = executor.run(PLOT)
    # They stop listening at the error and send the next cell at once.
    failures = [(executor.run("1/0"), executor.run(f"print({number})")) for number in range(10)]
    executor.restart()
    restarted = executor.run("print('x' in globals())")
    executor.stop()
    return {
        "cell": first.output,
        "files": [Path(file).read_bytes()[1:4].decode() for file in plot.output_files],
        "failed": sorted({failed.exit_code for failed, _ in failures}),
        "named": all("ZeroDivisionError" in failed.output for failed, _ in failures),
        "after": [after.output.strip() for _, after in failures],
        "restarted": restarted.output.strip(),
    }


print(json.dumps(use({"autogen": AutoGen, "ag2": AG2}[WHICH]())))
