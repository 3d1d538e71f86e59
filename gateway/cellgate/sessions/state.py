"""The state of a session, its row in the record, and the common parts of all that act in it.

It keeps and writes the session's row, state, cause and times; ``session`` changes them. It does not know the
queue and starts no kernel.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from msgspec import UNSET, UnsetType, structs, to_builtins

from cellgate.errors import Conflict, QueueFull, ShuttingDown, StorageFull
from cellgate.execution.limits import SessionLimits, check_seconds
from cellgate.record.events import EventLog, now
from cellgate.record.facts import BRANCHED, brief
from cellgate.sessions.due import due, on_wire
from cellgate.sessions.machine import SessionMachine, Step
from cellgate.sessions.model import AUTO, CHECKPOINT, environment_of
from cellgate.wire.answers import SessionEnd
from cellgate.wire.events import BranchedFrom, Loss, Missing
from cellgate_kernels.base.errors import GatewayFault, InvalidInput

if TYPE_CHECKING:
    from cellgate.channels.door import Door
    from cellgate.execution.run import ExecutionRun
    from cellgate.hook.cells import CellHook
    from cellgate.packages.cells import CellPackages
    from cellgate.ports.table import SessionPorts
    from cellgate.processes.table import SessionProcesses
    from cellgate.quotas.usage import Account
    from cellgate.record.rows import SessionRow
    from cellgate.record.store.interface import EventStore
    from cellgate.sessions.checkpoints import Checkpoint, RolledBack
    from cellgate.sessions.kernel_slot import SessionKernel
    from cellgate.sessions.parts import SessionObserver, SessionSettings
    from cellgate.sessions.queue import ExecutionQueue, SessionRuns
    from cellgate.sessions.secrets import SessionSecrets
    from cellgate.sessions.undo import SessionUndo
    from cellgate_kernels.base.branching import Branched, Obstacle
    from cellgate_kernels.base.tasks import Supervisor
    from cellgate_kernels.kernel.kernel import Kernel, KernelProfile

logger = logging.getLogger(__name__)

MOST_COMMITS = 64
LIMITS = frozenset({"cell_timeout", "out_of_memory", "disk_full", "pids_limit"})
"""Causes of a cell's end that operators look for: a limit was reached."""


CHANGED = "changed"
"""The cause of an event with other metadata or limits of a session, whose state is the same."""


class SessionState(StrEnum):
    """What a session is doing. `dead`: its kernel is gone; the next execution gets a fresh one.

    `asleep`: idle, and its kernel is frozen until used. Never recorded, because cells do not notice it.
    """

    STARTING = "starting"
    IDLE = "idle"
    ASLEEP = "asleep"
    BUSY = "busy"
    DEAD = "dead"
    ENDED = "ended"


def ends() -> bool:
    """Return False: a session ends when it is to end by itself."""
    return False


@dataclass(frozen=True, slots=True)
class SessionSpec:
    """One session: its row, its limits, the kernels it gets, its event log, and the store of that log.

    `principal`: the claimant of its kernels, if its row names nobody. `loss`: what it lost before it was
    opened, not yet announced by an execution. `missing`: what it had in an earlier life and lacks in this
    one. `checkpoints`: whether one is made after each cell.
    """

    row: SessionRow
    limits: SessionLimits
    profile: KernelProfile
    log: EventLog
    store: EventStore
    principal: str = ""
    loss: Loss | None = None
    missing: Missing | UnsetType = UNSET
    secrets: SessionSecrets | None = None
    checkpoints: bool = False


