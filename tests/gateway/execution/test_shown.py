"""What cells show is one thing in text, in results and on screens: with the libraries that analysts use."""

from __future__ import annotations

import pytest

from tests.support.server import GatewayProcess

TABLE = "<table><tr><th>a</th><th>b</th></tr><tr><td>1</td><td>two</td></tr></table>"
CELLS = [
    ("from IPython.display import *\nMarkdown('# hi')", "# hi"),
    ("display(Math('x^2'))\nLatex('$y$')", "$\\displaystyle x^2$\n$y$"),
    ("import pandas\npandas.DataFrame({'a': [1, 2], 'b': ['x', 'y']}).style", "   a  b\n0  1  x\n1  2  y"),
    (f"class A:\n    def _repr_html_(self): return {TABLE!r}\nA()", "a  b\n1  two"),
    (
        "import altair\nchart = altair.Chart(altair.Data(values=[{'a': 1}])).mark_bar()\nchart",
        "[Altair chart]",
    ),
    ("import plotly.graph_objects\nfigure = plotly.graph_objects.Figure()\nfigure", "[Plotly chart]"),
    ("figure.show()", "[Plotly chart]"),
    (
        "import ipywidgets\ns = ipywidgets.IntSlider(value=3, description='n')\ndisplay(s)\ns.value = 9",
        "IntSlider(value=9, description='n')",
    ),
    (
        "class B:\n def __repr__(self): return '\\udc00'\ndisplay({'text/plain': 'a\\ud800b'}, raw=1)\nB()",
        "a\\ud800b\n\\udc00",
    ),
    ("HTML('<p>\\ud800</p>')", "\\ud800"),
]


def test_the_text_of_what_cells_show(gateway: GatewayProcess, session: str) -> None:
    results = [gateway.execute(session, code) for code, _ in CELLS]
    assert [result["text"] for result in results] == [text for _, text in CELLS]
    assert [gateway.result(session, result["execution"]) for result in results] == results


def test_a_bar_of_tqdm_is_told_as_it_was_last(gateway: GatewayProcess, session: str) -> None:
    code = "from tqdm.auto import tqdm\nfor _ in tqdm(range(3), desc='up'): pass\nprint('done')"
    result = gateway.execute(session, code)
    bar, done = result["text"].splitlines()
    assert bar.startswith("up: 100%|██████████| 3/3 [00:0")
    assert done == "done"


@pytest.mark.parametrize("method", ["__repr__", "_repr_html_", "_repr_mimebundle_", "_ipython_display_"])
def test_an_object_that_fails_to_show_itself_has_a_traceback_of_its_own_code(
    gateway: GatewayProcess, session: str, method: str
) -> None:
    code = f"class A:\n    def {method}(self, **options): raise ValueError('no')\nA()"
    text = gateway.execute(session, code)["text"]
    assert "ValueError: no" in text
    assert "IPython" not in text
    assert "formatters" not in text
