"""Run by the clients' interpreter: the documented recipe for ``jupyter nbconvert --execute``.

Arguments as in server.py, and the page.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat

URL, TOKEN, FOLDER, PAGE = sys.argv[1:]


def main():
    section = Path(PAGE).read_text().partition("## nbconvert")[2]
    config = re.search(r"```python no-run\n(.*?)```", section, re.DOTALL)[1]
    commands = re.search(r"```sh\n(.*?)```", section, re.DOTALL)[1]
    for shown, real in (("http://127.0.0.1:8888", URL), ("TOKEN=T", f"TOKEN={TOKEN}")):
        assert shown in commands, shown
        commands = commands.replace(shown, real)
    os.chdir(FOLDER)
    Path("gateway.py").write_text(config)
    cells = [nbformat.v4.new_code_cell(code) for code in ("x = 6", "print('made', x * 7)")]
    nbformat.write(nbformat.v4.new_notebook(cells=cells), "in.ipynb")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", commands], check=True, env={**os.environ, "PATH": path})
    print(json.dumps({"made": "made 42" in Path("in.html").read_text()}))


main()
