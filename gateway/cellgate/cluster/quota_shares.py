"""What each gateway of a cluster uses of the quotas of each principal, in the cluster's database.

Each writes what its own sessions use, as a whole, so nothing that was missed stays wrong. A node that is
down, or gives no signs of life, counts for nothing: its sessions are gone, or about to be taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cellgate.cluster import statements
from cellgate.cluster.membership import Membership
from cellgate.errors import StorageError
from cellgate.quotas.elsewhere import NOTHING, Sums, UseElsewhere
from cellgate.quotas.quotas import UNLIMITED, Quotas
from cellgate.record.store.postgresql.record_connection import Connection, RecordAddress, RecordConnection
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

TINY = 1e-9
"""Processors by which sums of fractions may differ."""


class QuotaShares(UseElsewhere):
    """The use of quotas at all nodes. `own_of`: returns a principal's use here. `close` it at the end."""

    def __init__(self, membership: Membership, address: RecordAddress) -> None:
        self.own_of: Callable[[str], Sums] = lambda _: NOTHING
        self._membership = membership
        self._db = RecordConnection(address, "cluster-quotas")
        self._tasks = Supervisor(lambda: {"node": membership.node})
        self._changed: set[str] = set()
        self._writing: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, membership: Membership, address: RecordAddress) -> QuotaShares:
        """Return the shares of a node that has begun, and has no sessions yet. Raises StorageError."""
        shares = cls(membership, address)
        await shares._db.repeatable(_do, statements.UNSHARE, membership.asked())
        return shares

    async def others(self, principals: Sequence[str]) -> Mapping[str, Sums]:
        asked = self._membership.asked(principals=[*principals])
        rows = await self._db.read_in_turn(_rows, statements.SHARES, asked)
        return {row[0]: Sums(*row[1:]) for row in rows}

    async def publish(self, principal: str, own: Sums, most: Quotas) -> bool:
        limits = {
            "most_sessions": most.sessions,
            "most_memory": most.memory,
            "most_cpus": None if most.cpus is None else most.cpus + TINY,
            "most_disk": most.disk,
        }
        asked = self._membership.asked(principal=principal, **asdict(own), **limits)
        ((is_node, is_written),) = await self._db.repeatable(_rows, statements.SHARE, asked)
        if not is_node:
            raise StorageError("Another gateway has this one's name in the cluster, so it opens nothing")
        return bool(is_written)

    def changed(self, principal: str) -> None:
        self._changed.add(principal)
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write(), "write the use of quotas")

    async def _write(self) -> None:
        while self._changed:
            principal = self._changed.pop()
            try:
                await self.publish(principal, self.own_of(principal), UNLIMITED)
            except StorageError as error:
                self._changed.add(principal)
                logger.info("The use of quotas can't be written now: %s", error.message)
                await asyncio.sleep(self._membership.settings.beat)

    async def close(self) -> None:
        """End the connection. What is written no more counts no more: the node is about to be down."""
        await self._tasks.cancel()
        await self._db.close()


def _rows(db: Connection, statement: str, asked: dict[str, object]) -> list[tuple[Any, ...]]:
    return db.execute(statement, asked, prepare=True).fetchall()


def _do(db: Connection, statement: str, asked: dict[str, object]) -> None:
    db.execute(statement, asked)
