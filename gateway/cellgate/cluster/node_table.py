"""The nodes of a cluster for commands: listed, drained and removed, whether gateways run or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import psycopg

from cellgate.cluster import statements
from cellgate.cluster.nodes import Node, node_of
from cellgate.errors import Conflict, NotFound, StorageError
from cellgate.record.store.postgresql.record_connection import (
    ANSWER_SECONDS,
    Connection,
    RecordAddress,
    connect,
    storage_error,
)


class NodeTable:
    """The table of nodes in a database. Methods block, and raise StorageError."""

    def __init__(self, address: RecordAddress) -> None:
        self._address = address

    def nodes(self) -> list[Node]:
        """Return all nodes, by id."""
        with self._connected() as db:
            return [node_of(row, row[9]) for row in db.execute(statements.LIST)]

    def drain(self, node: str) -> None:
        """Let a node open no more sessions until it starts again. Raises NotFound and Conflict."""
        self._change(statements.DRAIN, node, "is not up")

    def remove(self, node: str) -> None:
        """Forget a node that is down, and free its sessions. Raises NotFound and Conflict."""
        self._change(statements.REMOVE, node, "is not down: stop its gateway first")

    def _change(self, statement: str, node: str, unfit: str) -> None:
        with self._connected() as db:
            if db.execute(statement, (node,)).fetchone() is None:
                if all(row[0] != node for row in db.execute(statements.LIST)):
                    raise NotFound(f"There is no node {node!r}; see cellgate node list")
                raise Conflict(f"The node {node} {unfit}")

    @contextmanager
    def _connected(self) -> Iterator[Connection]:
        db = connect(self._address, patience=ANSWER_SECONDS)
        try:
            yield db
        except psycopg.errors.UndefinedTable as error:
            raise StorageError(f"There is no cluster in the {self._address}") from error
        except psycopg.Error as error:
            raise storage_error(error) from error
        finally:
            db.close()
