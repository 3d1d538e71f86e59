"""Exports of sessions: notebooks, audit trails and bundles, streamed from the record.

Each export is made by a thread with a separate connection (`Reads.in_steps`), at the gateway's own pace and
into a spill; its client reads from there. So a slow client occupies no thread, connection, turn, database
lock or memory. This module finds the record's head and whether an export may be made now, then lets ``steps``
and ``bundle`` write. ``sessions.reader`` has checked that the session is the principal's.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from msgspec import structs

from cellgate.errors import RecordGone, StorageError
from cellgate.fairness.turns import Turns
from cellgate.record.events import now
from cellgate.record.export import steps as export
from cellgate.record.export.bundle import Contents, bundle_parts
from cellgate.record.export.notebook import NOTEBOOK_CAP, Export
from cellgate.record.export.page_order import PageOrder
from cellgate.record.export.steps import Reading
from cellgate.record.export.usage_file import SummedTime, usage_archive, usage_table
from cellgate.record.keys import SigningKey
from cellgate.record.rows import NO_BRANCH, Lineage, SessionRow
from cellgate.record.seal import head_statement
from cellgate.record.spill import Spill, Spills
from cellgate.record.store.interface import RecordStore, Steps
from cellgate.wire.answers import ChainCheck
from cellgate.wire.usage import UsageSum
from cellgate_kernels.base.errors import CellgateError, in_brief
from cellgate_kernels.base.resources import GIB
from cellgate_kernels.base.tasks import Supervisor

Parts = AsyncGenerator[bytes, None]
Making = Callable[[Reading], Iterator[bytes]]

# Exports that are complete and only being sent count towards none of these.
MOST_AT_ONCE = 4
"""Exports and checks that are made at once."""
MOST_WAITING = 32
"""Most exports and checks that wait for a turn."""
PATIENCE = 60.0
"""Most seconds that one waits for its turn."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A session, the head of its record (row `rows` with hash `head`), and its ancestors."""

    session: SessionRow
    rows: int
    head: bytes
    lineage: Lineage = NO_BRANCH

    @property
    def tag(self) -> str:
        """A text that differs for different rows, also of ancestors: some of these may have been purged."""
        shown = "" if self.session.branched_from is None else f"-{len(self.lineage.ancestors)}"
        return f"{self.head.hex()}{shown}"

    def reading(self, steps: Steps) -> Reading:
        """Return the rows up to this head."""
        ancestors = [
            Reading(steps, each.row, each.until.seq, bytes.fromhex(each.until.head))
            for each in self.lineage.ancestors
        ]
        return Reading(steps, self.session, self.rows, self.head, ancestors)


