"""A gateway below a path: all of it is there, nothing elsewhere, and each address it gives leads there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.client import Gateway
from cellgate.http.routes import check_base_url
from cellgate_kernels.base.errors import InvalidInput
from tests.conftest import serving
from tests.support.channels import kernel_info
from tests.support.commands import cellgate, refusal
from tests.support.server import TOKEN, GatewayProcess, until

BASE = "/user/anna%40example.org/cellgate"
PICTURE = """
from IPython.display import Image, display
display(Image(bytes.fromhex("89504e470d0a1a0a") + bytes(100), format="png"))
"""


@pytest.fixture(scope="module")
def below(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway with a base URL, given with a slash at its end."""
    with serving(tmp_path_factory.mktemp("below") / "data", base_url=f"{BASE}/") as process:
        yield process


@pytest.mark.parametrize(
    ("given", "base_url"),
    [
        ("/", ""),
        ("", ""),
        ("//", ""),
        ("cellgate", "/cellgate"),
        ("/cellgate", "/cellgate"),
        ("/cellgate/", "/cellgate"),
        ("/services/a.b-c_~/", "/services/a.b-c_~"),
        (BASE, BASE),
    ],
)
def test_a_base_url_is_a_path(given: str, base_url: str) -> None:
    assert check_base_url(given) == base_url


@pytest.mark.parametrize(
    "given",
    [
        "http://example.org/x",
        "/a//b",
        "/a/../b",
        "/..",
        "/.",
        "/a?b",
        "/a#b",
        "/a b",
        "/ä",
        "/%4",
        "/%zz",
        "/a\r\nb",
        "/a\\b",
        "/" + "a" * 2000,
    ],
)
def test_nothing_else_is_a_base_url(given: str) -> None:
    with pytest.raises(InvalidInput, match="base_url must be a path"):
        check_base_url(given)


def test_a_wrong_base_url_is_one_line(tmp_path: Path) -> None:
    code, line = refusal(f"--data-dir={tmp_path / 'data'}", "--backend=process", "--base-url=/a/../b")
    assert code == 2
    assert "--base-url (/a/../b) must be a path such as /cellgate" in line


def test_the_base_url_is_announced(below: GatewayProcess) -> None:
    assert below.url == f"http://{below.host}{BASE}"
    until(lambda: f"serves at {below.url}\n" in below.log.read_text(), "it does not say where it serves")


@pytest.mark.parametrize(
    "path",
    ["/healthz", "/readyz", "/metrics", "/docs", "/v1/info", "/v1/sessions", "/api", "/api/kernelspecs"],
)
def test_everything_is_below_it_and_nothing_beside_it(below: GatewayProcess, path: str) -> None:
    assert below.get(BASE + path).status == 200
    for elsewhere in (path, f"{BASE}x{path}", f"/x{BASE}{path}", f"{BASE}{BASE}{path}", BASE.upper() + path):
        assert below.get(elsewhere).status == 404, elsewhere


def test_who_leaves_it_out_is_told_where_the_gateway_serves(below: GatewayProcess) -> None:
    url = below.url.removesuffix(BASE)
    done = cellgate("sessions", "--url", url, "--token", TOKEN)
    assert done.stderr == f"cellgate: There is nothing at this path; this gateway serves below {BASE}/\n"
    nothing = cellgate("sessions", "--url", f"{below.url}/nowhere", "--token", TOKEN)
    assert nothing.stderr == f"cellgate: There is nothing at this path; {BASE}/docs has all there are\n"


def test_the_base_url_without_its_last_slash_is_redirected(below: GatewayProcess) -> None:
    answer = below.get(BASE)
    assert (answer.status, answer.headers["Location"]) == (302, f"{BASE}/")
    assert below.get(f"{BASE}?ticket=a%0d%0ab").headers["Location"] == f"{BASE}/?ticket=a%0d%0ab"
    assert below.get(BASE, headers={"Host": "evil.example"}).status == 403


def test_parameters_are_checked_as_at_the_root(below: GatewayProcess) -> None:
    answer = below.get(f"{BASE}/v1/sessions?limt=1")
    assert (answer.status, answer.reason) == (400, "bad_request")
    assert below.get(f"{BASE}/healthz?x=1").status == 200


def test_every_address_that_it_gives_leads_there(below: GatewayProcess) -> None:
    made = below.post(f"{BASE}/v1/sessions", {"session": "addresses"})
    assert made.status == 201
    assert made.headers["Location"] == f"{BASE}/v1/sessions/addresses"
    assert below.get(made.headers["Location"]).status == 200

    execute = f"{BASE}/v1/sessions/addresses/execute"
    queued = below.post(execute, {"code": "1", "wait": False})
    assert (
        queued.headers["Location"] == f"{BASE}/v1/sessions/addresses/executions/{queued.json()['execution']}"
    )
    assert below.get(queued.headers["Location"]).status == 200

    shown = below.post(f"{execute}?images=url&max_text=1000", {"code": PICTURE + "print('x' * 5000)"}).json()
    displays = [output for output in shown["outputs"] if output["output_type"] == "display_data"]
    address = displays[0]["metadata"]["image/png"]["url"]
    picture = below.get(address)
    assert (picture.status, picture.headers["Content-Type"]) == (200, "image/png")
    assert f"GET {BASE}/v1/sessions/addresses/executions/" in shown["stdout"]

    kernel = below.post(f"{BASE}/api/kernels")
    assert kernel.headers["Location"] == f"{BASE}/api/kernels/{kernel.json()['id']}"
    assert below.get(kernel.headers["Location"]).status == 200
    logos = below.get(f"{BASE}/api/kernelspecs").json()["kernelspecs"]["python3"]["resources"]
    for path in logos.values():
        assert path.startswith(f"{BASE}/kernelspecs/python3/")
        assert below.get(path).status == 200

    ran = below.post(f"{BASE}/v1/sessions/addresses/processes", {"argv": ["true"], "wait": False})
    assert ran.headers["Location"] == f"{BASE}/v1/sessions/addresses/processes/{ran.json()['process']}"
    assert below.get(ran.headers["Location"]).status == 200

    document = below.get(f"{BASE}/openapi.json").json()
    assert document["servers"] == [{"url": BASE}]


@pytest.mark.usefixtures("sandbox")
def test_the_addresses_of_branches_lead_there(below: GatewayProcess) -> None:
    parent = f"{BASE}/v1/sessions/parent"
    assert below.post(f"{BASE}/v1/sessions", {"session": "parent"}).status == 201
    branch = below.post(f"{parent}/branch", {"session": "branch"})
    assert branch.headers["Location"] == f"{BASE}/v1/sessions/branch"
    assert below.get(branch.headers["Location"]).status == 200
    explored = below.post(f"{parent}/explore?images=url", {"cells": [PICTURE]}).json()
    (shown,) = explored["results"][0]["outputs"]
    picture = below.get(shown["metadata"]["image/png"]["url"])
    assert (picture.status, picture.headers["Content-Type"]) == (200, "image/png")


async def test_the_client_and_its_websocket_work_below_it(below: GatewayProcess) -> None:
    client = Gateway(below.url, TOKEN)
    async with client.session("client") as session:
        assert (await session.run("20 + 1")).text == "21"
        assert (await kernel_info(client, "client"))["status"] == "ok"


def test_commands_find_it(below: GatewayProcess) -> None:
    done = cellgate("exec", "print(6 * 7)", f"--data-dir={below.data_dir}")
    assert (done.returncode, done.stdout) == (0, "42\n")
    announcement = json.loads((below.data_dir / "gateway.json").read_text())
    assert announcement["url"] == below.url
