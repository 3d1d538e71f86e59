"""What each gateway of a cluster uses of the quotas of each principal, in the cluster's database.

Each writes what its own sessions use, as a whole, so nothing that was missed stays wrong. A node that is
down, or gives no signs of life, counts for nothing: its sessions are gone, or about to be taken over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Final

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

MOST_PAUSE: Final = 300.0
"""Seconds until the next try for a principal whose use can't be written by a fault of ours."""


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
        # When each is written, by the loop's clock: one that can't be written comes last.
        self._changed: dict[str, float] = {}
        self._pauses: dict[str, float] = {}
        self._more = asyncio.Event()
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
        # A further change is no reason to try one sooner that fails by a fault of ours.
        self._changed.setdefault(principal, asyncio.get_running_loop().time())
        self._more.set()
        if self._writing is None or self._writing.done():
            self._writing = self._tasks.start(self._write(), "write the use of quotas")

    async def _write(self) -> None:
        while self._changed:
            principal = min(self._changed, key=self._changed.__getitem__)
            if await self._is_early(self._changed[principal]):
                continue
            del self._changed[principal]
            try:
                await self.publish_own(principal)
            except StorageError as error:
                # All others' would fail as well.
                logger.info("The use of quotas can't be written now: %s", error.message)
                await asyncio.sleep(self._membership.settings.beat)
                self._changed[principal] = asyncio.get_running_loop().time()
            except Exception as error:  # noqa: BLE001 - whatever it was, the use is wrong until it is written
                self._tasks.tell("write the use of quotas", error)
                self._put_off(principal)
            else:
                self._pauses.pop(principal, None)

    async def _is_early(self, due: float) -> bool:
        """Return whether it is before this time, by the loop's clock, after a wait for it or for a change."""
        seconds = due - asyncio.get_running_loop().time()
        if seconds <= 0:
            return False
        self._more.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._more.wait()
        return True

    def _put_off(self, principal: str) -> None:
        """Try the principal's use again after a pause, twice as long each time."""
        pause = self._pauses.get(principal, self._membership.settings.beat / 2) * 2
        self._pauses[principal] = pause = min(pause, MOST_PAUSE)
        self._changed[principal] = asyncio.get_running_loop().time() + pause

    async def close(self) -> None:
        """End the connection. What is written no more counts no more: the node is about to be down."""
        await self._tasks.cancel()
        await self._db.close()
