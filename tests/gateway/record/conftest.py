"""A PostgreSQL server for the tests of a process, with an empty database for each test that wants one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.postgresql import PostgresServer, postgresql


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; whoever stops it starts it again."""
    with postgresql() as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    """The URL of an empty database."""
    return postgres_server.database()
