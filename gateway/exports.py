"""Sessions leaving the gateway: notebooks, audit trails and bundles, streamed from the record.

Each export has a thread and a connection of its own (``Journal.long_read``) and is made part by part as its
reader takes them, so a slow reader costs no memory. It finds out how far the record goes, then lets
``record.export`` and ``record.bundle`` write. Whose session it is was checked by ``archive``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncGenerator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.models import now
from gateway.record import export
from gateway.record.bundle import Contents, bundle_parts
from gateway.record.chain import GENESIS, Verification
from gateway.record.journal import Journal
from gateway.record.keys import SigningKey
from gateway.record.notebook import NOTEBOOK_CAP, Export
from gateway.record.rows import SessionRow
from gateway.record.seal import head_statement
from kernels.limits import GIB

Parts = AsyncGenerator[bytes, None]


@dataclass(frozen=True, slots=True)
class Moment:
    """A session and how far its record goes: `rows` of them, the last with the hash `head`."""

    session: SessionRow
    rows: int
    head: bytes


class Exports:
    """Makes exports of moments. `key` signs them, if there is one."""

    def __init__(self, journal: Journal, version: str, key: SigningKey | None) -> None:
        self._journal = journal
        self._version = version
        self._key = key

    async def moment(self, session: SessionRow) -> Moment:
        """The record of a session as it is now."""
        await self._journal.commit()
        seq, head = await self._journal.last_event(session.id) or (0, GENESIS)
        return Moment(session, seq, head)

    def notebook(self, moment: Moment, *, outputs: bool = True) -> Parts:
        """The notebook's bytes."""
        said = self._said(outputs=outputs, cap=NOTEBOOK_CAP)
        return self._parts(lambda db: export.notebook_parts(db, moment.session, moment.rows, said, self._key))

    def bundle(self, moment: Moment, workspace: Path | None) -> Parts:
        """The archive's bytes. Files of the workspace are those that are there when their turn comes."""
        return self._parts(lambda db: self._bundle(db, moment, workspace))

    def _bundle(self, db: sqlite3.Connection, moment: Moment, workspace: Path | None) -> Iterator[bytes]:
        said = self._said(outputs=True, cap=None)
        notebook = export.read_notebook(db, moment.session, moment.rows, said)
        contents = Contents(
            session=moment.session.key,
            exported_at=said.exported_at,
            environment=notebook.environment,
            notebook=(part.encode() for part in notebook.write(self._key)),
            rows=export.audit_parts(db, moment.session, moment.rows),
            workspace=workspace,
            most_bytes=int(moment.session.limits.get("disk", GIB)),
        )
        yield from export.in_parts(bundle_parts(contents, self._key))

    def audit(self, moment: Moment) -> Parts:
        """The rows as NDJSON."""
        return self._parts(lambda db: export.audit_parts(db, moment.session, moment.rows))

    async def verify(self, moment: Moment) -> dict[str, Any]:
        """The wire's answer to whether the chain holds; with a key, its head is signed."""
        async with self._journal.long_read() as database:
            found: Verification = await database.run(export.check, moment.session, moment.rows, moment.head)
        told = {"valid": found.valid, "rows": found.rows, "head": found.head.hex()}
        if found.first_bad is not None:
            return {**told, "first_bad": found.first_bad}
        if self._key is None:
            return told
        session = moment.session
        statement = head_statement(session.principal, session.key, found.rows, found.head.hex())
        return {**told, "key": self._key.public, "signature": self._key.sign(statement)}

    def _said(self, *, outputs: bool, cap: int | None) -> Export:
        return Export(gateway_version=self._version, exported_at=now(), outputs=outputs, cap=cap)

    async def _parts(self, make: Callable[[sqlite3.Connection], Iterator[bytes]]) -> Parts:
        """What `make` gives, made in the reading's own thread, each part when it is asked for."""
        async with self._journal.long_read() as database:
            parts = await database.run(make)
            try:
                while (part := await database.run(lambda _: next(parts, None))) is not None:
                    if part:
                        yield part
            finally:
                await database.run(lambda _: _close(parts))


def _close(parts: Iterator[bytes]) -> None:
    if close := getattr(parts, "close", None):
        close()
