"""A real JupyterHub that starts the gateway as a service of its own, or spawns one for each user."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from tornado.httpclient import HTTPRequest

from tests.clients.hubs import ACCESS, NEWEST, OLDEST, OWN, PREFIX, STEWARD, Hub, running_hub
from tests.support.browser import Browsers, opened
from tests.support.commands import cellgate, environment
from tests.support.server import until
from tests.support.websockets import websocket

RELEASES = pytest.mark.parametrize("release", [NEWEST, OLDEST])


@pytest.fixture(params=[NEWEST, OLDEST])
def hub(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hub]:
    """A Hub that has started the gateway as its service."""
    announced = tmp_path / "data" / "gateway.json"
    words = ["--backend=process", "--allow-unsandboxed", f"--data-dir={tmp_path / 'data'}"]
    more = ["--trusted-proxies=127.0.0.1", "--pool-size=0", "--ServeApp.burst_size=0"]
    with running_hub(tmp_path, *words, *more, release=request.param) as started:
        # Not asked through the proxy at first: that costs time, and a Hub gives its services ten seconds.
        until(announced.exists, "the Hub's gateway does not listen", 60)
        until(
            lambda: started.ask("GET", f"{PREFIX}/healthz", token="")[0] == 200,
            "the Hub's gateway does not serve",
            60,
        )
        yield started
    until(lambda: not announced.exists(), "the gateway has not ended")


@pytest.mark.nightly
def test_the_users_of_a_hub(hub: Hub) -> None:
    """Cells through the Hub's proxy; who is let in, as whom, and for how long."""
    hub.add("eve")
    ada, revoked_later = hub.token("ada", ACCESS)
    status, result = hub.gateway("POST", "/v1/sessions/x/execute", {"code": "6 * 7"}, token=ada)
    assert (status, result["text"]) == (200, "42")
    done = cellgate("exec", "2 ** 10", f"--url={hub.url}", env=environment(CELLGATE_TOKEN=ada))
    assert (done.returncode, done.stdout) == (0, "1024\n"), done.stderr
    status, me = hub.gateway("GET", "/v1/me", token=ada)
    assert (status, me["principal"], me["role"]) == (200, "ada", "user")
    assert hub.gateway("GET", "/v1/sessions/x", token=hub.token("ada")[0])[0] == 200, "all of ada's scopes"

    # An administrator of the Hub is one of the gateway, unless the token is limited.
    root, _ = hub.token("root")
    status, session = hub.gateway("GET", "/v1/sessions/x?principal=ada", token=root)
    assert (status, session["principal"]) == (200, "ada")
    modest, _ = hub.token("root", ACCESS)
    assert hub.gateway("GET", "/v1/me", token=modest)[1]["role"] == "user"
    assert hub.gateway("GET", "/v1/me", token=OWN)[1]["role"] == "admin"

    # A user without access, a token without it, a service, and nobody.
    for token in (hub.token("eve")[0], hub.token("ada", "read:users:name!user")[0], STEWARD):
        status, problem = hub.gateway("GET", "/v1/sessions", token=token)
        assert (status, problem["reason"]) == (403, "forbidden")
    status, problem = hub.gateway("GET", "/v1/sessions", token="0123456789abcdef")
    assert (status, problem["reason"]) == (401, "not_authenticated")

    hub.revoke("ada", revoked_later)
    until(lambda: hub.gateway("GET", "/v1/sessions", token=ada)[0] == 401, "a revoked token lives", 20)


