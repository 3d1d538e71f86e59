"""A Python client of the gateway's HTTP interface: `Gateway`, its sessions, and the typed values it returns.

It is a client like any other: it speaks the wire contract and imports nothing of the server.

    async with Gateway("http://127.0.0.1:8888", token).session() as session:
        result = await session.run("1 + 1")
        print(result.text)

`Gateway.sync(...)` offers the same without ``await``.
"""

from cellgate.client.api import Gateway, Session
from cellgate.client.errors import (
    CellFailed,
    Conflict,
    ConnectionFailed,
    GatewayError,
    InvalidInput,
    NetworkNotAllowed,
    NotAuthenticated,
    NotFound,
    Overloaded,
    PackagesNotAllowed,
    QuotaExceeded,
    RequestRefused,
)
from cellgate.client.files import Files
from cellgate.client.transport import Trust
from cellgate.client.values import BlocksResult, Result
from cellgate.wire.answers import (
    Ceilings,
    CellReport,
    ExecutionModel,
    FileChange,
    FileModel,
    GatewayInfo,
    Me,
    PackageChange,
    PackageChanges,
    ReplayReport,
    SessionModel,
)
from cellgate.wire.events import (
    ClearOutput,
    CommClosed,
    CommMessage,
    CommOpened,
    ConnectionOver,
    ConnectionsOver,
    DisplayData,
    ErrorInfo,
    ErrorRaised,
    Event,
    ExecuteResult,
    FileChanged,
    Finished,
    InputRequest,
    KernelInfo,
    Loss,
    Missing,
    Package,
    PackagesChanged,
    Queued,
    SessionChanged,
    Started,
    Stream,
    UpdateDisplayData,
)
from cellgate.wire.problems import Problem

__all__ = [
    "BlocksResult",
    "Ceilings",
    "CellFailed",
    "CellReport",
    "ClearOutput",
    "CommClosed",
    "CommMessage",
    "CommOpened",
    "Conflict",
    "ConnectionFailed",
    "ConnectionOver",
    "ConnectionsOver",
    "DisplayData",
    "ErrorInfo",
    "ErrorRaised",
    "Event",
    "ExecuteResult",
    "ExecutionModel",
    "FileChange",
    "FileChanged",
    "FileModel",
    "Files",
    "Finished",
    "Gateway",
    "GatewayError",
    "GatewayInfo",
    "InputRequest",
    "InvalidInput",
    "KernelInfo",
    "Loss",
    "Me",
    "Missing",
    "NetworkNotAllowed",
    "NotAuthenticated",
    "NotFound",
    "Overloaded",
    "Package",
    "PackageChange",
    "PackageChanges",
    "PackagesChanged",
    "PackagesNotAllowed",
    "Problem",
    "Queued",
    "QuotaExceeded",
    "ReplayReport",
    "RequestRefused",
    "Result",
    "Session",
    "SessionChanged",
    "SessionModel",
    "Started",
    "Stream",
    "Trust",
    "UpdateDisplayData",
]
