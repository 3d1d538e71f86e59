"""The requests that VS Code's Jupyter extension sends to an existing server, in its order.

Source: microsoft/vscode-jupyter, `jupyterPasswordConnect.ts` (0399b541), `jupyterLabHelper.ts` and
`jupyterKernelSessionFactory.ts` (0af1a6e2), `kernel.ts` (002bab62). What it leaves to @jupyterlab/services is
tested with that, in ``tests/clients``.
"""

from __future__ import annotations

import uuid

import requests

from tests.support.channels import channels, kinds, text
from tests.support.server import PATIENCE, TOKEN, GatewayProcess

NAME = f"rivers-jvsc-{uuid.uuid4()}{uuid.uuid4()}.ipynb"
STARTUP = "__vsc_ipynb_file__ = '/home/ada/rivers.ipynb'\n%config Completer.use_jedi = False"


def asked(gateway: GatewayProcess, path: str, **headers: str) -> requests.Response:
    """The answer to a GET of the extension, which follows no redirect."""
    return requests.get(f"{gateway.url}{path}", headers=headers, allow_redirects=False, timeout=PATIENCE)


def posted(gateway: GatewayProcess, word: str) -> requests.Response:
    """The answer to the log-in's form, with a token as the password."""
    return requests.post(
        f"{gateway.url}/login?",
        data={"_xsrf": word, "password": TOKEN},
        headers={"Cookie": f"_xsrf={word}"},
        allow_redirects=False,
        timeout=PATIENCE,
    )


def check_no_hub(gateway: GatewayProcess) -> None:
    """It takes a server that answers 200 here for a JupyterHub, or for one that asks for nothing."""
    assert asked(gateway, "/hub/api").status_code == 401
    assert asked(gateway, "/tree?").status_code == 401


async def worked(gateway: GatewayProcess, headers: dict[str, str]) -> None:
    """Connect with these headers, start a notebook's session, run a cell, restart, and come back later."""

    def json_of(method: str, path: str, body: object = None, status: int = 200) -> object:
        answer = requests.request(
            method, f"{gateway.url}{path}", json=body, headers=headers, timeout=PATIENCE
        )
        assert answer.status_code == status, answer.text
        found: object = answer.json()
        return found

    listed = [json_of("GET", f"/api/{name}?1700000000000") for name in ("kernels", "kernelspecs", "sessions")]
    assert isinstance(listed[1], dict)
    assert "python3" in listed[1]["kernelspecs"]
    name = f"{uuid.uuid4()}-{NAME}"
    body = {"path": name, "name": "rivers-1.ipynb", "type": "notebook", "kernel": {"name": "python3"}}
    made = json_of("POST", "/api/sessions?1700000000001", body, 201)
    assert isinstance(made, dict)
    kernel = made["kernel"]["id"]
    async with channels(gateway, kernel, v1=True, headers=headers) as client:
        await client.send("kernel_info_request", {})
        await client.until(lambda message: message["msg_type"] == "kernel_info_reply")
        assert kinds(await client.run(STARTUP, silent=True, store_history=False))[-1] == "idle"
        assert text(await client.run("print(6 * 7)")) == "42\n"
    assert isinstance(json_of("POST", f"/api/kernels/{kernel}/restart", {}), dict)
    # The extension leaves it running when the notebook is closed, and offers it again.
    again = json_of("GET", "/api/sessions?1700000000002")
    assert isinstance(again, list)
    assert [each["kernel"]["id"] for each in again if each["path"] == name] == [kernel]
    assert gateway.model(kernel)["title"] == name
    gateway.delete(f"/api/kernels/{kernel}")


async def test_with_a_token_in_the_address(jupyter: GatewayProcess) -> None:
    check_no_hub(jupyter)
    await worked(jupyter, {"Authorization": f"token {TOKEN}"})


async def test_with_the_token_as_a_password(jupyter: GatewayProcess) -> None:
    """Of the log-in's first cookie the extension sends back all, with what is said of it."""
    check_no_hub(jupyter)
    first = asked(jupyter, "/login?")
    assert first.status_code == 200
    word = first.headers["Set-Cookie"].removeprefix("_xsrf=").split(";")[0]
    logged_in = posted(jupyter, word)
    assert logged_in.status_code == 302
    cookie = logged_in.headers["Set-Cookie"]
    assert "; " in cookie
    await worked(jupyter, {"Cookie": f"_xsrf={word}; {cookie}", "X-XSRFToken": word})


def test_there_are_no_files_of_a_server(jupyter: GatewayProcess) -> None:
    """Which PyCharm's manual says that it shows."""
    answer = asked(jupyter, "/api/contents", Authorization=f"token {TOKEN}")
    assert (answer.status_code, "There is nothing at this path" in answer.text) == (404, True)
