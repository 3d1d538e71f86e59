"""The gateway's answers as structs: sessions, results, files, packages, reports.

The server builds these and encodes them once, the client decodes them and extends some in ``client.values``,
and `/openapi.json` describes them. Events are in ``events``, errors in ``problems``. Pure.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Raw, UnsetType

from cellgate.wire.base import Value, say
from cellgate.wire.environments import SessionEnvironment
from cellgate.wire.events import (
    BranchedFrom,
    ErrorInfo,
    Event,
    ExecutionCount,
    InterruptedBy,
    KernelInfo,
    MemoryKills,
    Missing,
    Package,
)
from cellgate.wire.problems import Problem
from cellgate.wire.usage import Usage

Next = Annotated[str | None, say("The value of `after` for the next page; null on the last page.")]
Number = Annotated[int | None, say("The value of `after` for the next page; null on the last page.")]

Path = Annotated[str, say("The file's path, relative to the workspace.")]
Moment = Annotated[str, say("An RFC 3339 timestamp in UTC.")]

# ---- sessions ---------------------------------------------------------------------------------------------


class CheckpointModel(Value, frozen=True, kw_only=True):
    """A moment of a live session that it can go back to."""

    name: Annotated[str, say("Its name.")]
    seq: Annotated[int, say("The `seq` of the session's last event before it.")] = 0
    head: Annotated[str, say("The head of the hash chain of the session's record then, in hexadecimal.")] = ""
    cells: Annotated[
        int, say("How many cells had run before it since the session was last opened, without undone ones.")
    ] = 0
    created_at: Moment = ""
    automatic: Annotated[bool, say("Whether it was made by itself after a cell.")] = False
    memory: Annotated[int, say("Bytes of memory that it kept at the last look; 0 before the first.")] = 0
    files: Annotated[
        Literal["none", "reflink", "copy"],
        Meta(
            title="FileCopies",
            description=(
                "How files that had changed since the checkpoint before were kept: `reflink`, which shares "
                "their blocks where the disk can, or as a `copy`; `none` if none had changed."
            ),
        ),
    ] = "none"


class CheckpointList(Value, frozen=True, kw_only=True):
    """What a session can go back to."""

    checkpoints: Annotated[list[CheckpointModel], say("All of them, the oldest first.")]


class Rollback(Value, frozen=True, kw_only=True):
    """What a rollback did."""

    checkpoint: Annotated[str, say("The name of the checkpoint that the session went back to.")]
    undone: Annotated[int, say("How many cells this undid.")] = 0


class SessionEnd(Value, frozen=True, kw_only=True):
    """When a live session ends by itself, and why."""

    at: Moment
    cause: Annotated[
        str, say("`idle_timeout`: unless the session is used until then; `lifetime`: its lifetime is over.")
    ]


class SessionModel(Value, frozen=True, kw_only=True):
    """A session, live or ended."""

    session: Annotated[str, say("The session's key.")]
    title: Annotated[
        str | None, say("The `title` in its metadata: for a Jupyter client's, the path of its document.")
    ] = None
    principal: Annotated[str, say("The name of its owner.")] = ""
    kernel: Annotated[str, say("The name of the kernelspec.")] = ""
    kernel_id: Annotated[str | None, say("The current kernel's id; null if there is none.")] = None
    environment: Annotated[
        SessionEnvironment | UnsetType,
        say("The environment of its newest kernel; absent if that is not one that the operator has added."),
    ] = UNSET
    state: Annotated[
        str, say("The session's state: `starting`, `idle`, `asleep`, `busy`, `dead`, `ended` or `purging`.")
    ] = ""
    cause: Annotated[
        str | None,
        say("Why the session is in this state, as a stable word; null if there is no particular reason."),
    ] = None
    isolation: Annotated[
        str | None,
        say(
            "What separates the kernel from the machine: `none`, `landlock`, `sandbox`, `container` or "
            "`gvisor`."
        ),
    ] = None
    created_at: Moment = ""
    last_activity: Moment = ""
    execution_count: Annotated[
        int,
        say(
            "The newest prompt number of its kernel, `[n]` at a cell: a branch goes on from the number of the"
            " session that it continues, a fresh kernel begins with 1. `executions` is the number of cells."
        ),
    ] = 0
    queue_length: Annotated[int, say("The number of cells in the queue, without the running one.")] = 0
    limits: Annotated[
        dict[str, Any], say("The limits: `memory` and `disk` in bytes, `cpus`, `pids`, and times in seconds.")
    ] = {}
    network: Annotated[
        Literal["none", "allow"],
        Meta(
            title="NetworkAccess",
            description="Whether its cells reach the hosts that its principal's policy names.",
        ),
    ] = "none"
    metadata: Annotated[
        dict[str, Any] | None,
        say("The metadata that the client gave when it created the session; empty if none."),
    ] = {}
    seq: Annotated[int, say("The `seq` of its newest event.")] = 0
    head: Annotated[str, say("The head of the hash chain of the session's record, in hexadecimal.")] = ""
    problem: Annotated[
        str | UnsetType, say("Why the session is no longer recorded; absent while it is recorded.")
    ] = UNSET
    missing: Annotated[
        Missing | UnsetType,
        say("What a resumed session had before and does not have now; absent if nothing."),
    ] = UNSET
    branched_from: Annotated[BranchedFrom | UnsetType, say("What a branch continues.")] = UNSET
    shares_sandbox_with: Annotated[
        list[str] | UnsetType,
        say(
            "The sessions whose kernels run in the same sandbox or container as its own, because of "
            "branches; absent if none, and without those that a token is not for."
        ),
    ] = UNSET
    shares_workspace_with: Annotated[
        list[str] | UnsetType,
        say(
            "The sessions whose kernels work on the same files as its own; absent if none, and without those"
            " that a token is not for."
        ),
    ] = UNSET
    absolute_paths: Annotated[
        Literal["inherited"] | UnsetType,
        say(
            "`inherited` for a branch in which `/workspace`, `/mnt/data` and `/home/user` are still the "
            "files of the session that it was made from; absent where they are its own."
        ),
    ] = UNSET
    checkpoint: Annotated[
        Literal["auto"] | UnsetType,
        say("`auto` if a checkpoint is made after each of its cells; absent otherwise."),
    ] = UNSET
    ends: Annotated[SessionEnd | UnsetType, say("When a live session ends by itself; else absent.")] = UNSET
    sleeps_at: Annotated[
        str | UnsetType,
        say("When an idle session falls asleep unless it is used until then; absent if it does not."),
    ] = UNSET
    can_sleep: Annotated[
        bool | UnsetType,
        say(
            "`true` for a live session whose kernel can sleep, so that `on_idle` decides what follows the"
            " idle time; else absent, and it ends. The gateway looks every 5 s."
        ),
    ] = UNSET
    memory: Annotated[
        int | UnsetType,
        say(
            "Bytes of memory that its kernel and the programs beside it use now, as its limit counts them, "
            "with those of the sessions in `shares_sandbox_with`; absent unless `usage` is asked for, and "
            "where unknown."
        ),
    ] = UNSET
    cpu: Annotated[
        float | UnsetType,
        say(
            "Seconds of processor time that the same have used so far; it begins anew with each `kernel_id`."
            " Absent as `memory` is."
        ),
    ] = UNSET
    executions: Annotated[
        int | UnsetType,
        say(
            "How many cells its record has: all that were sent to it, also those that wait or were undone,"
            " without those before a branch; absent unless `usage` is asked for."
        ),
    ] = UNSET
    rolled_back: Annotated[
        Rollback | UnsetType, say("What the rollback did that this is the answer to; absent otherwise.")
    ] = UNSET


class Completion(Value, frozen=True, kw_only=True):
    """What may stand in the code from `start` to `end`."""

    matches: Annotated[list[str], say("The texts to put there, the best first.")] = []
    start: Annotated[int, say("Where they begin, in Unicode code points from the beginning of the code.")] = 0
    end: Annotated[int, say("Where what they replace ends, in Unicode code points.")] = 0
    types: Annotated[
        list[str] | UnsetType,
        say(
            "What each match is, such as `function` or `module`, empty if unknown; absent if the kernel does"
            " not say."
        ),
    ] = UNSET
    truncated: Annotated[bool, say("Whether matches were left out.")] = False


class Inspection(Value, frozen=True, kw_only=True):
    """What the kernel knows of a name."""

    found: Annotated[bool, say("Whether it knows anything.")] = False
    text: Annotated[str, say("What it knows as plain text, without ANSI codes.")] = ""
    data: Annotated[dict[str, str], say("The same by MIME type, as the kernel gives it; untrusted.")] = {}


class VariableModel(Value, frozen=True, kw_only=True):
    """A variable of a session's kernel."""

    name: Annotated[str, say("Its name.")]
    type: Annotated[str, say("The name of its type.")] = ""
    summary: Annotated[
        str,
        say(
            "In at most 80 characters: the value of a number or the beginning of a text, the length of a "
            "container, the shape of an array or table; empty if its type is not known."
        ),
    ] = ""
    size: Annotated[int | UnsetType, say("Bytes of its data; absent if that is not known at once.")] = UNSET
    rows: Annotated[
        int | UnsetType, say("How many rows it has, if it is a table whose rows can be read; else absent.")
    ] = UNSET


