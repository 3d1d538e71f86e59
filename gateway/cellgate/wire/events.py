"""The events of a session, one struct for each type: recorded, streamed, exported, and read by clients.

This is their only declaration. The gateway encodes an event as the bytes that are hashed, stored and
streamed, from the kernel's own dictionaries (``record.events``): structs would cost a third more, for every
output. Readers decode events to these structs. A test compares the bytes that a gateway has recorded with
them, field by field and in order. `docs/reference/events.md` is generated from this file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, UnsetType, field

from cellgate.wire.base import Value, say
from cellgate.wire.obstacle import Obstacle
from cellgate.wire.usage import Usage
from cellgate.wire.words import Cause, Status

E = TypeVar("E", bound="Event")

ExecutionCount = Annotated[int | None, say("The kernel's prompt number; null if the kernel reported none.")]
InterruptedBy = Annotated[str, say("The principal who interrupted it; absent if nobody is known to have.")]
MemoryKills = Annotated[int, say("Processes beside the kernel killed at its memory limit; absent if none.")]
MimeBundle = Annotated[
    dict[str, Any],
    say("One representation per MIME type: text as a string, binary data in base64, JSON types as JSON."),
]
DisplayMetadata = Annotated[
    dict[str, Any],
    say("Display metadata in Jupyter's format, such as an image's width and height by MIME type."),
]
DisplayId = Annotated[str, say("The display's id, which later updates refer to; absent if it has none.")]
ShownBy = Annotated[
    str, say("The `comm_id` of the Output widget that shows this instead of the cell; absent if none does.")
]
Traceback = Annotated[list[str], say("The traceback's lines, with ANSI colour codes; may be empty.")]
CommData = Annotated[
    dict[str, Any],
    say("The comm message's data: `state` holds the widget's whole state, or the part that changed."),
]
CommId = Annotated[str, say("The comm's id, which all messages of one widget share.")]
Buffers = Annotated[list[str], say("The binary parts of the state, in base64.")]


class Event(Value, frozen=True, kw_only=True):
    """An event of a session, which is one row of its record."""

    seq: Annotated[int, say("The event's number in its session: 1 for the first, then one more each time.")]
    session: Annotated[str, say("The session's key.")]
    execution: Annotated[
        str | None,
        say("The id of the execution that the event belongs to; null for an event of the session itself."),
    ] = None
    type: Annotated[str, say("The type of the event; it determines the other fields.")]
    at: Annotated[str, say("When the event was recorded, as an RFC 3339 timestamp in UTC.")] = ""


class ErrorInfo(Value, frozen=True, kw_only=True):
    """The exception that ended a cell."""

    ename: Annotated[str, say("The name of the exception's class.")] = ""
    evalue: Annotated[str, say("The exception's message.")] = ""
    traceback: Traceback = []


class Missing(Value, frozen=True, kw_only=True):
    """What a session had before its kernel was replaced and does not have now."""

    env: Annotated[
        list[str] | UnsetType,
        say("The names of environment variables whose values are gone; absent if none."),
    ] = UNSET
    packages: Annotated[
        list[str] | UnsetType, say("The names of packages that are no longer installed; absent if none.")
    ] = UNSET
    limits: Annotated[
        dict[str, float] | UnsetType,
        say("The former values of limits that are lower now, by name; absent if none."),
    ] = UNSET
    network: Annotated[
        bool | UnsetType,
        say("True if it reached hosts by `network: allow`; absent if it did not, or still does."),
    ] = UNSET


LossCause = Annotated[
    str | UnsetType,
    say("Why the kernel was replaced: the cause of its death or of the session's end; absent if unknown."),
]
LossFiles = Annotated[
    str | UnsetType,
    say("`kept` if the session's files are in the workspace of the fresh kernel, `none` if that is empty."),
]
LossMissing = Annotated[Missing | UnsetType, say("What the session had before and lacks now, if anything.")]


class Loss(Value, frozen=True, kw_only=True):
    """A session's kernel was replaced by a fresh one, and the variables are lost."""

    cause: LossCause = UNSET
    files: LossFiles = UNSET
    missing: LossMissing = UNSET


