"""Run by the clients' interpreter: the documented recipe for papermill, on a notebook that names no kernel.

Arguments as in server.py, and the page.
"""

import json
import os
import re
import sys
from pathlib import Path

import nbformat

URL, TOKEN, FOLDER, PAGE = sys.argv[1:]


def main():
    section = Path(PAGE).read_text().partition("## papermill and nbclient")[2]
    code = re.search(r"```python\n(.*?)```", section, re.DOTALL)[1]
    for shown, real in (("http://127.0.0.1:8888", URL), ('"T"', repr(TOKEN)), ("token T", f"token {TOKEN}")):
        assert shown in code, shown
        code = code.replace(shown, real)
    os.chdir(FOLDER)
    bare = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("print(limit)")])
    assert "kernelspec" not in bare.metadata
    nbformat.write(bare, "in.ipynb")
    exec(code)
    done = nbformat.read("out.ipynb", as_version=4)
    print(json.dumps({"printed": [output.text for cell in done.cells for output in cell.outputs]}))


main()
