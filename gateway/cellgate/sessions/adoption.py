"""Recovery after a previous gateway has ended: sessions whose kernels are still alive continue, others end.

A kernel in a container outlives a gateway that crashed or was told to keep its kernels. This module adopts
the kernel, and the cell that it was running continues: the messages it sent in between are read from the
kernel's spool. A cell that was sent and not recorded yet is recorded now (``unrecorded``), so that a repeat
of its request finds it. Cells that were only queued end, because the record does not hold a complete request
(the lines of input and the values of variables are missing). Recovery runs once, before the gateway serves.
``cellgate_kernels.kernel.stored`` lists the former kernels; ``opener`` makes the sessions.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from cellgate.errors import Fenced
from cellgate.execution.limits import SessionLimits
from cellgate.execution.resumed import KernelBacklog, ResumedCell
from cellgate.execution.run import ExecutionRun, RunContext
from cellgate.fairness.reservation import Reservation
from cellgate.files.workspace import folder_of, kernel_folder_of
from cellgate.record.events import EventLog
from cellgate.record.rows import ExecutionRow, SessionRow
from cellgate.record.store.interface import RecordStore
from cellgate.sessions.model import makes_checkpoints
from cellgate.sessions.opener import SessionOpener
from cellgate.sessions.queue import AdoptedRuns
from cellgate.sessions.secrets import SessionSecrets
from cellgate.sessions.session import Session
from cellgate.sessions.state import SessionSpec
from cellgate.sessions.takeover import LostBy, end_cells, end_left_open, end_lost
from cellgate.sessions.unrecorded import record_unrecorded
from cellgate_kernels.base.errors import CellgateError, KernelDied, in_words
from cellgate_kernels.base.places import Places
from cellgate_kernels.channels.spool import Spooled, read_spool
from cellgate_kernels.codec.decoding import json_decoder
from cellgate_kernels.kernel.launcher import KernelLauncher
from cellgate_kernels.kernel.stored import StoredKernel
from cellgate_kernels.launch.folders import SOCKETS
from cellgate_kernels.protocol.contents import content_of
from cellgate_kernels.protocol.masking import MessageMasker

logger = logging.getLogger(__name__)

_decode = json_decoder(object).decode

ADOPTED_AT_ONCE = 4
MESSAGES_A_TURN = 32
"""Most messages of adopted cells, of all sessions together, that are processed in one turn of the loop.

