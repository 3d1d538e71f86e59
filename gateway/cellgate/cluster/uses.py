"""What each gateway of a cluster uses of the quotas of each principal, in the cluster's database.

Each writes what its own sessions use, as a whole, so nothing that was missed stays wrong. A node that is
down, or gives no signs of life, counts for nothing: its sessions are gone, or about to be taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict

from cellgate.cluster import statements
from cellgate.cluster.membership import Membership
from cellgate.errors import StorageError
from cellgate.quotas.cluster_uses import NOTHING, TINY, ClusterUses, Sums
from cellgate.quotas.quotas import Quotas
from cellgate.record.store.postgresql.record_connection import (
    RecordAddress,
    RecordConnection,
    all_rows,
    execute,
)
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)


async def _nothing(_: str) -> None:
    """Publish nothing until the sessions are known."""


class NodeUses(ClusterUses):
    """The use of quotas at all nodes. `close` it at the end.

    `publish_own`: publishes what a principal uses here, whatever the quotas are.
    """

    def __init__(self, membership: Membership, address: RecordAddress) -> None:
        self.publish_own: Callable[[str], Awaitable[None]] = _nothing
        self._membership = membership
        self._db = RecordConnection(address, "cluster-uses")
        self._tasks = Supervisor(lambda: {"node": membership.node})
        # In the order in which they are written: one that can't be written comes last.
        self._changed: dict[str, None] = {}
        self._writing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, membership: Membership, address: RecordAddress) -> NodeUses:
        """Return the uses of a node that has begun, and has no sessions yet. Raises StorageError."""
        uses = cls(membership, address)
        try:
            await uses._db.repeatable(execute, statements.REMOVE_USES, membership.asked())
        except BaseException:
            await uses.close()
            raise
        return uses

    async def of_others(self, principals: Sequence[str]) -> Mapping[str, Sums]:
        return await self._read(statements.USES_OF_OTHERS, principals=[*principals])

    async def first(self, after: str, limit: int) -> Mapping[str, Sums]:
        return await self._read(statements.FIRST_USES, after=after, limit=limit)

    async def _read(self, statement: str, **more: object) -> Mapping[str, Sums]:
        rows = await self._db.read_in_turn(all_rows, statement, self._membership.asked(**more))
        return {row[0]: Sums(*row[1:]) for row in rows}

    async def publish(self, principal: str, own: Sums, most: Quotas) -> bool:
        limits = {
            "most_sessions": most.sessions,
            "most_memory": most.memory,
            "most_cpus": None if most.cpus is None else most.cpus + TINY,
            "most_disk": most.disk,
        }
        asked = self._membership.asked(principal=principal, **asdict(own), **limits)
        statement = statements.REMOVE_USE if own == NOTHING else statements.WRITE_USE
        ((is_node, is_written),) = await self._db.repeatable(all_rows, statement, asked)
        if not is_node:
            raise StorageError("Another gateway has this one's name in the cluster, so it opens nothing")
        return bool(is_written)

    def changed(self, principal: str) -> None:
        self._changed[principal] = None
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write(), "write the use of quotas")

    async def _write(self) -> None:
        while self._changed:
            principal = next(iter(self._changed))
            del self._changed[principal]
            try:
                await self.publish_own(principal)
            except Exception as error:  # noqa: BLE001 - whatever it was, the use is wrong until it is written
                self._changed[principal] = None
                self._tell(error)
                await asyncio.sleep(self._membership.settings.beat)

    def _tell(self, error: Exception) -> None:
        if isinstance(error, StorageError):
            logger.info("The use of quotas can't be written now: %s", error.message)
        else:
            self._tasks.tell("write the use of quotas", error)

    async def close(self) -> None:
        """End the connection. What is written no more counts no more: the node is about to be down."""
        await self._tasks.cancel()
        await self._db.close()
