"""All sessions of a gateway: created, branched, found, listed, culled, ended, and recovered after a restart.

Nothing awaits between the last look at a key and its reservation, so concurrent first requests create only
one session.
This module knows principals by name and knows nothing of HTTP; ``session`` is a single conversation, and
``record`` is what is kept of it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

from msgspec import structs

from cellgate.errors import CannotShare, Conflict, Forbidden, NetworkNotAllowed, NotFound, ShuttingDown
from cellgate.execution.checks import check_env, check_session_key
from cellgate.execution.limits import LimitCeilings, SessionLimits, lowered_limits, merge_limits
from cellgate.execution.request import ExecuteRequest, in_language
from cellgate.execution.run import ExecutionRun
from cellgate.fairness.reservation import Reservation
from cellgate.files.workspace import folder_name, folder_of, new_folder
from cellgate.identity.secrets import check_secret_names
from cellgate.processes.request import ProcessRequest
from cellgate.processes.run import ProcessRun
from cellgate.quotas.quotas import Quotas
from cellgate.record.chain import GENESIS
from cellgate.record.events import EventLog, now
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import FIRST_EPOCH, Purge, RecordStore
from cellgate.record.store.memory import MemoryStore
from cellgate.sessions.adoption import Recovery, left_behind, workspace_name
from cellgate.sessions.agreement import check_agreement, names_kernel
from cellgate.sessions.model import AUTO, makes_checkpoints
from cellgate.sessions.ownership import OURS, check_ours
from cellgate.sessions.parts import SharedParts
from cellgate.sessions.replacement import Moved
from cellgate.sessions.resumption import Past, Resumption, resume
from cellgate.sessions.secrets import SessionSecrets
from cellgate.sessions.session import Session
from cellgate.sessions.settings import ManagerSettings
from cellgate.sessions.state import SessionSpec, SessionState
from cellgate.sessions.variables import KeptVariables
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import CellgateError, DeadlinePassed, InvalidInput
from cellgate_kernels.base.resources import HASH_SEED
from cellgate_kernels.base.tasks import Supervisor, guarded, outcome
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.kernel.launcher import KernelLauncher
from cellgate_kernels.kernel.stored import StoredKernel
from cellgate_kernels.specs.catalog import KernelspecCatalog
from cellgate_kernels.specs.languages import parse_language

logger = logging.getLogger(__name__)

Owned = tuple[str, str]

MOST_ALLOWANCES = 1024
"""Different quotas whose ceilings are kept, so that they are not combined anew for each request."""
COPY_SECONDS = 20.0
"""How long a gateway that shuts down waits for copies of files that sessions share."""
PURGE_PATIENCE = 5.0
"""Seconds that a purge request waits for the last bytes to be gone."""
_LIVES = 2
"""Of a session, that a request tries when it ends just then."""


@dataclass(slots=True, eq=False)
class _Opening:
    """A session that is being opened. `made`: the session, before it has a kernel. `reserved`: its room.

    `waiting`: how many requests wait for it; `abandoned`: the last one has left, and the task is cancelled.
    `folder`: its workspace, as soon as that is known and may be another session's too. `disk`: what is
    reserved for that; 0 if it was already.
    `position`: in line for a kernel, as it was told last; `told`: those of the requests that want to know.
    """

    task: asyncio.Task[Session]
    made: asyncio.Future[Session]
    reserved: Reservation
    folder: str | None = None
    disk: int = 0
    waiting: int = 0
    abandoned: bool = False
    position: int | None = None
    told: list[Moved] = field(default_factory=list)

    def moved(self, position: int) -> None:
        """Tell the position to all who want to know."""
        self.position = position
        for tell in self.told:
            tell(position)

    @property
    def in_line(self) -> bool:
        """Whether no kernel has begun to start for it."""
        return not self.made.done() or self.made.result().slot.in_line


@dataclass(frozen=True, slots=True)
class AcceptedExecution:
    """An accepted cell and its session.

    `execution`: the one just queued, or the live one with the same idempotency key; if that key's execution
    is only in the record, its id and first seq.
    """

    session: Session
    execution: ExecutionRun | tuple[str, int]


class SessionManager:
    """Finds sessions by (principal, key). Call `recover` once, then anything else, and `close` at the end."""

    def __init__(
        self, journal: RecordStore, catalog: KernelspecCatalog, parts: SharedParts, settings: ManagerSettings
    ) -> None:
        self.settings = settings
        self._journal = journal
        self._catalog = catalog
        self._parts = parts
        self._workspaces = parts.workspaces
        self._usage = parts.usage
        self._ownership = parts.ownership
        self._allowances = lru_cache(maxsize=MOST_ALLOWANCES)(self._allow)
        self._live: dict[Owned, Session] = {}
        self._tasks = Supervisor()
        self._opening: dict[Owned, _Opening] = {}
        self._now = asyncio.get_running_loop().time
        self._purges: dict[Owned, asyncio.Task[Purge]] = {}
        self._erasing: dict[Owned, tuple[SessionRow, Purge, asyncio.Task[None]]] = {}
        self._endings = Supervisor()
        self._culler: asyncio.Task[None] | None = None
        self._variables = KeptVariables()
        self.closing = False
        """Whether the gateway is shutting down."""
        # The kept folders that several sessions have, or had: others need no look at the record.
        self._shared: set[str] = set()
        # The disk of workspaces whose sessions go on without the one that it was reserved for.
        self._disks: dict[str, Reservation] = {}

    # Life

    async def recover(self, launcher: KernelLauncher, kernels: Mapping[str, StoredKernel]) -> tuple[int, int]:
        """Resume or end the sessions left open, with these stored kernels by id; return how many of each."""
        unfinished = await self._journal.reads.unfinished_sessions()
        rows = [row for row in unfinished if await self._ownership.find(row.principal, row.key) == OURS]
        known = await self._folders()
        reserved: dict[int, Reservation] = {}

        def adopt(spec: SessionSpec) -> Session:
            session = self._make_session(spec)
            reserved[spec.row.id] = session.account.adopt_session(spec.limits.resources)
            return session

        recovery = Recovery(
            self._journal, launcher, kernels, self.settings.session.execution, adopt, self._parts.secrets
        )
        logs = [await self.stored_log(row, claimed=True) for row in rows]
        found = await asyncio.gather(*[recovery.adopt(row, log) for row, log in zip(rows, logs, strict=True)])
        await self._journal.commit()
        for session in found:
            if session is not None:
                # Only now is it known who goes on.
                reserved.pop(session.row.id).release()
                resources = session.limits.resources
                without_disk = self._is_counted(session.row.folder)
                again = session.account.adopt_session(resources, without_disk=without_disk)
                self._add(session, again, 0 if without_disk else None)
        for left_over in reserved.values():
            left_over.release()
        adopted = {session.kernel.id for session in found if session is not None and session.kernel}
        # As long as the record has a session as live, it says whose the kernel's folder is: a gateway that
        # ends here begins again where it was.
        used = {workspace_name(row) for row in rows if row.environment.get("kernel_id") in adopted}
        await self._workspaces.tidy(known, left_behind(rows, adopted), adopted | used)
        for row, log, session in zip(rows, logs, found, strict=True):
            if session is None:
                await recovery.end(row, log)
                self._release((row.principal, row.key))
        await self._journal.commit()
        return len(adopted), len(rows) - len(adopted)

    async def _folders(self) -> set[str]:
        """Return the names of the kept folders of all recorded sessions; notes those that several have."""
        counts = Counter(folder_name(each) for each in await self._journal.reads.session_folders())
        self._shared.update(name for name, count in counts.items() if count > 1)
        return set(counts)

    def _add(self, session: Session, reserved: Reservation, disk: int | None = None) -> None:
        """Register a live session until it ends, and then release what was reserved for it.

        A session may also end itself. `disk`: see `_Opening`; by default its own.
        """
        row = session.row
        self._live[row.principal, row.key] = session
        kept = session.limits.resources.disk if disk is None else disk
        session.over.add_done_callback(lambda _: self._forget(session))
        session.over.add_done_callback(lambda _: self._give_back(row.principal, row.folder, reserved, kept))

    def _make_session(self, spec: SessionSpec) -> Session:
        return Session(spec, self._parts, self.settings.session)

    def start(self) -> None:
        """Start culling sessions that are idle or too old."""
        interval = self.settings.cull_interval
        self._culler = self._tasks.repeat(self._cull, "culler", pause=interval)

    def refuse_work(self) -> None:
        """Refuse new work from now on."""
        self.closing = True

    async def close(self, grace: float, *, keep_kernels: bool = False) -> None:
        """Refuse new work, give running cells `grace` seconds, then end all sessions.

        With `keep_kernels`, recorded sessions do not end: the next gateway resumes them.
        """
        self.refuse_work()
        if self._culler is not None:
            self._culler.cancel()
        quiet = Supervisor()
        for session in self._live.values():
            quiet.start(session.runs.until_quiet(), f"quiet {session.row.key}", session=session.row.key)
        try:
            async with asyncio.timeout(grace):
                await quiet.finished()
        except TimeoutError:
            logger.info("Cells that still run after the grace period are ended now")
        finally:
            await quiet.cancel()
        for opening in tuple(self._opening.values()):
            opening.task.cancel()
        # Files that are not copied by then stay where they are, for the next gateway.
        self._workspaces.patience.end_in(COPY_SECONDS)
        for (principal, _), session in tuple(self._live.items()):
            kept = keep_kernels and principal != "" and session.kernel is not None and session.kernel.stored
            self.end_later(session, "gateway_shutdown", keep_files=True, keep_kernel=kept)
        # Purges, opens and ends that were already in progress, and those just started.
        await self._tasks.finished()
        await self._endings.cancel()

    def kernel_ids(self) -> set[str]:
        """Return the kernels of live sessions."""
        return {session.kernel.id for session in self._live.values() if session.kernel is not None}

    def session_ids(self) -> set[int]:
        """Return the record ids of live sessions."""
        return {session.row.id for session in self._live.values()}

    def counts(self, principal: str | None = None) -> dict[str, int]:
        """Return the number of live sessions in each state, of one principal or of all."""
        counts = {state.value: 0 for state in SessionState}
        for (owner, _), session in self._live.items():
            if principal in {None, owner}:
                counts[session.state] += 1
        counts[SessionState.STARTING] += sum(principal in {None, owner} for owner, _ in self._opening)
        return counts

    def everybodys(self) -> list[Session]:
        """Return the live sessions of all principals."""
        return list(self._live.values())

    def queued(self) -> int:
        """Return the number of executions that wait in their sessions."""
        return sum(session.runs.waiting for session in self._live.values())

    # Creating

    async def get_or_create(
        self,
        principal: str,
        body: SessionBody,
        *,
        until: float | None = None,
        moved: Moved | None = None,
        exact: bool = False,
    ) -> tuple[Session, bool]:
        """Return the live session with the body's key, made if necessary, and whether a kernel was started.

        `until`: when the caller will wait in line for a kernel no longer, by the loop's clock. `moved` is
        told the new session's position in line, at most once a second and only if it has changed. Raises
        Conflict when it exists and is not what is asked for (``check_agreement``, as is `exact`),
        NetworkNotAllowed, InvalidInput, StorageError and the pool's errors.
        """
        key = str(uuid.uuid4()) if body.session is None else check_session_key(body.session)
        owned = (principal, key)
        if self.closing:
            raise ShuttingDown("The gateway is shutting down and takes no new work")
        await self._check_ours(owned)
        limits = self._limits(principal, body)
        if body.network == "allow":
            self._check_network(principal)
        secrets = await self._secrets(principal, body)
        sharer = await self._sharer(owned, body)
        if sharer is not None:
            limits = _with_disk_of(limits, sharer, body)
        while True:
            opening = self._opening.get(owned)
            if (purge := self._purges.get(owned)) is not None:
                await asyncio.wait([purge])
            elif (session := self._live.get(owned)) is not None:
                if not session.ending:
                    session.record.begin_idleness()
                    return check_agreement(session, body, self._catalog, sharer, exact=exact), False
                await asyncio.wait([session.over])  # even if its end fails
                self._forget(session)
            elif opening is not None and opening.abandoned:
                await asyncio.wait([opening.task])
                self._opened(owned, opening)
            else:
                break
        if opening is not None:
            session = await self._outcome(opening, until, moved)
            return check_agreement(session, body, self._catalog, sharer, exact=exact), False
        profile = self._profile(body, limits)
        self._journal.check_writable()
        open_it = partial(self._open, owned, body, profile, limits, secrets, sharer)
        opening = self._begin_opening(
            owned, limits, open_it, folder=None if sharer is None else sharer.folder
        )
        return await self._outcome(opening, until, moved), True

    async def _sharer(self, owned: Owned, body: SessionBody) -> SessionRow | None:
        """Return the session to share a workspace, if any. Raises InvalidInput, NotFound, CannotShare."""
        if body.workspace_of is None:
            return None
        key = check_session_key(body.workspace_of)
        other = (owned[0], key)
        if other == owned:
            raise InvalidInput("workspace_of names the session itself")
        if body.checkpoint == AUTO:
            raise InvalidInput("checkpoint: sessions with one workspace can't be rolled back")
        await self._check_ours(other)
        if (opening := self._opening.get(other)) is not None:
            await asyncio.wait([opening.task])
        if (purge := self._purges.get(other)) is not None:
            await asyncio.wait([purge])
        live = self._live.get(other)
        if live is not None and live.is_deleted:
            raise CannotShare(f"The session {key!r} is being deleted")
        row = await self._journal.reads.session(*other) if live is None else live.row
        if row is None:
            raise NotFound(f"No session {key!r}")
        if not self._parts.pool.shares_workspaces():
            raise CannotShare(
                "Kernels of one user share a container here, in which each has its own files: no two sessions"
                " can have one workspace. A gateway with --container-per session can do that"
            )
        self._shared.add(folder_of(row))
        return row

    async def branch(
        self, principal: str, key: str, branch: str, spec: BranchSpec, *, explored: bool = False
    ) -> Session:
        """Return a new session, with the key `branch`, that goes on with a copy of a session's kernel.

        It belongs to the same principal and has what the other has: limits, variables, secrets, packages, a
        network. `explored`: as for `SessionHolds.held`. Raises NotFound, Conflict when there is a session of
        that key, also an ended one, and what that, `KernelPool.branch` and copying of files do; then it goes
        on as before.
        """
        if self.closing:
            raise ShuttingDown("The gateway is shutting down and takes no new work")
        await self._check_ours((principal, check_session_key(key)))
        parent = self.live(principal, key)
        owned = (principal, check_session_key(branch))
        if owned in self._live or owned in self._opening or owned in self._purges:
            raise _taken(branch)
        branching = partial(self._branch, owned, parent, spec, explored)
        opening = self._begin_opening(owned, parent.limits, branching)
        return await self._outcome(opening, None, None)

    async def room_for_branch(self, patience: float) -> None:
        """Return once there is a place for the kernel of a branch; see `KernelPool.room_for_branch`."""
        await self._parts.pool.room_for_branch(patience)

    async def _branch(
        self, owned: Owned, parent: Session, spec: BranchSpec, explored: bool, made: asyncio.Future[Session]
    ) -> Session:
        """Copy the parent's files and fork its kernel, then record both sessions: in this order.

        No cell of the parent begins before all of it is done, so files and kernel go together. Nothing is
        recorded before there is a whole branch, so one that fails changes nothing. The parent's rows so far
        have their hashes then, because the branch's first event names the hash that covers them all. `made`
        is set at the end: a branch takes no cell before it is recorded.
        """
        check_ours(await self._ownership.claim(*owned), owned[1])
        if await self._journal.reads.session(*owned) is not None:
            raise Conflict(
                f"The session {owned[1]!r} has ended, and its record is kept under this key;"
                " choose another key for the branch"
            )
        async with parent.holds.held(explored=explored):
            session = self._make_session(await self._branch_of(parent, owned[1], explored=explored))
            kernel = await parent.slot.branch(spec, parent.limits.resources.disk)
            try:
                await session.slot.take(kernel, parent.slot)
                while parent.log.head_seq < parent.log.last_seq:
                    await parent.log.chained()
                self._check_admitted(owned[0])
                # Both rows in one turn of the loop: no other row comes between them, and one commit has both.
                assert kernel.branched is not None
                session.begin_as_branch(kernel, parent.record.branched(owned[1], kernel.branched))
            except BaseException:
                await session.slot.end(keep_files=False)
                raise
            made.set_result(session)
            self._add(session, self._opening[owned].reserved)
        return session

    async def _branch_of(self, parent: Session, key: str, *, explored: bool) -> SessionSpec:
        """Return a session like its parent, which goes on counting cells; it has no events yet."""
        row = SessionRow.new(
            await self._journal.begin_session(parent.row.principal, key),
            principal=parent.row.principal,
            key=key,
            kernel=parent.row.kernel,
            at=now(),
            limits=parent.limits.to_wire(),
            metadata=parent.row.metadata,
            folder=new_folder(),
        )
        row = structs.replace(row, parent=parent.row.id, execution_count=parent.row.execution_count)
        log = self._log(row)
        secrets = parent.slot.secrets
        return SessionSpec(
            row,
            parent.limits,
            parent.slot.profile,
            log,
            self._journal,
            secrets=None if secrets is None else secrets.copied(),
            checkpoints=parent.undo.automatic and not explored,
        )

    def _begin_opening(
        self,
        owned: Owned,
        limits: SessionLimits,
        open_it: Callable[[asyncio.Future[Session]], Coroutine[Any, Any, Session]],
        *,
        folder: str | None = None,
    ) -> _Opening:
        """Begin to open a session, whose room is reserved now. `folder`: its workspace, if that is known."""
        if self.closing:
            raise _shutting_down()
        self._check_admitted(owned[0])
        made: asyncio.Future[Session] = asyncio.get_running_loop().create_future()
        key = owned[1]
        without_disk = self._is_counted(folder)
        account = self._usage.account(owned[0])
        reserved = account.reserve_session(limits.resources, without_disk=without_disk)
        task = self._tasks.share(open_it(made), f"open {key}", session=key)
        opening = self._opening[owned] = _Opening(
            task, made, reserved, folder, 0 if without_disk else limits.resources.disk
        )
        task.add_done_callback(lambda _: self._opened(owned, opening))
        return opening

    def _opened(self, owned: Owned, opening: _Opening) -> None:
        if self._opening.get(owned) is opening:
            del self._opening[owned]
        if opening.task.cancelled() or opening.task.exception() is not None:
            self._release(owned)
            disk, opening.disk = opening.disk, 0
            self._give_back(owned[0], opening.folder, opening.reserved, disk)

    async def _outcome(self, opening: _Opening, until: float | None, moved: Moved | None) -> Session:
        """Return the opened session. The last waiter to give up ends the opening."""
        opening.waiting += 1
        if moved is not None:
            opening.told.append(moved)
            if opening.position is not None and opening.in_line:
                moved(opening.position)
        try:
            if until is not None:
                patience = max(0.0, until - self._now())
                await asyncio.wait([opening.task], timeout=patience)
                if not opening.task.done() and opening.in_line:
                    raise DeadlinePassed(patience)
            return await outcome(opening.task, _shutting_down)
        except DeadlinePassed:
            if opening.waiting == 1:
                opening.abandoned = True
                opening.task.cancel()
            raise
        finally:
            opening.waiting -= 1
            if moved is not None:
                opening.told.remove(moved)

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

        `language`: the language of the code, if it differs from the kernel's; a session that has never
        existed is created with a kernel for it. `idempotency`: a key and a hash of the request; a key that
        was used before stands for the execution it was used for. The request's `timeout` counts while a new
        session waits in line for its kernel; when it has passed, DeadlinePassed is raised and nothing is
        recorded. `moved`: as for `get_or_create`. Raises what that and `Session.submit` do, Conflict for a
        key that was used with another request, and InvalidInput for a request that the kernel can't serve.
        """
        arrived = self._now()
        until = None if request.timeout is None else arrived + request.timeout
        for _ in range(_LIVES):
            session = await self._session_for(principal, key, language, until, moved)
            asked = self.in_language(session, request, language)
            if idempotency is not None:
                # In each life anew: another request with this key may have been the first in the next one.
                known = await session.record.known(*idempotency, session.runs.known())
                if known is not None:
                    return AcceptedExecution(session, known)
            if not session.ending:
                break
            # It was culled just as this request arrived: a new session takes its place.
        return AcceptedExecution(session, session.submit(asked, idempotency=idempotency, arrived=arrived))

    async def start_process(
        self, principal: str, key: str, request: ProcessRequest, *, moved: Moved | None = None
    ) -> ProcessRun:
        """Start a program in the principal's session with this key, creating the session if necessary.

        `moved`: as for `get_or_create`. Raises what `get_or_create` and `Session.start_process` do.
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
        session = self._live.get(owned)
        if session is not None and not (self.closing or session.ending or owned in self._purges):
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

    def in_language(self, session: Session, request: ExecuteRequest, language: str | None) -> ExecuteRequest:
        """Return the request as a cell of the session's kernel. Raises InvalidInput if it can't run there."""
        if language is None and not request.env:
            return request
        return in_language(request, language, self._catalog.get_kernel_spec(session.row.kernel).language)

    def _check_network(self, principal: str) -> None:
        """Check that the principal's sessions can have a network. Raises NetworkNotAllowed, InvalidInput."""
        if self._parts.egress is None:
            raise NetworkNotAllowed("This gateway gives no session a network; leave `network` out")
        self._parts.egress.check(principal)

    def reachable(self, principal: str) -> list[str] | None:
        """Return the hosts and ports that the principal's sessions may reach; None without a network."""
        return None if self._parts.egress is None else self._parts.egress.reachable(principal)

    def _may_reach(self, principal: str) -> bool:
        try:
            self._check_network(principal)
        except CellgateError:
            return False
        return True

    def ceilings(self, principal: str) -> LimitCeilings:
        """Return the highest limits that the principal may request."""
        return self._allowances(self._usage.quotas(principal))[0]

    def default_limits(self, principal: str) -> SessionLimits:
        """Return the limits of the principal's sessions that ask for none; they never exceed a ceiling."""
        return self._allowances(self._usage.quotas(principal))[1]

    def _allow(self, quotas: Quotas) -> tuple[LimitCeilings, SessionLimits]:
        ceilings = self.settings.session.ceilings.lowered_by(quotas)
        return ceilings, ceilings.lower(self.settings.limits)[0]

    def _limits(self, principal: str, body: SessionBody, *, lower: bool = False) -> SessionLimits:
        defaults = self.default_limits(principal)
        if body.limits is None:
            return defaults
        merge = lowered_limits if lower else merge_limits
        return merge(defaults, body.limits, self.ceilings(principal))

    def _profile(self, body: SessionBody, limits: SessionLimits) -> KernelProfile:
        name = self._catalog.choose(body.kernel, body.language, self.settings.default_kernel)
        spec = self._catalog.get_kernel_spec(name)
        if body.checkpoint == AUTO and spec.language != "python":
            raise InvalidInput(
                f"checkpoint: kernels of {name!r} can't be rolled back; only those of Python can"
            )
        network = body.network == "allow"
        return KernelProfile(name, limits.resources, check_env(body.env), egress=network)

    async def _secrets(self, principal: str, body: SessionBody) -> SessionSecrets | None:
        """Return the secrets that the body names. Raises InvalidInput, StorageError."""
        names = check_secret_names(body.secrets)
        if not names:
            return None
        if both := [name for name in names if name in (body.env or ())]:
            raise InvalidInput(f"env.{both[0]} is the name of one of the session's secrets too")
        source = self._parts.secrets
        if source is None:
            raise InvalidInput(f"secrets: there is no secret {names[0]!r} of {principal}")
        await source.check_secrets(principal, names)
        return SessionSecrets(source, principal, names)

    async def _open(
        self,
        owned: Owned,
        body: SessionBody,
        profile: KernelProfile,
        limits: SessionLimits,
        secrets: SessionSecrets | None,
        sharer: SessionRow | None,
        made: asyncio.Future[Session],
    ) -> Session:
        principal, key = owned
        check_ours(await self._ownership.claim(principal, key), key)
        former = await self._journal.reads.session(principal, key)
        resumed = None
        if former is not None and sharer is not None and former.folder != sharer.folder:
            raise Conflict(f"Session {key!r} is recorded with another workspace; choose another key")
        if former is not None:
            self._journal.check_writable(former.id)
            resumed = await self._resumed(former, body, profile, limits)
            profile = resumed.profile
            self._reserve_again(owned, former, limits, resumed.limits)
            limits = resumed.limits
        if former is not None and former.kernel != profile.kernelspec:
            if names_kernel(body):
                raise Conflict(
                    f"Session {key!r} is recorded with kernel {former.kernel!r}; choose another key"
                )
            if former.kernel in self._catalog.find_kernel_specs():
                profile = replace(profile, kernelspec=former.kernel)
        folder = new_folder() if sharer is None else sharer.folder
        row = await self._row(owned, body, profile, limits, former, folder)
        log, executions = self._log(row), 0
        if former is not None:
            log = await self.stored_log(former, claimed=True)
            log.reopen()
            last = await self._journal.reads.last_execution(row.id)
            executions = last.number if last is not None else 0
        if secrets is None and former is not None and body.secrets is None:
            secrets = self._former_secrets(former, body)
        automatic = _automatic(body, former)
        spec = SessionSpec(row, limits, profile, log, self._journal, secrets=secrets, checkpoints=automatic)
        if resumed is not None:
            spec = replace(spec, loss=resumed.loss, missing=resumed.loss.missing)
        session = self._make_session(spec)
        made.set_result(session)
        await session.open(executions, moved=self._opening[owned].moved)
        self._add(session, self._opening[owned].reserved, self._opening[owned].disk)
        return session

    def _reserve_again(
        self, owned: Owned, former: SessionRow, asked: SessionLimits, limits: SessionLimits
    ) -> None:
        """Reserve what a resumed session gets: it was `asked` for before its record was read."""
        opening = self._opening[owned]
        account = self._usage.account(owned[0])
        if opening.folder is None:
            without_disk = self._is_counted(former.folder)
            opening.folder = former.folder
        else:
            without_disk = not opening.disk
        if limits.resources != asked.resources or without_disk == bool(opening.disk):
            opening.disk = 0 if without_disk else limits.resources.disk
            opening.reserved = account.replace_session(
                opening.reserved, limits.resources, without_disk=without_disk
            )

    async def _row(
        self,
        owned: Owned,
        body: SessionBody,
        profile: KernelProfile,
        limits: SessionLimits,
        former: SessionRow | None,
        folder: str,
    ) -> SessionRow:
        """Return the row of a session that is opened; of a new one the workspace is in `folder`."""
        row = SessionRow.new(
            await self._journal.begin_session(*owned) if former is None else former.id,
            principal=owned[0],
            key=owned[1],
            kernel=profile.kernelspec,
            at=now(),
            limits=limits.to_wire(),
            metadata=body.metadata,
            folder=folder if former is None else former.folder,
        )
        if former is None:
            return row
        return structs.replace(
            row,
            created_at=former.created_at,
            metadata=row.metadata if body.metadata is not None else former.metadata,
            parent=former.parent,
            branched_from=former.branched_from,
        )

    def _is_counted(self, folder: str | None) -> bool:
        """Return whether the disk of this workspace is reserved already: it counts once.

        For a session that is live or being opened, or since one of them ended before the others.
        """
        if folder is None or folder_name(folder) not in self._shared:
            return False
        having = (
            *(each.row.folder for each in self._live.values()),
            *(each.folder for each in self._opening.values()),
        )
        return folder in having

    def _give_back(self, principal: str, folder: str | None, reserved: Reservation, disk: int) -> None:
        """End a session's reservations; its workspace's disk stays reserved while others have it."""
        reserved.release()
        if folder is None:
            return
        if not self._is_counted(folder):
            if (last := self._disks.pop(folder, None)) is not None:
                last.release()
        elif disk and folder not in self._disks:
            self._disks[folder] = self._usage.account(principal).adopt_disk(disk)

    async def _is_held(self, row: SessionRow) -> bool:
        """Return whether a session's files are another one's too, which has not been deleted."""
        if folder_of(row) not in self._shared:
            return False
        opened = (each.made.result() for each in self._opening.values() if each.made.done())
        for session in (*self._live.values(), *opened):
            if session.row.folder == row.folder and session.row.id != row.id and not session.is_deleted:
                return True
        return await self._journal.reads.holds_folder(row.folder, but=row.id)

    def _former_secrets(self, former: SessionRow, body: SessionBody) -> SessionSecrets | None:
        """Return the secrets of a session's last life, as far as they exist; the values are those of now."""
        names = [name for name in former.environment.get("secrets", ()) if name not in (body.env or ())]
        if not names or self._parts.secrets is None:
            return None
        return SessionSecrets(self._parts.secrets, former.principal, names)

    async def _resumed(
        self, former: SessionRow, body: SessionBody, profile: KernelProfile, limits: SessionLimits
    ) -> Resumption:
        """Return what a recorded session gets in its next life."""
        # The last events of its previous life may still be waiting to be written.
        await self._journal.commit()
        life = await self._journal.reads.last_life(former)
        past = Past(
            former,
            life,
            self._variables.of(former.principal, former.id),
            self._default_seed(former.kernel),
            self._removed_secrets(former),
            self._may_reach(former.principal),
        )
        return resume(past, body, profile, limits, self.ceilings(former.principal))

    def _removed_secrets(self, former: SessionRow) -> frozenset[str]:
        """Return the secrets of a session's last life that do not exist any more."""
        names = former.environment.get("secrets", ())
        source = self._parts.secrets
        return frozenset(names if source is None else source.missing_secrets(former.principal, names))

    def _default_seed(self, kernelspec: str) -> str | None:
        """Return the PYTHONHASHSEED of such a kernel without variables; None without such a kernelspec."""
        if kernelspec not in self._catalog.find_kernel_specs():
            return None
        return str(self._catalog.get_kernel_spec(kernelspec).env.get("PYTHONHASHSEED", HASH_SEED))

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
        if self.closing:
            raise ShuttingDown("The gateway is shutting down and takes no new work")
        if body.workspace_of is not None:
            raise InvalidInput("workspace_of is for sessions that are recorded")
        limits = self._limits(principal, body, lower=lower)
        profile = self._profile(body, limits)
        key = f"one-shot-{uuid.uuid4()}"
        row = SessionRow.new(
            await self._journal.begin_session(principal, key),
            key=key,
            kernel=profile.kernelspec,
            at=now(),
            limits=limits.to_wire(),
            folder=new_folder(),
        )
        store = MemoryStore() if store is None else store
        log = EventLog(store, row.id, row.key, lane=self._parts.lane)
        log.whose = principal
        reserved = self._usage.account(principal).reserve_session(limits.resources)
        try:
            session = self._make_session(SessionSpec(row, limits, profile, log, store, principal))
            patience = None if until is None else max(0.0, until - self._now())
            await session.open(0, patience=patience, moved=moved)
        except BaseException:
            reserved.release()
            raise
        self._add(session, reserved)
        try:
            self._check_admitted(principal)
        except Forbidden:
            self.end_later(session, "one_shot")
            raise
        return session

    # Finding

    async def _check_ours(self, owned: Owned) -> None:
        """Check that no other gateway has the key. Raises NotOwner, StorageError."""
        if owned not in self._live and owned not in self._opening:
            check_ours(await self._ownership.find(*owned), owned[1])

    def _release(self, owned: Owned) -> None:
        """Give the key up, unless it is in use again."""
        if owned not in self._live and owned not in self._opening and owned not in self._purges:
            self._ownership.release(*owned)

    def get(self, principal: str, key: str) -> Session | None:
        """Return the live session with this key, if there is one."""
        return self._live.get((principal, key))

    def live_after(self, principal: str | None, last: int, *, newest: bool = False) -> list[Session]:
        """Return the live sessions of a principal, or for None of all, whose ids are above `last`, by id.

        `newest`: those with an id below it, the highest first. Without those that are not recorded, which
        nobody's key names.
        """
        found = (
            session
            for (owner, _), session in self._live.items()
            if owner and principal in {None, owner} and (session.row.id < last) == newest
        )
        there = (session for session in found if session.row.id != last)
        return sorted(there, key=lambda session: session.row.id, reverse=newest)

    def all_live(self, principal: str) -> list[Session]:
        """Return the principal's live sessions, except those that are ending."""
        return [s for (owner, _), s in self._live.items() if owner == principal and not s.ending]

    def live(self, principal: str, key: str) -> Session:
        """Return the live session. Raises NotFound, even if another principal owns one with this key."""
        session = self.get(principal, check_session_key(key))
        if session is None:
            raise NotFound(f"No live session {key!r}")
        return session

    def workspace(self, row: SessionRow) -> Path:
        """Return the folder with the session's files, which may not exist."""
        session = self.get(row.principal, row.key)
        return session.slot.workspace if session is not None else self._workspaces.of(folder_of(row)).place

    async def stored_log(self, row: SessionRow, *, claimed: bool = False) -> EventLog:
        """Return the closed log of a session that is not live; `claimed`: to be reopened. Raises NotFound."""
        epoch = await self._journal.claim(row.id) if claimed else FIRST_EPOCH
        last = await self._journal.reads.last_event(row.id)
        if last is None:
            raise NotFound(f"No session {row.key!r}")
        log = self._log(row, *last)
        log.epoch = epoch
        log.close()
        return log

    def _log(self, row: SessionRow, last_seq: int = 0, head: bytes = GENESIS) -> EventLog:
        """Return a session's log; what it gets counts towards the principal's record, if there are quotas."""
        log = EventLog(self._journal, row.id, row.key, last_seq=last_seq, head=head, lane=self._parts.lane)
        log.whose = row.principal
        if self._usage.measures_records:
            log.stored = partial(self._usage.recorded, row.principal)
        return log

    # Ending

    async def delete(self, principal: str, key: str) -> None:
        """End the session and remove its files unless shared; the record stays. Raises NotFound."""
        owned = (principal, check_session_key(key))
        if (opening := self._opening.get(owned)) is not None:
            await asyncio.wait([opening.task])
        session = self._live.get(owned)
        if session is not None:
            await self._end(session, "deleted", keep_files=await self._is_held(session.row))
        row = await self._journal.reads.session(*owned)
        if row is not None and owned not in self._live and owned not in self._opening:
            # Also when the session was already ending for another reason, which kept its files.
            try:
                check_ours(await self._ownership.claim(*owned), key)
                if not await self._is_held(row):
                    await self._workspaces.of(folder_of(row)).remove()
            finally:
                self._release(owned)
        elif row is None and session is None:
            raise NotFound(f"No session {key!r}")
        if row is not None:
            self._variables.forget(principal, row.id)

    async def purge(self, principal: str, key: str, *, by: str) -> bool:
        """End the session and remove its files and its record, except for a tombstone. Raises NotFound.

        `by`: who asked for it, for the audit trail.
        Returns whether every byte is gone. If readers of the record still use some of them, or files can't be
        removed at once, the rest is removed in the background, and `purging` returns the session until then.
        """
        owned = (principal, check_session_key(key))
        if owned in self._erasing and owned not in self._live and owned not in self._opening:
            purged = self._erasing[owned][1]
        else:
            purged = await self._purge(owned, by=by, reason="requested")
        if (found := self._erasing.get(owned)) is not None:
            await asyncio.wait([found[2]], timeout=PURGE_PATIENCE)
        if (found := self._erasing.get(owned)) is not None and found[1] is purged:
            return False
        return purged.erased.exception() is None

    def purging(self, principal: str, key: str) -> SessionRow | None:
        """Return the row of a purged session whose bytes are not all gone yet, as it was before the purge."""
        found = self._erasing.get((principal, key))
        return None if found is None else found[0]

    async def purge_ended(self, row: SessionRow, reason: str) -> bool:
        """Remove an ended session's files and record, initiated by the gateway; False: it is live again.

        Returns when its rows are removed; their bytes are erased later, together with those of others.
        """
        owned = (row.principal, row.key)
        if self.closing or owned in self._live or owned in self._opening:
            return False
        purged = await self._purge(owned, by="gateway", reason=reason)
        await asyncio.wait([purged.removed])
        return purged.removed.exception() is None

    async def _purge(self, owned: Owned, *, by: str, reason: str) -> Purge:
        """Start a purge, which keeps others from opening the session; concurrent purges share this one."""
        if (task := self._purges.get(owned)) is None:
            task = self._tasks.share(self._do_purge(owned, by, reason), f"purge {owned[1]}", session=owned[1])
            self._purges[owned] = task
            task.add_done_callback(lambda _: self._purged(owned))
        return await outcome(task, _shutting_down)

    def _purged(self, owned: Owned) -> None:
        del self._purges[owned]
        self._release(owned)

    async def _do_purge(self, owned: Owned, by: str, reason: str) -> Purge:
        await self.delete(*owned)
        row = await self._journal.reads.session(*owned)
        if row is None:
            raise NotFound(f"No session {owned[1]!r}")
        size = await self._journal.reads.record_size(row.id) if self._usage.measures_records else 0
        purged = await self._journal.purge(row.id, by=by, reason=reason)
        if purged is None:
            raise NotFound(f"No session {owned[1]!r}")
        self._usage.recorded(row.principal, -size)
        ids = {"principal": owned[0], "session": owned[1], "cause": reason}
        logger.info("A session's record is purged", extra=ids)
        ending = self._endings.start(self._end_purge(owned, row, purged), f"end of purge {owned[1]}")
        self._erasing[owned] = row, purged, ending
        return purged

    async def _end_purge(self, owned: Owned, row: SessionRow, purged: Purge) -> None:
        """Return when the last byte of the record and of the files is gone."""
        await asyncio.wait([purged.erased])
        await self._workspaces.gone(folder_of(row), str(row.environment.get("kernel_id")))
        # The key may have been reused and purged again.
        if (found := self._erasing.get(owned)) is not None and found[1] is purged:
            del self._erasing[owned]

    def end_all(self, principal: str, cause: str) -> None:
        """End all sessions of a principal in the background; their files and records stay."""
        for (owner, _), opening in tuple(self._opening.items()):
            if owner == principal:
                opening.task.cancel()
        # Unrecorded one-shots have no owner in the record, but somebody's account.
        for session in tuple(self._live.values()):
            if session.account.name == principal and not session.ending:
                self.end_later(session, cause, keep_files=True)

    def _check_admitted(self, principal: str) -> None:
        """Check that a principal was not shut out while a request waited. Raises Forbidden."""
        if not self._parts.admits(principal):
            raise Forbidden("This user has been shut out")

    def end_with(self, session: Session, other: Session) -> None:
        """End a session when another one is over, whose workspace it has; delete it if that one was deleted.
        Otherwise the files stay as that one's end left them.
        """
        owned = (session.row.principal, session.row.key)

        def end(_: object) -> None:
            if session.ending:
                return
            if not other.is_deleted:
                self.end_later(session, "end_of_other", keep_files=True)
                return
            # Begun here, not in the task: a cell that came in between would be ended with the session.
            session.begin_end("deleted", keep_files=True, keep_kernel=False)
            self._tasks.start(self.delete(*owned), f"delete {owned[1]}", session=owned[1])

        other.over.add_done_callback(guarded(end, "end of a session with another", session=session.row.key))

    def end_later(
        self, session: Session, cause: str, *, keep_files: bool = False, keep_kernel: bool = False
    ) -> None:
        """End a session in the background, with its files and its kernel unless these are kept."""

        async def work() -> None:
            try:
                await self._end(session, cause, keep_files=keep_files, keep_kernel=keep_kernel)
            except CellgateError as error:
                logger.error(
                    "A session's end could not be recorded: %s",
                    error.message,
                    extra={"session": session.row.key},
                )

        # Begun here, not in the task: a cell that came in between would be ended with the session.
        session.begin_end(cause, keep_files=keep_files, keep_kernel=keep_kernel)
        self._tasks.start(work(), f"end {session.row.key}", session=session.row.key)

    async def _end(
        self, session: Session, cause: str, *, keep_files: bool = True, keep_kernel: bool = False
    ) -> None:
        try:
            await session.end(cause, keep_files=keep_files, keep_kernel=keep_kernel)
        finally:
            # A cancelled caller leaves before the end; the session stays registered until it is over.
            if session.over.done():
                self._forget(session)

    def _forget(self, session: Session) -> None:
        owned = (session.row.principal, session.row.key)
        if self._live.get(owned) is session:
            del self._live[owned]
            self._release(owned)
            if session.row.principal and session.record.cause != "deleted":
                self._variables.keep(session.row.principal, session.row.id, session.slot.variables)

    async def _cull(self) -> float:
        """End overdue sessions concurrently; returns the seconds until the next run."""
        for session in tuple(self._live.values()):
            most = self.ceilings(session.account.name).lifetime
            if not session.ending and (cause := _overdue(session, most)) is not None:
                self.end_later(session, cause, keep_files=True)
        return self.settings.cull_interval


