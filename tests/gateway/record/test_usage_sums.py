"""Sums of usage from the record of a real gateway: who may ask for which, in which form."""

from __future__ import annotations

import csv
import io
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from cellgate.client import Gateway, UsageSum
from cellgate.client.errors import InvalidInput
from cellgate.identity.principal import Reach, Role
from cellgate.identity.store.opening import open_users
from cellgate.record.keys import make_key
from cellgate.record.verify.notebooks import check_bundle
from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.support.commands import cellgate
from tests.support.server import GatewayProcess, Response

ROLES = {"alice": Role.USER, "bob": Role.USER, "olga": Role.AUDITOR, "root": Role.ADMIN}
FIGURES = ("cpu_seconds", "memory_peak", "disk_written", "network_sent", "network_received")
NEVER = "from=2001-01-01&to=2001-02-01"


class World:
    """A gateway with a signing key; `results`: those of the cells that ran, by owner and session."""

    def __init__(self, gateway: GatewayProcess, tokens: dict[str, str], key: str) -> None:
        self.gateway, self.tokens, self.key = gateway, tokens, key
        self.results: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for who, session, count in (("alice", "job-1", 2), ("alice", "work", 1), ("bob", "job-1", 1)):
            path = f"/v1/sessions/{session}/execute"
            answers = [gateway.post(path, {"code": "1"}, token=tokens[who]) for _ in range(count)]
            self.results[who, session] = [answer.json() for answer in answers]

    def get(self, who: str, query: str, path: str = "sums") -> Response:
        return self.gateway.get(f"/v1/usage/{path}?{query}", token=self.tokens[who])

    def sums(self, who: str, query: str) -> list[dict[str, Any]]:
        answer = self.get(who, query)
        assert answer.status == 200, answer.body
        found: list[dict[str, Any]] = answer.json()["sums"]
        return found

    def command(self, who: str, *words: str | Path) -> CompletedProcess[str]:
        return cellgate("usage", *words, f"--url={self.gateway.url}", f"--token={self.tokens[who]}")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    data = tmp_path_factory.mktemp("usage") / "data"
    data.mkdir()
    tokens = {}
    with open_users(data, create=True) as store:
        for name, role in ROLES.items():
            store.add_user(name, role)
            tokens[name] = store.create_token(name, reach=Reach())[1]
        tokens["jobs"] = store.create_token("alice", reach=Reach("job-"))[1]
        tokens["one"] = store.create_token("alice", reach=Reach("work", exact=True))[1]
    key = make_key(data).public
    with serving(data, "auto", docker_url=NO_ENGINE, pool_size=1) as gateway:
        yield World(gateway, tokens, key)


def summed(results: list[dict[str, Any]], figure: str) -> tuple[float | None, int]:
    """The sum of a figure of these results, and of how many it is known."""
    values = [each["usage"][figure] for each in results if each.get("usage", {}).get(figure) is not None]
    if not values:
        return None, 0
    return (max(values) if figure == "memory_peak" else round(sum(values), 6)), len(values)


def test_sums_are_those_of_the_results(world: World) -> None:
    found = world.sums("root", "principal=*&by=session")
    assert [(each["principal"], each["session"]) for each in found] == [*world.results]
    for told, results in zip(found, world.results.values(), strict=True):
        assert (told["cells"], told["unknown"]) == (len(results), 0)
        for figure in FIGURES:
            assert (told[figure], told["known"][figure]) == summed(results, figure)
    assert found[0]["cpu_seconds"] is not None


def test_everybody_sees_their_own_and_auditors_and_administrators_all(world: World) -> None:
    def seen(who: str, query: str = "") -> list[tuple[str, int]]:
        return [(each["principal"], each["cells"]) for each in world.sums(who, query)]

    assert seen("alice") == [("alice", 3)]
    assert seen("alice", "principal=alice") == [("alice", 3)]
    assert seen("bob") == [("bob", 1)]
    assert seen("root") == []
    for who in ("root", "olga"):
        assert seen(who, "principal=*") == [("alice", 3), ("bob", 1)]
        assert seen(who, "principal=bob") == [("bob", 1)]
    assert seen("jobs") == [("alice", 2)]
    assert seen("one") == [("alice", 1)]
    for query in ("principal=*", "principal=bob"):
        for path in ("sums", "export"):
            answer = world.get("alice", query, path)
            assert (answer.status, answer.reason) == (404, "not_found")
    assert "session" not in world.sums("alice", "")[0]


