"""What the fork server says of zygotes that don't start; the zygotes are played."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from cellgate_kernels.base.resources import ResourceLimits
from cellgate_kernels.forking import server as fork_server
from cellgate_kernels.forking.messages import NotForked
from cellgate_kernels.forking.server import ForkRequest, ForkServer, ForkSettings, ZygoteLineage
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


class Ready(Dying):
    """A zygote that has loaded its libraries at once, and refuses each fork."""

    usable = True
    forked = 0
    since = float("inf")
    retired = ""

    async def start(self, _: object) -> None:
        """It is ready."""

    def check_variables(self, _: object) -> None:
        """Refuse."""
        raise NotForked("played")

    def retire(self, why: str) -> None:
        """It takes no more requests."""
        self.retired = why


@pytest.mark.parametrize(("unused", "gives_way"), [(0.0, True), (3600.0, False)])
async def test_one_zygote_too_many_takes_the_place_of_one_that_nobody_uses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, unused: float, gives_way: bool
) -> None:
    made: list[Ready] = []

    def make(*_: object) -> Ready:
        made.append(Ready())
        return made[-1]

    monkeypatch.setattr(fork_server, "SandboxZygote", make)
    server = ForkServer([(tmp_path, True)], settings=ForkSettings(lineages=2, unused=unused))
    folders = LaunchFolders(tmp_path / "run", tmp_path / "work", owns_workspace=True)

    async def fork(kernelspec: str) -> str:
        lineage = ZygoteLineage((kernelspec,), (), (), packages=False)
        with pytest.raises(NotForked) as refused:
            await server.fork(ForkRequest(lineage, {}, ResourceLimits(), folders))
        return refused.value.message

    for kernelspec in ("first", "second", "first"):
        assert await fork(kernelspec) == "played"
    assert len(made) == 2
    assert await fork("third") == ("played" if gives_way else "there are zygotes for other kernels already")
    assert [bool(zygote.retired) for zygote in made] == ([False, True, False] if gives_way else [False] * 2)
    assert await fork("first") == "played"
    assert len(made) == (3 if gives_way else 2)
    for zygote in made:
        zygote.kill()
    await server.close()
