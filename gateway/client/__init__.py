"""A Python client of the gateway's HTTP interface: `Gateway` and the typed values it returns.

It is a door like any other: it speaks the wire contract and imports nothing of the server.

    gateway = Gateway("http://127.0.0.1:8888", token)
    result = await gateway.execute("my-session", "1 + 1")
    print(result.text)
"""

from gateway.client.api import Gateway
from gateway.client.transport import GatewayError
from gateway.client.values import (
    ClearOutput,
    DisplayData,
    ErrorInfo,
    ErrorRaised,
    Event,
    ExecuteResult,
    Finished,
    InputRequest,
    KernelInfo,
    Queued,
    Result,
    SessionModel,
    Started,
    Stream,
    UpdateDisplayData,
)

__all__ = [
    "ClearOutput",
    "DisplayData",
    "ErrorInfo",
    "ErrorRaised",
    "Event",
    "ExecuteResult",
    "Finished",
    "Gateway",
    "GatewayError",
    "InputRequest",
    "KernelInfo",
    "Queued",
    "Result",
    "SessionModel",
    "Started",
    "Stream",
    "UpdateDisplayData",
]