@pytest.mark.nightly
@RELEASES
@pytest.mark.parametrize("internal_ssl", [False, True], ids=["plain", "internal_ssl"])
def test_what_a_hub_spawns(tmp_path: Path, release: str, *, internal_ssl: bool) -> None:
    """Its user, a visitor, a stranger; what the Hub is told; another server; the end, and the next start."""
    how = {"spawns": True, "internal_ssl": internal_ssl}
    with running_hub(tmp_path, "--backend=process", release=release, **how) as hub:
        hub.add("eve")
        hub.start("ada")
        ada, bob, eve = (hub.token(user)[0] for user in ("ada", "bob", "eve"))

        def run(code: str, token: str = ada, at: str = "/user/ada") -> tuple[int, Any]:
            status, result = hub.ask("POST", f"{at}/v1/sessions/x/execute", {"code": code}, token=token)
            return status, result.get("text") or result.get("reason")

        def role(token: str) -> Any:
            status, me = hub.ask("GET", "/user/ada/v1/me", token=token)
            return me["role"] if status == 200 else status

        assert run("x = 6 * 7; x") == (200, "42")
        assert [role(token) for token in (ada, bob, eve, "0123456789abcdef")] == ["admin", "user", 403, 401]
        assert run("x = 1; x", bob) == (200, "1")
        assert run("1", eve) == (403, "forbidden")

        # The proxy's own look at activity comes every five minutes.
        before = hub.servers("ada")[""]["last_activity"]
        assert run("x") == (200, "42")
        until(lambda: hub.servers("ada")[""]["last_activity"] > before, "the Hub is told nothing", 30)

        hub.start("ada", "lab")
        assert run("'x' in globals()", at="/user/ada/lab") == (200, "False")
        homes = tmp_path / "homes" / "ada" / ".local" / "share" / "cellgate"
        assert (homes / "gateway.json").exists()
        assert (homes / "servers" / "lab" / "gateway.json").exists()
        hub.stop("ada", "lab")
        assert not (homes / "servers" / "lab" / "gateway.json").exists()

        hub.stop("ada")
        assert not (homes / "gateway.json").exists(), "it was not ended in order"
        hub.start("ada")
        status, found = hub.ask("GET", "/user/ada/v1/sessions/x/executions", token=ada)
        assert (status, len(found["executions"])) == (200, 2)
        assert run("'x' in globals()") == (200, "False")


@pytest.mark.nightly
@RELEASES
def test_a_browser_signs_in_at_the_hub(tmp_path: Path, release: str) -> None:
    """By the Hub's own pages: its user without being asked, a visitor who agrees, and out again."""
    with (
        running_hub(tmp_path, "--backend=process", spawns=True, release=release) as hub,
        ExitStack() as stack,
    ):
        browsers = Browsers()
        stack.callback(browsers.close)
        hub.start("ada")
        pages = {}
        for name in ("ada", "bob"):
            page = pages[name] = stack.enter_context(opened(browsers.get()))
            page.goto(f"{hub.origin}/user/ada/#/gateway")
            page.wait_for_url("**/hub/login**")
            page.fill("#username_input", name)
            page.fill("#password_input", "x")
            page.click("#login_submit")
        pages["bob"].click("button:text-is('Authorize')")
        for name, page in pages.items():
            page.wait_for_selector(f"header .who:text-is('{name}')")
        assert pages["ada"].url == f"{hub.origin}/user/ada/#/gateway", "where it was"
        pages["ada"].click("button[aria-label='Sign out']")
        pages["ada"].wait_for_url("**/hub/log**")
        pages["ada"].goto(f"{hub.origin}/user/ada/")
        # A moment after the Hub was asked, the page does not go there by itself.
        pages["ada"].click("text=sign in at JupyterHub")
        pages["ada"].wait_for_url("**/hub/login**")


@pytest.mark.nightly
def test_jupyterlab_in_one_server_and_cellgate_in_another(tmp_path: Path) -> None:
    """Each answers at its own address to the user's token; the end of one does not touch the other."""
    with running_hub(tmp_path, "--backend=process", spawns=True) as hub:
        hub.start("ada")
        hub.start("ada", "jupyterlab")
        ada, _ = hub.token("ada")

        def kernels(at: str) -> list[Any]:
            status, found = hub.ask("GET", f"{at}/api/kernels", token=ada)
            assert status == 200, found
            return list(found)

        status, page = hub.ask("GET", "/user/ada/jupyterlab/lab", token=ada)
        assert (status, "JupyterLab" in page) == (200, True)
        status, result = hub.ask("POST", "/user/ada/v1/sessions/x/execute", {"code": "6 * 7"}, token=ada)
        assert (status, result["text"]) == (200, "42")
        assert [len(kernels(at)) for at in ("/user/ada/jupyterlab", "/user/ada")] == [0, 1]
        hub.stop("ada", "jupyterlab")
        assert len(kernels("/user/ada")) == 1
        hub.stop("ada")


