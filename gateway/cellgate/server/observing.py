"""Connects the reports of all rooms to metrics and traces, and samples values that no room reports.

`Observer` overrides the classes that pool, sessions and executions report to. `Sampler` looks at the memory
of kernels and machine and at the data folder's disk, in threads, and at the event loop's lag. Logs are the
rooms' own business. ``assembly`` builds both.
"""

from __future__ import annotations

import asyncio
import logging
import os
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

from cellgate.execution.cell_record import RunEnd
from cellgate.http.metrics import EXECUTION_CAUSES, NO_CAUSE, Metrics
from cellgate.http.tracing import Tracer
from cellgate.record.store.interface import RecordStore
from cellgate.server import machine
from cellgate.sessions.meter import KernelMeter
from cellgate.sessions.parts import SessionObserver
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.pool.pool import ClaimEnd, PoolObserver

logger = logging.getLogger(__name__)

SAMPLE_SECONDS = 10.0
LAG_PAUSE = 0.5
"""The seconds between two measurements of the loop's lag: two wake-ups a second have no measurable cost."""


class Observer(SessionObserver, PoolObserver):
    """Makes metrics and traces of the reports of pool, sessions and executions."""

    def __init__(self, metrics: Metrics, tracer: Tracer | None = None) -> None:
        self._metrics = metrics
        self._tracer = tracer

    # Of executions

    def origin(self) -> object:
        return super().origin() if self._tracer is None else self._tracer.origin()

    def within(self, origin: object) -> AbstractContextManager[object]:
        return super().within(origin) if self._tracer is None else self._tracer.within(origin)

    def ended(self, end: RunEnd) -> None:
        executions = self._metrics.executions
        known = executions.get((end.status, end.cause or NO_CAUSE))
        (known or executions[end.status, EXECUTION_CAUSES[end.status][-1]]).inc()
        if end.run_seconds is not None:
            self._metrics.queue_seconds.observe(end.queue_seconds)
            self._metrics.run_seconds.observe(end.run_seconds)
        if end.memory_kills:
            self._metrics.memory_kills.inc(end.memory_kills)

    def committed(self, end: RunEnd, seconds: float) -> None:
        self._metrics.commit_seconds.observe(seconds)
        if self._tracer is not None:
            self._tracer.cell(end, seconds)

    # Of sessions and kernels

    def session_ended(self, cause: str) -> None:
        self._metrics.sessions_ended[cause].inc()

    def session_branched(self) -> None:
        self._metrics.branches.inc()

    def kernel_died(self, cause: str) -> None:
        self._metrics.deaths[cause].inc()

    def died_warm(self, cause: str) -> None:
        self._metrics.deaths[cause].inc()

    def claimed(self, end: ClaimEnd, seconds: float, kernel: str | None) -> None:
        self._metrics.claim_ended(end, seconds)
        if self._tracer is not None:
            self._tracer.claim(end, seconds, kernel)

    def started(self, seconds: float) -> None:
        self._metrics.start_seconds.observe(seconds)

    def start_failed(self) -> None:
        self._metrics.start_failures.inc()


@dataclass(frozen=True, slots=True)
class _Sample:
    """Bytes: of the machine's memory, and of the data folder's file system."""

    memory: int
    available: int
    free: int
    disk: int


class Sampler:
    """`start` it with the gateway, `close` it before the loop ends.

    `meter` measures the kernels, if anybody does. `lane`: threads for looking at the machine and at the disk.
    """

    def __init__(
        self, metrics: Metrics, data: Path, record: RecordStore, meter: KernelMeter | None, lane: Lane
    ) -> None:
        self._metrics = metrics
        self._record = record
        self._data = data
        self._meter = meter
        self._lane = lane
        self._tasks = Supervisor()

    def start(self) -> None:
        """Start sampling memory, disk and lag."""
        self._tasks.repeat(self.look, "sample", pause=SAMPLE_SECONDS)
        self._tasks.repeat(self._measure_lag, "loop lag", pause=LAG_PAUSE)

    async def close(self) -> None:
        """Stop sampling memory, disk and lag."""
        await self._tasks.cancel()

    async def look(self) -> float:
        """Take one sample; return the seconds until the next."""
        try:
            if self._meter is not None:
                await self._meter.look()
            sample = await self._lane.run(_sample, self._data)
            record = await self._record.disk_bytes()
        except OSError as error:
            logger.debug("Memory and disk can't be looked at for now: %s", in_words(error))
            return SAMPLE_SECONDS
        metrics = self._metrics
        kernels = [] if self._meter is None else [use.memory for use in self._meter.all]
        metrics.kernels_memory.set(sum(kernels))
        metrics.largest_kernel.set(max(kernels, default=0))
        metrics.machine_memory.set(sample.memory)
        metrics.available_memory.set(sample.available)
        metrics.record_size.set(record)
        metrics.free_space.set(sample.free)
        metrics.storage_size.set(sample.disk)
        return SAMPLE_SECONDS

    async def _measure_lag(self) -> float:
        loop = asyncio.get_running_loop()
        due = loop.time() + LAG_PAUSE
        await asyncio.sleep(LAG_PAUSE)
        self._metrics.loop_lag.observe(max(0.0, loop.time() - due))
        return 0.0


def _sample(data: Path) -> _Sample:
    """Look at the machine's memory and at the disk of `data`. Raises OSError."""
    disk = os.statvfs(data)
    return _Sample(
        memory=machine.memory(),
        available=machine.available_memory(),
        free=disk.f_bavail * disk.f_frsize,
        disk=disk.f_blocks * disk.f_frsize,
    )
