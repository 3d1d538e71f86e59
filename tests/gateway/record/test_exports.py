"""A session as a page, as Markdown and as a script: complete, inert, made without blocking the gateway."""

from __future__ import annotations

import ast
import json
import re
import threading
import uuid
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import nbformat
import pytest

from cellgate import Gateway
from cellgate.jobs.convert import convert, extension_of
from tests.conftest import StartGateway
from tests.support.commands import cellgate
from tests.support.server import GatewayProcess, Response, until

HOSTILE = """
from IPython.display import HTML, Image, display
import base64
display(HTML("<b>bold</b><script>alert('from a cell')</script><img src='https://example.org/x.png'>"))
display(Image(base64.b64decode('iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==')))
"""


@pytest.fixture(scope="module")
def recorded(gateway: GatewayProcess) -> Iterator[str]:
    """A session with results, an error, a picture and a page's worth of mischief."""
    session = f"test-{uuid.uuid4().hex[:12]}"
    for code in ("total = 40 + 2\ntotal", "print('<i>text</i>')", "1 / 0", HOSTILE, "%timeit -n1 -r1 pass"):
        gateway.execute(session, code)
    yield session
    gateway.delete(f"/v1/sessions/{session}")


def exported(gateway: GatewayProcess, session: str, query: str) -> Response:
    answer = gateway.get(f"/v1/sessions/{session}/notebook?{query}", timeout=100)
    assert answer.status == 200, answer.body
    return answer