class VariableList(Value, frozen=True, kw_only=True):
    """The variables of a session's kernel."""

    variables: Annotated[list[VariableModel], say("In the order of their definition.")] = []
    truncated: Annotated[bool, say("Whether there are more, or some without a usual name.")] = False


class TableColumn(Value, frozen=True, kw_only=True):
    """A column of a table."""

    name: Annotated[str, say("Its label as text, which no other column has: what sorts and filters name.")]
    type: Annotated[str, say("The type of its values, as the table's library names it.")] = ""
    kind: Annotated[
        Literal["number", "text", "boolean", "time", "other"],
        Meta(title="ColumnKind", description="What the values are."),
    ] = "other"
    index: Annotated[bool, say("Whether it is one of the table's index; such columns come first.")] = False


class CutText(Value, frozen=True, kw_only=True):
    """A cell with a long text."""

    text: Annotated[str, say("Its beginning; empty in a session with secrets.")]
    length: Annotated[int, say("The number of its characters.")]


class TableRows(Value, frozen=True, kw_only=True):
    """A page of the rows of a table in a session's kernel."""

    name: Annotated[str, say("The variable's name.")]
    type: Annotated[str, say("The name of its type.")] = ""
    columns: Annotated[list[TableColumn], say("The columns of this page.")] = []
    rows: Annotated[
        list[list[bool | int | float | str | CutText | None]],
        say(
            "The rows, each with a value for each column. What is missing is null. Values for which JSON has "
            "no form are text."
        ),
    ] = []
    offset: Annotated[int, say("The place of the first row among those that fit, from 0.")] = 0
    total: Annotated[int, say("How many rows fit the filter.")] = 0
    all_rows: Annotated[int, say("How many rows there are.")] = 0
    first_column: Annotated[int, say("The place of the first column that is no index, from 0.")] = 0
    all_columns: Annotated[int, say("How many columns there are, without those of the index.")] = 0


