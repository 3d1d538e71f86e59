"""A session's files, whatever they are: kept, moved and watched, with kernels that are fakes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from cellgate.execution.request import ExecuteRequest
from cellgate.files import tree
from cellgate.sessions.session import Session
from tests.core.fakes import House
from tests.core.test_faults import BODY, ended
from tests.support.hostile import HOSTILE, place_of_nobody, run_as

USERS = pytest.mark.parametrize("user", ["ourselves", "nobody"])


MADE = pytest.mark.parametrize("make", HOSTILE)


async def restarted_and_kept(root: Path, make: Callable[[Path], None]) -> None:
    """A session goes through all that can happen to its files, and each cell of it ends well."""
    house = await House.open(root)

    async def session() -> Session:
        return (await house.manager.get_or_create("ada", BODY))[0]

    def top() -> list[str]:
        folder = house.pool.kernels[-1].folder
        folder.chmod(0o700)
        return sorted(path.name for path in folder.iterdir())

    async with asyncio.timeout(60):
        first = await session()
        make(house.pool.kernels[0].folder)
        for _ in range(2):
            assert (await ended(first)).machine.outcome().status == "ok"
        await first.restart()
        there = top()
        assert there, "the files came along"
        assert (await ended(first)).machine.outcome().status == "ok"
        await first.end("idle_timeout")
        (kept,) = house.kept()
        tree.scan(kept)
        second = await session()
        assert top() == there
        assert (await ended(second)).machine.outcome().status == "ok"
        await house.manager.delete("ada", "s")
        await house.close()
    assert list(house.workspaces.iterdir()) == []


@USERS
@MADE
def test_a_session_lives_with_whatever_is_in_its_folder(make: Callable[[Path], None], user: str) -> None:
    """As root, whom no mode stops, and as an ordinary user, who may not even move a folder that is closed."""
    with place_of_nobody(in_memory=True) as root:
        run_as(user, lambda: asyncio.run(restarted_and_kept(root, make)))


def taken(path: Path) -> None:
    path.write_text("in the way")


async def test_files_that_can_t_be_moved_are_set_aside_and_not_removed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the place that they should be kept at is taken by something that is no folder."""
    house = await House.open(tmp_path)
    session, _ = await house.manager.get_or_create("ada", BODY)
    (house.pool.kernels[0].folder / "file").write_text("precious")
    taken(session.slot._files.path)
    with pytest.raises(Exception, match="can't be moved"):
        await session.restart()
    (aside,) = (house.workspaces / "orphans").iterdir()
    assert (aside / "file").read_text() == "precious"
    assert str(aside) in caplog.text
    assert (await ended(session)).machine.outcome().status == "ok"
    await house.close()


async def test_a_watch_does_not_take_what_it_can_t_see_for_deleted_or_new(tmp_path: Path) -> None:
    """More files than one look sees: nothing is told of those beyond, and nothing is told twice."""
    house = await House.open(tmp_path)
    session, _ = await house.manager.get_or_create("ada", BODY)
    folder = house.pool.kernels[0].folder
    deep = folder.joinpath(*["d"] * 62)
    deep.mkdir(parents=True)
    (deep / "seen").touch()
    run = session.submit(ExecuteRequest(code="ok"))
    builder = run.record.builder
    await run.end.wait()
    assert builder is not None
    assert [file.path.rsplit("/", 1)[1] for file in builder.result().files] == ["seen"]
    (deep / "d" / "d").mkdir(parents=True)
    (deep / "d" / "d" / "beyond").touch()
    for _ in range(2):
        run = session.submit(ExecuteRequest(code="ok"))
        builder = run.record.builder
        await run.end.wait()
        assert builder is not None
        assert builder.result().files == []
    assert not tree.scan(folder)[1]
    await house.close()
