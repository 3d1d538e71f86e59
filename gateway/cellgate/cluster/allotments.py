"""What each gateway of a cluster holds of the quotas of each principal, in the cluster's database.

Each replaces its own part in the rows of some principals, by one statement that locks the rows and checks the
sum in each (``statements``). A node that is down, or gives no signs of life, holds nothing.
``quotas.allotment`` says what a gateway asks for; here is when it asks: for a principal at once if it lacks
some, and for all of them twice a beat.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import msgspec

from cellgate.cluster import statements
from cellgate.cluster.membership import Membership
from cellgate.errors import StorageError
from cellgate.quotas.allotment import AskedPart, ClusterAllotments, Five, Flow, HeldPart
from cellgate.record.store.postgresql.record_connection import (
    RecordAddress,
    RecordConnection,
    all_rows,
    execute,
)
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

LOOKS_A_BEAT: Final = 2


class _Row(msgspec.Struct, frozen=True, array_like=True):
    """A node's part, as the database has it."""

    used: Five
    held: Five
    short: Five


async def _nothing(_: str = "") -> None:
    """Change nothing until the accounts are known."""


class NodeAllotments(ClusterAllotments):
    """The parts of all nodes. `close` it at the end.

    `top_up` gets more for a principal, and `renew` looks at the parts of all.
    """

    def __init__(self, membership: Membership, address: RecordAddress) -> None:
        self.beat = membership.settings.beat
        self.top_up: Callable[[str], Awaitable[None]] = _nothing
        self.renew: Callable[[], Awaitable[None]] = _nothing
        self._membership = membership
        self._db = RecordConnection(address, "cluster-allotments")
        self._tasks = Supervisor(lambda: {"node": membership.node})
        # In the order in which they are asked for.
        self._due: dict[str, None] = {}
        self._more = asyncio.Event()

    @classmethod
    async def open(cls, membership: Membership, address: RecordAddress) -> NodeAllotments:
        """Return the allotments of a node that has begun, and serves nobody yet. Raises StorageError."""
        allotments = cls(membership, address)
        try:
            await allotments._db.repeatable(execute, statements.REMOVE_ALL_PARTS, membership.asked())
        except BaseException:
            await allotments.close()
            raise
        allotments._tasks.start(allotments._run(), "allotments of quotas")
        return allotments

    async def replace(self, asked: Mapping[str, AskedPart]) -> Mapping[str, tuple[bool, Sequence[HeldPart]]]:
        rows = {principal: (_row(each.part), each.most[: Flow.NETWORK]) for principal, each in asked.items()}
        given = self._membership.asked(asked=msgspec.json.encode(rows).decode())
        found = await self._db.repeatable(all_rows, statements.WRITE_PARTS, given)
        if not all(is_node for _, is_node, _, _ in found):
            raise StorageError("Another gateway has this one's name in the cluster, so it holds no quotas")
        return {principal: (bool(is_written), _parts(others)) for principal, _, is_written, others in found}

    async def remove(self, principals: Sequence[str]) -> None:
        asked = self._membership.asked(principals=[*principals])
        await self._db.repeatable(all_rows, statements.REMOVE_PARTS, asked)

    async def of_others(self, principals: Sequence[str]) -> Mapping[str, Sequence[HeldPart]]:
        asked = self._membership.asked(principals=[*principals])
        rows = await self._db.read_in_turn(all_rows, statements.PARTS_OF_OTHERS, asked)
        return {principal: _parts(others) for principal, others in rows}

    def soon(self, principal: str) -> None:
        self._due[principal] = None
        self._more.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        next_look = loop.time()
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout_at(next_look):
                    await self._more.wait()
            self._more.clear()
            if self._due:
                principal = next(iter(self._due))
                del self._due[principal]
                await self._try(self.top_up, principal)
                if self._due:
                    self._more.set()
            if loop.time() >= next_look:
                next_look = loop.time() + self.beat / LOOKS_A_BEAT
                await self._try(self.renew)

    async def _try(self, work: Callable[..., Awaitable[None]], *given: str) -> None:
        try:
            await work(*given)
        except StorageError as error:
            logger.info("The allotments of quotas can't be changed now: %s", error.message)
        except Exception as error:  # noqa: BLE001 - all other principals need theirs
            self._tasks.tell("allotments of quotas", error)

    async def close(self) -> None:
        """End the connection. What this node holds counts no more: it is about to be down."""
        await self._tasks.cancel()
        await self._db.close()


def _row(part: HeldPart) -> _Row:
    return _Row(part.used, part.held, part.short)


def _parts(rows: Any) -> Sequence[HeldPart]:
    found = msgspec.convert(rows or [], list[_Row])
    return tuple(HeldPart(row.used, row.held, row.short) for row in found)
