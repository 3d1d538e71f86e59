"""A gateway without HTTP, processes and waiting: real sessions, pool, folders and record, in virtual time.

Kernels are those of ``cellgate_kernels.testing``. The record is a real one, whose disk the test can fill.
`World` also keeps what it was asked to do, so that `check` can say afterwards whether the record tells the
same, and all decisions of its sessions, which `check` replays.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from cellgate.channels.client import ChannelSettings, Client
from cellgate.channels.requests import received
from cellgate.egress.shared import Egress
from cellgate.errors import RecordGone, ShuttingDown, StorageError
from cellgate.execution.limits import SessionLimits
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun, ExecutionSettings
from cellgate.files.workspace import WorkspaceStore
from cellgate.hook.program import HookProgram
from cellgate.http.metrics import Metrics
from cellgate.quotas.quotas import Policy
from cellgate.quotas.usage import Usage
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.store.backlog import Group
from cellgate.record.store.sqlite import blobs, schema
from cellgate.record.store.sqlite.check import check_record
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.schema import storage_error
from cellgate.server.observing import Observer
from cellgate.sessions.adoption import Recovery
from cellgate.sessions.decisions import replay
from cellgate.sessions.machine import Occupant
from cellgate.sessions.parts import SessionSettings, SharedParts, SleepWays, everybody, same_weight
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.secrets import SecretSource
from cellgate.sessions.session import Session
from cellgate.sessions.settings import ManagerSettings
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.errors import CellgateError, GatewayFault
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.kernel.stored import StoredKernel
from cellgate_kernels.limits.control_group import ControlGroup, Part
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.protocol.messages import Channel, new_message
from cellgate_kernels.protocol.outputs import OutputCaps
from cellgate_kernels.protocol.websocket import Subprotocol
from cellgate_kernels.testing import Attempt, FakeKernel, FakeLauncher, Start, VirtualTimeLoop, at_once
from tests.support.decisions import RecordedDecisions

T = TypeVar("T")

GRACE, SETTLE = 2.0, 5.0
CELL_TIMEOUT = 60.0
MOST_SECONDS = 600.0
"""Virtual ones that an end may take."""
PATIENCE = 10.0
"""Virtual seconds from a cell's end to its record: its files are looked at, its kernel may be replaced."""
PRINCIPAL = "ada"
LATE = frozenset({"stream", "display_data", "update_display_data", "clear_output"})
"""What a cell's threads may still say after its end."""


class Disk:
    """The record's disk. `full`: it takes nothing, and a commit says so."""

    def __init__(self, journal: Journal) -> None:
        self.full = self.was_full = False
        submit, append = journal._files.writer._submit, journal._files.redo.append

        def write(query: Callable[..., T], *args: Any, **kwargs: Any) -> Future[T]:
            if not self.full:
                return submit(query, *args, **kwargs)
            self.was_full = True
            refused: Future[T] = Future()
            refused.set_exception(storage_error(sqlite3.OperationalError("database or disk is full")))
            return refused

        def log(group: Group) -> bool:
            return not self.full and append(group)

        journal._files.writer._submit = write  # type: ignore[method-assign]
        journal._files.redo.append = log  # type: ignore[method-assign]


class Taker:
    """A WebSocket whose other side reads all at once."""

    async def send_frames(self, frames: bytes) -> bool:
        return True

    def close(self, code: int | None = None, reason: str | None = None) -> None: ...


@dataclass
class Asked:
    """A cell that somebody asked for, and what they were told: that its end is durable, or why not."""

    key: str
    code: str
    run: ExecutionRun | None = None
    told: bool = False
    refusal: CellgateError | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)


