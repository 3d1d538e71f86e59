"""Who may ask, from where, with what token; and where the token never is."""

from __future__ import annotations

import base64
import json
import re
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.wire.owner import OWNER
from tests.conftest import StartGateway, serving
from tests.support.commands import INSTALLED, announced, environment, refusal, serve
from tests.support.requirements import require
from tests.support.server import TOKEN, GatewayProcess, Response, until
from tests.support.terminal import Terminal

PAGE = "https://notebooks.example.org"


def starting(data_dir: Path, *words: str) -> list[str]:
    """The words of a ``cellgate serve`` that disturbs no other and starts no kernel by itself."""
    return ["--port=0", f"--data-dir={data_dir}", "--pool-size=0", *words]


def client(url: str) -> GatewayProcess:
    """A client of a gateway that was started otherwise; it can't be stopped by it."""
    found = GatewayProcess.__new__(GatewayProcess)
    found.url, found.host = url, url.removeprefix("http://")
    return found


def block(process: subprocess.Popen[str]) -> str:
    """What the gateway prints at its start."""
    assert process.stdout is not None
    text = ""
    while "Stop:" not in text:
        line = process.stdout.readline()
        assert line, "the gateway has ended"
        text += line
    return text


def unauthenticated(answer: Response) -> None:
    assert (answer.status, answer.reason) == (401, "not_authenticated")
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")


# ---- tokens ------------------------------------------------------------------------------------------------

MISPLACED = [
    ("", {"Authorization": TOKEN}, "must begin with the word Bearer"),
    ("", {"Authorization": f"JWT {TOKEN}"}, "must begin with the word Bearer"),
    ("", {"Authorization": "Bearer "}, "no token in the Authorization header"),
    ("", {"Authorization": f"Basic {base64.b64encode(f'{TOKEN}:'.encode()).decode()}"}, "as its password"),
    ("", {"X-API-Key": TOKEN}, "X-API-Key is not read"),
    (f"?api_key={TOKEN}", {}, "api_key is not read"),
]


@pytest.mark.parametrize(("query", "headers", "told"), MISPLACED, ids=[told for *_, told in MISPLACED])
def test_a_token_in_another_place_is_told_of(
    gateway: GatewayProcess, query: str, headers: dict[str, str], told: str
) -> None:
    answer = gateway.get(f"/v1/info{query}", headers=headers, token=None)
    unauthenticated(answer)
    assert told in answer.json()["detail"]
    assert "Authorization: Bearer TOKEN" in answer.json()["detail"]
    assert TOKEN not in answer.body.decode()


GUARDED = [("GET", "/v1/info"), ("POST", "/v1/sessions"), ("GET", "/v1/nope"), ("GET", "/nope")]
"""Beside all other paths that there are, which `test_access` has."""


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_nothing_is_done_and_nothing_told_without_a_token(
    gateway: GatewayProcess, method: str, path: str
) -> None:
    before = gateway.get("/v1/sessions").body
    body = {"code": "1"} if method == "POST" else None
    unauthenticated(gateway.request(method, path, body, token=None))
    unauthenticated(gateway.request(method, path, body, token="not-the-token"))
    assert gateway.get("/v1/sessions").body == before


@pytest.mark.parametrize(
    "authorization",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Bearer{TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN.upper()}",
        f"Bearer {TOKEN} {TOKEN}",
        f"Bearer ,{TOKEN}",
        f"Basic {TOKEN}",
        f"Digest {TOKEN}",
        TOKEN,
        "Bearer é",
        "Bearer " + "x" * 30_000,
    ],
    ids=lambda value: value[:12],
)
def test_what_is_almost_a_token_is_none(gateway: GatewayProcess, authorization: str) -> None:
    unauthenticated(gateway.get("/v1/info", token=None, headers={"Authorization": authorization}))


@pytest.mark.parametrize("query", ["token=", f"token={TOKEN}x", "token=x", f"Token={TOKEN}", f"t={TOKEN}"])
def test_a_wrong_token_in_the_query_is_refused(gateway: GatewayProcess, query: str) -> None:
    unauthenticated(gateway.get(f"/v1/info?{query}", token=None))