class TreeNode(Value, frozen=True, kw_only=True):
    """A session in a tree of branches."""

    session: Annotated[str, say("The session's key.")]
    state: Annotated[str, say("The session's state.")] = ""
    created_at: Moment = ""
    branched_from: Annotated[BranchedFrom | UnsetType, say("What a branch continues.")] = UNSET


class SessionTree(Value, frozen=True, kw_only=True):
    """What a session continues as a branch, and what was branched from it."""

    session: Annotated[str, say("The session's key.")]
    ancestors: Annotated[list[TreeNode], say("The sessions that it continues, the oldest first.")] = []
    ancestor_left_out: Annotated[
        Literal["purged", "out_of_reach"] | UnsetType,
        Meta(
            title="AncestorLeftOut",
            description=(
                "Why the session that the oldest of them continues, or this one if there are none, is not "
                "named; absent if none is missing."
            ),
        ),
    ] = UNSET
    branches: Annotated[
        list[TreeNode], say("Its branches, theirs and so on, in the order of their making.")
    ] = []
    checkpoints: Annotated[
        list[CheckpointModel],
        say("What it can go back to, the oldest first; empty for a session that has ended."),
    ] = []
    complete: Annotated[
        bool,
        say(
            "False if there are more branches than are named: very many, or some that the token does not "
            "reach."
        ),
    ] = True


class SessionPage(Value, frozen=True, kw_only=True):
    """A page of sessions."""

    sessions: list[SessionModel]
    next: Next = None


# ---- executions -------------------------------------------------------------------------------------------


class FileChange(Value, frozen=True, kw_only=True):
    """A file that a cell or an upload created or changed."""

    path: Path
    size: Annotated[int | None, say("The file's size in bytes.")] = 0
    sha256: Annotated[str | None, say("The content's SHA-256 in hexadecimal; null if it is too large.")] = (
        None
    )
    action: Annotated[str | None, say("What happened to the file: `created` or `changed`.")] = None


class PackageChange(Package, frozen=True, kw_only=True):
    """A package that a cell installed or removed."""

    action: Annotated[str | None, say("What happened to the package: `installed` or `removed`.")] = None