def _automatic(body: SessionBody, former: SessionRow | None) -> bool:
    """Return whether a checkpoint is made after each of the session's cells."""
    if body.checkpoint is None and former is not None:
        return makes_checkpoints(former)
    return body.checkpoint == AUTO


def _with_disk_of(limits: SessionLimits, other: SessionRow, body: SessionBody) -> SessionLimits:
    """Return the limits with another session's disk. Raises InvalidInput if the body asks for another."""
    disk = SessionLimits.from_wire(other.limits).resources.disk
    asked = None if body.limits is None else body.limits.disk
    if asked is not None and limits.resources.disk != disk:
        raise InvalidInput(f"limits.disk: the workspace of session {other.key!r} has {disk} bytes")
    return replace(limits, resources=replace(limits.resources, disk=disk))


def _taken(key: str) -> Conflict:
    return Conflict(f"There is a session {key!r} already; choose another key for the branch")


def _shutting_down() -> ShuttingDown:
    return ShuttingDown("The gateway is shutting down")


def _overdue(session: Session, most_lifetime: float) -> str | None:
    moment = asyncio.get_running_loop().time()
    # An adopted session has the limits of a previous gateway, whose ceilings may have been different.
    if moment - session.record.started > min(session.limits.lifetime, most_lifetime):
        return "lifetime"
    idle_since = session.idle_since
    if idle_since is not None and moment - idle_since > session.limits.idle_timeout:
        return "idle_timeout"
    return None