@pytest.mark.parametrize(
    "authorization", [f"Bearer {TOKEN}", f"token {TOKEN}", f"bearer {TOKEN}", f"TOKEN  {TOKEN}"]
)
def test_the_token_is_taken_in_each_scheme(gateway: GatewayProcess, authorization: str) -> None:
    assert gateway.get("/v1/info", token=None, headers={"Authorization": authorization}).status == 200


def test_the_token_is_taken_from_the_query(gateway: GatewayProcess) -> None:
    assert gateway.get(f"/v1/info?token={TOKEN}", token=None).status == 200


def test_a_refusal_says_what_to_do_and_repeats_no_token(gateway: GatewayProcess) -> None:
    missing = gateway.get("/v1/info", token=None)
    assert "Authorization: Bearer" in missing.json()["detail"]
    assert b"wrong-secret" not in gateway.get("/v1/info", token="wrong-secret").body


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_probes_need_no_token(gateway: GatewayProcess, path: str) -> None:
    until(lambda: gateway.get(path, token=None).status == 200, "not ready")
    assert gateway.get(path, token="wrong").status == 200


# ---- hosts -------------------------------------------------------------------------------------------------

OWN_HOSTS = [
    "localhost",
    "localhost:8888",
    "LOCALHOST",
    "127.0.0.1",
    "127.0.0.1:1",
    "127.8.9.1",
    "[::1]",
    "[::1]:80",
]
FOREIGN_HOSTS = [
    "evil.example",
    "evil.example:8888",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "notlocalhost",
    "0.0.0.0",
    "10.0.0.1",
    "169.254.169.254",
    "2130706433",
    "[::2]",
    "[::1",
    "::1",
    ":8888",
    "*",
]
NO_HOSTS = ["127.0.0.1@evil.example", "evil.example#127.0.0.1", "evil.example/127.0.0.1"]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_a_loopback_host_is_served(gateway: GatewayProcess, host: str) -> None:
    assert gateway.get("/v1/info", headers={"Host": host}).status == 200


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
def test_a_foreign_host_is_refused_even_with_the_token(gateway: GatewayProcess, host: str) -> None:
    """What a browser sends after a foreign name was rebound to this address."""
    before = gateway.get("/v1/sessions").body
    for method, path in (
        ("GET", "/v1/info"),
        ("POST", "/v1/sessions"),
        ("POST", "/v1/execute"),
        ("GET", "/nope"),
    ):
        answer = gateway.request(method, path, {"code": "1"}, headers={"Host": host})
        assert (answer.status, answer.reason) == (403, "forbidden")
        assert b"sandbox" not in answer.body
    assert gateway.get("/v1/sessions").body == before


@pytest.mark.parametrize("host", NO_HOSTS)
def test_what_is_no_host_is_refused_before_anything_is_looked_at(gateway: GatewayProcess, host: str) -> None:
    for method, path in (("GET", "/v1/info"), ("POST", "/v1/execute")):
        answer = gateway.request(method, path, {"code": "1"}, headers={"Host": host})
        assert (answer.status, answer.reason) == (400, "bad_request")


def test_a_foreign_host_learns_how_to_be_allowed(gateway: GatewayProcess) -> None:
    answer = gateway.get("/v1/info", headers={"Host": "evil.example"})
    assert (answer.status, answer.reason) == (403, "forbidden")
    assert "--allow-host" in answer.json()["detail"]