def close_of(url: str, token: str, is_open: Event) -> tuple[int | None, str | None]:
    """How the gateway closes a WebSocket of a session's events; `is_open` is set when it is."""

    async def closed() -> tuple[int | None, str | None]:
        async with websocket(HTTPRequest(url, headers={"Authorization": f"token {token}"})) as events:
            is_open.set()
            while await events.read_message() is not None:
                pass
            return events.close_code, events.close_reason

    return asyncio.run(closed())


@pytest.mark.nightly
@RELEASES
def test_a_server_that_its_user_shares(tmp_path: Path, release: str) -> None:
    """Who is given it in the Hub has it as themselves, by token and by browser, until the share ends."""
    with (
        running_hub(tmp_path, "--backend=process", spawns=True, release=release) as hub,
        ExitStack() as stack,
    ):
        browsers = Browsers()
        stack.callback(browsers.close)
        for name in ("eve", "mallory"):
            hub.add(name)
        hub.start("ada")
        hub.start("ada", "x")
        ada, eve, mallory = (hub.token(name)[0] for name in ("ada", "eve", "mallory"))

        def run(token: str, at: str = "/user/ada/x") -> tuple[int, Any]:
            status, result = hub.ask("POST", f"{at}/v1/sessions/s/execute", {"code": "6 * 7"}, token=token)
            return status, result.get("text")

        assert run(ada) == (200, "42")
        assert run(eve) == (403, None)
        shared = {"user": "eve", "scopes": ["access:servers!server=ada/x"]}
        status, body = hub.ask("POST", "/hub/api/shares/ada/x", shared, token=STEWARD)
        assert status == 200, body
        until(lambda: run(eve) == (200, "42"), "the share gives no access", 30)
        assert run(mallory) == (403, None)
        assert run(eve, "/user/ada") == (403, None), "another server of the same user"

        # The guest is somebody else than the user, with sessions of their own.
        status, me = hub.ask("GET", "/user/ada/x/v1/me", token=eve)
        assert (me["principal"], me["role"]) == ("eve", "user")
        status, found = hub.ask("GET", "/user/ada/x/v1/sessions", token=eve)
        assert [(each["session"], each["principal"]) for each in found["sessions"]] == [("s", "eve")]
        assert hub.ask("GET", "/user/ada/x/v1/sessions/s?principal=ada", token=eve)[0] == 404
        assert hub.ask("GET", "/user/ada/x/v1/audit", token=eve)[0] == 403
        assert hub.ask("GET", "/user/ada/x/v1/sessions/s?principal=eve", token=ada)[0] == 200

        def noted() -> bool:
            _, page = hub.ask("GET", "/user/ada/x/v1/audit?limit=1000", token=ada)
            entries = [each["entry"] for each in page["entries"]]
            told = {(each["type"], each.get("principal"), each.get("owner")) for each in entries}
            return {("refused", "eve", None), ("access", "ada", "eve")} <= told

        until(noted, "the audit trail does not name the guest")

        page = stack.enter_context(opened(browsers.get()))
        page.goto(f"{hub.origin}/user/ada/x/")
        page.wait_for_url("**/hub/login**")
        page.fill("#username_input", "eve")
        page.fill("#password_input", "x")
        page.click("#login_submit")
        page.click("button:text-is('Authorize')")
        page.wait_for_selector("header .who:text-is('eve')")

        is_open = Event()
        # The browser has this thread's loop.
        thread = stack.enter_context(ThreadPoolExecutor(1))
        ended = thread.submit(close_of, f"{hub.socket}/user/ada/x/v1/sessions/s/ws", eve, is_open)
        assert is_open.wait(60)
        status, body = hub.ask("PATCH", "/hub/api/shares/ada/x", {"user": "eve"}, token=STEWARD)
        assert status == 200, body
        until(lambda: run(eve) == (403, None), "an ended share gives access", 30)
        assert ended.result(60) == (1008, "The token has ended, or its role has changed")
        page.wait_for_selector("text=sign in at JupyterHub")
        assert run(ada) == (200, "42")
