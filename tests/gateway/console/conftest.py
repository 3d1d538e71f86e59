"""A browser of sorts, which signs in to the console of a gateway and then asks as its page does."""

from __future__ import annotations

from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import urlsplit

from tests.support.server import TOKEN, GatewayProcess, Response

HTML = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


@dataclass
class Browser:
    """Keeps cookies, whatever their paths, and says where its requests come from."""

    gateway: GatewayProcess
    cookies: dict[str, str] = field(default_factory=dict)

    def _send(self, method: str, path: str, body: object = None, **headers: str | None) -> Response:
        sent = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        if self.cookies:
            sent.setdefault("Cookie", "; ".join(f"{name}={value}" for name, value in self.cookies.items()))
        answer = self.gateway.request(method, path, body, token=None, headers=sent)
        for set_cookie in answer.headers.get_all("Set-Cookie", []):
            for name, morsel in SimpleCookie(set_cookie).items():
                if morsel["max-age"] == "0":
                    self.cookies.pop(name, None)
                else:
                    self.cookies[name] = morsel.value
        return answer

    def visit(self, path: str, site: str | None = "none", **headers: str) -> Response:
        """Open an address, typed in or, from another `site`, by a link."""
        return self._send("GET", path, Accept=HTML, Sec_Fetch_Site=site, Sec_Fetch_Dest="document", **headers)

    def ask(self, method: str, path: str, body: object = None, **headers: str | None) -> Response:
        """A request of the page's own."""
        return self._send(method, path, body, **{"Sec_Fetch_Site": "same-origin", **headers})

    def enter(self, token: str = TOKEN, at: str = "") -> None:
        """Sign in by a ticket. `at`: the base URL."""
        answer = self.visit(ticket_path(self.gateway, token, at))
        assert (answer.status, answer.headers["Location"]) == (303, f"{at}/"), answer.body

    @property
    def cookie(self) -> dict[str, str]:
        """Headers of a request of the page's own, for other clients."""
        pairs = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        return {"Cookie": pairs, "Origin": self.gateway.url, "Sec-Fetch-Site": "same-origin"}

    def me(self, **headers: str | None) -> Any:
        """As whom it is signed in."""
        answer = self.ask("GET", "/v1/me", **headers)
        return answer.json()["principal"] if answer.status == 200 else answer.status


def ticket_path(gateway: GatewayProcess, token: str = TOKEN, at: str = "") -> str:
    """The path of an address with a ticket."""
    answer = gateway.post(f"{at}/v1/console", token=token)
    assert answer.status == 200, answer.body
    parts = urlsplit(answer.json()["url"])
    assert (parts.netloc, parts.path) == (gateway.host, f"{at}/")
    return f"{parts.path}?{parts.query}"
