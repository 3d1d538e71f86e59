"""Every kind of output through HTTP, and the exported notebook.

The oracle is nbclient: the same cells in a kernel that Cellgate has nothing to do with.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
import uuid
from collections.abc import Iterator
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbformat import v4 as untyped_v4

from tests.gateway.test_notebooks import png_size, run_with_nbclient
from tests.support.server import GatewayProcess, Response, until

v4: Any = untyped_v4
PLACEHOLDER = "<IPython.core.display.{} object>"
IMPORTS = "from IPython.display import *; import sys, time"


def stream(text: str, name: str = "stdout") -> dict[str, Any]:
    return {"output_type": "stream", "name": name, "text": text}


def display(data: dict[str, Any], metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    return {"output_type": "display_data", "data": data, "metadata": metadata or {}}


def of_class(name: str, mime: str, value: Any, metadata: dict[str, Any] | None = None) -> dict[str, Any]:
    """What IPython.display's class `name` shows."""
    return display({"text/plain": PLACEHOLDER.format(name), mime: value}, metadata)


@pytest.fixture(scope="module")
def shared(gateway: GatewayProcess) -> Iterator[str]:
    """One session for cells that need nothing of each other."""
    key = f"outputs-{uuid.uuid4().hex[:12]}"
    assert gateway.execute(key, IMPORTS)["status"] == "ok"
    yield key
    gateway.delete(f"/v1/sessions/{key}")


def outputs(gateway: GatewayProcess, session: str, code: str) -> list[dict[str, Any]]:
    """The outputs of a cell, which must be the same in the record; it must not fail."""
    result = gateway.execute(session, code, "?max_text=0")
    assert result["status"] == "ok", result["error"]
    shown: list[dict[str, Any]] = result["outputs"]
    assert gateway.result(session, result["execution"], "?max_text=0")["outputs"] == shown
    return shown


# ---- text

STREAMS = {
    "stdout": ("print('one'); print('two')", [stream("one\ntwo\n")]),
    "stderr": ("print('oops', file=sys.stderr)", [stream("oops\n", "stderr")]),
    "no newline": ("print('a', end=''); print('b', end='')", [stream("ab")]),
    "in turns": (
        "print('a', flush=True); print('b', file=sys.stderr, flush=True); print('c', flush=True)",
        [stream("a\n"), stream("b\n", "stderr"), stream("c\n")],
    ),
    "unicode": (
        "print('žluťoučký 你好 🎉 \\u202e \\x00 \\x7f')",
        [stream("žluťoučký 你好 🎉 \u202e \x00 \x7f\n")],
    ),
    "ansi": ("print('\\x1b[31mred\\x1b[0m')", [stream("\x1b[31mred\x1b[0m\n")]),
    "carriage return": ("print('loading...\\rdone      ')", [stream("done      \n")]),
    "progress bar": (
        """
for i in range(0, 101, 20):
    print(f'\\r{i:3}%|{"#" * (i // 20):5}|', end='', file=sys.stderr, flush=True)
print(file=sys.stderr)""",
        [stream("100%|#####|\n", "stderr")],
    ),
    "windows line ends": ("print('a\\r\\nb\\r\\n', end='')", [stream("a\r\nb\r\n")]),
    "backspace": ("print('abc\\b\\bX')", [stream("aX\n")]),
    "thread": (
        "import threading; t = threading.Thread(target=print, args=('in a thread',)); t.start(); t.join()",
        [stream("in a thread\n")],
    ),
    "shell": ("!echo from the shell; echo and more", [stream("from the shell\r\nand more\r\n")]),
    "long": ("print('x' * 1_000_000)", [stream("x" * 1_000_000 + "\n")]),
    "many": ("for i in range(2000): print(i)", [stream("".join(f"{i}\n" for i in range(2000)))]),
    "nothing": ("", []),
    "spaces": ("  \n\t\n", []),
    "comment": ("# nothing\n# at all", []),
    "semicolon": ("6 * 7;", []),
}


@pytest.mark.parametrize("name", STREAMS)
def test_text_comes_as_it_was_printed(gateway: GatewayProcess, shared: str, name: str) -> None:
    code, expected = STREAMS[name]
    assert outputs(gateway, shared, code) == expected