class World:
    """One gateway's core below a folder. All methods but `run` belong to the loop."""

    def __init__(self, loop: VirtualTimeLoop, folder: Path) -> None:
        self.loop = loop
        self.folder = folder
        self.complaints: list[dict[str, Any]] = []
        self.asked: list[Asked] = []
        self.restarts: list[asyncio.Task[None]] = []
        self.clients: dict[tuple[str, str], Client] = {}
        self.sent: dict[str, str] = {}
        self.kernels_wanted: Start = at_once
        self.decisions = RecordedDecisions()
        loop.set_exception_handler(lambda _, context: self.complaints.append(context))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Let the loop run until this is done."""
        return self.loop.run_until_complete(work)

    def do(self, action: Callable[..., T], *arguments: Any) -> T:
        """Call this in the loop."""

        async def work() -> T:
            return action(*arguments)

        return self.run(work())

    def pass_time(self, seconds: float) -> None:
        """Let so much time pass."""
        self.run(asyncio.sleep(seconds))

    async def open(
        self,
        *,
        max_kernels: int = 3,
        max_queue: int = 8,
        warm: int = 0,
        weight_of: Callable[[str], float] = same_weight,
        quotas: Mapping[str, Any] | None = None,
        observer: Observer | None = None,
        egress: Egress | None = None,
        admits: Callable[[str], bool] = everybody,
        secrets: SecretSource | None = None,
        sleep: SleepWays | None = None,
        hook: HookProgram | None = None,
    ) -> None:
        """Open a record and what is above it. `quotas`: of all users."""
        self.decisions.start()
        workspaces = self.folder / "workspaces"
        workspaces.mkdir(exist_ok=True)
        self.journal = await Journal.open(self.folder / "record.sqlite3", pending_bytes=4 * MIB)
        self.disk = Disk(self.journal)
        self.launcher = FakeLauncher(workspaces, start=self._start_kernel)
        pool = PoolSettings(size=warm, max_kernels=max_kernels, claim_timeout=30.0, retry_delay=1.0)
        observer = Observer(Metrics()) if observer is None else observer
        self.pool = KernelPool(self.launcher, pool, [], observer=observer)
        self.pool.start()
        self._lane = Lane("outboxes", 1)
        settings = SessionSettings(
            ExecutionSettings(OutputCaps(), interrupt_grace=GRACE, settle=SETTLE),
            ChannelSettings(self.folder, self._lane),
            max_queue=max_queue,
        )
        self.usage = Usage(Policy({"user": quotas or {}}), clock=self.loop.time)
        self.usage.load_records(await self.journal.reads.record_sizes())
        self.manager = SessionRegistry(
            self.journal,
            self.launcher.catalog,
            SharedParts(
                self.pool,
                WorkspaceStore(workspaces),
                SpillLedger(self.folder, 0),
                weight_of=weight_of,
                usage=self.usage,
                observer=observer,
                egress=egress,
                admits=admits,
                secrets=secrets,
                sleep=sleep,
                hook=hook,
            ),
            ManagerSettings(settings, limits=SessionLimits(cell_timeout=CELL_TIMEOUT)),
        )
        self.manager.start()

    async def recovered(self, launcher: Any, kernels: Mapping[str, StoredKernel]) -> tuple[int, int]:
        """Recover the sessions of a gateway that left these kernels; how many go on, how many have ended."""
        return await Recovery(self.journal, launcher, kernels, self.manager.opener).recover()

    async def _start_kernel(self, attempt: Attempt) -> None:
        await self.kernels_wanted(attempt)

    # What clients do

    async def session(self, key: str = "s") -> Session:
        """The session of this key."""
        return (await self.manager.get_or_create(PRINCIPAL, SessionBody(session=key)))[0]

    def live(self, key: str) -> Session | None:
        """The session of this key, if it lives."""
        return self.manager.get(PRINCIPAL, key)

    def ask(self, key: str, code: str, *, timeout: float | None = None, name: str | None = None) -> Asked:
        """Ask for a cell as over HTTP, and wait for it in a task. `name`: an idempotency key."""
        asked = Asked(key, code)
        self.asked.append(asked)
        asked.task = self.loop.create_task(self._client(asked, timeout, name))
        return asked

    async def _client(self, asked: Asked, timeout: float | None, name: str | None) -> None:
        try:
            session = await self.session(asked.key)
            idempotency = None if name is None else (name, asked.code)
            runs = session.runs.known()
            known = None if name is None else await session.record.known(name, asked.code, runs)
            if isinstance(known, tuple):
                return
            request = ExecuteRequest(asked.code, timeout=timeout, allow_stdin=True)
            run = known if known is not None else session.submit(request, idempotency=idempotency)
            asked.run = run
            await run.end.wait()
            assert self.is_durable(run), "somebody was told of an end that is not durable"
            asked.told = True
        except CellgateError as error:
            asked.refusal = error

    def is_durable(self, run: ExecutionRun) -> bool:
        """Whether a crash now would leave the execution's end in the record."""
        backlog = self.journal._backlog
        groups = [backlog.enqueued, backlog.held]
        if not backlog.writing_logged:
            groups.append(backlog.writing)
        waiting = (row for group in groups for row in group.events)
        return all(row.execution != run.id or row.type != "finished" for row in waiting)

    def restart(self, session: Session) -> None:
        """Ask for a restart, and wait for it in a task."""

        async def client() -> None:
            try:
                await session.restart()
            except CellgateError:
                return

        self.restarts.append(self.loop.create_task(client()))

    def connect(self, session: Session, name: str) -> None:
        """A Jupyter client of this name opens a WebSocket that takes whatever comes."""
        client = session.door.connect(name, Subprotocol.V1)
        client.attach(Taker())
        self.clients[session.row.key, name] = client

    def send(self, session: Session, client: Client, code: str) -> None:
        """A Jupyter client sends a cell."""
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": False}
        message = new_message(Channel.SHELL, "execute_request", content, session=client.session_id)
        self.sent[message.header.msg_id] = code
        session.door.send(client, received(message))

    def kernel(self, key: str) -> FakeKernel | None:
        """The kernel of a live session."""
        session = self.live(key)
        kernel = None if session is None else session.kernel
        assert kernel is None or isinstance(kernel, FakeKernel)
        return kernel

    # The end

    async def close(self) -> None:
        """End all that there is, as a gateway does that was asked to."""
        async with asyncio.timeout(MOST_SECONDS):
            await self.manager.close(0.1)
            await asyncio.gather(*[asked.task for asked in self.asked if asked.task is not None])
            await asyncio.gather(*self.restarts)
            await self.pool.close()
        await self.journal.close()
        self._lane.close()
        self.launcher.close()
        self.decisions.stop()

    def check_counts(self) -> None:
        """The machines of live sessions count what there is."""
        for session in self.manager.everybodys():
            machine, queue, runs = session.machine, session.queue, session.runs
            counted = (machine.waiting, machine.over, machine.restarts, machine.beside)
            there = (queue._runs, queue._cancelled, queue._restarts, runs._beside)
            assert counted == tuple(map(len, there)), "the machine has lost count"
            assert bool(machine.there & Occupant.CELL) == (runs.current is not None)
            assert bool(machine.there & Occupant.QUEUED) == any(map(bool, there[:3]))
            assert bool(machine.there & Occupant.RESTART) == bool(queue._restarts)

    def events(self) -> dict[int, list[dict[str, Any]]]:
        """After `close`: all that is recorded, by session."""
        found: dict[int, list[dict[str, Any]]] = {}
        with closing(sqlite3.connect(self.folder / "record.sqlite3")) as db:
            for session_id, body in db.execute(
                "SELECT session_id, body FROM events ORDER BY session_id, seq"
            ):
                found.setdefault(session_id, []).append(msgspec.json.decode(body))
        return found

    def bodies(self) -> list[bytes]:
        """After `close`: the bodies of all events of PRINCIPAL."""
        with closing(schema.open_reader(self.folder / "record.sqlite3")) as db:
            query = """SELECT body, blobs FROM events JOIN sessions ON sessions.id = session_id
                WHERE principal = ?"""
            return [blobs.put_back(db, *row) for row in db.execute(query, (PRINCIPAL,)).fetchall()]

    def check(self) -> None:
        """After `close`: nothing is left, the record is whole, and it tells of each cell as it should."""
        left = [task for task in asyncio.all_tasks(self.loop) if not task.done()]
        assert left == [], "tasks are left"
        assert self.complaints == []
        replayed = replay(self.decisions.lines)
        assert (replayed.difference, replayed.skipped) == (None, 0), str(replayed.difference)
        assert self.launcher.existing == 0, "kernels are left"
        used = {name: use.used for name, use in self.usage.account(PRINCIPAL).uses().items()}
        recorded_bytes = sum(len(body) for body in self.bodies())
        held = ("sessions", "running", "queued", "memory", "cpus", "disk")
        assert {name: used[name] for name in held} == dict.fromkeys(held, 0), "something is still reserved"
        assert used["record"] == recorded_bytes or self.disk.was_full, (
            "the record's size is not as it is counted"
        )
        assert [kernel.id for kernel in self.launcher.kernels if kernel.discards != 1] == []
        findings = list(check_record(self.folder / "record.sqlite3"))
        problems = [str(finding) for finding in findings if finding.problem is not None]
        assert problems == [], problems
        recorded: set[str] = set()
        for events in self.events().values():
            recorded |= check_session(events)
        for asked in self.asked:
            if asked.run is not None:
                assert asked.run.end.done.done(), "somebody still waits"
                assert asked.run.id in recorded, "a cell that was accepted is not in the record"
                assert asked.told or isinstance(asked.refusal, (StorageError, ShuttingDown, RecordGone))
            assert not isinstance(asked.refusal, GatewayFault)