class Result(Value, frozen=True, kw_only=True):
    """An execution with its outputs. `text` is what a reader of the notebook would see.

    `status` is `ok`, `error`, `timeout`, `interrupted`, `died` or `cancelled`, and `cause` may say why. Until
    the execution ends, `status` is `queued` or `running` and the other fields hold what is known so far.
    """

    session: str
    execution: str
    status: str = ""
    cause: str | None = None
    execution_count: ExecutionCount = None
    error: ErrorInfo | None = None
    started_at: str | None = None
    finished_at: str | None = None
    duration_ms: Annotated[
        float | None,
        say("Milliseconds from sending the cell to the kernel until its end; null before the end."),
    ] = None
    queue_ms: Annotated[
        float | None,
        say("Milliseconds from the request until the cell was sent to the kernel; null before the end."),
    ] = None
    truncated: Annotated[bool, say("Whether some output was cut or left out.")] = False
    interrupted_by: InterruptedBy | UnsetType = UNSET
    memory_kills: MemoryKills | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    kernel: KernelInfo = KernelInfo()
    outputs: Annotated[list[dict[str, Any]], say("The outputs in the format of nbformat 4.5.")] = []
    stdout: str = ""
    stderr: str = ""
    text: Annotated[str, say("The text of all outputs, in order, without ANSI codes.")] = ""
    files: Annotated[list[FileChange], say("The files that the cell created or changed.")] = []
    packages: Annotated[list[PackageChange], say("The packages that the cell installed or removed.")] = []


class Alternative(Result, frozen=True, kw_only=True):
    """The result of one alternative's cell in its branch.

    One that was not run has the status `cancelled`, and `session` and `execution` are empty.
    """

    branch: Annotated[
        Literal["chosen", "kept", "ended", "refused", "skipped"],
        Meta(
            title="BranchFate",
            description=(
                "What has become of the branch that `session` names: `kept`, or `ended`, and its record "
                "stays; `chosen`: it has ended too, and the session goes on as it did, with this cell. Of "
                "one that was not run: `refused`, `problem` says why; `skipped`: the exploration was over or "
                "stopped before."
            ),
        ),
    ]
    problem: Annotated[
        Problem | UnsetType,
        say("Why it was not run, or why its result can't be read; absent if there is no such problem."),
    ] = UNSET


class Exploration(Value, frozen=True, kw_only=True):
    """The outcome of alternatives, in the order given."""

    results: list[Alternative] = []


class ExecutionModel(Value, frozen=True, kw_only=True):
    """An execution in a list of them."""

    session: str
    execution: str
    number: Annotated[int, say("The execution's number in its session, from 1.")]
    status: str
    created_at: Moment
    first_seq: Annotated[int, say("The `seq` of its first event.")]
    last_seq: Annotated[int | None, say("The `seq` of its last event so far.")]


class ExecutionPage(Value, frozen=True, kw_only=True):
    """A page of a session's executions."""

    executions: list[ExecutionModel]
    next: Number = None


class BlocksResult(Value, frozen=True, kw_only=True):
    """The outcome of several blocks: `exit_code` is 0, 1 for a failed block, 124 for one that timed out.

    `problem` says why a block could not be run at all, in the form of the gateway's errors.
    """

    blocks: list[Result] = []
    exit_code: int
    output: Annotated[str, say("The `text` of all blocks, in order.")] = ""
    problem: Problem | None = None


class EventPage(Value, frozen=True, kw_only=True):
    """The events recorded so far."""

    events: list[Event]
    next: Number = None


class KeepAlive(Value, frozen=True, kw_only=True):
    """A line that is no event: sent to keep a quiet stream's connection open, or while nothing has begun yet.

    The latter have `waiting_for` and `position`: the session that the request makes waits in line.
    """

    type: Literal["keepalive"] = "keepalive"
    waiting_for: Annotated[
        str | UnsetType,
        say("`kernel` while the new session of the request waits in line for one; else absent."),
    ] = UNSET
    position: Annotated[
        int | UnsetType, say("With `waiting_for`: how many sessions get a kernel before this one.")
    ] = UNSET


class Accepted(Value, frozen=True, kw_only=True):
    """A command on the WebSocket was accepted."""

    type: Literal["accepted"] = "accepted"
    execution: str | UnsetType = UNSET
    id: Annotated[str | int | UnsetType, say("The command's `id`; absent if it had none.")] = UNSET


# ---- processes --------------------------------------------------------------------------------------------