def test_a_progress_bar_of_many_steps_is_its_last_state(gateway: GatewayProcess, shared: str) -> None:
    """Each step is a message of its own; the stream of events has them all."""
    code = "for i in range(301): print(f'\\r{i} of 300', end='', flush=True)"
    result = gateway.execute(shared, code)
    assert result["outputs"] == [stream("300 of 300")]
    assert result["stdout"] == result["text"] == "300 of 300"
    of_cell = [e for e in gateway.recorded(shared) if e["execution"] == result["execution"]]
    sent = "".join(event["text"] for event in of_cell if event["type"] == "stream")
    assert sent == "".join(f"\r{i} of 300" for i in range(301))


@pytest.mark.parametrize(
    ("code", "status"), [("print('a \\ud800 b')", "ok"), ("raise ValueError('a \\udfff b')", "error")]
)
def test_a_lone_surrogate_is_the_cells_own_affair(
    gateway: GatewayProcess, session: str, code: str, status: str
) -> None:
    """ipykernel can't send it and says so; the session goes on."""
    assert gateway.execute(session, code)["status"] == status
    assert gateway.execute(session, "6 * 7")["text"] == "42"


def test_what_a_child_process_prints_is_output_of_the_cell(gateway: GatewayProcess, shared: str) -> None:
    code = "import subprocess; subprocess.run(['sh', '-c', 'echo out; echo err >&2'], check=True); None"
    execution = gateway.execute(shared, code)["execution"]

    def printed() -> bool:
        result = gateway.result(shared, execution)
        return (result["stdout"], result["stderr"]) == ("out\n", "err\n")

    until(printed, "the output of the child is missing")


def test_what_a_thread_prints_after_the_end_belongs_to_its_cell(
    gateway: GatewayProcess, session: str
) -> None:
    code = (
        "import os, threading, time\n"
        "def wait():\n"
        "    while not os.path.exists('go'): time.sleep(0.005)\n"
        "    print('late')\n"
        "threading.Thread(target=wait).start(); print('in time')"
    )
    result = gateway.execute(session, code)
    assert result["stdout"] == "in time\n"
    (gateway.workspace(session) / "go").touch()
    until(
        lambda: gateway.result(session, result["execution"])["stdout"] == "in time\nlate\n",
        "what was printed late is lost",
    )
    gateway.execute(session, "print('next')")
    shown = [cell["outputs"] for cell in exported(gateway, session)["cells"]]
    assert shown == [[stream("in time\nlate\n")], [stream("next\n")]]


def test_what_a_fork_prints_is_in_the_answer_in_order_and_once(gateway: GatewayProcess, shared: str) -> None:
    """Beside a cell that lets nothing else in its process run, and with what it had not sent at the fork."""
    code = (
        "import os, sys\nprint('before'); print('error', file=sys.stderr)\nchild = os.fork()\n"
        "if not child:\n"
        "    sys.stdout.flush()\n"
        "    for number in range(500): print(number, 'é')\n"
        "    print('of the fork', file=sys.stderr)\n"
        "    os._exit(0)\n"
        "while not any(os.waitpid(child, os.WNOHANG)): pass"
    )
    result = gateway.execute(shared, code)
    assert result["stdout"] == "before\n" + "".join(f"{number} é\n" for number in range(500))
    assert result["stderr"] == "error\nof the fork\n"


def test_what_a_fork_prints_in_a_later_cell_belongs_to_its_own(gateway: GatewayProcess, session: str) -> None:
    code = (
        "import os, time\nchild = os.fork()\n"
        "if not child:\n"
        "    while not os.path.exists('go'): time.sleep(0.005)\n"
        "    print('late'); os._exit(0)"
    )
    result = gateway.execute(session, code)
    following = "print('next'); open('go', 'w').close(); _ = os.waitpid(child, 0)"
    assert gateway.execute(session, following)["stdout"] == "next\n"
    until(
        lambda: gateway.result(session, result["execution"])["stdout"] == "late\n",
        "what was printed late is lost",
    )


# ---- rich outputs