A spool has up to forty thousand, which take a second or two.
"""


class Recovery:
    """Recovers the sessions of a previous gateway, once. `kernels`: that gateway's stored kernels, by id."""

    def __init__(
        self,
        journal: RecordStore,
        launcher: KernelLauncher,
        kernels: Mapping[str, StoredKernel],
        opener: SessionOpener,
    ) -> None:
        self._journal = journal
        self._launcher = launcher
        self._kernels = kernels
        self._opener = opener
        self._keys = opener.keys
        self._parts = opener.parts
        self._reserved: dict[int, Reservation] = {}
        self._at_once = asyncio.Semaphore(ADOPTED_AT_ONCE)
        self._places = Places(MESSAGES_A_TURN)

    async def recover(self) -> tuple[int, int]:
        """Resume or end the sessions left open; return how many of each."""
        held = await self._keys.ownership.held()
        known = await self._opener.workspaces.load()
        rows, logs = list[SessionRow](), list[EventLog]()
        for row in await self._journal.reads.unfinished_sessions(held):
            # Another gateway may have taken the session over in between.
            with suppress(Fenced):
                logs.append(await self._opener.stored_log(row, claimed=True))
                rows.append(row)
        found = await asyncio.gather(*[self._adopt(row, log) for row, log in zip(rows, logs, strict=True)])
        await self._journal.commit()
        for session in found:
            if session is not None:
                # Only now is it known which sessions continue.
                self._reserved.pop(session.row.id).release()
                counted = self._opener.workspaces.is_counted(session.row.folder)
                again = session.account.adopt_session(session.limits.resources, without_disk=counted)
                self._opener.add(session, again, 0 if counted else None)
        for left_over in self._reserved.values():
            left_over.release()
        adopted = {session.kernel.id for session in found if session is not None and session.kernel}
        # While the record has a session as live, it names the owner of the kernel's folder. So recovery can
        # begin again if the gateway ends here.
        used = {kernel_folder_of(row) for row in rows if row.environment.get("kernel_id") in adopted}
        await self._parts.workspaces.tidy(known, left_behind(rows, adopted), adopted | used)
        for row, log, session in zip(rows, logs, found, strict=True):
            if session is None:
                await end_lost(self._journal, row, log, LostBy.GATEWAY_RESTART)
                self._keys.release((row.principal, row.key))
        await self._journal.commit()
        return len(adopted), len(rows) - len(adopted)

    async def _adopt(self, row: SessionRow, log: EventLog) -> Session | None:
        """Return the session with its adopted kernel; None if the kernel is gone and the session must end."""
        stored = self._kernels.get(str(row.environment.get("kernel_id")))
        if stored is not None:
            async with self._at_once:
                try:
                    return await self._continue(row, log, stored)
                except (CellgateError, OSError) as error:
                    logger.warning("Session %s lost its kernel: %s", row.key, in_words(error))
                except Exception as error:  # whatever the error, the other sessions must be recovered
                    ids = {"session": row.key, "kernel": stored.id}
                    logger.error("Session %s could not be recovered", row.key, exc_info=error, extra=ids)
        return None

    async def _continue(self, row: SessionRow, log: EventLog, stored: StoredKernel) -> Session:
        backlog = KernelBacklog()
        secrets, values = self._secrets(row, stored)

        kernel = await self._launcher.adopt(stored, backlog.attend, values)
        try:
            folder = Path(stored.runtime) / SOCKETS
            key = stored.provisioner["connection_info"]["key"]
            spool = await asyncio.to_thread(read_spool, folder, key.encode())
            kernel.connection.note_received(entry.message for entry in spool)
            if secrets is not None:
                # One masker for all messages: of a value printed in parts, only some may be spooled.
                masker = secrets.masker()
                spool = await asyncio.to_thread(masked, spool, masker)
                backlog.mask(masker)
                kernel.connection.mask(masker)
            limits = SessionLimits.from_wire(row.limits)
            unfinished = unfinished_cells(spool)
            log.reopen()
            resumed = await self._resumed(row, log, spool, backlog, limits)
            why = LostBy.GATEWAY_RESTART
            await end_cells(self._journal, row, log, why, "idle", {run.id for run in resumed})
            await end_left_open(self._journal, row, log, why)
            cells = {run.msg_id for run in resumed}
            backlog.expect(cells)
            if unfinished - cells:
                # Code that the gateway itself sent: nobody waits for its end any more.
                kernel.interrupt()
            life = await self._journal.reads.last_life(row)
            spec = SessionSpec(
                row,
                limits,
                kernel.profile,
                log,
                self._journal,
                loss=life.unannounced,
                missing=life.missing,
                secrets=secrets,
                checkpoints=makes_checkpoints(row),
            )
            session = self._opener.make(spec)
            self._reserved[row.id] = session.account.adopt_session(limits.resources)
            last = await self._journal.reads.last_execution(row.id)
            await session.open(0 if last is None else last.number, kernel, _in_order(resumed, unfinished))
        except BaseException:
            await kernel.shutdown()
            raise
        return session

    def _secrets(
        self, row: SessionRow, stored: StoredKernel
    ) -> tuple[SessionSecrets | None, tuple[tuple[str, str], ...]]:
        """Return the session's secrets, if any, and their current values. Raises StorageError."""
        if not stored.secrets or self._parts.secrets is None:
            return None, ()
        secrets = SessionSecrets(self._parts.secrets, row.principal, stored.secrets)
        values = secrets.adopted()
        if gone := set(stored.secrets) - {name for name, _ in values}:
            logger.warning(
                "Session %s goes on with the value of a secret that was removed, which is not masked: %s",
                row.key,
                ", ".join(sorted(gone)),
            )
        return secrets, values

    async def _resumed(
        self,
        row: SessionRow,
        log: EventLog,
        spool: Sequence[Spooled],
        backlog: KernelBacklog,
        limits: SessionLimits,
    ) -> list[ExecutionRun]:
        """Return the cells that were sent to the kernel and have no recorded end, in their order.

        Raises KernelDied if the kernel keeps no spool: then the fate of such a cell is unknown.
        """
        found: list[ExecutionRun] = []
        await record_unrecorded(self._journal, row, log, spool, self._opener.settings.ceilings.cell_timeout)
        for execution in await self._journal.reads.unfinished_executions(row.id):
            events = [event async for event in self._events(execution)]
            missed = [entry for entry in spool if entry.message.parent.msg_id == execution.msg_id]
            if any(event["type"] != "queued" for event in events) and not missed:
                raise KernelDied("What its running cell did in between is not known.")
            if missed:
                cell = ResumedCell(execution, events, missed, backlog, self._places, limits.cell_timeout)
                run = ExecutionRun(
                    cell.request,
                    RunContext(log, self._opener.settings.execution),
                    number=execution.number,
                    timeout=cell.timeout,
                    idempotency=cell.idempotency,
                    resumed=cell,
                )
                found.append(run)
        return found

    async def _events(self, execution: ExecutionRow) -> Any:
        after = execution.first_seq - 1
        async for batch in self._journal.reads.event_batches(execution.session_id, after=after):
            for row in batch:
                if row.execution == execution.id:
                    yield _decode(row.body)


