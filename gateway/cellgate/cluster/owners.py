"""Which node of a cluster has each session's key: asks PostgreSQL, and claims and frees keys there.

A claim, and each look-up, is one statement (``statements``); nothing is cached, so no answer is stale. Who
asks has no session of the key open here. ``membership`` says which nodes are alive.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Any

from cellgate.cluster import statements
from cellgate.cluster.membership import Membership
from cellgate.cluster.nodes import NodeState, check_node, node_of
from cellgate.errors import Draining, NodeFull, StorageError
from cellgate.record.store.postgresql.record_connection import (
    Connection,
    RecordAddress,
    RecordConnection,
    execute,
    first_row,
)
from cellgate.sessions.ownership import OURS, KeyOwner, Owned, Ownership
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

UNKNOWN = "an unknown address"
MOST_TRIES = 8
"""The most attempts at a key that others claim and free just then."""
LOOKS = 2
"""How often the owners are looked at after a silence: a claim may be on its way at the first time."""


class KeyOwners(Ownership):
    """The owners of all keys. `close` it once no session is open, before the membership and the record."""

    def __init__(self, membership: Membership, address: RecordAddress) -> None:
        self._membership = membership
        self._db = RecordConnection(address, "cluster-owners")
        self._tasks = Supervisor(lambda: {"node": membership.node})
        self._in_use: Callable[[], Collection[Owned]] = tuple
        self._end: Callable[[Owned], None] = lambda _: None
        self._looks = 0
        self._looking: asyncio.Task[None] | None = None
        # The numbers of the last claims, for the connection's thread alone.
        self._claims: dict[Owned, int] = {}

    @property
    def node(self) -> str:
        """The id of this node."""
        return self._membership.node

    async def find(self, principal: str, key: str) -> KeyOwner | None:
        return await self._found(statements.FIND, principal, key)

    async def claim(self, principal: str, key: str) -> KeyOwner:
        asked = self._membership.asked(principal=principal, key=key)
        for _ in range(MOST_TRIES):
            found = await self._db.repeatable(self._claim, (principal, key), asked)
            heard, other, url, mine, former, home, epoch, _ = found
            if heard is None:
                raise StorageError("Another gateway has this one's name in the cluster, so it opens nothing")
            if mine:
                self._membership.tell_room()
                if former not in {None, self.node}:
                    self._membership.takeovers += 1
                    ids = {"principal": principal, "session": key, "node": self.node}
                    ids |= {"former_node": former, "epoch": epoch}
                    logger.warning(
                        "A session is taken over from the node %s, epoch %s", former, epoch, extra=ids
                    )
                return OURS if home in {None, self.node} else KeyOwner(moved=True)
            if other is not None:
                return self._owner(other, url)
            if not heard:
                raise StorageError(
                    "This gateway gives the cluster no signs of life and opens no session: its log says why"
                )
        raise StorageError("Too many gateways claim this session at the same time; try again")

    async def home(self, principal: str, key: str) -> KeyOwner | None:
        return await self._found(statements.HOME, principal, key)

    async def _found(self, statement: str, principal: str, key: str) -> KeyOwner | None:
        asked = self._membership.asked(principal=principal, key=key)
        found = await self._db.repeatable(first_row, statement, asked)
        return None if found is None else self._owner(*found)

    async def files_at(self, principal: str, key: str) -> str:
        asked = self._membership.asked(principal=principal, key=key)
        found = await self._db.repeatable(first_row, statements.FILES_AT, asked)
        return "" if found is None else check_node(str(found[0]))

    async def settle(self, principal: str, key: str) -> None:
        asked = self._membership.asked(principal=principal, key=key)
        await self._db.repeatable(execute, statements.SETTLE, asked)

    def _owner(self, node: str, url: str | None) -> KeyOwner:
        return OURS if node == self.node else KeyOwner(url or UNKNOWN, check_node(node))

    def release(self, principal: str, key: str) -> None:
        self._membership.tell_room()
        if principal:
            asked = self._membership.asked(principal=principal, key=key)
            try:
                # Given to the thread now: a claim that follows must come after it.
                freed = self._db.run(self._release, (principal, key), asked)
            except StorageError:
                return  # the connection is closed, and has freed all keys before
            self._tasks.share(_end_of(freed), f"release {key}", errors=(StorageError,), session=key)

    def _claim(self, db: Connection, owned: Owned, asked: dict[str, object]) -> tuple[Any, ...]:
        self._claims.pop(owned, None)
        found = first_row(db, statements.CLAIM, asked)
        assert found is not None
        if found[-1] is not None:
            self._claims[owned] = found[-1]
        return found

    def _release(self, db: Connection, owned: Owned, asked: dict[str, object]) -> None:
        # Unknown of a key that a former process of this node has claimed: then any claim of the node ends.
        execute(db, statements.RELEASE, {**asked, "claims": self._claims.pop(owned, None)})

    def address_of(self, node: str) -> str | None:
        found = [each for each in self._membership.nodes.values() if each.id.startswith(node)]
        if len(found) != 1 or found[0].id == self.node or not found[0].lives:
            return None
        return found[0].url

    def check_opens(self) -> None:
        if self._membership.draining:
            raise Draining("This gateway is being drained and opens no more sessions; another one does")

    async def check_room(self, owned: Owned | None) -> None:
        if not self._membership.measure().is_full or not await self._db.repeatable(_others_room, self.node):
            return
        if owned is None or await self.home(*owned) != OURS:
            raise NodeFull("This gateway has no room for another session; one of its cluster has")

    async def held(self) -> Collection[Owned]:
        await self._db.repeatable(execute, statements.RELEASE_ENDED, self._membership.asked())
        return await self._db.repeatable(_keys, statements.HELD, self._membership.asked())

    # ---- sessions that other nodes took over --------------------------------------------------------------

    def follow(self, in_use: Callable[[], Collection[Owned]], end: Callable[[Owned], None]) -> None:
        """Call `end` with each key `in_use` that another node has taken, after a silence of this one."""
        self._in_use, self._end = in_use, end
        self._membership.beaten = self._look_again

    def _look_again(self, late: bool) -> None:
        """Look at the owners, after a beat, until that has succeeded often enough since the last silence."""
        if late:
            self._looks = LOOKS
        if self._looks and (self._looking is None or self._looking.done()):
            name = "look at the owners of sessions"
            self._looking = self._tasks.share(self._look(), name, errors=(StorageError,))

    async def _look(self) -> None:
        used = self._in_use()
        held = {*await self._db.repeatable(_keys, statements.HELD, self._membership.asked())}
        self._looks -= 1
        for owned in used:
            if owned[0] and owned not in held:
                self._end(owned)

    async def close(self) -> None:
        """Free the keys of all sessions that have ended."""
        try:
            await self._tasks.finished()
            await self._db.repeatable(execute, statements.RELEASE_ENDED, self._membership.asked())
        except StorageError as error:
            logger.warning("The keys of this node could not be released: %s", error.message)
        finally:
            await self._db.close()


def _others_room(db: Connection, node: str) -> bool:
    """Return whether another node has room."""
    nodes = [node_of(row, row[9]) for row in db.execute(statements.LIST, prepare=True)]
    return any(each.id != node and each.state is NodeState.UP and not each.load.is_full for each in nodes)


def _keys(db: Connection, statement: str, asked: dict[str, object]) -> list[Owned]:
    return [(principal, key) for principal, key in db.execute(statement, asked)]


async def _end_of(freed: asyncio.Future[None]) -> None:
    await freed