class KernelInfo(Value, frozen=True, kw_only=True):
    """The kernel's condition after an execution. The fields after `replaced` are absent unless it is true."""

    state: Annotated[str, say("The session's state after the execution: `idle`, `busy`, `dead`, ...")] = ""
    replaced: Annotated[
        bool,
        say(
            "Whether the kernel was replaced by a fresh one, so that variables are lost, and this is the "
            "first execution that says so."
        ),
    ] = False
    cause: LossCause = UNSET
    files: LossFiles = UNSET
    missing: LossMissing = UNSET


class BranchedFrom(Value, frozen=True, kw_only=True):
    """The moment of another session that a branch continues: an event `branched` of that session."""

    session: Annotated[str, say("The key of the session that was branched.")]
    seq: Annotated[int, say("The `seq` of its event `branched`.")]
    head: Annotated[str, say("That event's hash in hexadecimal; it covers all events before.")]


class Package(Value, frozen=True, kw_only=True):
    """A package that a session has in addition to its kernel's environment."""

    name: Annotated[str, say("The package's name as spelled by the index.")]
    version: Annotated[str, say("The installed version.")] = ""
    sha256: Annotated[str, say("The SHA-256 of its wheel, in hexadecimal.")] = ""
    requested: Annotated[bool, say("Whether it was requested by name, not only needed by another.")] = False


# ---- an execution -----------------------------------------------------------------------------------------


class Queued(Event, frozen=True, kw_only=True):
    """The execution was queued. More of them follow while its session waits in line for a kernel.

    Those have `waiting_for`. At most one is recorded a second, and only when the position has changed.
    """

    type: Literal["queued"] = "queued"
    position: Annotated[
        int | None,
        say(
            "The number of executions ahead of it; 0 if it is next. With `waiting_for`: how many sessions "
            "get a kernel before its own."
        ),
    ] = 0
    code: Annotated[str, say("The cell's source code; empty with `waiting_for`.")] = ""
    msg_id: Annotated[str, say("The id of the `execute_request` message that is sent to the kernel.")] = ""
    silent: Annotated[bool | UnsetType, say("True for a silent cell; absent otherwise.")] = UNSET
    store_history: Annotated[
        bool | UnsetType, say("False if a Jupyter client asked not to store history; absent otherwise.")
    ] = UNSET
    timeout: Annotated[
        float | UnsetType | None,
        say("Seconds the cell may run, null for no limit; absent if the session's `cell_timeout` applies."),
    ] = UNSET
    cell_id: Annotated[
        str | UnsetType | None, say("The id of a notebook's cell that a client sent; absent if it sent none.")
    ] = UNSET
    env: Annotated[
        list[str] | UnsetType,
        say("The names of environment variables set for this cell; values are not recorded. Absent if none."),
    ] = UNSET
    ran_in: Annotated[
        str | UnsetType,
        say(
            "The branch in which it ran as an alternative, before the session went on as that branch, whose "
            "record has the events as they happened. Absent otherwise."
        ),
    ] = UNSET
    idempotency: Annotated[
        list[str] | UnsetType,
        say("The request's `Idempotency-Key` and the hash of the request; absent without a key."),
    ] = UNSET
    waiting_for: Annotated[
        str | UnsetType,
        say(
            "`kernel` in the later events of an execution whose session waits in line for one; absent in the"
            " first."
        ),
    ] = UNSET


class Started(Event, frozen=True, kw_only=True):
    """The kernel has started the cell."""

    type: Literal["started"] = "started"
    execution_count: ExecutionCount = None
    code: Annotated[str, say("The cell's source code.")] = ""


class Stream(Event, frozen=True, kw_only=True):
    """The cell wrote text to stdout or stderr."""

    type: Literal["stream"] = "stream"
    name: Annotated[str, say("The stream that was written to: `stdout` or `stderr`.")] = "stdout"
    text: Annotated[str, say("The text as it was written, including ANSI codes.")] = ""
    widget: ShownBy | UnsetType = UNSET


