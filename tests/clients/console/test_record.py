"""The record in the browser: its chain, computed again there, agrees with `cellgate verify`; replays."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.clients.console.mounting import show
from tests.conftest import StartGateway
from tests.support.browser import link, opened
from tests.support.commands import cellgate
from tests.support.nightly import mostly_nightly
from tests.support.server import PATIENCE, GatewayProcess

SLOW = 1000 * PATIENCE
SESSION = "recorded"
CELLS = ["print('ü' * 100)", "x = 2", "from IPython.display import HTML; HTML('y' * 200_000)", "1/0"]


@pytest.fixture
def other(console: GatewayProcess, browser: Any) -> Iterator[Any]:
    """A page for gateways of the test's own."""
    with opened(browser) as shown:
        yield shown


def verified(page: Any, gateway: GatewayProcess) -> Any:
    """Where the outcome of a check in the browser is, once there is one."""
    page.goto(link(gateway))
    place = show(page, "record/verify.js", "ChainState", session=SESSION)
    place.get_by_role("button", name="Verify in this browser").click()
    place.locator("strong").get_by_text(re.compile("alid:")).wait_for(timeout=SLOW)
    return place


def findings(data_dir: Path) -> dict[str, Any]:
    """What the command says of the session."""
    done = cellgate("verify", "--data-dir", data_dir, "--json")
    (found,) = [each for each in json.loads(done.stdout) if each["subject"].startswith(f"session {SESSION} ")]
    assert isinstance(found, dict)
    return found


@pytest.fixture
def recorded(start_gateway: StartGateway, tmp_path: Path) -> GatewayProcess:
    """A gateway that signs, with a session in its record."""
    data = tmp_path / "data"
    assert cellgate("record", "key", "--create", "--data-dir", data).returncode == 0
    gateway = start_gateway(data)
    for code in CELLS:
        gateway.execute(SESSION, code)
    return gateway


def test_an_untouched_record_is_valid(other: Any, recorded: GatewayProcess) -> None:
    place = verified(other, recorded)
    model = recorded.model(SESSION)
    assert place.locator("dd code").first.text_content() == model["head"]
    assert place.get_by_text(f"Valid: {model['seq']} rows").count() == 1
    assert place.get_by_text("(the signature holds)").count() == 1
    assert place.locator(".record-bad").count() == 0
    assert findings(recorded.data_dir)["valid"]


CHANGE_BODY = (
    """UPDATE events SET body = CAST(replace(CAST(body AS TEXT), 'ü', 'u') AS BLOB) WHERE seq = {row}"""
)
CHANGED = {
    "its body": (CHANGE_BODY, "was changed"),
    "its hash": ("UPDATE events SET hash = zeroblob(32) WHERE seq = {row}", "was changed"),
    "all of it": ("DELETE FROM events WHERE seq = {row}", "did not come"),
    "its number": ("UPDATE events SET seq = 1000 WHERE seq = {row}", "did not come"),
}


@pytest.mark.parametrize("name", mostly_nightly(CHANGED, ["its body"]))
def test_a_changed_record_is_found_out_where_it_was_changed(
    other: Any, recorded: GatewayProcess, start_gateway: StartGateway, name: str
) -> None:
    change, told = CHANGED[name]
    printed = [event for event in recorded.recorded(SESSION) if event["type"] == "stream"]
    row = printed[0]["seq"]
    recorded.stop()
    with closing(sqlite3.connect(recorded.data_dir / "record.sqlite3")) as db, db:
        db.execute(change.format(row=row))
    found = findings(recorded.data_dir)
    gateway = start_gateway(recorded.data_dir)
    place = verified(other, gateway)
    assert not found["valid"]
    assert f"row {row} " in found["problem"]
    assert place.get_by_text(re.compile(f"Not valid: row {row} {told}")).count() == 1
    assert place.get_by_text("The gateway itself says").count() == 0


ROWS = 100_000
MANY = """
async (rows) => {
  const at = (path) => new URL(`console/${path}`, document.baseURI).href;
  const { verifySession, hex } = await import(at("record/chain.js"));
  const { sha256 } = await import(at("vendor/sha256.js"));
  const encoder = new TextEncoder();
  let head = new Uint8Array(32);
  let made = 0;
  const body = new ReadableStream({
    pull(controller) {
      const lines = [];
      for (let left = 500; left && made < rows; left -= 1) {
        made += 1;
        const row = JSON.stringify({ seq: made, session: "s", execution: null, type: "stream", text: "x" });
        head = sha256.create().update(head).update(encoder.encode(row)).digest();
        lines.push(`{"hash":"${hex(head)}","row":${row}}\\n`);
      }
      controller.enqueue(encoder.encode(lines.join("")));
      if (made === rows) controller.close();
    },
  });
  let frames = 0;
  const count = () => { frames += 1; requestAnimationFrame(count); };
  requestAnimationFrame(count);
  const found = await verifySession(async () => new Response(body), { session: "s", rows });
  return { ...found, frames, same: found.head === hex(head) };
}
"""


@pytest.mark.nightly
def test_a_long_record_leaves_the_page_alive(page: Any, console: GatewayProcess) -> None:
    found = page.evaluate(MANY, ROWS)
    assert (found["valid"], found["rows"], found["same"]) == (True, ROWS, True)
    assert found["frames"] > 10


def test_a_replay_shows_its_progress_and_its_report(page: Any, console: GatewayProcess) -> None:
    session = "to-be-replayed"
    for code in ("import random; print(6 * 7)", "import uuid; f'id {uuid.uuid4().hex[:7]}'"):
        console.execute(session, code)
    place = show(page, "record/replay.js", "Replay", session=session)
    place.get_by_role("button", name="Run all cells again").click()
    place.get_by_text("1 same, 1 different").wait_for(timeout=SLOW)
    cells = place.locator(".replay-cells > li")
    assert cells.count() == 2
    assert [each.get_attribute("value") for each in cells.all()] == ["2", "1"]
    assert "gave something different" in cells.nth(0).text_content()
    assert "gave the same" in cells.nth(1).text_content()
    cells.nth(0).locator("summary").first.click()
    assert "-" in cells.nth(0).locator("pre").first.text_content()
    with page.expect_download() as saved:
        place.get_by_role("button", name="Download the report").click()
    assert json.loads(Path(saved.value.path()).read_text())["verdict"] == "different"
