"""The facts about a session that its events hold, and that its table rows and its notebook repeat.

Pure: events in, in order, as in ``wire.events``. The tables of sessions and executions are an index of the
events, for quick answers; their contents can be derived from the events again. That is how ``check`` of the
store checks them, and how ``notebook`` knows whose cells it shows. A record from before a fact was kept does
not have it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, structs

from cellgate.wire.events import (
    Event,
    FileChanged,
    Finished,
    Package,
    PackagesChanged,
    Queued,
    RolledBack,
    SessionChanged,
)
from cellgate.wire.usage import CellUsage
from cellgate_kernels.codec.decoding import json_decoder

KERNELSPEC = "kernelspec"
"""Value of `packages_of` in an environment: the packages are the kernelspec's."""
WITHOUT_VARIABLES = "kernelspec_without_session_variables"
"""As `KERNELSPEC`, but the session has environment variables, with which its kernel may find other packages.
Which ones is unknown, because such a kernel is not trusted.
"""

BRANCHED = "branched"
"""The type of a session's event for a new branch, and the cause of the branch's first event."""
BEGINNINGS = frozenset({"created", BRANCHED, "resumed"})
NO_USAGE = CellUsage()
_OF_SESSION = (
    *("principal", "created_at", "metadata", "limits", "isolation"),
    *("kernel", "state", "cause", "folder"),
)


_DECODE = {
    kind: json_decoder(struct).decode
    for kind, struct in (
        ("session", SessionChanged),
        ("queued", Queued),
        ("finished", Finished),
        ("file", FileChanged),
        ("packages", PackagesChanged),
        ("rolled_back", RolledBack),
    )
}
TELLING = frozenset(_DECODE)
"""The types of events that carry facts."""


UNREADABLE = (TypeError, ValueError, RecursionError, msgspec.MsgspecError)
"""Errors of `end_of` for events that are none."""


def decode_fact(event_type: str, body: bytes) -> Event:
    """Decode an event of a type in `TELLING`. Raises msgspec.MsgspecError, and UnicodeDecodeError."""
    return _DECODE[event_type](body)


def end_of(queued: bytes, finished: bytes) -> tuple[object, ...] | None:
    """Return `ended_at` and the figures of an execution's row, by the bodies of its first and last event.

    None for a cell that was copied from a branch. Raises one of `UNREADABLE`.
    """
    begun, ended = decode_fact("queued", queued), decode_fact("finished", finished)
    if not isinstance(begun, Queued) or not isinstance(ended, Finished):
        raise TypeError("these are other events")
    if begun.ran_in is not UNSET:
        return None
    return ended.at, *structs.astuple(_usage(ended))


def _usage(event: Finished) -> CellUsage:
    return NO_USAGE if isinstance(event.usage, msgspec.UnsetType) else event.usage


