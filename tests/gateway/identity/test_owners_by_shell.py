"""What an administrator does from a shell with the sessions of others, and with all that is theirs."""

from __future__ import annotations

import json
from pathlib import Path

from tests.conftest import StartGateway
from tests.support.commands import cellgate
from tests.support.server import GatewayProcess
from tests.support.users import create_token


def lines(gateway: GatewayProcess, *words: str) -> list[str]:
    done = cellgate(*words, "--data-dir", str(gateway.data_dir))
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.splitlines()


def refused(gateway: GatewayProcess, *words: str, token: str = "") -> str:
    given = ("--token", token) if token else ()
    done = cellgate(*words, *given, "--data-dir", str(gateway.data_dir))
    assert done.returncode == 2, done
    return done.stderr


def test_administrators_name_the_owner(start_gateway: StartGateway, tmp_path: Path) -> None:
    gateway = start_gateway()
    for name in ("ada", "bob"):
        lines(gateway, "user", "add", name)
    tokens = {name: create_token(gateway, name)[1] for name in ("ada", "bob")}
    for name, token in tokens.items():
        code = f"open('of.txt', 'w').write({name!r}); x = {name!r}"
        assert gateway.post("/v1/sessions/work/execute", {"code": code}, token=token).status == 200
    assert lines(gateway, "sessions") == ["No sessions."]
    head, *rows = lines(gateway, "sessions", "--principal", "*")
    assert "OWNER" in head
    assert [row.split()[0] for row in rows] == ["work", "work"]
    assert {row.split()[-1] for row in rows} == {"ada", "bob"}
    (model,) = json.loads("\n".join(lines(gateway, "session", "ls", "--principal", "ada", "--json")))
    assert (model["session"], model["principal"]) == ("work", "ada")
    of_ada = ("work", "--principal", "ada")
    assert "owner          ada" in lines(gateway, "session", "info", *of_ada)
    assert any("'ada'" in line for line in lines(gateway, "session", "variables", *of_ada))
    assert "of.txt" in lines(gateway, "files", "ls", *of_ada)[0]
    lines(gateway, "files", "get", "work", "of.txt", str(tmp_path / "got.txt"), "--principal", "ada")
    assert (tmp_path / "got.txt").read_text() == "ada"
    lines(gateway, "export", *of_ada, "-o", str(tmp_path / "ada.ipynb"))
    assert "x = 'ada'" in (tmp_path / "ada.ipynb").read_text()
    assert lines(gateway, "process", "ls", *of_ada) == ["No programs run in work."]
    assert "only the packages" in lines(gateway, "packages", "list", *of_ada)[0]
    said = refused(gateway, "session", "info", "work", "--principal", "*")
    assert "--principal '*' is for lists of sessions" in said
    assert "No such session" in refused(gateway, "session", "info", *of_ada, token=tokens["bob"])
    (ended,) = lines(gateway, "session", "end", *of_ada)
    assert ended == (
        f"ended: work; the record stays: cellgate export work --principal ada --data-dir {gateway.data_dir}"
    )
    assert gateway.get("/v1/sessions/work", token=tokens["bob"]).json()["state"] == "idle"


def test_all_that_is_recorded_of_one_principal_is_removed(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    """And no other's; the backup before it is checked, and so is the record after it."""
    gateway = start_gateway()
    lines(gateway, "user", "add", "ada")
    _, token = create_token(gateway, "ada")
    for session in ("one", "two"):
        gateway.post(f"/v1/sessions/{session}/execute", {"code": "1"}, token=token)
    gateway.execute("one", "2")
    backup = tmp_path / "backup.sqlite3"
    lines(gateway, "record", "backup", str(backup))
    found = lines(gateway, "verify", str(backup))
    assert [line for line in found if not line.startswith("valid ")] == []
    assert len(found) > 3
    assert "--principal NAME" in refused(gateway, "record", "purge")
    assert "--yes removes without asking" in refused(gateway, "record", "purge", "--principal", "ada")
    assert lines(gateway, "record", "purge", "--principal", "ada", "--yes") == ["purged: one", "purged: two"]
    assert lines(gateway, "record", "purge", "--principal", "ada", "--yes") == ["Nothing is recorded of ada"]
    assert gateway.get("/v1/sessions/one", token=token).status == 404
    assert gateway.get("/v1/sessions/one").status == 200
    assert lines(gateway, "verify") != []
    backup.write_bytes(backup.read_bytes()[:-4096])
    assert cellgate("verify", str(backup)).returncode != 0


def test_doctor_tells_of_the_gateway_that_serves(start_gateway: StartGateway) -> None:
    gateway = start_gateway(max_kernels=7)
    gateway.execute("s", "1")
    words = ("doctor", "--json", "--data-dir", str(gateway.data_dir))
    finding, *_ = json.loads(cellgate(*words).stdout)
    assert (finding["subject"], finding["outcome"]) == ("gateway", "ok")
    assert f"serves at {gateway.url} (process {gateway.process.pid})" in finding["found"]
    assert "1 live session, 1 of 7 kernels in use" in finding["found"]
