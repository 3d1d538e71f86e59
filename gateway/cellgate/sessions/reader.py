"""Reading sessions, live or ended: models, events, executions, results, notebooks.

A read-only view over ``registry`` (live sessions) and the journal (recorded ones), for handlers that only
read. A Jupyter client learns of a cell's end from the kernel, so reading the session waits until that end is
recorded. Slow decoding and rendering runs in the threads of `texts`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, aclosing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Concatenate, ParamSpec, TypeVar

from msgspec import UNSET, structs

from cellgate.errors import NotFound
from cellgate.execution.checks import check_session_key
from cellgate.execution.results import ResultBuilder
from cellgate.fairness.turns import Turns
from cellgate.identity.principal import EVERYWHERE, Reach
from cellgate.record.events import EventLog
from cellgate.record.export.session_export import Exports, Moment
from cellgate.record.rows import ExecutionRow, SessionRow
from cellgate.record.store.interface import RecordStore
from cellgate.sessions.cell_search import CellSearch, SessionSearch
from cellgate.sessions.meter import KernelMeter
from cellgate.sessions.model import TITLE, session_model
from cellgate.sessions.registry import SessionRegistry
from cellgate.sessions.session import Session
from cellgate.sessions.state import SessionState
from cellgate.wire.answers import ExecutionModel, SessionModel, SessionTree, TreeNode
from cellgate.wire.queries import MOST_COUNTED, ExecutionsQuery, SessionsQuery
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.codec.decoding import json_decoder
from cellgate_kernels.codec.encoding import encode, encode_in_steps
from cellgate_kernels.codec.structure import is_heavy

P = ParamSpec("P")
T = TypeVar("T")

PURGING = "purging"
"""The state of a session that can no longer be used but whose bytes are not all gone yet."""

HEAVY_AT_ONCE = 2
HEAVY_WAITING = 512
HEAVY_PATIENCE = 300.0
HEAVY_BYTES = 1024 * 1024
"""Most bytes of events of an execution that is not heavy."""
LIVE = "live"
"""A filter for all states of sessions that have not ended."""
SESSIONS_AT_ONCE = 100
MOST_LOOKED_AT = 10_000
"""Most sessions that one page of a search looks at."""
MOST_TITLE = 1000
"""Most characters of a title that a search looks at."""
MOST_BRANCHES = 1000
"""Most branches that a tree names."""
MOST_METADATA = 1024 * 1024
"""Most bytes of metadata in a page of sessions, which is encoded as JSON in one step."""

INSIDE = ":"
"""Stands between a key and a number, of a page that ends inside of a session. No key has it."""

_NUMBER = re.compile(r"[1-9][0-9]{0,15}")
_decode = json_decoder(dict[str, Any]).decode


@dataclass(frozen=True, slots=True)
class PageEnd:
    """The place where a page of sessions ends: behind a session, or behind an execution inside of it."""

    row: SessionRow
    execution: int | None = None

    def written(self, *, everybodys: bool) -> str:
        """Return it as a client sends it to ask for the next page. `everybodys`: of all owners' sessions."""
        key = f"{self.row.principal}/{self.row.key}" if everybodys else self.row.key
        return key if self.execution is None else f"{key}{INSIDE}{self.execution}"


