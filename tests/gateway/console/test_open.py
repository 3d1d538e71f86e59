"""``cellgate open``, and the link that ``cellgate serve`` shows: to whom, and what it is worth."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from cellgate.cli.run.open import has_browser
from tests.conftest import StartGateway
from tests.gateway.console.conftest import Browser
from tests.support.commands import INSTALLED, announced, cellgate, environment
from tests.support.server import GatewayProcess
from tests.support.terminal import Terminal


def without_display(**variables: str) -> dict[str, str]:
    """Variables of somebody who sits at no screen."""
    seen = environment()
    return {
        name: seen[name] for name in seen if name not in {"DISPLAY", "WAYLAND_DISPLAY", "BROWSER"}
    } | variables


def path_of(url: str) -> str:
    parts = urlsplit(url.strip())
    return f"{parts.path}?{parts.query}"


def test_without_a_browser_the_address_alone_is_printed(gateway: GatewayProcess) -> None:
    done = cellgate("open", "--data-dir", gateway.data_dir, env=without_display())
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(rf"{re.escape(gateway.url)}/\?ticket=cgticket-\S{{43}}\n", done.stdout)
    browser = Browser(gateway)
    assert browser.visit(path_of(done.stdout)).status == 303
    assert browser.me() == "default"


def test_the_address_of_the_api_leads_to_the_console_too(gateway: GatewayProcess) -> None:
    """All other commands take it; the console is not below it."""
    words = ("open", "--no-browser", "--url", f"{gateway.url}/v1", "--token", gateway.token)
    done = cellgate(*words, env=without_display())
    assert done.stdout.startswith(f"{gateway.url}/?ticket=")


def test_a_session_is_opened_at_once(gateway: GatewayProcess) -> None:
    gateway.execute("my~session.1", "1")
    words = ("open", "my~session.1", "--no-browser", "--url", gateway.url, "--token", gateway.token)
    done = cellgate(*words, env=without_display(BROWSER="false %s"))
    assert urlsplit(done.stdout.strip()).fragment == "/sessions/my~session.1"


def test_the_browser_gets_the_address_and_the_terminal_does_not(
    gateway: GatewayProcess, tmp_path: Path
) -> None:
    seen = tmp_path / "seen"
    program = tmp_path / "browser"
    program.write_text(f'#!/bin/sh\nprintf %s "$1" > {seen}\n')
    program.chmod(0o700)
    done = cellgate("open", "--data-dir", gateway.data_dir, env=without_display(BROWSER=f"{program} %s"))
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"Opened {gateway.url}/ in your browser.\n"
    assert Browser(gateway).visit(path_of(seen.read_text())).status == 303


def test_a_browser_that_fails_is_as_good_as_none(gateway: GatewayProcess) -> None:
    done = cellgate("open", "--data-dir", gateway.data_dir, env=without_display(BROWSER="false %s"))
    assert done.returncode == 0
    assert done.stdout.startswith(f"{gateway.url}/?ticket=")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("a", "b"), "unexpected argument 'b'"),
        (("../x",), "can't be the name of a session"),
        (("no-such-session",), "No session 'no-such-session'"),
        (("--token", "not-the-token"), "not known to the gateway"),
        (("--url", "http://127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_what_can_not_be_opened_is_said(gateway: GatewayProcess, words: tuple[str, ...], said: str) -> None:
    done = cellgate("open", *words, "--data-dir", gateway.data_dir, env=without_display())
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("platform", "variables", "there"),
    [
        ("linux", {}, False),
        ("linux", {"DISPLAY": ""}, False),
        ("linux", {"DISPLAY": ":0"}, True),
        ("linux", {"WAYLAND_DISPLAY": "wayland-0"}, True),
        ("linux", {"BROWSER": "w3m"}, True),
        ("darwin", {}, True),
        ("win32", {}, True),
    ],
)
def test_a_browser_needs_a_screen(platform: str, variables: dict[str, str], there: bool) -> None:
    assert has_browser(platform, variables) is there


def test_below_a_path_the_address_is_there(start_gateway: StartGateway) -> None:
    gateway = start_gateway(base_url="/cellgate")
    done = cellgate("open", "--data-dir", gateway.data_dir, env=without_display())
    assert done.stdout.startswith(f"{gateway.url}/?ticket=")
    answer = Browser(gateway).visit(path_of(done.stdout))
    assert (answer.status, answer.headers["Location"]) == (303, "/cellgate/")


def test_a_log_has_no_link_that_signs_in(gateway: GatewayProcess) -> None:
    text = gateway.log.read_text()
    assert re.search(rf"^ +console +{re.escape(gateway.url)}/ \(\S*cellgate open ", text, re.MULTILINE)
    assert "ticket" not in text
    assert f"  Other commands find it after:  export CELLGATE_DATA_DIR={gateway.data_dir}\n" in text


def test_without_tokens_there_is_nothing_to_sign_in_with(start_gateway: StartGateway) -> None:
    gateway = start_gateway(no_auth=True)
    text = gateway.log.read_text()
    assert f"    console    {gateway.url}/\n" in text


def test_a_terminal_shows_a_link_that_signs_in(tmp_path: Path) -> None:
    data = tmp_path / "data"
    words = [INSTALLED, "serve", "--port=0", f"--data-dir={data}", "--pool-size=0", "--backend=process"]
    with Terminal(list(map(str, words)), tmp_path, environment()) as terminal:
        shown = terminal.until("Stop:").replace("\r", "")
        url = announced(data, terminal.process)["url"]
        link = re.search(
            r"^ +console +(\S+)\n +works once, within a minute; then: .*cellgate open", shown, re.M
        )
        assert link is not None, shown
        gateway = GatewayProcess.__new__(GatewayProcess)
        gateway.url, gateway.host = url, url.removeprefix("http://")
        browser = Browser(gateway)
        assert browser.visit(path_of(link[1])).status == 303
        assert browser.me() == "default"
        terminal.send("\x03")
        assert terminal.ended() == 0
