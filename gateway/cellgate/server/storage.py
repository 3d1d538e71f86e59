"""Opens the gateway's storage: the data folder, the record in it or in PostgreSQL, and its audit trail.

With a cluster, it also joins that: the record is what its gateways share.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from cellgate.errors import StorageError
from cellgate.http.services import Cluster, Storage
from cellgate.record.store.interface import RecordStore
from cellgate.record.store.opening import record_address
from cellgate.record.store.sqlite.journal import Journal
from cellgate.record.store.sqlite.location import RECORD
from cellgate.record.store.sqlite.lock import RecordLock
from cellgate.record.trail_writer import TrailWriter
from cellgate.server.kernels import INSTANCE_FILE, gateway_id
from cellgate.server.settings import GatewaySettings
from cellgate_kernels.base.errors import in_brief
from cellgate_kernels.base.threads import ThreadLanes

if TYPE_CHECKING:
    from cellgate.cluster.settings import ClusterSettings
    from cellgate.record.store.postgresql.record_connection import RecordAddress
    from cellgate.record.store.postgresql.store import PostgresStore


async def open_storage(settings: GatewaySettings, lanes: ThreadLanes, stack: AsyncExitStack) -> Storage:
    """Open the record, and make the data folder if need be. Raises StorageError and InvalidInput."""
    data, storage = settings.data_dir, settings.storage
    try:
        data.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"Can't make the data folder {data}: {in_brief(error)}") from error
    journal: RecordStore
    cluster = None
    if settings.cluster is not None or storage.record:
        journal = database = await _open_database(settings, lanes, stack)
        stack.push_async_callback(database.close)
        if settings.cluster is not None:
            cluster = await _join(settings, settings.cluster, database, lanes, stack)
    else:
        journal = await Journal.open(data / RECORD, sync=storage.journal_sync, reserve=storage.reserve)
        stack.push_async_callback(journal.close)
    return Storage(journal, TrailWriter(journal), lanes, cluster)


async def _open_database(
    settings: GatewaySettings, lanes: ThreadLanes, stack: AsyncExitStack
) -> PostgresStore:
    """Open the record in PostgreSQL, for a gateway that has its data folder to itself."""
    cluster = settings.cluster
    address = record_address(settings.storage.record) if cluster is None else _cluster_address(cluster)
    from cellgate.record.store.postgresql.record_connection import Hold  # noqa: PLC0415 - an extra
    from cellgate.record.store.postgresql.store import PostgresStore  # noqa: PLC0415

    own = settings.data_dir / RECORD
    held = await lanes.bulk.run(RecordLock, own)
    stack.callback(held.release)
    if await lanes.bulk.run(own.exists):
        raise StorageError(
            f"The data folder has a record in SQLite already, {own}: move that into the database by"
            " `cellgate record migrate`, or use another data folder"
        )
    return await PostgresStore.open(address, hold=Hold.ALONE if cluster is None else Hold.SHARED)


async def _join(
    settings: GatewaySettings,
    cluster: ClusterSettings,
    database: PostgresStore,
    lanes: ThreadLanes,
    stack: AsyncExitStack,
) -> Cluster:
    """Join the cluster that shares the open record; at the end, free this node's keys and leave."""
    from cellgate.cluster.allotments import NodeAllotments  # noqa: PLC0415 - an extra
    from cellgate.cluster.membership import Membership  # noqa: PLC0415
    from cellgate.cluster.owners import KeyOwners  # noqa: PLC0415
    from cellgate.cluster.uses import NodeUses  # noqa: PLC0415

    address = _cluster_address(cluster)
    node = gateway_id(settings.data_dir / INSTANCE_FILE)
    membership = await Membership.open(node, cluster, address, lanes.bulk)
    stack.push_async_callback(membership.close)
    database.join(membership.node, membership.incarnation)
    owners = KeyOwners(membership, address)
    stack.push_async_callback(owners.close)
    # Also without a file of quotas: what sessions use here counts at gateways that have one.
    uses = await NodeUses.open(membership, address)
    stack.push_async_callback(uses.close)
    allotments = await NodeAllotments.open(membership, address)
    stack.push_async_callback(allotments.close)
    return Cluster(membership, owners, uses, allotments)


def _cluster_address(cluster: ClusterSettings) -> RecordAddress:
    return record_address(cluster.address, "--cluster")
