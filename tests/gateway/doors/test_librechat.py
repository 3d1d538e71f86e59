"""The door of LibreChat's Code Interpreter, called as its server and @librechat/agents call it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from cellgate.identity.principal import Reach, Role
from cellgate.identity.store.opening import open_users
from tests.conftest import NO_ENGINE, StartGateway, serving
from tests.support.commands import refusal
from tests.support.identity import signer
from tests.support.server import PATIENCE, TOKEN, GatewayProcess, until


@pytest.fixture(scope="module")
def gateway(sandbox: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with the door, which logs all requests."""
    folder = tmp_path_factory.mktemp("librechat") / "data"
    options = {"doors": "librechat", "cell_timeout": 20, "docker_url": NO_ENGINE, "log_level": "DEBUG"}
    with serving(folder, "sandbox", **options) as process:
        yield process


def base(gateway: GatewayProcess, token: str = TOKEN) -> str:
    """What LIBRECHAT_CODE_BASEURL is set to."""
    return f"{gateway.url}/librechat/key/{token}"


def run(gateway: GatewayProcess, code: str, lang: str = "py", **more: Any) -> Any:
    """As the tool of @librechat/agents does, which sends no token but that of its address."""
    body = {"lang": lang, "code": code, "user_id": "u", **more}
    answer = requests.post(f"{base(gateway)}/exec", json=body, timeout=PATIENCE)
    assert answer.status_code == 200, answer.text
    return answer.json()


def download(gateway: GatewayProcess, session: str, file: str) -> requests.Response:
    """As LibreChat gets files that a script has made."""
    return requests.get(f"{base(gateway)}/download/{session}/{file}?kind=user&id=u", timeout=PATIENCE)


def test_files_go_from_one_script_to_the_next(gateway: GatewayProcess) -> None:
    form = {"file": ("data.csv", b"1,2", "text/csv")}
    fields = {"kind": "user", "id": "u", "entity_id": "e"}
    sent = requests.post(f"{base(gateway)}/upload", files=form, data=fields, timeout=PATIENCE).json()
    assert sent["message"] == "success"
    (named,) = sent["files"]
    assert named["filename"] == "data.csv"
    given = [{"id": named["fileId"], "name": "data.csv", "storage_session_id": sent["session_id"]}]
    code = """
import os
text = open('/mnt/data/data.csv').read()
os.makedirs('/mnt/data/out', exist_ok=True)
open('/mnt/data/out/made.txt', 'w').write(text.upper() + '!')
open('/mnt/data/.hidden', 'w').write('x')
print('read', text)
'a value that nobody prints'
"""
    ran = run(gateway, code, files=given)
    assert (ran["stdout"], ran["stderr"]) == ("read 1,2\n", "")
    (made,) = ran["files"]
    assert (made["name"], made["storage_session_id"]) == ("out/made.txt", ran["session_id"])
    got = download(gateway, made["storage_session_id"], made["id"])
    assert (got.status_code, got.content) == (200, b"1,2!")
    next_one = run(
        gateway, "print(open('out/made.txt').read())\nopen('out/made.txt', 'a').write('?')", files=[made]
    )
    assert next_one["stdout"] == "1,2!\n"
    (changed,) = next_one["files"]
    assert changed["storage_session_id"] == next_one["session_id"] != made["storage_session_id"]
    assert download(gateway, changed["storage_session_id"], changed["id"]).content == b"1,2!?"
    assert download(gateway, made["storage_session_id"], made["id"]).content == b"1,2!", "as it was"
    place = f"{base(gateway)}/sessions/{made['storage_session_id']}/objects/{made['id']}"
    assert requests.get(place, timeout=PATIENCE).json()["lastModified"].endswith("Z")
    listed = requests.get(f"{base(gateway)}/files/{sent['session_id']}?detail=full", timeout=PATIENCE).json()
    assert [(each["id"], each["metadata"]["original-filename"]) for each in listed] == [
        (named["fileId"], "data.csv")
    ]
    until(lambda: gateway.get("/v1/info").json()["pool"]["in_use"] == 0, "kernels are left")


