"""How logs and traces name a request: by what tells nobody's secrets, and not at any length."""

from __future__ import annotations

import re

from tornado.httputil import HTTPServerRequest

LONGEST_METHOD = 16
LONGEST_PATH = 256
_KEY = re.compile(
    r"(/librechat/key/).*?(/(?:exec|upload|download|sessions|files)(?:/.*)?)?\Z", re.DOTALL | re.IGNORECASE
)
"""A token in a path: where a door's clients can send it in no other way. It may have slashes itself."""


def method_of(request: HTTPServerRequest) -> str:
    """The method, which may be any word."""
    return (request.method or "")[:LONGEST_METHOD]


def path_of(request: HTTPServerRequest) -> str:
    """The path, without its query, and without a token.

    A request to a proxy has a whole URL in place of the path, which may hold a name and a password.
    """
    return _KEY.sub(r"\1...\2", request.path)[:LONGEST_PATH] if request.path.startswith("/") else "(no path)"


def described(request: HTTPServerRequest) -> str:
    """Method and path."""
    return f"{method_of(request)} {path_of(request)}"
