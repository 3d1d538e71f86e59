"""The wire's request bodies and the values they become, and the model of a session that it answers with.

Decoding is strict: unknown fields and wrong types are refused with the name of the field, and what is
decoded is frozen. It holds no behaviour of sessions; it talks to msgspec, ``kernels.limits`` and rows.
"""

from __future__ import annotations

import math
import re
import time
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, TypeVar

import msgspec

from gateway.record.rows import SessionRow
from kernels.errors import InvalidInput
from kernels.limits import ResourceLimits, parse_size
from kernels.messages import Message

SESSION_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}", re.ASCII)
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
MAX_CODE_BYTES = 10 * 1024 * 1024
MAX_ENV = 64
MAX_ENV_BYTES = 32 * 1024
MAX_METADATA_BYTES = 64 * 1024
MAX_METADATA_DEPTH = 32
MAX_STDIN_LINES = 10_000
MAX_TABLE_ROWS = 10_000
MAX_SECONDS = 30 * 24 * 3600.0

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

T = TypeVar("T")


def now() -> str:
    """The present as RFC 3339 UTC with six digits and `Z`: what every client of the field can parse."""
    seconds, microseconds = divmod(time.time_ns() // 1000, 1_000_000)
    return f"{_second(seconds)}.{microseconds:06}Z"


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    # Six events a cell are told the time: the calendar is the same for all of them.
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """A session's bounds: its kernel's resources, and times in seconds."""

    resources: ResourceLimits = field(default_factory=ResourceLimits)
    cell_timeout: float = 60.0
    idle_timeout: float = 1800.0
    lifetime: float = 86400.0

    def to_wire(self) -> dict[str, Any]:
        """The flat object of the wire; sizes in bytes."""
        times = {name: getattr(self, name) for name in ("cell_timeout", "idle_timeout", "lifetime")}
        return {**asdict(self.resources), **times}


class LimitsBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """`limits` of a request: what is absent keeps the gateway's default."""

    memory: str | int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk: str | int | None = None
    cell_timeout: float | None = None
    idle_timeout: float | None = None
    lifetime: float | None = None


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


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as `kind`; an empty body is an empty object. Raises InvalidInput that names the field."""
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"The request body does not fit: {error}") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        # msgspec calls a lone surrogate at the end of a string truncated data.
        hint = "; surrogate escapes must come in pairs" if _SURROGATE.search(body) else ""
        raise InvalidInput(f"The request body is not valid JSON: {error}{hint}") from error
    except RecursionError as error:
        raise InvalidInput("The request body is nested too deeply") from error


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
    if _depth_exceeds(metadata, MAX_METADATA_DEPTH):
        raise InvalidInput(f"metadata is nested more than {MAX_METADATA_DEPTH} levels deep")
    try:
        size = len(msgspec.json.encode(metadata))
    except UnicodeEncodeError:
        raise InvalidInput("metadata must not contain lone surrogates") from None
    if size > MAX_METADATA_BYTES:
        raise InvalidInput(f"metadata is {size} bytes long; at most {MAX_METADATA_BYTES} are taken")


def _depth_exceeds(value: Any, depth: int) -> bool:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return bool(children) and (depth == 0 or any(_depth_exceeds(child, depth - 1) for child in children))


def check_seconds(value: float, name: str) -> float:
    """A duration above zero and at most 30 days, or InvalidInput."""
    if not math.isfinite(value) or not 0 < value <= MAX_SECONDS:
        raise InvalidInput(f"{name} must be above 0 and at most {MAX_SECONDS:.0f} seconds")
    return float(value)


def merge_limits(defaults: SessionLimits, body: LimitsBody | None) -> SessionLimits:
    """The gateway's defaults with what the caller named. Raises InvalidInput."""
    if body is None:
        return defaults
    resources: dict[str, Any] = {}
    for name in ("memory", "disk"):
        if (size := getattr(body, name)) is not None:
            resources[name] = parse_size(size, name=f"limits.{name}")
    for name in ("cpus", "pids"):
        if (count := getattr(body, name)) is not None:
            resources[name] = count
    times = {
        name: check_seconds(value, f"limits.{name}")
        for name in ("cell_timeout", "idle_timeout", "lifetime")
        if (value := getattr(body, name)) is not None
    }
    return replace(defaults, resources=replace(defaults.resources, **resources), **times)


def session_model(row: SessionRow, *, kernel_id: str | None = None, queue_length: int = 0) -> dict[str, Any]:
    """The wire's model of a session, live or ended."""
    return {
        "session": row.key,
        "kernel": row.kernel,
        "kernel_id": kernel_id,
        "state": row.state,
        "cause": row.cause,
        "isolation": row.isolation,
        "created_at": row.created_at,
        "last_activity": row.last_activity,
        "execution_count": row.execution_count,
        "queue_length": queue_length,
        "limits": row.limits,
        "metadata": row.metadata,
        "head": row.head.hex(),
    }


@dataclass(frozen=True, slots=True)
class ExecuteRequest:
    """A checked request to run one cell. `timeout` in seconds, None for the session's `cell_timeout`.

    `tables`: rows at most of tables as data, None for no data. `message`: a client's own execute_request, to
    be sent as it is; `cell_id`: the notebook cell it names.
    `packages`: ``auto`` installs what the cell imports and is missing, ``temporary`` for this cell only.
    """

    code: str
    timeout: float | None = None
    stdin: tuple[str, ...] | None = None
    silent: bool = False
    env: tuple[tuple[str, str], ...] = ()
    allow_stdin: bool = False
    store_history: bool = True
    stop_on_error: bool = False
    cell_id: str | None = None
    message: Message | None = None
    tables: int | None = None
    packages: str | None = None


def check_execute(body: ExecuteBody, *, interactive: bool) -> ExecuteRequest:
    """The body's values, checked. `interactive`: somebody can answer an input_request later."""
    if body.on_disconnect not in {"continue", "interrupt"}:
        raise InvalidInput("on_disconnect must be 'continue' or 'interrupt'")
    if body.packages not in {None, "auto", "temporary"}:
        raise InvalidInput("packages must be 'auto' or 'temporary'")
    if body.stdin is not None and len(body.stdin) > MAX_STDIN_LINES:
        raise InvalidInput(f"stdin has {len(body.stdin)} lines; at most {MAX_STDIN_LINES} are taken")
    if body.tables is not None and not 1 <= body.tables <= MAX_TABLE_ROWS:
        raise InvalidInput(f"tables must be a number of rows from 1 to {MAX_TABLE_ROWS}")
    lines = None if body.stdin is None else tuple(check_text(x, "stdin", MAX_CODE_BYTES) for x in body.stdin)
    return ExecuteRequest(
        code=check_text(body.code, "code", MAX_CODE_BYTES),
        timeout=None if body.timeout is None else check_seconds(body.timeout, "timeout"),
        stdin=lines,
        silent=body.silent,
        env=check_env(body.env),
        allow_stdin=interactive or lines is not None,
        tables=body.tables,
        packages=body.packages,
    )
