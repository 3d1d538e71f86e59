"""The gateway's own errors, and how each error appears on the wire.

The tree of errors begins in ``cellgate_kernels.base.errors``. This module adds the server's errors, and the
only table from errors to HTTP statuses and problems (RFC 9457; the structs are ``wire.problems``). It writes
no responses: ``http.message`` does. The client's errors are in ``client.errors``.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus

from msgspec import UNSET, UnsetType, structs

from cellgate.wire.obstacle import Obstacle
from cellgate.wire.problems import Problem, QuotaState, StreamProblem, problem, stream_problem
from cellgate_kernels.base.errors import (
    CannotBranch,
    CellgateError,
    GatewayFault,
    InvalidInput,
    KernelBusy,
    KernelDied,
    PoolExhausted,
    PortUnanswered,
    in_brief,
)
from cellgate_kernels.base.trees import NO_OPEN_FILES


class NotAuthenticated(CellgateError):
    """No token, or a wrong one. `cause` says which for the audit trail.

    `token`: the id of one that is known, and `principal`: whose it is, if the trail is to name them.
    `is_attempt`: a token was shown.
    """

    reason = "not_authenticated"

    def __init__(self, message: str, *, cause: str = "", token: str = "", principal: str = "") -> None:
        super().__init__(message)
        self.cause = cause
        self.token = token
        self.principal = principal

    @property
    def is_attempt(self) -> bool:
        """Whether a token was shown at all."""
        return self.cause != "no_token"


class TooManyAttempts(CellgateError):
    """Too many wrong tokens came from the client's address. `retry_after` is in seconds.

    `last`: what would have been said of the last one, for the audit trail; None if nobody was asked about it.
    """

    reason = "too_many_attempts"

    def __init__(self, message: str, *, retry_after: float, last: NotAuthenticated | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.cause = "unknown_token" if last is None else last.cause
        self.token = "" if last is None else last.token
        self.principal = "" if last is None else last.principal


class InvalidToken(NotAuthenticated):
    """There is a token, but it opens nothing: it is unknown, has expired, or is for somebody else."""

    def __init__(
        self, message: str, *, cause: str = "invalid_token", token: str = "", principal: str = ""
    ) -> None:
        super().__init__(message, cause=cause, token=token, principal=principal)


class IdentityUnavailable(CellgateError):
    """Who sent a token can't be found out now. `retry_after` is in seconds."""

    reason = "identity_unavailable"
    retry_after = 5.0


class Forbidden(CellgateError):
    """The Host or Origin is not allowed, or the sender may not do this; `cause` says which to the trail."""

    reason = "forbidden"

    def __init__(self, message: str, *, cause: str = "permission") -> None:
        super().__init__(message)
        self.cause = cause


class NotFound(CellgateError):
    """It does not exist, or belongs to somebody else; the caller can't tell which."""

    reason = "not_found"


class MethodNotAllowed(CellgateError):
    """The resource exists but does not have this method. `allowed` goes into the Allow header."""

    reason = "method_not_allowed"

    def __init__(self, message: str, *, allowed: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.allowed = allowed


class Conflict(CellgateError):
    """The request contradicts what exists."""

    reason = "conflict"


class OwnedElsewhere(CellgateError):
    """Another gateway has the session. `address`: its URL for this one, if that is known."""

    reason = "not_owner"

    def __init__(self, message: str, address: str | None = None) -> None:
        super().__init__(message)
        self.address = address


class OwnerUnreachable(CellgateError):
    """The gateway that has the session can't be reached; nothing was done. `retry_after` is in seconds."""

    reason = "owner_unreachable"
    retry_after = 2.0


class OwnerLost(CellgateError):
    """The gateway that has the session got the request, and gave no whole answer."""

    reason = "owner_lost"

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}: the request may have been carried out")


