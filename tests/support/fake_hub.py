"""A JupyterHub that signs anybody in and gives tokens for that; what it was told of activity."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

API_TOKEN = "the-token-of-the-server-itself"


@dataclass
class FakeHub:
    """What it has been asked. `users`: by their tokens; `status`: of its answers to codes and reports."""

    url: str = ""
    users: dict[str, dict[str, Any]] = field(default_factory=dict)
    codes: dict[str, tuple[dict[str, str], dict[str, Any]]] = field(default_factory=dict)
    exchanged: list[dict[str, str]] = field(default_factory=list)
    reported: list[dict[str, Any]] = field(default_factory=list)
    status: int = 200

    def environment(self, port: int, user: str = "ada", server: str = "") -> dict[str, str]:
        """What it would give a server that it spawns."""
        prefix = f"/user/{user}/{server}/" if server else f"/user/{user}/"
        scopes = [f"access:servers!server={user}/{server}", f"access:servers!user={user}"]
        return {
            "JUPYTERHUB_SERVICE_URL": f"http://127.0.0.1:{port}{prefix}",
            "JUPYTERHUB_SERVICE_PREFIX": prefix,
            "JUPYTERHUB_BASE_URL": "/",
            "JUPYTERHUB_USER": user,
            "JUPYTERHUB_SERVER_NAME": server,
            "JUPYTERHUB_API_URL": self.url,
            "JUPYTERHUB_API_TOKEN": API_TOKEN,
            "JUPYTERHUB_ACTIVITY_URL": f"{self.url}/users/{user}/activity",
            "JUPYTERHUB_ACTIVITY_INTERVAL": "1",
            "JUPYTERHUB_OAUTH_ACCESS_SCOPES": json.dumps(scopes),
        }

    def sign_in(self, question: str, name: str, *scopes: str) -> str:
        """What a browser does there as this user: the address that it is sent back to."""
        parts = urlsplit(question)
        asked = {key: values[0] for key, values in parse_qs(parts.query, strict_parsing=True).items()}
        assert (parts.netloc, parts.path) == ("", "/hub/api/oauth2/authorize")
        assert set(asked) == {"response_type", "client_id", "redirect_uri", "state"}
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked, {"kind": "user", "name": name, "scopes": scopes}
        return f"{asked['redirect_uri']}?{urlencode({'code': code, 'state': asked['state']})}"

    def exchange(self, form: dict[str, str]) -> tuple[int, object]:
        """The answer to a code."""
        self.exchanged.append(form)
        if self.status != 200:
            return self.status, {}
        asked, user = self.codes.pop(form["code"], ({}, {}))
        ours = form["client_secret"] == API_TOKEN and form["grant_type"] == "authorization_code"
        if not ours or any(form[name] != asked.get(name) for name in ("client_id", "redirect_uri")):
            return 400, {"error": "invalid_grant"}
        token = secrets.token_hex(16)
        self.users[token] = user
        return 200, {"access_token": token, "token_type": "Bearer"}

    def report(self, authorization: str, body: bytes) -> tuple[int, object]:
        """The answer to a report of activity."""
        assert authorization == f"token {API_TOKEN}"
        if self.status == 200:
            self.reported.append(json.loads(body))
        return self.status, None


@contextmanager
def serving_hub() -> Iterator[FakeHub]:
    """A Hub's API on this machine."""
    hub = FakeHub()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            user = hub.users.get(self.headers["Authorization"].removeprefix("token "))
            self._say(403 if user is None else 200, user)

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.path == "/hub/api/oauth2/token":
                form = parse_qs(body.decode(), strict_parsing=True)
                self._say(*hub.exchange({name: values[0] for name, values in form.items()}))
            else:
                assert self.path == "/hub/api/users/ada/activity"
                self._say(*hub.report(self.headers["Authorization"], body))

        def _say(self, status: int, found: object) -> None:
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}/hub/api"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()
