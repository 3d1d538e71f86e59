"""All sessions of a gateway: created, branched, found, listed, culled and ended.

``keys`` has each key's use, ``terms`` the limits and parts that a request may get. ``opener`` opens sessions,
``purger`` removes their records. This module knows principals by name and knows nothing of HTTP; ``session``
is a single conversation, ``record`` stores it, and ``adoption`` recovers sessions after a restart.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from cellgate.errors import CannotShare, Forbidden, NotFound
from cellgate.execution.checks import check_session_key
from cellgate.execution.limits import SessionLimits
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun
from cellgate.files.workspace import folder_of
from cellgate.processes.request import ProcessRequest
from cellgate.processes.run import ProcessRun
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import RecordStore
from cellgate.record.store.memory import MemoryStore
from cellgate.sessions.agreement import check_agreement
from cellgate.sessions.due import due
from cellgate.sessions.fences import Fences
from cellgate.sessions.keys import SessionKeys
from cellgate.sessions.model import AUTO
from cellgate.sessions.opener import BranchTerms, SessionOpener
from cellgate.sessions.ownership import Owned
from cellgate.sessions.parts import SharedParts
from cellgate.sessions.purger import SessionPurger
from cellgate.sessions.replacement import Moved
from cellgate.sessions.session import Session
from cellgate.sessions.set_back import SetBackRecords
from cellgate.sessions.settings import ManagerSettings
from cellgate.sessions.sleepers import Sleepers
from cellgate.sessions.state import SessionState
from cellgate.sessions.terms import SessionPlan, SessionTerms
from cellgate.wire.models import SessionBody
from cellgate.wire.owner import new_id
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import CellgateError, InvalidInput
from cellgate_kernels.base.tasks import Supervisor, guarded
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.specs.languages import parse_language

logger = logging.getLogger(__name__)

LOOK_PATIENCE = 5.0
"""Seconds for a look at which sessions could sleep, before those are ended that are due."""
REMOVAL_SECONDS = 1.0
"""Seconds after which an opening that waits for a removal looks again whether the record can be written."""
COPY_SECONDS = 20.0
"""Seconds that a gateway waits at its shutdown for copies of files that sessions share."""
CLOSED = "gateway_shutdown"
"""The cause of the ends that the gateway's own end brings."""
_LIVES = 2
"""Most lives of a session that a request tries, if each ends just then."""


@dataclass(frozen=True, slots=True)
class AcceptedExecution:
    """An accepted cell and its session.

    `execution`: the one just queued, or the live one with the same idempotency key. If that execution is only
    in the record, its id and first seq.
    """

    session: Session
    execution: ExecutionRun | tuple[str, int]