def check_session(events: list[dict[str, Any]]) -> set[str]:
    """What must hold of a session's events, whatever happened. Returns its executions' ids."""
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    kinds: dict[str, list[str]] = {}
    queued: list[str] = []
    timeouts: dict[str, float] = {}
    silent: set[str] = set()
    running: str | None = None
    for event in events:
        execution, kind = event["execution"], event["type"]
        if execution is None:
            continue
        before = kinds.setdefault(execution, [])
        if kind == "queued" and "waiting_for" in event:
            assert set(before) == {"queued"}, "it waits before it was queued, or after it began"
        elif kind == "queued":
            assert before == [], "queued twice"
            queued.append(execution)
            if event.get("silent"):
                silent.add(execution)
            limit = event.get("timeout", CELL_TIMEOUT)
            timeouts[execution] = float("inf") if limit is None else limit
        elif "finished" in before:
            assert kind in LATE, f"{kind} after the end"
        else:
            assert before, f"{kind} before it was queued"
        if kind == "started":
            assert "started" not in before, "started twice"
            assert running is None, "two cells at once"
            running = execution
            assert [each for each in queued[: queued.index(execution)] if "finished" not in kinds[each]] == []
        if kind == "finished":
            running = None if running == execution else running
            check_end(event, before, timeouts[execution], silent=execution in silent)
        before.append(kind)
    for execution, found in kinds.items():
        assert Counter(found)["finished"] == 1, f"{execution} has {Counter(found)['finished']} ends"
    check_losses(events)
    return set(kinds)


