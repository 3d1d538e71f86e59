"""What a gateway sends, as typed values: sessions, events, results.

They are the client's own reading of the wire contract, independent of the server's models: unknown fields
are ignored and absent ones have defaults, so that a client and a gateway of different versions understand
each other. Pure; ``api`` receives the bytes.
"""

from __future__ import annotations

from typing import Any, Self, TypeVar

import msgspec

from cellgate.client.display import display_bundle
from cellgate.client.errors import CellFailed, gateway_error

T = TypeVar("T")

TABLE = "application/vnd.dataresource+json"
"""pandas' Table Schema: ``schema`` names the fields and their types, ``data`` has an object for each row."""


class Value(msgspec.Struct, frozen=True, kw_only=True):
    """Base of what the gateway sends: immutable, unknown fields ignored."""


class ErrorInfo(Value, frozen=True, kw_only=True):
    """The exception that ended a cell. `traceback` is lines with ANSI colours."""

    ename: str = ""
    evalue: str = ""
    traceback: list[str] = []


class KernelInfo(Value, frozen=True, kw_only=True):
    """The kernel after an execution; `replaced` says that its variables are lost."""

    state: str = ""
    replaced: bool = False


class SessionModel(Value, frozen=True, kw_only=True):
    """A session as the gateway describes it; times are RFC 3339 UTC."""

    session: str
    kernel: str = ""
    kernel_id: str | None = None
    state: str = ""
    isolation: str | None = None
    created_at: str = ""
    last_activity: str = ""
    execution_count: int = 0
    queue_length: int = 0
    limits: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    head: str = ""


class Ceilings(Value, frozen=True, kw_only=True):
    """The most that a session or a cell may ask for: bytes, processors, processes, seconds."""

    memory: int
    cpus: float
    pids: int
    disk: int
    cell_timeout: float
    lifetime: float


class GatewayInfo(Value, frozen=True, kw_only=True):
    """What a gateway says of itself."""

    version: str
    backend: str
    isolation: str
    ceilings: Ceilings


class SessionPage(Value, frozen=True, kw_only=True):
    """A part of the list of sessions; `next` is the `after` of the following part."""

    sessions: list[SessionModel]
    next: str | None = None


class FileModel(Value, frozen=True, kw_only=True):
    """A file of a workspace; `action` where it tells of a change: created, changed."""

    path: str
    size: int = 0
    sha256: str | None = None
    modified: str | None = None
    action: str | None = None


class FilePage(Value, frozen=True, kw_only=True):
    """A part of the list of files; `next` is the `after` of the following part."""

    files: list[FileModel]
    next: str | None = None


class Package(Value, frozen=True, kw_only=True):
    """A package that a session has beside its kernel's environment; `sha256` is that of its wheel.

    `requested`: it was asked for by name. `action` where it tells of a change: installed, removed.
    """

    name: str
    version: str = ""
    sha256: str = ""
    requested: bool = False
    action: str | None = None


class PackageChanges(Value, frozen=True, kw_only=True):
    """What a change of a session's packages did, and all that it has now."""

    packages: list[Package]
    installed: list[Package] = []
    removed: list[Package] = []


class Result(Value, frozen=True, kw_only=True):
    """An execution with its outputs (nbformat's). `text` is what a reader of the notebook would read.

    `status` is ok, error, timeout, interrupted, died or cancelled, and `cause` may say more.
    """

    session: str
    execution: str
    status: str = ""
    cause: str | None = None
    execution_count: int | None = None
    error: ErrorInfo | None = None
    started_at: str | None = None
    finished_at: str | None = None
    duration_ms: float | None = None
    queue_ms: float | None = None
    truncated: bool = False
    kernel: KernelInfo = KernelInfo()
    outputs: list[dict[str, Any]] = []
    stdout: str = ""
    stderr: str = ""
    text: str = ""
    files: list[FileModel] = []
    packages: list[Package] = []

    @property
    def tables(self) -> list[dict[str, Any]]:
        """The tables that a cell run with `tables` has shown, as data: ``schema``, ``data``, ``total_rows``.

        `total_rows` says how many rows there are, of which `data` may have the first only.
        """
        shown = (output.get("data", {}).get(TABLE) for output in self.outputs)
        return [table for table in shown if isinstance(table, dict)]

    @property
    def ok(self) -> bool:
        """Whether the cell ended well."""
        return self.status == "ok"

    def check(self) -> Self:
        """The result itself. Raises CellFailed when the cell did not end well."""
        if self.ok:
            return self
        said = f"{self.error.ename}: {self.error.evalue}" if self.error else self.cause or ""
        raise CellFailed(
            f"The cell ended with {self.status}" + (f": {said}" if said else ""),
            status=self.status,
            ename=self.error.ename if self.error else None,
        )

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        """Shows itself in a notebook as the cell's outputs (IPython's display protocol)."""
        return display_bundle(self.outputs, self.text)