def test_each_script_begins_anew(gateway: GatewayProcess) -> None:
    assert run(gateway, "x = 1; print(x)")["stdout"] == "1\n"
    failed = run(gateway, "open('lost.txt', 'w').write('1')\nprint(x)")
    assert failed["stderr"].endswith("NameError: name 'x' is not defined\n")
    assert failed["files"] == []
    assert run(gateway, "import sys; print(sys.argv[1:])", args=["a", "b c"])["stdout"] == "['a', 'b c']\n"


@pytest.mark.parametrize(
    ("lang", "code"),
    [
        ("bash", "echo $((6 * 7))"),
        ("js", "console.log(6 * 7)"),
        ("ts", "const n: number = 42; console.log(n)"),
    ],
)
def test_other_languages_run(gateway: GatewayProcess, lang: str, code: str) -> None:
    assert run(gateway, code, lang)["stdout"] == "42\n"


def test_what_is_wrong_is_said_before_anything_runs(gateway: GatewayProcess) -> None:
    wrong: tuple[dict[str, object], ...] = (
        {"lang": "cobol", "code": ""},
        {"lang": "py"},
        {"lang": "bash", "code": "", "args": ["x"]},
        {"lang": "py", "code": "\0"},
        {"lang": "py", "code": "", "files": [{"id": "YQ", "name": "../a", "storage_session_id": "s"}]},
    )

    def newest() -> str:
        return str(gateway.get("/v1/sessions?newest=true&limit=1").json()["sessions"][0]["session"])

    run(gateway, "")
    before = newest()
    for body in wrong:
        answer = requests.post(f"{base(gateway)}/exec", json=body, timeout=PATIENCE)
        assert (answer.status_code, answer.json()["error"]) == (400, "bad_request")
    answer = requests.post(f"{base(gateway)}/exec/programmatic", json={}, timeout=PATIENCE)
    assert answer.status_code == 501
    for session, file in (("nobody", "YQ"), ("nobody", "a.b")):
        assert download(gateway, session, file).status_code == 404
    assert newest() == before


def test_the_key_of_the_address_is_kept_out_of_logs(gateway: GatewayProcess) -> None:
    secret = "a-key-that-no-log-may-have"
    for path in ("exec", "upload", "nowhere", "exec/programmatic"):
        answer = requests.post(f"{base(gateway, secret)}/{path}", json={}, timeout=PATIENCE)
        assert answer.status_code in {401, 404}
        assert secret not in answer.text
    door = base(gateway).partition("/librechat")[0] + "/librechat"
    mistaken = [f"{door}/keys/{secret}/exec", f"{door}/{secret}/exec", f"{door}/exec/{secret}"]
    elsewhere = [f"{gateway.url}/v1/sessions/{TOKEN}", f"{gateway.url}/{TOKEN}/exec", f"{door}/{TOKEN}"]
    for url in (*mistaken, *elsewhere):
        assert requests.post(url, json={}, timeout=PATIENCE).status_code in {401, 404, 405}
    run(gateway, "1")
    assert download(gateway, "nobody", "YQ").status_code == 404
    log = gateway.log.read_text()
    assert "/librechat/key/.../exec" in log
    trail = gateway.get("/v1/audit").body.decode()
    for text in (log, trail):
        assert secret not in text
        assert TOKEN not in text


def test_users_have_files_of_their_own(start_gateway: StartGateway) -> None:
    gateway = start_gateway(doors="librechat")
    with open_users(gateway.data_dir, create=True) as store:
        tokens = {}
        for name in ("ada", "bob"):
            store.add_user(name, Role.USER)
            tokens[name] = store.create_token(name, reach=Reach())[1]
        tokens["one"] = store.create_token("ada", reach=Reach("s", exact=True))[1]
    form = {"file": ("a.txt", b"of ada")}
    sent = requests.post(f"{base(gateway, tokens['ada'])}/upload", files=form, timeout=PATIENCE).json()
    path = f"download/{sent['session_id']}/{sent['files'][0]['fileId']}"
    assert requests.get(f"{base(gateway, tokens['ada'])}/{path}", timeout=PATIENCE).content == b"of ada"
    for name in ("bob", "one"):
        assert requests.get(f"{base(gateway, tokens[name])}/{path}", timeout=PATIENCE).status_code == 404
    for path in ("exec", "upload"):
        more: dict[str, Any] = {"files": form} if path == "upload" else {"json": {"lang": "py", "code": "1"}}
        answer = requests.post(f"{base(gateway, tokens['one'])}/{path}", timeout=PATIENCE, **more)
        assert (answer.status_code, answer.json()["error"]) == (403, "forbidden")