def test_days_pages_and_a_time_with_none(world: World) -> None:
    (day,) = world.sums("root", "principal=*&by=day")
    assert (len(day["day"]), day["cells"], "principal" in day) == (10, 4, False)
    first = world.get("root", "principal=*&by=session&limit=2").json()
    assert [each["session"] for each in first["sums"]] == ["job-1", "work"]
    query = f"principal=*&by=session&limit=2&after={first['next']}&from={first['from']}&to={first['to']}"
    second = world.get("root", query).json()
    assert ([each["principal"] for each in second["sums"]], second["next"]) == (["bob"], None)
    assert first["from"] == f"{first['to'][:8]}01T00:00:00.000000Z"
    none = world.get("alice", NEVER).json()
    assert none == {
        "from": "2001-01-01T00:00:00.000000Z",
        "to": "2001-02-01T00:00:00.000000Z",
        "by": "principal",
        "sums": [],
        "next": None,
    }
    zone = world.get("alice", "from=2001-01-01T00:00:00.5%2B01:00&to=2001-01-01T00:00Z").json()
    assert (zone["from"], zone["to"]) == ("2000-12-31T23:00:00.500000Z", "2001-01-01T00:00:00.000000Z")


@pytest.mark.parametrize(
    ("query", "told"),
    [
        ("from=yesterday", "from must be a day as 2026-11-30"),
        ("from=2026-02-30", "from must be a day"),
        ("from=2026-11-01T00:00:00", "from must be a day"),
        ("from=0001-01-01T00:00:00%2B10:00", "from must be a day"),
        ("to=", "to must be a day"),
        ("from=2001-02-01&to=2001-02-01", "must be before to"),
        ("from=9999-01-01", "must be before to"),
        ("by=week", "by must be one of day, principal, session"),
        ("limit=0", "limit must be a whole number from 1 to 1000"),
        ("by=session&after=work", "after must be what the last page's `next` says"),
    ],
)
def test_what_can_not_be_asked_is_told(world: World, query: str, told: str) -> None:
    answer = world.get("alice", query)
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert told in answer.json()["detail"]


def test_a_table_has_the_sums_and_no_formula(world: World) -> None:
    answer = world.get("root", "principal=*&by=session", "export")
    assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"].startswith('attachment; filename="usage-by-session-20')
    rows = [*csv.DictReader(io.StringIO(answer.body.decode(), newline=""))]
    known = world.sums("root", "principal=*&by=session")
    assert [(row["principal"], row["session"], row["cells"]) for row in rows] == [
        (each["principal"], each["session"], str(each["cells"])) for each in known
    ]
    for row, each in zip(rows, known, strict=True):
        for figure in FIGURES:
            value = each[figure]
            assert row[figure] == ("" if value is None else str(value))
            assert row[f"{figure}_known"] == str(each["known"][figure])
    empty = world.get("alice", f"{NEVER}&by=day", "export").body.decode().splitlines()
    assert len(empty) == 1
    assert empty[0].startswith("from,to,day,cells,unknown,cpu_seconds,cpu_seconds_known,")
    head = world.gateway.request("HEAD", "/v1/usage/export?format=zip", token=world.tokens["alice"])
    assert (head.status, head.headers["Content-Type"]) == (200, "application/zip")


def test_an_archive_is_signed_and_every_change_is_found(world: World, tmp_path: Path) -> None:
    path = tmp_path / "usage.zip"
    written = world.command("root", "--principal=*", "--by=day", "-o", path)
    assert (written.returncode, written.stdout) == (0, f"{path}\n")
    done = cellgate("verify", path, "--key", world.key)
    assert done.returncode == 0
    assert done.stdout.startswith("valid      usage.zip (usage of everybody from 20")
    assert done.stdout.rstrip().endswith(f"1 sum, signed by {world.key})")
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        assert not check_bundle(path).valid, place
    with zipfile.ZipFile(io.BytesIO(whole)) as archive:
        assert archive.namelist() == ["usage.csv", "manifest.json", "signature.json"]
        (tmp_path / "usage.csv").write_bytes(archive.read("usage.csv"))
    table = cellgate("verify", tmp_path / "usage.csv")
    assert (table.returncode, "no seal" in table.stdout) == (3, True)


