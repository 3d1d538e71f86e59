"""Handlers behind the gateway's own listener, in the test's process, with little around them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tornado.netutil import bind_sockets
from tornado.web import Application, RequestHandler

from cellgate.http.access import AccessPolicy
from cellgate.http.listener.certificate import Certificate
from cellgate.http.listener.server import Listener
from cellgate.http.listener.settings import ListenerSettings
from cellgate.http.services import Front, Kernels, People, Services, Sessions, Storage
from cellgate.http.tracing import Tracer
from cellgate.identity.administrator import Administrator
from cellgate.identity.authentication import Authentication
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.store.opening import reader_of_users
from cellgate.quotas.usage import Usage

OPEN = AccessPolicy(
    Authentication(PrincipalDirectory(reader_of_users(Path("/nowhere")), Administrator(None)))
)
"""Everybody may ask."""


def services_of(**given: Any) -> Services:
    """Return services with these parts alone, each in its group, and what no group has beside them.

    They are those of no cluster.
    """
    given = {"hop": None} | given
    for kind in (Storage, People, Kernels, Sessions, Front):
        named = {field.name: given.pop(field.name) for field in fields(kind) if field.name in given}
        given[kind.__name__.lower()] = SimpleNamespace(**named)
    return cast(Services, SimpleNamespace(**given))


class Plain(RequestHandler):
    """A handler of tornado's own kind, which has no use for services."""

    def initialize(self, services: Any) -> None:
        """Tornado's hook."""


@asynccontextmanager
async def sending(port: int, data: bytes) -> AsyncIterator[socket.socket]:
    """A connection that does not block, on which this was sent."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(connection, data)
        yield connection


@asynccontextmanager
async def listening(
    handlers: Mapping[str, type[RequestHandler]],
    *,
    settings: ListenerSettings | None = None,
    closed_by_us: Callable[[str], None] = lambda _: None,
    gateway: str | None = None,
    certificate: Certificate | None = None,
    most: int | None = None,
    **services: Any,
) -> AsyncIterator[tuple[int, Listener]]:
    """Serve handlers by their paths, each given these services of the gateway; the port, and the listener.

    `most`: bytes of a body.
    """
    usual = {"access": OPEN, "usage": Usage(), "tracer": Tracer()}
    given = {"services": services_of(**usual | services)}
    routes = [(path, handler, given) for path, handler in handlers.items()]
    listener = Listener(
        Application(cast(Any, routes), log_function=lambda _: None, paths={}),
        settings=settings or ListenerSettings(),
        closed_by_us=closed_by_us,
        gateway=gateway,
        certificate=certificate,
        max_buffer_size=most,
    )
    sockets = bind_sockets(0, "127.0.0.1")
    listener.add_sockets(sockets)
    try:
        yield sockets[0].getsockname()[1], listener
    finally:
        listener.stop()
        await listener.close_all_connections()
