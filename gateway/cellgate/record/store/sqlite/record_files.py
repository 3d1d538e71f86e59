"""The open files of a record's journal. ``journal`` decides when to write which rows to them."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path

from cellgate.errors import RecordDamaged, StorageFull
from cellgate.record.store.sqlite import schema
from cellgate.record.store.sqlite.database import Database
from cellgate.record.store.sqlite.lock import RecordLock
from cellgate.record.store.sqlite.opening import RecordState, beginnings, open_writer
from cellgate.record.store.sqlite.redo import RedoLog
from cellgate.record.store.sqlite.schema import Sync

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RecordFiles:
    """The open files of the record at `path`, and its former state. Create it with `open`."""

    path: Path
    always_synced: bool
    lock: RecordLock
    writer: Database
    reader: Database
    redo: RedoLog
    begun: RecordState

    @classmethod
    async def open(cls, path: Path, sync: Sync) -> RecordFiles:
        """Open or make the files of a record. Raises StorageError, as `Journal.open`."""
        held = await asyncio.to_thread(RecordLock, path)
        path = held.record
        writer, reader = Database("record-writer"), Database("record-reader")
        redo_log = RedoLog.without(path, 0)
        try:
            await writer.open(lambda: open_writer(path, sync))
            held.watch()
            await reader.open(lambda: schema.open_reader(path))
            begun = await writer.run(beginnings)
            make = RedoLog.create if sync == "normal" else RedoLog.without
            redo_log = await asyncio.to_thread(make, path, begun.number)
            if redo_log.usable:
                try:
                    await writer.run(schema.expect_log, redo_log.seed)
                except StorageFull as full:
                    # Without room the tables can't note that there is a log, so the log accepts nothing.
                    logger.warning("There is no redo log, and each commit is a transaction: %s", full.message)
                    redo_log.close(clean=True)
        except BaseException as error:
            redo_log.close(clean=True)
            await reader.close()
            await writer.close()
            held.release()
            if isinstance(error, RecordDamaged):
                raise RecordDamaged(f"The record {path}", error.why) from error
            raise
        return cls(path, sync == "full", held, writer, reader, redo_log, begun)

    async def close(self, *, clean: bool) -> None:
        """Close all files, and remove the redo log if the tables have all rows (`clean`)."""
        await self.reader.close()
        await self.writer.close()
        self.redo.close(clean=clean)
        self.lock.release()
