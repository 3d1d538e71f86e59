"""The wire's request bodies, and the checks of what is in them.

Decoding is strict: unknown fields and wrong types are refused with the name of the field, and what is
decoded is frozen. It holds no behaviour of sessions.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any, TypeVar

import msgspec

from cellgate.wire.limits import LimitsBody
from cellgate_kernels.decoding import json_decoder
from cellgate_kernels.errors import InvalidInput
from cellgate_kernels.structure import weigh

SESSION_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}", re.ASCII)
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
MAX_CODE_BYTES = 10 * 1024 * 1024
MAX_SEARCHED_BYTES = 128 * 1024
"""Of code that is searched for imports: nothing else runs while Python parses it."""
MAX_ENV = 64
MAX_ENV_BYTES = 32 * 1024
MAX_METADATA_BYTES = 64 * 1024
MAX_METADATA_DEPTH = 32
MAX_STDIN_LINES = 10_000
MAX_TABLE_ROWS = 10_000

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

T = TypeVar("T")


class SessionBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """POST /v1/sessions."""

    session: str | None = None
    kernel: str | None = None
    language: str | None = None
    env: dict[str, str] | None = None
    limits: LimitsBody | None = None
    metadata: dict[str, Any] | None = None


class ExecuteBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """POST /v1/sessions/{s}/execute. `language` is that of `code`; default: the kernel's own."""

    code: str
    timeout: float | None = None
    stdin: list[str] | None = None
    silent: bool = False
    on_disconnect: str = "continue"
    wait: bool = True
    env: dict[str, str] | None = None
    language: str | None = None
    tables: int | None = None
    packages: str | None = None


class OneShotBody(ExecuteBody, forbid_unknown_fields=True, frozen=True):
    """POST /v1/execute: an execution with the making of its kernel."""

    kernel: str | None = None
    limits: LimitsBody | None = None
    record: bool = False


class InputBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """POST .../input."""

    value: str


@cache
def _decoder(kind: type[Any]) -> msgspec.json.Decoder[Any]:
    return json_decoder(kind)


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as `kind`; an empty body is an empty object. Raises InvalidInput that names the field."""
    try:
        decoded: T = _decoder(kind).decode(body or b"{}")  # type: ignore[arg-type]  # a class is hashable
        return decoded
    except msgspec.ValidationError as error:
        raise InvalidInput(f"The request body does not fit: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # msgspec calls a lone surrogate at the end of a string truncated data.
        hint = "; surrogate escapes must come in pairs" if _SURROGATE.search(body) else ""
        raise InvalidInput(f"The request body is not valid JSON: {error}{hint}") from error
    except RecursionError as error:
        raise InvalidInput("The request body is nested too deeply") from error


def decode_heavy(body: bytes, kind: type[T]) -> T:
    """As `decode`, in a thread. A few bytes make an object, and many objects hold up everybody."""
    if weigh(body) is None:
        raise InvalidInput("The request body has too many parts, or too many long numbers")
    return decode(body, kind)


def check_session_key(key: str) -> str:
    """The key, or InvalidInput when it is none."""
    if not SESSION_KEY.fullmatch(key):
        raise InvalidInput(
            "A session key is 1 to 128 of A-Z a-z 0-9 . _ ~ - and begins with a letter or a digit"
        )
    return key


def check_text(value: str, name: str, max_bytes: int) -> str:
    """`value`, or InvalidInput when no kernel could take it: NUL, lone surrogates, too long."""
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
    """The environment as sorted pairs, or InvalidInput."""
    if not env:
        return ()
    if len(env) > MAX_ENV:
        raise InvalidInput(f"env has {len(env)} variables; at most {MAX_ENV} are taken")
    for name, value in env.items():
        if not ENV_NAME.fullmatch(name) or name.startswith("CELLGATE_"):
            raise InvalidInput(f"env: {name[:40]!r} is no name of a variable, or one of Cellgate's own")
        check_text(value, f"env.{name}", MAX_ENV_BYTES)
    return tuple(sorted(env.items()))


def check_metadata(metadata: dict[str, Any] | None) -> None:
    """Raises InvalidInput when a session's metadata is too large, too deep, or holds what JSON can't."""
    too_deep = f"metadata is nested more than {MAX_METADATA_DEPTH} levels deep"
    try:
        size = len(msgspec.json.encode(metadata))
    except UnicodeEncodeError:
        raise InvalidInput("metadata must not contain lone surrogates") from None
    except RecursionError:
        raise InvalidInput(too_deep) from None
    if size > MAX_METADATA_BYTES:
        raise InvalidInput(f"metadata is {size} bytes long; at most {MAX_METADATA_BYTES} are taken")
    if _depth_exceeds(metadata, MAX_METADATA_DEPTH):
        raise InvalidInput(too_deep)


def _depth_exceeds(value: Any, depth: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(children) and (depth == 0 or any(_depth_exceeds(child, depth - 1) for child in children))
