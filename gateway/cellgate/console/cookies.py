"""The cookie of a browser that is signed in to the console, and that of one that is about to. Pure.

Their names begin like those of all our cookies, so that no program at a port of a session gets them, nor can
set them by its answers (``ports.headers``). Cookies know no ports, so the name has that of the gateway:
otherwise two gateways on one host would sign each other's users out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

COOKIE: Final = "cellgate-console"
ASKING: Final = "cellgate-sign-in"
"""Of the cookie of a browser that was sent to an identity provider."""
ASKING_SECONDS: Final = 600
MOST_LENGTH: Final = 128
_SECRET: Final = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class CookiePlace:
    """Where a gateway is for a browser: its `Host` field, whether by TLS, and the path that it serves below.

    `base_url` begins with a slash and ends without, or is empty. `asking`: the cookie is that of a browser
    which was sent to an identity provider, and has to come with its visit from there.
    """

    host: str
    secure: bool
    base_url: str = ""
    asking: bool = False

    @property
    def name(self) -> str:
        """The cookie's name. A prefix has browsers take it from this very host alone, or at least by TLS."""
        prefix = "" if not self.secure else "__Host-" if self.path == "/" else "__Secure-"
        try:
            port = urlsplit(f"//{self.host}").port
        except ValueError:
            port = None
        name = f"{prefix}{ASKING if self.asking else COOKIE}"
        return name if port is None else f"{name}-{port}"

    @property
    def path(self) -> str:
        """The path below which a browser sends it: of other services of the host nobody gets it.

        Of the cookie that asks, they may: it is worth nothing without the provider's answer, and by TLS no
        other host can set it then, which would sign somebody in as another.
        """
        if self.asking and self.secure:
            return "/"
        if ";" in self.base_url:
            # It would end the attribute: the path above is the nearest that can be said.
            return self.base_url.partition(";")[0].rpartition("/")[0] or "/"
        return f"{self.base_url}/"

    def field(self, secret: str) -> str:
        """The Set-Cookie field that gives a browser its secret, or takes it away if that is empty."""
        secure = "; Secure" if self.secure else ""
        site = "Lax" if self.asking else "Strict"
        seconds = 0 if not secret else ASKING_SECONDS if self.asking else None
        over = "" if seconds is None else f"; Max-Age={seconds}"
        return f"{self.name}={secret}; Path={self.path}; HttpOnly; SameSite={site}{secure}{over}"

    def secrets(self, cookies: Iterable[str]) -> list[str]:
        """The secrets in a request's Cookie fields: all of them, as pages of neighbours can add others."""
        own = self.name
        found: dict[str, None] = {}
        for field in cookies:
            for pair in field.split(";"):
                name, _, value = pair.partition("=")
                secret = value.strip()
                if name.strip() == own and len(secret) <= MOST_LENGTH and _SECRET.fullmatch(secret):
                    found[secret] = None
        return list(found)
