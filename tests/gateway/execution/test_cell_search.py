"""Searches by what the code and the outputs of cells say: of one session's cells, and of all sessions."""

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


async def test_sessions_are_found_by_their_cells(gateway: GatewayProcess) -> None:
    codes = {
        "named-zebra": "1",
        "code": "zebra = 1",
        "printed": "print('ZEB' + 'RA')",
        "other": "print('horse')",
    }
    async with Gateway(gateway.url, TOKEN) as client:
        for key, code in codes.items():
            await client.execute(key, code)
        await client.delete_session("printed")
        await client.execute("printed-again", "print('zebra')")

        async def found(**options: object) -> list[str]:
            return [each.session async for each in client.sessions(search="zebra", **options)]  # type: ignore[arg-type]

        assert await found() == ["named-zebra"]
        assert await found(cells=True) == ["named-zebra", "code", "printed", "printed-again"]
        assert await found(cells=True, newest=True) == ["printed-again", "printed", "code", "named-zebra"]
        assert await found(cells=True, state="ended") == ["printed"]
    pages = gateway.get("/v1/sessions?search=zebra&cells=true&limit=2").json()
    assert [each["session"] for each in pages["sessions"]] == ["named-zebra", "code"]
    more = gateway.get(f"/v1/sessions?search=zebra&cells=true&limit=2&after={pages['next']}").json()
    assert [each["session"] for each in more["sessions"]] == ["printed", "printed-again"]
    refused = gateway.get("/v1/sessions?cells=true")
    assert (refused.status, refused.reason) == (400, "bad_request")
    assert "search=TEXT" in refused.json()["detail"]