class DisplayData(Event, frozen=True, kw_only=True):
    """The cell displayed an object."""

    type: Literal["display_data"] = "display_data"
    data: MimeBundle = {}
    metadata: DisplayMetadata = {}
    shown_as: DisplayId | UnsetType = field(default=UNSET, name="display_id")
    widget: ShownBy | UnsetType = UNSET

    @property
    def display_id(self) -> str | None:
        """The name of the display, None if it has none."""
        return None if isinstance(self.shown_as, UnsetType) else self.shown_as


class UpdateDisplayData(DisplayData, frozen=True, kw_only=True):
    """An earlier display got new content."""

    # A subclass so that isinstance finds all displays; only the value of `type` differs.
    type: Literal["update_display_data"] = "update_display_data"  # type: ignore[assignment]


class ExecuteResult(DisplayData, frozen=True, kw_only=True):
    """The value of the cell's last expression."""

    type: Literal["execute_result"] = "execute_result"  # type: ignore[assignment]
    execution_count: ExecutionCount = None


class ClearOutput(Event, frozen=True, kw_only=True):
    """The cell's outputs were cleared."""

    type: Literal["clear_output"] = "clear_output"
    wait: Annotated[bool, say("Whether to keep the outputs until the next one arrives.")] = False
    widget: ShownBy | UnsetType = UNSET


class ErrorRaised(Event, frozen=True, kw_only=True):
    """The cell raised an exception."""

    type: Literal["error"] = "error"
    ename: Annotated[str, say("The name of the exception's class.")] = ""
    evalue: Annotated[str, say("The exception's message.")] = ""
    traceback: Traceback = []
    widget: ShownBy | UnsetType = UNSET


class InputRequest(Event, frozen=True, kw_only=True):
    """The cell waits for a line of input."""

    type: Literal["input_request"] = "input_request"
    prompt: Annotated[str, say("The prompt that the cell shows.")] = ""
    password: Annotated[bool, say("Whether the typed text should be hidden.")] = False


class InputReply(Event, frozen=True, kw_only=True):
    """A client answered the cell's question; lines that came with the request are not recorded."""

    type: Literal["input_reply"] = "input_reply"
    prompt: Annotated[str, say("The prompt that the cell showed.")] = ""
    value: Annotated[str | UnsetType, say("At most 10,000 characters; absent for a password.")] = UNSET


class CommOpened(Event, frozen=True, kw_only=True):
    """A widget was created. Only comms of widgets are recorded, and only messages that hold a state."""

    type: Literal["comm_open"] = "comm_open"
    comm_id: CommId = ""
    target_name: Annotated[str, say("The comm's target, `jupyter.widget`.")] = ""
    data: CommData = {}
    buffers: Buffers = []


class CommMessage(Event, frozen=True, kw_only=True):
    """A widget's state changed. `execution` is null if a client changed it outside of a cell."""

    type: Literal["comm_msg"] = "comm_msg"
    comm_id: CommId = ""
    data: CommData = {}
    buffers: Buffers = []


class CommClosed(Event, frozen=True, kw_only=True):
    """A widget was closed."""

    type: Literal["comm_close"] = "comm_close"
    comm_id: CommId = ""


class FileChanged(Event, frozen=True, kw_only=True):
    """A file was created, changed or deleted in the workspace; `execution` is null if a client did it."""

    type: Literal["file"] = "file"
    path: Annotated[str, say("The file's path, relative to the workspace.")] = ""
    size: Annotated[int | None, say("The file's size in bytes; null if it was deleted.")] = None
    sha256: Annotated[
        str | None,
        say("The content's SHA-256 in hexadecimal; null if there was too much to hash or the file is gone."),
    ] = None
    action: Annotated[str, say("What happened to the file: `created`, `changed` or `deleted`.")] = "changed"


