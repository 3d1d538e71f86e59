"""Replays recorded sessions: a fresh kernel of the same kernelspec, all cells again, a report on both.

It reads the record through ``sessions.reader``, gets kernels through ``sessions.registry`` and compares in a
job; the replay itself is not recorded. The handler does the HTTP; the other modules of ``replay`` do the
reading, running and comparing.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from cellgate.errors import QueueFull
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.results import ResultBuilder
from cellgate.fairness.shares import Shares
from cellgate.identity.principal import EVERYWHERE, Reach
from cellgate.jobs.job_files import JobFile
from cellgate.jobs.jobs import Jobs
from cellgate.packages.requirements import parse_change
from cellgate.record.events import now
from cellgate.record.rows import EventRow, SessionRow
from cellgate.record.store.memory import MemoryStore
from cellgate.replay.cells import RecordedCell, recorded_cells, seeding
from cellgate.replay.displays import Displays
from cellgate.replay.environment import (
    EnvironmentLock,
    compare_locks,
    lock_of,
    recorded_lock,
    recorded_seed,
    seeds_report,
    variables_for,
)
from cellgate.replay.files import input_files
from cellgate.replay.inputs import restore
from cellgate.replay.packages import RecordedPackage, installed_packages, pins
from cellgate.replay.report import NewRun
from cellgate.replay.run import Listener, refuse_other_environment, run_cells
from cellgate.sessions.files import SessionFiles
from cellgate.sessions.model import environment_of
from cellgate.sessions.reader import Archive
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.session import Session
from cellgate.wire.answers import ReplayFacts
from cellgate.wire.models import LimitsBody, SessionBody
from cellgate_kernels.base.errors import CellgateError
from cellgate_kernels.base.resources import HASH_SEED

MOST_AT_ONCE = 4
MOST_OF_ONE = 3


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How to replay. `form` of the report: ``json`` or ``html``. `anyway`: also in another environment.

    `rtol`: how far floating-point numbers may be apart. `installs`: whether cells may install packages.
    `reach`: the sessions whose cells a branch's replay may begin with.
    """

    form: str = "json"
    anyway: bool = False
    rtol: float = 0.0
    installs: bool = True
    reach: Reach = EVERYWHERE