class HopRefused(CellgateError):
    """A request says that another gateway hands it on, and does not prove that. `node`: which one it names.

    `apart`: by how many seconds the clocks differ, if nothing else is wrong; None for any other fault.
    """

    reason = "hop_refused"

    def __init__(self, node: str, apart: float | None = None) -> None:
        super().__init__(
            "The request's header Cellgate-Hop, which only gateways of this cluster may send, is not good:"
            " leave it out. If a gateway has sent it, this one's log says what to do"
        )
        self.node = node
        self.apart = apart


class CannotShare(Conflict):
    """A session's workspace can't be another one's too."""

    reason = "cannot_share"


class FileHeld(Conflict):
    """A program holds a file of the session's, `path`: whoever opens it would wait until it lets go."""

    reason = "file_held"

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path[-200:]!r} is held by a program, as by a lease: nobody else can open it now."
            " End that program, or try again"
        )


class FileChanged(CellgateError):
    """A file of the workspace is not as the request says that it must be; nothing was written."""

    reason = "file_changed"


class EnvironmentDiffers(Conflict):
    """A replay would run with versions other than the recorded ones."""

    reason = "environment_differs"


class BadProgramAnswer(CellgateError):
    """A program inside a session does not answer as HTTP has it, or not in time."""

    reason = "bad_program_answer"


class JobFailed(CellgateError):
    """Output of user code could not be converted or compared."""

    reason = "conversion_failed"


class TooLarge(CellgateError):
    """The body is larger than the gateway accepts."""

    reason = "too_large"


class QuotaExceeded(CellgateError):
    """The request would exceed a limit of the session."""

    reason = "quota_exceeded"


class SnapshotsFull(QuotaExceeded):
    """The files of a checkpoint have no room beside those of the others."""


class PrincipalQuotaExceeded(CellgateError):
    """The principal uses as much as its quota allows; waiting alone does not help.

    `quota`: its name, as in the quotas file. `limit` and `used` are in its unit.
    """

    reason = "quota_exceeded"

    def __init__(self, message: str, *, quota: str, limit: float, used: float) -> None:
        super().__init__(message)
        self.quota = quota
        self.limit = limit
        self.used = used


class PrincipalQuotaExceededForNow(PrincipalQuotaExceeded):
    """As above, but it passes by itself: `retry_after` is in seconds."""

    def __init__(self, message: str, *, quota: str, limit: float, used: float, retry_after: float) -> None:
        super().__init__(message, quota=quota, limit=limit, used=used)
        self.retry_after = retry_after


class UnsupportedMedia(CellgateError):
    """The resource does not accept bodies of this type."""

    reason = "unsupported_media"


class NotAcceptable(CellgateError):
    """The resource has none of the types that the Accept header names."""

    reason = "not_acceptable"


class QueueFull(CellgateError):
    """The session's queue of executions is full. `retry_after` is in seconds."""

    reason = "queue_full"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class TooManyConnections(CellgateError):
    """The principal has too many connections open. `retry_after` is in seconds."""

    reason = "too_many_connections"

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PackagesNotAllowed(CellgateError):
    """The operator's policy allows no packages, or not the requested ones."""

    reason = "packages_not_allowed"


class NetworkNotAllowed(CellgateError):
    """The operator's policy allows the principal's sessions no network."""

    reason = "network_not_allowed"


class PackageError(CellgateError):
    """Packages could not be installed; the session is as it was."""

    reason = "package_install_failed"


class PackageNotFound(PackageError):
    """The index has no wheel that fits."""

    reason = "package_not_found"


class PackageConflict(PackageError):
    """The requested versions conflict with each other or with the kernel's environment."""

    reason = "package_conflict"


class PackageIndexUnavailable(PackageError):
    """The index did not answer, or not in time."""

    reason = "package_index_unavailable"


class OtelMissing(CellgateError):
    """Traces were asked for, but the packages for them are not installed."""

    reason = "otel_missing"


class AddressInUse(CellgateError):
    """The gateway can't listen on its address."""

    reason = "address_in_use"


