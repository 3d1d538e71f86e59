"""A zygote that does not stop talking: of each fork it has one answer and one end to tell, and no more."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from cellgate_kernels.base.tasks import Supervisor
from cellgate_kernels.forking.forker import Forker
from cellgate_kernels.launch.backend import KernelExit

PATIENCE = 60.0
READY = b'{"kind": "ready", "asked": [], "failed": [], "threads": 1, "reserved": 0}'
ENDED = b'{"kind": "ended", "number": 0, "status": 0}'


class Outer:
    """What the zygote would run in."""

    def __init__(self) -> None:
        self.exited: asyncio.Future[KernelExit] = asyncio.get_running_loop().create_future()

    def kill(self) -> None:
        """As if it had ended at once."""
        if not self.exited.done():
            self.exited.set_result(KernelExit.of_returncode(-9))

    def log_tail(self) -> str:
        """It wrote nothing."""
        return ""


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ours, theirs
    ours.close()
    theirs.close()


async def test_a_zygote_that_repeats_itself_is_ended(
    ends: tuple[socket.socket, socket.socket], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    ours, theirs = ends
    outer = Outer()
    forker = Forker(outer, ours, {}, Supervisor())
    forker.forked = 1
    theirs.send(READY)
    for _ in range(3):
        theirs.send(ENDED)
    async with asyncio.timeout(PATIENCE):
        await outer.exited
        await asyncio.sleep(0)
    assert not forker.usable
    assert "A zygote is given up after 1 forks: the zygote said more than" in caplog.text
