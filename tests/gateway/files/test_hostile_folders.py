"""Whatever a cell makes of its workspace: it is watched, listed, moved, kept, exported and removed."""

from __future__ import annotations

import asyncio
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from cellgate.execution.request import ExecuteRequest
from cellgate.files import tree
from cellgate.sessions.session import Session
from tests.conftest import StartGateway
from tests.core.fakes import House
from tests.core.test_faults import BODY, ended
from tests.support.hostile import HOSTILE, place_of_nobody, run_as
from tests.support.server import GatewayProcess, until

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
    builder = run.builder
    await run.wait()
    assert builder is not None
    assert [file["path"].rsplit("/", 1)[1] for file in builder.result()["files"]] == ["seen"]
    (deep / "d" / "d").mkdir(parents=True)
    (deep / "d" / "d" / "beyond").touch()
    for _ in range(2):
        run = session.submit(ExecuteRequest(code="ok"))
        builder = run.builder
        await run.wait()
        assert builder is not None
        assert builder.result()["files"] == []
    assert not tree.scan(folder)[1]
    await house.close()


TRAPS = """
import os, socket
top = os.getcwd()
for mode in (0o000, 0o111, 0o444, 0o555):
    os.makedirs(f'{mode:o}/inner'); open(f'{mode:o}/inner/file', 'w').close()
    os.chmod(f'{mode:o}/inner', mode); os.chmod(f'{mode:o}', mode)
os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('socket')
os.symlink('loop', 'loop'); os.symlink('/etc', 'out')
for name in (b'line\\nbreak', b'\\xff\\xfe', b'x' * 255, b'-rf'):
    os.mkdir(name); open(name + b'/' + name, 'w').close()
open('plain', 'w').write('plain')
for _ in range(3000):
    os.mkdir('d'); os.chdir('d')
os.chdir(top)
"""


def test_a_sandboxed_gateway_lives_with_all_of_it(gateway: GatewayProcess, session: str) -> None:
    lives_with_traps(gateway, session)


@pytest.mark.usefixtures("docker")
def test_a_gateway_with_containers_lives_with_all_of_it(start_gateway: StartGateway) -> None:
    lives_with_traps(start_gateway(backend="docker", pool_size=0), "s")


@pytest.mark.usefixtures("gvisor")
def test_a_gateway_with_gvisor_lives_with_all_of_it(start_gateway: StartGateway) -> None:
    lives_with_traps(start_gateway(backend="docker", pool_size=0, runtime="runsc"), "s")


def lives_with_traps(gateway: GatewayProcess, session: str) -> None:
    """Watched, listed, moved to a fresh kernel, exported, kept and removed."""
    path = f"/v1/sessions/{session}"
    assert gateway.execute(session, TRAPS)["status"] == "ok"
    for _ in range(2):
        assert gateway.execute(session, "open('plain').read()")["status"] == "ok"
        listed = gateway.get(f"{path}/files").json()
        assert "plain" in {file["path"] for file in listed["files"]}
        assert listed["complete"] is False
        bundle = gateway.get(f"{path}/bundle")
        assert bundle.status == 200
        with zipfile.ZipFile(io.BytesIO(bundle.body)) as archive:
            assert archive.read("work/plain") == b"plain"
            left_out = json.loads(archive.read("manifest.json"))["left_out"]
        assert any("deeper than 64 names" in each for each in left_out)
        assert gateway.post(f"{path}/restart").status == 200
    workspace = gateway.workspace(session)
    assert gateway.delete(path).status == 204
    until(lambda: not workspace.exists(), "the workspace is not removed")
    assert gateway.execute(session, "import os; os.listdir()")["text"] == "[]"


@pytest.mark.timeout(300)
def test_very_deep_folders_and_a_very_large_one(gateway: GatewayProcess, session: str) -> None:
    """The policy: 64 names deep and 100,000 entries are looked at, and that there is more is told."""
    code = (
        "import os\ntop = os.getcwd()\nos.mkdir('many')\n"
        "for n in range(101_000): os.close(os.open(f'many/{n}', os.O_CREAT | os.O_WRONLY))\n"
        "for _ in range(5_000): os.mkdir('d'); os.chdir('d')\n"
        "os.chdir(top)"
    )
    assert gateway.execute(session, code, timeout=120)["status"] == "ok"
    assert gateway.post(f"/v1/sessions/{session}/restart", timeout=120).status == 200
    assert gateway.execute(session, "import os; sorted(os.listdir())")["text"] == "['d', 'many']"
    assert gateway.get(f"/v1/sessions/{session}/files?limit=1").json()["complete"] is False
    workspace = gateway.workspace(session)
    assert gateway.delete(f"/v1/sessions/{session}", timeout=120).status == 204
    until(lambda: not workspace.exists(), "the workspace is not removed", seconds=120)