@pytest.fixture(scope="module")
def allowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with a name of its own, and a web page that may use it."""
    data = tmp_path_factory.mktemp("allowing") / "data"
    with serving(data, pool_size=0, allowed_hosts="gate.example.org", allowed_origins=PAGE) as gateway:
        yield gateway


@pytest.mark.parametrize(
    "host", ["gate.example.org", "gate.example.org:443", "GATE.example.org", "localhost"]
)
def test_an_allowed_host_is_served(allowing: GatewayProcess, host: str) -> None:
    assert allowing.get("/v1/info", headers={"Host": host}).status == 200


@pytest.mark.parametrize("host", ["example.org", "x.gate.example.org", "gate.example.org.evil.example"])
def test_an_allowed_host_allows_no_other(allowing: GatewayProcess, host: str) -> None:
    assert allowing.get("/v1/info", headers={"Host": host}).status == 403


# ---- origins -----------------------------------------------------------------------------------------------


def test_the_own_origin_is_served(gateway: GatewayProcess) -> None:
    answer = gateway.get("/v1/info", headers={"Origin": gateway.url})
    assert answer.status == 200
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize(
    "origin",
    [PAGE, "http://evil.example", "http://127.0.0.1:1", "null", "", "file://", "nonsense", "http://[::1"],
)
def test_a_foreign_origin_is_refused_even_with_the_token(gateway: GatewayProcess, origin: str) -> None:
    before = gateway.get("/v1/sessions").body
    for method, path in (("GET", "/v1/info"), ("POST", "/v1/sessions"), ("OPTIONS", "/v1/sessions")):
        answer = gateway.request(method, path, {} if method == "POST" else None, headers={"Origin": origin})
        assert (answer.status, answer.reason) == (403, "forbidden"), (method, answer.body)
        assert "--allow-origin" in answer.json()["detail"]
        assert not any(name.lower().startswith("access-control") for name in answer.headers)
    assert gateway.get("/v1/sessions").body == before


def test_an_allowed_origin_is_served_and_may_read_the_answer(allowing: GatewayProcess) -> None:
    answer = allowing.get("/v1/info", headers={"Origin": PAGE})
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert "Origin" in answer.headers["Vary"]


@pytest.mark.parametrize(
    ("path", "token", "status"),
    [("/v1/sessions/..", TOKEN, 400), ("/v1/nope", TOKEN, 404), ("/v1/info", "no", 401)],
)
def test_an_allowed_origin_may_read_refusals_too(
    allowing: GatewayProcess, path: str, token: str, status: int
) -> None:
    answer = allowing.get(path, token=token, headers={"Origin": PAGE})
    assert answer.status == status
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE


def words(header: str | None) -> set[str]:
    """The items of a header's list."""
    return set(re.split(r",\s*", header or ""))


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/sessions", {"GET", "HEAD", "POST"}),
        ("/v1/sessions/x", {"GET", "HEAD", "PATCH", "DELETE"}),
        ("/v1/sessions/x/execute", {"POST"}),
        ("/v1/sessions/x/files", {"GET", "HEAD", "POST"}),
        ("/v1/sessions/x/files/a/b.csv", {"GET", "HEAD", "POST", "PUT", "DELETE"}),
        ("/api/sessions/x", {"GET", "HEAD", "PATCH", "DELETE"}),
    ],
)
def test_a_preflight_is_answered_without_a_token_with_the_resource_s_methods(
    allowing: GatewayProcess, path: str, methods: set[str]
) -> None:
    headers = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,content-type,idempotency-key",
    }
    answer = allowing.request("OPTIONS", path, token=None, headers=headers)
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == PAGE
    assert words(answer.headers["Access-Control-Allow-Methods"]) == methods
    assert {"Authorization", "Content-Type"} <= words(answer.headers["Access-Control-Allow-Headers"])
    assert "Origin" in words(answer.headers["Vary"])
    assert "Access-Control-Allow-Credentials" not in answer.headers


def test_a_page_of_an_allowed_origin_uploads_and_reads_what_it_needs(allowing: GatewayProcess) -> None:
    """As a browser does it: a preflight, then the request if the preflight's answer allows it."""
    path = "/v1/sessions/page/files/a.txt"

    def fetch(method: str, path: str, body: object = None, **headers: str) -> Response:
        asked = ["authorization", "content-type", *(name.lower() for name in headers)]
        preflight = allowing.request(
            "OPTIONS",
            path,
            token=None,
            headers={
                "Origin": PAGE,
                "Access-Control-Request-Method": method,
                "Access-Control-Request-Headers": ",".join(asked),
            },
        )
        assert preflight.status == 204
        assert preflight.headers["Access-Control-Allow-Origin"] == PAGE
        assert method in words(preflight.headers["Access-Control-Allow-Methods"])
        assert set(asked) <= words(preflight.headers["Access-Control-Allow-Headers"].lower())
        answer = allowing.request(method, path, body, headers={"Origin": PAGE, **headers})
        assert answer.headers["Access-Control-Allow-Origin"] == PAGE
        assert "Access-Control-Allow-Credentials" not in answer.headers
        return answer

    made = fetch("POST", "/v1/sessions", {"session": "page"})
    assert made.status == 201
    assert {
        name for name in made.headers if name in words(made.headers["Access-Control-Expose-Headers"])
    } == {OWNER, "Location"}
    octets = {"Content-Type": "application/octet-stream"}
    assert fetch("PUT", path, b"0123456789", **octets).status == 201
    part = fetch("GET", path, Range="bytes=2-4")
    assert (part.status, part.body) == (206, b"234")
    read = {"Etag", "Content-Range", "Content-Disposition", "Accept-Ranges"}
    readable = {name.lower() for name in words(part.headers["Access-Control-Expose-Headers"])}
    assert {name.lower() for name in read} <= readable & {name.lower() for name in part.headers}
    assert fetch("GET", path, **{"If-None-Match": part.headers["Etag"]}).status == 304
    assert fetch("DELETE", "/v1/sessions/page").status == 204


