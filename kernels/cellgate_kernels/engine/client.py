"""Makes the SDK's client of a container engine: the one way to connect to one, for ``engine`` and others.

Blocking. It decides nothing about containers; ``engine.explained`` translates its errors.
"""

from __future__ import annotations

import socket

from docker.api.client import APIClient
from docker.errors import DockerException

_UNIX = "unix://"


def connect(url: str, timeout: float) -> APIClient:
    """Return a client of the engine at `url`, in the latest version of the API that both support.

    Raises OSError or DockerException when no engine answers; then nothing is left open. We try first, because
    the SDK never closes a socket that it can't connect, and stored errors keep it open.
    """
    if url.startswith(_UNIX):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as tried:
            tried.settimeout(timeout)
            tried.connect(f"/{url.removeprefix(_UNIX).removeprefix('/')}")
    try:
        return APIClient(base_url=url, version="auto", timeout=timeout)
    except (ValueError, TypeError, KeyError) as error:
        # The URL is malformed, or the answer is not from an engine.
        raise DockerException(f"{url}: {error}") from error