class PackagesChanged(Event, frozen=True, kw_only=True):
    """Packages of the session were installed or removed."""

    type: Literal["packages"] = "packages"
    action: Annotated[str, say("What happened to the packages: `installed` or `removed`.")] = "installed"
    packages: Annotated[list[Package], say("The packages that were installed or removed.")] = []


class Finished(Event, frozen=True, kw_only=True):
    """The execution has ended. The fields are those of a result, without the outputs."""

    type: Literal["finished"] = "finished"
    status: Annotated[Status, say("`ok`, `error`, `timeout`, `interrupted`, `died` or `cancelled`.")] = ""
    cause: Annotated[Cause | None, say("The reason as a stable word; null if the status says it all.")] = None
    execution_count: ExecutionCount = None
    error: Annotated[ErrorInfo | None, say("The exception, or the gateway's own report; null: none.")] = None
    started_at: Annotated[str | None, say("When the kernel started the cell; null if it never did.")] = None
    finished_at: Annotated[str | None, say("When the execution ended, RFC 3339 in UTC.")] = None
    duration_ms: Annotated[
        float | None, say("Milliseconds from sending the cell to its end; null if the gateway stopped.")
    ] = None
    queue_ms: Annotated[
        float | None, say("Milliseconds from the request until it was sent; null if the gateway stopped.")
    ] = None
    truncated: Annotated[bool, say("Whether some output was cut or left out.")] = False
    interrupted_by: InterruptedBy | UnsetType = UNSET
    memory_kills: MemoryKills | UnsetType = UNSET
    usage: Usage | UnsetType = UNSET
    timeout: Annotated[float | UnsetType, say("Seconds it had; absent unless `status` is `timeout`.")] = UNSET
    sent: Annotated[
        bool | UnsetType, say("Whether a kernel was asked to run the cell; absent unless `status` is `died`.")
    ] = UNSET
    kernel: Annotated[KernelInfo, say("The kernel's condition after the execution.")] = KernelInfo()


# ---- the session ------------------------------------------------------------------------------------------


class SessionChanged(Event, frozen=True, kw_only=True):
    """The session's state changed. The first event of a kernel also describes the session and the kernel."""

    type: Literal["session"] = "session"
    state: Annotated[str, say("The session's new state: `starting`, `idle`, `busy`, `dead` or `ended`.")] = ""
    cause: Annotated[
        str | None,
        say(
            "Why the state changed: `created`, `branched`, `resumed`, `adopted`, or why the kernel or "
            "session ended; `changed`: it is the same, but metadata or limits are not."
        ),
    ] = None
    kernel: Annotated[str, say("The name of the kernelspec.")] = ""
    last_activity: Annotated[
        str | UnsetType, say("When the session was last used, as an RFC 3339 timestamp in UTC.")
    ] = UNSET
    kernel_id: Annotated[str | UnsetType, say("The kernel's id; sent whenever there is one.")] = UNSET
    isolation: Annotated[
        str | UnsetType | None,
        say("What separates the kernel from the machine: `none`, `sandbox`, `container` or `gvisor`."),
    ] = UNSET
    limits: Annotated[
        dict[str, Any] | UnsetType,
        say("The limits: `memory` and `disk` in bytes, `cpus`, `pids`, and times in seconds."),
    ] = UNSET
    principal: Annotated[str | UnsetType, say("The name of the principal that owns the session.")] = UNSET
    created_at: Annotated[str | UnsetType, say("When the session was created, RFC 3339 in UTC.")] = UNSET
    metadata: Annotated[
        dict[str, Any] | UnsetType | None,
        say("The metadata that clients gave to the session; empty if none."),
    ] = UNSET
    environment: Annotated[
        dict[str, Any] | UnsetType, say("The kernel's environment: versions, packages and image.")
    ] = UNSET
    gateway_version: Annotated[str | UnsetType, say("The recording gateway's version.")] = UNSET
    folder: Annotated[str | UnsetType, say("The name of the folder that keeps the session's files.")] = UNSET
    branched_from: Annotated[
        BranchedFrom | UnsetType, say("In the first event of a branch: what it continues; absent otherwise.")
    ] = UNSET
    execution_count: Annotated[
        int | UnsetType,
        say(
            "In the first event of a branch: how many cells its kernel has counted so far; absent otherwise."
        ),
    ] = UNSET
    loss: Annotated[
        Loss | UnsetType,
        say("What was lost with the previous kernel, until an execution has said so; absent otherwise."),
    ] = UNSET


