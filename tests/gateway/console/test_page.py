"""The console's page and its files: the same for everybody, under strict policies, and nothing else there."""

from __future__ import annotations

import gzip
from collections.abc import Iterator

import pytest

from cellgate.console.assets import FRAME, PAGE, STATIC
from tests.conftest import serving
from tests.gateway.console.conftest import HTML, Browser, ticket_path
from tests.support.server import TOKEN, GatewayProcess

BASE = "/services/cellgate"


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    with serving(tmp_path_factory.mktemp("below") / "data", base_url=BASE) as process:
        yield process


def policy_of(headers: object) -> dict[str, str]:
    """A content security policy, by directive."""
    text = headers["Content-Security-Policy"]  # type: ignore[index]
    return dict(part.strip().partition(" ")[::2] for part in text.split(";"))


@pytest.mark.parametrize("accept", [None, "*/*", HTML, "text/*", "application/json, text/plain, */*"])
def test_the_page_is_at_the_root_for_everybody(gateway: GatewayProcess, accept: str | None) -> None:
    headers = {} if accept is None else {"Accept": accept}
    answer = gateway.get("/", token=None, headers=headers)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert answer.body == (STATIC / PAGE).read_bytes()
    assert "Set-Cookie" not in answer.headers
    policy = policy_of(answer.headers)
    assert policy["script-src"] == f"{gateway.url}/console/"
    assert policy["frame-ancestors"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
    assert answer.headers["Referrer-Policy"] == "same-origin"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("accept", ["application/json", "application/problem+json, text/plain", "image/*"])
def test_a_program_finds_nothing_there(gateway: GatewayProcess, accept: str) -> None:
    """As before there was a page."""
    for query in ("", "?ticket=x"):
        refused = gateway.get(f"/{query}", token=None, headers={"Accept": accept})
        assert (refused.status, refused.reason) == (401, "not_authenticated")
        missing = gateway.get(f"/{query}", headers={"Accept": accept})
        assert (missing.status, missing.reason) == (404, "not_found")


def test_it_takes_nothing_but_visits(gateway: GatewayProcess) -> None:
    refused = gateway.request("DELETE", "/", headers={"Accept": "text/html"})
    assert (refused.status, refused.headers["Allow"]) == (405, "GET, HEAD, POST")
    assert gateway.post("/", {"code": "1"}).status == 403


def test_a_head_has_the_headers_alone(gateway: GatewayProcess) -> None:
    for path in ("/", f"/console/{FRAME}"):
        whole, head = (gateway.request(method, path, token=None) for method in ("GET", "HEAD"))
        assert head.body == b""
        kept = {name: value for name, value in head.headers.items() if name != "Date"}
        assert kept == {name: value for name, value in whole.headers.items() if name != "Date"}


def test_what_a_browser_has_is_not_sent_again(gateway: GatewayProcess) -> None:
    path = f"/console/{FRAME}"
    first = gateway.get(path, token=None)
    assert first.headers["Cache-Control"] == "no-cache"
    for known in (first.headers["Etag"], f'"x", {first.headers["Etag"]}', "*"):
        again = gateway.get(path, token=None, headers={"If-None-Match": known})
        assert (again.status, again.body) == (304, b"")
        assert again.headers["Content-Security-Policy"] == first.headers["Content-Security-Policy"]
    assert gateway.get(path, token=None, headers={"If-None-Match": '"x"'}).status == 200


@pytest.mark.parametrize(
    ("accepted", "zipped"),
    [
        ("gzip, deflate, br", True),
        ("br;q=1, GZIP;q=0.5", True),
        ("*", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000, *", False),
        ("br", False),
        ("identity", False),
    ],
)
def test_it_is_compressed_for_who_takes_that(gateway: GatewayProcess, accepted: str, zipped: bool) -> None:
    answer = gateway.get("/", token=None, headers={"Accept-Encoding": accepted})
    body = (STATIC / PAGE).read_bytes()
    assert "Accept-Encoding" in answer.headers["Vary"]
    assert answer.headers["Content-Encoding"] == ("gzip" if zipped else None)
    assert (gzip.decompress(answer.body) if zipped else answer.body) == body


def test_the_frame_of_outputs_has_no_origin(gateway: GatewayProcess) -> None:
    answer = gateway.get(f"/console/{FRAME}", token=None)
    policy = policy_of(answer.headers)
    assert policy["sandbox"] == "allow-scripts"
    assert policy["connect-src"] == policy["frame-src"] == policy["form-action"] == "'none'"
    assert f"{gateway.url}/console/" in policy["script-src"].split()


@pytest.mark.parametrize("origin", ["null", None])
def test_a_frame_without_an_origin_gets_its_files(gateway: GatewayProcess, origin: str | None) -> None:
    """Browsers say that it has none, even where nothing can be read."""
    headers = {} if origin is None else {"Origin": origin}
    answer = gateway.get(f"/console/{FRAME}", token=None, headers={"Sec-Fetch-Site": "cross-site", **headers})
    assert answer.status == 200
    assert "Access-Control-Allow-Origin" not in answer.headers


@pytest.mark.parametrize("origin", ["null", "https://evil.example", "http://127.0.0.1:1"])
def test_pages_of_other_origins_get_nothing_else(gateway: GatewayProcess, origin: str) -> None:
    for path in ("/", "/v1/info", "/console/sign-in", "/console/oidc"):
        assert gateway.get(path, headers={"Origin": origin}).status == 403
    if origin != "null":
        assert gateway.get(f"/console/{FRAME}", headers={"Origin": origin}).status == 403


@pytest.mark.parametrize(
    "path",
    [
        "/console",
        "/console/",
        "/console/app",
        f"/console/{PAGE}",
        "/console/../console/frame.html",
        "/console/%2e%2e/assets.py",
        "/console/..%2fassets.py",
        "/console/..%5cassets.py",
        "/console//frame.html",
        "/console/./frame.html",
        "/console/frame.html/",
        "/console/frame.html%00",
        "/console/assets.py",
        "/console/static/frame.html",
        "/console/%2fetc%2fpasswd.txt",
        "/console/FRAME.HTML",
    ],
)
def test_no_other_file_is_there(gateway: GatewayProcess, path: str) -> None:
    assert gateway.get(path).status == 404


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1;script-src *", 400),
        ("127.0.0.1 *", 400),
        ("127.0.0.1,evil.example", 400),
        ("x@127.0.0.1:1", 400),
        ("127.0.0.1:1/x", 400),
        ("127.0.0.1:1?x", 400),
        ("*", 403),
        ("evil.example", 403),
    ],
)
def test_no_host_gets_into_a_policy(gateway: GatewayProcess, host: str, status: int) -> None:
    for path in ("/", f"/console/{FRAME}"):
        assert gateway.get(path, token=None, headers={"Host": host}).status == status


