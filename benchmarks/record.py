"""The cost of the record, and how many executions a second it can take.

Cost: `1+1` over HTTP through two gateways in turn, one of which (``unrecorded``) keeps no record. Throughput:
eight concurrent sessions in this process, with everything of the gateway below HTTP and above the kernel's
sockets: queue, execution, events, chain, journal. The pool and its kernels are fakes, which answer an
execute_request at once with the five messages of `1+1`.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from benchmarks.cpu import CELLS, WARM_UP
from benchmarks.figures import Figure, at_least, at_most, quantile, summary
from benchmarks.options import Options, say
from benchmarks.servers import Server, cellgate
from benchmarks.sessions import Session as HttpSession
from cellgate.channels.client import ChannelSettings
from cellgate.channels.frame_log import OutboxLimits
from cellgate.execution.limits import SessionLimits
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionSettings
from cellgate.files.workspace import WorkspaceStore
from cellgate.record.events import EventLog, now
from cellgate.record.rows import SessionRow
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.store.sqlite.journal import Journal
from cellgate.sessions.parts import SessionSettings, SharedParts
from cellgate.sessions.session import Session
from cellgate.sessions.state import SessionSpec
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.channels.connection import Listener
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.protocol.messages import Channel, Header, Message
from cellgate_kernels.protocol.outputs import OutputCaps

CODE = "1+1"
SESSIONS = 8
SECONDS = 10.0
UNRECORDED = Path(__file__).with_name("unrecorded.py")


def measure(options: Options) -> Sequence[Figure]:
    """The cost per cell in time and in processor time, and executions per second."""
    return [*_cost(options), asyncio.run(_throughput(options))]


# ---- cost


class Turn:
    """One of the two gateways: runs cells in blocks, and adds up their cost."""

    def __init__(self, server: Server, session: HttpSession) -> None:
        self._server = server
        self._session = session
        self._used = 0.0
        self.times: list[float] = []
        for _ in range(WARM_UP):
            session.execute(CODE)

    def block(self) -> None:
        """Run one block."""
        before = self._server.cpu()
        self.times += [self._session.execute(CODE) for _ in range(CELLS)]
        self._used += self._server.cpu() - before

    @property
    def p50(self) -> float:
        """Milliseconds of a round trip."""
        return quantile(self.times, 0.5) * 1000

    @property
    def cpu(self) -> float:
        """Milliseconds of processor time per cell."""
        return self._used / len(self.times) * 1000


def _cost(options: Options) -> Sequence[Figure]:
    with (
        cellgate(options.backend) as recorded,
        cellgate(options.backend, script=UNRECORDED) as unrecorded,
        recorded.client() as one,
        unrecorded.client() as other,
    ):
        on = Turn(recorded, HttpSession(one, "record"))
        off = Turn(unrecorded, HttpSession(other, "record"))
        rounds = options.count(20, 2)
        for number in range(rounds):
            # The order alternates, so that neither always follows the other's disturbance.
            turns = (on, off) if number % 2 else (off, on)
            for turn in turns:
                turn.block()
            say(f"record: round {number + 1} of {rounds}, p50 {on.p50:.2f} against {off.p50:.2f} ms")
    return [
        Figure("cost of the record per cell, p50", on.p50 - off.p50, "ms", at_most(0.5), summary(on.times)),
        Figure("cost of the record per cell, gateway CPU", on.cpu - off.cpu, "ms", at_most(0.4)),
        Figure("  with the record, p50", on.p50, "ms"),
        Figure("  without, p50", off.p50, "ms", details=summary(off.times)),
        Figure("  with the record, gateway CPU", on.cpu, "ms"),
        Figure("  without, gateway CPU", off.cpu, "ms"),
    ]


# ---- throughput

_ANSWERS = (
    (Channel.IOPUB, "status", b'{"execution_state":"busy"}'),
    (Channel.IOPUB, "execute_input", b'{"code":"1+1","execution_count":COUNT}'),
    (Channel.IOPUB, "execute_result", b'{"execution_count":COUNT,"data":{"text/plain":"2"},"metadata":{}}'),
    (Channel.SHELL, "execute_reply", b'{"status":"ok","execution_count":COUNT}'),
    (Channel.IOPUB, "status", b'{"execution_state":"idle"}'),
)


class FakeConnection:
    """Answers each execute_request at once, as ipykernel answers `1+1`."""

    session = "fake"

    def __init__(self) -> None:
        self._listeners: list[Listener] = []
        self._count = 0

    def listen(self, listener: Listener, *_: Listener, **__: Any) -> Any:
        """Receive all messages of the kernel."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def send(self, request: Message) -> None:
        """Take a request; its answers arrive in the loop's next turn, as messages from a socket would."""
        asyncio.get_running_loop().call_soon(self._answer, request)

    def rest(self, seconds: float) -> None:
        """Nothing: the messages arrive all at once."""

    def _answer(self, request: Message) -> None:
        self._count += 1
        for channel, kind, content in _ANSWERS:
            frame = content.replace(b"COUNT", str(self._count).encode())
            header = Header(uuid.uuid4().hex, kind)
            answer = Message(channel, b"{}", request.header_frame, b"{}", frame, (), header, request.header)
            for listener in self._listeners:
                listener(answer)


