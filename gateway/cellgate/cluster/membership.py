"""This gateway as a node of its cluster: its signs of life, and what is known of the other nodes.

A thread with a connection of its own writes a beat at intervals, so that a busy loop misses none, and reads
all nodes by the same statement. Nothing ends because beats are late: the record's fence decides who writes.
``owners`` claims keys in the name of the node; ``statements`` has the SQL and every rule about time.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import psycopg

from cellgate.cluster import statements
from cellgate.cluster.nodes import Load, Node, NodeState, node_of
from cellgate.cluster.settings import ClusterSettings
from cellgate.errors import StorageError
from cellgate.record.store.postgresql.record_connection import (
    Connection,
    RecordAddress,
    connect,
    storage_error,
)
from cellgate.record.store.postgresql.schema import RECORD, make_tables
from cellgate_kernels.base.errors import in_words
from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.base.threads import Lane

logger = logging.getLogger(__name__)

PAUSE_SECONDS = 0.2
"""The shortest time between two beats, however often a node is full and then is not."""
END_SECONDS = 2.0
"""How long the end waits for a beat that the server does not answer."""


class Membership:
    """A node. Open it with `open`, and `close` it once its keys are released.

    `measure` returns its load; it is called on the loop after each beat, for the next one. `beaten` is called
    after each beat, with whether others may have taken sessions over since the one before. `lost` is done
    when the node's name is another's.
    """

    def __init__(self, node: str, settings: ClusterSettings, address: RecordAddress, lane: Lane) -> None:
        self.node = node
        self.settings = settings
        self.incarnation = 0
        self.nodes: Mapping[str, Node] = {}
        self.takeovers = 0
        self.measure: Callable[[], Load] = Load
        self.beaten: Callable[[bool], None] = lambda late: None
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._address = address
        self._lane = lane
        self._load = Load()
        self._loop = asyncio.get_running_loop()
        self._db: Connection | None = None
        self._stopping = threading.Event()
        self._hurry = threading.Event()
        self._failing = False
        self._thread = threading.Thread(target=self._run, name="cluster-beats", daemon=True)
        self._guarded_beaten = Supervisor().guard(self._beaten, "beat of the cluster")

    @classmethod
    async def open(
        cls, node: str, settings: ClusterSettings, address: RecordAddress, lane: Lane
    ) -> Membership:
        """Join the cluster whose record is open at the address. Raises StorageError."""
        membership = cls(node, settings, address, lane)
        await lane.run(membership._join)
        membership._thread.start()
        return membership

    def asked(self, **more: object) -> dict[str, object]:
        """Return the values that every statement of this node takes, with `more` of one statement's own."""
        lease = self.settings.lease
        return {"node": self.node, "incarnation": self.incarnation, "lease": lease, **more}

    @property
    def draining(self) -> bool:
        """Whether this node is to open no more sessions."""
        own = self.nodes.get(self.node)
        return own is not None and own.state is NodeState.DRAINING

    def tell_room(self) -> None:
        """Beat soon if the node has become full, or has room again."""
        load = self.measure()
        if load.is_full != self._load.is_full:
            self._load = load
            self._hurry.set()

    async def close(self) -> None:
        """Stop the beats, and show the node as down."""
        self._stop()
        await self._lane.run(self._thread.join, END_SECONDS)
        if self._thread.is_alive() and self._db is not None:
            self._db.give_up()
            await self._lane.run(self._thread.join, END_SECONDS)

    # ---- in the thread ------------------------------------------------------------------------------------

    def _connect(self) -> Connection:
        """Return a connection that gives up a server without an answer: a beat is of no use after a lease."""
        return connect(self._address, patience=self.settings.lease)

    def _join(self) -> None:
        db = self._connect()
        try:
            with db.transaction():
                make_tables(db, RECORD, statements.TABLES)
            row = db.execute(statements.JOIN, self.asked(url=self.settings.advertise)).fetchone()
        except psycopg.Error as error:
            db.close()
            raise storage_error(error) from error
        assert row is not None
        self.incarnation, self._db = row[0], db
        logger.info("Joined the cluster as the node %s, incarnation %d", self.node, self.incarnation)

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._beat()
            except Exception as error:  # noqa: BLE001 - a node without beats loses its sessions
                self._fail(error)
            pause = min(PAUSE_SECONDS, self.settings.beat)
            self._stopping.wait(pause)
            self._hurry.wait(self.settings.beat - pause)
            self._hurry.clear()
        if self._db is not None:
            try:
                self._db.execute(statements.LEAVE, self.asked())
            except psycopg.Error as error:
                logger.info("The node %s could not be shown as down: %s", self.node, in_words(error))
            self._db.close()

    def _beat(self) -> None:
        if self._db is None:
            self._db = self._connect()
        load = self._load
        asked = self.asked(capacity=load.capacity, used=load.used, warm=load.warm, takeovers=self.takeovers)
        asked["url"] = self.settings.advertise
        rows = self._db.execute(statements.BEAT, asked, prepare=True).fetchall()
        if self._failing:
            self._failing = False
            logger.info("The node %s beats again", self.node)
        if not self._stopping.is_set():
            self._loop.call_soon_threadsafe(self._guarded_beaten, rows)

    def _fail(self, error: Exception) -> None:
        if self._db is not None and self._db.closed:
            self._db = None
        if not self._failing:
            self._failing = True
            logger.warning(
                "The node %s can't beat; after its lease others take its sessions: %s",
                self.node,
                in_words(error),
                exc_info=None if isinstance(error, StorageError | psycopg.Error) else error,
            )

    # ---- on the loop --------------------------------------------------------------------------------------

    def _beaten(self, rows: list[tuple[Any, ...]]) -> None:
        if not (rows and rows[0][-1]):
            self._lose()
            return
        silent = next(row[9] for row in rows if row[0] == self.node)
        # The rows show this node as it was before its beat.
        self.nodes = {row[0]: node_of(row, 0 if row[0] == self.node else row[9]) for row in rows}
        self._load = self.measure()
        late = silent > self.settings.lease
        if late:
            logger.warning("The node %s was silent for %.1f s", self.node, silent)
        self.beaten(late)

    def _stop(self) -> None:
        self._stopping.set()
        self._hurry.set()

    def _lose(self) -> None:
        self._stop()
        if not self.lost.done():
            self.lost.set_result(
                f"Another gateway has started as this node of the cluster, {self.node}, or the node was"
                " removed, as by a restore of a copy of the database without it: this one stops. Each gateway"
                " needs a data folder of its own, and no copy of one"
            )
