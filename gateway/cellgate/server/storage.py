"""Opens the gateway's storage: the data folder, the record in it or in PostgreSQL, and its audit trail."""

from __future__ import annotations

from contextlib import AsyncExitStack

from cellgate.errors import StorageError
from cellgate.http.services import Storage
from cellgate.record.store.interface import RecordStore
from cellgate.record.store.opening import record_address
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.location import RECORD
from cellgate.record.store.sqlite.lock import RecordLock
from cellgate.record.trail_writer import TrailWriter
from cellgate.server.settings import GatewaySettings
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.threads import ThreadLanes


async def open_storage(settings: GatewaySettings, lanes: ThreadLanes, stack: AsyncExitStack) -> Storage:
    """Open the record, and make the data folder if need be. Raises StorageError and InvalidInput."""
    data, storage = settings.data_dir, settings.storage
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Can't make the data folder {data}: {in_brief(error)}") from error
    journal: RecordStore
    if storage.record:
        journal = await _open_database(settings, lanes, stack)
    else:
        journal = await Journal.open(data / RECORD, sync=storage.journal_sync, reserve=storage.reserve)
    stack.push_async_callback(journal.close)
    return Storage(journal, TrailWriter(journal), lanes)


async def _open_database(settings: GatewaySettings, lanes: ThreadLanes, stack: AsyncExitStack) -> RecordStore:
    """Open the record in PostgreSQL, for a gateway that has its data folder to itself."""
    address = record_address(settings.storage.record)
    from cellgate.record.store.postgresql.store import PostgresStore  # noqa: PLC0415 - an extra

    own = settings.data_dir / RECORD
    held = await lanes.bulk.run(RecordLock, own)
    stack.callback(held.release)
    if await lanes.bulk.run(own.exists):
        raise StorageError(
            f"The data folder has a record in SQLite already, {own}: move that into the database by"
            " `cellgate record migrate`, or use another data folder"
        )
    return await PostgresStore.open(address)