class ShuttingDown(CellgateError):
    """The gateway accepts no new work."""

    reason = "shutting_down"


class TakesNoWork(ShuttingDown):
    """The gateway was asked while it shut down, and did nothing."""


class Draining(CellgateError):
    """The gateway opens no more sessions, and goes on with those that it has; others of its cluster do."""

    reason = "draining"


class NodeFull(CellgateError):
    """All kernels of the gateway are in use, and another one of its cluster has room; nothing was done.
    `retry_after` is in seconds.
    """

    reason = "node_full"
    retry_after = 1.0


class StorageError(CellgateError):
    """The record could not be opened, read or written; the message has the storage's reason."""

    reason = "storage_error"


class StorageFull(StorageError):
    """There is no space for the record: on the disk, or in memory while the disk accepts nothing."""

    reason = "storage_full"


class NoOpenFiles(StorageError):
    """The gateway or its machine can open no more files. That is temporary: `retry_after` is in seconds."""

    retry_after = 5.0


class RecordDamaged(StorageError):
    """The record, named `record` in the message, is damaged or not a record at all; `why` says which.

    `verified`: raised by a check of the record, so the message does not suggest one. `mend`: what to do,
    where the record is no file.
    """

    def __init__(self, record: str, why: object, *, verified: bool = False, mend: str = "") -> None:
        verify = "" if verified else "`cellgate verify --data-dir` tells what of it is whole; "
        restore = f"{verify}`cellgate record restore` puts a backup in its place"
        super().__init__(f"{record} is damaged ({why}): {mend or restore}")
        self.why = str(why)


class LogClosed(StorageError):
    """The session has ended, and another log may continue its record."""


class RecordGone(StorageError):
    """The session's record was purged while it was read; the part that was read is incomplete."""

    reason = "record_gone"


class NotRecorded(StorageError):
    """The record has refused rows of this session and takes no more of them. Others are not affected."""

    reason = "recording_failed"


class Fenced(NotRecorded):
    """Another gateway goes on with the session, so this one has ended its kernel: ask again."""

    reason = "fenced"


class RecordSetBack(NotRecorded):
    """The record's database went back and lacks events of the session, so its kernel has ended: ask again."""

    reason = "record_set_back"


_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

_STATUS: dict[type[CellgateError], HTTPStatus] = {
    InvalidInput: HTTPStatus.BAD_REQUEST,
    NotAuthenticated: HTTPStatus.UNAUTHORIZED,
    TooManyAttempts: HTTPStatus.TOO_MANY_REQUESTS,
    Forbidden: HTTPStatus.FORBIDDEN,
    NotFound: HTTPStatus.NOT_FOUND,
    MethodNotAllowed: HTTPStatus.METHOD_NOT_ALLOWED,
    NotAcceptable: HTTPStatus.NOT_ACCEPTABLE,
    Conflict: HTTPStatus.CONFLICT,
    FileChanged: HTTPStatus.PRECONDITION_FAILED,
    OwnedElsewhere: HTTPStatus.MISDIRECTED_REQUEST,
    OwnerUnreachable: HTTPStatus.SERVICE_UNAVAILABLE,
    OwnerLost: HTTPStatus.BAD_GATEWAY,
    HopRefused: HTTPStatus.BAD_REQUEST,
    KernelDied: HTTPStatus.CONFLICT,
    KernelBusy: HTTPStatus.CONFLICT,
    CannotBranch: HTTPStatus.CONFLICT,
    QuotaExceeded: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    PrincipalQuotaExceeded: HTTPStatus.FORBIDDEN,
    PrincipalQuotaExceededForNow: HTTPStatus.TOO_MANY_REQUESTS,
    TooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    PortUnanswered: HTTPStatus.BAD_GATEWAY,
    BadProgramAnswer: HTTPStatus.BAD_GATEWAY,
    JobFailed: HTTPStatus.UNPROCESSABLE_ENTITY,
    PackagesNotAllowed: HTTPStatus.FORBIDDEN,
    NetworkNotAllowed: HTTPStatus.FORBIDDEN,
    PackageError: HTTPStatus.UNPROCESSABLE_ENTITY,
    PackageConflict: HTTPStatus.CONFLICT,
    PackageIndexUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    UnsupportedMedia: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    QueueFull: HTTPStatus.TOO_MANY_REQUESTS,
    PoolExhausted: HTTPStatus.SERVICE_UNAVAILABLE,
    TooManyConnections: HTTPStatus.SERVICE_UNAVAILABLE,
    ShuttingDown: HTTPStatus.SERVICE_UNAVAILABLE,
    Draining: HTTPStatus.SERVICE_UNAVAILABLE,
    NodeFull: HTTPStatus.SERVICE_UNAVAILABLE,
    RecordGone: HTTPStatus.GONE,
    StorageFull: HTTPStatus.INSUFFICIENT_STORAGE,
    StorageError: HTTPStatus.SERVICE_UNAVAILABLE,
    GatewayFault: HTTPStatus.INTERNAL_SERVER_ERROR,
}


