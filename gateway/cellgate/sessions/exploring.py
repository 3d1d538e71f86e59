"""Explorations: alternatives to a session's next cell, each run in a branch of the session, side by side.

The session rests while it is explored: new cells wait. As many alternatives run at once as places and quotas
allow; the others follow in turn, each in a branch of the same moment. A branch is an ordinary session with
its own record, which stays. The branch ends with its cell unless it is to be kept.

An exploration is a task of its own: it goes on when its client leaves, unless the client asked for a stop.
This module knows the registry of sessions; it knows nothing of HTTP, and reads no results.
"""

from __future__ import annotations

import asyncio
import hashlib
import uuid
from collections import deque
from dataclasses import dataclass
from enum import StrEnum

from cellgate.errors import Conflict, PrincipalQuotaExceeded, ShuttingDown
from cellgate.execution.request import ExecuteRequest
from cellgate.execution.run import ExecutionRun
from cellgate.record.rows import SessionRow
from cellgate.record.store.interface import RecordStore
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.session import Session
from cellgate.sessions.state import SessionState
from cellgate_kernels.base.branching import BranchSpec
from cellgate_kernels.base.errors import CellgateError, GatewayFault, PoolExhausted
from cellgate_kernels.base.tasks import Supervisor, outcome
from cellgate_kernels.protocol.execution import Status

MOST_KEY = 128
"""Characters of a session's key."""
_PATIENCE = 30.0
"""Seconds that an alternative waits for a place while none of the others holds one."""
_MOST_DIGITS = 10
"""Digits of the part of a branch's key that all alternatives of one exploration share."""

EXPLORED = "explored"
"""The cause of the end of a branch whose cell has ended."""


class Keep(StrEnum):
    """Which branches stay. `FIRST_OK`: the session goes on as the first one, in order, that ends well."""

    NONE = "none"
    FIRST_OK = "first_ok"
    ALL = "all"


class Fate(StrEnum):
    """The fate of an alternative's branch.

    `CHOSEN`: the session continues as this branch. `KEPT`: it stays. `ENDED`: its record stays. `REFUSED`: it
    could not be made, or its cell was not accepted. `SKIPPED`: the exploration was over or stopped before.
    """

    CHOSEN = "chosen"
    KEPT = "kept"
    ENDED = "ended"
    REFUSED = "refused"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Plan:
    """The request for an exploration: checked cells and, in the same order, the keys of their branches.

    `anyway`: branch in spite of obstacles. `idempotency`: a key and a hash of the request; a repeated key
    names the exploration of its first use.
    """

    cells: tuple[ExecuteRequest, ...]
    branches: tuple[str, ...]
    keep: Keep = Keep.NONE
    anyway: bool = False
    idempotency: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Explored:
    """The result of one alternative. `branch`, `execution`: where it is; None if the cell did not run.

    `refusal`: why the cell did not run, or why its end could not be recorded.
    """

    fate: Fate
    branch: str | None = None
    execution: str | None = None
    refusal: CellgateError | None = None


def branch_keys(principal: str, session: str, count: int, idempotency_key: str | None) -> tuple[str, ...]:
    """Return the keys of an exploration's branches: the session's with a suffix, equal for equal requests."""
    if idempotency_key is None:
        common = uuid.uuid4().hex[:_MOST_DIGITS]
    else:
        asked = f"{principal}\0{session}\0{idempotency_key}"
        common = hashlib.sha256(asked.encode()).hexdigest()[:_MOST_DIGITS]
    suffixes = [f"-{common}-{number}" for number in range(1, count + 1)]
    return tuple(session[: MOST_KEY - len(suffix)] + suffix for suffix in suffixes)


@dataclass(slots=True, eq=False)
class _Alternative:
    """A cell and, once there is one, its branch.

    `refusal`: an error outside the cell itself. `chosen`: the session continues as this branch. `kept`: the
    branch outlives the exploration.
    """

    key: str
    request: ExecuteRequest
    session: Session | None = None
    run: ExecutionRun | None = None
    refusal: CellgateError | None = None
    chosen: bool = False
    kept: bool = False

    @property
    def stays(self) -> bool:
        """Whether the alternative has a branch that is not about to end."""
        return self.session is not None and not self.session.ending

    def explored(self) -> Explored:
        """Return the outcome of the alternative, once it is settled."""
        if self.run is None:
            return Explored(Fate.SKIPPED if self.refusal is None else Fate.REFUSED, refusal=self.refusal)
        fate = Fate.CHOSEN if self.chosen else Fate.KEPT if self.stays else Fate.ENDED
        return Explored(fate, self.key, self.run.id, self.refusal)

    @property
    def ended_well(self) -> bool:
        """Whether the cell has ended `ok` in a branch that is still there."""
        if self.run is None or not self.stays or self.refusal is not None:
            return False
        return self.run.end.done.done() and self.run.machine.outcome().status is Status.OK