LIBRECHAT = signer("EdDSA", "lc-codeapi-2026-05")


def headers_of(user: str) -> dict[str, str]:
    """What LibreChat sends with CODEAPI_JWT_ENABLED."""
    now = int(time.time())
    times = {"iat": now, "nbf": now, "exp": now + 300}
    whose = {"iss": "librechat", "aud": "codeapi", "sub": user, "tenant_id": "legacy", "role": "ADMIN"}
    more = {"jti": "x", "principal_source": "librechat_jwt", "auth_context_hash": "x"}
    return {"Authorization": f"Bearer {LIBRECHAT.sign(times | whose | more, {'typ': 'JWT'})}"}


def test_each_user_of_librechat_is_a_user_here(start_gateway: StartGateway, tmp_path: Path) -> None:
    key = tmp_path / "librechat.pem"
    key.write_bytes(LIBRECHAT.pem())
    quotas = tmp_path / "quotas.toml"
    quotas.write_text(
        '[roles.user]\nsessions = 3\n\n[principals."librechat:legacy:carl"]\nrequests_per_minute = 1\n'
    )
    gateway = start_gateway(doors="librechat", librechat_key=str(key), quotas=str(quotas), log_level="DEBUG")
    place = f"{gateway.url}/librechat"
    ada, bob, carl = (headers_of(name) for name in ("ada", "bob", "carl"))

    form = {"file": ("a.txt", b"of ada")}
    sent = requests.post(f"{place}/upload", files=form, headers=ada, timeout=PATIENCE).json()
    path = f"{place}/download/{sent['session_id']}/{sent['files'][0]['fileId']}"
    assert requests.get(path, headers=ada, timeout=PATIENCE).content == b"of ada"
    given = [{"id": sent["files"][0]["fileId"], "name": "a.txt", "storage_session_id": sent["session_id"]}]
    body = {"lang": "py", "code": "print(open('a.txt').read())", "files": given}
    ran = requests.post(f"{place}/exec", json=body, headers=ada, timeout=PATIENCE)
    assert (ran.status_code, ran.json()["stdout"]) == (200, "of ada\n")
    # Another user finds nothing, and none of them more than the door is for.
    # A token in the address is no help.
    assert requests.get(path, headers=bob, timeout=PATIENCE).status_code == 404
    with_token = path.replace("/librechat/", f"/librechat/key/{TOKEN}/")
    assert requests.get(with_token, headers=ada, timeout=PATIENCE).content == b"of ada"
    assert requests.get(with_token, headers=bob, timeout=PATIENCE).status_code == 404
    for user in (bob, carl):
        assert requests.post(f"{place}/exec", json=body, headers=user, timeout=PATIENCE).status_code == 404
    assert requests.get(f"{gateway.url}/v1/sessions", headers=ada, timeout=PATIENCE).status_code == 403
    answer = requests.post(f"{place}/exec", json={"lang": "py", "code": "1"}, headers=carl, timeout=PATIENCE)
    assert (answer.status_code, answer.json()["error"]) == (429, "rate_limited")

    owned = gateway.get(f"/v1/sessions/{ran.json()['session_id']}?principal=librechat:legacy:ada").json()
    assert owned["metadata"] == {"door": "librechat"}
    secret = ada["Authorization"].removeprefix("Bearer ")
    for text in (gateway.log.read_text(), gateway.get("/v1/audit").body.decode()):
        assert secret not in text


def test_without_its_key_librechats_tokens_are_unknown(gateway: GatewayProcess, tmp_path: Path) -> None:
    answer = requests.post(
        f"{gateway.url}/librechat/exec", json={}, headers=headers_of("ada"), timeout=PATIENCE
    )
    assert (answer.status_code, answer.json()["error"]) == (401, "not_authenticated")
    code, said = refusal("--librechat-key=x.pem", f"--data-dir={tmp_path}", "--backend=process")
    assert (code, "--librechat-key needs --doors librechat" in said) == (2, True)
