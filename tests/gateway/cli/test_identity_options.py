"""Settings of those who vouch for users, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.commands import cellgate, environment, refusal

ISSUER = "--oidc-issuer=https://login.example.org"
AUDIENCE = "--oidc-audience=cellgate"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        ([AUDIENCE], "--oidc-audience needs --oidc-issuer"),
        (["--oidc-role-claim=roles"], "--oidc-role-claim needs --oidc-issuer"),
        ([ISSUER], "The audience is missing"),
        (["--oidc-issuer=http://login.example.org", AUDIENCE], "The issuer must begin with https://"),
        ([ISSUER, AUDIENCE, "--oidc-jwks=http://keys.example.org"], "must begin with https://"),
        ([ISSUER, AUDIENCE, "--oidc-jwks=/nowhere/keys.json"], "/nowhere/keys.json can't be read"),
        ([ISSUER, AUDIENCE, "--ServeApp.oidc_roles=x=root"], "maps no value to a role"),
        ([ISSUER, AUDIENCE, "--no-auth"], "--no-auth would make everybody the administrator"),
        (["--jupyterhub"], "JUPYTERHUB_API_URL and JUPYTERHUB_SERVICE_NAME are missing"),
    ],
)
def test_settings_that_can_not_be(tmp_path: Path, words: list[str], what: str) -> None:
    code, line = refusal("--port=0", "--pool-size=0", "--backend=process", f"--data-dir={tmp_path}", *words)
    assert code == 2
    assert what in line


@pytest.mark.parametrize(
    "url", ["https://127.0.0.1:9000", "127.0.0.1:9000", "http://127.0.0.1", "http://127.0.0.1:x"]
)
def test_an_address_of_a_hub_that_can_not_be(tmp_path: Path, url: str) -> None:
    hub = {"JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api", "JUPYTERHUB_SERVICE_NAME": "cellgate"}
    done = cellgate(
        *("serve", "--jupyterhub", "--backend=process", f"--data-dir={tmp_path}"),
        env=environment(JUPYTERHUB_SERVICE_URL=url, **hub),
    )
    assert done.returncode == 2
    assert "JUPYTERHUB_SERVICE_URL" in done.stderr
    assert done.stderr.count("\n") == 1
