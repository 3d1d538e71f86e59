"""DataFrames as data: for the cells that ask for it, bounded, recorded, and for nobody else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import nbformat
import pytest

from cellgate.client import Gateway
from tests.gateway.cli.test_mcp import serving
from tests.support.server import TOKEN, GatewayProcess

TABLE = "application/vnd.dataresource+json"
FRAME = "import pandas; frame = pandas.DataFrame({'n': range(50), 'word': ['x'] * 50}); frame"


def data(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [output["data"] for output in result["outputs"]]


def test_a_table_comes_as_data_when_it_is_asked_for(gateway: GatewayProcess, session: str) -> None:
    (without,) = data(gateway.execute(session, FRAME))
    assert set(without) == {"text/plain", "text/html"}
    (given,) = data(gateway.execute(session, "frame", tables=3))
    table = given.pop(TABLE)
    assert given == without
    fields = [(field["name"], field["type"]) for field in table["schema"]["fields"]]
    assert fields in ([("index", "integer"), ("n", "integer"), ("word", kind)] for kind in ("string", "any"))
    assert table["data"] == [{"index": n, "n": n, "word": "x"} for n in range(3)]
    assert table["total_rows"] == 50
    # Only that cell, and all that it shows.
    assert set(*data(gateway.execute(session, "frame"))) == {"text/plain", "text/html"}
    shown = data(gateway.execute(session, "display(frame.head(1)); frame.n", tables=100))
    assert [each[TABLE]["total_rows"] for each in shown] == [1, 50]
    assert len(shown[1][TABLE]["data"]) == 50


def test_each_column_and_number_arrives(gateway: GatewayProcess, session: str) -> None:
    columns = "pandas.MultiIndex.from_tuples([('a', 1), ('a', 1)])"
    code = f"import pandas; pandas.DataFrame([[2.5e-11, 2**53 + 1]], columns={columns})"
    answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": code, "tables": 5})
    assert b"2.5e-11" in answer.body
    (shown,) = data(answer.json())
    assert list(shown[TABLE]["data"][0].values()) == [0, 2.5e-11, 2**53 + 1]
    assert [field.get("label") for field in shown[TABLE]["schema"]["fields"]] == [None, ["a", 1], ["a", 1]]
    assert set(*data(gateway.execute(session, "'no table'", tables=5))) == {"text/plain"}


async def test_what_is_no_data_is_shown_as_ever_and_says_why(gateway: GatewayProcess, session: str) -> None:
    code = "import pandas; deep = []; deep.append(deep); pandas.DataFrame({'x': [deep]})"
    result = gateway.execute(session, code, tables=5)
    (shown,) = data(result)
    assert set(shown) == {"text/plain", "text/html"}
    assert (result["status"], result["stderr"]) == ("ok", "")
    why = "it has values that are nested too deep"
    assert result["outputs"][0]["metadata"] == {TABLE: {"problem": why}}
    client = Gateway(gateway.url, TOKEN).session(session)
    assert (await client.run(code, tables=5)).table_problems == [why]


@pytest.mark.parametrize("rows", [0, -1, 10_001, 1.5, "3", True])
def test_a_wrong_number_of_rows_is_refused(gateway: GatewayProcess, session: str, rows: object) -> None:
    answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": "1", "tables": rows})
    assert (answer.status, answer.reason) == (400, "bad_request")


def test_it_is_recorded_and_a_replay_is_the_same(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, FRAME, tables=2)
    notebook = nbformat.reads(gateway.get(f"/v1/sessions/{session}/notebook").body, as_version=4)
    nbformat.validate(notebook)
    assert notebook.cells[0].outputs[0].data[TABLE]["data"][1] == {"index": 1, "n": 1, "word": "x"}
    report = gateway.post(f"/v1/sessions/{session}/replay", {}, timeout=100).json()
    assert [cell["same"] for cell in report["cells"]] == [True], report


async def test_the_client_and_a_model_get_it(gateway: GatewayProcess, session: str, tmp_path: Path) -> None:
    client = Gateway(gateway.url, TOKEN).session(session)
    assert (await client.run(FRAME)).tables == []
    (table,) = (await client.run("frame", tables=1)).tables
    assert (table["data"], table["total_rows"]) == ([{"index": 0, "n": 0, "word": "x"}], 50)
    async with serving(gateway, tmp_path, "--session", session, "--max-text", "1000") as model:
        (part,) = (await model.call_tool("run_code", {"code": "frame.head(2)", "tables": 5})).content
        assert '"total_rows":2' in part.text
        (part,) = (await model.call_tool("run_code", {"code": "frame[['n']]", "tables": 50})).content
        # Cut by rows: it is still JSON.
        assert '"data":[{"index":0,"n":0},' in part.text
        assert part.text.endswith('"total_rows":50}')
