"""How much one answer shows by default, and how to get the rest: the record has all of it."""

from __future__ import annotations

import pytest

from cellgate.client import Gateway
from tests.support.server import TOKEN, GatewayProcess

LONG = "print('a' * 300_000 + 'z')"
PAGE = "display({'text/plain': 'a page', 'text/html': 'x' * 1_200_000}, raw=True)"


def test_a_long_text_is_cut_wherever_an_answer_has_it(gateway: GatewayProcess, session: str) -> None:
    answer = gateway.post(f"/v1/sessions/{session}/execute", {"code": LONG})
    cut = answer.json()
    assert len(answer.body) < 400_000
    assert (cut["status"], cut["truncated"]) == ("ok", False)
    address = f"/v1/sessions/{session}/executions/{cut['execution']}"
    for text in (cut["text"], cut["stdout"], cut["outputs"][0]["text"]):
        assert len(text) == 100_000
        assert text.endswith("az\n")
        assert f"[cellgate: 300002 characters, cut here; GET {address}/output/0 has them all]" in text
    assert gateway.result(session, cut["execution"]) == cut
    assert gateway.get(f"{address}/output/0").body == b"a" * 300_000 + b"z\n"
    whole = gateway.result(session, cut["execution"], "?max_text=0")
    assert whole["text"] == whole["stdout"] == whole["outputs"][0]["text"] == "a" * 300_000 + "z\n"
    longer = gateway.result(session, cut["execution"], "?max_text=200000")
    assert len(longer["text"]) == 200_000
    asked = gateway.execute(session, LONG, "?max_text=0")
    assert (len(asked["text"]), len(asked["stdout"])) == (300_002, 300_002)


def test_a_page_for_which_there_is_no_room_has_an_address(gateway: GatewayProcess, session: str) -> None:
    (shown,) = gateway.execute(session, PAGE)["outputs"]
    assert list(shown["data"]) == ["text/plain"]
    text = shown["data"]["text/plain"]
    assert text.startswith("a page\n[cellgate: text/html, 1200002 bytes, is left out; GET /v1/")
    address = text.partition("GET ")[2].partition(" ")[0]
    assert gateway.get(address).body == b"x" * 1_200_000
    (whole,) = gateway.execute(session, PAGE, "?max_text=0")["outputs"]
    assert len(whole["data"]["text/html"]) == 1_200_000


def test_a_one_shot_that_is_not_recorded_names_no_address(gateway: GatewayProcess) -> None:
    cut = gateway.post("/v1/execute", {"code": LONG}).json()
    assert len(cut["text"]) == 100_000
    assert "[cellgate: 300002 characters, cut here; a run with ?max_text=0 has them all]" in cut["text"]
    assert "GET" not in str(cut)
    whole = gateway.post("/v1/execute?max_text=0", {"code": LONG}).json()
    assert len(whole["text"]) == 300_002
    recorded = gateway.post("/v1/execute", {"code": LONG, "record": True}).json()
    address = recorded["text"].partition("GET ")[2].partition(" ")[0]
    assert gateway.get(address).body == b"a" * 300_000 + b"z\n"


def test_blocks_share_one_answer(gateway: GatewayProcess, session: str) -> None:
    body = {"blocks": [{"language": "python", "code": LONG}] * 6}
    answer = gateway.post(f"/v1/sessions/{session}/execute-blocks", body)
    model = answer.json()
    assert len(answer.body) < 1_100_000
    assert len(model["output"]) == 100_000
    assert "GET of each block's execution with ?max_text=0 has them all" in model["output"]
    sizes = [len(result["text"]) for result in model["blocks"]]
    assert sizes[0] == 100_000
    assert sizes == sorted(sizes, reverse=True)
    assert all("characters, cut here; GET " in result["text"] for result in model["blocks"])
    whole = gateway.post(f"/v1/sessions/{session}/execute-blocks?max_text=0", body).json()
    assert len(whole["output"]) == 6 * 300_002


async def test_the_client_gets_all_if_it_asks(gateway: GatewayProcess, session: str) -> None:
    async with Gateway(gateway.url, TOKEN) as client:
        work = client.session(session)
        cut = await work.run(LONG)
        assert len(cut.text) == 100_000
        for whole in (
            await work.run(LONG, max_text=0),
            await work.run(LONG, max_text=0, on_event=lambda event: None),
            await work.result(cut.execution, max_text=0),
            (await work.run_blocks([("python", LONG)], max_text=0)).blocks[0],
            await client.execute_once(LONG, max_text=0),
        ):
            assert len(whole.text) == 300_002


@pytest.mark.parametrize("query", ["max_text=1", "max_text=99"])
def test_a_size_below_that_of_a_mark_is_refused(gateway: GatewayProcess, session: str, query: str) -> None:
    answer = gateway.post(f"/v1/sessions/{session}/execute?{query}", {"code": "1"})
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert "at least 100, or 0 for all" in answer.json()["detail"]
