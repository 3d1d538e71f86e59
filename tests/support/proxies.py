"""Proxies as ordinary processes, with configurations from `deploy/` in which words are replaced."""

from __future__ import annotations

import http.client
import os
import pwd
import shutil
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.requirements import require
from tests.support.server import PATIENCE, until

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
CLIENTS = Path(os.environ.get("CELLGATE_CLIENTS") or ROOT / ".venv" / "clients")
# Debian has nginx in a folder that not every user's PATH has; Envoy is among the clients of the tests.
PLACES = os.pathsep.join((os.environ["PATH"], "/usr/sbin", str(CLIENTS / "bin")))


def require_proxy(name: str) -> None:
    """Skip the test, or fail where nothing may be missing, if the proxy is not installed."""
    if shutil.which(name, path=PLACES) is None:
        require(name, f"{name} is not installed")


def replaced(name: str, changes: Mapping[str, str]) -> str:
    """The example's text; each of the words to replace must be there."""
    text = (DEPLOY / name).read_text()
    for old, new in changes.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def caddy(folder: Path, text: str) -> list[str]:
    """Caddy's command for a Caddyfile: without an interface of its own, and without a second port."""
    (folder / "Caddyfile").write_text(f"{{\n\tadmin off\n\tauto_https disable_redirects\n}}\n{text}")
    return ["caddy", "run", "--config", str(folder / "Caddyfile"), "--adapter", "caddyfile"]


def haproxy(folder: Path, text: str) -> list[str]:
    """HAProxy's command."""
    (folder / "haproxy.cfg").write_text(text)
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


def envoy(folder: Path, text: str) -> list[str]:
    """Envoy's command: with one thread, as `deploy/envoy.yaml` says."""
    (folder / "envoy.yaml").write_text(text)
    options = ["-c", str(folder / "envoy.yaml"), "--concurrency", "1", "--disable-hot-restart"]
    return [shutil.which("envoy", path=PLACES) or "envoy", *options, "--log-level", "warn"]


def nginx(folder: Path, text: str) -> list[str]:
    """nginx's command; the text is included as Debian's nginx.conf does it."""
    (folder / "cellgate.conf").write_text(text)
    temporary = "".join(
        f"{kind}_temp_path {folder}/{kind};\n"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "main.conf").write_text(
        f"daemon off;\npid {folder}/pid;\nerror_log stderr;\nuser {_user()};\nevents {{}}\n"
        f"http {{\naccess_log off;\n{temporary}include {folder}/cellgate.conf;\n}}\n"
    )
    return ["nginx", "-p", str(folder), "-e", "stderr", "-c", str(folder / "main.conf")]


def _user() -> str:
    """Its workers run as this process's user: the test's files are nobody else's."""
    return pwd.getpwuid(os.getuid()).pw_name


@contextmanager
def started(command: list[str], folder: Path, port: int) -> Iterator[None]:
    """The proxy, once it listens; stopped afterwards."""
    log = folder / "proxy.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "XDG_DATA_HOME": str(folder)},
        )

    def listens() -> bool:
        assert process.poll() is None, log.read_text()
        with closing(socket.socket()) as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        until(listens, "the proxy does not listen")
        yield
    finally:
        process.terminate()
        process.wait(60)


class Connection(http.client.HTTPSConnection):
    """A connection to this machine, whatever the name."""

    def __init__(self, name: str, port: int, context: ssl.SSLContext) -> None:
        super().__init__(name, port, timeout=PATIENCE, context=context)
        self._tls = context

    def connect(self) -> None:
        """Connect to the proxy, and ask it for the certificate of the name."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host)
