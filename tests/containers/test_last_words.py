"""What cells in containers, their children and C code wrote, also before a death: the sandbox's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import serving
from tests.gateway.execution.test_last_words import (
    test_all_that_was_printed_is_there,
    test_text_that_was_sent_comes_only_once,
    test_the_words_of_c_code_and_of_a_fault_are_there,
)
from tests.gateway.execution.test_streams import (
    test_letters_of_children_are_whole,
    test_what_children_write_is_in_the_answer_of_their_cell,
)
from tests.support.kernels import EACH_CONTAINER
from tests.support.server import GatewayProcess


@pytest.fixture(scope="module", params=EACH_CONTAINER)
def gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayProcess]:
    """One gateway whose kernels are in containers, for each runtime."""
    request.getfixturevalue(request.param)
    runtime = "runsc" if request.param == "gvisor" else ""
    with serving(tmp_path_factory.mktemp("gateway") / "data", "docker", runtime=runtime) as process:
        yield process


SHOWS = """
import os, signal
from IPython.display import HTML, display
print("before")
for number in range(20): display(HTML(f"<b>{number}</b>"))
print("after")
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_displayed_before_an_end_is_there(gateway: GatewayProcess, session: str) -> None:
    """A kernel in a container keeps its messages, for a gateway that was away; they serve here, too."""
    for _ in range(5):
        result = gateway.execute(session, SHOWS)
        assert (result["status"], result["stdout"], result["truncated"]) == ("died", "before\nafter\n", False)
        shown = [output["data"]["text/html"] for output in result["outputs"] if "data" in output]
        assert shown == [f"<b>{number}</b>" for number in range(20)]
