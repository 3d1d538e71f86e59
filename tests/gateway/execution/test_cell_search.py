"""GET .../executions?search=: cells by what their code and their outputs say."""

from __future__ import annotations

from cellgate.client import Gateway
from tests.support.server import TOKEN, GatewayProcess


async def test_cells_are_found_while_and_after_they_run(gateway: GatewayProcess) -> None:
    async with Gateway(gateway.url, TOKEN).session() as session:
        codes = ["orders = 3", "print('Nothing')", "print('OR', end=''); print('DERS', flush=True)", "1/0"]
        ran = [(await session.run(code)).execution for code in codes]
        waits = gateway.post(
            f"/v1/sessions/{session.name}/execute", {"code": "input('orders?')", "wait": False}
        ).json()["execution"]
        found = [each.execution async for each in session.executions(search="orders")]
        assert found == [ran[0], ran[2], waits]
        assert [each.execution async for each in session.executions(search="Division by")] == [ran[3]]
        assert [each async for each in session.executions(search="no such text & more")] == []
    path = f"/v1/sessions/{session.name}/executions"
    page = gateway.get(f"{path}?search=orders&limit=1").json()
    assert [each["execution"] for each in page["executions"]] == [ran[0]]
    page = gateway.get(f"{path}?search=orders&limit=1&after={page['next']}").json()
    assert [each["execution"] for each in page["executions"]] == [ran[2]]
    refused = gateway.get(f"{path}?search=orders&newest=true")
    assert (refused.status, refused.reason) == (400, "bad_request")
    assert "newest" in refused.json()["detail"]
