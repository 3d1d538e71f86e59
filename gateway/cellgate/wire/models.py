"""The request bodies of the wire.

Bodies are frozen and strict: an unknown field and a wrong type are refused with the name of the field.
``http.message`` decodes them; ``execution.checks`` checks the values that types alone can't. The gateway's
answers are in ``answers``. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypedDict

from msgspec import UNSET, Meta

from cellgate.wire.base import Body, say
from cellgate.wire.words import CheckpointMode, LanguageName, MissingPackages, NetworkAccess

SESSION_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._~-]{0,127}", re.ASCII)
ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}", re.ASCII)
MAX_CODE_BYTES = 10 * 1024 * 1024
MAX_SEARCHED_BYTES = 128 * 1024
"""The most code that is searched for imports: nothing else runs while Python parses it."""
MAX_STDIN_LINES = 10_000
MAX_TABLE_ROWS = 10_000
MOST_SEED = 2**32 - 1
MOST_ASKED_BYTES = 1024 * 1024
"""The most code that a kernel is asked to complete or to look at."""
MOST_ALTERNATIVES = 16
"""Cells that one request explores at most."""

_KEY = {"pattern": f"^{SESSION_KEY.pattern}$"}


_IdleTimeout = Annotated[
    float | None, say("Seconds without use after which the session falls asleep, or ends.")
]
_OnIdle = Annotated[
    Literal["sleep", "end"] | None,
    Meta(
        title="OnIdle",
        description=(
            "What follows the idle time. `sleep`, the default: the session keeps its variables, and its next "
            "use wakes it, where its kernel can sleep; elsewhere it ends. `end`: it ends in any case."
        ),
    ),
]


class LimitsBody(Body, frozen=True, forbid_unknown_fields=True):
    """Limits of a session; absent ones are the gateway's defaults."""

    memory: Annotated[str | int | None, say("The kernel's memory: bytes, or a size such as `512m`.")] = None
    cpus: Annotated[float | None, say("The number of processors; may be a fraction.")] = None
    pids: Annotated[int | None, say("The number of processes and threads.")] = None
    disk: Annotated[str | int | None, say("The workspace's size: bytes, or a size such as `1g`.")] = None
    cell_timeout: Annotated[float | None, say("Seconds a cell may run.")] = None
    idle_timeout: _IdleTimeout = None
    on_idle: _OnIdle = None
    lifetime: Annotated[float | None, say("Seconds after which the session ends.")] = None


class SessionBody(Body, frozen=True, forbid_unknown_fields=True):
    """The session to create, or to find if one with this key exists."""

    session: Annotated[
        str | None,
        Meta(description="The session's key; if absent, the gateway makes one up.", extra_json_schema=_KEY),
    ] = None
    kernel: Annotated[str | None, say("The name of the kernelspec; if absent, the gateway's default.")] = None
    language: Annotated[str | None, say("A language to choose the kernelspec by, instead of naming one.")] = (
        None
    )
    environment: Annotated[
        str | None,
        say("An environment of `GET /v1/environments`, instead of a kernelspec; its kernel is Python's."),
    ] = None
    env: Annotated[dict[str, str] | None, say("Environment variables for the session's kernels.")] = None
    limits: LimitsBody | None = None
    network: Annotated[
        Literal["none", "allow"] | None,
        Meta(
            title="NetworkAccess",
            description=(
                "`allow`: its cells reach the hosts that `/v1/info` names, through a proxy; by default they "
                "reach no network, or what the session had when it ended."
            ),
        ),
    ] = None
    metadata: Annotated[
        dict[str, Any] | None, say("Any JSON object, at most 64 KiB, kept with the session.")
    ] = None
    secrets: Annotated[
        list[str] | None,
        say(
            "Names of the owner's secrets that the session's kernels get as environment variables; outputs "
            "and record show their values as `[secret NAME]`."
        ),
    ] = None
    checkpoint: Annotated[
        Literal["none", "auto"] | None,
        Meta(
            title="CheckpointMode",
            description=(
                "`auto`: a checkpoint is made after each cell, so that cells can be undone; by default it is "
                "as when the session ended, and a new one has none."
            ),
        ),
    ] = None
    workspace_of: Annotated[
        str | None,
        Meta(
            description=(
                "The key of another session of the same owner: a new session has the same files as that one, "
                "for good, and a kernel of its own."
            ),
            extra_json_schema=_KEY,
        ),
    ] = None


