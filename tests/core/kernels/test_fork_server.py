"""What the fork server says of zygotes that don't start; the zygotes are played."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.forking import server as fork_server
from cellgate_kernels.forking.messages import NotForked
from cellgate_kernels.forking.server import ForkRequest, ForkServer, ZygoteLineage
from cellgate_kernels.launch.folders import LaunchFolders


class Dying:
    """A zygote that loads its libraries until it is killed."""

    unreadable = None

    def __init__(self) -> None:
        self.exited: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def start(self, _: object) -> None:
        """Wait for the end."""
        await asyncio.shield(self.exited)
        raise NotForked("the zygote ended")

    def kill(self) -> None:
        """End it."""
        if not self.exited.done():
            self.exited.set_result(None)

    def retire(self, _: str) -> None:
        """It takes no more requests."""


@pytest.fixture
def zygotes(monkeypatch: pytest.MonkeyPatch) -> asyncio.Queue[Dying]:
    """Those that are made."""
    made: asyncio.Queue[Dying] = asyncio.Queue()

    def make(*_: object) -> Dying:
        zygote = Dying()
        made.put_nowait(zygote)
        return zygote

    monkeypatch.setattr(fork_server, "SandboxZygote", make)
    return made


@pytest.mark.parametrize(("by_itself", "warnings"), [(True, 1), (False, 0)])
async def test_a_gateway_that_ends_does_not_warn_of_zygotes_that_it_ends(
    zygotes: asyncio.Queue[Dying],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    by_itself: bool,
    warnings: int,
) -> None:
    """Ctrl-C right after the start is no reason to look for what is wrong with the machine."""
    caplog.set_level(logging.WARNING)
    server = ForkServer([(tmp_path, True)])
    folders = LaunchFolders(tmp_path / "run", tmp_path / "work", owns_workspace=True)
    wanted = ForkRequest(ZygoteLineage((), (), (), packages=False), {}, ResourceLimits(), folders)
    forking = asyncio.create_task(server.fork(wanted))
    zygote = await zygotes.get()
    if by_itself:
        zygote.kill()
    else:
        await server.close()
    with pytest.raises(NotForked):
        await forking
    await server.close()
    assert len(caplog.records) == warnings
