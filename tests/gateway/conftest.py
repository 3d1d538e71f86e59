"""A second shared gateway, with bounds so small that tests reach them, and a PostgreSQL server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest

from tests.conftest import NO_ENGINE, serving
from tests.support.postgresql import PostgresServer, postgresql
from tests.support.server import IN_TIME, GatewayProcess


@pytest.fixture(scope="session")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """One gateway whose queues and caps are small, for all tests of them."""
    with serving(
        tmp_path_factory.mktemp("strict") / "data",
        "auto",
        docker_url=NO_ENGINE,
        pool_size=1,
        max_queue=2,
        interrupt_grace=IN_TIME,  # a kernel that takes the place of another has as long to come
        keep_alive=0.2,
        cull_interval=0.25,
        text_cap="64k",
        data_cap="64k",
    ) as process:
        yield process


@pytest.fixture
def strict_session(strict: GatewayProcess) -> Iterator[str]:
    """A key on the strict gateway that no other test uses; its session is ended afterwards."""
    key = f"test-{uuid.uuid4().hex[:12]}"
    yield key
    strict.delete(f"/v1/sessions/{key}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[PostgresServer]:
    """A running server; whoever stops it starts it again."""
    with postgresql() as server:
        yield server


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    """The URL of an empty database."""
    return postgres_server.database()
