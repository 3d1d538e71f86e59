"""Opens sessions: new ones, recorded ones, branches, and ones for a single request.

An opening reserves its key and its principal's room before any await, is shared by all requests for the key,
and releases both if it fails. ``registry`` decides which session is opened, ``terms`` what it gets;
``adoption`` recovers sessions that a former gateway left.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from msgspec import structs

from cellgate.errors import Conflict, Forbidden, NotFound, NotRecorded, OwnedElsewhere, RecordSetBack
from cellgate.execution.limits import SessionLimits
from cellgate.fairness.reservation import Reservation
from cellgate.files.workspace import new_folder
from cellgate.quotas.cluster_uses import Sums
from cellgate.quotas.session_sums import sums_of
from cellgate.quotas.usage import Account
from cellgate.record.chain import GENESIS
from cellgate.record.events import EventLog, now
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import FIRST_EPOCH, RecordStore
from cellgate.record.store.memory import MemoryStore
from cellgate.sessions.keys import Opening, SessionKeys
from cellgate.sessions.model import AUTO, makes_checkpoints
from cellgate.sessions.ownership import Owned
from cellgate.sessions.parts import SessionSettings, SharedParts
from cellgate.sessions.replacement import Moved
from cellgate.sessions.session import Session
from cellgate.sessions.settling import Settling
from cellgate.sessions.shared_workspaces import SharedWorkspaces
from cellgate.sessions.state import SessionSpec, SessionState
from cellgate.sessions.takeover import LostBy, end_lost
from cellgate.sessions.terms import SessionPlan, SessionTerms
from cellgate.sessions.variables import KeptVariables
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import DeadlinePassed
from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.base.tasks import Supervisor, outcome

logger = logging.getLogger(__name__)

ENDED = SessionState.ENDED.value

RoomMaker = Callable[[Account, ResourceLimits, SessionRow | None, Sums], Awaitable[None]]
"""Lets sleeping sessions of a principal give way; see ``Sleepers.make_room``."""


async def none_gives_way(*_: object) -> None:
    """Let no session of the principal give way."""


@dataclass(frozen=True, slots=True)
class BranchTerms:
    """Facts of a branch besides its kernel.

    `explored`: whether it is an alternative of an exploration. `metadata`: the branch's own.
    """

    explored: bool
    metadata: dict[str, Any]


class SessionOpener:
    """Opens sessions and registers them under their keys; see ``keys``. `tasks`: the registry's."""

    def __init__(
        self,
        journal: RecordStore,
        parts: SharedParts,
        settings: SessionSettings,
        keys: SessionKeys,
        terms: SessionTerms,
        tasks: Supervisor,
    ) -> None:
        self.workspaces = SharedWorkspaces(journal, parts.usage, keys)
        """Workspaces of several sessions."""
        self.settling = Settling(journal, parts.workspaces, self.workspaces, keys, parts.former)
        """Homes of sessions in a cluster."""
        self.variables = KeptVariables()
        """Variables of ended sessions."""
        self.journal = journal
        """The record's store."""
        self.parts = parts
        self.settings = settings
        self.make_room: RoomMaker = none_gives_way
        """Called before a resumed session's own limits are reserved."""
        self._usage = parts.usage
        self.keys = keys
        self._terms = terms
        self._tasks = tasks
        self._now = asyncio.get_running_loop().time

    def begin(
        self,
        owned: Owned,
        limits: SessionLimits,
        open_it: Callable[[Opening], Coroutine[Any, Any, Session]],
        *,
        folder: str | None = None,
    ) -> Opening:
        """Begin to open a session, whose room is reserved now. `folder`: its workspace, if known.

        Raises ShuttingDown, Draining, Forbidden and the errors of the principal's quotas.
        """
        self.check_opens(owned[0])
        counted = self.workspaces.is_counted(folder)
        reserved = self._usage.account(owned[0]).reserve_session(limits.resources, without_disk=counted)
        opening = Opening(reserved, folder, 0 if counted else limits.resources.disk)
        opening.task = self._tasks.share(open_it(opening), f"open {owned[1]}", session=owned[1])
        opening.task.add_done_callback(lambda _: self.opened(owned, opening))
        self.keys.begin(owned, opening)
        return opening

    def check_opens(self, principal: str) -> None:
        """Check that a principal may open a session now. Raises ShuttingDown, Draining, Forbidden."""
        self.keys.check_opens()
        self.check_admitted(principal)

    async def look(self, principal: str) -> None:
        """Look up what a principal uses at other gateways, before `begin`. Raises StorageError."""
        await self._usage.look([self._usage.account(principal)])

    def opened(self, owned: Owned, opening: Opening) -> None:
        """Remove an opening that has ended; if it failed, release its reservations."""
        self.keys.end(owned, opening)
        if opening.task.cancelled() or opening.task.exception() is not None:
            self.keys.release(owned)
            disk, opening.disk = opening.disk, 0
            self.workspaces.give_back(owned[0], opening.folder, opening.reserved, disk)

    async def outcome(self, opening: Opening, until: float | None, moved: Moved | None) -> Session:
        """Return the opened session. The last waiter to give up ends the opening."""
        opening.waiting += 1
        if moved is not None:
            opening.tell(moved)
        try:
            if until is not None:
                patience = max(0.0, until - self._now())
                await asyncio.wait([opening.task], timeout=patience)
                if not opening.task.done() and opening.in_line:
                    raise DeadlinePassed(patience)
            return await outcome(opening.task, opening.cancelled)
        except DeadlinePassed:
            if opening.waiting == 1:
                opening.abandoned = True
                opening.task.cancel()
            raise
        finally:
            opening.waiting -= 1
            if moved is not None:
                opening.told.remove(moved)

    async def open(self, owned: Owned, plan: SessionPlan, opening: Opening) -> Session:
        """Open a new or recorded session: the work of an opening. Raises whatever makes the opening fail."""
        former, moved = await self._claim(owned)
        executions = 0
        if former is None:
            folder = new_folder() if plan.sharer is None else plan.sharer.folder
            await self._usage.confirm(owned[0], opening.reserved)
            row = _row(await self.journal.begin_session(*owned), owned, plan, folder)
            spec = self._spec(row, plan, self.new_log(row), automatic=plan.body.checkpoint == AUTO)
        else:
            spec = await self._resumed(opening, former, plan)
            last = await self.journal.reads.last_execution(former.id)
            executions = last.number if last is not None else 0
        session = self.make(spec)
        self.keys.made(opening, session)
        # Not before it has a kernel: the files at their former gateway are lost by this.
        placed = partial(self.settling.settle, owned, former, opening) if moved else None
        await session.open(executions, moved=opening.moved, placed=placed)
        self.add(session, opening.reserved, opening.disk)
        return session

    async def claimed(self, owned: Owned) -> None:
        """Claim a key, and make this gateway the home of its session, which is to be deleted.

        If a lost gateway has left the session open, its end is recorded first. Raises OwnedElsewhere and
        StorageError.
        """
        row, moved = await self._claim(owned)
        if moved:
            await self.settling.settle(owned, row, keep_files=False)

    async def claim_set_back(self, owned: Owned) -> bool:
        """Claim the key of a session whose record lacks its last events, and record its end; return whether
        there is any record of it. Raises OwnedElsewhere and StorageError.
        """
        row, _ = await self._claim(owned)
        return row is not None

    async def _claim(self, owned: Owned) -> tuple[SessionRow | None, bool]:
        """Claim a key; return the row of its ended session, if any, and whether its files are elsewhere.

        What a lost gateway, or a database that went back, has left open of the session ends in the record.
        """
        owner = await self.keys.claim(owned)
        row = await self.journal.reads.session(*owned)
        set_back = row is not None and isinstance(self.journal.failure_of(row.id), RecordSetBack)
        if row is None or (row.state == ENDED and not (owner.moved or set_back)):
            return row, owner.moved
        # The end of its last life here may still be waiting to be written.
        await self.journal.commit()
        last = await self.journal.reads.session(*owned)
        if last is None or (last.state == ENDED and not set_back):
            return last, owner.moved
        log = await self.stored_log(last, claimed=True)
        is_lost = self.keys.ownership.shared and not set_back
        await end_lost(self.journal, last, log, LostBy.NODE_LOST if is_lost else LostBy.RECORD_SET_BACK)
        with suppress(NotRecorded):
            await log.commit()
        ids = {"principal": owned[0], "session": owned[1], "epoch": log.epoch}
        why = "lost gateway" if is_lost else "record went back and"
        logger.warning("A session's %s has left it open: its end is recorded now", why, extra=ids)
        return await self.journal.reads.session(*owned), owner.moved

    async def _resumed(self, opening: Opening, former: SessionRow, plan: SessionPlan) -> SessionSpec:
        """Return the next life of a recorded session, whose log takes events again."""
        if plan.sharer is not None and former.folder != plan.sharer.folder:
            raise Conflict(f"Session {former.key!r} is recorded with another workspace; choose another key")
        # The last events of its previous life may still be waiting to be written.
        await self.journal.commit()
        log = await self.stored_log(former, claimed=True)
        self.journal.check_writable(former.id)
        life = await self.journal.reads.last_life(former)
        resumed = self._terms.resumed(former, life, self.variables.of(former.principal, former.id), plan)
        account = self._usage.account(former.principal)
        shared = former if self.workspaces.is_counted(former.folder) else None
        reserved = sums_of(plan.limits.resources, without_disk=not opening.disk)
        await self.make_room(account, resumed.limits.resources, shared, reserved)
        self._reserve_again(opening, former, plan.limits, resumed.limits)
        await self._usage.confirm(former.principal, opening.reserved)
        body = plan.body
        plan = replace(plan, profile=resumed.profile, limits=resumed.limits)
        row = structs.replace(
            _row(former.id, (former.principal, former.key), plan, former.folder),
            created_at=former.created_at,
            metadata=former.metadata if body.metadata is None else body.metadata,
            parent=former.parent,
            branched_from=former.branched_from,
        )
        log.reopen()
        if plan.secrets is None and body.secrets is None:
            plan = replace(plan, secrets=self._terms.former_secrets(former, body))
        automatic = makes_checkpoints(former) if body.checkpoint is None else body.checkpoint == AUTO
        spec = self._spec(row, plan, log, automatic=automatic)
        return replace(spec, loss=resumed.loss, missing=resumed.loss.missing)

    def _spec(self, row: SessionRow, plan: SessionPlan, log: EventLog, *, automatic: bool) -> SessionSpec:
        spec = SessionSpec(row, plan.limits, plan.profile, log, self.journal)
        return replace(spec, secrets=plan.secrets, checkpoints=automatic)

    def _reserve_again(
        self, opening: Opening, former: SessionRow, asked: SessionLimits, limits: SessionLimits
    ) -> None:
        """Reserve the limits of a resumed session, for those `asked` for before its record was read."""
        account = self._usage.account(former.principal)
        if opening.folder is None:
            without_disk = self.workspaces.is_counted(former.folder)
            opening.folder = former.folder
        else:
            without_disk = not opening.disk
        if limits.resources != asked.resources or without_disk == bool(opening.disk):
            opening.disk = 0 if without_disk else limits.resources.disk
            opening.reserved.release()
            opening.reserved = account.reserve_session(limits.resources, without_disk=without_disk)

    async def branch(
        self, owned: Owned, parent: Session, spec: BranchSpec, terms: BranchTerms, opening: Opening
    ) -> Session:
        """Copy the parent's files and fork its kernel, then record both sessions: in this order.

        No cell of the parent begins before all of it is done, so files and kernel match. Nothing is recorded
        before the branch is complete, so a failed one changes nothing. By then the parent's rows have their
        hashes: the branch's first event names the hash that covers them all. The session is shown last: a
        branch takes no cell before it is recorded.
        """
        try:
            owner = await self.keys.claim(owned)
        except OwnedElsewhere as error:
            # The request is for the parent, which is here: it must not be handed on.
            raise Conflict(
                f"Another gateway has the session {owned[1]!r}; choose another key for the branch"
            ) from error
        if await self.journal.reads.session(*owned) is not None:
            raise Conflict(
                f"The session {owned[1]!r} has ended, and its record is kept under this key;"
                " choose another key for the branch"
            )
        if owner.moved:
            await self.keys.ownership.settle(*owned)
        await self._usage.confirm(owned[0], opening.reserved)
        async with parent.holds.held(explored=terms.explored):
            session = self.make(await self._branch_of(parent, owned[1], terms))
            kernel = await parent.slot.branch(spec, parent.limits.resources.disk)
            try:
                await session.slot.take(kernel, parent.slot)
                while parent.log.head_seq < parent.log.last_seq:
                    await parent.log.chained()
                self.check_admitted(owned[0])
                # Both rows in one turn of the loop: no other row comes between them, and one commit has both.
                assert kernel.branched is not None
                session.begin_as_branch(kernel, parent.record.branched(owned[1], kernel.branched))
            except BaseException:
                await session.slot.end(keep_files=False)
                raise
            self.keys.made(opening, session)
            self.add(session, opening.reserved)
        return session

    async def _branch_of(self, parent: Session, key: str, terms: BranchTerms) -> SessionSpec:
        """Return a session like its parent, whose count of cells it continues; it has no events yet."""
        row = SessionRow.new(
            await self.journal.begin_session(parent.row.principal, key),
            principal=parent.row.principal,
            key=key,
            kernel=parent.row.kernel,
            at=now(),
            limits=parent.limits.to_wire(),
            metadata=terms.metadata,
            folder=new_folder(),
        )
        row = structs.replace(row, parent=parent.row.id, execution_count=parent.row.execution_count)
        secrets = parent.slot.secrets
        return SessionSpec(
            row,
            parent.limits,
            parent.slot.profile,
            self.new_log(row),
            self.journal,
            secrets=None if secrets is None else secrets.copied(),
            checkpoints=parent.undo.automatic and not terms.explored,
        )

    async def open_one_shot(
        self,
        principal: str,
        plan: SessionPlan,
        *,
        store: MemoryStore | None = None,
        until: float | None = None,
        moved: Moved | None = None,
    ) -> Session:
        """Return a session in memory, for one request; see `SessionRegistry.open_one_shot`."""
        key = f"one-shot-{uuid.uuid4()}"
        row = _row(await self.journal.begin_session(principal, key), ("", key), plan, new_folder())
        store = MemoryStore() if store is None else store
        log = EventLog(store, row.id, row.key, lane=self.parts.lane)
        log.whose = principal
        await self.look(principal)
        reserved = self._usage.account(principal).reserve_session(plan.limits.resources)
        try:
            await self._usage.confirm(principal, reserved)
            session = self.make(SessionSpec(row, plan.limits, plan.profile, log, store, principal))
            patience = None if until is None else max(0.0, until - self._now())
            await session.open(0, patience=patience, moved=moved)
        except BaseException:
            reserved.release()
            raise
        self.add(session, reserved)
        return session

    def make(self, spec: SessionSpec) -> Session:
        """Return a session that is not open yet."""
        return Session(spec, self.parts, self.settings)

    def add(self, session: Session, reserved: Reservation, disk: int | None = None) -> None:
        """Register a live session until it ends, then release its reservations.

        A session may also end itself. `disk`: see `Opening`; by default its own.
        """
        row = session.row
        self.keys.use((row.principal, row.key)).session = session
        kept = session.limits.resources.disk if disk is None else disk
        session.over.add_done_callback(lambda _: self.forget(session))
        session.over.add_done_callback(
            lambda _: self.workspaces.give_back(row.principal, row.folder, reserved, kept)
        )

    def forget(self, session: Session) -> None:
        """Remove an ended session; its variables are kept for a next life unless it was deleted."""
        row = session.row
        use = self.keys.find((row.principal, row.key))
        if use.session is session:
            use.session = None
            self.keys.release((row.principal, row.key))
            if row.principal and session.record.cause != "deleted":
                self.variables.keep(row.principal, row.id, session.slot.profile.env)

    def check_admitted(self, principal: str) -> None:
        """Check that a principal was not shut out while a request waited. Raises Forbidden."""
        if not self.parts.admits(principal):
            raise Forbidden("This user has been shut out")

    async def stored_log(self, row: SessionRow, *, claimed: bool = False) -> EventLog:
        """Return the closed log of a session that is not live; `claimed`: to be reopened. Raises NotFound."""
        epoch = await self.journal.claim(row.id) if claimed else FIRST_EPOCH
        last = await self.journal.reads.last_event(row.id)
        if last is None:
            raise NotFound(f"No session {row.key!r}")
        log = self.new_log(row, *last)
        log.epoch = epoch
        log.close()
        return log

    def new_log(self, row: SessionRow, last_seq: int = 0, head: bytes = GENESIS) -> EventLog:
        """Return a session's log; its events count towards the principal's record, if there are quotas."""
        log = EventLog(self.journal, row.id, row.key, last_seq=last_seq, head=head, lane=self.parts.lane)
        log.whose = row.principal
        if self._usage.measures_records:
            log.stored = partial(self._usage.recorded, row.principal)
        return log


def _row(session_id: int, owned: Owned, plan: SessionPlan, folder: str) -> SessionRow:
    """Return the first row of a session's life, whose workspace is in `folder`."""
    return SessionRow.new(
        session_id,
        principal=owned[0],
        key=owned[1],
        kernel=plan.profile.kernelspec,
        at=now(),
        limits=plan.limits.to_wire(),
        metadata=plan.body.metadata,
        folder=folder,
    )