class SessionTimesBody(Body, frozen=True, forbid_unknown_fields=True):
    """Limits of a live session that can be changed; absent ones stay."""

    cell_timeout: Annotated[float | None, say("Seconds a cell may run that is queued from now on.")] = None
    idle_timeout: _IdleTimeout = None
    on_idle: _OnIdle = None


class SessionChangeBody(Body, frozen=True, forbid_unknown_fields=True):
    """Changes of a live session; what is absent stays."""

    title: Annotated[
        str | None, say("The session's title, kept in its metadata; empty: it has none any more.")
    ] = None
    metadata: Annotated[
        dict[str, Any] | None, say("Any JSON object, at most 64 KiB, instead of the present metadata.")
    ] = None
    limits: SessionTimesBody | None = None


class BranchBody(Body, frozen=True, forbid_unknown_fields=True):
    """A branch of a session to make."""

    session: Annotated[
        str | None,
        Meta(
            description="The key of the new session; if absent, the gateway makes one up.",
            extra_json_schema=_KEY,
        ),
    ] = None
    workspace: Annotated[
        Literal["copy", "shared"],
        Meta(
            title="BranchWorkspace",
            description="Whether it gets a copy of the files, or both have the same files.",
        ),
    ] = "copy"
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=MOST_SEED)] | None,
        say(
            "Seeds the generators of `random` and `numpy.random` in the branch; if absent, they go on as the"
            " session's do."
        ),
    ] = None
    anyway: Annotated[
        bool, say("Whether to branch in spite of obstacles; what they are is then in the record.")
    ] = False


class UserBody(Body, frozen=True, forbid_unknown_fields=True):
    """A user to add."""

    name: Annotated[str, say("1 to 128 of `A-Z a-z 0-9 . _ @ | : + -`; begins with a letter or a digit.")]
    role: Annotated[
        Literal["user", "admin", "auditor"], Meta(title="RoleName", description="What the user may do.")
    ] = "user"


class UserChangeBody(Body, frozen=True, forbid_unknown_fields=True):
    """What to change of a user; what is left out stays."""

    role: Annotated[
        Literal["user", "admin", "auditor"] | None, Meta(title="RoleName", description="Another role.")
    ] = None
    disabled: Annotated[
        bool | None, say("Whether the user's tokens open nothing; their sessions end when it becomes true.")
    ] = None


class TokenBody(Body, frozen=True, forbid_unknown_fields=True):
    """A token to make, as narrow as it is to be; what is left out limits nothing.

    Of one's own it has at least the limits of the token that it is made with.
    """

    expires: Annotated[
        str | None, say("When it ends: after `90s`, `12h` or `30d`, or at `2030-01-31T12:00:00Z`.")
    ] = None
    scope: Annotated[
        str | None, say("Of `run`, `read`, `files`, `packages`, `metrics`, `users`, separated by commas.")
    ] = None
    session: Annotated[str | None, say("The key of the one session that it is for.")] = None
    sessions: Annotated[str | None, say("How the keys of its sessions begin.")] = None


class SecretBody(Body, frozen=True, forbid_unknown_fields=True):
    """A secret to set."""

    value: Annotated[str, say("Its value, at most 8 KiB. Nothing shows it again.")]


class CheckpointBody(Body, frozen=True, forbid_unknown_fields=True):
    """A checkpoint to make."""

    name: Annotated[
        str | None,
        Meta(
            description="Its name; if absent, the gateway makes one up.",
            extra_json_schema={"pattern": "^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$"},
        ),
    ] = None
    anyway: Annotated[
        bool, say("Whether to make it in spite of obstacles; what they are is then in the record.")
    ] = False


