"""A gateway that can open nothing any more: what ends, ends, no files are lost, nothing is left behind."""

from __future__ import annotations

import asyncio
import errno
import http.client
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cellgate.files.workspace import LATER
from cellgate.sessions.adoption import Recovery
from cellgate_kernels.base import trees
from cellgate_kernels.base.leftovers import PREFIX, is_leftover
from tests.conftest import serving
from tests.core.fakes import House
from tests.core.test_faults import BODY
from tests.support.nightly import mostly_nightly
from tests.support.open_files import no_open_files
from tests.support.server import GatewayProcess, Response, send, until

Ask = Callable[..., Response]

WRITE = "import os; os.makedirs('folder'); open('folder/file', 'w').write('kept')"
READ = "open('folder/file').read()"

BACKENDS = pytest.mark.parametrize("backend", mostly_nightly(["process", "sandbox"], ["sandbox"]))


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder whose path is short enough for sockets, so that all is below it."""
    with tempfile.TemporaryDirectory(prefix="cg-") as folder:
        yield Path(folder) / "data"


@pytest.fixture
def started(request: pytest.FixtureRequest, place: Path, backend: str) -> Iterator[GatewayProcess]:
    """A gateway without warm kernels."""
    if backend != "process":
        request.getfixturevalue(backend)
    with serving(place, backend) as gateway:
        yield gateway


@contextmanager
def without_open_files(gateway: GatewayProcess) -> Iterator[Ask]:
    """Requests on a connection that is there already, while the gateway can open nothing."""
    connection = gateway.connect()

    def ask(method: str, path: str, body: object = None) -> Response:
        send(connection, method, path, body)
        answer: http.client.HTTPResponse = connection.getresponse()
        return Response(answer.status, answer.headers, answer.read())

    try:
        assert ask("GET", "/healthz").status == 200
        with no_open_files(gateway.process.pid):
            yield ask
    finally:
        connection.close()


def folders(gateway: GatewayProcess) -> set[str]:
    """What is in the folders of kernels and of sessions' files."""
    return {path.name for name in ("run", "workspaces") for path in (gateway.data_dir / name).iterdir()}


@BACKENDS
def test_a_session_ends(started: GatewayProcess) -> None:
    """A purge tells that bytes are left; they are gone when files can be opened again."""
    for session in ("deleted", "purged"):
        assert started.execute(session, WRITE)["status"] == "ok"
    with without_open_files(started) as ask:
        assert ask("DELETE", "/v1/sessions/deleted").status == 204
        answer = ask("DELETE", "/v1/sessions/purged?purge=true")
        assert (answer.status, answer.headers["Location"]) == (202, "/v1/sessions/purged")
        assert ask("GET", "/v1/sessions/purged").json()["state"] == "purging"
        assert ask("GET", "/v1/sessions/deleted").json()["state"] == "ended"
        assert {is_leftover(name) for name in folders(started)} == {True}
    until(lambda: not folders(started), "folders are left", seconds=60)
    until(lambda: started.get("/v1/sessions/purged").status == 404, "bytes are left", seconds=60)
    for session in ("deleted", "purged"):
        assert started.execute(session, "import os; os.listdir()")["text"] == "[]"


@BACKENDS
def test_a_start_that_fails_tells_why_and_leaves_nothing(started: GatewayProcess) -> None:
    with without_open_files(started) as ask:
        answer = ask("POST", "/v1/sessions/s/execute", {"code": "1"})
        assert (answer.status, answer.reason) == (503, "kernel_start_failed")
        assert "Too many open files" in answer.json()["detail"]
    until(lambda: not folders(started), "folders are left", seconds=60)
    assert started.execute("s", "6 * 7")["text"] == "42"


@BACKENDS
def test_a_restart_that_fails_keeps_the_files(started: GatewayProcess) -> None:
    started.execute("s", WRITE)
    with without_open_files(started) as ask:
        answer = ask("POST", "/v1/sessions/s/restart")
        assert (answer.status, answer.reason) == (503, "kernel_start_failed")
    assert started.execute("s", READ)["text"] == "'kept'"
    assert not (started.data_dir / "workspaces" / "orphans").exists()


@pytest.mark.parametrize("backend", ["sandbox"])
def test_a_kernel_whose_disk_nobody_can_look_at_lives_on(started: GatewayProcess) -> None:
    """A look that fails says nothing of the kernel."""
    started.execute("s", "x = 42")
    with without_open_files(started) as ask:
        until(lambda: "can't be looked at" in started.log.read_text(), "nobody looks")
        for _ in range(5):
            assert ask("GET", "/v1/sessions/s").json()["state"] == "idle"
            time.sleep(1)
    assert started.execute("s", "x")["text"] == "42"
    assert started.log.read_text().count("can't be looked at") == 1


def test_what_a_former_gateway_left_goes_at_the_start(place: Path) -> None:
    data = place
    places = [data, data / "workspaces", data / "packages"]
    for folder in places:
        (folder / f"{PREFIX}of-before" / "folder").mkdir(parents=True)
    (data / "run" / "left").mkdir(parents=True)
    (data / "uploads").mkdir()
    (data / "uploads" / "left").touch()
    with serving(data, packages="numpy") as gateway:
        assert folders(gateway) == set()
        assert list((data / "uploads").iterdir()) == []
        assert [path for folder in places for path in folder.iterdir() if is_leftover(path.name)] == []


async def test_a_purge_is_not_over_before_the_files_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Though every byte of the record is."""
    monkeypatch.setattr("cellgate.sessions.purger.PURGE_PATIENCE", 0.2)
    house = await House.open(tmp_path)
    await house.manager.get_or_create("ada", BODY)
    (house.pool.kernels[0].folder / "file").write_text("secret")
    with monkeypatch.context() as patch:
        patch.setattr(trees, "remove", _refuse)
        assert not await house.manager.purger.purge("ada", "s", by="ada")
        row = house.manager.purger.purging("ada", "s")
        assert row is not None
        assert await house.journal.reads.session("ada", "s") is None
        assert not await house.manager.purger.purge("ada", "s", by="ada")
    async with asyncio.timeout(60):
        while house.manager.purger.purging("ada", "s") is not None:  # noqa: ASYNC110 - it tells nobody
            await asyncio.sleep(0.01)
    assert os.listdir(house.workspaces) == []  # noqa: PTH208
    await house.close()


def _refuse(path: Path) -> None:
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(path))


async def test_files_that_were_kept_unseen_belong_to_their_session(tmp_path: Path) -> None:
    """Also after the end of the session, and after that of the gateway."""
    house = await House.open(tmp_path)
    session, _ = await house.manager.get_or_create("ada", BODY)
    (program := house.pool.kernels[0].folder / "file").write_text("kept")
    program.chmod(0o4755)
    with no_open_files():
        await session.end("idle_timeout")
    (kept,) = house.kept()
    assert kept.name.endswith(LATER)
    await house.close()

    house = await House.open(tmp_path)
    await Recovery(house.journal, None, {}, house.manager.opener).recover()  # type: ignore[arg-type]  # no kernel
    (kept,) = house.kept()
    assert not kept.name.endswith(LATER)
    session, _ = await house.manager.get_or_create("ada", BODY)
    restored = house.pool.kernels[0].folder / "file"
    assert restored.read_text() == "kept"
    assert restored.stat().st_mode & 0o7000 == 0
    await house.manager.delete("ada", "s")
    assert os.listdir(house.workspaces) == []  # noqa: PTH208
    await house.close()
