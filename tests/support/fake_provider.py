"""An identity provider that signs anybody in, and whose answers a test may spoil."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from tests.support.identity import key_set, signer

CLIENT = "cellgate-console"


@dataclass
class Provider:
    """What it has been asked, and what it says. `claims`: more of the ID token, in place of its own."""

    issuer: str = ""
    claims: dict[str, Any] = field(default_factory=dict)
    status: int = 200
    answer: bytes | None = None
    codes: dict[str, dict[str, str]] = field(default_factory=dict)
    exchanged: list[dict[str, str]] = field(default_factory=list)
    signer: str = "one"

    def sign_in(self, question: str) -> str:
        """What a browser does there: the address that it is sent back to."""
        parts = urlsplit(question)
        asked = {name: values[0] for name, values in parse_qs(parts.query, strict_parsing=True).items()}
        assert f"{parts.scheme}://{parts.netloc}{parts.path}" == f"{self.issuer}/authorize"
        assert (asked["response_type"], asked["client_id"]) == ("code", CLIENT)
        assert asked["code_challenge_method"] == "S256"
        assert "openid" in asked["scope"].split()
        code = secrets.token_urlsafe(16)
        self.codes[code] = asked
        answer = {"code": code, "state": asked["state"], "iss": self.issuer}
        return f"{asked['redirect_uri']}?{urlencode(answer)}"

    def discovery(self) -> dict[str, str]:
        names = {"authorization_endpoint": "authorize", "token_endpoint": "token", "jwks_uri": "keys"}
        return {"issuer": self.issuer} | {name: f"{self.issuer}/{path}" for name, path in names.items()}

    def exchange(self, form: Mapping[str, str]) -> tuple[int, bytes]:
        """The answer to a code."""
        self.exchanged.append(dict(form))
        if self.answer is not None or self.status != 200:
            return self.status, self.answer or b"{}"
        asked = self.codes.pop(form["code"], None)
        hashed = base64.urlsafe_b64encode(hashlib.sha256(form["code_verifier"].encode()).digest())
        good = asked is not None and asked["code_challenge"] == hashed.rstrip(b"=").decode()
        if asked is None or not good or form["redirect_uri"] != asked["redirect_uri"]:
            return 400, b'{"error":"invalid_grant"}'
        now = time.time()
        told = {"iss": self.issuer, "aud": CLIENT, "sub": "ada", "nonce": asked["nonce"]}
        claims = told | {"iat": now, "exp": now + 300} | self.claims
        kept = {name: value for name, value in claims.items() if value is not None}
        token = signer("ES256", self.signer).sign(kept)
        return 200, json.dumps({"id_token": token, "access_token": "x", "token_type": "Bearer"}).encode()


@contextmanager
def serving_provider() -> Iterator[Provider]:
    """A provider on this machine."""
    provider = Provider()

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path == "/.well-known/openid-configuration":
                self._say(200, json.dumps(provider.discovery()).encode())
            elif self.path == "/keys":
                self._say(200, key_set(signer("ES256", "one").jwk()))
            else:
                self._say(404, b"")

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            self._say(*provider.exchange({name: values[0] for name, values in form.items()}))

        def _say(self, status: int, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        provider.issuer = f"http://127.0.0.1:{server.server_port}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield provider
        finally:
            server.shutdown()
            thread.join()