def test_answers_differ_by_origin_only_where_an_origin_is_allowed(
    allowing: GatewayProcess, gateway: GatewayProcess
) -> None:
    assert "Origin" in words(allowing.get("/v1/info").headers["Vary"])
    assert "Vary" not in gateway.get("/v1/info").headers


@pytest.mark.parametrize(
    "origin", ["https://example.org", f"{PAGE}.evil.example", PAGE.replace("https", "http"), "null"]
)
def test_an_allowed_origin_allows_no_other(allowing: GatewayProcess, origin: str) -> None:
    assert allowing.get("/v1/info", headers={"Origin": origin}).status == 403


# ---- where the token is not --------------------------------------------------------------------------------


def test_no_token_right_or_wrong_gets_into_the_log(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=0, log_level="DEBUG")
    wrong = "somebody-elses-secret"
    for token in (TOKEN, wrong):
        for path in ("/v1/info", "/v1/nope", "/v1/sessions/..", "/v1/sessions", "/healthz"):
            gateway.get(f"{path}?token={token}", token=None)
            gateway.get(path, token=token)
            gateway.post(path, b"{", token=token)
            gateway.get(path, token=token, headers={"Host": "evil.example"})
        gateway.get("/v1/info", token=None, headers={"Authorization": f"Basic {token}"})
        gateway.get(f"/v1/info?token={token}%FF", token=None)
    assert gateway.stop() == 0
    log = gateway.log.read_text()
    assert "/v1/nope" in log
    assert TOKEN not in log
    assert wrong not in log


LOOK = """
import os
from pathlib import Path
needle = "-".join(["a", "token", "for", "tests"]).encode()
def holds(path):
    try:
        return needle in path.read_bytes()
    except OSError:
        return False
found = [name for name, value in os.environ.items() if needle.decode() in value]
for folder in Path("/proc").iterdir():
    if folder.name.isdigit():
        found += [str(folder / name) for name in ("environ", "cmdline") if holds(folder / name)]
for folder in ("/run", Path.home(), "/workspace"):
    for path in Path(folder).rglob("*"):
        if path.is_file() and holds(path):
            found.append(str(path))
print(found, [name for name in os.environ if name.startswith("CELLGATE")])
"""


def test_a_sandboxed_kernel_finds_the_token_nowhere(gateway: GatewayProcess, session: str) -> None:
    """Not in its environment, not in any process that it sees, not in any file of its own."""
    if gateway.get("/v1/info").json()["isolation"] == "none":
        require("sandbox", "kernels are not isolated here")
    result = gateway.execute(session, LOOK)
    assert result["status"] == "ok", result["text"]
    assert result["text"].strip() == "[] []"


def test_no_kernel_inherits_the_gateway_s_environment(tmp_path: Path) -> None:
    """Not even one without isolation, when the token came by a variable."""
    data = tmp_path / "data"
    secrets = {"CELLGATE_TOKEN": TOKEN, "AWS_SECRET_ACCESS_KEY": "a-cloud-secret"}
    with serve(*starting(data, "--backend=process"), **secrets) as process:
        known = announced(data, process)
        assert known["token"] == TOKEN
        seen = client(known["url"])
        result = seen.execute("a", "import os; print(dict(os.environ))")
        assert result["status"] == "ok"
        assert not any(word in result["text"] for word in ("CELLGATE", TOKEN, "a-cloud-secret"))