class Branched(Event, frozen=True, kw_only=True):
    """The session was branched: another session goes on from here with a copy of its kernel.

    There is no other session of that name if the gateway ended before it was recorded, or if it was purged.
    """

    type: Literal["branched"] = "branched"
    branch: Annotated[str, say("The key of the new session.")] = ""
    workspace: Annotated[str, say("`copy`: it has a copy of the files; `shared`: both have them.")] = "copy"
    seed: Annotated[
        int | None, say("What its random numbers were seeded with; null if they continue the session's.")
    ] = None
    obstacles: Annotated[
        list[Obstacle], say("What it does not have, or does not work in it; it was branched `anyway`.")
    ] = []
    children: Annotated[
        list[str] | UnsetType,
        say(
            "Processes that cells of the session had started and that still ran: each one's pid and name. "
            "The branch does not have them. Absent if none."
        ),
    ] = UNSET


class Checkpointed(Event, frozen=True, kw_only=True):
    """A checkpoint was made on request: the session can be rolled back to this moment while it lives.

    Those that are made after each cell have no event.
    """

    type: Literal["checkpointed"] = "checkpointed"
    name: Annotated[str, say("Its name.")] = ""
    obstacles: Annotated[list[Obstacle], say("What the copied kernel would lack; made `anyway`.")] = []


class RolledBack(Event, frozen=True, kw_only=True):
    """The session went back to a checkpoint, with its variables and files.

    Cells that began between the event `to_seq` and this one are undone.
    """

    type: Literal["rolled_back"] = "rolled_back"
    checkpoint: Annotated[str, say("The name of the checkpoint.")] = ""
    to_seq: Annotated[int, say("The `seq` of the last event before it was made.")] = 0
    undone: Annotated[int, say("How many cells of the session this undid.")] = 0


class ConnectionOver(Event, frozen=True, kw_only=True):
    """A connection of the session to a host is over, or was refused.

    Addresses of pages, header fields and contents are never recorded.
    """

    type: Literal["connection"] = "connection"
    host: Annotated[str, say("The host's name as requested; empty if the request was not understood.")] = ""
    port: Annotated[int | None, say("The port; null if the request was not understood.")] = None
    address: Annotated[str | None, say("The IP address that was connected to; null if none was.")] = None
    verdict: Annotated[str, say("The policy's verdict: `allowed` or `refused`.")] = ""
    cause: Annotated[
        str | None,
        say("Why it was refused or did not end by itself, as a stable word; null if it ended by itself."),
    ] = None
    sent: Annotated[int, say("The number of bytes that the host was sent.")] = 0
    received: Annotated[int, say("The number of bytes that the host sent.")] = 0
    seconds: Annotated[float, say("How long the connection lasted.")] = 0.0
    during: Annotated[str | None, say("The id of the execution that ran when it was opened, or null.")] = None


class ConnectionsOver(Event, frozen=True, kw_only=True):
    """Further connections within one minute, beyond those that have an event each."""

    type: Literal["connections"] = "connections"
    allowed: Annotated[int, say("How many were allowed.")] = 0
    refused: Annotated[int, say("How many were refused.")] = 0
    sent: Annotated[int, say("The number of bytes that the hosts were sent.")] = 0
    received: Annotated[int, say("The number of bytes that the hosts sent.")] = 0
    hosts: Annotated[list[str], say("Those that were allowed, as `host:port`: 20 at most.")] = []


ProcessId = Annotated[str, say("The id of the process.")]


