"""What `cellgate serve --jupyterhub` takes from the environment that a Hub gives it, and what it keeps."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from cellgate.cli.base import UsageError
from cellgate.cli.serve.serve import ServeApp
from cellgate.http.listener.certificate import TlsFiles
from tests.support.commands import cellgate, environment

SERVER = {
    "JUPYTERHUB_API_URL": "http://127.0.0.1:8081/hub/api",
    "JUPYTERHUB_API_TOKEN": "the-servers-token",
    "JUPYTERHUB_SERVICE_URL": "http://:8123/user/ada/",
    "JUPYTERHUB_SERVICE_PREFIX": "/user/ada/",
    "JUPYTERHUB_USER": "ada",
}
FILES = {"KEYFILE": "/s/ada.key", "CERTFILE": "/s/ada.crt", "CLIENT_CA": "/s/ca.crt"}
TLS = {f"JUPYTERHUB_SSL_{name}": path for name, path in FILES.items()}


def taken(*words: str, environment: Mapping[str, str] = SERVER) -> ServeApp:
    """The command as it is when it has taken its address from the Hub."""
    app = ServeApp(environment=environment)
    app.initialize(["--jupyterhub", "--port=1", "--base-url=/x", *words])
    app._take_address_of_hub()
    return app


def lean(app: ServeApp) -> tuple[int | None, float]:
    """How many kernels it keeps warm, and the seconds that running cells have at its end."""
    values = app.trait_values()
    return values["pool_size"], values["shutdown_grace"]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return tmp_path / "cellgate"


def test_a_server_is_lean_and_where_the_hub_says(home: Path) -> None:
    app = taken()
    front = app._front()
    assert (front.ip, front.port, front.base_url) == ("", 8123, "/user/ada")
    assert front.allowed_hosts == {"*"}
    proxies = front.listener.proxies
    assert (proxies.of_hub, proxies.anybody) == (True, True)
    assert (*lean(app), app.data_path) == (0, 5.0, home)
    asked = taken("--pool-size=3", "--trusted-proxies=10.0.0.1", "--ServeApp.shutdown_grace=7")
    assert lean(asked) == (3, 7.0)
    assert asked._front().listener.proxies.anybody is False


def test_a_service_is_as_it_was() -> None:
    given = SERVER | {"JUPYTERHUB_SERVICE_NAME": "cellgate", "JUPYTERHUB_SERVICE_URL": "http://127.0.0.1:81"}
    app = taken(environment=given)
    front = app._front()
    assert (front.ip, front.port, front.allowed_hosts) == ("127.0.0.1", 81, frozenset())
    assert lean(app) == (None, 10.0)
    assert front.listener.proxies.anybody is False


@pytest.mark.parametrize(
    ("server", "folder"),
    [("lab", "lab"), ("..", "%2E%2E"), ("a/../../b", "a%2F%2E%2E%2F%2E%2E%2Fb"), ("é x", "%C3%A9%20x")],
)
def test_each_named_server_has_a_data_folder_of_its_own(home: Path, server: str, folder: str) -> None:
    named = SERVER | {"JUPYTERHUB_SERVER_NAME": server}
    assert taken(environment=named).data_path == home / "servers" / folder
    assert taken("--data-dir=/elsewhere", environment=named).data_path == Path("/elsewhere")


def test_with_internal_ssl_the_hubs_files_count() -> None:
    given = SERVER | TLS | {"JUPYTERHUB_SERVICE_URL": "https://127.0.0.1:8123/user/ada/"}
    files = TlsFiles(Path("/s/ada.crt"), Path("/s/ada.key"), Path("/s/ca.crt"))
    assert taken("--tls-cert=/own.crt", "--tls-key=/own.key", environment=given)._tls() == files
    assert taken(environment=SERVER | TLS)._tls() is None, "the address is without TLS"
    without = {name: value for name, value in given.items() if "SSL" not in name}
    with pytest.raises(UsageError, match="internal_ssl"):
        taken(environment=without)


def test_on_all_addresses_kernels_are_isolated_unless_told(home: Path) -> None:
    done = cellgate("serve", "--jupyterhub", "--backend=process", env=environment(**SERVER))
    assert done.returncode == 2
    assert "refusing to serve kernels without isolation on all addresses" in done.stderr
    assert not home.exists()