class ProcessModel(Value, frozen=True, kw_only=True):
    """A program that runs, or ran, beside a session's kernel."""

    process: Annotated[str, say("The process's id.")]
    session: Annotated[str, say("The session's key.")] = ""
    state: Annotated[str, say("`running` or `exited`.")] = "running"
    argv: Annotated[list[str], say("The program and its arguments.")] = []
    cwd: Annotated[str, say("The folder it runs in, relative to the workspace.")] = ""
    pid: Annotated[int, say("Its process id inside the kernel's sandbox or container.")] = 0
    exit_code: Annotated[int | None, say("Its exit code; null while it runs, or if it was ended.")] = None
    signal: Annotated[str | None, say("The signal that ended it, such as `SIGTERM`, or null.")] = None
    cause: Annotated[str | None, say("Why it was ended, a stable word; null if it ended by itself.")] = None
    stdout: Annotated[str, say("What it wrote to stdout so far; a long text is cut in the middle.")] = ""
    stderr: Annotated[str, say("What it wrote to stderr so far; a long text is cut in the middle.")] = ""
    truncated: Annotated[bool, say("Whether output is missing from the record too.")] = False
    started_at: Moment = ""
    finished_at: Annotated[str | None, say("When it ended, RFC 3339 in UTC; null while it runs.")] = None


class ProcessList(Value, frozen=True, kw_only=True):
    """The processes of a live session: all that run, and the last that ended."""

    processes: Annotated[list[ProcessModel], say("Oldest first.")] = []


class PortUrl(Value, frozen=True, kw_only=True):
    """Where a browser finds what a program shows on a port."""

    session: Annotated[str, say("The session's key.")] = ""
    port: Annotated[int, say("The port.")] = 0
    url: Annotated[str, say("The URL with a ticket, which works once.")]
    expires_in: Annotated[float, say("Seconds in which it must be opened.")] = 0.0


class ConsoleUrl(Value, frozen=True, kw_only=True):
    """Where a browser is signed in to the console."""

    url: Annotated[str, say("The URL with a ticket, which works once.")]
    expires_in: Annotated[float, say("Seconds in which it must be opened.")] = 0.0


# ---- files and packages -----------------------------------------------------------------------------------


class FileModel(Value, frozen=True, kw_only=True):
    """A file of a workspace."""

    path: Path
    size: Annotated[int, say("The file's size in bytes.")] = 0
    modified: Annotated[str | None, say("When the file was last modified, RFC 3339 in UTC.")] = None
    sha256: Annotated[str | None, say("The content's SHA-256 in hexadecimal; null until computed.")] = None
    folder: Annotated[
        bool | UnsetType, say("True for a folder, whose path ends with a slash; absent for a file.")
    ] = UNSET


class FilePage(Value, frozen=True, kw_only=True):
    """A page of files. `complete` is false if the workspace may have files that are not listed."""

    files: list[FileModel]
    next: Next = None
    complete: bool = True


class FileChanges(Value, frozen=True, kw_only=True):
    """The files that an uploaded form contained."""

    files: list[FileChange]


class Packages(Value, frozen=True, kw_only=True):
    """The packages that a session has in addition to its kernel's environment."""

    packages: list[Package]


class PackageChanges(Value, frozen=True, kw_only=True):
    """What a change to a session's packages installed and removed, and the packages it has now."""

    installed: list[Package] = []
    removed: list[Package] = []
    packages: list[Package]


# ---- the record -------------------------------------------------------------------------------------------


class TrailEntry(Value, frozen=True, kw_only=True):
    """An entry of the audit trail."""

    hash: Annotated[str, say("SHA-256 of the previous entry's hash and this entry's bytes, in hexadecimal.")]
    entry: Annotated[Raw, say("`seq`, `type`, `at` and what the type has, byte for byte as it was hashed.")]


class TrailPage(Value, frozen=True, kw_only=True):
    """A page of the audit trail."""

    entries: list[TrailEntry]
    next: Number = None


class ChainCheck(Value, frozen=True, kw_only=True):
    """Whether the hash chain of a session's rows is intact."""

    valid: bool
    rows: Annotated[int, say("The number of intact rows, counted from the first.")]
    head: Annotated[str, say("The hash of the last intact row, in hexadecimal.")]
    first_bad: Annotated[int | UnsetType, say("The `seq` at which a broken chain breaks.")] = UNSET
    key: Annotated[
        str | UnsetType, say("The installation's public key; absent if it has none or the chain is broken.")
    ] = UNSET
    signature: Annotated[
        str | UnsetType,
        say("The key's signature of the head; absent if there is no key or the chain is broken."),
    ] = UNSET


class SessionWidgets(Value, frozen=True, kw_only=True):
    """The Jupyter widgets of a session as they were after one of its events."""

    seq: Annotated[int, say("The last event that is part of it: later ones tell how the widgets go on.")]
    closed: Annotated[list[str], say("Those that were closed, which Jupyter's clients show no more.")]
    widgets: Annotated[
        dict[str, Any],
        say("By `comm_id`, as a notebook's metadata have them: `model_name`, `state`, `buffers` and more."),
    ]


