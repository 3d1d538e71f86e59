"""Opens what a gateway keeps: the data folder, the record in it and its audit trail."""

from __future__ import annotations

from contextlib import AsyncExitStack

from cellgate.errors import StorageError
from cellgate.http.services import Storage
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.location import RECORD
from cellgate.record.trail_writer import TrailWriter
from cellgate.server.settings import GatewaySettings
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.threads import ThreadLanes


async def open_storage(settings: GatewaySettings, lanes: ThreadLanes, stack: AsyncExitStack) -> Storage:
    """Open the record in the data folder, which is made if need be. Raises StorageError."""
    data, storage = settings.data_dir, settings.storage
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Can't make the data folder {data}: {in_brief(error)}") from error
    journal = await Journal.open(data / RECORD, sync=storage.journal_sync, reserve=storage.reserve)
    stack.push_async_callback(journal.close)
    return Storage(journal, TrailWriter(journal), lanes)
