"""What the rows of a session say about it: the facts that its other rows and its notebook repeat.

Pure: events in, in their order, as ``wire.events`` has them. The tables of sessions and executions are an
index of the events, made for quick answers; what they hold can be told from the events again, and that is how
``verify`` checks them and how ``notebook`` knows whose cells it shows. A record made before a fact was kept
does not tell it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET

from cellgate.wire.events import (
    Event,
    FileChanged,
    Finished,
    Package,
    PackagesChanged,
    Queued,
    SessionChanged,
)
from cellgate_kernels.decoding import json_decoder

KERNELSPEC, WITHOUT_VARIABLES = "kernelspec", "kernelspec_without_session_variables"
"""`packages_of` in an environment: whose packages these are. The second: the session has variables of its
own, with which its kernel may find others. Nobody knows which, because such a kernel is not believed."""

_BEGINNINGS = frozenset({"created", "resumed"})
_OF_SESSION = (
    "principal",
    "created_at",
    "metadata",
    "limits",
    "isolation",
    "kernel",
    "state",
    "cause",
    "folder",
)


_DECODE = {
    kind: json_decoder(struct).decode
    for kind, struct in (
        ("session", SessionChanged),
        ("queued", Queued),
        ("finished", Finished),
        ("file", FileChanged),
        ("packages", PackagesChanged),
    )
}
TELLING = frozenset(_DECODE)
"""The types of events that are facts, or tell of some."""


def decode_fact(event_type: str, body: bytes) -> Event:
    """An event of a type that is `TELLING`. Raises msgspec.MsgspecError, and UnicodeDecodeError."""
    return _DECODE[event_type](body)


def brief(environment: Mapping[str, Any]) -> dict[str, Any]:
    """What the session's row keeps of an environment: the rows of events alone hold the list of packages."""
    return {name: value for name, value in environment.items() if name != "packages"}


@dataclass(slots=True)
class ExecutionFacts:
    """What an execution's row must say. `created_at` is None where the record is older than the fact."""

    id: str
    number: int
    msg_id: str
    first_seq: int
    last_seq: int
    created_at: str | None
    idempotency: tuple[str, str] | None
    status: str | None = None


class SessionFacts:
    """Fold events in by `apply`.

    `fields`: of the session's row, those that the events tell. `environment`: the whole of the newest.
    `executions` by id. `files`: the newest size and hash of each file that was put into the workspace.
    `packages`: what was installed and not removed since the session was made or resumed, by name.
    """

    def __init__(self) -> None:
        self.fields: dict[str, Any] = {}
        self.environment: dict[str, Any] = {}
        self.recorded_by: str | None = None
        self.executions: dict[str, ExecutionFacts] = {}
        self.files: dict[str, dict[str, Any]] = {}
        self.packages: dict[str, Package] = {}

    @property
    def introduced(self) -> bool:
        """Whether the record tells who and what the session is: those of version 0.1.0 do not."""
        return "principal" in self.fields

    def apply(self, event: Event) -> None:
        """Fold one event in."""
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
        self.touch(event.execution, event.seq)

    def touch(self, execution: str | None, seq: int) -> None:
        """An event of the execution has this number; enough for events that are no facts."""
        if execution is not None and (known := self.executions.get(execution)) is not None:
            known.last_seq = seq

    def _session(self, event: SessionChanged) -> None:
        told = {name: getattr(event, name) for name in _OF_SESSION}
        self.fields |= {name: value for name, value in told.items() if value is not UNSET and value != ""}
        self.fields.pop("last_activity", None)
        if event.last_activity is not UNSET:
            self.fields["last_activity"] = event.last_activity
        if event.cause in _BEGINNINGS:
            self.fields["execution_count"] = 0
            self.packages.clear()
        if not isinstance(event.environment, msgspec.UnsetType):
            self.environment = event.environment
            self.fields["environment"] = brief(self.environment)
            self.recorded_by = event.gateway_version or None

    def _queued(self, event: Queued) -> None:
        assert event.execution is not None
        told = event.idempotency or ()
        self.executions[event.execution] = ExecutionFacts(
            id=event.execution,
            number=len(self.executions) + 1,
            msg_id=event.msg_id,
            first_seq=event.seq,
            last_seq=event.seq,
            created_at=event.at if self.introduced else None,
            idempotency=(told[0], told[1]) if len(told) == 2 else None,
        )

    def _finished(self, event: Finished) -> None:
        if event.execution is not None and (known := self.executions.get(event.execution)) is not None:
            known.status = event.status
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
            return  # an output of a cell, not an input of the session
        if event.action == "deleted":
            self.files.pop(event.path, None)
        else:
            self.files[event.path] = {"sha256": event.sha256, "size": event.size}
