"""The rows of tables, as they are in a kernel's memory: by pages, sorted, filtered, and without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from cellgate.client import Conflict, CutText, Gateway, GatewayError, NotFound
from tests.conftest import StartGateway
from tests.support.commands import cellgate
from tests.support.server import TOKEN, GatewayProcess, Response

TABLES = """
import datetime, decimal, numpy as np, pandas as pd, polars as pl, pyarrow as pa
nan, nothing = float("nan"), None
frame = pd.DataFrame({
    "city": ["Oslo", "nan", None, "Bergen"],
    "height": [23.0, nan, 7.5, float("inf")],
    "day": pd.to_datetime(["2026-03-01", None, "2026-03-02", "2026-04-01"]),
    "full": [True, False, True, True],
}, index=["a", "b", "c", "d"])
series = frame["height"]
fast = pl.DataFrame({"city": ["Oslo", "nan", None], "height": [23.0, nan, 7.5]})
arrow = pa.table({"city": ["Oslo", "nan", None], "height": [23.0, nan, 7.5]})
column = pa.array([1, None, 3])
array = np.arange(6, dtype="int16").reshape(3, 2)
cube = np.zeros((2, 2, 2))
structured = np.array([(1, "x")], dtype=[("number", "i4"), ("text", "U5")])
large = pd.DataFrame({"number": range(1_000_000)})
wide = pd.DataFrame(np.zeros((3, 250)))
double = pd.DataFrame([[1, 2]], columns=["a", "a"])
plain = {"a": 1}
"""
HOSTILE = """
import pandas as pd
def called(*_): open("called", "w").close()
class Item:
    __repr__ = __str__ = __eq__ = __hash__ = __lt__ = __bool__ = __float__ = called
class Frame(pd.DataFrame):
    @property
    def iloc(self): called()
    __len__ = called