class SessionRegistry:
    """Finds sessions by (principal, key). Run the recovery before any other call, and `close` at the end."""

    def __init__(
        self, journal: RecordStore, catalog: KernelspecCatalog, parts: SharedParts, settings: ManagerSettings
    ) -> None:
        self.settings = settings
        self._parts = parts
        self.terms = SessionTerms(settings, catalog, parts)
        """The limits and parts that a request may get."""
        self.keys = SessionKeys(parts.ownership)
        """The use of each key."""
        self._tasks = Supervisor()
        self.opener = SessionOpener(journal, parts, settings.session, self.keys, self.terms, self._tasks)
        """Opens sessions."""
        self.purger = SessionPurger(journal, parts, self.keys, self.delete, self._tasks)
        """Removes records."""
        end = partial(self.end_later, keep_files=True)
        self.sleepers = Sleepers(self.everybodys, end, parts.pool, parts.sleep, lambda: self.keys.draining)
        """Sessions that sleep instead of ending for being idle."""
        self.opener.make_room = self.sleepers.make_room
        self._journal = journal
        self._catalog = catalog
        self._now = asyncio.get_running_loop().time
        self._culler: asyncio.Task[None] | None = None
        set_back = SetBackRecords(self.opener, self._tasks)
        Fences(journal, self.keys, partial(self.end_later, keep_files=True), set_back.mark_once_over)

    def start(self) -> None:
        """Start culling sessions that are idle or too old."""
        interval = self.settings.cull_interval
        self._culler = self._tasks.repeat(self._cull, "culler", pause=interval)
        self.sleepers.start(interval)

    def refuse_work(self) -> None:
        """Refuse new work from now on."""
        self.keys.closing = True

    async def close(self, grace: float, *, keep_kernels: bool = False) -> None:
        """Refuse new work, give running cells `grace` seconds, then end all sessions; idle ones at once.

        With `keep_kernels`, recorded sessions do not end: the next gateway resumes them.
        """

        def is_kept(session: Session) -> bool:
            recorded = session.row.principal != ""
            return keep_kernels and recorded and session.kernel is not None and session.kernel.stored

        async def end_when_idle(session: Session) -> None:
            await session.runs.until_quiet()
            if not (is_kept(session) or session.ending or session.idle_since is None):
                # Another gateway may have it now.
                self.end_later(session, CLOSED, keep_files=True)

        self.refuse_work()
        if self._culler is not None:
            self._culler.cancel()
        await self.sleepers.close()
        quiet = Supervisor()
        for session in self.keys.sessions():
            quiet.start(end_when_idle(session), f"quiet {session.row.key}", session=session.row.key)
        try:
            async with asyncio.timeout(grace):
                await quiet.finished()
        except TimeoutError:
            logger.info("Cells that still run after the grace period are ended now")
        finally:
            await quiet.cancel()
        for _, opening in self.keys.openings():
            opening.task.cancel()
        # Files that are not copied by then stay in place for the next gateway.
        self._parts.workspaces.patience.end_in(COPY_SECONDS)
        for session in self.keys.sessions():
            self.end_later(session, CLOSED, keep_files=True, keep_kernel=is_kept(session))
        # Purges, openings and ends in progress, including those just started.
        await self._tasks.finished()
        await self.purger.close()

    def kernel_ids(self) -> set[str]:
        """Return the kernels of live sessions."""
        return {session.kernel.id for session in self.keys.sessions() if session.kernel is not None}

    def session_ids(self) -> set[int]:
        """Return the record ids of live sessions."""
        return {session.row.id for session in self.keys.sessions()}

    def counts(self, principal: str | None = None) -> dict[str, int]:
        """Return the number of live sessions in each state, of one principal or of all."""
        counts = {state.value: 0 for state in SessionState}
        for session in self.keys.sessions():
            if principal in {None, session.row.principal}:
                counts[session.state] += 1
        counts[SessionState.STARTING] += sum(principal in {None, owner} for owner, _ in self.keys.openings())
        return counts

    def everybodys(self) -> list[Session]:
        """Return the live sessions of all principals."""
        return self.keys.sessions()

    def queued(self) -> int:
        """Return the number of executions that wait in their sessions."""
        return sum(session.runs.waiting for session in self.keys.sessions())

    # Creating

    async def get_or_create(
        self,
        principal: str,
        body: SessionBody,
        *,
        until: float | None = None,
        moved: Moved | None = None,
        exact: bool = False,
        here: bool = False,
    ) -> tuple[Session, bool]:
        """Return the live session with the body's key, opened if necessary, and whether a kernel was started.

        `until`: when the caller stops waiting for a kernel, by the loop's clock. `moved` gets the session's
        position in line, at most once a second when it changes. `here`: wait here even if another gateway
        has room. Raises Conflict if the live session differs from the body (`exact`: see
        ``check_agreement``), NetworkNotAllowed, InvalidInput, StorageError, NodeFull, and the pool's errors.
        """
        key = new_id(self.keys.ownership.node) if body.session is None else check_session_key(body.session)
        owned = (principal, key)
        self.keys.check_open()
        await self._look_around(owned, body, here)
        limits = self.terms.limits(principal, body)
        if body.network == "allow":
            self.terms.check_network(principal)
        secrets = await self.terms.secrets(principal, body)
        sharer = await self._sharer(owned, body)
        if sharer is not None:
            limits = _with_disk_of(limits, sharer, body)
        if not self.keys.find(owned).open:
            self.terms.profile(body, limits)  # no session ends for one that is refused
            await self.sleepers.make_room(self._parts.usage.account(principal), limits.resources, sharer)
        while True:
            use = self.keys.find(owned)
            if use.removed_by is not None:
                # It is recorded, which takes as long as the storage is away.
                self._journal.check_writable()
                await asyncio.wait([use.removed_by], timeout=REMOVAL_SECONDS)
            elif (session := use.session) is not None:
                if not session.ending:
                    session.record.begin_idleness()
                    return check_agreement(session, body, self._catalog, sharer, exact=exact), False
                await asyncio.wait([session.over])  # even if its end fails
                self.opener.forget(session)
            elif (opening := use.opening) is not None and opening.abandoned:
                await asyncio.wait([opening.task])
                self.opener.opened(owned, opening)
            else:
                break
        if opening is not None:
            session = await self.opener.outcome(opening, until, moved)
            return check_agreement(session, body, self._catalog, sharer, exact=exact), False
        plan = SessionPlan(body, self.terms.profile(body, limits), limits, secrets, sharer)
        self._journal.check_writable()
        opening = self.opener.begin(
            owned,
            limits,
            partial(self.opener.open, owned, plan),
            folder=None if sharer is None else sharer.folder,
        )
        return await self.opener.outcome(opening, until, moved), True

    async def _look_around(self, owned: Owned, body: SessionBody, here: bool) -> None:
        """Check that no other gateway of a cluster has the session or, if it is new, has room for it instead.

        `here`: leave out the second check. Raises OwnedElsewhere, NodeFull and StorageError.
        """
        await self.keys.check_ours(owned)
        if not self.keys.find(owned).open:
            if body.workspace_of is None and not here:
                await self.keys.ownership.check_room(owned)
            self._journal.check_writable()
            self.opener.check_opens(owned[0])
            await self.opener.look(owned[0])

    async def _sharer(self, owned: Owned, body: SessionBody) -> SessionRow | None:
        """Return the session whose workspace to share, if any. Raises InvalidInput, NotFound, CannotShare."""
        if body.workspace_of is None:
            return None
        key = check_session_key(body.workspace_of)
        other = (owned[0], key)
        if other == owned:
            raise InvalidInput("workspace_of names the session itself")
        if body.checkpoint == AUTO:
            raise InvalidInput("checkpoint: sessions with one workspace can't be rolled back")
        await self.opener.workspaces.check_here(owned, other)
        if (opening := self.keys.find(other).opening) is not None:
            await asyncio.wait([opening.task])
        if (purge := self.keys.find(other).purge) is not None:
            await asyncio.wait([purge])
        live = self.keys.find(other).session
        if live is not None and live.is_deleted:
            raise CannotShare(f"The session {key!r} is being deleted")
        if live is None and (removal := self.keys.find(other).removal) is not None:
            await asyncio.wait([removal])
        row = await self._journal.reads.session(*other) if live is None else live.row
        if row is None:
            raise NotFound(f"No session {key!r}")
        if not self._parts.pool.shares_workspaces():
            raise CannotShare(
                "Kernels of one user share a container here, in which each has its own files: no two sessions"
                " can have one workspace. A gateway with --container-per session can do that"
            )
        self.opener.workspaces.add(row)
        return row

    async def branch(
        self,
        principal: str,
        key: str,
        branch: str,
        spec: BranchSpec,
        *,
        explored: bool = False,
        metadata: Mapping[str, object] | None = None,
    ) -> Session:
        """Return a new session with the key `branch`, which continues with a copy of a session's kernel.

        The branch belongs to the same principal and has the same limits, variables, secrets, packages and
        network. `explored`: as for `SessionHolds.held`. `metadata`: the branch's, instead of the session's.
        Raises NotFound, Conflict if a session of that key exists, even an ended one, and the errors of
        `held`, `KernelPool.branch` and of copying files; the parent then goes on as before.
        """
        self.keys.check_open()
        await self.keys.check_ours((principal, check_session_key(key)))
        parent = self.live(principal, key)
        owned = (principal, check_session_key(branch))
        await self.opener.look(principal)
        parent.record.begin_idleness()
        self.keys.check_free(owned)
        self.opener.check_opens(principal)
        await self.sleepers.make_room(parent.account, parent.limits.resources)
        self.keys.check_free(owned)
        told = parent.row.metadata if metadata is None else dict(metadata)
        branching = partial(self.opener.branch, owned, parent, spec, BranchTerms(explored, told))
        return await self.opener.outcome(self.opener.begin(owned, parent.limits, branching), None, None)

    async def room_for_branch(self, patience: float) -> None:
        """Return once there is a place for a branch's kernel; see `KernelPool.room_for_branch`."""
        await self._parts.pool.room_for_branch(patience)

    async def execute(
        self,
        principal: str,
        key: str,
        request: ExecuteRequest,
        *,
        language: str | None = None,
        idempotency: tuple[str, str] | None = None,
        moved: Moved | None = None,
    ) -> AcceptedExecution:
        """Queue a cell in the principal's session with this key, creating the session if necessary.

        `language`: the language of the code, if it differs from the kernel's; a new session gets a kernel for
        it. `idempotency`: a key and a hash of the request; a repeated key names the execution of its first
        use. The request's `timeout` also counts while a new session waits in line for its kernel; when it
        passes there, DeadlinePassed is raised and nothing is recorded. `moved`: as for `get_or_create`.
        Raises the errors of `get_or_create` and `Session.submit`, Conflict for a key that was used with
        another request, and InvalidInput for a request that the kernel can't serve.
        """
        arrived = self._now()
        until = None if request.timeout is None else arrived + request.timeout
        for _ in range(_LIVES):
            session = await self._session_for(principal, key, language, until, moved)
            asked = self.terms.in_language(session.row.kernel, request, language)
            if idempotency is not None:
                # Looked up in each life: another request may have used the key first in the next one.
                known = await session.record.known(*idempotency, session.runs.known())
                if known is not None:
                    return AcceptedExecution(session, known)
            if not session.ending:
                break
            # The session was culled just as this request arrived: a new one takes its place.
        return AcceptedExecution(session, session.submit(asked, idempotency=idempotency, arrived=arrived))

    async def start_process(
        self, principal: str, key: str, request: ProcessRequest, *, moved: Moved | None = None
    ) -> ProcessRun:
        """Start a program in the principal's session with this key, creating the session if necessary.

        `moved`: as for `get_or_create`. Raises the errors of `get_or_create` and `Session.start_process`.
        """
        session = await self._session_for(principal, key, None, None, moved)
        return await session.start_process(request)

    async def execute_once(
        self,
        principal: str,
        body: SessionBody,
        request: ExecuteRequest,
        *,
        record: bool,
        moved: Moved | None = None,
    ) -> tuple[Session, ExecutionRun]:
        """Queue a cell in a session of its own, which the caller ends with `end_later`; see `open_one_shot`.

        The request's `timeout` counts as for `execute`.
        """
        arrived = self._now()
        until = None if request.timeout is None else arrived + request.timeout
        session = await self.open_one_shot(principal, body, record=record, until=until, moved=moved)
        try:
            return session, session.submit(request, arrived=arrived)
        except BaseException:
            self.end_later(session, "one_shot")
            raise

    async def _session_for(
        self, principal: str, key: str, language: str | None, until: float | None, moved: Moved | None
    ) -> Session:
        owned = (principal, check_session_key(key))
        use = self.keys.uses.get(owned)
        session = None if use is None else use.session
        if use and session and not (self.keys.closing or session.ending or use.purge or use.removal):
            if language is not None:
                parse_language(language)
            session.record.begin_idleness()
            return session
        body = SessionBody(session=key)
        if language is not None:
            parse_language(language)
            if session is None and await self._journal.reads.session(*owned) is None:
                body = structs.replace(body, language=language)
        return (await self.get_or_create(principal, body, until=until, moved=moved))[0]

    async def open_one_shot(
        self,
        principal: str,
        body: SessionBody,
        *,
        record: bool,
        store: MemoryStore | None = None,
        lower: bool = False,
        until: float | None = None,
        moved: Moved | None = None,
    ) -> Session:
        """Return a session for one execution; without `record` it is in memory only and is not listed.

        A caller that runs more than one execution in it passes a `store` and empties it itself. With `lower`,
        limits above a ceiling are lowered to it instead of refused. `until`, `moved`: as for `get_or_create`.
        The caller ends the session with `end_later`. Raises the pool's errors and InvalidInput.
        """
        if record:
            return (await self.get_or_create(principal, body, until=until, moved=moved))[0]
        self.keys.check_opens()
        if body.workspace_of is not None:
            raise InvalidInput("workspace_of is for sessions that are recorded")
        await self.keys.ownership.check_room(None)
        limits = self.terms.limits(principal, body, lower=lower)
        plan = SessionPlan(body, self.terms.profile(body, limits), limits)
        await self.sleepers.make_room(self._parts.usage.account(principal), limits.resources)
        session = await self.opener.open_one_shot(principal, plan, store=store, until=until, moved=moved)
        try:
            self.opener.check_admitted(principal)
        except Forbidden:
            self.end_later(session, "one_shot")
            raise
        return session

    # Finding

    def get(self, principal: str, key: str) -> Session | None:
        """Return the live session with this key, if there is one."""
        use = self.keys.uses.get((principal, key))
        return None if use is None else use.session

    def live_after(self, principal: str | None, last: int, *, newest: bool = False) -> list[Session]:
        """Return live sessions with ids above `last`, by id, of a principal or (None) of all.

        `newest`: sessions with ids below `last`, highest first. Sessions that are not recorded have no key
        and are left out.
        """
        found = (
            session
            for session in self.keys.sessions()
            if session.row.principal
            and principal in {None, session.row.principal}
            and (session.row.id < last) == newest
        )
        there = (session for session in found if session.row.id != last)
        return sorted(there, key=lambda session: session.row.id, reverse=newest)

    def all_live(self, principal: str) -> list[Session]:
        """Return the principal's live sessions, except those that are ending."""
        return [each for each in self.keys.sessions() if each.row.principal == principal and not each.ending]

    def live(self, principal: str, key: str) -> Session:
        """Return the live session. Raises NotFound, even if another principal owns one with this key."""
        session = self.get(principal, check_session_key(key))
        if session is None:
            raise NotFound(f"No live session {key!r}")
        return session

    async def workspace(self, row: SessionRow) -> Path:
        """Return the folder with the session's files, which may not exist. Raises StorageError."""
        session = self.get(row.principal, row.key)
        return await self.opener.settling.place(row) if session is None else session.slot.workspace

    # Ending

    async def delete(self, principal: str, key: str) -> None:
        """End the session and remove its files unless shared; the record stays.

        Raises NotFound, and OwnedElsewhere if another gateway has the session or its files.
        """
        owned = (principal, check_session_key(key))
        while (removal := self.keys.find(owned).removal) is not None:
            await asyncio.wait([removal])
        with self.keys.removing(owned):
            if (opening := self.keys.find(owned).opening) is not None:
                await asyncio.wait([opening.task])
            session = self.keys.find(owned).session
            if session is not None:
                held = await self.opener.workspaces.is_held(session.row)
                await self._end(session, "deleted", keep_files=held)
            row = await self._journal.reads.session(*owned)
            if row is not None and not self.keys.find(owned).open:
                await self.keys.check_home(owned)
                # Needed too if the session was already ending for another reason, which kept its files.
                await self.opener.claimed(owned)
                if not await self.opener.workspaces.is_held(row):
                    await self._parts.workspaces.of(folder_of(row)).remove()
            elif row is None and session is None:
                raise NotFound(f"No session {key!r}")
            if row is not None:
                self.opener.variables.forget(principal, row.id)

    def end_all(self, principal: str, cause: str) -> None:
        """End all sessions of a principal in the background; their files and records stay."""
        for owner, opening in self.keys.openings():
            if owner == principal:
                opening.task.cancel()
        # Unrecorded one-shots have no owner in the record, but they have an account.
        for session in self.keys.sessions():
            if session.account.name == principal and not session.ending:
                self.end_later(session, cause, keep_files=True)

    def end_with(self, session: Session, other: Session) -> None:
        """End a session once the session whose workspace it shares is over; delete it if that one was
        deleted. Otherwise the files stay as the other session's end left them.
        """
        owned = (session.row.principal, session.row.key)
        self.sleepers.join(session, other)

        def end(_: object) -> None:
            if session.ending:
                return
            if not other.is_deleted:
                self.end_later(session, "end_of_other", keep_files=True)
                return
            # Begun here, not in the task: a cell that came in between would end with the session.
            session.begin_end("deleted", keep_files=True, keep_kernel=False)
            self._tasks.start(self.delete(*owned), f"delete {owned[1]}", session=owned[1])

        other.over.add_done_callback(guarded(end, "end of a session with another", session=session.row.key))

    def end_later(
        self, session: Session, cause: str, *, keep_files: bool = False, keep_kernel: bool = False
    ) -> None:
        """End a session in the background; its files and kernel end too, unless they are kept."""

        async def work() -> None:
            try:
                await self._end(session, cause, keep_files=keep_files, keep_kernel=keep_kernel)
            except CellgateError as error:
                logger.error(
                    "A session's end could not be recorded: %s",
                    error.message,
                    extra={"session": session.row.key},
                )

        # Begun here, not in the task: a cell that came in between would end with the session.
        session.begin_end(cause, keep_files=keep_files, keep_kernel=keep_kernel)
        self._tasks.start(work(), f"end {session.row.key}", session=session.row.key)

    async def _end(
        self, session: Session, cause: str, *, keep_files: bool = True, keep_kernel: bool = False
    ) -> None:
        try:
            await session.end(cause, keep_files=keep_files, keep_kernel=keep_kernel)
        finally:
            # If the caller is cancelled before the end, the session stays registered until it is over.
            if session.over.done():
                self.opener.forget(session)

    async def _cull(self) -> float:
        """End overdue sessions concurrently; return the seconds until the next run."""
        # Lifetimes end also while all threads wait for a disk.
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_PATIENCE):
                await self.sleepers.look()
        for session in self.keys.sessions():
            most = self.terms.ceilings(session.account.name).lifetime
            if not session.ending and (cause := _overdue(session, most)) is not None:
                self.end_later(session, cause, keep_files=True)
        return self.settings.cull_interval


def _with_disk_of(limits: SessionLimits, other: SessionRow, body: SessionBody) -> SessionLimits:
    """Return the limits with another session's disk. Raises InvalidInput if the body asks for another."""
    disk = SessionLimits.from_wire(other.limits).resources.disk
    asked = None if body.limits is None else body.limits.disk
    if asked is not None and limits.resources.disk != disk:
        raise InvalidInput(f"limits.disk: the workspace of session {other.key!r} has {disk} bytes")
    return replace(limits, resources=replace(limits.resources, disk=disk))


def _overdue(session: Session, most_lifetime: float) -> str | None:
    # An adopted session has the limits of a previous gateway, whose ceilings may have been different.
    record = session.record
    end = due(session.limits, record.started, session.idle_since, most_lifetime, sleeps=record.sleeps)
    if asyncio.get_running_loop().time() <= end.moment:
        return None
    return None if record.age < most_lifetime and record.instead_of_end() else end.cause