class Exports:
    """Makes exports of moments, signed with `key` if there is one. `close` it before the journal."""

    def __init__(self, journal: RecordStore, version: str, key: SigningKey | None, spills: Spills) -> None:
        self._journal = journal
        self._version = version
        self._key = key
        self._spills = spills
        refusal = "Too many exports are being made; try again later"
        self._turns = Turns(MOST_AT_ONCE, MOST_WAITING, PATIENCE, refusal)
        self._makers = Supervisor(dict)

    async def close(self) -> None:
        """Cancel the exports in progress; return once all spills that were read are gone from the disk."""
        await self._makers.cancel()
        await self._spills.ends.finished()

    async def moment(self, session: SessionRow, covers: Callable[[str], bool] | None = None) -> Moment:
        """Return a session's record as of now. `covers`: ancestors to show (all). Raises RecordGone."""
        await self._journal.commit()
        last = await self._journal.reads.last_event(session.id)
        if last is None:
            raise RecordGone("The record of this session was purged")
        if session.branched_from is None:
            return Moment(session, *last)
        return Moment(session, *last, await self._journal.reads.lineage(session, covers or (lambda _: True)))

    def notebook(
        self,
        moment: Moment,
        *,
        outputs: bool = True,
        inherited: bool = True,
        undone: bool = True,
        order: PageOrder | None = None,
    ) -> Parts:
        """Return the notebook's bytes. `inherited`: whether a branch's has the cells before it too.

        `undone`: whether it has cells that a rollback undid. `order`: the file that tells the order of cells.
        """
        options = self._told(moment, outputs=outputs, cap=NOTEBOOK_CAP, inherited=inherited)
        options = replace(options, undone=undone, order=order)
        shown = moment if inherited else replace(moment, lineage=NO_BRANCH)
        return self._parts(shown, lambda reading: export.notebook_parts(reading, options, self._key))

    def bundle(self, moment: Moment, workspace: Path | None) -> Parts:
        """Return the archive's bytes. Workspace files are read when the archive gets to them."""
        options = self._told(moment, outputs=True, cap=None)
        return self._parts(moment, lambda reading: self._bundle(reading, options, workspace))

    def _bundle(self, reading: Reading, options: Export, workspace: Path | None) -> Iterator[bytes]:
        notebook = export.read_notebook(reading, options)
        contents = Contents(
            session=reading.session.key,
            exported_at=options.exported_at,
            environment=notebook.environment,
            notebook=(part.encode() for part in notebook.write(self._key)),
            rows=export.audit_parts(reading),
            ancestors=[(each.session.key, export.audit_parts(each)) for each in reading.ancestors],
            workspace=workspace,
            most_bytes=int(reading.session.limits.get("disk", GIB)),
            check_there=reading.check_there,
        )
        yield from export.in_parts(bundle_parts(contents, self._key), reading.steps.go_on)

    def widgets(self, moment: Moment) -> Parts:
        """Return the last states of the session's widgets, and of those that it inherits, as JSON."""
        options = self._told(moment, outputs=True, cap=NOTEBOOK_CAP)
        return self._parts(moment, lambda reading: export.widget_parts(reading, options))

    def usage(self, sums: Sequence[UsageSum], told: SummedTime, form: str) -> bytes:
        """Return a file with these sums: a table (``csv``), or an archive with one (``zip``)."""
        table = usage_table(sums, told)
        return table if form == "csv" else usage_archive(table, told, self._version, self._key)

    def audit(self, moment: Moment) -> Parts:
        """Return the rows as NDJSON."""
        return self._parts(moment, export.audit_parts)

    async def verify(self, moment: Moment) -> ChainCheck:
        """Return whether the chain holds, as the wire's answer; its head is signed if there is a key."""
        async with self._turns.turn(moment.session.principal):
            found = await self._journal.reads.in_steps(lambda steps: export.check(moment.reading(steps)))
        answer = ChainCheck(valid=found.valid, rows=found.rows, head=found.head.hex())
        if found.first_bad is not None:
            return structs.replace(answer, first_bad=found.first_bad)
        if self._key is None:
            return answer
        session = moment.session
        statement = head_statement(session.principal, session.key, found.rows, found.head.hex())
        return structs.replace(answer, key=self._key.public, signature=self._key.sign(statement))

    def _told(self, moment: Moment, *, outputs: bool, cap: int | None, inherited: bool = True) -> Export:
        return Export(
            gateway_version=self._version,
            exported_at=now(),
            outputs=outputs,
            cap=cap,
            inherited=inherited,
            ancestors=tuple(each.until for each in moment.lineage.ancestors),
            absence=moment.lineage.absence,
        )

    async def _parts(self, moment: Moment, make: Making) -> Parts:
        """Yield the parts that `make` yields. If the reader leaves early, the export is cancelled."""
        spill = self._spills.open(moment.session.principal)
        making = self._makers.start(self._make(moment, make, spill), f"export {moment.session.key}")
        try:
            async with aclosing(spill.parts()) as parts:
                async for part in parts:
                    yield part
        finally:
            making.cancel()

    async def _make(self, moment: Moment, make: Making, spill: Spill) -> None:
        error: CellgateError | None = CellgateError("The export failed; the gateway's log says why")
        try:
            async with self._turns.turn(moment.session.principal):
                await self._journal.reads.in_steps(partial(_write, moment, make, spill))
            error = None
        except CellgateError as known:
            error = known
        finally:
            spill.end(error)


def _write(moment: Moment, make: Making, spill: Spill, steps: Steps) -> None:
    try:
        with spill.writing():
            for part in make(moment.reading(steps)):
                spill.write(part)
    except OSError as error:
        raise StorageError(f"A file of the session can't be read: {in_brief(error)}") from error
