"""PATCH /v1/sessions/{s}: another title, metadata or times of a live session, as its record has them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from cellgate.client import Gateway, RequestRefused
from tests.support import commands
from tests.support.server import TOKEN, GatewayProcess, until


def changes(gateway: GatewayProcess, session: str) -> list[dict[str, Any]]:
    """The events of changes in its record."""
    return [event for event in gateway.recorded(session) if event.get("cause") == "changed"]


async def test_a_title_and_times_of_a_live_session(gateway: GatewayProcess, tmp_path: Path) -> None:
    """They are in its model, in lists, in the record, which stays valid, and in the notebook."""
    async with Gateway(gateway.url, TOKEN).session(metadata={"team": "a"}) as session:
        await session.run("x = 1")
        changed = await session.change(
            title=" Orders of März, 三月 ", limits={"cell_timeout": 0.5, "idle_timeout": 4000}
        )
        assert changed.title == "Orders of März, 三月"
        assert changed.metadata == {"team": "a", "title": "Orders of März, 三月"}
        assert (changed.state, changed.cause) == ("idle", "changed")
        assert (changed.limits["cell_timeout"], changed.limits["idle_timeout"]) == (0.5, 4000)
        assert (await session.run("while True: pass")).status == "timeout"
        assert (await session.run("x")).text == "1"
        found = gateway.get("/v1/sessions?search=M%C3%A4rz").json()["sessions"]
        assert [each["session"] for each in found] == [session.name]
        (event,) = changes(gateway, session.name)
        assert (event["metadata"], event["limits"]["cell_timeout"]) == (changed.metadata, 0.5)
        await session.save_notebook(tmp_path / "n.ipynb")
        told = json.loads((tmp_path / "n.ipynb").read_text())["metadata"]
        assert "Orders of März, 三月" in json.dumps(told, ensure_ascii=False)
        assert commands.cellgate("verify", str(tmp_path / "n.ipynb")).returncode == 0


async def test_what_is_not_given_stays_and_what_is_the_same_is_not_recorded(gateway: GatewayProcess) -> None:
    async with Gateway(gateway.url, TOKEN).session(metadata={"title": "t", "a": 1}) as session:
        for _ in range(2):
            assert (await session.change(metadata={"a": 2})).metadata == {"a": 2}
        assert (await session.change(title="u")).metadata == {"a": 2, "title": "u"}
        assert (await session.change(title="")).metadata == {"a": 2}
        assert (await session.change()).title is None
        assert len(changes(gateway, session.name)) == 3


def test_an_empty_change_is_a_use_that_puts_the_end_off(gateway: GatewayProcess, session: str) -> None:
    gateway.post("/v1/sessions", {"session": session, "limits": {"idle_timeout": 500}})
    gateway.execute(session, "1")
    first = gateway.model(session)["ends"]
    assert first["cause"] == "idle_timeout"
    time.sleep(1.1)
    assert gateway.model(session)["ends"] == first
    later = gateway.request("PATCH", f"/v1/sessions/{session}", {}).json()["ends"]
    assert (later["cause"], later["at"] > first["at"]) == ("idle_timeout", True)
    assert changes(gateway, session) == []
    cell = gateway.post(f"/v1/sessions/{session}/execute", {"code": "input()", "wait": False}).json()
    until(lambda: gateway.model(session)["state"] == "busy", "the cell does not run")
    assert gateway.model(session)["ends"]["cause"] == "lifetime"
    gateway.post(f"/v1/sessions/{session}/executions/{cell['execution']}/cancel")
    until(lambda: gateway.model(session)["ends"]["cause"] == "idle_timeout", "the cell does not end")
    gateway.delete(f"/v1/sessions/{session}")
    assert "ends" not in gateway.model(session)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"title": "a\nb"}, "title"),
        ({"title": "a" * 201}, "title"),
        ({"metadata": {"a": "b" * 70_000}}, "metadata"),
        ({"limits": {"cell_timeout": 0}}, "limits.cell_timeout"),
        ({"limits": {"idle_timeout": -1}}, "limits.idle_timeout"),
        ({"limits": {"cell_timeout": 1e9}}, "limits.cell_timeout"),
        ({"limits": {"memory": "1g"}}, "memory"),
        ({"session": "other"}, "session"),
    ],
)
def test_a_change_that_cannot_be_changes_nothing(
    gateway: GatewayProcess, session: str, body: dict[str, Any], said: str
) -> None:
    gateway.execute(session, "1")
    before = gateway.model(session)
    refused = gateway.request("PATCH", f"/v1/sessions/{session}", body)
    assert (refused.status, refused.reason) == (400, "bad_request")
    assert said in refused.json()["detail"]
    assert gateway.model(session) == before


def test_a_session_that_has_ended_or_has_no_kernel_is_not_changed(
    gateway: GatewayProcess, session: str
) -> None:
    path = f"/v1/sessions/{session}"
    assert gateway.request("PATCH", path, {"title": "t"}).status == 404
    gateway.post(f"{path}/execute", {"code": "import os; os._exit(1)"})
    until(lambda: gateway.model(session)["state"] == "dead", "the kernel does not die")
    assert gateway.request("PATCH", path, {"title": "t"}).reason == "conflict"
    gateway.delete(path)
    assert gateway.request("PATCH", path, {"title": "t"}).status == 404


async def test_a_wrong_word_is_refused_by_the_client(gateway: GatewayProcess) -> None:
    async with Gateway(gateway.url, TOKEN).session() as session:
        with pytest.raises(RequestRefused, match="lifetime"):
            await session.change(limits={"lifetime": 1})  # type: ignore[typeddict-unknown-key]


def test_a_shorter_idle_time_counts_at_once(gateway: GatewayProcess, session: str) -> None:
    gateway.execute(session, "1")
    path = f"/v1/sessions/{session}"
    assert gateway.request("PATCH", path, {"limits": {"idle_timeout": 0.2}}).status == 200
    until(lambda: gateway.model(session)["cause"] == "idle_timeout", "it does not end")
