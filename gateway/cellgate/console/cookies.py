"""The cookies of browsers and clients that are signed in: to the console, at an identity provider on the way
there, or as to a Jupyter server. Pure.

Their names begin like those of all our cookies, so that no program at a port of a session gets them, nor can
set them by its answers (``ports.headers``). Cookies know no ports, so the name has that of the gateway:
otherwise two gateways on one host would sign each other's users out. That of the way to a provider has a sum
of the gateway's path, too.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

ASKING_SECONDS: Final = 600
MOST_LENGTH: Final = 1024
"""The most characters of a secret; only those of a cluster, with a login in them, have more than 128."""
_SECRET: Final = re.compile(r"[\w.-]+", re.ASCII)


class Purpose(StrEnum):
    """What a cookie is for, as its name says.

    `ASKING`: the cookie is that of a browser which was sent to an identity provider, and has to come with its
    visit from there.
    """

    CONSOLE = "cellgate-console"
    ASKING = "cellgate-sign-in"
    JUPYTER = "cellgate-jupyter"


@dataclass(frozen=True, slots=True)
class CookiePlace:
    """Where a gateway is for a browser: its `Host` field, whether by TLS, and the path that it serves below.

    `base_url` begins with a slash and ends without, or is empty.
    """

    host: str
    secure: bool
    base_url: str = ""
    purpose: Purpose = Purpose.CONSOLE

    @property
    def name(self) -> str:
        """The cookie's name. A prefix has browsers take it from this very host alone, or at least by TLS."""
        prefix = "" if not self.secure else "__Host-" if self.path == "/" else "__Secure-"
        try:
            port = urlsplit(f"//{self.host}").port
        except ValueError:
            port = None
        name = f"{prefix}{self.purpose}"
        if self.asking and self.base_url:
            # Gateways of one host, as those of a Hub, may all get it.
            name = f"{name}-{zlib.crc32(self.base_url.encode()):08x}"
        return name if port is None else f"{name}-{port}"

    @property
    def asking(self) -> bool:
        """Whether the cookie is for the way to an identity provider and back."""
        return self.purpose is Purpose.ASKING

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
        """Return the Set-Cookie field that gives a browser its secret, or takes it away if that is empty."""
        secure = "; Secure" if self.secure else ""
        site = "Lax" if self.asking else "Strict"
        seconds = 0 if not secret else ASKING_SECONDS if self.asking else None
        over = "" if seconds is None else f"; Max-Age={seconds}"
        return f"{self.name}={secret}; Path={self.path}; HttpOnly; SameSite={site}{secure}{over}"

    def secrets(self, cookies: Iterable[str]) -> list[str]:
        """Return secrets in a request's Cookie fields: all of them, as pages of neighbours can add others."""
        return values_of(cookies, self.name)


def values_of(cookies: Iterable[str], wanted: str) -> list[str]:
    """Return the values of the cookies of this name in a request's Cookie fields, each once."""
    found: dict[str, None] = {}
    for field in cookies:
        for pair in field.split(";"):
            name, _, value = pair.partition("=")
            secret = value.strip()
            if name.strip() == wanted and len(secret) <= MOST_LENGTH and _SECRET.fullmatch(secret):
                found[secret] = None
    return list(found)
