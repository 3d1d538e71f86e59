"""What people ask of a gateway first, each through HTTP in a fresh session."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.gateway.test_notebooks import png_size
from tests.support.server import GatewayProcess

POPULATION = """
import matplotlib.pyplot as plt

# Millions of people, 2023: United Nations, World Population Prospects 2022.
population = {
    "Asia": 4753, "Africa": 1460, "Europe": 742, "North America": 604, "South America": 439, "Oceania": 46,
}
fig, ax = plt.subplots(figsize=(8, 4.5))
bars = ax.bar(list(population), list(population.values()), color="tab:blue")
ax.bar_label(bars)
ax.set_ylabel("million people")
ax.set_title("Population of the continents, 2023")
plt.savefig("population.png", dpi=100)
plt.show()
"""

SCATTER = """
import matplotlib.pyplot as plt
import numpy as np

rng = np.random.default_rng(42)
x = rng.normal(size=200)
y = 2 * x + rng.normal(scale=0.5, size=200)
plt.scatter(x, y, s=10)
plt.title(f"r = {np.corrcoef(x, y)[0, 1]:.2f}")
plt.show()
"""


def only_image(result: dict[str, Any]) -> str:
    """The one image of a cell that showed nothing else."""
    assert result["status"] == "ok", result["error"]
    [output] = result["outputs"]
    assert output["output_type"] == "display_data"
    assert set(output["data"]) == {"image/png", "text/plain"}
    image: str = output["data"]["image/png"]
    return image


def test_a_bar_chart_of_the_continents_is_shown_and_saved(gateway: GatewayProcess, session: str) -> None:
    width, height = png_size(only_image(gateway.execute(session, POPULATION)))
    assert 400 < width < 2000
    assert 200 < height < 1500
    saved = gateway.execute(
        session,
        "from PIL import Image\n"
        "with Image.open('population.png') as image:\n"
        "    image.load(); print(image.format, image.size, len(image.convert('RGB').getcolors(10**6)) > 10)",
    )
    assert saved["stdout"] == "PNG (800, 450) True\n"
    file = gateway.workspace(session) / "population.png"
    assert png_size(base64.b64encode(file.read_bytes()).decode()) == (800, 450)


def test_a_scatter_of_numpy_data_is_one_image(gateway: GatewayProcess, session: str) -> None:
    shown = only_image(gateway.execute(session, SCATTER))
    assert min(png_size(shown)) > 200
    # The kernel itself can read what it has sent: the image is whole, and has its blue points.
    code = (
        "import base64, io; from PIL import Image\n"
        f"image = Image.open(io.BytesIO(base64.b64decode({shown!r}))).convert('RGB')\n"
        "int((np.asarray(image) == (31, 119, 180)).all(axis=2).sum()) > 1000"
    )
    assert gateway.execute(session, code)["text"] == "True"


def test_fibonacci_is_defined_in_one_cell_and_called_in_the_next(
    gateway: GatewayProcess, session: str
) -> None:
    define = gateway.execute(
        session,
        "def fibonacci(n):\n    a, b = 0, 1\n    for _ in range(n):\n        a, b = b, a + b\n    return a",
    )
    assert (define["status"], define["outputs"], define["execution_count"]) == ("ok", [], 1)
    call = gateway.execute(session, "print([fibonacci(n) for n in range(10)])\nfibonacci(100)")
    assert call["stdout"] == "[0, 1, 1, 2, 3, 5, 8, 13, 21, 34]\n"
    assert call["outputs"][-1]["data"] == {"text/plain": "354224848179261915075"}
    assert call["execution_count"] == 2


def test_a_product_is_calculated(gateway: GatewayProcess, session: str) -> None:
    result = gateway.execute(session, "12345 * 54321")
    assert (result["status"], result["text"]) == ("ok", "670592745")
    [output] = result["outputs"]
    assert (output["output_type"], output["data"]) == ("execute_result", {"text/plain": "670592745"})


@pytest.mark.parametrize(
    ("sentence", "ename"),
    [
        # Python reads `what is (a product)`: a comparison with a name that nobody has defined.
        ("what is 12345 * 54321", "NameError"),
        ("what is 12345 times 54321", "SyntaxError"),
        ("please multiply 12345 by 54321!", "SyntaxError"),
    ],
)
def test_a_question_sent_as_code_is_an_error_of_the_cell_and_not_of_the_request(
    gateway: GatewayProcess, session: str, sentence: str, ename: str
) -> None:
    result = gateway.execute(session, sentence)
    assert (result["status"], result["error"]["ename"]) == ("error", ename)
    assert result["error"]["traceback"]
    assert ename in result["text"]
    assert result["execution_count"] == 1
    assert gateway.execute(session, "12345 * 54321")["text"] == "670592745"
