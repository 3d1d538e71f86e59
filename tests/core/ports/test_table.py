"""Connections to the ports of programs: so many at once of a session and of a user, however they come."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

from cellgate.errors import QueueFull
from cellgate.ports.table import MOST_OF_PRINCIPAL, MOST_OF_SESSION, PortConnection, PortCounts, SessionPorts
from cellgate.record.events import EventLog
from cellgate.record.store.memory import MemoryStore
from cellgate.sessions.hosts import SessionPortsHost
from cellgate_kernels.base.errors import PortUnanswered
from cellgate_kernels.kernel.kernel import Kernel


class Answering:
    """A kernel whose programs listen on every port, except where nobody does."""

    def __init__(self, *, silent: bool = False) -> None:
        self.silent = silent

    async def connect_port(self, port: int) -> Any:
        await asyncio.sleep(0)  # as for an answer of the kernel's keeper: others come in between
        if self.silent:
            raise PortUnanswered(f"nobody listens on {port}")
        return None, SimpleNamespace(transport=SimpleNamespace(abort=lambda: None))


def made(counts: PortCounts, kernel: Answering, principal: str = "ada") -> SessionPorts:
    host = SessionPortsHost(EventLog(MemoryStore(), 1, "s"), lambda: cast(Kernel, kernel), lambda: None)
    return SessionPorts(host, counts, principal)


async def connected(ports: SessionPorts) -> PortConnection | None:
    try:
        return await ports.connect(8000)
    except (QueueFull, PortUnanswered):
        return None


async def at_once(*sessions: SessionPorts, count: int) -> list[PortConnection]:
    """The connections that came of so many attempts, in these sessions in turn."""
    attempts = [connected(sessions[number % len(sessions)]) for number in range(count)]
    return [each for each in await asyncio.gather(*attempts) if each is not None]


async def test_of_many_connections_at_once_as_many_are_made_as_may_be() -> None:
    counts, kernel = PortCounts(), Answering()
    sessions = [made(counts, kernel) for _ in range(6)]
    first = await at_once(sessions[0], count=100)
    assert len(first) == MOST_OF_SESSION
    rest = await at_once(*sessions, count=600)
    assert len(first) + len(rest) == MOST_OF_PRINCIPAL
    assert len(await at_once(made(counts, kernel, "bob"), count=1)) == 1, (
        "another user has places of their own"
    )
    for each in first:
        each.close()
        each.close()
    assert len(await at_once(*sessions, count=600)) == MOST_OF_SESSION
    for session in sessions:
        await session.close()
    assert len(await at_once(made(counts, kernel), count=100)) == MOST_OF_SESSION


async def test_attempts_that_fail_keep_no_place() -> None:
    counts = PortCounts()
    silent = made(counts, Answering(silent=True))
    for _ in range(3):
        assert await at_once(silent, count=100) == []
    assert len(await at_once(made(counts, Answering()), count=100)) == MOST_OF_SESSION
