"""The rows of the record as values.

``schema`` stores them, ``journal`` decides when, and ``notebook`` interprets them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

import msgspec
from msgspec import structs

from cellgate.record.chain import GENESIS
from cellgate.wire.events import BranchedFrom
from cellgate.wire.usage import CellUsage

FIGURES = CellUsage.__struct_fields__
"""The names of what is known of a cell's usage, as columns of its row."""


class SessionRow(msgspec.Struct, frozen=True):
    """A session as it is now; replaced as a whole when it changes. Times are RFC 3339 UTC with `Z`.

    `limits`, `metadata` and `environment` are stored as JSON. `head_seq` and `head` belong to the last
    written event; the store itself updates them. `folder` names the session's workspace and never changes; it
    is empty for sessions older than the column, whose workspaces are named after their ids. `parent`: the id
    of a branch's parent session, 0 for others; `branched_from`: the event there. The parent may have been
    purged since.
    """

    id: int
    principal: str
    key: str
    kernel: str
    isolation: str
    state: str
    cause: str | None
    created_at: str
    last_activity: str
    execution_count: int
    limits: dict[str, Any]
    metadata: dict[str, Any]
    environment: dict[str, Any]
    head_seq: int = 0
    head: bytes = GENESIS
    folder: str = ""
    parent: int = 0
    branched_from: BranchedFrom | None = None

    @classmethod
    def new(
        cls,
        session_id: int,
        *,
        key: str,
        kernel: str,
        at: str,
        limits: dict[str, Any],
        principal: str = "",
        metadata: dict[str, Any] | None = None,
        folder: str = "",
    ) -> SessionRow:
        """Return the row of a new session, before it has a kernel."""
        return cls(
            id=session_id,
            principal=principal,
            key=key,
            kernel=kernel,
            isolation="",
            state="starting",
            cause=None,
            created_at=at,
            last_activity=at,
            execution_count=0,
            limits=limits,
            metadata=metadata or {},
            environment={},
            folder=folder,
        )


class ExecutionRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place of an execution in its session's events, which say everything else about it.

    `number`: its place in the order of the session's executions, from 1. `status` is None until it ends.
    `ended_at`: the time of its end, from which sums of usage count it; None before, and for a cell that was
    copied from a branch, where it is counted. The figures after it are those of its `CellUsage`.
    """

    session_id: int
    id: str
    number: int
    msg_id: str
    first_seq: int
    last_seq: int | None
    status: str | None
    created_at: str
    idempotency_key: str | None
    request_hash: str | None
    ended_at: str | None = None
    cpu_seconds: float | None = None
    memory_peak: int | None = None
    disk_written: int | None = None
    network_sent: int | None = None
    network_received: int | None = None

    def ended(self, finished: Mapping[str, Any]) -> Self:
        """Return the row after the execution's end, by the fields of that event."""
        known = finished.get("usage") or {}
        return structs.replace(
            self, last_seq=finished["seq"], status=finished["status"], ended_at=finished["at"], **known
        )


class EventRow(msgspec.Struct, frozen=True):
    """One event. `body`: its JSON as it is hashed, stored and streamed.

    `seq` rises by one within a session, from 1; `hash` is the row's link in the chain.
    """

    session_id: int
    seq: int
    type: str
    execution: str | None
    body: bytes
    hash: bytes


class Absence(StrEnum):
    """The reason why an ancestor of a branch is not shown."""

    PURGED = "purged"
    OUT_OF_REACH = "out_of_reach"


@dataclass(frozen=True, slots=True)
class Ancestor:
    """A session, and its last event that a branch continues."""

    row: SessionRow
    until: BranchedFrom


@dataclass(frozen=True, slots=True)
class Lineage:
    """The ancestors of a branch, oldest first; other sessions have none.

    `absence`: why the parent of the oldest ancestor (or of the branch, if there is none) is not shown.
    """

    ancestors: tuple[Ancestor, ...] = ()
    absence: Absence | None = None


NO_BRANCH = Lineage()


LARGEST = (1 << 63) - 1


def storable(*numbers: int) -> bool:
    """Return whether columns of the tables can hold the numbers."""
    return min(numbers) >= -LARGEST and max(numbers) <= LARGEST
