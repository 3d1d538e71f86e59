"""The first rows of CSV and Parquet files, which the page itself reads."""

from __future__ import annotations

from typing import Any

import pytest

from tests.clients.console.test_rows import texts
from tests.clients.console.using import expect, show, tab
from tests.support.server import GatewayProcess

pytestmark = pytest.mark.usefixtures("quiet")

WRITE = """
import pandas as pd
table = pd.DataFrame({
    "city": ["Oslo", "Łódź", None], "height": [23.0, None, 7.5], "count": [1, 2**40, -3],
    "day": pd.to_datetime(["2026-01-02", None, "2026-01-04 05:06:07"], format="ISO8601"),
    "wet": [True, False, None], "tags": [["a", "b"], [], None], "long": ["x" * 500, "", "y"]})
for codec in ("snappy", "gzip", "zstd", "lz4", None):
    table.to_parquet(f"{codec}.parquet", compression=codec)
pd.DataFrame({f"c{i}": range(100_000) for i in range(120)}).to_parquet("large.parquet")
table.iloc[:0].to_parquet("empty.parquet")
"""


def put(console: GatewayProcess, session: str, path: str, body: bytes) -> None:
    assert console.request("PUT", f"/v1/sessions/{session}/files/{path}", body).status in {200, 201}


def opened(page: Any, name: str) -> Any:
    tab(page, "Files").get_by_role("button", name=name, exact=True).click()
    return page.get_by_role("dialog", name=f"Rows of {name}")


@pytest.fixture(scope="module")
def parquet(console: GatewayProcess) -> str:
    """The key of a session with Parquet files."""
    assert console.execute("parquet", WRITE)["status"] == "ok"
    return "parquet"


@pytest.mark.parametrize("codec", ["snappy", "gzip", "zstd", "lz4", "None"])
def test_the_rows_of_a_parquet_file(page: Any, parquet: str, codec: str) -> None:
    show(page, parquet)
    dialog = opened(page, f"{codec}.parquet")
    expect(dialog).to_contain_text("3 rows, 7 columns")
    expect(dialog.get_by_role("status")).to_have_count(0)
    heads = dialog.get_by_role("columnheader").all_text_contents()
    assert heads[1:4] == ["citystring", "heightdouble", "countint64"]
    rows = [row[1:] for row in texts(page)]
    assert [row[:6] for row in rows] == [
        ["Oslo", "23", "1", "2026-01-02", "True", '["a","b"]'],
        ["Łódź", "missing", "1099511627776", "missing", "False", "[]"],
        ["missing", "7.5", "-3", "2026-01-04 05:06:07", "missing", "missing"],
    ]
    assert rows[0][6].startswith("500 characters xxx")
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_of_a_large_file_the_first_rows_are_read(page: Any, parquet: str) -> None:
    show(page, parquet)
    dialog = opened(page, "large.parquet")
    expect(dialog).to_contain_text("100,000 rows, 120 columns")
    expect(dialog).to_contain_text("The first 200 rows and 100 columns")
    assert len(texts(page)) == 200


def test_a_parquet_file_without_rows(page: Any, parquet: str) -> None:
    show(page, parquet)
    dialog = opened(page, "empty.parquet")
    expect(dialog).to_contain_text("0 rows, 7 columns")
    expect(dialog.get_by_role("columnheader")).to_have_count(8)


@pytest.mark.parametrize(
    ("name", "body", "heads", "rows", "said"),
    [
        ("comma.csv", b'name,"n"\n"a, ""b""",1\n\nc,\n', ["nametext", "nnumber"],
         [['a, "b"', "1"], ["c", "missing"]], "2 rows, 2 columns"),
        ("semicolon.csv", "\ufeffStadt;Höhe\nŁódź;1,5\n".encode(), ["Stadttext", "Höhenumber"],
         [["Łódź", "1,5"]], "1 row, 2 columns"),
        ("tabs.tsv", b"a\tb\n1\tx\n", ["anumber", "btext"], [["1", "x"]], "1 row, 2 columns"),
        ("latin.csv", "a,b\né,1\n".encode("latin-1"), ["atext", "bnumber"], [["é", "1"]], "1 row, 2 columns"),
        ("ragged.csv", b"a,b\n1\n1,2,3\n", ["anumber", "bnumber", "number"],
         [["1", "missing", "missing"], ["1", "2", "3"]], "2 rows, 3 columns"),
        ("empty.csv", b"", [], [], "0 rows, 0 columns"),
        ("html.csv", b"<img src=x onerror=alert(1)>,b\n=1+1,2\n",
         ["<img src=x onerror=alert(1)>text", "bnumber"],
         [["=1+1", "2"]], "1 row, 2 columns"),
    ],
)  # fmt: skip
def test_the_rows_of_a_csv_file(
    page: Any,
    console: GatewayProcess,
    name: str,
    body: bytes,
    heads: list[str],
    rows: list[list[str]],
    said: str,
) -> None:
    put(console, "csv", name, body)
    show(page, "csv")
    dialog = opened(page, name)
    expect(dialog).to_contain_text(said)
    assert dialog.get_by_role("columnheader").all_text_contents()[1:] == heads
    assert [row[1:] for row in texts(page)] == rows


def test_of_a_large_csv_file_only_its_beginning_is_read(page: Any, console: GatewayProcess) -> None:
    put(
        console,
        "large-csv",
        "large.csv",
        b"a,b\n" + b"".join(b"%d,%s\n" % (n, b"x" * 9) for n in range(200_000)),
    )
    read: list[str] = []
    page.on(
        "request",
        lambda request: "large.csv" in request.url and read.append(request.headers.get("range", "")),
    )
    show(page, "large-csv")
    dialog = opened(page, "large.csv")
    expect(dialog).to_contain_text("The first 200 rows, as the file has them")
    assert [row[1] for row in texts(page)] == [str(number) for number in range(200)]
    assert read == ["bytes=0-524287"]


@pytest.mark.parametrize("body", [b"", b"no parquet at all", b"PAR1" + bytes(400) + b"\xff\xff\xff\x7fPAR1"])
def test_what_is_no_parquet_file_is_told(page: Any, console: GatewayProcess, body: bytes) -> None:
    put(console, "broken", "broken.parquet", body)
    show(page, "broken")
    dialog = opened(page, "broken.parquet")
    expect(dialog.get_by_role("alert")).to_be_visible()


def test_rows_are_there_while_the_kernel_works_and_when_it_has_ended(
    page: Any, console: GatewayProcess
) -> None:
    put(console, "works", "a.csv", b"a\n1\n")
    console.submit("works", "import time\ntime.sleep(600)")
    show(page, "works")
    expect(opened(page, "a.csv")).to_contain_text("1 row, 1 column")
    page.keyboard.press("Escape")
    console.delete("/v1/sessions/works")
