"""Cellgate runs code cells in isolated kernels and keeps each session as a record.

``from cellgate import Gateway`` is the Python client, and all its errors are kinds of `GatewayError`; the
command ``cellgate`` starts the server. The names here are the client's. They are loaded when they are first
asked for, because the command and the server begin here too and need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellgate.client import (
        BlocksResult,
        Ceilings,
        CellFailed,
        ClearOutput,
        Conflict,
        ConnectionFailed,
        DisplayData,
        ErrorInfo,
        ErrorRaised,
        Event,
        ExecuteResult,
        FileModel,
        Files,
        Finished,
        Gateway,
        GatewayError,
        GatewayInfo,
        InputRequest,
        KernelInfo,
        NotAuthenticated,
        NotFound,
        Overloaded,
        Package,
        PackageChanges,
        PackagesNotAllowed,
        Queued,
        QuotaExceeded,
        RequestRefused,
        Result,
        Session,
        SessionModel,
        Started,
        Stream,
        UpdateDisplayData,
    )

__all__ = [
    "BlocksResult",
    "Ceilings",
    "CellFailed",
    "ClearOutput",
    "Conflict",
    "ConnectionFailed",
    "DisplayData",
    "ErrorInfo",
    "ErrorRaised",
    "Event",
    "ExecuteResult",
    "FileModel",
    "Files",
    "Finished",
    "Gateway",
    "GatewayError",
    "GatewayInfo",
    "InputRequest",
    "KernelInfo",
    "NotAuthenticated",
    "NotFound",
    "Overloaded",
    "Package",
    "PackageChanges",
    "PackagesNotAllowed",
    "Queued",
    "QuotaExceeded",
    "RequestRefused",
    "Result",
    "Session",
    "SessionModel",
    "Started",
    "Stream",
    "UpdateDisplayData",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cellgate import client  # noqa: PLC0415 - see above

    return getattr(client, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