def status_of(error: CellgateError) -> HTTPStatus:
    """Return the HTTP status of an error."""
    return status_of_kind(type(error))


def status_of_kind(kind: type[CellgateError]) -> HTTPStatus:
    """Return the status of a class of errors or of its nearest listed base; 503 for backends' errors."""
    for each in kind.__mro__:
        if each in _STATUS:
            return _STATUS[each]
    return HTTPStatus.SERVICE_UNAVAILABLE


def reasons() -> tuple[str, ...]:
    """Return the reasons of all errors that may be answered, in alphabetical order."""
    return tuple(sorted({kind.reason for kind in _kinds(CellgateError)}))


def statuses() -> frozenset[int]:
    """Return the HTTP statuses of all errors."""
    return frozenset(int(status_of_kind(kind)) for kind in _kinds(CellgateError))


def _kinds(kind: type[CellgateError]) -> Iterator[type[CellgateError]]:
    """Yield the tree of errors; those that other modules declare never leave their rooms."""
    if kind.__module__ in (CellgateError.__module__, __name__):
        yield kind
    for each in kind.__subclasses__():
        yield from _kinds(each)


def problem_of(error: CellgateError) -> Problem:
    """Return the error as the body of a response."""
    told = problem(error.reason, status_of(error), error.message, quota_of(error))
    if isinstance(error, CannotBranch):
        found = [Obstacle(kind=each.kind, name=each.name) for each in error.obstacles]
        return structs.replace(told, obstacles=found)
    return told


def stream_problem_of(error: CellgateError, *, command: str | int | UnsetType = UNSET) -> StreamProblem:
    """Return the error as a line of a stream, or as the answer to the command with this id."""
    return stream_problem(error.reason, status_of(error), error.message, quota_of(error), id=command)


def quota_of(error: CellgateError) -> QuotaState | None:
    """Which quota of the principal refused the request, if one did."""
    if not isinstance(error, PrincipalQuotaExceeded):
        return None
    return QuotaState(quota=error.quota, limit=error.limit, used=error.used)


def is_full(error: OSError) -> bool:
    """Return whether the file system refused because there is no space."""
    return error.errno in _NO_ROOM


def not_written(error: OSError, full: str, failed: str) -> StorageError:
    """Return the storage error for an OSError: `full` if the disk is full, otherwise `failed` and the reason.

    Only this function decides what an error of the file system means.
    """
    if is_full(error):
        return StorageFull(full)
    kind = NoOpenFiles if error.errno in NO_OPEN_FILES else StorageError
    return kind(f"{failed}: {in_brief(error)}")


@contextmanager
def storage(failed: str, full: str = "There is no room on the gateway's disk") -> Iterator[None]:
    """Turn an OSError raised inside into the error of `not_written`."""
    try:
        yield
    except OSError as error:
        raise not_written(error, full, failed) from error
