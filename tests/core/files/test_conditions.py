"""Uploads on a condition, and the tags that conditions compare: no two contents of a file have the same."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellgate.errors import FileChanged
from cellgate.files import tree
from cellgate.files.precondition import ANY, Precondition
from cellgate.sessions.files import Placed, SessionFiles, Staged, UploadSpace
from cellgate.sessions.session import Session
from cellgate.wire.models import SessionBody
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.threads import ThreadLanes
from tests.core.fakes import House
from tests.core.test_faults import BODY

PARTS = ("f",)
ABSENT = Precondition(none_match=ANY)


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    made = await House.open(tmp_path / "house")
    yield made
    await made.close()


@pytest.fixture
async def files(house: House, tmp_path: Path) -> AsyncIterator[SessionFiles]:
    lanes = ThreadLanes(2)
    made = SessionFiles(house.journal, house.manager, lanes, UploadSpace(tmp_path, 0, 64 * MIB))
    yield made
    await made.close()
    lanes.close()


async def put(
    files: SessionFiles, session: Session, content: bytes, condition: Precondition | None = None
) -> Placed:
    """Upload a file as a request does."""
    incoming = await files.reserve(session, len(content), PARTS)
    try:
        upload = files.begin(incoming)
        await upload.write(content)
        await upload.finish()
        (placed,) = await files.place(session, incoming, [Staged(PARTS, upload, condition)])
    finally:
        await files.discard(incoming)
    return placed


def only_over(tag: str) -> Precondition:
    return Precondition(match=frozenset({tag}))


async def read(files: SessionFiles) -> tuple[str, bytes]:
    """Return the tag that a download tells, and the content."""
    descriptor, state = await files.open("ada", "s", PARTS)
    with os.fdopen(descriptor, "rb") as file:
        return state.tag, file.read()


async def test_a_file_is_replaced_only_over_the_one_that_was_seen(house: House, files: SessionFiles) -> None:
    session, _ = await house.manager.get_or_create("ada", BODY)
    first = await put(files, session, b"1", ABSENT)
    assert await read(files) == (first.tag, b"1")
    second = await put(files, session, b"2", only_over(first.tag))
    events = session.log.last_seq
    for late in (only_over(first.tag), ABSENT):
        with pytest.raises(FileChanged):
            await put(files, session, b"3", late)
    assert await read(files) == (second.tag, b"2")
    assert session.log.last_seq == events


async def test_a_file_is_removed_only_if_it_is_the_one_that_was_seen(
    house: House, files: SessionFiles
) -> None:
    session, _ = await house.manager.get_or_create("ada", BODY)
    first = await put(files, session, b"1")
    second = await put(files, session, b"2")
    events = session.log.last_seq
    with pytest.raises(FileChanged):
        await files.remove("ada", "s", PARTS, only_over(first.tag))
    assert (session.log.last_seq, await read(files)) == (events, (second.tag, b"2"))
    await files.remove("ada", "s", PARTS, only_over(second.tag))
    with pytest.raises(FileChanged, match="There is no file"):
        await files.remove("ada", "s", PARTS, Precondition(match=ANY))


async def test_sessions_with_one_workspace_do_not_lose_each_others_file(
    house: House, files: SessionFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another session's upload arrives just when the first one's condition was found to hold."""
    session, _ = await house.manager.get_or_create("ada", BODY)
    body = SessionBody(session="b", workspace_of="s")
    other, _ = await house.manager.get_or_create("ada", body)
    assert other.slot.workspace == session.slot.workspace
    tag = (await put(files, session, b"1")).tag
    loop, check = asyncio.get_running_loop(), tree.check
    others: list[asyncio.Task[Placed]] = []

    async def meanwhile() -> None:
        others.append(asyncio.create_task(put(files, other, b"theirs", only_over(tag))))
        # It must wait, so there is nothing to wait for: it gets the time that it would need.
        await asyncio.wait(others, timeout=0.3)

    def held(root: Path, parts: tree.Parts, condition: Precondition) -> None:
        check(root, parts, condition)
        if not others:
            asyncio.run_coroutine_threadsafe(meanwhile(), loop).result()

    monkeypatch.setattr(tree, "check", held)
    mine = await put(files, session, b"mine", only_over(tag))
    with pytest.raises(FileChanged):
        await others[0]
    assert await read(files) == (mine.tag, b"mine")


def test_a_condition_that_fails_makes_no_folder(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder")
    for parts in (("new", "f"), ("folder",), ("link",)):
        with pytest.raises(FileChanged, match="There is no file"):
            tree.check(tmp_path, parts, Precondition(match=ANY))
        tree.check(tmp_path, parts, ABSENT)
    with pytest.raises(FileChanged, match="There is no file"):
        tree.check(tmp_path / "nowhere", PARTS, Precondition(match=ANY))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "link"]


async def test_an_upload_to_the_inode_of_a_former_one_has_another_tag(
    house: House, files: SessionFiles
) -> None:
    """However coarse the system's times are: of all that differs, the time of writing alone is compared."""
    session, _ = await house.manager.get_or_create("ada", BODY)
    path = session.slot.workspace / "f"
    times = []
    for _ in range(3):
        before = time.time_ns()
        await put(files, session, b"1")
        times.append(path.stat().st_mtime_ns)
        assert before <= times[-1] <= time.time_ns()
    assert len(set(times)) == 3


def test_a_file_of_this_tick_is_looked_at_until_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1")
    clock = [path.stat().st_ctime_ns] * 2 + [time.time_ns() + tree.TICK]
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        path.write_bytes(b"2" * (1 + len(pauses)))

    monkeypatch.setattr(tree.time, "clock_gettime_ns", lambda _: clock[len(pauses)])
    monkeypatch.setattr(tree.time, "sleep", pause)
    descriptor, state = tree.open_settled(tmp_path, PARTS)
    os.close(descriptor)
    assert len(pauses) == 2
    assert state.size == path.stat().st_size == 3


def test_a_file_that_is_written_on_and_on_is_read_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "f"
    path.write_bytes(b"1")
    pauses: list[float] = []
    monkeypatch.setattr(tree.time, "clock_gettime_ns", lambda _: path.stat().st_ctime_ns)
    monkeypatch.setattr(tree.time, "sleep", pauses.append)
    descriptor, state = tree.open_settled(tmp_path, PARTS)
    assert os.read(descriptor, 9) == b"1"
    os.close(descriptor)
    assert (len(pauses), state.size) == (tree.MOST_LOOKS, 1)