def _in_order(resumed: Sequence[ExecutionRun], unfinished: Collection[str]) -> AdoptedRuns | None:
    """Return the cells in the order in which they go on; None without any. `unfinished`: requests' ids."""
    running = [run for run in resumed if run.msg_id in unfinished]
    ended = [run for run in resumed if run.msg_id not in unfinished]
    if not running:
        running = ended[-1:]
        ended = ended[:-1]
    return AdoptedRuns(tuple(ended), running[0], tuple(running[1:])) if running else None


def masked(spool: Iterable[Spooled], masker: MessageMasker) -> list[Spooled]:
    """Return the spool without values of secrets. A message with nothing left to show is an empty text.

    The masker keeps the text that it holds back at the end: the kernel may complete it.
    """
    entries = list(spool)
    found: list[Spooled] = []
    for entry in entries:
        before = entry.before
        found += [Spooled(before, message) for message in masker.before(entry.message)]
        shown = masker.mask(entry.message)
        found.append(Spooled(before, masker.nothing(entry.message) if shown is None else shown))
    masker.expect_again(entry.message for entry in entries)
    return found


def unfinished_cells(spool: Iterable[Spooled]) -> set[str]:
    """Return ids of requests that have started but not ended, according to the kernel's status messages."""
    unfinished: set[str] = set()
    for message in (entry.message for entry in spool if entry.message.msg_type == "status"):
        if content_of(message).get("execution_state") == "busy":
            unfinished.add(message.parent.msg_id)
        else:
            unfinished.discard(message.parent.msg_id)
    return unfinished


def left_behind(rows: Iterable[SessionRow], adopted: Collection[str]) -> dict[str, list[str]]:
    """Return the folders of sessions that lost their kernel, by the last kernel's workspace folder.

    A last kernel may have worked in another kernel's folder. Sessions with an adopted kernel, and sessions
    that share a workspace with one of these, are left out.
    """
    lost: list[SessionRow] = []
    kept: set[str] = set()
    for row in rows:
        if row.environment.get("kernel_id") in adopted:
            kept.add(folder_of(row))
        else:
            lost.append(row)
    found: dict[str, list[str]] = defaultdict(list)
    for row in lost:
        sessions = found[kernel_folder_of(row)]
        if (folder := folder_of(row)) not in kept and folder not in sessions:
            sessions.append(folder)
    return found
