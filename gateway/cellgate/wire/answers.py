"""The gateway's answers as structs: sessions, results, files, packages, reports.

The server builds these and encodes them once, the client decodes them and extends some in ``client.values``,
and `/openapi.json` describes them. Events are in ``events``, errors in ``problems``. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, UnsetType

from cellgate.wire.base import Value
from cellgate.wire.events import ErrorInfo, Event, ExecutionCount, KernelInfo, Package
from cellgate.wire.problems import Problem

Next = Annotated[str | None, Meta(description="The `after` of the next page; null on the last.")]
Number = Annotated[int | None, Meta(description="The `after` of the next page; null on the last.")]

# ---- sessions ---------------------------------------------------------------------------------------------


class SessionModel(Value, frozen=True, kw_only=True):
    """A session as the gateway describes it; times are RFC 3339 UTC."""

    session: Annotated[str, Meta(description="The key that its owner chose.")]
    kernel: Annotated[str, Meta(description="The kernelspec.")] = ""
    kernel_id: Annotated[str | None, Meta(description="The kernel of the moment.")] = None
    state: Annotated[str, Meta(description="`starting`, `idle`, `busy`, `dead`, `ended` or `purging`.")] = ""
    cause: Annotated[str | None, Meta(description="Why it is in this state, where that has a cause.")] = None
    isolation: Annotated[
        str | None, Meta(description="What is between the kernel and the machine: `gvisor`, `container`, ...")
    ] = None
    created_at: str = ""
    last_activity: str = ""
    execution_count: int = 0
    queue_length: Annotated[int, Meta(description="How many cells wait.")] = 0
    limits: Annotated[dict[str, Any], Meta(description="Bytes, processors, processes, seconds.")] = {}
    metadata: Annotated[dict[str, Any] | None, Meta(description="What its maker gave it.")] = {}
    head: Annotated[str, Meta(description="The head of the hash chain of its record.")] = ""
    problem: Annotated[
        str | UnsetType, Meta(description="Why it is not recorded any more; only sent if it is not.")
    ] = UNSET


class SessionPage(Value, frozen=True, kw_only=True):
    """A part of the list of sessions."""

    sessions: list[SessionModel]
    next: Next = None


# ---- executions -------------------------------------------------------------------------------------------


class FileChange(Value, frozen=True, kw_only=True):
    """A file that a cell or an upload created or changed."""

    path: str
    size: Annotated[int | None, Meta(description="Bytes.")] = 0
    sha256: Annotated[str | None, Meta(description="Null where it was too much to hash.")] = None
    action: Annotated[str | None, Meta(description="`created` or `changed`.")] = None


class PackageChange(Package, frozen=True, kw_only=True):
    """A package that a cell installed or removed."""

    action: Annotated[str | None, Meta(description="`installed` or `removed`.")] = None


class Result(Value, frozen=True, kw_only=True):
    """An execution with its outputs (as in nbformat). `text` is what a reader of the notebook would see.

    `status` is ok, error, timeout, interrupted, died or cancelled, and `cause` may say more. Before the end
    it is queued or running, and the other fields hold what is known so far.
    """

    session: str
    execution: str
    status: str = ""
    cause: str | None = None
    execution_count: ExecutionCount = None
    error: ErrorInfo | None = None
    started_at: str | None = None
    finished_at: str | None = None
    duration_ms: Annotated[float | None, Meta(description="From sending the cell to its end.")] = None
    queue_ms: Annotated[float | None, Meta(description="From the request to sending the cell.")] = None
    truncated: Annotated[bool, Meta(description="Whether outputs were cut or left out.")] = False
    kernel: KernelInfo = KernelInfo()
    outputs: Annotated[list[dict[str, Any]], Meta(description="As nbformat 4.5 has them.")] = []
    stdout: str = ""
    stderr: str = ""
    text: Annotated[str, Meta(description="All that there is to read, in order, without ANSI codes.")] = ""
    files: Annotated[list[FileChange], Meta(description="What the cell wrote.")] = []
    packages: Annotated[list[PackageChange], Meta(description="What the cell installed or removed.")] = []


class ExecutionModel(Value, frozen=True, kw_only=True):
    """An execution in a list of them."""

    session: str
    execution: str
    number: Annotated[int, Meta(description="Its place in the session's order, from 1.")]
    status: str
    created_at: str
    first_seq: Annotated[int, Meta(description="The number of its first event.")]
    last_seq: Annotated[int | None, Meta(description="The number of its last event so far.")]


class ExecutionPage(Value, frozen=True, kw_only=True):
    """A part of the list of a session's executions."""

    executions: list[ExecutionModel]
    next: Number = None


