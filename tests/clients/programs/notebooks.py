"""Run by the clients' interpreter: nbclient and papermill on the gateway, through Jupyter Server's classes.

Arguments as in server.py; the token may be empty. Jupyter Server's GatewayKernelClient opens its WebSocket
without the token that it was given; here it gets it, as docs/how-to/connect-jupyter-clients.md shows.
"""

import functools
import json
import sys
from pathlib import Path

import nbformat
import papermill
import websocket
from jupyter_server.gateway.gateway_client import GatewayClient
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

URL, TOKEN, FOLDER = sys.argv[1:]
MANAGER = "jupyter_server.gateway.managers.GatewayKernelManager"
CELLS = [
    "limit = 3",
    "print('hi')\nfor n in range(limit): display(n)\nn + 1",
    "import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()",
]
FAILING = [*CELLS, "print('before'); 1/0", "print('never')"]


def notebook(cells):
    made = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    made.metadata.kernelspec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    made.cells[0].metadata.tags = ["parameters"]
    return made


def shown(executed):
    """What each code cell shows, neighbouring pieces of a stream as one."""
    result = []
    for cell in executed.cells:
        if cell.cell_type != "code":
            continue
        outputs = []
        for output in cell.outputs:
            what = output.get("text") or output.get("ename") or sorted(output["data"])
            if outputs and isinstance(outputs[-1], str) and output.output_type == "stream":
                outputs[-1] += what
            else:
                outputs.append(what)
        result.append(outputs)
    return result


def with_nbclient():
    made = notebook(FAILING)
    try:
        NotebookClient(made, kernel_manager_class=MANAGER, timeout=60).execute()
    except CellExecutionError as error:
        return {"failed": error.ename, "shown": shown(made)}
    return {"failed": None}


def with_papermill(cells):
    source, target = Path(FOLDER) / "source.ipynb", Path(FOLDER) / "target.ipynb"
    nbformat.write(notebook(cells), source)
    failed = None
    try:
        papermill.execute_notebook(
            source, target, {"limit": 2}, kernel_manager_class=MANAGER, progress_bar=False
        )
    except papermill.PapermillExecutionError as error:
        failed = error.ename
    return {"failed": failed, "shown": shown(nbformat.read(target, as_version=4))}


GatewayClient.instance(url=URL, auth_token=TOKEN)
if TOKEN:
    header = {"Authorization": f"token {TOKEN}"}
    websocket.create_connection = functools.partial(websocket.create_connection, header=header)
happened = {"nbclient": with_nbclient()}
if TOKEN:
    happened |= {"papermill": with_papermill(CELLS), "failing": with_papermill(FAILING)}
print(json.dumps(happened))