class Page(HTMLParser):
    """The policy that a page gives itself, and what its text is."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.policy = ""
        self.before_policy: list[str] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        if tag == "meta" and known.get("http-equiv") == "Content-Security-Policy":
            self.policy, self.before_policy = known.get("content") or "", self.tags.copy()
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_page_shows_all_and_runs_nothing(gateway: GatewayProcess, recorded: str) -> None:
    answer = exported(gateway, recorded, "format=html")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{recorded}.html"'
    assert answer.headers["Content-Security-Policy"].startswith("sandbox; default-src 'none';")
    page = Page(answer.body.decode())
    assert page.policy.startswith("default-src 'none';"), "a saved page is as inert as a served one"
    assert "script" not in page.policy
    assert not {"script", "link", "style", "body"} & set(page.before_policy)
    for words in ("40", "42", "<i>text</i>", "ZeroDivisionError", "bold"):
        assert words in page.text


def test_a_page_has_all_pictures_inside_and_says_what_it_can_t_show(
    gateway: GatewayProcess, session: str
) -> None:
    """A picture that moves, a drawing, a widget, a sound, and nothing at all."""
    gif = "R0lGODlhAQABAIAAAP8AAP///ywAAAAAAQABAAACAkQBADs="
    for code in (
        f"import base64; from IPython.display import *; Image(base64.b64decode('{gif}'), format='gif')",
        'SVG(\'<svg xmlns="http://www.w3.org/2000/svg"><script>1</script><circle r="4"/></svg>\')',
        "import ipywidgets; ipywidgets.IntSlider(value=3)",
        "Audio(b'RIFF', rate=1)",
        "class A:\n    def __repr__(self): return ''\nA()",
    ):
        assert gateway.execute(session, code)["status"] == "ok"
    page = exported(gateway, session, "format=html").body.decode()
    assert f"data:image/gif;base64,{gif}" in page
    assert "data:image/svg+xml;base64," in page
    assert "<circle" not in page
    assert "IntSlider(value=3" in page
    assert "can only be shown by a program for notebooks, such as JupyterLab: MIME type text/html]" in page
    assert "does not support" not in page
    prompts = re.findall(r"Out\[(\d+)\]:", page)
    assert prompts == ["1", "2", "3", "4"]


def test_markdown_is_one_file_with_its_pictures(gateway: GatewayProcess, recorded: str) -> None:
    answer = exported(gateway, recorded, "format=markdown")
    assert answer.headers["Content-Type"] == "text/markdown; charset=utf-8"
    assert answer.headers["Content-Disposition"].endswith('.md"')
    text = answer.body.decode()
    assert "total = 40 + 2" in text
    assert "(data:image/png;base64," in text


def test_a_script_is_python_that_compiles(gateway: GatewayProcess, recorded: str) -> None:
    answer = exported(gateway, recorded, "format=script")
    assert answer.headers["Content-Disposition"] == f'attachment; filename="{recorded}.py"'
    tree = ast.parse(answer.body)
    assert "total" in {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def test_outputs_can_be_left_out_and_an_unchanged_export_is_not_made_again(
    gateway: GatewayProcess, recorded: str
) -> None:
    page = exported(gateway, recorded, "format=html&outputs=false")
    assert "ZeroDivisionError" not in page.body.decode()
    path = f"/v1/sessions/{recorded}/notebook?format=html&outputs=false"
    again = gateway.get(path, headers={"If-None-Match": page.headers["ETag"]})
    assert (again.status, again.body) == (304, b"")


@pytest.mark.nightly
def test_the_gateway_serves_while_it_converts(gateway: GatewayProcess, recorded: str) -> None:
    """Cells run to their end while exports are made: they would wait for a loop that is blocked."""
    answers: list[Response] = []
    threads = [
        threading.Thread(target=lambda: answers.append(exported(gateway, recorded, "format=html")))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    served = 0
    while any(thread.is_alive() for thread in threads):
        assert gateway.get("/healthz").status == 200
        served += not answers
        threads[0].join(0.05)
    for thread in threads:
        thread.join()
    assert len(answers) == 2
    assert served > 3


def test_what_is_no_format_is_refused(gateway: GatewayProcess, recorded: str) -> None:
    answer = gateway.get(f"/v1/sessions/{recorded}/notebook?format=pdf")
    assert (answer.status, answer.reason) == (406, "not_acceptable")


PAGE = {
    "nbformat": 4,
    "nbformat_minor": 5,
    "metadata": {},
    "cells": [
        {
            "cell_type": "markdown",
            "id": "head",
            "metadata": {},
            "source": "# <b>Rivers</b> <script>1</script>",
        },
        {"cell_type": "code", "id": "two", "metadata": {}, "source": "print(x)", "outputs": []},
        {"cell_type": "code", "id": "one", "metadata": {}, "source": "x = 20 + 1", "outputs": []},
        {"cell_type": "code", "id": "new", "metadata": {}, "source": "never()", "outputs": []},
    ],
}


@pytest.fixture(scope="module")
def arranged(gateway: GatewayProcess) -> Iterator[str]:
    """A session with a notebook whose cells ran in another order than it has them, one of them twice."""
    session = f"test-{uuid.uuid4().hex[:12]}"
    page = json.loads(json.dumps(PAGE))
    cells = {cell["id"]: cell for cell in page["cells"]}
    for name in ("one", "two", "two"):
        body = {"code": cells[name]["source"], "cell_id": name}
        ran = gateway.post(f"/v1/sessions/{session}/execute", body).json()
        cells[name]["metadata"] = {"cellgate": {"execution": ran["execution"]}}
        cells[name]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "a lie"}]
    for path, content in (("notes/page one.ipynb", json.dumps(page)), ("not.ipynb", "import math")):
        put = gateway.request(
            "PUT", f"/v1/sessions/{session}/files/{path.replace(' ', '%20')}", content.encode()
        )
        assert put.status == 201
    yield session
    gateway.delete(f"/v1/sessions/{session}")


ARRANGED = "order=page&file=notes/page%20one.ipynb"


def test_an_export_has_the_order_of_a_notebook_in_the_workspace(
    gateway: GatewayProcess, arranged: str, tmp_path: Path
) -> None:
    answer = exported(gateway, arranged, ARRANGED)
    made = answer.json()
    nbformat.validate(made)
    assert [each["id"] for each in made["cells"]] == ["head", "two", "one", "new"]
    assert [each.get("outputs") for each in made["cells"]] == [
        None,
        [{"output_type": "stream", "name": "stdout", "text": ["21\n"]}],
        [],
        [],
    ]
    recorded = exported(gateway, arranged, "").json()["cells"]
    assert [each["metadata"]["cellgate"].get("repeats") for each in recorded] == [None, None, "two"]
    assert made["metadata"]["cellgate"]["order"]["cells_left_out"] == 1
    path = f"/v1/sessions/{arranged}/notebook"
    assert gateway.get(f"{path}?{ARRANGED}", headers={"If-None-Match": answer.headers["ETag"]}).status == 304
    assert gateway.get(path, headers={"If-None-Match": answer.headers["ETag"]}).status == 200
    words = ("--order", "page", "--file", "notes/page one.ipynb", f"--data-dir={gateway.data_dir}")
    done = cellgate("export", arranged, *words, "-o", "page.ipynb", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    checked = cellgate("verify", "page.ipynb", cwd=tmp_path)
    assert checked.returncode == 0
    assert "4 cells as its author arranged them, of which 2 ran" in checked.stdout
    file = tmp_path / "page.ipynb"
    file.write_bytes(file.read_bytes().replace(b'"21\\n"', b'"22\\n"'))
    assert cellgate("verify", "page.ipynb", cwd=tmp_path).returncode == 1


def test_a_page_of_a_notebook_runs_nothing_either(gateway: GatewayProcess, arranged: str) -> None:
    text = exported(gateway, arranged, f"{ARRANGED}&format=html").body.decode()
    page = Page(text)
    assert "script" not in page.tags
    places = [page.text.index(words) for words in ("Rivers", "print(x)", "x = 20 + 1", "never()")]
    assert places == sorted(places)
    assert "a lie" not in text


def test_a_page_is_shown_by_a_browser_under_the_same_policy(gateway: GatewayProcess, recorded: str) -> None:
    saved = exported(gateway, recorded, "format=html")
    shown = exported(gateway, recorded, "format=html&inline=true")
    assert shown.headers["Content-Disposition"] == f'inline; filename="{recorded}.html"'
    assert shown.headers["Content-Security-Policy"] == saved.headers["Content-Security-Policy"]
    assert shown.body == saved.body
    refused = gateway.get(f"/v1/sessions/{recorded}/notebook?format=markdown&inline=true")
    assert (refused.status, refused.reason) == (400, "bad_request")


def test_a_page_has_the_sessions_title() -> None:
    notebook = {"nbformat": 4, "nbformat_minor": 5, "cells": []}
    for known, title in (
        ({"session": "s", "metadata": {"title": "Flüsse <2026>"}}, "Flüsse &lt;2026&gt;"),
        ({"session": "s", "metadata": {"title": 7}}, "s"),
        ({"session": "s", "metadata": None}, "s"),
        ({}, "Notebook"),
    ):
        page = convert(json.dumps({**notebook, "metadata": {"cellgate": known}}), "html")
        assert f"<title>{title}</title>" in page


def test_a_client_gets_the_order_too(gateway: GatewayProcess, arranged: str) -> None:
    with Gateway.sync(gateway.url, gateway.token) as client, client.session(arranged) as session:
        made = session.notebook(order="page", file="notes/page one.ipynb")
        assert [each["id"] for each in made["cells"]] == ["head", "two", "one", "new"]


@pytest.mark.parametrize(
    ("query", "status", "detail"),
    [
        ("order=page", 400, "name it by file=PATH"),
        ("file=not.ipynb", 400, "add order=page"),
        ("order=other", 400, "order"),
        ("order=page&file=not.ipynb", 400, "'not.ipynb' is no notebook"),
        ("order=page&file=../x", 400, "path"),
        ("order=page&file=notes", 400, "is a folder"),
        ("order=page&file=none.ipynb", 404, "no file 'none.ipynb'"),
        ("order=page&file=large.ipynb", 413, "'large.ipynb' has more than"),
        ("order=page&file=not.ipynb&format=html", 400, "'not.ipynb' is no notebook"),
    ],
)
def test_what_is_no_notebook_to_be_arranged_by_is_refused(
    gateway: GatewayProcess, arranged: str, query: str, status: int, detail: str
) -> None:
    with (gateway.workspace(arranged) / "large.ipynb").open("wb") as file:
        file.truncate(33 << 20)
    answer = gateway.get(f"/v1/sessions/{arranged}/notebook?{query}")
    assert answer.status == status
    assert detail in answer.json()["detail"]


def test_a_cell_has_an_id_that_notebooks_may_have(gateway: GatewayProcess, arranged: str) -> None:
    path = f"/v1/sessions/{arranged}/execute"
    for name in ("", "a b", "x" * 65, "ü"):
        answer = gateway.post(path, {"code": "1", "cell_id": name})
        assert (answer.status, answer.reason) == (400, "bad_request")


def test_the_command_names_the_file_after_its_format(
    gateway: GatewayProcess, recorded: str, tmp_path: Path
) -> None:
    for form, ending in (("script", "py"), ("ipynb", "ipynb")):
        done = cellgate("export", recorded, "--to", form, f"--data-dir={gateway.data_dir}", cwd=tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        assert (tmp_path / f"{recorded}.{ending}").stat().st_size > 0


def test_a_kernel_can_t_choose_what_is_imported_or_how_a_file_ends() -> None:
    """`nbconvert_exporter` may name any class; `file_extension` goes into a header."""
    notebook = (
        '{"nbformat":4,"nbformat_minor":5,"cells":[],"metadata":{"language_info":'
        '{"name":"evil","nbconvert_exporter":"cellgate.replay.report.Comparison","file_extension":"x"}}}'
    )
    assert convert(notebook, "script").strip() == ""
    for told in ('.py"; x="', "py", "", None, ".averylongextension", ".\n"):
        assert extension_of("script", {"file_extension": told}) == ".txt"
    assert extension_of("script", {"file_extension": ".sh"}) == ".sh"


def test_a_bundle_of_a_session_that_ended_idle_and_left_no_file(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=0, idle_timeout=0.2, cull_interval=0.05)
    gateway.execute("a", "1")
    until(lambda: gateway.model("a")["state"] == "ended", "it does not end")
    assert gateway.get("/v1/sessions/a/bundle").status == 200
