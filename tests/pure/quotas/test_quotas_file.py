"""The file of quotas is read again when it has changed, and a bad one changes nothing."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellgate.quotas.quotas import Policy
from cellgate.quotas.quotas_file import LARGEST_FILE, QUOTAS_FILE, read_quotas
from cellgate_kernels.base import regular, watched_file
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.base.watched_file import WatchedFile

LOGGER = "cellgate_kernels.base.watched_file"


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane("files", 1)
    yield lane
    lane.close()


def write(path: Path, text: str, *, at: int | None = None) -> None:
    path.write_text(text)
    if at is not None:
        os.utime(path, (at, at))


def watched(path: Path, lane: Lane) -> tuple[WatchedFile[Policy], list[Policy]]:
    """Return what watches the file, and the policies that it has told of."""
    seen: list[Policy] = []

    async def changed(policy: Policy) -> None:
        seen.append(policy)

    return WatchedFile(path, QUOTAS_FILE, read_quotas(path), changed, lane), seen


async def test_a_changed_file_applies(tmp_path: Path, lane: Lane) -> None:
    path = tmp_path / "q.toml"
    write(path, "[roles.user]\nsessions = 1")
    file, seen = watched(path, lane)
    await file.look()
    assert seen == []
    write(path, "[roles.user]\nsessions = 2")
    await file.look()
    await file.look()
    assert [policy.of("ada", "user").sessions for policy in seen] == [2]


async def test_a_change_within_one_tick_of_the_clock_is_seen(tmp_path: Path, lane: Lane) -> None:
    path = tmp_path / "q.toml"
    write(path, "[roles.user]\nsessions = 1", at=1000)
    file, seen = watched(path, lane)
    await file.look()
    # The same size, and the same time; only the time of its last change of any kind could differ.
    write(path, "[roles.user]\nsessions = 2", at=1000)
    await file.look()
    assert [policy.of("ada", "user").sessions for policy in seen] == [2]


async def test_a_bad_file_is_logged_once_and_changes_nothing(
    tmp_path: Path, lane: Lane, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, LOGGER)
    path = tmp_path / "q.toml"
    write(path, "[roles.user]\nsessions = 1")
    file, seen = watched(path, lane)
    for text in ("[roles.user]\nsessions = 0", "[roles.user]\nsesions = 1"):
        write(path, text)
        for _ in range(3):
            await file.look()
    path.unlink()
    for _ in range(3):
        await file.look()
    warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert [record.getMessage().split(": ")[0] for record in warnings] == [
        "The gateway keeps the former quotas"
    ] * 3
    assert "sessions must be a whole number" in warnings[0].getMessage()
    assert "did you mean sessions?" in warnings[1].getMessage()
    assert "can't be read: No such file" in warnings[2].getMessage()
    assert seen == []
    write(path, "[roles.user]\nsessions = 1")
    await file.look()
    assert seen == []
    assert caplog.records[-1].getMessage() == f"The gateway found the former quotas in {path} again"


async def test_a_file_that_could_not_be_read_is_read_as_soon_as_it_can(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It has changed long before, and does not change again."""
    path = tmp_path / "q.toml"
    write(path, "[roles.user]\nsessions = 1")
    file, seen = watched(path, lane)
    write(path, "[roles.user]\nsessions = 2")

    def refuse(_path: Path, _most: int) -> bytes:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patched:
        patched.setattr(regular, "read_regular", refuse)
        patched.setattr(watched_file, "SETTLED_SECONDS", -1.0)
        for _ in range(3):
            await file.look()
    assert seen == []
    assert len(caplog.records) == 1
    await file.look()
    assert [policy.of("ada", "user").sessions for policy in seen] == [2]


async def test_a_value_that_could_not_be_taken_is_tried_again(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file has changed long before, and does not change again."""
    path = tmp_path / "q.toml"
    write(path, "[roles.user]\nsessions = 1")
    faults, seen = [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))], []

    async def changed(policy: Policy) -> None:
        if faults:
            raise faults.pop()
        seen.append(policy)

    file = WatchedFile(path, QUOTAS_FILE, read_quotas(path), changed, lane)
    write(path, "[roles.user]\nsessions = 2")
    monkeypatch.setattr(watched_file, "SETTLED_SECONDS", -1.0)
    with pytest.raises(OSError, match="space"):
        await file.look()
    await file.look()
    assert [policy.of("ada", "user").sessions for policy in seen] == [2]


async def test_a_watched_file_is_looked_at(tmp_path: Path, lane: Lane) -> None:
    path = tmp_path / "q.toml"
    write(path, "")
    file, _ = watched(path, lane)
    file.start()
    await file.close()


def test_only_a_regular_file_of_a_sensible_size_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidInput, match="can't be read: it is no regular file"):
        read_quotas(pipe)
    with pytest.raises(InvalidInput, match="can't be read"):
        read_quotas(tmp_path)
    with pytest.raises(InvalidInput, match="can't be read: No such file"):
        read_quotas(tmp_path / "missing")
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate(LARGEST_FILE + 1)
    with pytest.raises(InvalidInput, match="larger than a file of quotas can be, 16,777,216 bytes"):
        read_quotas(large)