# ---- the start ---------------------------------------------------------------------------------------------


def test_without_a_token_one_is_made_and_its_file_is_named_with_all_one_needs(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serve(*starting(data, "--backend=process")) as process:
        text = block(process)
        known = announced(data, process)
        assert f"serves at {known['url']}" in text
        lines = dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split()) == 2)
        assert f"    token      a new one, in {data / 'gateway.json'}\n" in text
        # What a service prints is kept in a log, which others read.
        assert known["token"] not in text
        assert lines["backend"] == "process"
        assert lines["isolation"] == "none"
        assert "WARNING" in text
        assert len(known["token"]) >= 32
        seen = client(known["url"])
        assert seen.get("/v1/info", token=known["token"]).status == 200
        unauthenticated(seen.get("/v1/info", token=None))
    with serve(*starting(data, "--backend=process")) as process:
        assert announced(data, process)["token"] != known["token"], "each start makes a new token"


def test_a_terminal_shows_the_token_that_was_made(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = [INSTALLED, "serve", *starting(data, "--backend=process")]
    with Terminal(words, tmp_path, environment()) as terminal:
        shown = terminal.until("Stop:").replace("\r", "")
        known = announced(data, terminal.process)
        assert re.search(rf"^ +token +{re.escape(known['token'])}$", shown, re.MULTILINE)
        terminal.send("\x03")
        assert terminal.ended() == 0


def test_a_given_token_is_not_printed(gateway: GatewayProcess) -> None:
    text = gateway.log.read_text()
    assert gateway.url in text
    assert TOKEN not in text


def test_the_token_s_file_is_the_user_s_alone(gateway: GatewayProcess, tmp_path: Path) -> None:
    path = gateway.data_dir / "gateway.json"
    assert json.loads(path.read_text())["token"] == TOKEN
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(gateway.data_dir.stat().st_mode) == 0o700
    # Also in a folder that others may read, and over a file that they could.
    data = tmp_path / "data"
    data.mkdir(mode=0o755)
    (data / "gateway.json").write_text("{}")
    (data / "gateway.new").write_text("{}")
    (data / "gateway.new").chmod(0o644)
    with serve(*starting(data, "--backend=process")) as process:
        block(process)
        announced(data, process)
        assert stat.S_IMODE((data / "gateway.json").stat().st_mode) == 0o600
    assert not (data / "gateway.json").exists()


def test_without_authentication_nobody_needs_a_token_on_loopback(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with serve(*starting(data, "--backend=process", "--no-auth")) as process:
        assert "none is asked for" in block(process)
        seen = client(announced(data, process)["url"])
        assert seen.get("/v1/info", token=None).status == 200
        assert seen.get("/v1/info", token="any").status == 200
        assert seen.get("/v1/info", token=None, headers={"Host": "evil.example"}).status == 403
        assert seen.get("/v1/info", token=None, headers={"Origin": "http://evil.example"}).status == 403


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "localhost.example.org"])
def test_without_authentication_no_other_machine_is_served(tmp_path: Path, address: str) -> None:
    words = ("--no-auth", f"--ip={address}", "--allow-unsandboxed")
    code, error = refusal(*starting(tmp_path / "data", *words))
    assert code == 2
    assert "without a token" in error
    assert address in error


def test_kernels_without_isolation_are_served_to_no_other_machine(tmp_path: Path) -> None:
    code, error = refusal(*starting(tmp_path / "data", "--backend=process", "--ip=0.0.0.0"))
    assert code == 2
    assert "--allow-unsandboxed" in error
    assert "0.0.0.0" in error


def test_kernels_without_isolation_are_served_to_others_when_one_insists(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = ("--backend=process", "--ip=0.0.0.0", "--allow-unsandboxed")
    with serve(*starting(data, *words)) as process:
        assert "NOT ISOLATED" in block(process)
        assert announced(data, process)["url"].startswith("http://127.0.0.1:")


@pytest.mark.parametrize("token", ["short", "with\nnewline", "with a space", "ümläut-token"])
def test_a_token_that_no_header_carries_is_refused(tmp_path: Path, token: str) -> None:
    code, error = refusal(*starting(tmp_path / "data", "--backend=process", f"--token={token}"))
    assert code == 2
    assert "token" in error
    assert token not in error