class BlocksResult(Value, frozen=True, kw_only=True):
    """The outcome of several blocks: `exit_code` is 0, 1 for a failed block, 124 for one that timed out.

    `problem` says why a block could not be run at all, in the form of the gateway's errors.
    """

    blocks: list[Result] = []
    exit_code: int
    output: Annotated[str, Meta(description="The blocks' `text`.")] = ""
    problem: Problem | None = None


class EventPage(Value, frozen=True, kw_only=True):
    """The events that exist now."""

    events: list[Event]
    next: Number = None


class KeepAlive(Value, frozen=True, kw_only=True):
    """Sent to keep a quiet stream alive."""

    type: Literal["keepalive"] = "keepalive"


class Accepted(Value, frozen=True, kw_only=True):
    """The answer to a command on a WebSocket."""

    type: Literal["accepted"] = "accepted"
    execution: str | UnsetType = UNSET
    id: Annotated[str | int | UnsetType, Meta(description="That of the command, if it had one.")] = UNSET


# ---- files and packages -----------------------------------------------------------------------------------


class FileModel(Value, frozen=True, kw_only=True):
    """A file of a workspace."""

    path: str
    size: Annotated[int, Meta(description="Bytes.")] = 0
    modified: str | None = None
    sha256: Annotated[str | None, Meta(description="Null while it is not known.")] = None


class FilePage(Value, frozen=True, kw_only=True):
    """A part of the list of files. `complete` is false if there may be files that are not listed."""

    files: list[FileModel]
    next: Next = None
    complete: bool = True


class FileChanges(Value, frozen=True, kw_only=True):
    """The files of an uploaded form."""

    files: list[FileChange]


class Packages(Value, frozen=True, kw_only=True):
    """The packages of a session in addition to its kernel's environment."""

    packages: list[Package]


class PackageChanges(Value, frozen=True, kw_only=True):
    """What a change to a session's packages did, and all that it has now."""

    installed: list[Package] = []
    removed: list[Package] = []
    packages: list[Package]


# ---- the record -------------------------------------------------------------------------------------------


class ChainCheck(Value, frozen=True, kw_only=True):
    """Whether the hash chain of a session's rows is intact."""

    valid: bool
    rows: Annotated[int, Meta(description="How many rows hold, from the first.")]
    head: Annotated[str, Meta(description="The hash of the last of them.")]
    first_bad: Annotated[int | UnsetType, Meta(description="Where the chain breaks.")] = UNSET
    key: Annotated[str | UnsetType, Meta(description="The installation's public key.")] = UNSET
    signature: Annotated[str | UnsetType, Meta(description="The key's signature of the head.")] = UNSET


class Changed(Value, frozen=True, kw_only=True):
    """One part of the environment that differs from the recorded one; null where it is missing."""

    name: str
    recorded: str | None
    now: str | None


class EnvironmentReport(Value, frozen=True, kw_only=True):
    """Whether a replay ran in the recorded environment."""

    agreement: Annotated[str, Meta(description="`same`, `different` or `unknown`.")]
    changes: list[Changed]


class Pair(Value, frozen=True, kw_only=True):
    """A recorded value and its current one."""

    recorded: str | None
    now: str | None


class RestoredFile(Value, frozen=True, kw_only=True):
    """An input file, and whether it was restored for the replay."""

    path: str
    restored: bool
    reason: str | UnsetType = UNSET


