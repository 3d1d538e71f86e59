"""The client's errors: the gateway refuses, can't be reached, or a cell fails.

All are subclasses of GatewayError. Each stable `reason` that a program may want to distinguish has a class;
an unknown reason of a newer gateway is a plain GatewayError. The base is
``cellgate_kernels.base.errors.CellgateError``, as everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence

from cellgate.wire.obstacle import Obstacle
from cellgate_kernels.base import errors
from cellgate_kernels.base.errors import CellgateError


class GatewayError(CellgateError):
    """The gateway refused a request, or could not be reached (`status` 0).

    `reason` is the wire's stable word (``queue_full``, ``not_found``...), or ``unreachable``,
    ``connection_lost``, ``no_answer``, ``bad_answer``, ``not_started``. `retry_after` is in
    seconds, where the gateway says.
    """

    reason: str  # type: ignore[misc]  # a client's reason is the server's, known only at run time

    def __init__(self, status: int, reason: str, detail: str, *, retry_after: float | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.reason = reason
        self.detail = detail
        self.retry_after = retry_after


class ConnectionFailed(GatewayError):
    """There was no answer, or only part of one; whether the gateway acted is unknown."""


class RequestRefused(GatewayError):
    """The request itself is wrong: repeating it unchanged will not help."""


class InvalidInput(RequestRefused, errors.InvalidInput):
    """An argument can't be sent: the client refused it and sent no request (`status` 0)."""

    def __init__(self, message: str) -> None:
        super().__init__(0, errors.InvalidInput.reason, message)


class NotAuthenticated(GatewayError):
    """No token, or a wrong one."""


class NotFound(GatewayError):
    """No such session, execution or file, or it belongs to somebody else."""


class Conflict(GatewayError):
    """The request contradicts what exists."""


class NotOwner(GatewayError):
    """Another gateway than the one that has the session was asked for it, or answered."""

    REASON = "not_owner"


class CannotBranch(Conflict):
    """The session's kernel can't be branched; `obstacles` says what stands in the way."""

    obstacles: Sequence[Obstacle] = ()


class PackagesNotAllowed(GatewayError):
    """The gateway's operator allows no packages, or not these."""


class NetworkNotAllowed(GatewayError):
    """The gateway's operator allows this principal's sessions no network."""


class QuotaExceeded(GatewayError):
    """The session would exceed a limit, or its principal a quota; `retry_after` if waiting helps."""


class Overloaded(GatewayError):
    """The gateway is full and did nothing; try again after `retry_after` seconds."""


class CellFailed(GatewayError):
    """A cell failed: raised by `Result.check`. `status` (a word, not HTTP's) and `ename` are the result's."""

    status: str  # type: ignore[assignment]

    def __init__(self, message: str, *, status: str, ename: str | None) -> None:
        super().__init__(0, "cell_failed", message)
        self.status = status
        self.ename = ename


_CLASSES: dict[str, type[GatewayError]] = {
    "unreachable": ConnectionFailed,
    "connection_lost": ConnectionFailed,
    "no_answer": ConnectionFailed,
    "bad_request": RequestRefused,
    "unsupported_media": RequestRefused,
    "too_large": RequestRefused,
    "not_authenticated": NotAuthenticated,
    "not_found": NotFound,
    "record_gone": NotFound,
    "conflict": Conflict,
    "file_held": Conflict,
    "file_changed": Conflict,
    "environment_differs": Conflict,
    "busy": Conflict,
    "cannot_branch": CannotBranch,
    "packages_not_allowed": PackagesNotAllowed,
    "network_not_allowed": NetworkNotAllowed,
    NotOwner.REASON: NotOwner,
    "package_conflict": Conflict,
    "quota_exceeded": QuotaExceeded,
    "queue_full": Overloaded,
    "pool_exhausted": Overloaded,
    "node_full": Overloaded,
    "draining": Overloaded,
}


def gateway_error(status: int, reason: str, detail: str, *, retry_after: float | None = None) -> GatewayError:
    """Return the error, of this reason's class."""
    return _CLASSES.get(reason, GatewayError)(status, reason, detail, retry_after=retry_after)