def test_a_host_that_a_policy_can_not_name_is_self(gateway: GatewayProcess) -> None:
    """Policies know no addresses of IPv6."""
    answer = gateway.get("/", token=None, headers={"Host": "[::1]:8888"})
    assert policy_of(answer.headers)["script-src"] == "'self'"


def test_below_a_path_all_of_it_is_there(below: GatewayProcess) -> None:
    page = below.get(f"{BASE}/", token=None)
    assert page.status == 200
    assert policy_of(page.headers)["script-src"] == f"{below.url}/console/"
    assert below.get(f"{BASE}/console/{FRAME}", token=None).status == 200
    for path in ("/", f"/console/{FRAME}", "/console/sign-in"):
        assert below.get(path).status == 404
    bare = below.get(f"{BASE}?ticket=x", token=None)
    assert (bare.status, bare.headers["Location"]) == (302, f"{BASE}/?ticket=x")


def test_below_a_path_the_cookie_is_for_that_path(below: GatewayProcess) -> None:
    browser = Browser(below)
    answer = browser.visit(ticket_path(below, TOKEN, BASE))
    assert (answer.status, answer.headers["Location"]) == (303, f"{BASE}/")
    assert f"; Path={BASE}/; HttpOnly; SameSite=Strict" in answer.headers["Set-Cookie"]
    assert browser.ask("GET", f"{BASE}/v1/me").status == 200