class BlocksResult(Value, frozen=True, kw_only=True):
    """What several blocks gave: `exit_code` 0, 1 for a failed block, 124 for one whose time was over.

    `problem` says why a block could not be run at all, as the gateway's errors do.
    """

    exit_code: int
    output: str = ""
    blocks: list[Result] = []
    problem: dict[str, Any] | None = None


class Event(Value, frozen=True, kw_only=True):
    """A row of a session's record; `seq` rises by one per session."""

    seq: int
    session: str
    type: str
    execution: str | None = None
    at: str = ""


class Queued(Event, frozen=True, kw_only=True):
    """The execution waits behind `position` others."""

    position: int = 0


class Started(Event, frozen=True, kw_only=True):
    """The kernel has begun the cell."""

    execution_count: int | None = None
    code: str = ""


class Stream(Event, frozen=True, kw_only=True):
    """Text that the cell wrote to `name`, stdout or stderr."""

    name: str = "stdout"
    text: str = ""


class DisplayData(Event, frozen=True, kw_only=True):
    """Something shown, by MIME type; binary types in base64."""

    data: dict[str, Any] = {}
    metadata: dict[str, Any] = {}
    display_id: str | None = None


class UpdateDisplayData(DisplayData, frozen=True, kw_only=True):
    """A new content of an earlier display."""


class ExecuteResult(DisplayData, frozen=True, kw_only=True):
    """The value of the cell's last expression."""

    execution_count: int | None = None


class ClearOutput(Event, frozen=True, kw_only=True):
    """The cell's outputs are to be dropped; with `wait`, only when the next one comes."""

    wait: bool = False


class ErrorRaised(Event, frozen=True, kw_only=True):
    """The cell raised; fields as in `ErrorInfo`."""

    ename: str = ""
    evalue: str = ""
    traceback: list[str] = []


class InputRequest(Event, frozen=True, kw_only=True):
    """The cell waits for a line of input."""

    prompt: str = ""
    password: bool = False


class Finished(Event, frozen=True, kw_only=True):
    """The last event of an execution; fields as in `Result`, without the outputs."""

    status: str = ""
    cause: str | None = None
    execution_count: int | None = None
    error: ErrorInfo | None = None
    started_at: str | None = None
    finished_at: str | None = None
    duration_ms: float | None = None
    queue_ms: float | None = None
    truncated: bool = False
    kernel: KernelInfo = KernelInfo()


class _Line(Value, frozen=True, kw_only=True):
    """Any line of a stream: an event, a keepalive, or the problem that ends the stream."""

    type: str


class _Problem(_Line, frozen=True, kw_only=True):
    status: int = 0
    reason: str = "internal_error"
    detail: str = "The gateway's stream failed"


_EVENT_TYPES: dict[str, type[Event]] = {
    "queued": Queued,
    "started": Started,
    "stream": Stream,
    "display_data": DisplayData,
    "update_display_data": UpdateDisplayData,
    "execute_result": ExecuteResult,
    "clear_output": ClearOutput,
    "error": ErrorRaised,
    "input_request": InputRequest,
    "finished": Finished,
}


def parse_event(line: bytes) -> Event | None:
    """The event in one line of an NDJSON answer; None for a sign of life.

    Raises GatewayError when it is no event, and when it says that the stream has failed.
    """
    if not line.strip():
        return None
    kind = decode(line, _Line).type
    if kind == "keepalive":
        return None
    if kind == "problem":
        problem = decode(line, _Problem)
        raise gateway_error(problem.status, problem.reason, problem.detail)
    return decode(line, _EVENT_TYPES.get(kind, Event))


def decode(body: bytes, kind: type[T]) -> T:
    """`body` as `kind`. Raises GatewayError with the reason ``bad_answer``."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise gateway_error(0, "bad_answer", f"The gateway's answer can't be read: {error}") from error