class SessionExploration:
    """One exploration. Made by `Explorer.begin`; `ended` waits for it."""

    def __init__(self, manager: SessionRegistry, parent: Session, plan: Plan, tasks: Supervisor) -> None:
        self.plan = plan
        self._manager = manager
        self._parent = parent
        self._alternatives = [
            _Alternative(key, cell) for key, cell in zip(plan.branches, plan.cells, strict=True)
        ]
        self._waiting = deque(self._alternatives)
        self._running: dict[asyncio.Task[None], _Alternative] = {}
        self._begun = False
        self._stopped = False
        self._tasks = tasks
        self._now = asyncio.get_running_loop().time
        self.task = tasks.share(self._run(), f"exploration of {parent.row.key}", session=parent.row.key)

    async def ended(self) -> list[Explored]:
        """Wait for the outcome of each alternative, in the order given.

        Raises the errors of `SessionRegistry.branch` and `Session.submit` if not even one cell was accepted.
        """
        return await outcome(self.task, lambda: ShuttingDown("The gateway is shutting down"))

    def stop(self, cause: str) -> None:
        """Interrupt the branches whose cells run, with this cause, and begin no more."""
        self._stopped = True
        self._waiting.clear()
        for each in self._running.values():
            self._end(each, cause)

    async def _run(self) -> list[Explored]:
        with self._parent.holds.explored(self.stop):
            try:
                await self._parent.rollbacks.keep()
                await self._begin_more()
                while self._running:
                    await self._one_ended()
                    self._leave_out_the_needless()
                    await self._begin_more()
                await self._choose()
            finally:
                await self._end_rest()
        return [each.explored() for each in self._alternatives]

    # Choosing

    @property
    def _best(self) -> _Alternative | None:
        """Return the first alternative, in the order given, that has ended well."""
        return next((each for each in self._alternatives if each.ended_well), None)

    def _leave_out_the_needless(self) -> None:
        """End the alternatives after one that has ended well: they can no longer be the first."""
        if self.plan.keep is not Keep.FIRST_OK or (best := self._best) is None:
            return
        self._waiting.clear()
        for each in self._alternatives[self._alternatives.index(best) + 1 :]:
            self._end(each, EXPLORED)

    async def _choose(self) -> None:
        """Let the session continue as the best branch; if that fails, the branch stays, with the reason."""
        best = self._best
        if self.plan.keep is not Keep.FIRST_OK or self._stopped or best is None:
            return
        assert best.session is not None
        assert best.run is not None
        try:
            await self._parent.rollbacks.take_over(best.session.rollbacks, best.run, anyway=self.plan.anyway)
        except CellgateError as refusal:
            best.refusal = refusal
            best.kept = True
        else:
            best.chosen = True
            self._end(best, Fate.CHOSEN)

    # Beginning

    async def _begin_more(self) -> None:
        """Begin as many alternatives as fit. If one is refused while none runs, all later ones are too."""
        while self._waiting and self._has_turn:
            each = self._waiting.popleft()
            try:
                await self._begin(each)
            except CellgateError as refusal:
                if self._running and self._frees(refusal) and not self._stopped:
                    self._waiting.appendleft(each)
                    return
                if not self._begun:
                    raise
                for refused in (each, *self._waiting):
                    refused.refusal = refusal
                self._waiting.clear()

    @property
    def _has_turn(self) -> bool:
        """Whether one more cell may run: above the quota, a cell would only wait while its timeout passes."""
        most = self._parent.account.quotas.running
        return most is None or len(self._running) < max(1, most)

    def _frees(self, refusal: CellgateError) -> bool:
        """Return whether there may be room for another branch once a running alternative has ended."""
        frees = self.plan.keep is not Keep.ALL
        return frees and isinstance(refusal, (PoolExhausted, PrincipalQuotaExceeded))

    async def _begin(self, each: _Alternative) -> None:
        each.session = session = await self._branch(each)
        if self._stopped:
            self._end(each, EXPLORED)
            return
        session.replacement.transient = self.plan.keep is not Keep.ALL
        try:
            each.run = session.submit(each.request, idempotency=self.plan.idempotency)
        except CellgateError:
            self._end(each, EXPLORED)
            raise
        self._begun = True
        following = self._tasks.start(self._follow(each, session, each.run), f"alternative {each.key}")
        self._running[following] = each

    async def _branch(self, each: _Alternative) -> Session:
        """Make the alternative's branch. Waits for a place if branches that just ended may free one."""
        row = self._parent.row
        spec = BranchSpec(anyway=self.plan.anyway)
        until = self._now() + _PATIENCE
        while True:
            try:
                return await self._manager.branch(row.principal, row.key, each.key, spec, explored=True)
            except PoolExhausted as refusal:
                patience = until - self._now()
                if self._running or not self._begun or not self._frees(refusal) or patience <= 0:
                    raise
                await self._manager.room_for_branch(patience)

    # Ending

    async def _follow(self, each: _Alternative, session: Session, run: ExecutionRun) -> None:
        """Return when the alternative's cell has ended and, unless it may stay, its branch too."""
        try:
            await run.end.wait()
        except CellgateError as error:
            each.refusal = error
        if self.plan.keep is Keep.NONE or (self.plan.keep is Keep.FIRST_OK and not each.ended_well):
            self._end(each, EXPLORED)
        if session.ending:
            await asyncio.wait([session.over])

    async def _one_ended(self) -> None:
        done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
        for following in done:
            each = self._running.pop(following)
            if following.cancelled() or following.exception() is not None:
                each.refusal = GatewayFault()
                self._end(each, GatewayFault.reason)

    def _end(self, each: _Alternative, cause: str) -> None:
        if each.session is not None and each.stays:
            self._manager.end_later(each.session, cause)

    async def _end_rest(self) -> None:
        """End all branches that are not to stay, and wait until they are gone: then their places are free."""
        if self.plan.keep is not Keep.ALL:
            for each in self._alternatives:
                if not each.kept:
                    self._end(each, EXPLORED)
        sessions = [each.session for each in self._alternatives if each.session is not None]
        if ending := [session.over for session in sessions if session.ending]:
            await asyncio.wait(ending)