GIF = "R0lGODlhAQABAIAAAAAAAP///yH5BAEAAAAALAAAAAABAAEAAAIBRAA7"
RICH = {
    "result": (
        "6 * 7",
        [
            {
                "output_type": "execute_result",
                "data": {"text/plain": "42"},
                "metadata": {},
                "execution_count": 0,
            }
        ],
    ),
    "plain": ("display({'a': 1})", [display({"text/plain": "{'a': 1}"})]),
    "html": (
        "display(HTML('<b>bold</b> & <script>1</script>'))",
        [of_class("HTML", "text/html", "<b>bold</b> & <script>1</script>")],
    ),
    "markdown": ("display(Markdown('# *title*'))", [of_class("Markdown", "text/markdown", "# *title*")]),
    "latex": (r"display(Latex(r'$\frac{1}{2}$'))", [of_class("Latex", "text/latex", r"$\frac{1}{2}$")]),
    "math": (r"display(Math(r'x^2'))", [of_class("Math", "text/latex", r"$\displaystyle x^2$")]),
    "svg": ("display(SVG('<svg><g/></svg>'))", [of_class("SVG", "image/svg+xml", "<svg><g/></svg>")]),
    "javascript": (
        "display(Javascript('1 + 1'))",
        [of_class("Javascript", "application/javascript", "1 + 1")],
    ),
    "json": (
        "display(JSON({'a': [1, None, 2.5, 'ž'], 'b': {}}))",
        [
            of_class(
                "JSON",
                "application/json",
                {"a": [1, None, 2.5, "ž"], "b": {}},
                {"application/json": {"expanded": False, "root": "root"}},
            )
        ],
    ),
    "gif": (
        f"import base64; display(Image(base64.b64decode('{GIF}'), format='gif'))",
        [of_class("Image", "image/gif", GIF)],
    ),
    "own bundle": (
        """data = {'text/plain': 'p', 'application/vnd.own+json': {'x': [1]}, 'text/html': '<i>'}
display(data, metadata={'own': {'deep': True}}, raw=True)""",
        [
            display(
                {"text/plain": "p", "application/vnd.own+json": {"x": [1]}, "text/html": "<i>"},
                {"own": {"deep": True}},
            )
        ],
    ),
    "several": ("display(1, 2)", [display({"text/plain": "1"}), display({"text/plain": "2"})]),
    "between text": (
        "print('a'); display(1); print('b')",
        [stream("a\n"), display({"text/plain": "1"}), stream("b\n")],
    ),
}


