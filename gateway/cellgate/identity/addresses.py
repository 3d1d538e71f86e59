"""Addresses: which of them mean this machine, and which services are trusted with identities. Pure."""

from __future__ import annotations

import ipaddress
from functools import lru_cache
from urllib.parse import urlsplit

from cellgate_kernels.base.errors import InvalidInput


@lru_cache(maxsize=64)
def is_loopback(name: str) -> bool:
    """Return whether a host name or address can only mean this machine."""
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def check_url(url: str, what: str, *, plain: bool = False) -> str:
    """Return the URL of a service trusted with identities. Raises InvalidInput that names it `what`.

    Its scheme must be https, or http on this machine: on a network, any host could answer in the service's
    place. With `plain`, http of any host is accepted.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        parts, port = urlsplit(""), 0
    host = parts.hostname or ""
    ours = is_loopback(host)
    usable = host and port != 0 and url.isascii() and url.isprintable() and " " not in url
    if not usable or parts.scheme not in {"https", "http"} or "@" in parts.netloc or parts.fragment:
        raise InvalidInput(f"{what} must be a URL such as https://login.example.org, not {url[:200]!r}")
    if parts.scheme == "http" and not (plain or ours):
        raise InvalidInput(f"{what} must begin with https://, unless it is on this machine: {url[:200]!r}")
    return url


def is_local(url: str) -> bool:
    """Return whether the host of this URL can only mean this machine."""
    return is_loopback(urlsplit(url).hostname or "")