class FakeKernel:
    """The part of a kernel that a session uses."""

    alive = True
    isolation = "none"
    display_name = "Fake"
    info: dict[str, Any] = {}  # noqa: RUF012
    image: dict[str, str] = {}  # noqa: RUF012
    environment = None
    packages = None
    hash_seed = "0"

    def __init__(self, number: int, profile: KernelProfile, folder: Path) -> None:
        self.profile = profile
        self.id = f"fake-{number}"
        self.workspace = folder / self.id
        self.workspace.mkdir()
        self.connection = FakeConnection()
        self.exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def interrupt(self) -> None:
        """Nothing: no cell runs long enough."""

    async def shutdown(self) -> None:
        """Nothing: there is no process."""


class FakePool:
    """Hands out fake kernels."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made = 0

    async def claim(self, profile: KernelProfile, *_: object, **__: object) -> FakeKernel:
        """A new fake kernel."""
        self._made += 1
        return FakeKernel(self._made, profile, self._folder)

    def release(self, kernel: FakeKernel) -> None:
        """Nothing: no kernel is kept."""


async def _throughput(options: Options) -> Figure:
    seconds = options.count(int(SECONDS), 1)
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        journal = await Journal.open(folder / "record.sqlite3", sync="normal")
        lane = Lane("outboxes", 1)
        try:
            sessions = [await _session(journal, number, folder, lane) for number in range(1, SESSIONS + 1)]
            await asyncio.gather(*(_work(session, 0.5) for session in sessions))
            begun = time.perf_counter()
            cpu_before = time.process_time()
            counts = await asyncio.gather(*(_work(session, seconds) for session in sessions))
            elapsed = time.perf_counter() - begun
            used = time.process_time() - cpu_before
            for session in sessions:
                await session.end("benchmark")
        finally:
            await journal.close()
            lane.close()
    rate = sum(counts) / elapsed
    details = {"executions": sum(counts), "seconds": elapsed, "cpu_ms_each": used / sum(counts) * 1000}
    return Figure("executions recorded per second, 8 sessions", rate, "/s", at_least(1500), details)


async def _session(journal: Journal, number: int, folder: Path, lane: Lane) -> Session:
    limits = SessionLimits()
    moment = now()
    key = f"session-{number}"
    row = SessionRow(
        id=journal.new_session_id(),
        principal="benchmark",
        key=key,
        kernel="fake",
        isolation="none",
        state="starting",
        cause=None,
        created_at=moment,
        last_activity=moment,
        execution_count=0,
        limits=limits.to_wire(),
        metadata={},
        environment={},
    )
    channels = ChannelSettings(
        folder=folder,
        outbox=OutboxLimits(memory=MIB, total=MIB),
        replay_seconds=0,
        replay_bytes=0,
        max_queue=1,
        lane=lane,
    )
    settings = SessionSettings(ExecutionSettings(OutputCaps(MIB, MIB)), channels)
    log = EventLog(journal, row.id, key)
    pool = cast(KernelPool, FakePool(_made(folder / key)))
    session = Session(
        SessionSpec(row, limits, KernelProfile("fake", ResourceLimits()), log, journal),
        SharedParts(pool, WorkspaceStore(_made(folder / f"kept-{number}")), SpillLedger(folder, 0)),
        settings,
    )
    await session.open(0)
    return session


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


async def _work(session: Session, seconds: float) -> int:
    """Run cells one after another, each once the one before is durable; returns how many."""
    request = ExecuteRequest(CODE)
    count = 0
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        await session.submit(request).end.wait()
        count += 1
    return count
