"""The request bodies of the wire, and the checks of their values.

Decoding is strict: unknown fields and wrong types are refused with the name of the field, and decoded values
are frozen. The behaviour of sessions is elsewhere. The gateway's answers are in ``answers``.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, TypedDict, TypeVar

import msgspec
from msgspec import Meta

from cellgate.wire.base import Body
from cellgate.wire.limits import LimitsBody
from cellgate_kernels.decoding import json_decoder
from cellgate_kernels.errors import InvalidInput
from cellgate_kernels.structure import weigh

SESSION_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}", re.ASCII)
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
MAX_CODE_BYTES = 10 * 1024 * 1024
MAX_SEARCHED_BYTES = 128 * 1024
"""The most code that is searched for imports: nothing else runs while Python parses it."""
MAX_ENV = 64
MAX_ENV_BYTES = 32 * 1024
MAX_METADATA_BYTES = 64 * 1024
MAX_METADATA_DEPTH = 32
MAX_STDIN_LINES = 10_000
MAX_TABLE_ROWS = 10_000

_KEY = {"pattern": f"^{SESSION_KEY.pattern}$"}
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")

T = TypeVar("T")


class SessionBody(Body, frozen=True, forbid_unknown_fields=True):
    """A session to be created, or found if there is one with this key."""

    session: Annotated[
        str | None, Meta(description="The key; without one the gateway chooses.", extra_json_schema=_KEY)
    ] = None
    kernel: Annotated[str | None, Meta(description="The kernelspec.")] = None
    language: Annotated[str | None, Meta(description="A language, where no kernelspec is named.")] = None
    env: Annotated[dict[str, str] | None, Meta(description="Environment variables of its kernels.")] = None
    limits: LimitsBody | None = None
    metadata: Annotated[dict[str, Any] | None, Meta(description="Kept with it, up to 64 KiB.")] = None


class CellOptions(Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a cell is run, on every way in: the only list of these options.

    The requests below extend it, ``execution.request`` checks it, and `CellKeywords` has them as keywords.
    """

    timeout: Annotated[
        float | None,
        Meta(
            description="Seconds that the cell may run; default: the session's `cell_timeout`.",
            extra_json_schema={"exclusiveMinimum": 0},
        ),
    ] = None
    stdin: Annotated[
        list[str] | None,
        Meta(description="Lines that answer `input()`; when they are used up, it raises EOFError."),
    ] = None
    silent: Annotated[bool, Meta(description="Run without output and without counting.")] = False
    env: Annotated[
        dict[str, str] | None, Meta(description="Environment variables for this cell alone (Python kernels).")
    ] = None
    language: Annotated[
        str | None, Meta(description="What `code` is in, if not in the kernel's language.")
    ] = None
    tables: Annotated[
        int | None,
        Meta(
            description="Show pandas' tables as data too, with so many of their first rows.",
            extra_json_schema={"minimum": 1, "maximum": MAX_TABLE_ROWS},
        ),
    ] = None
    packages: Annotated[
        str | None,
        Meta(
            description="`auto`: install what the cell imports and is missing; `temporary`: for this cell.",
            extra_json_schema={"enum": ["auto", "temporary", None]},
        ),
    ] = None


class CellKeywords(TypedDict, total=False):
    """`CellOptions` as keyword arguments; None means not given."""

    timeout: float | None
    stdin: list[str] | None
    silent: bool | None
    env: dict[str, str] | None
    language: str | None
    tables: int | None
    packages: str | None


class ExecuteBody(CellOptions, frozen=True, forbid_unknown_fields=True):
    """A cell to be run in a session."""

    code: Annotated[str, Meta(description="The cell.")]
    on_disconnect: Annotated[
        str,
        Meta(
            description="What becomes of the cell when its client leaves.",
            extra_json_schema={"enum": ["continue", "interrupt"]},
        ),
    ] = "continue"
    wait: Annotated[bool, Meta(description="False: answer 202 at once.")] = True


class OneShotBody(ExecuteBody, frozen=True, forbid_unknown_fields=True):
    """A cell to be run in a fresh kernel."""

    kernel: Annotated[str | None, Meta(description="The kernelspec.")] = None
    limits: LimitsBody | None = None
    record: Annotated[bool, Meta(description="Whether a session of it stays in the record.")] = False


class BlockBody(Body, frozen=True, forbid_unknown_fields=True):
    """A block of code."""

    language: str
    code: str


class BlocksBody(Body, frozen=True, forbid_unknown_fields=True):
    """Blocks to be run in order: either `markdown` or `blocks`."""

    markdown: Annotated[str | None, Meta(description="A text whose fences are the blocks.")] = None
    blocks: list[BlockBody] | None = None
    timeout: Annotated[float | None, Meta(description="Seconds, for each block.")] = None
    on_disconnect: Annotated[
        str,
        Meta(
            description="What becomes of the running block when its client leaves.",
            extra_json_schema={"enum": ["continue", "interrupt"]},
        ),
    ] = "continue"


class InputBody(Body, frozen=True, forbid_unknown_fields=True):
    """The answer to an input_request."""

    value: str


class SocketInput(InputBody, frozen=True, forbid_unknown_fields=True):
    """The answer to an execution's input_request."""

    execution: str


class Command(Body, frozen=True, forbid_unknown_fields=True):
    """One frame from a client on the WebSocket of events: exactly one of the three actions."""

    execute: ExecuteBody | None = None
    interrupt: bool = False
    input: SocketInput | None = None
    id: Annotated[str | int | None, Meta(description="Comes back in the answer.")] = None


class PackagesBody(Body, frozen=True, forbid_unknown_fields=True):
    """Packages to be installed and removed."""

    install: Annotated[list[str], Meta(description='Requirements such as `"requests>=2"`.')] = []
    uninstall: Annotated[list[str], Meta(description="Names.")] = []
    upgrade: Annotated[bool, Meta(description="Whether newer versions are wanted, too.")] = False
    constraints: Annotated[
        list[str], Meta(description="Limits of the versions of all that comes along.")
    ] = []


class ReplayBody(Body, frozen=True, forbid_unknown_fields=True):
    """How a session is replayed."""

    anyway: Annotated[bool, Meta(description="Also where the environment differs from the recorded one.")] = (
        False
    )
    rtol: Annotated[
        float, Meta(description="How far floating-point numbers may be apart, relative to the larger one.")
    ] = 0.0


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
    """Like `decode`, for use in a thread. Refuses bodies of too many objects: these would hold the GIL."""
    if weigh(body) is None:
        raise InvalidInput("The request body has too many parts, or too many long numbers")
    return decode(body, kind)


def check_session_key(key: str) -> str:
    """The key, or InvalidInput when it is malformed."""
    if not SESSION_KEY.fullmatch(key):
        raise InvalidInput(
            "A session key is 1 to 128 of A-Z a-z 0-9 . _ ~ - and begins with a letter or a digit"
        )
    return key


def check_text(value: str, name: str, max_bytes: int) -> str:
    """`value`, or InvalidInput when kernels can't take it: NUL, lone surrogates, or too long."""
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
    """Raises InvalidInput when a session's metadata is too large, too deep, or can't be sent as JSON."""
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