items = pd.DataFrame({"item": [Item(), 1, [Item()]]}, dtype=object)
own = Frame({"a": [1]})
"""


def rows(gateway: GatewayProcess, session: str, name: str, **query: Any) -> Response:
    words = urlencode(
        {key: str(value).lower() if isinstance(value, bool) else value for key, value in query.items()}
    )
    return gateway.get(f"/v1/sessions/{session}/variables/{name}?{words}")


def read(gateway: GatewayProcess, session: str, name: str, **query: Any) -> dict[str, Any]:
    answer = rows(gateway, session, name, **query)
    assert answer.status == 200, answer.body
    found = answer.json()
    assert isinstance(found, dict)
    return found


def refused(answer: Response) -> tuple[int, str]:
    return answer.status, str(answer.reason)


def test_a_frame_of_pandas_opens_as_rows(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, TABLES)
    found = read(gateway, session, "frame")
    assert (found["name"], found["type"], found["offset"]) == ("frame", "DataFrame", 0)
    assert (found["total"], found["all_rows"], found["all_columns"]) == (4, 4, 4)
    assert [(each["name"], each["kind"], each["index"]) for each in found["columns"]] == [
        ("index", "text", True),
        ("city", "text", False),
        ("height", "number", False),
        ("day", "time", False),
        ("full", "boolean", False),
    ]
    assert [each["type"] for each in found["columns"]][2:] == ["float64", "datetime64[us]", "bool"]
    assert found["rows"] == [
        ["a", "Oslo", 23.0, "2026-03-01 00:00:00", True],
        ["b", "nan", None, None, False],
        ["c", None, 7.5, "2026-03-02 00:00:00", True],
        ["d", "Bergen", "inf", "2026-04-01 00:00:00", True],
    ]


@pytest.mark.parametrize(
    ("name", "columns", "first"),
    [
        ("series", ["index", "height"], ["a", 23.0]),
        ("fast", ["city", "height"], ["Oslo", 23.0]),
        ("arrow", ["city", "height"], ["Oslo", 23.0]),
        ("column", ["value"], [1]),
        ("array", ["0", "1"], [0, 1]),
        ("cube", ["0, 0", "0, 1", "1, 0", "1, 1"], [0.0] * 4),
        ("structured", ["number", "text"], [1, "x"]),
        ("double", ["index", "a", "a (2)"], [0, 1, 2]),
    ],
)
def test_every_sort_of_table_opens(
    gateway: GatewayProcess, session: str, name: str, columns: list[str], first: list[Any]
) -> None:
    gateway.execute(session, TABLES)
    found = read(gateway, session, name)
    assert [each["name"] for each in found["columns"]] == columns
    assert found["rows"][0] == first


@pytest.mark.parametrize("name", ["frame", "fast", "arrow"])
def test_what_is_missing_is_told_from_text(gateway: GatewayProcess, session: str, name: str) -> None:
    gateway.execute(session, TABLES)
    found = read(gateway, session, name)
    city = [each["name"] for each in found["columns"]].index("city")
    assert [row[city] for row in found["rows"]][:3] == ["Oslo", "nan", None]
    assert [row[city + 1] for row in found["rows"]][:3] == [23.0, None, 7.5]
    assert read(gateway, session, name, column="city", filter="=")["total"] == 1
    assert read(gateway, session, name, column="city", filter="= nan")["total"] == 1


@pytest.mark.parametrize("name", ["frame", "fast", "arrow"])
def test_rows_are_sorted_and_what_is_missing_is_last(
    gateway: GatewayProcess, session: str, name: str
) -> None:
    gateway.execute(session, TABLES)

    def cities(**query: Any) -> list[Any]:
        found = read(gateway, session, name, **query)
        place = [each["name"] for each in found["columns"]].index("city")
        return [row[place] for row in found["rows"] if row[place] != "Bergen"]

    assert cities(sort="height") == [None, "Oslo", "nan"]
    assert cities(sort="height", descending=True) == ["Oslo", None, "nan"]
    assert cities(sort="city") == ["Oslo", "nan", None]
    assert cities(sort="city", descending=True) == ["nan", "Oslo", None]
    assert cities(sort="city", filter="> 5", column="height") == ["Oslo", None]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"filter": "BERG"}, "d"),
        ({"filter": "7.5"}, "c"),
        ({"filter": "23", "column": "city"}, ""),
        ({"filter": ">= 7.5", "column": "height"}, "acd"),
        ({"filter": "!=23", "column": "height"}, "cd"),
        ({"filter": "!=", "column": "height"}, "acd"),
        ({"filter": "= true", "column": "full"}, "acd"),
        ({"filter": "= 2026-03", "column": "day"}, "ac"),
        ({"filter": "> 2026-03-01", "column": "day"}, "cd"),
        ({"filter": "< C", "column": "city"}, "d"),
        ({"filter": "= b", "column": "index"}, "b"),
        ({"filter": ">= 7.5"}, ""),
    ],
)
def test_rows_are_filtered(gateway: GatewayProcess, session: str, query: dict[str, Any], found: str) -> None:
    gateway.execute(session, TABLES)
    told = read(gateway, session, "frame", **query)
    assert "".join(row[0] for row in told["rows"]) == found
    assert (told["total"], told["all_rows"]) == (len(found), 4)


def test_a_page_begins_anywhere(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, TABLES)
    found = read(gateway, session, "large", offset=999_990, limit=1000)
    assert [row[1] for row in found["rows"]] == list(range(999_990, 1_000_000))
    found = read(gateway, session, "large", offset=500, limit=2, sort="number", descending=True)
    assert [row[1] for row in found["rows"]] == [999_499, 999_498]
    found = read(gateway, session, "large", offset=5_000_000)
    assert (found["rows"], found["offset"], found["total"]) == ([], 1_000_000, 1_000_000)


def test_a_cell_changes_what_was_sorted(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, TABLES)
    assert read(gateway, session, "frame", sort="height", limit=1)["rows"][0][2] == 7.5
    gateway.execute(session, "frame.loc['a', 'height'] = 1.0")
    assert read(gateway, session, "frame", sort="height", limit=1)["rows"][0][2] == 1.0


def test_of_many_columns_a_page_has_some(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, TABLES)
    found = read(gateway, session, "wide")
    assert (found["first_column"], len(found["columns"]), found["all_columns"]) == (0, 101, 250)
    found = read(gateway, session, "wide", first_column=200)
    assert [each["name"] for each in found["columns"]][:2] == ["index", "200"]
    assert (found["first_column"], len(found["columns"])) == (200, 51)


def test_a_page_is_never_large(gateway: GatewayProcess, session: str) -> None:
    """Wide cells are cut, of which the answer tells, and of very many a page has fewer rows."""
    gateway.execute(
        session,
        "import pandas as pd, numpy as np\n"
        "texts = pd.DataFrame({n: ['\\x01\\u20ac' * 50_000] * 1000 for n in range(100)}, dtype=object)\n"
        "numbers = pd.DataFrame(np.random.default_rng(1).normal(size=(1000, 100)))",
    )
    answer = rows(gateway, session, "texts", limit=1000)
    assert answer.status == 200
    assert len(answer.body) < 1_000_000
    found = answer.json()
    assert 0 < len(found["rows"]) < 1000
    assert found["rows"][0][1]["length"] == 100_000
    assert len(found["rows"][0][1]["text"]) == 200
    assert found["rows"][0][1]["text"].endswith("…")
    found = read(gateway, session, "numbers", limit=1000)
    assert len(found["rows"]) == 198
    assert read(gateway, session, "numbers", offset=198, limit=1)["rows"][0][0] == 198


def test_values_without_a_form_in_json_are_text(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(
        session,
        "import decimal, datetime, pandas as pd, numpy as np\n"
        "values = [2**70, 1 << 5000, decimal.Decimal('1.50'), b'ab', datetime.date(2026, 1, 2), [1, 'a'],"
        " {'k': (None,)}, 1j, np.float32(2.5), pd.NaT, pd.NA, '\\ud800', list(range(99))]\n"
        "odd = pd.Series(values, dtype=object)",
    )
    assert [row[1] for row in read(gateway, session, "odd")["rows"]] == [
        str(2**70),
        "5001 bits",
        "1.50",
        "b'ab'",
        "2026-01-02",
        "[1, 'a']",
        "{'k': (None)}",
        "1j",
        2.5,
        None,
        None,
        "?",
        "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …]",
    ]


def test_methods_of_classes_in_a_table_are_not_called(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, HOSTILE)
    assert [row[1] for row in read(gateway, session, "items")["rows"]] == ["<Item>", 1, "[<Item>]"]
    for query in ({"sort": "item"}, {"filter": "item"}, {"filter": "> 5", "column": "item"}):
        assert rows(gateway, session, "items", **query).status == 200
    assert refused(rows(gateway, session, "own")) == (409, "conflict")
    assert gateway.execute(session, "import os; os.path.exists('called')")["text"] == "False"


@pytest.mark.parametrize(
    ("name", "query", "answer"),
    [
        ("nowhere", {}, (404, "not_found")),
        ("plain", {}, (409, "conflict")),
        ("not%20a%20name", {}, (400, "bad_request")),
        ("a" * 201, {}, (400, "bad_request")),
        ("frame", {"sort": "nowhere"}, (400, "bad_request")),
        ("frame", {"filter": "a", "column": "nowhere"}, (400, "bad_request")),
        ("frame", {"filter": "> high", "column": "height"}, (400, "bad_request")),
        ("frame", {"filter": ">", "column": "height"}, (400, "bad_request")),
        ("frame", {"limit": 1001}, (400, "bad_request")),
        ("frame", {"offset": -1}, (400, "bad_request")),
        ("frame", {"filter": "a" * 1001}, (400, "bad_request")),
        ("frame", {"page": 1}, (400, "bad_request")),
    ],
)
def test_what_can_t_be_read_is_refused(
    gateway: GatewayProcess, session: str, name: str, query: dict[str, Any], answer: tuple[int, str]
) -> None:
    gateway.execute(session, TABLES)
    assert refused(rows(gateway, session, name, **query)) == answer


def test_reading_leaves_no_trace(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, TABLES + "\n41 + 1")
    names = gateway.execute(session, "before = set(dir()); len(before)")["text"]
    assert names.isdecimal()
    before = gateway.model(session)
    read(gateway, session, "frame", sort="city", filter="o")
    read(gateway, session, "fast", sort="height")
    after = gateway.model(session)
    use = {"last_activity": "", "ends": None}
    assert after | use == before | use
    shown = gateway.execute(
        session, "sorted(set(dir()) - before - {'before', '_2', '_i3', '__'}), len(In), sorted(Out)"
    )
    assert shown["text"] == "([], 4, [1, 2])"
    assert gateway.execute(session, "frame.city.tolist()")["text"].startswith("['Oslo', 'nan', ")


def test_while_a_cell_runs_the_kernel_is_busy(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, TABLES)
    execution = gateway.hold(session)
    assert refused(rows(gateway, session, "frame")) == (409, "busy")
    gateway.answer(session, execution)
    gateway.ended(session, execution)
    assert rows(gateway, session, "frame").status == 200


@pytest.mark.parametrize(
    "lie",
    [
        "{'rows': 5}",
        "{'refused': 'x' * 1000}",
        "{**true, 'rows': [[1, 2, 3]]}",
        "{**true, 'rows': [['x' * 201, 1]]}",
        "{**true, 'rows': [[{'text': 'a', 'length': -1}, 1]]}",
        "{**true, 'rows': [[1, 2]] * 101, 'total': 500, 'all_rows': 500}",
        "{**true, 'total': 0}",
        "{**true, 'rows': [['y' * 100] * 2] * 100 + [['z' * 2_000_000] * 2]}",
        "{**true, 'columns': true['columns'] * 200}",
    ],
)
def test_a_false_answer_is_refused(gateway: GatewayProcess, session: str, lie: str) -> None:
    """Cells can replace what answers."""
    gateway.execute(
        session,
        f"{TABLES}\n"
        "handler = get_ipython().kernel.shell_handlers['cellgate_rows_request'].__self__\n"
        "asked = dict(name='series', offset=0, limit=5, first_column=0)\n"
        "true = handler.page(asked)\n"
        f"handler.page = lambda _: {lie}",
    )
    assert refused(rows(gateway, session, "series")) == (409, "conflict")
    assert gateway.execute(session, "1 + 1")["text"] == "2"


def test_a_kernel_of_another_language_has_no_rows(gateway: GatewayProcess, session: str) -> None:
    assert gateway.post("/v1/sessions", {"session": session, "language": "bash"}).status == 201
    assert refused(rows(gateway, session, "PATH")) == (409, "conflict")


def test_the_client_reads_rows(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, TABLES + "\nlong = pd.Series(['x' * 500])")
    with Gateway.sync(gateway.url, TOKEN) as client:
        found = client.rows(
            session, "frame", sort="height", descending=True, limit=2, matching="!=", column="city"
        )
        assert [row[0] for row in found.rows] == ["d", "a"]
        assert found.total == 3
        (row,) = client.rows(session, "long").rows
        assert isinstance(row[1], CutText)
        assert row[1].length == 500
        with pytest.raises(NotFound):
            client.rows(session, "nowhere")
        with pytest.raises(Conflict):
            client.rows(session, "plain")
        with pytest.raises(GatewayError):
            client.rows(session, "frame", sort="nowhere")


def test_no_part_of_a_secret_is_shown(start_gateway: StartGateway, tmp_path: Path) -> None:
    """A secret that the kernel has cut could not be found."""
    data = tmp_path / "data"
    value = "0123456789" * 20
    made = cellgate("secret", "set", "KEY", "--user", "default", f"--data-dir={data}", stdin=f"{value}\n")
    assert made.returncode == 0, made.stderr
    gateway = start_gateway(data)
    assert gateway.post("/v1/sessions", {"session": "s", "secrets": ["KEY"]}).status == 201
    gateway.execute(
        "s",
        "import os, pandas as pd; key = os.environ['KEY']\n"
        "table = pd.DataFrame({'short': [key], 'long': ['x' * 150 + key], key + key: [1]})",
    )
    answer = rows(gateway, "s", "table")
    assert answer.status == 200
    assert b"0123456789" not in answer.body
    found = answer.json()
    assert found["rows"][0][1] == "[secret KEY]"
    assert found["rows"][0][2] == {"text": "", "length": 350}