class RollbackBody(Body, frozen=True, forbid_unknown_fields=True):
    """Where to go back to."""

    checkpoint: Annotated[str | None, say("The name of the checkpoint; if absent, the newest one.")] = None


class ExploreBody(Body, frozen=True, forbid_unknown_fields=True):
    """Alternatives to run in branches of a session, side by side."""

    cells: Annotated[
        list[str],
        Meta(
            description="The source code of each alternative.",
            extra_json_schema={"minItems": 1, "maxItems": MOST_ALTERNATIVES},
        ),
    ]
    keep: Annotated[
        Literal["none", "first_ok", "all"],
        Meta(
            title="KeptBranches",
            description=(
                "`all`: the branches stay as sessions of their own. `first_ok`: the session goes on as the "
                "branch of the first alternative, in the order given, that ends `ok`."
            ),
        ),
    ] = "none"
    timeout: Annotated[
        float | None,
        Meta(
            description="Seconds each cell may run; if absent, the session's `cell_timeout`.",
            extra_json_schema={"exclusiveMinimum": 0},
        ),
    ] = None
    anyway: Annotated[
        bool, say("Whether to branch in spite of obstacles; what they are is then in the record.")
    ] = False
    on_disconnect: Annotated[
        str,
        Meta(
            title="OnDisconnect",
            description="What happens to the alternatives if the client disconnects.",
            extra_json_schema={"enum": ["continue", "interrupt"]},
        ),
    ] = "continue"


Cursor = Annotated[
    Annotated[int, Meta(ge=0)] | None,
    say("Where the cursor is, in Unicode code points from the beginning; if absent, the end."),
]


class CompleteBody(Body, frozen=True, forbid_unknown_fields=True):
    """Code to complete at a cursor."""

    code: Annotated[str, say("The code so far.")]
    cursor: Cursor = None


class InspectBody(Body, frozen=True, forbid_unknown_fields=True):
    """Code with a cursor at a name."""

    code: Annotated[str, say("The code.")]
    cursor: Cursor = None
    detail: Annotated[
        Literal[0, 1],
        Meta(title="InspectDetail", description="1: the source code as well, where the kernel has it."),
    ] = 0