def check_losses(events: list[dict[str, Any]]) -> None:
    """Each kernel but the first is a loss, announced once: by the next cell that ran, or that was running."""
    introduced = False
    unannounced = False
    announces: dict[str, bool] = {}
    for event in events:
        execution = event["execution"]
        if event["type"] == "session" and "environment" in event:
            # A kernel that is adopted is the one that was there, and one of a checkpoint has what it had.
            same = event["cause"] in {"adopted", "rolled_back", "chosen"}
            unannounced = unannounced if same else introduced
            assert ("loss" in event) is unannounced, "a kernel is introduced"
            introduced = True
        elif event["type"] == "started":
            announces[execution] = unannounced
        elif event["type"] == "finished":
            told = event["kernel"]["replaced"]
            assert told or not announces.get(execution, False), "a loss was not announced"
            assert unannounced or not told, "a loss was announced twice, or there was none"
            unannounced = unannounced and not told


def check_end(event: dict[str, Any], before: list[str], timeout: float, *, silent: bool) -> None:
    """What must hold of a cell's end. `silent`: kernels do not tell that such a cell has started."""
    status, cause = event["status"], event["cause"]
    assert cause != GatewayFault.reason, "a mistake of ours, which was handled, but is one"
    assert status in {"ok", "error", "timeout", "interrupted", "died", "cancelled"}
    if status in {"timeout", "interrupted", "died", "cancelled"}:
        assert cause, f"{status} without a cause"
    assert event["duration_ms"] < 1000 * (timeout + GRACE + SETTLE + PATIENCE), "a deadline was not held"
    if status == "ok":
        assert cause is None
        assert silent or "started" in before
    if status == "error":
        assert event["error"] is not None


def give_group_to(kernel: FakeKernel, folder: Path) -> None:
    """Give a kernel a control group of its own, without processes, in a new folder."""
    folder.mkdir()
    for name, content in (
        ("freezer.state", "THAWED"),
        ("memory.force_empty", ""),
        ("memory.usage_in_bytes", "1000"),
        ("cgroup.procs", ""),
    ):
        (folder / name).write_text(content)
    kernel.group = ControlGroup(Part(folder, 1), Part(folder, 1))
