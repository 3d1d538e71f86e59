"""Copies of workspaces, in which hostile code may have put anything, and may still."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from cellgate.errors import QuotaExceeded, ShuttingDown
from cellgate.files import copying
from cellgate.files.copying import copy_tree, data_bytes
from cellgate_kernels.base import trees

MIB = 1024 * 1024


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_files_folders_and_links_are_copied_as_they_are(source: Path, target: Path) -> None:
    (source / "a" / "b").mkdir(parents=True)
    (source / "a" / "c").mkdir()
    (source / "a" / "b" / "x.bin").write_bytes(b"x" * 100_000)
    (source / "a" / "c" / "run.sh").write_text("#!/bin/sh\n")
    (source / "a" / "c" / "run.sh").chmod(0o4755)
    (source / "empty").touch()
    (source / "leads out").symlink_to("/etc/passwd")
    os.utime(source / "empty", ns=(1, 10**18))
    assert copy_tree(source, target, MIB)
    assert (target / "a" / "b" / "x.bin").read_bytes() == b"x" * 100_000
    assert (target / "a" / "c" / "run.sh").stat().st_mode & 0o7777 == 0o755, "no set-id bit"
    assert (target / "leads out").readlink() == Path("/etc/passwd")
    assert (target / "empty").stat().st_mtime_ns == 10**18


def test_names_of_one_file_are_names_of_one_copy(source: Path, target: Path) -> None:
    (source / "inner").mkdir()
    (source / "a").write_bytes(b"x" * 300_000)
    for number in range(20):
        os.link(source / "a", source / "inner" / str(number))
    assert copy_tree(source, target, MIB), "they count once"
    copies = [target / "a", *(target / "inner").iterdir()]
    assert {path.stat().st_ino for path in copies} == {copies[0].stat().st_ino}
    assert copies[0].stat().st_nlink == 21
    copies[0].write_text("changed")
    assert (source / "a").read_bytes() == b"x" * 300_000


def test_names_that_can_not_be_linked_are_copied(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "a").write_text("a")
    os.link(source / "a", source / "b")

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    copy_tree(source, target, MIB)
    assert [(target / name).read_text() for name in ("a", "b")] == ["a", "a"]


def test_a_first_name_in_a_folder_that_code_replaces_by_a_link_leads_nowhere(
    source: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file outside, of the name that the first copy had, gets no name in the workspace."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a").write_text("secret")
    for name in ("first", "second"):
        (source / name).mkdir()
    (source / "first" / "a").write_text("a")
    os.link(source / "first" / "a", source / "second" / "a")
    made: list[str] = []
    add = copying._Linked.add

    def added(self: Any, entry: trees.Entry) -> None:
        add(self, entry)
        (first,) = (each for each in ("first", "second") if (target / each / "a").exists())
        made.append(first)
        (target / first).rename(target / "moved")
        (target / first).symlink_to(outside)
        monkeypatch.setattr(copying._Linked, "add", add)

    monkeypatch.setattr(copying._Linked, "add", added)
    copy_tree(source, target, MIB)
    (other,) = {"first", "second"} - set(made)
    assert (target / other / "a").read_text() == "a"
    assert (outside / "a").stat().st_nlink == 1


def test_a_name_of_a_file_that_was_written_in_between_has_what_is_in_it_now(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / "a").write_text("before")
    os.link(source / "a", source / "b")
    add = copying._Linked.add

    def written(self: Any, entry: trees.Entry) -> None:
        add(self, entry)
        monkeypatch.undo()
        (source / "a").write_text("now")

    monkeypatch.setattr(copying._Linked, "add", written)
    copy_tree(source, target, MIB)
    assert {path.read_text() for path in target.iterdir()} == {"before", "now"}


def test_what_a_copy_takes_is_known_before(source: Path) -> None:
    (source / "a").write_bytes(b"x" * 100_000)
    os.link(source / "a", source / "b")
    with (source / "sparse").open("wb") as file:
        file.write(b"begin")
        file.truncate(1 << 40)
    assert 100_000 < data_bytes(source, deepest=10, most=10) < 200_000


def test_a_copy_ends_when_it_is_told_to(source: Path, target: Path) -> None:
    for number in range(5):
        (source / str(number)).write_text("a")
    answers = iter([False, False, True])
    with pytest.raises(ShuttingDown):
        copy_tree(source, target, MIB, stop=lambda: next(answers))


def test_an_empty_folder_is_nothing(source: Path, target: Path) -> None:
    assert not copy_tree(source, target, MIB)


def test_what_is_no_file_is_left_out(source: Path, target: Path) -> None:
    os.mkfifo(source / "pipe")
    (source / "a").write_text("a")
    copy_tree(source, target, MIB)
    assert [path.name for path in target.iterdir()] == ["a"]


def test_holes_stay_holes_and_count_for_nothing(source: Path, target: Path) -> None:
    with (source / "sparse").open("wb") as file:
        file.write(b"begin")
        file.truncate(1 << 40)
    copy_tree(source, target, MIB)
    copied = (target / "sparse").stat()
    assert copied.st_size == 1 << 40
    assert copied.st_blocks * 512 < MIB
    with (target / "sparse").open("rb") as file:
        assert file.read(6) == b"begin\0"


def test_more_bytes_than_allowed_are_refused(source: Path, target: Path) -> None:
    for name in ("a", "b"):
        (source / name).write_bytes(b"x" * 600_000)
    with pytest.raises(QuotaExceeded, match="more than the session's limit"):
        copy_tree(source, target, MIB)


def test_more_entries_than_can_be_seen_are_refused(source: Path, target: Path) -> None:
    for number in range(5):
        (source / str(number)).touch()
    with pytest.raises(QuotaExceeded, match="can't be copied"):
        copy_tree(source, target, MIB, most=3)


def test_what_is_kept_may_be_deeper_than_what_a_branch_gets(source: Path, target: Path) -> None:
    inner = source.joinpath(*["d"] * 70)
    inner.mkdir(parents=True)
    (inner / "a").write_text("a")
    with pytest.raises(QuotaExceeded, match="deeper than 64"):
        copy_tree(source, target, MIB)
    trees.remove(target)
    target.mkdir()
    copy_tree(source, target, MIB, deepest=100)
    assert target.joinpath(*["d"] * 70, "a").read_text() == "a"


def test_a_file_system_without_ranges_is_copied_by_reading(
    source: Path, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> int:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(os, "copy_file_range", refuse)
    (source / "a").write_bytes(b"x" * 100_000)
    copy_tree(source, target, MIB)
    assert (target / "a").read_bytes() == b"x" * 100_000


def test_a_folder_of_the_copy_that_code_replaces_by_a_link_leads_nowhere(
    source: Path, target: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target is seen by the code of the sandbox, which may change it while it is filled."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (source / "folder").mkdir()
    (source / "folder" / "a").write_text("a")
    mkdir = os.mkdir

    def replaced(name: str, mode: int, *, dir_fd: int) -> None:
        mkdir(f"{name}.moved", mode, dir_fd=dir_fd)
        os.symlink(outside, name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "mkdir", replaced)
    with pytest.raises(OSError, match=r"Not a directory|Too many levels"):
        copy_tree(source, target, MIB)
    assert list(outside.iterdir()) == []
