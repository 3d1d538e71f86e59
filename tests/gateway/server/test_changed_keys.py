"""Keys and tokens that change while a gateway serves: what ends with the former one, and what goes on."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tornado.httpclient import HTTPRequest

from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.gateway.console.conftest import Browser
from tests.support.commands import cellgate, refusal
from tests.support.server import TOKEN, GatewayProcess, until
from tests.support.websockets import websocket

ANOTHER = "another-token-of-the-operator"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text(f"{TOKEN}\n")
    return file


@pytest.fixture
def gateway(tmp_path: Path, file: Path) -> Iterator[GatewayProcess]:
    with serving(tmp_path / "data", docker_url=NO_ENGINE, token_file=file, log_level="INFO") as process:
        yield process


def change(gateway: GatewayProcess, file: Path, token: str) -> None:
    """Put another token into the file, and wait until it counts."""
    draft = file.with_suffix(".new")
    draft.write_text(token)
    draft.replace(file)
    until(lambda: gateway.get("/v1/me", token=token).status == 200, "the new token is not taken")


async def test_what_the_former_token_has_opened_ends_with_it(gateway: GatewayProcess, file: Path) -> None:
    assert gateway.execute("s", "x = 6")["status"] == "ok"
    browser = Browser(gateway)
    browser.enter()
    assert browser.me() == "default"
    address = gateway.url.replace("http", "ws") + "/v1/sessions/s/ws?after=1000"
    async with websocket(HTTPRequest(address, headers={"Authorization": f"Bearer {TOKEN}"})) as opened:
        change(gateway, file, ANOTHER)
        assert await opened.read_message() is None
    assert gateway.get("/v1/me").status == 401
    assert browser.me() == 401
    assert gateway.post("/v1/sessions/s/execute", {"code": "x * 7"}, token=ANOTHER).json()["text"] == "42"
    change(gateway, file, TOKEN)
    assert gateway.get("/v1/me", token=ANOTHER).status == 401
    assert browser.me() == 401


def test_commands_of_the_same_user_have_the_new_token_at_once(gateway: GatewayProcess, file: Path) -> None:
    def announced() -> str:
        return str(json.loads((gateway.data_dir / "gateway.json").read_text())["token"])

    assert announced() == TOKEN
    change(gateway, file, f"{ANOTHER}\r\n".strip())
    until(lambda: announced() == ANOTHER, "gateway.json has the former token")
    assert cellgate("exec", "print(6 * 7)", f"--data-dir={gateway.data_dir}").stdout == "42\n"
    change(gateway, file, TOKEN)


def test_a_file_without_a_good_token_changes_nothing_and_no_log_shows_one(
    gateway: GatewayProcess, file: Path
) -> None:
    for content, problem in (
        ("", "at least 8 printable ASCII characters"),
        ("with spaces in it", "no spaces"),
        ("x" * 5000, "larger than a token can be"),
    ):
        file.write_text(content)
        until(lambda: problem in gateway.log.read_text(), "the problem is not logged")  # noqa: B023
        assert gateway.get("/v1/me").status == 200
    file.unlink()
    until(lambda: "can't be read: No such file" in gateway.log.read_text(), "the problem is not logged")
    assert gateway.get("/v1/me").status == 200
    change(gateway, file, ANOTHER)
    change(gateway, file, TOKEN)
    log = gateway.log.read_text()
    # An empty file and one with spaces have the same fault.
    assert log.count("The gateway keeps the former token: ") == 3
    assert log.count("The gateway took the token of ") == 2
    assert not [word for word in (TOKEN, ANOTHER, "with spaces") if word in log]
    assert "token      the one you gave" in log


def test_a_token_and_a_file_of_one_are_not_given_together(tmp_path: Path, file: Path) -> None:
    words = ("--backend=process", f"--data-dir={tmp_path / 'data'}", f"--token-file={file}")
    for other, named in (("--token=given-on-the-line", "--token, or CELLGATE_TOKEN"), ("--no-auth",) * 2):
        code, said = refusal(*words, other)
        assert (code, said) == (2, f"cellgate: --token-file, or {named}: not both\n")
    file.write_text("short")
    code, said = refusal(*words)
    assert (code, said) == (
        2,
        f"cellgate: {file}: the token must have at least 8 printable ASCII characters, and no spaces\n",
    )


def test_secrets_are_found_while_and_after_their_key_is_replaced(
    start_gateway: StartGateway, tmp_path: Path
) -> None:
    data = tmp_path / "data"
    folder = f"--data-dir={data}"

    def put(value: str) -> None:
        done = cellgate("secret", "set", "API_KEY", "--user=default", folder, stdin=value)
        assert (done.returncode, done.stderr) == (0, "")

    put("sk-live-0123456789")
    gateway = start_gateway(data)
    body = {"session": "s", "secrets": ["API_KEY"]}
    assert gateway.post("/v1/sessions", body, timeout=120).status == 201
    former = (data / "secrets.key").read_bytes()
    done = cellgate("secret", "rekey", folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 secret is encrypted anew\n", "")
    key = data / "secrets.key"
    assert (key.stat().st_mode & 0o777, len(key.read_bytes())) == (0o600, 32)
    assert key.read_bytes() != former
    code = "import os\nprint(os.environ['API_KEY'], len(os.environ['API_KEY']), end='')"
    assert gateway.execute("s", code)["text"] == "[secret API_KEY] 18"
    assert gateway.post("/v1/sessions", {**body, "session": "next"}, timeout=120).status == 201
    assert gateway.execute("next", code)["text"] == "[secret API_KEY] 18"
    trail = cellgate("record", "trail", folder).stdout
    assert trail.count('act="secrets_rekeyed"') == 1


def test_an_export_of_a_replaced_key_stays_valid(start_gateway: StartGateway, tmp_path: Path) -> None:
    data = tmp_path / "data"
    folder = f"--data-dir={data}"
    first = cellgate("record", "key", "--create", folder).stdout.strip()
    gateway = start_gateway(data)
    gateway.execute("s", "1")
    files = [tmp_path / "former.zip", tmp_path / "between.zip", tmp_path / "now.zip"]

    def export(file: Path) -> None:
        assert cellgate("export", "s", "--bundle", "-o", file, folder).returncode == 0

    export(files[0])
    done = cellgate("record", "key", "--rotate", folder)
    assert "from its next start on" in done.stderr
    second, listed = done.stdout.splitlines()
    assert second != first
    assert listed.startswith(f"{first}  until 20")
    assert (data / "signing.former").stat().st_mode & 0o777 == 0o600
    export(files[1])
    assert gateway.stop() == 0
    start_gateway(data)
    export(files[2])
    told = cellgate("verify", *files).stdout.splitlines()
    assert [line.rpartition("signed by ")[2].rstrip(")") for line in told] == [first, first, second]
    assert cellgate("verify", *files, "--key", f"{first},{second}").returncode == 0
    assert cellgate("verify", files[2], "--key", first).returncode == 1
    third = cellgate("record", "key", "--rotate", folder).stdout.split()[0]
    shown = cellgate("record", "key", folder)
    assert [line.split()[0] for line in shown.stdout.splitlines()] == [third, second, first]
    assert shown.stderr == ""
    code = cellgate("record", "key", "--rotate", "--create", folder)
    assert (code.returncode, "not both" in code.stderr) == (2, True)
    code = cellgate("record", "key", "--rotate", f"--data-dir={tmp_path / 'none'}")
    assert (code.returncode, "has no signing key" in code.stderr) == (2, True)
