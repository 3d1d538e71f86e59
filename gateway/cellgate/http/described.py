"""Names requests in logs and traces, without secrets and with limited length.

A token may be in a path because a client can send it nowhere else (LibreChat), or by mistake. In any path,
words that look like our tokens are masked, and so are words that the gateway knows as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

from tornado.httputil import HTTPServerRequest

LONGEST_METHOD = 16
LONGEST_PATH = 256
_MOST_READ = 4096
"""Of a longer path only the beginning is read."""
_MASKED = "..."
_DOOR = "librechat"
_FURTHEST = 8
"""Most path segments of the gateway's own address, before the door's."""
_KEY = "key"
_CALLED = re.compile(
    r"(?:exec|exec/programmatic|upload|upload/batch|download/[^/]++/[^/]++|sessions/[^/]++/objects/[^/]++"
    r"|files/[^/]++)/?",
    re.IGNORECASE,
)
"""Operations of that door; the text before them is meant as a token, which may have slashes."""
_MOST_CALLED = 5
"""Most words of such an operation."""
_LOOKS = re.compile(
    r"cg_[0-9a-f]{6,64}+_|cgticket-|(?<![\w-])eyJ[A-Za-z0-9_-]{8,}+\.|\b[0-9a-f]{32}\.[0-9a-f]{64}\b",
    re.IGNORECASE,
)
"""The beginnings of users' tokens, tickets, signed tokens (JWT), and tokens for one thing."""
_SHORTEST = 4
"""Least characters of a word that may be a token."""
_TIMES = 3
"""Most levels of quoting of a word."""

IsToken = Callable[[str], bool]


def nothing_known(_: str) -> bool:
    """Return False: only words that look like a token are masked."""
    return False


def method_of(request: HTTPServerRequest) -> str:
    """Return the method, which may be any word."""
    return (request.method or "")[:LONGEST_METHOD]


def path_of(request: HTTPServerRequest, is_token: IsToken = nothing_known) -> str:
    """Return the path without query and token. `is_token`: whether the gateway knows a word as a token.

    A request to a proxy has a whole URL in place of the path, which may hold a name and a password.
    """
    path = request.path
    if not path.startswith("/"):
        return "(no path)"
    if len(path) > _MOST_READ:
        # Half a token does not look like one.
        path = path[:_MOST_READ].rpartition("/")[0] + f"/{_MASKED}"
    words = _without_key(path.split("/"))
    return "/".join(masked(word, is_token) for word in words)[:LONGEST_PATH]


def _without_key(words: list[str]) -> list[str]:
    """Return words of a path without the token that a LibreChat client has put before the operation."""
    doors = (at for at, word in enumerate(words[:_FURTHEST]) if _unquoted(word).lower() == _DOOR)
    if (door := next(doors, None)) is None:
        return words
    begin = door + 1
    if words[begin : begin + 1] and _unquoted(words[begin]).lower() == _KEY:
        begin += 1
    ends = range(max(begin, len(words) - _MOST_CALLED), len(words))
    end = next((at for at in ends if _CALLED.fullmatch("/".join(words[at:]))), len(words))
    return words if end == begin else [*words[:begin], _MASKED, *words[end:]]


def masked(word: str, is_token: IsToken) -> str:
    """Return a word of a path, or a mask if it is a token."""
    text = _unquoted(word)
    return _MASKED if len(text) >= _SHORTEST and (_LOOKS.search(text) or is_token(text)) else word


def _unquoted(word: str) -> str:
    for _ in range(_TIMES):
        if "%" not in word:
            break
        word = unquote(word)
    return word


def described(request: HTTPServerRequest, is_token: IsToken = nothing_known) -> str:
    """Return a request's method and path, without tokens."""
    return f"{method_of(request)} {path_of(request, is_token)}"