class Explorer:
    """Explores sessions. `close` it after the manager of sessions."""

    def __init__(self, manager: SessionRegistry, journal: RecordStore) -> None:
        self._manager = manager
        self._journal = journal
        self._tasks = Supervisor()
        self._named: dict[tuple[str, str, str], SessionExploration] = {}

    async def close(self) -> None:
        """Return when all explorations have ended; each ends with its session."""
        await self._tasks.finished()

    async def begin(self, principal: str, session: str, plan: Plan) -> SessionExploration | list[Explored]:
        """Begin to explore a live session; for a repeated idempotency key, return the first one's results.

        Raises NotFound, and Conflict for a key that was used with another request.
        """
        if plan.idempotency is None:
            return self._begin(principal, session, plan)
        key, request_hash = plan.idempotency
        named = (principal, session, key)
        known = None if named in self._named else await self._recorded(principal, plan)
        if known is not None:
            return known
        going = self._named.get(named)
        if going is not None:
            _check_same(going.plan.idempotency, request_hash)
            return going
        # If it began and ended just now, the keys of its branches are taken: a conflict.
        going = self._named[named] = self._begin(principal, session, plan)
        going.task.add_done_callback(lambda _: self._named.pop(named, None))
        return going

    def _begin(self, principal: str, session: str, plan: Plan) -> SessionExploration:
        return SessionExploration(self._manager, self._manager.live(principal, session), plan, self._tasks)

    async def _recorded(self, principal: str, plan: Plan) -> list[Explored] | None:
        """Return the recorded exploration with this idempotency key; None if there is none."""
        assert plan.idempotency is not None
        key, request_hash = plan.idempotency
        await self._journal.commit()
        rows = [await self._journal.reads.session(principal, branch) for branch in plan.branches]
        if not any(rows):
            return None
        found = []
        for branch, row in zip(plan.branches, rows, strict=True):
            cell = None if row is None else await self._journal.execution_by_key(row.id, key)
            if row is None or cell is None:
                found.append(Explored(Fate.SKIPPED))
                continue
            _check_same((key, cell.request_hash or ""), request_hash)
            found.append(Explored(_fate_of(row), branch, cell.id))
        return found


def _check_same(known: tuple[str, str] | None, request_hash: str) -> None:
    if known is None or known[1] != request_hash:
        raise Conflict("This Idempotency-Key was used with another request; choose a new one")


def _fate_of(row: SessionRow) -> Fate:
    if row.state != SessionState.ENDED:
        return Fate.KEPT
    return Fate.CHOSEN if row.cause == Fate.CHOSEN else Fate.ENDED
