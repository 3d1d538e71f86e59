"""The standard environment's libraries in cells: what they show, how large that is, and what exports have."""

from __future__ import annotations

import json

import nbformat
import pytest

from tests.support.server import GatewayProcess

PLOTLY, TEXT, HTML = "application/vnd.plotly.v1+json", "text/plain", "text/html"
VEGA_LITE, SVG = "application/vnd.vegalite.v6+json", "image/svg+xml"
SMALL = 20_000
"""More characters than a small figure's data has, and a hundredth of plotly.js, which must not be in it."""


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("import plotly.express as px\npx.scatter(x=[1, 2, 3], y=[1, 4, 9])", {PLOTLY, SVG}),
        ("import plotly.express as px\npx.line(x=[1, 2], y=[2, 1]).show()", {PLOTLY, SVG}),
        (
            "import altair\naltair.Chart(altair.Data(values=[{'x': 1}])).mark_point().encode(x='x:Q')",
            {TEXT, VEGA_LITE, SVG},
        ),
        ("import seaborn\n_ = seaborn.histplot([1, 1, 2])", {TEXT, "image/png"}),
        ("import polars\npolars.DataFrame({'n': [40, 2]}).sum()", {TEXT, HTML}),
        ("import duckdb\nduckdb.sql('select 40 + 2 as n').df()", {TEXT, HTML}),
        ("import sympy\nsympy.integrate(sympy.Symbol('x'))", {TEXT, "text/latex"}),
    ],
)
def test_what_a_library_shows_is_in_the_answer_and_in_the_notebook(
    gateway: GatewayProcess, session: str, code: str, shown: set[str]
) -> None:
    result = gateway.execute(session, code)
    assert (result["status"], result["stderr"]) == ("ok", "")
    (output,) = result["outputs"]
    data = {mime: value for mime, value in output["data"].items() if value != ""}
    assert set(data) == shown
    assert max(len(json.dumps(value)) for value in data.values()) < SMALL
    notebook = nbformat.reads(gateway.get(f"/v1/sessions/{session}/notebook").body, as_version=4)
    nbformat.validate(notebook)
    (kept,) = notebook.cells[0].outputs
    assert {mime: kept.data[mime] for mime in data} == data


def test_bars_of_progress_are_one_line_in_the_end(gateway: GatewayProcess, session: str) -> None:
    code = "from tqdm import tqdm\nfor _ in tqdm(range(300)):\n    pass"
    (output,) = gateway.execute(session, code)["outputs"]
    assert (output["output_type"], output["name"]) == ("stream", "stderr")
    assert output["text"].startswith("100%|██████████| 300/300")
    assert len(output["text"].splitlines()) == 1


def test_bars_of_progress_as_widgets_are_widgets(gateway: GatewayProcess, session: str) -> None:
    code = "from tqdm.notebook import tqdm\nfor _ in tqdm(range(3)):\n    pass"
    (output,) = gateway.execute(session, code)["outputs"]
    view = "application/vnd.jupyter.widget-view+json"
    notebook = nbformat.reads(gateway.get(f"/v1/sessions/{session}/notebook").body, as_version=4)
    states = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert output["data"][view]["model_id"] in states
    assert [state["state"]["value"] for state in states.values() if "value" in state["state"]].count(3.0) == 1


def test_files_of_analysts_are_written_and_read(gateway: GatewayProcess, session: str) -> None:
    code = """
    import duckdb, pandas, polars, sqlalchemy
    frame = pandas.DataFrame({"word": ["a", "b"], "n": [1, 2]})
    frame.to_parquet("t.parquet")
    frame.to_excel("t.xlsx", index=False)
    frame.to_html("t.html", index=False)
    frame.to_sql("t", sqlalchemy.create_engine("sqlite:///t.db"), index=False)
    read = [
        pandas.read_parquet("t.parquet"), pandas.read_excel("t.xlsx"), pandas.read_html("t.html")[0],
        pandas.read_sql("t", sqlalchemy.create_engine("sqlite:///t.db")),
        polars.read_parquet("t.parquet").to_pandas(), duckdb.sql("from 't.parquet'").df(),
    ]
    [each.to_dict("list") == frame.to_dict("list") for each in read]
    """
    result = gateway.execute(session, code)
    assert result["text"] == str([True] * 6), result["text"]


def test_older_packages_find_what_they_import(gateway: GatewayProcess, session: str) -> None:
    code = "import warnings; warnings.simplefilter('ignore')\nimport distutils, pkg_resources\n'there'"
    assert gateway.execute(session, code)["text"] == "'there'"


def test_documents_are_written_and_read(gateway: GatewayProcess, session: str) -> None:
    code = """
    import docx, openpyxl, pptx, pypdf, xlsxwriter
    from PIL import Image
    from reportlab.pdfgen.canvas import Canvas
    Image.new("RGB", (8, 8), "red").save("dot.png")
    text = docx.Document(); text.add_paragraph("Größe"); text.add_picture("dot.png"); text.save("t.docx")
    slides = pptx.Presentation(); slide = slides.slides.add_slide(slides.slide_layouts[5])
    slide.shapes.title.text = "Größe"; slides.save("t.pptx")
    with xlsxwriter.Workbook("t.xlsx") as book:
        sheet = book.add_worksheet(); sheet.write_column("A1", [1, 2])
        chart = book.add_chart({"type": "line"})
        chart.add_series({"values": "=Sheet1!$A$1:$A$2"}); sheet.insert_chart("C1", chart)
    page = Canvas("t.pdf"); page.drawString(50, 700, "length"); page.drawImage("dot.png", 50, 50); page.save()
    (
        docx.Document("t.docx").paragraphs[0].text,
        pptx.Presentation("t.pptx").slides[0].shapes.title.text,
        openpyxl.load_workbook("t.xlsx").active["A2"].value,
        pypdf.PdfReader("t.pdf").pages[0].extract_text().strip(),
    )
    """
    result = gateway.execute(session, code)
    assert result["text"] == "('Größe', 'Größe', 2, 'length')", result["text"]


def test_node_runs_beside_cells(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "open('index.js', 'w').write('console.log(process.argv[2], 6 * 7)')")
    body = {"argv": ["node", "index.js", "of"], "timeout": 60}
    ran = gateway.post(f"/v1/sessions/{session}/processes", body).json()
    assert (ran["exit_code"], ran["stdout"], ran["stderr"]) == (0, "of 42\n", "")
    cell = "import subprocess; print(subprocess.check_output(['node', '--print', '1'], text=True))"
    assert gateway.execute(session, cell)["text"] == "1\n\n"