class SessionRecord:
    """A live session's row and state. Anybody may read the attributes; change them through the methods."""

    def __init__(self, spec: SessionSpec, gateway_version: str) -> None:
        self.row = spec.row
        self.limits = spec.limits
        self.missing = spec.missing
        self.loss = spec.loss
        self._makes_checkpoints = spec.checkpoints
        self.log = spec.log
        self.state = SessionState.STARTING
        self.cause: str | None = None
        self.last_activity = spec.row.last_activity
        self._time = asyncio.get_running_loop().time
        self.started = self._time()
        self.idle_since = self._time()
        self.can_sleep = False
        """Whether its kernel could be put to sleep and would give its memory back, as last seen."""
        self.instead_of_end: Callable[[], bool] = ends
        """Called when the session is to end by itself: whether it goes on, because something else happens."""
        self._store = spec.store
        self._secrets = spec.secrets
        self._gateway_version = gateway_version
        self._introduction: dict[str, Any] = {}
        self._recorded = spec.row.state, spec.row.cause, spec.row.last_activity

    def touch(self, at: str | None = None) -> None:
        """Note that the session was used, `at` the given time or now."""
        self.begin_idleness()
        self.last_activity = now() if at is None else at

    def take_loss(self) -> Loss | None:
        """Return the loss of a kernel unless an execution has announced it; the caller then must."""
        loss, self.loss = self.loss, None
        return loss

    def begin_idleness(self) -> None:
        """Restart the idle time."""
        self.idle_since = self._time()

    @property
    def age(self) -> float:
        """The seconds since the session was opened in this gateway."""
        return self._time() - self.started

    @property
    def seconds_left(self) -> float:
        """The seconds of life that are left."""
        return self.limits.lifetime - self.age

    def let_live(self, seconds: float, most: float) -> None:
        """Set the remaining life to `seconds`, however idle; at most `most` in all. Raises InvalidInput."""
        lifetime = check_seconds(seconds, "timeout") + self.age
        if lifetime > most:
            raise InvalidInput(f"With this timeout it lives {lifetime:.0f} s, and {most:.0f} are the most")
        self._live(lifetime)

    def let_live_longer(self, seconds: float, most: float) -> None:
        """Extend the life by `let_live`: never below the present one, and no further than allowed."""
        lifetime = min(seconds + self.age, most)
        if lifetime > self.limits.lifetime:
            self._live(lifetime)

    def let_sleep(self, most: float) -> None:
        """Let the session live for `most` seconds in all, but be idle no longer than before."""
        self.limits = replace(self.limits, lifetime=max(self.limits.lifetime, most))

    def _live(self, lifetime: float) -> None:
        self.limits = replace(self.limits, lifetime=lifetime, idle_timeout=lifetime)

    def end(self, idle_since: float | None) -> SessionEnd:
        """Return when and why the session ends by itself; `idle_since`: None while it is in use."""
        found = due(self.limits, self.started, idle_since, sleeps=self.sleeps)
        return found.to_wire(self._time(), time.time())

    @property
    def sleeps(self) -> bool:
        """Whether the session falls asleep instead of ending when it was not used for too long."""
        return self.can_sleep and self.limits.on_idle == "sleep"

    def sleeps_at(self, idle_since: float | None) -> str | UnsetType:
        """Return when the session falls asleep unless it is used before; UNSET if it doesn't."""
        if idle_since is None or not self.sleeps:
            return UNSET
        moment = idle_since + self.limits.idle_timeout
        # It ends at the same moment or before.
        if moment >= due(self.limits, self.started, None).moment:
            return UNSET
        return on_wire(moment, self._time(), time.time())

    def present(self) -> SessionRow:
        """Return the row with the current state, limits and head."""
        return structs.replace(
            self.row,
            state=self.state,
            cause=self.cause,
            limits=self.limits.to_wire(),
            last_activity=self.last_activity,
            head_seq=self.log.head_seq,
            head=self.log.head,
        )

    def attached(self, kernel: Kernel, loss: Loss | None, origin: BranchedFrom | None = None) -> None:
        """Note the session's new kernel; the next `change` records the details of both.

        `loss`: what was lost with the previous kernel, if not yet announced by an execution. `origin`: the
        session that it continues, if this is a branch that begins.
        """
        environment = environment_of(kernel)
        if self._makes_checkpoints:
            environment[CHECKPOINT] = AUTO
        self._introduction = {
            "principal": self.row.principal,
            "created_at": self.row.created_at,
            "metadata": self.row.metadata,
            "environment": environment,
            "gateway_version": self._gateway_version,
        }
        if self.row.folder:
            self._introduction["folder"] = self.row.folder
        if loss is not None:
            self._introduction["loss"] = to_builtins(loss)
        if origin is not None:
            self.row = structs.replace(self.row, branched_from=origin)
            self._introduction["branched_from"] = to_builtins(origin)
            self._introduction["execution_count"] = self.row.execution_count
        self.row = structs.replace(self.row, isolation=kernel.isolation, environment=brief(environment))

    def revise(self, metadata: dict[str, Any] | None, limits: SessionLimits, kernel: Kernel) -> None:
        """Record other metadata and limits, with the cause `changed`; the state stays."""
        self.row = structs.replace(self.row, metadata=metadata)
        self.limits = limits
        self._introduction["metadata"] = metadata
        self.change(self.state, CHANGED, kernel)

    def set(self, state: SessionState, cause: str | None, kernel: Kernel | None) -> None:
        """Like `change`, but does nothing if state and cause are the same."""
        if (state, cause) != (self.state, self.cause):
            self.change(state, cause, kernel)

    def change(self, state: SessionState, cause: str | None, kernel: Kernel | None) -> None:
        """Record a state and the current kernel, if any."""
        self.state = state
        self.cause = cause
        self._recorded = state, cause, self.last_activity
        fields: dict[str, Any] = {
            "state": state,
            "cause": cause,
            "kernel": self.row.kernel,
            "last_activity": self.last_activity,
        }
        if kernel is not None:
            fields |= {"kernel_id": kernel.id, "isolation": kernel.isolation, "limits": self.limits.to_wire()}
            fields |= self._introduction
            self._introduction = {}
        self.log.append("session", None, fields)
        self.save()

    def finished(self, event: Mapping[str, Any]) -> None:
        """Update the session from an execution's `finished` event."""
        self.last_activity = event["at"]
        self._recorded = (*self._recorded[:2], self.last_activity)
        self.save(event["execution_count"])

    def branched(self, branch: str, made: Branched) -> BranchedFrom:
        """Record a branch of the session; return its origin, for the first event of the branch.

        The caller has waited until all events so far are in the chain. Raises StorageError, LogClosed.
        """
        told: dict[str, Any] = {
            "branch": branch,
            "workspace": made.workspace,
            "seed": made.seed,
            "obstacles": _named(made.overruled),
        }
        if made.children:
            told["children"] = list(made.children)
        event = self.log.append(BRANCHED, None, told)
        assert self.log.head_seq == event["seq"]
        self.save()
        return BranchedFrom(session=self.row.key, seq=event["seq"], head=self.log.head.hex())

    def checkpointed(self, point: Checkpoint) -> None:
        """Record a requested checkpoint. Raises StorageError, LogClosed."""
        self.log.append("checkpointed", None, {"name": point.name, "obstacles": _named(point.held.overruled)})

    def rolled_back(self, found: RolledBack) -> None:
        """Record a rollback of the session. Raises StorageError, LogClosed."""
        point = found.checkpoint
        told = {"checkpoint": point.name, "to_seq": point.at.seq, "undone": found.undone}
        self.log.append("rolled_back", None, told)

    def check_writable(self) -> None:
        """Check that this session and others can be recorded. Raises StorageError."""
        self._store.check_writable(self.row.id)

    @property
    def problem(self) -> str | None:
        """The reason why this session is no longer recorded; None while it is."""
        failure = self._store.failure_of(self.row.id)
        return None if failure is None else failure.message

    def note_files(self, run: ExecutionRun, changes: Iterable[dict[str, Any]]) -> None:
        """Record a cell's changes of files; if there is no room, the cell's end can still be recorded."""
        for change in changes:
            with suppress(StorageFull):
                run.record.emit("file", self.masked_file(change))

    def masked_file(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a file's change for the record: its path may contain a secret."""
        return fields if self._secrets is None else self._secrets.in_names(fields)

    def masked_text(self, text: str) -> str:
        """Return a text for the record without values of secrets."""
        return text if self._secrets is None else self._secrets.text_masker().text(text)

    def save(self, execution_count: int | None = None) -> None:
        """Write the row with what the last events say; `busy` and most of what is done to it have none."""
        state, cause, last_activity = self._recorded
        self.row = structs.replace(
            self.row,
            state=state,
            cause=cause,
            last_activity=last_activity,
            execution_count=execution_count or self.row.execution_count,
            head_seq=self.log.head_seq,
            head=self.log.head,
        )
        self.log.save_session(self.row)

    async def known(
        self, key: str, request_hash: str, live: Iterable[ExecutionRun]
    ) -> ExecutionRun | tuple[str, int] | None:
        """Return the execution that was requested with this key: live, or recorded as (id, first seq).

        `live` is read after the last await, so that the caller may submit at once: two requests with one key
        can't both be first. Raises Conflict if the key was used with another request.
        """
        row = await self._store.execution_by_key(self.row.id, key)
        for run in live:
            if run.record.idempotency is not None and run.record.idempotency[0] == key:
                _check_same(run.record.idempotency[1], request_hash)
                return run if run.record.builder is not None else (run.id, run.record.first_seq)
        if row is None:
            return None
        _check_same(row.request_hash, request_hash)
        return row.id, row.first_seq


def _named(obstacles: Iterable[Obstacle]) -> list[dict[str, str]]:
    return [{"kind": obstacle.kind, "name": obstacle.name} for obstacle in obstacles]


def _check_same(known: str | None, given: str) -> None:
    if known != given:
        raise Conflict("This Idempotency-Key was used with another request; choose a new one")


class SessionCore:
    """A session for the parts that act in it: shared state, checks, and recording. `tasks` end with it."""

    account: Account
    record: SessionRecord
    observer: SessionObserver
    settings: SessionSettings
    tasks: Supervisor
    queue: ExecutionQueue
    runs: SessionRuns
    slot: SessionKernel
    undo: SessionUndo
    door: Door
    processes: SessionProcesses
    ports: SessionPorts
    machine: SessionMachine
    """Makes all decisions."""
    hooks: tuple[CellHook | CellPackages, ...]
    """What acts before cells and after them, in this order."""

    @property
    def ending(self) -> bool:
        """Whether the session has started to end."""
        return self.machine.ending

    def ids(self) -> Mapping[str, object]:
        """Return the ids for a log line."""
        kernel = None if self.kernel is None else self.kernel.id
        return {"principal": self.account.name, "session": self.row.key, "kernel": kernel}

    @property
    def row(self) -> SessionRow:
        """The session's row in the record."""
        return self.record.row

    @property
    def limits(self) -> SessionLimits:
        """The limits of the session now."""
        return self.record.limits

    @property
    def kernel(self) -> Kernel | None:
        """The current kernel, if any."""
        return self.slot.current

    @property
    def state(self) -> SessionState:
        """The state of the session, as shown to clients."""
        if self.record.state is SessionState.IDLE and self.kernel is not None and self.kernel.asleep:
            return SessionState.ASLEEP
        return self.record.state

    def report(self, text: str, **more: object) -> None:
        """Log a line for operators: ids and a cause, never output of a cell."""
        logger.info(text, extra={**self.ids(), **more})

    def check_open(self) -> None:
        """Check that the session has not started to end. Raises ShuttingDown."""
        if self.ending:
            raise ShuttingDown("The session is ending")

    def check_recordable(self) -> None:
        """Check that something new may begin. Raises ShuttingDown, StorageError, PrincipalQuotaExceeded."""
        self.check_open()
        self.record.check_writable()
        if self.row.principal:
            self.account.check_record()

    def check_room(self, room: int) -> None:
        """Check that a new cell may be queued. Raises QueueFull, and as `check_recordable`."""
        step = self.machine.asked(room=room)
        if step is Step.REFUSE_FULL:
            raise QueueFull(
                f"{self.runs.waiting} executions wait in this session; send the next when one has finished",
                retry_after=1.0,
            )
        self.check_recordable()

    async def finish(self, run: ExecutionRun) -> None:
        """Record the end; once it is durable, notify followers and waiters.

        By the protocol, a Jupyter client knows the end already, so its next cell need not wait.
        """
        if run.end.event is None and run.was_sent:
            self.undo.cells += 1
            if self.undo.used:
                self.undo.cell_ended()
        ends_it = self.record.state is SessionState.BUSY and run is self.runs.current
        event = run.finish(SessionState.IDLE if ends_it else self.record.state)
        if event["cause"] in LIMITS:
            self.report("A limit ended a cell", execution=run.id, cause=event["cause"])
        self.record.finished(event)
        run.record.save()
        self.runs.remember(run)
        if run.request.message is None:
            await run.end.commit()
            return
        self.door.finished(run)
        if len(self.tasks) > MOST_COMMITS:
            await run.end.commit()
        else:
            self.tasks.start(run.end.commit(), f"commit {run.id}", execution=run.id)

    def finish_later(self, run: ExecutionRun) -> None:
        """Record the end in a separate task."""
        self.tasks.start(
            self.finish(run), f"finish {run.id}", lambda _: run.end.fail(GatewayFault()), execution=run.id
        )

    async def finish_cancelled(self, run: ExecutionRun) -> None:
        """Record the end of a cell that did not run, and notify its waiters in any case."""
        try:
            await self.finish(run)
        except BaseException:
            run.end.fail(GatewayFault())
            raise
