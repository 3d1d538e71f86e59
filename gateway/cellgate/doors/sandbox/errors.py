"""Refusals of doors whose clients make sandboxes, and their statuses."""

from __future__ import annotations

from http import HTTPStatus

from cellgate.errors import status_of
from cellgate_kernels.base.errors import CellgateError


class Unsupported(CellgateError):
    """Something of another system that is not there."""

    reason = "unsupported"


class SandboxBusy(CellgateError):
    """A sandbox can't be paused, because it is in use."""

    reason = "sandbox_busy"


def status_code(error: CellgateError) -> HTTPStatus:
    """Return the status of a refusal."""
    match error:
        case Unsupported():
            return HTTPStatus.NOT_IMPLEMENTED
        case SandboxBusy():
            return HTTPStatus.SERVICE_UNAVAILABLE
    return status_of(error)
