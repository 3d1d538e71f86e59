"""The events of a session, one struct for each type: recorded, streamed, exported, and read by clients.

This is their only declaration. The gateway encodes an event as the bytes that are hashed, stored and
streamed, from the kernel's own dictionaries (``record.events``): making a struct of each first would cost a
third more, for every output of every cell. Readers of events decode them to these structs. A test compares
the bytes that a gateway has recorded with them, field by field and in order. `docs/reference/events.md` is
generated from this file.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, UnsetType, field

from cellgate.wire.base import Value

E = TypeVar("E", bound="Event")

ExecutionCount = Annotated[int | None, Meta(description="The kernel's prompt number, where it gave one.")]
MimeBundle = Annotated[
    dict[str, Any],
    Meta(description="By MIME type: text, base64 for binary types, JSON as it is for JSON types."),
]
DisplayMetadata = Annotated[dict[str, Any], Meta(description="By MIME type, as Jupyter has it.")]
DisplayId = Annotated[str, Meta(description="Names the display, so that it can be changed later.")]
Traceback = Annotated[list[str], Meta(description="Lines with ANSI colours.")]
CommData = Annotated[dict[str, Any], Meta(description="With the `state`, or what of it has changed.")]
CommId = Annotated[str, Meta(description="Names the comm.")]
Buffers = Annotated[list[str], Meta(description="Binary parts of the state, in base64.")]


class Event(Value, frozen=True, kw_only=True):
    """A row of a session's record."""

    seq: Annotated[int, Meta(description="Rises by one within a session, from 1.")]
    session: Annotated[str, Meta(description="The session's key.")]
    execution: Annotated[
        str | None, Meta(description="The execution it belongs to; null for what happens to the session.")
    ] = None
    type: Annotated[str, Meta(description="Says which of the events this is.")]
    at: Annotated[str, Meta(description="When it was recorded, RFC 3339 in UTC.")] = ""


class ErrorInfo(Value, frozen=True, kw_only=True):
    """The exception that ended a cell. `traceback` is lines with ANSI colours."""

    ename: Annotated[str, Meta(description="The exception's class.")] = ""
    evalue: Annotated[str, Meta(description="Its message.")] = ""
    traceback: Traceback = []


class KernelInfo(Value, frozen=True, kw_only=True):
    """The kernel after an execution; `replaced` means that its variables are lost."""

    state: Annotated[str, Meta(description="The session's state: `idle`, `busy`, `dead`, ...")] = ""
    replaced: Annotated[bool, Meta(description="Whether the variables are lost.")] = False


class Package(Value, frozen=True, kw_only=True):
    """A package of a session in addition to its kernel's environment."""

    name: Annotated[str, Meta(description="As the index writes it.")]
    version: Annotated[str, Meta(description="What is installed.")] = ""
    sha256: Annotated[str, Meta(description="The hash of its wheel.")] = ""
    requested: Annotated[bool, Meta(description="Whether it was asked for by name.")] = False


# ---- an execution -----------------------------------------------------------------------------------------


class Queued(Event, frozen=True, kw_only=True):
    """The execution was queued; `position` others are before it."""

    type: Literal["queued"] = "queued"
    position: Annotated[int | None, Meta(description="How many executions are before it.")] = 0
    code: Annotated[str, Meta(description="The cell.")] = ""
    msg_id: Annotated[str, Meta(description="The id of the execute_request that the kernel gets.")] = ""
    silent: Annotated[bool | UnsetType, Meta(description="Sent as true for a silent cell.")] = UNSET
    store_history: Annotated[
        bool | UnsetType, Meta(description="Sent as false where a Jupyter client wants no history.")
    ] = UNSET
    timeout: Annotated[
        float | UnsetType | None, Meta(description="Seconds it may run, where that is not the session's own.")
    ] = UNSET
    cell_id: Annotated[
        str | UnsetType | None, Meta(description="A Jupyter client's own name of the cell.")
    ] = UNSET
    env: Annotated[
        list[str] | UnsetType, Meta(description="Names of the variables it was given; values are not kept.")
    ] = UNSET
    idempotency: Annotated[
        list[str] | UnsetType, Meta(description="Its idempotency key, and the hash of its request.")
    ] = UNSET