class Replayer:
    """Runs up to four replays at once; more are refused."""

    def __init__(
        self, manager: SessionRegistry, archive: Archive, files: SessionFiles, jobs: Jobs, version: str
    ) -> None:
        self._manager = manager
        self._archive = archive
        self._files = files
        self._jobs = jobs
        self._version = version
        self._places = Shares(MOST_AT_ONCE, MOST_OF_ONE)

    async def replay(self, principal: str, key: str, options: ReplayOptions, *, listen: Listener) -> bytes:
        """Return the report. `listen` is called for each cell once it has run.

        Raises NotFound, EnvironmentDiffers, QueueFull, JobFailed, the pool's errors and those of `restore`.
        """
        place = self._places.take(principal)
        if place is None:
            raise QueueFull(f"{self._places.taken} replays are in progress; try again later", retry_after=10)
        try:
            return await self._replay(principal, key, options, listen)
        finally:
            place.release()

    async def _replay(self, principal: str, key: str, options: ReplayOptions, listen: Listener) -> bytes:
        moment = await self._archive.moment(principal, key, options.reach)
        row = moment.session
        notebook = await self._archive.outline(moment)
        cells = recorded_cells(notebook)
        inputs = input_files(notebook)
        seed = recorded_seed(notebook)
        kernel = self._manager.terms.replayed_kernel(row)
        wanted = SessionBody(kernel=kernel, limits=_limits(row), env=variables_for(seed, HASH_SEED))
        with self._jobs.file(principal) as given, self._jobs.file(principal) as made:
            # A `Comparison` as JSON, written incrementally: neither notebook nor runs are kept in memory.
            await given.write(b'{"notebook":')
            await given.take(self._archive.exports.notebook(moment))
            await given.write(b',"runs":[')
            note = partial(self._note, given, next(iter(cells), None), listen)
            started_at = now()
            store = _Rows()
            session = await self._manager.open_one_shot(
                principal, wanted, record=False, store=store, lower=True
            )
            try:
                why = await _install(session, installed_packages(notebook))
                check = compare_locks(recorded_lock(notebook), _lock(session))
                refuse_other_environment(check, anyway=options.anyway, why=why)
                restored = await restore(self._files, principal, key, inputs, session)
                await run_cells(cells, partial(self._run, session, store, installs=options.installs), note)
                facts = ReplayFacts(
                    session=key,
                    head=moment.head.hex(),
                    kernel=kernel,
                    isolation=session.row.isolation,
                    replayed_at=started_at,
                    gateway_version=self._version,
                    environment=check.report(),
                    hash_seed=seeds_report(seed, HASH_SEED),
                    files=restored,
                )
            finally:
                self._manager.end_later(session, "replay")
            await given.write(b'],"rtol":%a,"facts":' % options.rtol + msgspec.json.encode(facts) + b"}")
            await self._jobs.run(principal, "cellgate.replay.report", options.form, given=given, made=made)
            return await made.read()

    async def _run(self, session: Session, store: _Rows, cell: RecordedCell, *, installs: bool) -> NewRun:
        """Run a cell as it was run, with nobody to answer its input()."""
        if cell.seeds:
            await session.submit(ExecuteRequest(seeding(cell.seeds), silent=True, own=True)).end.wait()
            store.forget()
        at = now()
        request = ExecuteRequest(
            cell.source,
            timeout=cell.timeout,
            stdin=(),
            silent=cell.silent,
            allow_stdin=True,
            installs=installs,
        )
        run = session.submit(request)
        builder = run.record.builder or ResultBuilder()
        await run.end.wait()
        result = await self._archive.made(builder, ResultBuilder.result)
        asked = store.asked
        store.forget()
        places, changes = store.displays.end_cell(builder.area)
        return NewRun(result.status, result.outputs, at, now(), asked, places, changes)

    async def _note(
        self,
        given: JobFile,
        first: RecordedCell | None,
        listen: Listener,
        cell: RecordedCell,
        run: NewRun | None,
    ) -> None:
        parts = await self._archive.encoded(run)
        await given.write(b"".join([b"" if cell is first else b",", *parts]))
        await listen(cell, run)


class _Rows(MemoryStore):
    """The rows of a replay, whether the last cell asked for input, and where its cells showed something."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = False
        self.displays = Displays()

    def append(self, row: EventRow, **options: Any) -> None:
        self.asked |= row.type == "input_request"
        super().append(row, **options)

    def forget(self) -> None:
        self.asked = False
        super().forget()


async def _install(session: Session, packages: list[RecordedPackage]) -> str | None:
    """Install what the recorded session had; returns the reason if that failed."""
    if not packages:
        return None
    install, constraints = pins(packages)
    try:
        change = parse_change(install, constraints=constraints)
        await session.slot.packages.change(
            session.slot, change, lambda kind, fields: session.log.append(kind, None, fields)
        )
    except CellgateError as error:
        return error.message
    return None


def _lock(session: Session) -> EnvironmentLock | None:
    """Return the environment that the session's kernel reported, plus what was installed since."""
    if session.kernel is None:
        return None
    told = environment_of(session.kernel)
    if isinstance(packages := told.get("packages"), dict):
        told = {**told, "packages": {**packages, **session.slot.packages.versions()}}
    return lock_of(told)


def _limits(row: SessionRow) -> LimitsBody:
    """Return the recorded session's limits, so that the replay runs into the same ones."""
    known = {name: row.limits[name] for name in LimitsBody.__struct_fields__ if name in row.limits}
    return msgspec.convert(known, LimitsBody)