def test_the_command_shows_a_table_or_json(world: World, tmp_path: Path) -> None:
    shown = world.command("olga", "--principal=*").stdout.splitlines()
    assert shown[0].split()[:4] == ["PRINCIPAL", "CELLS", "UNKNOWN", "CPU"]
    assert [line.split()[:3] for line in shown[1:]] == [["alice", "3", "0"], ["bob", "1", "0"]]
    told = world.command("alice", "--by=session", "--json").stdout
    assert [each["session"] for each in json.loads(told)] == ["job-1", "work"]
    none = world.command("alice", "--from=2001-01-01", "--to=2001-02-01")
    assert (none.returncode, none.stdout) == (0, "No cell ended in that time.\n")
    wrong = world.command("alice", "--from=yesterday")
    assert (wrong.returncode, "from must be a day" in wrong.stderr) == (2, True)
    name = world.command("alice", "-o", tmp_path / "usage.xlsx")
    assert (name.returncode, "ends in .csv" in name.stderr) == (2, True)


async def test_the_client_yields_the_sums_and_saves_them(world: World, tmp_path: Path) -> None:
    async with Gateway(world.gateway.url, world.tokens["root"], principal="*") as gateway:
        sums = [each async for each in gateway.usage(by="session")]
        assert [(each.principal, each.session, each.cells) for each in sums] == [
            (who, session, len(results)) for (who, session), results in world.results.items()
        ]
        assert all(isinstance(each, UsageSum) for each in sums)
        await gateway.save_usage(tmp_path / "days.csv", by="day", begin="2001-01-01")
        with pytest.raises(InvalidInput, match=r"ends in \.csv"):
            await gateway.save_usage(tmp_path / "days.txt")
    assert len((tmp_path / "days.csv").read_text().splitlines()) == 2
    with Gateway.sync(world.gateway.url, world.tokens["bob"]) as blocking:
        assert [each.cells for each in blocking.usage()] == [1]


def test_a_cell_whose_gateway_was_killed_is_unknown_and_what_is_purged_does_not_count(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    gateway = start_gateway(tmp_path / "data")
    gateway.execute("s", "1")
    gateway.execute("ended", "1")
    gateway.submit("s", "import time; time.sleep(60)")
    running = gateway.get("/v1/usage/sums").json()["sums"]
    assert [each["cells"] for each in running] == [2]
    gateway.kill()
    after = start_gateway(gateway.data_dir)

    def cells() -> list[tuple[str, int, int]]:
        found = after.get("/v1/usage/sums?by=session").json()["sums"]
        return [(each["session"], each["cells"], each["unknown"]) for each in found]

    # Nothing is known of cells of kernels without a sandbox either, so of none of them is it 0.
    assert [(session, count) for session, count, _ in cells()] == [("s", 2), ("ended", 1)]
    (first,) = (each for each in after.get("/v1/usage/sums?by=session").json()["sums"][:1])
    assert first["known"]["cpu_seconds"] < first["cells"]
    assert first["unknown"] >= 1
    after.delete("/v1/sessions/ended")
    assert len(cells()) == 2
    assert after.delete("/v1/sessions/ended?purge=true").status in {202, 204}
    assert [session for session, _, _ in cells()] == ["s"]
    assert cellgate("verify", f"--data-dir={after.data_dir}").returncode == 0


def test_a_cell_that_was_kept_from_an_alternative_counts_where_it_ran(
    sandbox: None, gateway: GatewayProcess, session: str
) -> None:
    gateway.execute(session, "x = 1")
    asked = {"cells": ["x = 2"], "keep": "first_ok"}
    (found,) = gateway.post(f"/v1/sessions/{session}/explore", asked).json()["results"]
    assert found["branch"] == "chosen"
    assert gateway.execute(session, "x")["text"] == "2"
    query = "by=session&limit=1000"
    sums = gateway.get(f"/v1/usage/sums?{query}").json()["sums"]
    cells = {each["session"]: each["cells"] for each in sums}
    assert (cells[session], cells[found["session"]]) == (2, 1)
    told = json.loads(cellgate("verify", f"--data-dir={gateway.data_dir}", "--json").stdout)
    own = [each for each in told if each["subject"].startswith(f"session {session} ")]
    assert [each["valid"] for each in own] == [True]