class Started(Event, frozen=True, kw_only=True):
    """The kernel has started the cell."""

    type: Literal["started"] = "started"
    execution_count: ExecutionCount = None
    code: Annotated[str, Meta(description="The cell.")] = ""


class Stream(Event, frozen=True, kw_only=True):
    """Text that the cell wrote to `name`, stdout or stderr."""

    type: Literal["stream"] = "stream"
    name: Annotated[str, Meta(description="`stdout` or `stderr`.")] = "stdout"
    text: Annotated[str, Meta(description="As it was written, with ANSI codes.")] = ""


class DisplayData(Event, frozen=True, kw_only=True):
    """A displayed object, by MIME type; binary types in base64."""

    type: Literal["display_data"] = "display_data"
    data: MimeBundle = {}
    metadata: DisplayMetadata = {}
    shown_as: DisplayId | UnsetType = field(default=UNSET, name="display_id")

    @property
    def display_id(self) -> str | None:
        """The name of the display, None if it has none."""
        return None if isinstance(self.shown_as, UnsetType) else self.shown_as


class UpdateDisplayData(DisplayData, frozen=True, kw_only=True):
    """New content for an earlier display."""

    # A subclass so that isinstance finds all displays; only the value of `type` differs.
    type: Literal["update_display_data"] = "update_display_data"  # type: ignore[assignment]


class ExecuteResult(DisplayData, frozen=True, kw_only=True):
    """The value of the cell's last expression."""

    type: Literal["execute_result"] = "execute_result"  # type: ignore[assignment]
    execution_count: ExecutionCount = None


class ClearOutput(Event, frozen=True, kw_only=True):
    """The cell's outputs are cleared; with `wait`, only when the next one comes."""

    type: Literal["clear_output"] = "clear_output"
    wait: Annotated[bool, Meta(description="Whether to wait for the next output.")] = False


class ErrorRaised(Event, frozen=True, kw_only=True):
    """The cell raised an exception."""

    type: Literal["error"] = "error"
    ename: Annotated[str, Meta(description="The exception's class.")] = ""
    evalue: Annotated[str, Meta(description="Its message.")] = ""
    traceback: Traceback = []


class InputRequest(Event, frozen=True, kw_only=True):
    """The cell waits for a line of input."""

    type: Literal["input_request"] = "input_request"
    prompt: Annotated[str, Meta(description="What the cell shows before it.")] = ""
    password: Annotated[bool, Meta(description="Whether what is typed should not be shown.")] = False


class CommOpened(Event, frozen=True, kw_only=True):
    """A widget was created. Only comms of widgets are recorded, and only messages that hold a state."""

    type: Literal["comm_open"] = "comm_open"
    comm_id: CommId = ""
    target_name: Annotated[str, Meta(description="`jupyter.widget`.")] = ""
    data: CommData = {}
    buffers: Buffers = []


class CommMessage(Event, frozen=True, kw_only=True):
    """A widget's state has changed; without an execution if a client changed it."""

    type: Literal["comm_msg"] = "comm_msg"
    comm_id: CommId = ""
    data: CommData = {}
    buffers: Buffers = []


class CommClosed(Event, frozen=True, kw_only=True):
    """A widget is gone."""

    type: Literal["comm_close"] = "comm_close"
    comm_id: CommId = ""


class FileChanged(Event, frozen=True, kw_only=True):
    """A file of the workspace was created, changed or deleted: by a cell, or without one by a client."""

    type: Literal["file"] = "file"
    path: Annotated[str, Meta(description="Relative to the workspace.")] = ""
    size: Annotated[int | None, Meta(description="Bytes; null for a file that is gone.")] = None
    sha256: Annotated[str | None, Meta(description="Null where it was too much to hash, or is gone.")] = None
    action: Annotated[str, Meta(description="`created`, `changed` or `deleted`.")] = "changed"