def brief(environment: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of an environment for the session's row; only events have the list of packages."""
    return {name: value for name, value in environment.items() if name != "packages"}


@dataclass(slots=True)
class ExecutionFacts:
    """The values that an execution's row must have."""

    id: str
    number: int
    msg_id: str
    first_seq: int
    last_seq: int
    created_at: str
    idempotency: tuple[str, str] | None
    status: str | None = None
    copied: bool = False
    ended_at: str | None = None
    usage: CellUsage = NO_USAGE


class SessionFacts:
    """The facts of the events that are folded in by `apply`.

    `fields`: the fields of the session's row that events determine. `environment`: the newest, in full.
    `executions` by id. `files`: the newest size and hash of each file that was put into the workspace.
    `packages`: by name, installed and not removed since the session was created or resumed. `rollbacks` in
    order; each one restores the files, and leaves the packages unchanged.

    `files`, as an argument: the files of the session that this one continues as a branch.
    """

    def __init__(self, files: Mapping[str, dict[str, Any]] | None = None) -> None:
        self.fields: dict[str, Any] = {}
        self.environment: dict[str, Any] = {}
        self.recorded_by: str | None = None
        self.executions: dict[str, ExecutionFacts] = {}
        self.files: dict[str, dict[str, Any]] = dict(files or {})
        self.packages: dict[str, Package] = {}
        self.rollbacks: list[RolledBack] = []
        self._first_files = dict(self.files)
        # All files put and deleted, for the files at a checkpoint.
        self._file_events: list[FileChanged] = []

    def apply(self, event: Event) -> None:
        """Fold in one event."""
        match event:
            case SessionChanged():
                self._session(event)
            case Queued():
                self._queued(event)
            case Finished():
                self._finished(event)
            case FileChanged():
                self._file(event)
            case PackagesChanged():
                self._packages(event)
            case RolledBack():
                self._rolled_back(event)
        self.touch(event.execution, event.seq)

    def touch(self, execution: str | None, seq: int) -> None:
        """Note the number of an event of the execution; enough for events that carry no facts."""
        if execution is not None and (known := self.executions.get(execution)) is not None:
            known.last_seq = seq

    def _session(self, event: SessionChanged) -> None:
        if event.seq == 1:
            origin = event.branched_from
            self.fields["branched_from"] = None if isinstance(origin, msgspec.UnsetType) else origin
        values = {name: getattr(event, name) for name in _OF_SESSION}
        self.fields |= {name: value for name, value in values.items() if value is not UNSET and value != ""}
        self.fields.pop("last_activity", None)
        if event.last_activity is not UNSET:
            self.fields["last_activity"] = event.last_activity
        if event.cause in BEGINNINGS:
            counted = event.execution_count
            self.fields["execution_count"] = 0 if isinstance(counted, msgspec.UnsetType) else counted
            self.packages.clear()
        if not isinstance(event.environment, msgspec.UnsetType):
            self.environment = event.environment
            self.fields["environment"] = brief(self.environment)
            self.recorded_by = event.gateway_version or None

    def _queued(self, event: Queued) -> None:
        assert event.execution is not None
        if event.waiting_for is not UNSET:
            return
        pair = event.idempotency or ()
        self.executions[event.execution] = ExecutionFacts(
            id=event.execution,
            number=len(self.executions) + 1,
            msg_id=event.msg_id,
            first_seq=event.seq,
            last_seq=event.seq,
            created_at=event.at,
            idempotency=(pair[0], pair[1]) if len(pair) == 2 else None,
            copied=event.ran_in is not UNSET,
        )

    def _finished(self, event: Finished) -> None:
        if event.execution is not None and (known := self.executions.get(event.execution)) is not None:
            known.status = event.status
            known.ended_at = None if known.copied else event.at
            known.usage = _usage(event)
        if event.execution_count:
            self.fields["execution_count"] = event.execution_count
        if "last_activity" in self.fields:
            self.fields["last_activity"] = event.at

    def _packages(self, event: PackagesChanged) -> None:
        for package in event.packages:
            if event.action == "installed":
                self.packages[package.name] = package
            else:
                self.packages.pop(package.name, None)

    def _file(self, event: FileChanged) -> None:
        if event.execution is not None:
            return  # written by a cell, so not an input of the session
        self._file_events.append(event)
        self._note_file(event)

    def _rolled_back(self, event: RolledBack) -> None:
        self.rollbacks.append(event)
        self._file_events = [each for each in self._file_events if each.seq <= event.to_seq]
        self.files = dict(self._first_files)
        for each in self._file_events:
            self._note_file(each)

    def undoing(self, begun: int) -> RolledBack | None:
        """Return the rollback that undid a cell begun by event `begun`; None if there is none."""
        return next((each for each in self.rollbacks if each.to_seq < begun < each.seq), None)

    def _note_file(self, event: FileChanged) -> None:
        if event.action == "deleted":
            self.files.pop(event.path, None)
        else:
            self.files[event.path] = {"sha256": event.sha256, "size": event.size}
