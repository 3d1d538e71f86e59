"""Replays recorded sessions: a fresh kernel of the same kernelspec, all cells again, a report of both.

It reads the record by ``archive``, gets kernels by ``manager`` and compares in a job; what it runs is not
recorded. HTTP is the handler's affair, and what a replay means is ``gateway.replay``'s.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from gateway.archive import Archive
from gateway.errors import QueueFull
from gateway.jobs import Jobs
from gateway.manager import SessionManager
from gateway.models import ExecuteRequest, LimitsBody, SessionBody, now
from gateway.record.events import MemoryStore
from gateway.record.rows import SessionRow
from gateway.replay.cells import RecordedCell, recorded_cells
from gateway.replay.environment import PROBE, EnvironmentCheck, Lock, compare_locks, lock_of, probed
from gateway.replay.report import FILES_NOT_RESTORED, Comparison, NewRun, environment_report
from gateway.replay.run import Listener, refuse_other_environment, run_cells
from gateway.results import ResultBuilder
from gateway.sessions import Session

MOST_AT_ONCE = 4
PROBE_TIMEOUT = 60.0


class Replayer:
    """Four replays at once; more are refused."""

    def __init__(self, manager: SessionManager, archive: Archive, jobs: Jobs, version: str) -> None:
        self._manager = manager
        self._archive = archive
        self._jobs = jobs
        self._version = version
        self._running = 0

    async def replay(self, principal: str, key: str, *, anyway: bool, form: str, listen: Listener) -> bytes:
        """The report as ``json`` or ``html``. `listen` hears of each cell as it has run.

        Raises NotFound, EnvironmentDiffers unless `anyway`, QueueFull, JobFailed and the pool's errors.
        """
        if self._running >= MOST_AT_ONCE:
            raise QueueFull(f"{MOST_AT_ONCE} replays are under way; try again later", retry_after=10)
        self._running += 1
        try:
            return await self._replay(principal, key, anyway=anyway, form=form, listen=listen)
        finally:
            self._running -= 1

    async def _replay(self, principal: str, key: str, *, anyway: bool, form: str, listen: Listener) -> bytes:
        body, head = await self._archive.notebook(principal, key)
        notebook: dict[str, Any] = msgspec.json.decode(body)
        cells = recorded_cells(notebook)
        row = await self._archive.row(principal, key)
        wanted = SessionBody(kernel=row.kernel, limits=_limits(row))
        check = await self._check(lock_of(notebook["metadata"]["cellgate"].get("environment")), wanted)
        refuse_other_environment(check, anyway=anyway)
        begun, store = now(), MemoryStore()
        session = await self._manager.open_one_shot(principal, wanted, record=False, store=store)
        try:
            runs = await run_cells(cells, partial(_run, session, store), listen)
            facts = {
                "session": key,
                "head": head,
                "kernel": row.kernel,
                "isolation": session.row.isolation,
                "replayed_at": begun,
                "gateway_version": self._version,
                "environment": environment_report(check),
                "files": FILES_NOT_RESTORED,
            }
        finally:
            self._manager.end_later(session, "replay")
        given = msgspec.json.encode(Comparison(notebook, runs, facts))
        return await self._jobs.run("gateway.replay.report", form, given=given)

    async def _check(self, recorded: Lock | None, wanted: SessionBody) -> EnvironmentCheck:
        """Compare the recorded lock with that of another fresh kernel: the replay's is to stay untouched."""
        if recorded is None:
            return compare_locks(None, None)
        session = await self._manager.open_one_shot("", SessionBody(kernel=wanted.kernel), record=False)
        try:
            result = await _result(session, ExecuteRequest(PROBE, timeout=PROBE_TIMEOUT))
        finally:
            self._manager.end_later(session, "replay")
        return compare_locks(recorded, probed(result["stdout"]))


async def _run(session: Session, store: MemoryStore, cell: RecordedCell) -> NewRun:
    """Run a cell as it was run, with nobody to answer its input()."""
    at = now()
    request = ExecuteRequest(
        cell.source, timeout=cell.timeout, stdin=(), silent=cell.silent, allow_stdin=True
    )
    result = await _result(session, request)
    store.forget()
    return NewRun(result["status"], result["outputs"], at)


async def _result(session: Session, request: ExecuteRequest) -> dict[str, Any]:
    run = session.submit(request)
    builder = run.builder or ResultBuilder()
    await run.wait()
    return builder.result()


def _limits(row: SessionRow) -> LimitsBody:
    """The limits that the recorded session had, so that the same happens at the same bounds."""
    known = {name: row.limits[name] for name in LimitsBody.__struct_fields__ if name in row.limits}
    return msgspec.convert(known, LimitsBody)