def without_counts(shown: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """With 0 for the execution counts."""
    return [{**output, "execution_count": 0} if "execution_count" in output else output for output in shown]


@pytest.mark.parametrize("name", RICH)
def test_rich_output_keeps_all_its_forms(gateway: GatewayProcess, shared: str, name: str) -> None:
    code, expected = RICH[name]
    shown = without_counts(outputs(gateway, shared, code))
    for output in shown:
        if "image/gif" in output.get("data", {}):
            output["data"]["image/gif"] = output["data"]["image/gif"].strip()
    assert shown == expected


def test_a_table_is_text_and_html(gateway: GatewayProcess, shared: str) -> None:
    [shown] = outputs(gateway, shared, "import pandas; pandas.DataFrame({'a': [1, 2]})")
    assert shown["output_type"] == "execute_result"
    assert shown["data"]["text/plain"] == "   a\n0  1\n1  2"
    assert "<table" in shown["data"]["text/html"]


@pytest.mark.parametrize(("kind", "head"), [("png", b"\x89PNG\r\n\x1a\n"), ("jpeg", b"\xff\xd8\xff")])
def test_images_come_byte_by_byte(gateway: GatewayProcess, shared: str, kind: str, head: bytes) -> None:
    code = (
        "import io, hashlib, PIL.Image\n"
        f"buffer = io.BytesIO(); PIL.Image.new('RGB', (40, 30), 'red').save(buffer, '{kind}')\n"
        f"print(hashlib.sha256(buffer.getvalue()).hexdigest()); Image(buffer.getvalue(), format='{kind}')"
    )
    printed, shown = outputs(gateway, shared, code)
    data = base64.b64decode(shown["data"][f"image/{kind}"])
    assert data.startswith(head)
    assert printed["text"].strip() == sha256(data).hexdigest()


def test_an_image_of_five_megabytes_arrives_whole(gateway: GatewayProcess, session: str) -> None:
    code = (
        "import hashlib, io, numpy, PIL.Image; from IPython.display import Image\n"
        "noise = numpy.random.default_rng(1).integers(0, 256, (1300, 1400, 3), dtype='uint8')\n"
        "PIL.Image.fromarray(noise).save(buffer := io.BytesIO(), 'png')\n"
        "print(hashlib.sha256(buffer.getvalue()).hexdigest()); Image(buffer.getvalue())"
    )
    printed, shown = outputs(gateway, session, code)
    data = base64.b64decode(shown["data"]["image/png"])
    assert len(data) > 5_000_000
    assert struct.unpack(">II", data[16:24]) == (1400, 1300)
    assert printed["text"].strip() == sha256(data).hexdigest()
    [cell] = exported(gateway, session)["cells"]
    assert base64.b64decode(cell["outputs"][1]["data"]["image/png"]) == data


def test_matplotlib_shows_its_figures_in_place(gateway: GatewayProcess, shared: str) -> None:
    code = (
        "import matplotlib.pyplot as plt\n"
        "print('first'); plt.plot([1, 2]); plt.show(); print('second'); _ = plt.plot([2, 1])"
    )
    first, figure, second, last = outputs(gateway, shared, code)
    assert [first, second] == [stream("first\n"), stream("second\n")]
    for shown in (figure, last):
        assert shown["output_type"] == "display_data"
        assert min(png_size(shown["data"]["image/png"])) > 100
        assert shown["data"]["text/plain"].startswith("<Figure size")


# ---- outputs that change


def test_a_display_can_be_updated_within_its_cell(gateway: GatewayProcess, shared: str) -> None:
    code = (
        "h = display('one', display_id='within'); print('between')\n"
        "update_display('two', display_id='within'); h.update(HTML('<b>three</b>'))"
    )
    assert outputs(gateway, shared, code) == [
        of_class("HTML", "text/html", "<b>three</b>"),
        stream("between\n"),
    ]


def test_a_display_can_be_updated_by_a_later_cell(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(
        session, f"{IMPORTS}; _ = display('old', display_id='d')\n_ = display('old', display_id='d')"
    )
    other = gateway.execute(session, "_ = display('stays', display_id='other')")
    later = gateway.execute(session, "update_display('new', display_id='d')")
    unknown = gateway.execute(session, "update_display('nowhere', display_id='unknown')")
    assert (later["outputs"], unknown["outputs"]) == ([], [])
    assert other["outputs"] == [display({"text/plain": "'stays'"})]
    shown = [cell["outputs"] for cell in exported(gateway, session)["cells"]]
    assert shown == [[display({"text/plain": "'new'"})] * 2, [display({"text/plain": "'stays'"})], [], []]


CLEARED = {
    "at once": ("print('a'); clear_output(); print('b')", [stream("b\n")]),
    "at once, to nothing": ("display(1); clear_output()", []),
    "at the next output": ("print('a'); clear_output(wait=True); print('b')", [stream("b\n")]),
    "waits for ever": ("print('a'); clear_output(wait=True)", [stream("a\n")]),
    "again and again": (
        "for i in range(50): clear_output(wait=True); display(i)",
        [display({"text/plain": "49"})],
    ),
}


@pytest.mark.parametrize("name", CLEARED)
def test_outputs_can_be_cleared(gateway: GatewayProcess, shared: str, name: str) -> None:
    code, expected = CLEARED[name]
    assert outputs(gateway, shared, code) == expected


# ---- errors

ERRORS = {
    "ZeroDivisionError": ("1 / 0", "division by zero"),
    "SyntaxError": ("def f(:", "invalid syntax"),
    "IndentationError": ("if True:\nprint(1)", "expected an indented block"),
    "NameError": ("no_such_name", "name 'no_such_name' is not defined"),
    "Odd": ("class Odd(Exception): pass\nraise Odd('an', 'odd', 'one')", "('an', 'odd', 'one')"),
    "KeyboardInterrupt": ("raise KeyboardInterrupt", ""),
    "SystemExit": ("raise SystemExit(3)", "3"),
    "AssertionError": ("assert [1, 2] == [1, 3], 'not the same'", "not the same"),
    "StdinNotImplementedError": ("input('name?')", "this cell gets no input"),
}


@pytest.mark.parametrize("ename", ERRORS)
def test_an_error_has_its_name_its_text_and_its_traceback(
    gateway: GatewayProcess, shared: str, ename: str
) -> None:
    code, evalue = ERRORS[ename]
    result = gateway.execute(shared, f"print('before')\n{code}")
    error = result["error"]
    assert (result["status"], error["ename"]) == ("error", ename)
    assert evalue in error["evalue"]
    errors = [output for output in result["outputs"] if output["output_type"] == "error"]
    assert errors == [{"output_type": "error", **error}]
    assert any(ename in line for line in error["traceback"])
    assert ename in result["text"]
    assert "\x1b" not in result["text"]
    # What does not compile does not run.
    assert result["stdout"].startswith("before\n") is (ename not in {"SyntaxError", "IndentationError"})
    assert gateway.execute(shared, "'next'")["text"] == "'next'"


def test_an_exception_group_shows_all_its_exceptions(gateway: GatewayProcess, shared: str) -> None:
    """IPython prints its traceback to stderr, for every client; the error itself has none."""
    result = gateway.execute(shared, "raise ExceptionGroup('all', [ValueError(1), OSError('two')])")
    assert (result["status"], result["error"]["ename"]) == ("error", "ExceptionGroup")
    assert result["error"]["evalue"] == "all (2 sub-exceptions)"
    for line in ("ExceptionGroup: all (2 sub-exceptions)", "ValueError: 1", "OSError: two"):
        assert line in result["text"]


def test_a_cause_is_part_of_the_traceback(gateway: GatewayProcess, shared: str) -> None:
    code = "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise RuntimeError('outer') from error"
    text = gateway.execute(shared, code)["text"]
    assert "ZeroDivisionError: division by zero" in text
    assert "direct cause" in text
    assert "RuntimeError: outer" in text


def test_an_unknown_magic_is_an_error_with_its_text(gateway: GatewayProcess, shared: str) -> None:
    result = gateway.execute(shared, "%no_such_magic")
    assert (result["status"], result["error"]["ename"]) == ("error", "UsageError")
    assert "no_such_magic" in result["text"]


# ---- the notebook


def notebook(gateway: GatewayProcess, session: str, query: str = "", **headers: str) -> Response:
    return gateway.get(f"/v1/sessions/{session}/notebook{query}", headers=headers)


def exported(gateway: GatewayProcess, session: str, query: str = "") -> dict[str, Any]:
    """The exported notebook, valid, its texts joined."""
    answer = notebook(gateway, session, query)
    assert answer.status == 200, answer.body
    raw = answer.json()
    assert (raw["nbformat"], raw["nbformat_minor"]) == (4, 5)
    nbformat.validate(raw)
    read: dict[str, Any] = nbformat.reads(answer.body.decode(), as_version=4)  # type: ignore[no-untyped-call]
    return read


CELLS = (
    "x = 1",
    "x + 1",
    "print('one'); print('two')",
    "import sys; print('err', file=sys.stderr)",
    "print('a', flush=True); print('b', file=sys.stderr, flush=True); print('c', flush=True)",
    # No empty cells: nbclient does not run those.
    "# only a comment",
    "print('žluťoučký 你好 🎉 \\u2028 \\x85 \\x1c \\x0b')",
    "'text with \\x1b[1m codes'",
    "print('\\x1b[32mgreen\\x1b[0m')",
    "for i in range(101): print(f'\\r{i}%', end='', flush=True)",
    "print('loading\\rdone'); print('a\\rb\\rc\\n\\rd', end='\\r')",
    "print('a\\r\\nb')",
    "from IPython.display import *",
    "display(HTML('<b>x</b>')); display(Markdown('*m*')); display(Latex('$l$')); display(SVG('<svg/>'))",
    "display(JSON({'a': [1, None, 2.5]}), {'plain': True}, 'three')",
    "display({'text/plain': 'p', 'application/vnd.x+json': {'y': 1}}, metadata={'m': 1}, raw=True)",
    "h = display('first', display_id='one')",
    "h.update('second'); display('third', display_id='one'); print('between'); display(4, display_id='one')",
    "update_display(HTML('<i>last</i>'), display_id='one'); update_display('nobody', display_id='none')",
    "print('a'); clear_output(); print('b')",
    "print('a'); clear_output(wait=True); print('b', file=sys.stderr)",
    "print('a'); display(1); clear_output(wait=True)",
    "for i in range(5): clear_output(wait=True); display(i); print(i)",
    "1 / 0",
    "def f(:",
    "print('before'); raise ValueError('multi\\nline')",
    "class Odd(Exception):\n    def __str__(self): return 'žlutý'\nraise Odd",
    "raise ExceptionGroup('all', [ValueError(1), ExceptionGroup('inner', [OSError('two')])])",
    "try:\n    1 / 0\nexcept ZeroDivisionError as error:\n    raise RuntimeError from error",
    "def g(n): return g(n - 1) if n else no_such_name\ng(3)",
    "raise KeyboardInterrupt",
    "raise SystemExit('bye')",
    "%no_such_magic",
    "input('name?')",
    "%%time\nsum(range(1000))",
    "!echo hello; echo more",
    "%%capture captured\nprint('hidden'); display(1)",
    "captured.show()",
    "import pandas; pandas.DataFrame({'a': [1.5, 2], 'b': ['x', None]})",
    "import matplotlib.pyplot as plt; fig, ax = plt.subplots(); ax.plot([1, 3, 2])",
    "plt.plot([1, 2]); plt.show(); print('after'); plt.bar(['a', 'b'], [1, 2]);",
    "import threading; t = threading.Thread(target=print, args=('thread',)); t.start(); t.join()",
    "import warnings; warnings.warn('careful')",
    "object()",
    "print('x' * 500 + '\\r' + 'y' * 500)",
    "print('err', file=sys.stderr, flush=True); print('out', flush=True)",
    "class Silent(Exception):\n    def __str__(self): 1 / 0\nraise Silent",
    "_, _2, Out[2], In[1]",
    "import asyncio; await asyncio.sleep(0); 'awaited'",
    "None",
    "6 * 7;",
    "%precision 3",
    "3.14159265",
)

VARYING = (
    (re.compile(r"\b0x[0-9a-f]+\b"), "0x"),
    (re.compile(r"/tmp/ipykernel_\d+/"), "/tmp/ipykernel/"),
    (re.compile(r"(CPU times|Wall time): .*"), r"\1"),
)


def comparable(value: Any) -> Any:
    """Without what differs from run to run: addresses, process ids, times; images by their sizes."""
    if isinstance(value, str):
        for pattern, replacement in VARYING:
            value = pattern.sub(replacement, value)
        return value
    if isinstance(value, list):
        return [comparable(item) for item in value]
    if isinstance(value, dict):
        return {
            key: png_size(item) if key == "image/png" else comparable(item) for key, item in value.items()
        }
    return value


def in_nbclients_order(shown: Any) -> Any:
    """nbclient makes one output of all text of a stream, and puts stdout before a stderr it follows.

    Here, as in JupyterLab, text stays where it was printed.
    """
    if not isinstance(shown, list):
        return shown
    merged: list[dict[str, Any]] = []
    first: dict[str, dict[str, Any]] = {}
    for output in shown:
        if output["output_type"] == "stream" and output["name"] in first:
            first[output["name"]]["text"] += output["text"]
            continue
        merged.append(dict(output))
        if output["output_type"] == "stream":
            first[output["name"]] = merged[-1]
    for place, (former, latter) in enumerate(pairwise(merged)):
        if (former.get("name"), latter.get("name")) == ("stderr", "stdout"):
            merged[place : place + 2] = [latter, former]
    return merged


def test_the_notebook_equals_what_nbclient_makes_of_the_same_cells(
    gateway: GatewayProcess, session: str, tmp_path: Path
) -> None:
    """Outputs, counts and errors, cell by cell; nbclient runs the same interpreter without Cellgate."""
    for code in CELLS:
        gateway.execute(session, code)
    ours = exported(gateway, session)["cells"]
    # The tag stands for nbclient's allow_errors=True, cell by cell.
    tagged = {"tags": ["raises-exception"]}
    theirs = v4.new_notebook(cells=[v4.new_code_cell(code, metadata=tagged) for code in CELLS])
    asyncio.run(run_with_nbclient(theirs, tmp_path, {}))

    assert [cell["source"] for cell in ours] == list(CELLS)
    different = [
        f"{own['source']!r}: {what} {own[what]!r}, not {other[what]!r}"
        for own, other in zip(ours, json.loads(json.dumps(theirs.cells)), strict=True)
        for what in ("execution_count", "outputs")
        if comparable(in_nbclients_order(own[what])) != comparable(other[what])
    ]
    assert not different, "\n".join(different)
    kinds = {output["output_type"] for cell in ours for output in cell["outputs"]}
    assert kinds == {"stream", "display_data", "execute_result", "error"}


def test_the_notebook_says_in_which_kernel_it_ran(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "6 * 7")
    metadata = exported(gateway, session)["metadata"]
    assert metadata["kernelspec"]["name"] == "python3"
    assert metadata["kernelspec"]["language"] == metadata["language_info"]["name"] == "python"
    assert metadata["kernelspec"]["display_name"]
    assert metadata["cellgate"]["session"] == session


def test_the_notebook_is_a_download_with_the_records_state_as_its_etag(
    gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "print('kept')")
    first = notebook(gateway, session)
    assert first.headers["Content-Type"] == "application/x-ipynb+json"
    assert first.headers["Content-Disposition"] == f'attachment; filename="{session}.ipynb"'
    etag = first.headers["ETag"]
    assert etag == f'"{first.json()["metadata"]["cellgate"]["head"]}"'
    assert notebook(gateway, session).headers["ETag"] == etag

    for known in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        same = notebook(gateway, session, **{"If-None-Match": known})
        assert (same.status, same.body, same.headers["ETag"]) == (304, b"", etag)
    assert notebook(gateway, session, **{"If-None-Match": '"other"'}).status == 200

    gateway.execute(session, "print('more')")
    changed = notebook(gateway, session, **{"If-None-Match": etag})
    assert changed.status == 200
    assert changed.headers["ETag"] != etag
    assert len(changed.json()["cells"]) == 2


def test_the_notebook_without_outputs_is_the_code_alone(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "print('shown'); 6 * 7")
    gateway.execute(session, "1 / 0")
    bare = exported(gateway, session, "?outputs=false")
    assert [cell["source"] for cell in bare["cells"]] == ["print('shown'); 6 * 7", "1 / 0"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in bare["cells"]] == [([], None)] * 2
    assert "shown\\n" not in json.dumps(bare)
    etag = notebook(gateway, session, "?outputs=false").headers["ETag"]
    assert notebook(gateway, session, **{"If-None-Match": etag}).status == 200, "it has other bytes"
    assert notebook(gateway, session, "?outputs=false", **{"If-None-Match": etag}).status == 304
    assert notebook(gateway, session, "?outputs=maybe").reason == "bad_request"


def test_a_session_that_ran_nothing_is_an_empty_notebook(gateway: GatewayProcess, session: str) -> None:
    assert gateway.post("/v1/sessions", {"session": session}).status == 201
    assert exported(gateway, session)["cells"] == []


def test_a_cell_that_runs_is_in_the_notebook_with_its_output_so_far(
    gateway: GatewayProcess, session: str
) -> None:
    held = gateway.hold(session, "print('half'); input(); print('whole')")
    until(lambda: gateway.printed(session, "half\n"), "its output is not there")
    gateway.submit(session, "'waits'")
    running, waiting = exported(gateway, session)["cells"]
    assert (running["outputs"], running["execution_count"]) == ([stream("half\n")], 1)
    assert running["metadata"]["cellgate"]["status"] == "running"
    assert (waiting["source"], waiting["outputs"], waiting["execution_count"]) == ("'waits'", [], None)
    gateway.answer(session, held)
    gateway.ended(session, held)


def test_the_notebook_outlives_the_session(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "print('kept')")
    before = exported(gateway, session)["cells"]
    assert gateway.delete(f"/v1/sessions/{session}").status == 204
    assert exported(gateway, session)["cells"] == before