class PortOpened(Event, frozen=True, kw_only=True):
    """A port that a program listens on was connected to for the first time since the kernel began."""

    type: Literal["port_opened"] = "port_opened"
    port: Annotated[int, say("The port.")] = 0


class PortClosed(Event, frozen=True, kw_only=True):
    """What was carried to and from a port, when its kernel, session or gateway ended.

    The numbers are null if they are not known: the gateway crashed, and the next one recorded this.
    """

    type: Literal["port_closed"] = "port_closed"
    port: Annotated[int, say("The port.")] = 0
    connections: Annotated[int | None, say("How many connections there were.")] = 0
    sent: Annotated[int | None, say("Bytes sent to the program.")] = 0
    received: Annotated[int | None, say("Bytes received from it.")] = 0


class ProcessStarted(Event, frozen=True, kw_only=True):
    """A program was started beside the kernel. Its events belong to no execution."""

    type: Literal["process_started"] = "process_started"
    process: ProcessId = ""
    argv: Annotated[list[str], say("The program and its arguments.")] = []
    cwd: Annotated[str, say("The folder it runs in, relative to the workspace.")] = ""
    env: Annotated[
        list[str], say("The names of environment variables set for it; values are not recorded.")
    ] = []
    stdin: Annotated[bool, say("Whether it gets input.")] = False
    timeout: Annotated[float | None, say("Seconds it may run; null if only its session limits that.")] = None
    pid: Annotated[int, say("Its process id inside the kernel's sandbox or container.")] = 0


class ProcessOutput(Event, frozen=True, kw_only=True):
    """A process wrote text to stdout or stderr."""

    type: Literal["process_output"] = "process_output"
    process: ProcessId = ""
    name: Annotated[str, say("The stream that was written to: `stdout` or `stderr`.")] = "stdout"
    text: Annotated[str, say("The text as it was written; bytes that are not UTF-8 are replaced.")] = ""


class ProcessExited(Event, frozen=True, kw_only=True):
    """A process has ended. Of one that a crash of the gateway ended, only the cause is known."""

    type: Literal["process_exited"] = "process_exited"
    process: ProcessId = ""
    exit_code: Annotated[
        int | None, say("Its exit code; null if a signal ended it, or it ended with its kernel.")
    ] = None
    signal: Annotated[str | None, say("The signal that ended it, such as `SIGTERM`; null if none did.")] = (
        None
    )
    cause: Annotated[
        str | None,
        say(
            "Why it was ended: `timeout`, `terminated`, or why its kernel or session ended; null if it ended"
            " by itself. `gateway_restart`: a crash of the gateway hid its end."
        ),
    ] = None
    truncated: Annotated[bool | None, say("Whether some output was left out; null if that is not known.")] = (
        False
    )
    duration_ms: Annotated[
        float | None, say("How long it ran, in milliseconds; null if that is not known.")
    ] = 0.0


OF_EXECUTIONS: tuple[type[Event], ...] = (
    Queued,
    Started,
    Stream,
    DisplayData,
    UpdateDisplayData,
    ExecuteResult,
    ClearOutput,
    ErrorRaised,
    InputRequest,
    InputReply,
    CommOpened,
    CommMessage,
    CommClosed,
    FileChanged,
    PackagesChanged,
    Finished,
)
OF_SESSIONS: tuple[type[Event], ...] = (
    SessionChanged,
    Branched,
    Checkpointed,
    RolledBack,
    ConnectionOver,
    ConnectionsOver,
    PortOpened,
    PortClosed,
    ProcessStarted,
    ProcessOutput,
    ProcessExited,
)
EVENTS = (*OF_EXECUTIONS, *OF_SESSIONS)


def type_of(kind: type[Event]) -> str:
    """Return the `type` of events of this class."""
    fields = {each.name: each.default for each in msgspec.structs.fields(kind)}
    return str(fields["type"])


BY_TYPE = {type_of(kind): kind for kind in EVENTS}