class DifferingPart(Value, frozen=True, kw_only=True):
    """One part of a cell that differs."""

    part: str
    note: str
    judged: Annotated[bool, Meta(description="False where nobody can tell whether the result differs.")]
    diff: Annotated[str | UnsetType, Meta(description="A unified diff.")] = UNSET
    picture: Annotated[str | UnsetType, Meta(description="A PNG as a data URL.")] = UNSET


class CellReport(Value, frozen=True, kw_only=True):
    """The outcome of a cell in a replay."""

    cell: int
    execution: str | None
    source: str
    verdict: Annotated[str, Meta(description="`equal`, `normalised`, `unjudged`, `different` or `skipped`.")]
    same: bool | None
    status: Pair | UnsetType = UNSET
    normalised: Annotated[list[str] | UnsetType, Meta(description="The rules that it took.")] = UNSET
    reason: str | UnsetType = UNSET
    difference: str | UnsetType = UNSET
    differences: list[DifferingPart] | UnsetType = UNSET


class ReplayFacts(Value, frozen=True, kw_only=True):
    """What is known of a session's replay before its cells are compared."""

    session: str
    head: str
    kernel: str
    isolation: str | None
    replayed_at: str
    gateway_version: str
    environment: EnvironmentReport
    hash_seed: Pair
    files: list[RestoredFile]


class ReplayReport(ReplayFacts, frozen=True, kw_only=True):
    """The findings of a replay, cell by cell."""

    rtol: float
    verdict: str
    same: int
    normalised: int
    unjudged: int
    different: int
    skipped: int
    cells: list[CellReport]


class NotebookFacts(Value, frozen=True, kw_only=True):
    """What is known of a file's replay by `cellgate replay` before its cells are compared."""

    file: Annotated[str, Meta(description="The name of the notebook or bundle.")]
    session: Annotated[str | None, Meta(description="The recorded session; null if the file names none.")]
    replay_session: Annotated[str, Meta(description="The session in which the cells ran again.")]
    kernel: str
    isolation: str | None
    replayed_at: str
    environment: EnvironmentReport
    hash_seed: Pair
    files: list[RestoredFile]


class NotebookReport(NotebookFacts, frozen=True, kw_only=True):
    """The findings of `cellgate replay`, cell by cell: those of `ReplayReport`."""

    rtol: float
    verdict: str
    same: int
    normalised: int
    unjudged: int
    different: int
    skipped: int
    cells: list[CellReport]


class ReplayedCell(Value, frozen=True, kw_only=True):
    """A line of a streamed replay: a cell has run again, or was left out."""

    type: Literal["cell"] = "cell"
    cell: int
    execution: str | None
    status: Annotated[str | None, Meta(description="How it ended now; null if it was not run.")]


# ---- the gateway ------------------------------------------------------------------------------------------


class Ceilings(Value, frozen=True, kw_only=True):
    """The most that a session or a cell may ask for: bytes, processors, processes, seconds."""

    memory: int
    cpus: float
    pids: int
    disk: int
    cell_timeout: float
    lifetime: float


class KernelspecModel(Value, frozen=True, kw_only=True):
    """A kind of kernel."""

    display_name: str
    language: str


class GatewayInfo(Value, frozen=True, kw_only=True):
    """A gateway's description of itself."""

    version: str
    backend: str
    isolation: str
    default_kernel: str = ""
    kernelspecs: dict[str, KernelspecModel] = {}
    limits: dict[str, Any] = {}
    ceilings: Ceilings
    packages: Annotated[list[str], Meta(description="Names that may be installed.")] = []
    pool: dict[str, Any] = {}
    sessions: Annotated[dict[str, int], Meta(description="How many there are, by state.")] = {}


class Health(Value, frozen=True, kw_only=True):
    """The process answers."""

    status: Literal["ok"] = "ok"


class Readiness(Value, frozen=True, kw_only=True):
    """Whether the gateway takes new work, and what is missing if it does not."""

    status: Literal["ready", "not_ready"]
    missing: list[str]
    sessions_not_recorded: int | UnsetType = UNSET