class CellOptions(Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a cell is run, on every way in: the only list of these options.

    The requests below extend it, ``execution.request`` checks it, and `CellKeywords` has them as keywords.
    """

    timeout: Annotated[
        float | None,
        Meta(
            description=(
                "Seconds the cell may run and wait in line for a kernel; if absent, the session's "
                "`cell_timeout`, which limits the run alone."
            ),
            extra_json_schema={"exclusiveMinimum": 0},
        ),
    ] = None
    stdin: Annotated[
        list[str] | None,
        say("Lines that answer calls of `input()`; after the last one, it raises `EOFError`."),
    ] = None
    silent: Annotated[
        bool, say("Run the cell without output and without increasing the execution count.")
    ] = False
    env: Annotated[
        dict[str, str] | None, say("Environment variables for this cell only; Python kernels only.")
    ] = None
    language: Annotated[str | None, say("The language of `code`; if absent, the kernel's.")] = None
    tables: Annotated[
        int | None,
        Meta(
            description="Also show pandas DataFrames as data, with at most this many rows of each.",
            extra_json_schema={"minimum": 1, "maximum": MAX_TABLE_ROWS},
        ),
    ] = None
    packages: Annotated[
        str | None,
        Meta(
            title="MissingPackages",
            description=(
                "Install missing packages that the cell imports: `auto` for the session, `temporary` "
                "for this cell only."
            ),
            extra_json_schema={"enum": ["auto", "temporary", None]},
        ),
    ] = None


class CellKeywords(TypedDict, total=False):
    """`CellOptions` as keyword arguments; None means not given. `stdin` may be a text of several lines."""

    timeout: float | None
    stdin: str | list[str] | None
    silent: bool | None
    env: dict[str, str] | None
    language: LanguageName | None
    tables: int | None
    packages: MissingPackages | None


class LimitsKeywords(TypedDict, total=False):
    """`LimitsBody` as a dictionary."""

    memory: str | int | None
    cpus: float | None
    pids: int | None
    disk: str | int | None
    cell_timeout: float | None
    idle_timeout: float | None
    on_idle: Literal["sleep", "end"] | None
    lifetime: float | None


class TimesKeywords(TypedDict, total=False):
    """`SessionTimesBody` as a dictionary."""

    cell_timeout: float
    idle_timeout: float
    on_idle: Literal["sleep", "end"]


class SessionKeywords(TypedDict, total=False):
    """The options of `SessionBody` as keyword arguments; None means not given.

    `environment`: the name of one that the gateway's `environments` lists, whose packages it is to have.
    `network`: ``allow`` for a session that reaches the hosts which the gateway's `info` names. `secrets`:
    names of secrets that the gateway has of the session's owner, for the environment of its cells.
    `checkpoint`: ``auto`` to make one after each cell, so that cells can be undone. `workspace_of`: the key
    of a session whose files it is to have.
    """

    kernel: str | None
    language: LanguageName | None
    environment: str | None
    env: Mapping[str, str] | None
    limits: LimitsKeywords | None
    network: NetworkAccess | None
    metadata: Mapping[str, Any] | None
    secrets: Sequence[str] | None
    checkpoint: CheckpointMode | None
    workspace_of: str | None


class ExecuteBody(CellOptions, frozen=True, forbid_unknown_fields=True):
    """A cell to run in a session."""

    code: Annotated[str, say("The cell's source code.")]
    on_disconnect: Annotated[
        str,
        Meta(
            title="OnDisconnect",
            description="What happens to the cell if the client disconnects.",
            extra_json_schema={"enum": ["continue", "interrupt"]},
        ),
    ] = "continue"
    wait: Annotated[bool, say("If false, answer 202 at once instead of waiting for the result.")] = True
    cell_id: Annotated[
        str | None,
        Meta(
            description="The id of the cell of a notebook whose code this is; the record keeps it.",
            extra_json_schema={"pattern": "^[A-Za-z0-9_-]{1,64}$"},
        ),
    ] = None


class OneShotBody(ExecuteBody, frozen=True, forbid_unknown_fields=True):
    """A cell to run in a fresh kernel."""

    kernel: Annotated[str | None, say("The name of the kernelspec; if absent, the gateway's default.")] = None
    environment: Annotated[
        str | None,
        say("An environment of `GET /v1/environments`, instead of a kernelspec; its kernel is Python's."),
    ] = None
    limits: LimitsBody | None = None
    record: Annotated[bool, say("Whether the execution is kept in the record, in a session of its own.")] = (
        False
    )


class BlockBody(Body, frozen=True, forbid_unknown_fields=True):
    """A block of code."""

    language: str
    code: str


class BlocksBody(Body, frozen=True, forbid_unknown_fields=True):
    """Blocks of code to run in order, given either as `markdown` or as `blocks`."""

    markdown: Annotated[
        str | None, say("A Markdown text; its fenced code blocks that name a language are run.")
    ] = None
    blocks: list[BlockBody] | None = None
    timeout: Annotated[
        float | None, say("Seconds each block may run; if absent, the session's `cell_timeout`.")
    ] = None
    on_disconnect: Annotated[
        str,
        Meta(
            title="OnDisconnect",
            description="What happens to the running block if the client disconnects.",
            extra_json_schema={"enum": ["continue", "interrupt"]},
        ),
    ] = "continue"


class InputBody(Body, frozen=True, forbid_unknown_fields=True):
    """The answer to an input_request."""

    value: str


MOST_BUFFERS = 1000
"""Binary parts of a widget's message."""
MOST_BUFFER_PATH = 100
"""Keys and indices that lead to one of them."""


class WidgetBody(Body, frozen=True, forbid_unknown_fields=True):
    """What somebody does to a widget: a change of its state, or a message as the widget itself sends them."""

    state: Annotated[dict[str, Any] | None, say("The part of the state that changes.")] = None
    buffer_paths: Annotated[
        list[Annotated[list[str | int], Meta(min_length=1, max_length=MOST_BUFFER_PATH)]],
        Meta(
            max_length=MOST_BUFFERS,
            description="Where each of the buffers belongs in the state, as keys and indices.",
        ),
    ] = []
    content: Annotated[
        Any, say("In place of a state: a custom message, such as that of a pressed button.")
    ] = UNSET
    buffers: Annotated[list[str], Meta(max_length=MOST_BUFFERS, description="Binary parts, in base64.")] = []


class ProcessOptions(Body, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How a program is run beside a session's kernel."""

    env: Annotated[
        dict[str, str] | None, say("Environment variables, in addition to those of the session's kernel.")
    ] = None
    cwd: Annotated[
        str | None, say("The folder to run it in, relative to the workspace; if absent, the workspace.")
    ] = None
    stdin: Annotated[
        bool, say("Whether it gets input by `POST .../input`; else it reads the end at once.")
    ] = False
    timeout: Annotated[
        float | None,
        Meta(
            description=(
                "Seconds it may run. If absent, the session's `cell_timeout` if the answer waits for its "
                "end, else only the session limits it."
            ),
            extra_json_schema={"exclusiveMinimum": 0},
        ),
    ] = None


class ProcessBody(ProcessOptions, frozen=True, forbid_unknown_fields=True):
    """A program to run beside a session's kernel."""

    argv: Annotated[
        list[str], say('The program and its arguments, such as `["ls", "-l"]`; no shell is used.')
    ]
    wait: Annotated[bool, say("If false, answer 202 at once instead of waiting for its end.")] = True


class ProcessInputBody(Body, frozen=True, forbid_unknown_fields=True):
    """Input for a process, as text or as bytes."""

    data: Annotated[str | None, say("Text to send.")] = None
    data_b64: Annotated[str | None, say("Bytes to send, in base64.")] = None
    close: Annotated[bool, say("Whether this is the end of its input.")] = False


class SignalBody(Body, frozen=True, forbid_unknown_fields=True):
    """A signal for a process."""

    signal: Annotated[str, say("The signal's name, such as `SIGINT`.")]


class SocketInput(InputBody, frozen=True, forbid_unknown_fields=True):
    """The answer to an execution's input_request."""

    execution: str


class Command(Body, frozen=True, forbid_unknown_fields=True):
    """One frame from a client on the WebSocket of events: exactly one of the three actions."""

    execute: ExecuteBody | None = None
    interrupt: bool = False
    input: SocketInput | None = None
    id: Annotated[str | int | None, say("Any id, repeated in the answer to this command.")] = None


class PackagesBody(Body, frozen=True, forbid_unknown_fields=True):
    """Packages to install and to uninstall."""

    install: Annotated[list[str], say('Requirements such as `"requests>=2"`.')] = []
    uninstall: Annotated[list[str], say("Names of packages to uninstall.")] = []
    upgrade: Annotated[bool, say("Whether to replace installed versions by newer ones.")] = False
    constraints: Annotated[
        list[str], say("Constraints on the versions of all packages, including dependencies.")
    ] = []


class SignInBody(Body, frozen=True, forbid_unknown_fields=True):
    """What somebody signs in to the console with."""

    token: str


class ReplayBody(Body, frozen=True, forbid_unknown_fields=True):
    """How a session is replayed."""

    anyway: Annotated[
        bool, say("Whether to replay even if the environment differs from the recorded one.")
    ] = False
    rtol: Annotated[
        float, say("How far apart two floating-point numbers may be, relative to the larger one.")
    ] = 0.0
