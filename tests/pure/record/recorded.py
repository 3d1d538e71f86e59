"""A record as a gateway writes it, without a gateway: consistent rows of sessions in a journal."""

from __future__ import annotations

from typing import Any

from msgspec import structs

from cellgate.record.events import EventLog, now
from cellgate.record.facts import brief
from cellgate.record.rows import ExecutionRow, SessionRow
from cellgate.record.store.sqlite.journal import Journal
from cellgate.testing.record_store import MOMENT, session_row
from cellgate.wire.events import BranchedFrom

ENVIRONMENT: dict[str, Any] = {
    "display_name": "Python 3",
    "kernel_id": "k1",
    "kernel_info": {"language_info": {"name": "python", "version": "3.11.7"}},
    "python": "3.11.7",
    "packages": {"six": "1.17.0"},
}
IMAGE = "iVBORw0KGgo" * 500


class Recorded:
    """A session that records cells of one line, or a branch of another one. Close it by `end`."""

    def __init__(
        self, journal: Journal, key: str, parent: Recorded | None = None, seed: int | None = None
    ) -> None:
        self._journal = journal
        origin = None if parent is None else parent.branched(key, seed)
        cause = "created" if origin is None else "branched"
        row = session_row(
            journal.new_session_id(), key, environment=brief(ENVIRONMENT), cause=cause, folder="c0ffee"
        )
        self.log = EventLog(journal, row.id, key)
        told = {"principal": row.principal, "created_at": row.created_at, "metadata": row.metadata}
        told |= {
            "limits": row.limits,
            "isolation": row.isolation,
            "environment": ENVIRONMENT,
            "folder": row.folder,
        }
        self._executions = 0
        if parent is not None and origin is not None:
            count = parent.row.execution_count
            row = structs.replace(row, parent=parent.row.id, branched_from=origin, execution_count=count)
            told |= {"branched_from": origin, "execution_count": count}
        self.row: SessionRow = row
        self._session("idle", cause, gateway_version="0.1.0", **told)

    def branched(self, key: str, seed: int | None = None) -> BranchedFrom:
        """Record that it is branched; returns what the branch says of that."""
        told = {"branch": key, "workspace": "copy", "seed": seed, "obstacles": []}
        seq = self.log.append("branched", None, told)["seq"]
        self._save()
        return BranchedFrom(session=self.row.key, seq=seq, head=self.log.head.hex())

    def _session(self, state: str, cause: str, **fields: Any) -> None:
        told = {"state": state, "cause": cause, "kernel": self.row.kernel, "last_activity": MOMENT}
        self.log.append("session", None, {**told, **fields})
        self._save(state=state, cause=cause, last_activity=MOMENT)

    def _save(self, **fields: Any) -> None:
        self.row = structs.replace(self.row, **fields)
        self._journal.save_session(self.row)

    def cell(
        self,
        code: str,
        *events: tuple[str, dict[str, Any]],
        cell_id: str | None = None,
        ran_in: str | None = None,
        **fields: Any,
    ) -> str:
        self._executions += 1
        count = self.row.execution_count + 1
        name = f"{self.row.key}-{self._executions}"
        key = ("again", "ab" * 32) if self._executions == 1 else None
        told = {"position": 0, "code": code, "msg_id": f"m-{name}"}
        told |= {} if cell_id is None else {"cell_id": cell_id}
        told |= {} if ran_in is None else {"ran_in": ran_in}
        queued = self.log.append("queued", name, told | ({"idempotency": list(key)} if key else {}))
        self.log.append("started", name, {"execution_count": count, "code": code})
        for event_type, content in events:
            self.log.append(event_type, name, content)
        end = {"status": "ok", "cause": None, "execution_count": count, "error": None}
        end |= {"started_at": MOMENT, "finished_at": now(), "duration_ms": 1.5, "queue_ms": 0.0}
        end |= {"truncated": False, "kernel": {"state": "idle", "replaced": False}}
        last = self.log.append("finished", name, end | fields)
        row = ExecutionRow(
            session_id=self.row.id,
            id=name,
            number=self._executions,
            msg_id=f"m-{name}",
            first_seq=queued["seq"],
            last_seq=None,
            status=None,
            created_at=queued["at"],
            idempotency_key=key[0] if key else None,
            request_hash=key[1] if key else None,
        )
        copied = structs.replace(row, last_seq=last["seq"], status=last["status"])
        self._journal.save_execution(row.ended(last) if ran_in is None else copied)
        self._save(execution_count=count, last_activity=last["at"])
        return name

    def rolled_back(self, checkpoint: str, to_seq: int, undone: int = 1) -> int:
        """Record that it went back to what it was after this event; returns the number of the new one."""
        told = {"checkpoint": checkpoint, "to_seq": to_seq, "undone": undone}
        seq: int = self.log.append("rolled_back", None, told)["seq"]
        self._save()
        return seq

    def end(self) -> None:
        self._session("ended", "deleted")


def text(value: str) -> tuple[str, dict[str, Any]]:
    return "stream", {"name": "stdout", "text": value}


def image(value: str = IMAGE) -> tuple[str, dict[str, Any]]:
    return "display_data", {"data": {"image/png": value}, "metadata": {}}
