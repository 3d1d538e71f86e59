"""What the rows of a session say about it: the facts that its other rows and its notebook repeat.

Pure: events in, in their order. The tables of sessions and executions are an index of the events, made for
quick answers; what they hold can be told from the events again, and that is how ``verify`` checks them and
how ``notebook`` knows whose cells it shows. A record made before a fact was kept does not tell it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

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
        self.packages: dict[str, dict[str, Any]] = {}

    @property
    def introduced(self) -> bool:
        """Whether the record tells who and what the session is: those of version 0.1.0 do not."""
        return "principal" in self.fields

    def apply(self, event: Mapping[str, Any]) -> None:
        """Fold one event in."""
        match event["type"]:
            case "session":
                self._session(event)
            case "queued":
                self._queued(event)
            case "finished":
                self._finished(event)
            case "file":
                self._file(event)
            case "packages":
                self._packages(event)
        self.touch(event["execution"], event["seq"])

    def touch(self, execution: str | None, seq: int) -> None:
        """An event of the execution has this number; enough for events that are no facts."""
        if execution is not None and (known := self.executions.get(execution)) is not None:
            known.last_seq = seq

    def _session(self, event: Mapping[str, Any]) -> None:
        self.fields |= {name: event[name] for name in (*_OF_SESSION, "folder") if name in event}
        self.fields.pop("last_activity", None)
        if "last_activity" in event:
            self.fields["last_activity"] = event["last_activity"]
        if event.get("cause") in _BEGINNINGS:
            self.fields["execution_count"] = 0
            self.packages.clear()
        if "environment" in event:
            self.environment = event["environment"]
            self.fields["environment"] = brief(self.environment)
            self.recorded_by = event.get("gateway_version")

    def _queued(self, event: Mapping[str, Any]) -> None:
        key, request = event.get("idempotency") or (None, None)
        self.executions[event["execution"]] = ExecutionFacts(
            id=event["execution"],
            number=len(self.executions) + 1,
            msg_id=event["msg_id"],
            first_seq=event["seq"],
            last_seq=event["seq"],
            created_at=event["at"] if self.introduced else None,
            idempotency=None if key is None or request is None else (key, request),
        )

    def _finished(self, event: Mapping[str, Any]) -> None:
        if (known := self.executions.get(event["execution"])) is not None:
            known.status = event["status"]
        if event["execution_count"]:
            self.fields["execution_count"] = event["execution_count"]
        if "last_activity" in self.fields:
            self.fields["last_activity"] = event["at"]

    def _packages(self, event: Mapping[str, Any]) -> None:
        for package in event["packages"]:
            if event["action"] == "installed":
                self.packages[package["name"]] = package
            else:
                self.packages.pop(package["name"], None)

    def _file(self, event: Mapping[str, Any]) -> None:
        if event.get("execution") is not None:
            return  # an output of a cell, not an input of the session
        if event.get("action") == "deleted":
            self.files.pop(event["path"], None)
        else:
            self.files[event["path"]] = {"sha256": event.get("sha256"), "size": event.get("size")}