class WidgetHandled(Value, frozen=True, kw_only=True):
    """How the kernel has handled a message to a widget."""

    seq: Annotated[int, say("The last event by then: those up to it tell what the widgets have become.")]
    text: Annotated[
        str,
        say(
            "What was printed or raised that no widget shows, at most 20,000 characters; it is not recorded."
        ),
    ]
    late: Annotated[bool, say("Whether it took longer than a cell may, and was interrupted.")]


class Changed(Value, frozen=True, kw_only=True):
    """A part of the environment that differs from the recorded one; null where it is missing."""

    name: str
    recorded: str | None
    now: str | None


class EnvironmentReport(Value, frozen=True, kw_only=True):
    """Whether a replay ran in the recorded environment."""

    agreement: Annotated[
        str,
        say(
            "How the environments compare: `same`, `different`, or `unknown` if the record has no package "
            "lock."
        ),
    ]
    changes: list[Changed]


class Pair(Value, frozen=True, kw_only=True):
    """A recorded value and its current one."""

    recorded: str | None
    now: str | None


class RestoredFile(Value, frozen=True, kw_only=True):
    """An input file, and whether it was restored for the replay."""

    path: Path
    restored: bool
    reason: Annotated[str | UnsetType, say("Why the file was not restored; absent if it was.")] = UNSET


class DifferingPart(Value, frozen=True, kw_only=True):
    """One part of a cell that differs."""

    part: Annotated[str, say("The part, such as `stdout` or `output 1`.")]
    note: Annotated[str, say("What differs, in words.")]
    judged: Annotated[bool, say("False if it cannot be decided whether this is a difference in the result.")]
    diff: Annotated[str | UnsetType, say("A unified diff of the texts; absent if there is none.")] = UNSET
    picture: Annotated[
        str | UnsetType, say("An image of the difference, a PNG as a data URL; absent if there is none.")
    ] = UNSET


CellNumber = Annotated[int, say("The cell's number among all of the notebook, Markdown included, from 1.")]
RecordedExecution = Annotated[str | None, say("The recorded execution's id; null if none is named.")]


class CellReport(Value, frozen=True, kw_only=True):
    """The outcome of a cell in a replay."""

    cell: CellNumber
    execution: RecordedExecution
    source: Annotated[str, say("The cell's source code.")]
    verdict: Annotated[str, say("The verdict: `equal`, `normalised`, `unjudged`, `different` or `skipped`.")]
    same: Annotated[bool | None, say("Whether the cell gave the same; null if `unjudged` or `skipped`.")]
    status: Annotated[Pair | UnsetType, say("How the cell ended; absent if it was not compared.")] = UNSET
    normalised: Annotated[
        list[str] | UnsetType,
        say("The normalisation rules that were needed; absent if the cell was not compared."),
    ] = UNSET
    reason: Annotated[
        str | UnsetType,
        say("Why the cell was skipped, why a difference proves nothing, or why there was no comparison."),
    ] = UNSET
    difference: Annotated[str | UnsetType, say("All differences in one line; absent without any.")] = UNSET
    differences: Annotated[list[DifferingPart] | UnsetType, say("The differing parts, if any.")] = UNSET
    inherited: Annotated[
        str | UnsetType,
        say(
            "The session that the cell ran in before that was branched; absent for a branch's own cells. The"
            " counts and the verdict of the whole are without inherited cells."
        ),
    ] = UNSET


Tolerance = Annotated[float, say("How far apart two floats could be, relative to the larger one.")]
Worst = Annotated[
    str,
    say(
        "The worst of the cells' verdicts: `different`, `unjudged`, `normalised` or `equal`; `unjudged` if "
        "none was compared."
    ),
]
Same = Annotated[int, say("The number of cells that gave the same, normalised ones included.")]
Normalised = Annotated[int, say("The number of cells that gave the same only after normalising.")]
Unjudged = Annotated[int, say("The number of cells of which nobody can say whether they gave the same.")]
Different = Annotated[int, say("The number of cells that gave something different.")]
Skipped = Annotated[int, say("The number of cells that were not compared.")]


class ReplayFacts(Value, frozen=True, kw_only=True):
    """What is known of a session's replay before its cells are compared."""

    session: str
    head: str
    kernel: str
    isolation: str | None
    replayed_at: Moment
    gateway_version: str
    environment: EnvironmentReport
    hash_seed: Pair
    files: list[RestoredFile]


class ReplayReport(ReplayFacts, frozen=True, kw_only=True):
    """The findings of a replay, cell by cell."""

    rtol: Tolerance
    verdict: Worst
    same: Same
    normalised: Normalised
    unjudged: Unjudged
    different: Different
    skipped: Skipped
    cells: list[CellReport]


