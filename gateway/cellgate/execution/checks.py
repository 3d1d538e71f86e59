"""Checks of values in requests that types can't express: keys, texts, variables, metadata.

The checks are the same for every way in: a request body, a query, a Jupyter client's message. The limits of
sessions and cells are in ``limits``. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from cellgate.wire.models import ENV_NAME, SESSION_KEY
from cellgate_kernels.base.errors import InvalidInput

MAX_ENV = 64
MAX_ENV_BYTES = 32 * 1024
MAX_METADATA_BYTES = 64 * 1024
MAX_METADATA_DEPTH = 32
MAX_TITLE = 200
IDEMPOTENCY_KEY = "Idempotency-Key"
"""The header whose value a repeat of a request has, too."""
MAX_IDEMPOTENCY_KEY = 255
_SHOWN_KEY = 40


def check_idempotency_key(key: str | None) -> str | None:
    """Return the idempotency key of a request, which may have none, or InvalidInput when it is malformed."""
    if key is None:
        return None
    if not key or len(key) > MAX_IDEMPOTENCY_KEY:
        raise InvalidInput(f"{IDEMPOTENCY_KEY} must be 1 to {MAX_IDEMPOTENCY_KEY} characters long")
    return check_text(key, IDEMPOTENCY_KEY, 4 * MAX_IDEMPOTENCY_KEY)


def check_session_key(key: str) -> str:
    """Return the key, or InvalidInput when it is malformed."""
    if not key:
        raise InvalidInput(
            "The session key is empty; all sessions are at /v1/sessions, without a slash behind"
        )
    if not SESSION_KEY.fullmatch(key):
        raise InvalidInput(
            "A session key is 1 to 128 of A-Z a-z 0-9 . _ ~ - and begins with a letter or a digit"
        )
    return key


def check_text(value: str, name: str, max_bytes: int) -> str:
    """Return `value`, or raise InvalidInput if kernels can't take it: NUL, lone surrogates, or too long."""
    if "\x00" in value:
        raise InvalidInput(f"{name} must not contain NUL characters")
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        raise InvalidInput(f"{name} must not contain lone surrogates") from None
    if size > max_bytes:
        raise InvalidInput(f"{name} is {size} bytes long; at most {max_bytes} are taken")
    return value


def check_env(env: dict[str, str] | None) -> tuple[tuple[str, str], ...]:
    """Return the environment as sorted pairs, or InvalidInput."""
    if not env:
        return ()
    if len(env) > MAX_ENV:
        raise InvalidInput(f"env has {len(env)} variables; at most {MAX_ENV} are taken")
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name) or name.startswith("CELLGATE_"):
            raise InvalidInput(f"env: {name[:40]!r} is no name of a variable, or one of Cellgate's own")
        check_text(value, f"env.{name}", MAX_ENV_BYTES)
    return tuple(sorted(env.items()))


def check_title(title: str) -> str:
    """Return a session's title without space around it. Raises InvalidInput."""
    title = title.strip()
    if len(title) > MAX_TITLE or not all(each.isprintable() for each in title):
        raise InvalidInput(f"title must have at most {MAX_TITLE} printable characters, in one line")
    return title


def check_metadata(metadata: dict[str, Any] | None) -> None:
    """Raise InvalidInput when a session's metadata is too large, too deep, or can't be sent as JSON."""
    too_deep = f"metadata is nested more than {MAX_METADATA_DEPTH} levels deep"
    try:
        size = len(msgspec.json.encode(metadata))
    except UnicodeEncodeError:
        raise InvalidInput(f"metadata must not contain lone surrogates{_at(metadata, _is_broken)}") from None
    except RecursionError:
        raise InvalidInput(too_deep) from None
    if size > MAX_METADATA_BYTES:
        raise InvalidInput(f"metadata is {size} bytes long; at most {MAX_METADATA_BYTES} are taken")
    if _depth_exceeds(metadata, MAX_METADATA_DEPTH):
        where = _at(metadata, lambda each: _depth_exceeds(each, MAX_METADATA_DEPTH))
        raise InvalidInput(f"{too_deep}{where}")


def _at(metadata: dict[str, Any] | None, is_wrong: Callable[[dict[str, Any]], bool]) -> str:
    """Return which of the keys is at fault, to append to a refusal."""
    for name, value in (metadata or {}).items():
        if is_wrong({name: value}):
            return f": see the key '{ascii(name)[1:-1][:_SHOWN_KEY]}'"
    return ""


def _is_broken(metadata: dict[str, Any]) -> bool:
    """Return whether a text in it is no valid Unicode."""
    try:
        msgspec.json.encode(metadata)
    except UnicodeEncodeError:
        return True
    return False


def _depth_exceeds(value: Any, depth: int) -> bool:
    if isinstance(value, dict):
        children = list(value.values())
    elif isinstance(value, list):
        children = value
    else:
        return False
    if not children:
        return False
    if depth == 0:
        return True
    return any(_depth_exceeds(child, depth - 1) for child in children)
