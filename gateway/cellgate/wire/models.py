"""The request bodies of the wire.

Bodies are frozen and strict: an unknown field and a wrong type are refused with the name of the field.
``http.base`` decodes them; ``execution.checks`` checks the values that types alone can't. The gateway's
answers are in ``answers``. Pure.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypedDict

from msgspec import Meta

from cellgate.wire.base import Body

SESSION_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}", re.ASCII)
MAX_CODE_BYTES = 10 * 1024 * 1024
MAX_SEARCHED_BYTES = 128 * 1024
"""The most code that is searched for imports: nothing else runs while Python parses it."""
MAX_STDIN_LINES = 10_000
MAX_TABLE_ROWS = 10_000

_KEY = {"pattern": f"^{SESSION_KEY.pattern}$"}


class LimitsBody(Body, frozen=True, forbid_unknown_fields=True):
    """`limits` of a request: absent fields keep the gateway's defaults."""

    memory: str | int | None = None
    cpus: float | None = None
    pids: int | None = None
    disk: str | int | None = None
    cell_timeout: float | None = None
    idle_timeout: float | None = None
    lifetime: float | None = None


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