class NotebookFacts(Value, frozen=True, kw_only=True):
    """What is known of a file's replay by `cellgate replay` before its cells are compared."""

    file: Annotated[str, say("The name of the notebook or bundle.")]
    session: Annotated[str | None, say("The recorded session; null if the file names none.")]
    replay_session: Annotated[str, say("The session in which the cells ran again.")]
    kernel: str
    isolation: str | None
    replayed_at: Moment
    environment: EnvironmentReport
    hash_seed: Pair
    files: list[RestoredFile]


class NotebookReport(NotebookFacts, frozen=True, kw_only=True):
    """The findings of `cellgate replay`, cell by cell: those of `ReplayReport`."""

    rtol: Tolerance
    verdict: Worst
    same: Same
    normalised: Normalised
    unjudged: Unjudged
    different: Different
    skipped: Skipped
    cells: list[CellReport]


class ReplayedCell(Value, frozen=True, kw_only=True):
    """A line of a streamed replay: a cell has run again, or was left out."""

    type: Literal["cell"] = "cell"
    cell: CellNumber
    execution: RecordedExecution
    status: Annotated[str | None, say("How the cell ended in the replay; null if it was not run.")]


# ---- the gateway ------------------------------------------------------------------------------------------


class Ceilings(Value, frozen=True, kw_only=True):
    """The highest limits that may be requested: sizes in bytes, `cpus`, `pids`, and times in seconds."""

    memory: int
    cpus: float
    pids: int
    disk: int
    cell_timeout: float
    lifetime: float


class QuotaUse(Value, frozen=True, kw_only=True):
    """How much of a quota is used, and its limit; sizes in bytes."""

    limit: Annotated[int | float | None, say("Null if there is no limit.")]
    used: Annotated[int | float | None, say("Null if not measured: `record` without a quotas file.")]


class Me(Value, frozen=True, kw_only=True):
    """Who a token belongs to, what it permits, and what its principal uses now."""

    principal: str
    role: Annotated[str, say("`user`, `admin` or `auditor`.")]
    scopes: Annotated[
        list[str], say("What role and token permit: `run`, `read`, `files`, `packages`, `metrics`, `users`.")
    ]
    quotas: dict[str, QuotaUse]


class PrincipalUse(Value, frozen=True, kw_only=True):
    """What a principal uses of its quotas."""

    principal: str
    role: Annotated[str, say("`user`, `admin` or `auditor`.")]
    quotas: dict[str, QuotaUse]


class UsagePage(Value, frozen=True, kw_only=True):
    """A page of principals, by name."""

    principals: list[PrincipalUse]
    next: Next = None


class UserModel(Value, frozen=True, kw_only=True):
    """A user."""

    name: str
    role: Annotated[str, say("`user`, `admin` or `auditor`.")]
    state: Annotated[str, say("`active` or `disabled`.")]
    created_at: str


class UserPage(Value, frozen=True, kw_only=True):
    """A page of users, by name."""

    users: list[UserModel]
    next: Next = None


class TokenModel(Value, frozen=True, kw_only=True):
    """A token of a user, without its text."""

    id: str
    user: str
    scopes: Annotated[str | None, say("Its scopes, with commas between; null: all that the role may.")]
    sessions: Annotated[
        str | None, say("The one session that it is for, or how their keys begin, with a `*`; null: all.")
    ]
    created_at: str
    expires_at: str | None
    revoked_at: str | None
    made_by: Annotated[
        str | None, say("The id of the token that it was made with; null: it was made without one.")
    ] = None


class NewToken(TokenModel, frozen=True, kw_only=True):
    """A token that has just been made."""

    token: Annotated[str, say("The token itself. It is shown only now: a digest of it is kept.")]


class TokenPage(Value, frozen=True, kw_only=True):
    """A page of a user's tokens, oldest first."""

    tokens: list[TokenModel]
    next: Next = None


class SecretModel(Value, frozen=True, kw_only=True):
    """A secret of a user, without its value."""

    name: str
    set_at: str


class SecretList(Value, frozen=True, kw_only=True):
    """All secrets of a user, by name."""

    secrets: list[SecretModel]