class PackagesChanged(Event, frozen=True, kw_only=True):
    """Packages of the session were installed or removed."""

    type: Literal["packages"] = "packages"
    action: Annotated[str, Meta(description="`installed` or `removed`.")] = "installed"
    packages: Annotated[list[Package], Meta(description="Those that came or went.")] = []


class Finished(Event, frozen=True, kw_only=True):
    """The last event of an execution; fields are as in `Result`, without the outputs."""

    type: Literal["finished"] = "finished"
    status: Annotated[
        str, Meta(description="`ok`, `error`, `timeout`, `interrupted`, `died` or `cancelled`.")
    ] = ""
    cause: Annotated[str | None, Meta(description="A stable word that says why, where there is one.")] = None
    execution_count: ExecutionCount = None
    error: Annotated[ErrorInfo | None, Meta(description="Of a cell that did not end well.")] = None
    started_at: Annotated[str | None, Meta(description="Null for a cell that never ran.")] = None
    finished_at: Annotated[str | None, Meta(description="When it ended.")] = None
    duration_ms: Annotated[float | None, Meta(description="From sending the cell to its end.")] = None
    queue_ms: Annotated[float | None, Meta(description="From the request to sending the cell.")] = None
    truncated: Annotated[bool, Meta(description="Whether outputs were cut or left out.")] = False
    kernel: Annotated[KernelInfo, Meta(description="The kernel afterwards.")] = KernelInfo()


# ---- the session ------------------------------------------------------------------------------------------


class SessionChanged(Event, frozen=True, kw_only=True):
    """The session's state has changed. With a new kernel the event has the facts that the notebook repeats.

    Records of version 0.1.0 have only state, cause and kernel.
    """

    type: Literal["session"] = "session"
    state: Annotated[str, Meta(description="`starting`, `idle`, `busy`, `dead` or `ended`.")] = ""
    cause: Annotated[
        str | None, Meta(description="Why: `created`, `resumed`, `adopted`, or the cause of an end.")
    ] = None
    kernel: Annotated[str, Meta(description="The kernelspec.")] = ""
    last_activity: Annotated[str | UnsetType, Meta(description="When it was last used.")] = UNSET
    kernel_id: Annotated[str | UnsetType, Meta(description="The kernel of the moment.")] = UNSET
    isolation: Annotated[
        str | UnsetType | None, Meta(description="What is between the kernel and the machine.")
    ] = UNSET
    limits: Annotated[
        dict[str, Any] | UnsetType, Meta(description="Bytes, processors, processes, seconds.")
    ] = UNSET
    principal: Annotated[str | UnsetType, Meta(description="Whose session it is.")] = UNSET
    created_at: Annotated[str | UnsetType, Meta(description="When the session was made.")] = UNSET
    metadata: Annotated[dict[str, Any] | UnsetType | None, Meta(description="What its maker gave it.")] = (
        UNSET
    )
    environment: Annotated[
        dict[str, Any] | UnsetType, Meta(description="What the kernel runs in: versions, packages, image.")
    ] = UNSET
    gateway_version: Annotated[str | UnsetType, Meta(description="Of the gateway that records.")] = UNSET
    folder: Annotated[str | UnsetType, Meta(description="The name of its workspace's folder.")] = UNSET


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
    CommOpened,
    CommMessage,
    CommClosed,
    FileChanged,
    PackagesChanged,
    Finished,
)
OF_SESSIONS: tuple[type[Event], ...] = (SessionChanged,)
EVENTS = (*OF_EXECUTIONS, *OF_SESSIONS)


def type_of(kind: type[Event]) -> str:
    """The `type` of events of this class."""
    fields = {each.name: each.default for each in msgspec.structs.fields(kind)}
    return str(fields["type"])


BY_TYPE = {type_of(kind): kind for kind in EVENTS}
