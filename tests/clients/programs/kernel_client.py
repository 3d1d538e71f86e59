"""Run by the clients' interpreter: jupyter-kernel-client on the gateway. Arguments as in server.py."""

import json
import sys

from jupyter_kernel_client import JupyterKernelClient

URL, TOKEN, _ = sys.argv[1:]

with JupyterKernelClient(server_url=URL, token=TOKEN) as client:
    first = client.execute("print('hi', end=''); 1 + 1")
    failed = client.execute("1/0")
    client.restart()
    after = client.execute("2 + 3")
print(
    json.dumps(
        {
            "cell": [output["output_type"] for output in first["outputs"]],
            "failed": failed["status"],
            "restarted": [output["data"]["text/plain"] for output in after["outputs"]],
        }
    )
)