class NodeModel(Value, frozen=True, kw_only=True):
    """A gateway of a cluster."""

    node: Annotated[str, say("The gateway's id, as `Cellgate-Owner` names it.")]
    url: Annotated[str, say("Where the other gateways reach it.")]
    state: Annotated[
        str,
        say(
            "`up`; `draining`: it opens no more sessions; `late`: it has given no sign of life for half a"
            " lease; `down`: for a lease, or it has stopped."
        ),
    ]
    capacity: Annotated[int, say("The most kernels that it may have.")]
    used: Annotated[int, say("Kernels of sessions, with those that sessions wait for.")]
    warm: Annotated[int, say("Kernels that wait for a session.")]
    beat_at: Annotated[str, say("The time of its last sign of life, by the clock of the database.")]


class ClusterModel(Value, frozen=True, kw_only=True):
    """The gateways that share a record."""

    nodes: Annotated[list[NodeModel], say("All nodes that were ever there and not removed, by id.")]
    takeovers: Annotated[int, say("Sessions that nodes have taken over from others since their start.")]


class KernelspecModel(Value, frozen=True, kw_only=True):
    """A kind of kernel."""

    display_name: str
    language: str


class EnvironmentModel(Value, frozen=True, kw_only=True):
    """What the environment of a kernelspec has, as of when it or its image was made."""

    name: Annotated[str, say("`standard` or `minimal`; `own` or empty: the operator's own packages.")] = ""
    python: Annotated[str, say("The version of Python.")] = ""
    packages: Annotated[dict[str, str], say("The version of each package, by name.")] = {}
    programs: Annotated[list[str], say("Well-known programs that cells can run, such as `git`.")] = []


class ContainersModel(Value, frozen=True, kw_only=True):
    """How kernels have containers."""

    per: Annotated[
        str,
        say(
            "`session`: each kernel has one. `principal`: those of one user share one, if they can; see "
            "`fork_server`."
        ),
    ]
    limits: Annotated[
        str,
        say(
            "Whether the limits of memory, processors and processes are each `kernel`'s, or the "
            "`container`'s, whose kernels share them."
        ),
    ]


class GatewayInfo(Value, frozen=True, kw_only=True):
    """A gateway's description of itself."""

    version: str
    backend: str
    isolation: str
    isolation_gaps: Annotated[
        list[str],
        say(
            "What this isolation does not hold or have of what a sandbox does, and at the end what would "
            "bring that; empty for sandboxes and containers."
        ),
    ] = []
    default_kernel: str = ""
    kernelspecs: dict[str, KernelspecModel] = {}
    limits: dict[str, Any] = {}
    ceilings: Ceilings
    environment: Annotated[
        dict[str, EnvironmentModel],
        say(
            "What cells find, by kernelspec of Python; kernelspecs of which the gateway does not know it are"
            " left out."
        ),
    ] = {}
    packages_allowed: Annotated[list[str], say("The packages that sessions may install; `*`: any.")] = []
    packages: Annotated[list[str], say("The same as `packages_allowed`.")] = []
    open_network: Annotated[
        bool, say("Whether all cells reach a network, without asking, by the operator's choice of backend.")
    ] = False
    network: Annotated[
        list[str] | None,
        say(
            "The hosts and ports that your sessions with `network: allow` reach, such as "
            "`*.example.org:443`; null if none."
        ),
    ] = None
    doors: Annotated[list[str], say("The doors that are open for clients of other systems, by name.")] = []
    ports: Annotated[bool, say("Whether programs' ports are served; see `POST .../ports/{port}`.")] = False
    ports_url: Annotated[
        str | None,
        say(
            "Where programs' ports are served, such as `http://127.0.0.1:8890/`, as seen from where you "
            "reached the gateway; with `*` for a name for each port; null if they are not."
        ),
    ] = None
    cell_hook: Annotated[
        Annotated[Literal["ok", "failing"], Meta(title="CellHookState")] | None,
        say(
            "Whether a program of the operator's, which sees each cell before it runs and may refuse it, "
            "answered when it was asked last; null if there is none."
        ),
    ] = None
    pool: dict[str, Any] = {}
    fork_server: Annotated[
        dict[str, str],
        say(
            "How kernels of each kernelspec start: as a fork of an interpreter that has loaded their "
            "libraries (`fork`), or each as a program (`cold`)."
        ),
    ] = {}
    containers: Annotated[ContainersModel | None, say("How kernels have containers; null without any.")] = (
        None
    )
    sessions: Annotated[dict[str, int], say("The number of live sessions in each state.")] = {}


class Health(Value, frozen=True, kw_only=True):
    """The gateway's process is running."""

    status: Literal["ok"] = "ok"


class Readiness(Value, frozen=True, kw_only=True):
    """Whether the gateway accepts new work, and if not, what is missing."""

    status: Annotated[Literal["ready", "not_ready"], Meta(title="ReadinessStatus")]
    missing: list[str]
    sessions_not_recorded: int | UnsetType = UNSET