class Archive:
    """Everything that a principal may read. Methods raise NotFound for sessions of others."""

    def __init__(
        self,
        journal: RecordStore,
        manager: SessionRegistry,
        exports: Exports,
        texts: Lane,
        meter: KernelMeter | None = None,
    ) -> None:
        self.exports = exports
        self.meter = meter
        self._texts = texts
        refusal = "Too many large results are being read; try again later"
        self._heavy = Turns(HEAVY_AT_ONCE, HEAVY_WAITING, HEAVY_PATIENCE, refusal)
        self._journal = journal
        self._manager = manager

    @property
    def _shares(self) -> bool:
        """Whether other gateways may have sessions of the record open."""
        return self._manager.keys.ownership.shared

    async def _live(self, principal: str, key: str) -> Session | None:
        """Return the session if it is live, once every end that its kernel has reported is recorded."""
        session = self._manager.get(principal, check_session_key(key))
        if session is not None:
            await session.recorded()
        return session

    async def row(self, principal: str, key: str) -> SessionRow:
        """Return the session's row, live or ended."""
        session = await self._live(principal, key)
        row = session.row if session is not None else await self._journal.reads.session(principal, key)
        if row is None:
            raise NotFound(f"No session {key!r}")
        return row

    async def log(self, principal: str, key: str) -> EventLog:
        """Return the event log; it is closed if the session has ended."""
        session = await self._live(principal, key)
        if session is not None:
            return session.log
        return await self._manager.opener.stored_log(await self.row(principal, key))

    async def model(self, principal: str, key: str, *, usage: bool = False) -> SessionModel:
        """Return the session model; with `usage`, its kernel's usage and the number of executions too."""
        model = await self._model(principal, key)
        if not usage:
            return model
        row = self._manager.purger.purging(principal, key) or await self.row(principal, key)
        return (await self._with_usage([model], [row]))[0]

    async def _model(self, principal: str, key: str) -> SessionModel:
        session = await self._live(principal, key)
        if session is not None:
            return session.to_wire()
        row = self._manager.purger.purging(principal, key)
        if row is not None:
            return session_model(structs.replace(row, state=PURGING))
        return self._ended(await self.row(principal, key))

    def _ended(self, row: SessionRow) -> SessionModel:
        failure = self._journal.failure_of(row.id)
        return session_model(row, problem=None if failure is None else failure.message)

    async def tree(self, principal: str, key: str, reach: Reach) -> SessionTree:
        """Return the sessions that this one continues, and its branches, without sessions out of reach."""
        row = await self.row(principal, key)
        await self._journal.commit()
        live = self._manager.get(principal, key)
        lineage = await self._journal.reads.lineage(row, reach.covers)
        below = await self._journal.reads.descendants(row.id, MOST_BRANCHES + 1)
        shown = [each for each in below[:MOST_BRANCHES] if reach.covers(each.key)]
        return SessionTree(
            session=row.key,
            ancestors=[self._node(each.row) for each in lineage.ancestors],
            ancestor_left_out=UNSET if lineage.absence is None else lineage.absence.value,
            branches=[self._node(each) for each in shown],
            complete=len(shown) == len(below),
            checkpoints=[] if live is None else live.undo.models(),
        )

    def _node(self, row: SessionRow) -> TreeNode:
        session = self._manager.get(row.principal, row.key)
        return TreeNode(
            session=row.key,
            state=row.state if session is None else session.state,
            created_at=row.created_at,
            branched_from=UNSET if row.branched_from is None else row.branched_from,
        )

    async def models(
        self,
        principal: str | None,
        reach: Reach,
        wanted: SessionsQuery,
        is_gone: Callable[[], bool] = lambda: False,
    ) -> tuple[list[SessionModel], str | None]:
        """Return a page of session models in order of creation, and `after` for the next page.

        If `principal` is None, sessions of all principals. A page has fewer than `limit` models if their
        metadata is large, or if a search looked at very many, or read much. A search of cells ends when its
        client `is_gone`. Raises InvalidInput, also for a search of cells without a text.
        """
        if wanted.cells and not wanted.search:
            raise InvalidInput("cells: needs a text to search for (search=TEXT)")
        await self._journal.commit()
        async with AsyncExitStack() as held:
            cells = None
            if wanted.cells:
                search = CellSearch(self._journal.reads, self._texts, wanted.search or "", is_gone)
                turn = partial(self._heavy.turn, principal or "")
                cells = await held.enter_async_context(SessionSearch(search, turn))
            rows, more, unfinished = await self._page(principal, reach, wanted, cells)
        if wanted.state is None:
            unfinished = await self._unfinished_elsewhere(rows)
        models = [self._shown(row, unfinished.get(row.id, 0)) for row in rows]
        if wanted.usage:
            models = await self._with_usage(models, rows)
        return models, None if more is None else more.written(everybodys=principal is None)

    async def _page(
        self, principal: str | None, reach: Reach, wanted: SessionsQuery, cells: SessionSearch | None
    ) -> tuple[list[SessionRow], PageEnd | None, dict[int, int]]:
        """Return the rows of a page, and the place after which the next page starts; None on the last page.

        If a state is wanted, also `_unfinished_elsewhere` of the rows, which decides that.
        """
        end = await self._after(principal, reach, wanted)
        found: list[SessionRow] = []
        unfinished: dict[int, int] = {}
        size = looked_at = 0
        while True:
            last = (MOST_COUNTED if wanted.newest else 0) if end is None else end.row.id
            rows = await self._rows(principal, reach, wanted, last)
            begun = [] if end is None or end.execution is None else [end.row]
            if wanted.state is not None:
                unfinished |= await self._unfinished_elsewhere([*begun, *rows])
            for row in [*begun, *rows]:
                if cells is not None and cells.is_over:
                    return found, end, unfinished
                state = self._state_of(row, unfinished.get(row.id, 0))
                begin = 0 if end is None else end.execution or 0
                everybodys = principal is None
                fits, end = await self._fits(row, state, wanted, cells, begin, everybodys=everybodys)
                if end.execution is not None:
                    return found, end, unfinished
                if fits and (len(found) == wanted.limit or size > MOST_METADATA):
                    return found, PageEnd(found[-1]), unfinished
                if fits:
                    found.append(row)
                    size += len(encode(row.metadata))
            looked_at += len(rows)
            if len(rows) < SESSIONS_AT_ONCE:
                return found, None, unfinished
            if looked_at >= MOST_LOOKED_AT:
                return found, end, unfinished

    async def _fits(
        self,
        row: SessionRow,
        state: str,
        wanted: SessionsQuery,
        cells: SessionSearch | None,
        begin: int,
        *,
        everybodys: bool,
    ) -> tuple[bool, PageEnd]:
        """Return whether a session is one that was asked for, and how far it was looked at to say so.

        `begin`: the number of its execution after which its cells are looked at.
        """
        if not _is_in(state, wanted):
            return False, PageEnd(row)
        if self._is_named(row, wanted, everybodys=everybodys):
            return True, PageEnd(row)
        found, behind = (False, None) if cells is None else await cells.look(row.id, begin)
        return found, PageEnd(row, behind)

    async def _rows(
        self, principal: str | None, reach: Reach, wanted: SessionsQuery, last: int
    ) -> list[SessionRow]:
        """Return up to `SESSIONS_AT_ONCE` rows that may match; without a search, most of them do.

        Sessions that have not ended come from memory: the record, which has all ended ones, is not searched.
        In a cluster it is, for those of the other gateways.
        """
        is_live = wanted.state not in {None, SessionState.ENDED}
        if is_live and not self._shares:
            live = (each.row for each in self._manager.live_after(principal, last, newest=wanted.newest))
            return [row for row in live if reach.covers(row.key)][:SESSIONS_AT_ONCE]
        return await self._journal.reads.sessions(
            principal,
            states=[state for state in SessionState if state != SessionState.ENDED] if is_live else None,
            limit=SESSIONS_AT_ONCE,
            after=last,
            prefix=reach.prefix,
            exact=reach.exact,
            newest=wanted.newest,
        )

    async def _unfinished_elsewhere(self, rows: Sequence[SessionRow]) -> dict[int, int]:
        """Return how many cells run and wait in each session that is open at another gateway of a cluster."""
        if not self._shares:
            return {}
        open_elsewhere = [
            row.id
            for row in rows
            if row.state != SessionState.ENDED and self._manager.get(row.principal, row.key) is None
        ]
        return await self._journal.reads.unfinished_counts(open_elsewhere) if open_elsewhere else {}

    def _state_of(self, row: SessionRow, unfinished: int) -> str:
        session = self._manager.get(row.principal, row.key)
        if session is not None:
            return session.state
        return SessionState.BUSY if unfinished else row.state

    def _is_named(self, row: SessionRow, wanted: SessionsQuery, *, everybodys: bool) -> bool:
        """Return whether a session's names have the text that is searched for."""
        if wanted.search is None:
            return True
        session = self._manager.get(row.principal, row.key)
        row = row if session is None else session.row
        title = (row.metadata or {}).get(TITLE)
        texts = [row.key, title[:MOST_TITLE] if isinstance(title, str) else ""]
        if everybodys:
            kernel = None if session is None else session.kernel
            texts += [row.principal, row.folder, "" if kernel is None else kernel.id]
        sought = wanted.search.casefold()
        return any(sought in text.casefold() for text in texts)

    def _shown(self, row: SessionRow, unfinished: int) -> SessionModel:
        session = self._manager.get(row.principal, row.key)
        if session is not None:
            return session.to_wire()
        if not unfinished:
            return self._ended(row)
        return session_model(structs.replace(row, state=SessionState.BUSY), queue_length=unfinished - 1)

    async def _with_usage(
        self, models: Sequence[SessionModel], rows: Sequence[SessionRow]
    ) -> list[SessionModel]:
        """Return the models with their kernels' use of resources, and the sessions' numbers of executions."""
        sessions = {row.id: self._manager.get(row.principal, row.key) for row in rows}
        if self.meter is not None:
            await self.meter.look(session.kernel for session in sessions.values() if session is not None)
        ended = [each for each, session in sessions.items() if session is None]
        counts = await self._journal.reads.execution_counts(ended) if ended else {}
        told = []
        for model, row in zip(models, rows, strict=True):
            session = sessions[row.id]
            made = counts.get(row.id, 0) if session is None else session.runs.made
            use = None if session is None or self.meter is None else self.meter.of(session.kernel)
            told.append(
                structs.replace(
                    model,
                    executions=made,
                    memory=UNSET if use is None else use.memory,
                    cpu=UNSET if use is None else use.seconds,
                )
            )
        return told

    async def _after(self, principal: str | None, reach: Reach, wanted: SessionsQuery) -> PageEnd | None:
        """Return the end of the previous page; None for the first page.

        Raises InvalidInput, and NotFound, also for a session out of reach.
        """
        if wanted.after is None:
            return None
        owner, _, place = wanted.after.rpartition("/") if principal is None else (principal, "", wanted.after)
        key, inside, number = place.partition(INSIDE)
        if inside and not (wanted.cells and _NUMBER.fullmatch(number)):
            raise InvalidInput("after: must be a session's key, or the `next` of this search's last page")
        return PageEnd(await self.row(owner, reach.check(key)), int(number) if inside else None)

    async def executions(
        self, principal: str, key: str, wanted: ExecutionsQuery, is_gone: Callable[[], bool] = lambda: False
    ) -> tuple[list[ExecutionModel], int | None]:
        """Return a page of a session's executions, and the number after which the next page starts.

        A search ends when its client `is_gone`. Raises InvalidInput for a search from the end.
        """
        limit, after, newest = wanted.limit, wanted.after, wanted.newest
        row = await self.row(principal, key)
        await self._journal.commit()
        if wanted.search:
            if newest:
                raise InvalidInput("newest: a search begins with the first execution")
            async with self._heavy.turn(principal):
                search = CellSearch(self._journal.reads, self._texts, wanted.search, is_gone)
                rows, following = await search.page(row.id, limit=limit, after=after)
            return [self._execution_model(principal, key, execution) for execution in rows], following
        if newest and not after:
            after = MOST_COUNTED
        rows = await self._journal.reads.executions(row.id, limit=limit + 1, after=after, newest=newest)
        models = [self._execution_model(principal, key, execution) for execution in rows[:limit]]
        return models, rows[limit - 1].number if len(rows) > limit else None

    def _execution_model(self, principal: str, key: str, row: ExecutionRow) -> ExecutionModel:
        session = self._manager.get(principal, key)
        run = session.runs.find(row.id) if session is not None else None
        status = row.status or ("running" if run is not None and run.running else "queued")
        return ExecutionModel(
            session=key,
            execution=row.id,
            number=row.number,
            status=status,
            created_at=row.created_at,
            first_seq=row.first_seq,
            last_seq=row.last_seq,
        )

    async def result(
        self,
        principal: str,
        key: str,
        execution: str,
        make: Callable[Concatenate[ResultBuilder, P], T],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Return `make`'s value for the result of an execution, or for its result so far.

        Large results from the record are built `HEAVY_AT_ONCE` at a time, because their events, their outputs
        and `make`'s values are all in memory.
        """
        session = self._manager.get(principal, check_session_key(key))
        if session is not None:
            run = session.runs.find(execution)
            if run is not None and run.machine.finished:
                await run.end.wait()  # an end is shown only once it is durable, as on a stream
            elif run is not None and run.record.builder is not None:
                # All earlier events are durable, too. Later ones are for the next answer.
                so_far = run.record.builder.copy()
                await session.log.commit()
                return await self.made(so_far, make, *arguments, **options)
        row, found = await self.find(principal, key, execution)
        after = found.first_seq - 1
        until = found.last_seq
        heavy = await self._journal.reads.are_larger(row.id, HEAVY_BYTES, after=after, until=until)
        async with self._heavy.turn(principal) if heavy else nullcontext():
            return await self.made(
                await self._recorded(row, execution, after, until), make, *arguments, **options
            )

    async def find(self, principal: str, key: str, execution: str) -> tuple[SessionRow, ExecutionRow]:
        """Return the rows of a session and of one of its executions. Raises NotFound."""
        row = await self.row(principal, key)
        await self._journal.commit()
        found = await self._journal.reads.execution(row.id, execution)
        if found is None:
            raise NotFound("No execution of this id in this session")
        return row, found

    async def _recorded(
        self, row: SessionRow, execution: str, after: int, until: int | None
    ) -> ResultBuilder:
        """Return a builder with all recorded events of the execution, read in batches of limited size."""
        builder = ResultBuilder()
        async with aclosing(self._journal.reads.event_batches(row.id, after=after, until=until)) as batches:
            async for batch in batches:
                for event in batch:
                    if event.execution == execution:
                        builder.apply(await self._decoded(event.body), len(event.body))
        return builder

    async def _decoded(self, body: bytes) -> dict[str, Any]:
        return await self._texts.run(_decode, body) if is_heavy(body) else _decode(body)

    async def encoded(self, value: Any) -> list[bytes]:
        """Return a possibly large value as JSON, in parts."""
        return await self._texts.run(encode_in_steps, value)

    async def made(
        self,
        builder: ResultBuilder,
        make: Callable[Concatenate[ResultBuilder, P], T],
        *arguments: P.args,
        **options: P.kwargs,
    ) -> T:
        """Call `make` with the builder, in a thread if that takes long."""
        if not builder.heavy:
            return make(builder, *arguments, **options)
        return await self._texts.run(make, builder.copy(), *arguments, **options)

    async def moment(self, principal: str, key: str, reach: Reach = EVERYWHERE) -> Moment:
        """Return the session's record as of now, to be exported by `exports`.

        For a branch, also the records that it continues, except those of sessions out of reach.
        """
        return await self.exports.moment(await self.row(principal, key), reach.covers)

    async def outline(self, moment: Moment) -> dict[str, Any]:
        """Return the notebook at that moment without outputs, as decoded JSON."""
        async with aclosing(self.exports.notebook(moment, outputs=False)) as parts:
            return await self._decoded(b"".join([part async for part in parts]))


def _is_in(state: str, wanted: SessionsQuery) -> bool:
    """Return whether a session's state is one that was asked for."""
    if wanted.state == LIVE:
        return state != SessionState.ENDED
    return wanted.state in {None, state}
