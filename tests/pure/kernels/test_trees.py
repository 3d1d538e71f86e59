"""Trees of folders as hostile code makes them; as root and as the ordinary user who owns them."""

# ruff: noqa: PTH102, PTH104, PTH108, PTH110, PTH116, PTH118, PTH208, PTH211
# Names that are no text, and descriptors, are nothing for pathlib.

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest

from cellgate_kernels.base import trees
from cellgate_kernels.launch import folders
from cellgate_kernels.walls.set_id import clear_set_ids
from tests.support.hostile import HOSTILE, closed_folders, nested, odd_things, place_of_nobody, run_as
from tests.support.open_files import no_open_files

AS = pytest.mark.parametrize("user", ["ourselves", "nobody"])


@pytest.fixture
def place() -> Iterator[Path]:
    with place_of_nobody(in_memory=True) as place:
        yield place


MADE = pytest.mark.parametrize("make", HOSTILE)


@AS
@MADE
def test_all_is_removed(place: Path, make: Callable[[Path], None], user: str) -> None:
    def work() -> None:
        root = place / "root"
        root.mkdir()
        make(root)
        root.chmod(0o000)
        trees.remove(root)
        assert not root.exists()

    run_as(user, work)
    assert os.path.exists("/etc/passwd")


@AS
@MADE
def test_all_is_moved_as_it_is(place: Path, make: Callable[[Path], None], user: str) -> None:
    def work() -> None:
        source, target = place / "source", place / "target"
        source.mkdir()
        target.mkdir()
        make(source)
        mode = source.stat().st_mode
        source.chmod(0o700)
        before = {(e.name, e.stat(follow_symlinks=False)[:2]) for e in os.scandir(source)}
        source.chmod(mode & 0o555)
        trees.move_entries(source, target)
        assert os.listdir(source) == []
        assert {(e.name, e.stat(follow_symlinks=False)[:2]) for e in os.scandir(target)} == before

    run_as(user, work)


@pytest.mark.timeout(300)
def test_twenty_thousand_nested_folders() -> None:
    """No recursion, no long path, no descriptor a level."""
    with place_of_nobody(in_memory=True) as place:
        source, target = place / "source", place / "target"
        source.mkdir()
        target.mkdir()
        nested(source, 20_000)
        trees.move_entries(source, target)
        walk = trees.Walk(target)
        assert len(list(walk)) == trees.DEEPEST
        assert not walk.complete
        trees.remove(target)
        assert not target.exists()


def test_what_can_t_be_moved_stays_and_all_else_is_moved(place: Path) -> None:
    source, target = place / "source", place / "target"
    for folder in (source / "both", target / "both" / "inner", source / "other"):
        folder.mkdir(parents=True)
    with pytest.raises(OSError, match="not empty"):
        trees.move_entries(source, target)
    assert os.listdir(source) == ["both"]
    assert sorted(os.listdir(target)) == ["both", "other"]


def test_removing_what_is_no_folder_follows_nothing(place: Path) -> None:
    kept = place / "kept"
    kept.mkdir()
    (kept / "file").touch()
    link, file = place / "link", place / "file"
    link.symlink_to(kept)
    file.touch()
    for path in (link, file, place / "nothing"):
        trees.remove(path)
        assert not os.path.lexists(path)
    assert (kept / "file").exists()


def test_a_folder_is_empty_if_nothing_is_in_it_and_a_link_is_none(place: Path) -> None:
    empty = place / "empty"
    empty.mkdir()
    link = place / "link"
    link.symlink_to(empty)
    assert trees.is_empty(empty)
    assert not trees.is_empty(link)
    assert not trees.is_empty(place)
    assert not trees.is_empty(place / "nothing")


def test_a_walk_meets_everything_once_and_follows_nothing(place: Path) -> None:
    odd_things(place)
    walk = trees.Walk(place)
    met = [entry.path for entry in walk]
    assert walk.complete
    wanted = {os.path.relpath(os.path.join(at, name), place) for at, d, f in os.walk(place) for name in d + f}
    assert len(met) == len(set(met))
    assert set(met) == wanted


@AS
def test_a_walk_says_what_it_could_not_see(place: Path, user: str) -> None:
    def work() -> None:
        closed_folders(place)
        walk = trees.Walk(place)
        assert len(list(walk)) >= 5
        assert walk.complete == (os.geteuid() == 0)
        assert [stat.S_IMODE(os.stat(place / f"{m:o}").st_mode) for m in (0o000, 0o555)] == [0o000, 0o555]

    run_as(user, work)


def test_a_walk_is_bounded_by_depth_and_by_number(place: Path) -> None:
    nested(place, 10)
    for index in range(30):
        (place / str(index)).touch()
    for walk, count, complete in (
        (trees.Walk(place), 41, True),
        (trees.Walk(place, most=41), 41, True),
        (trees.Walk(place, most=40), 40, False),
        (trees.Walk(place, most=5), 5, False),
        (trees.Walk(place, deepest=11), 41, True),
        (trees.Walk(place, deepest=10), 40, False),
        (trees.Walk(place, deepest=1), 31, False),
    ):
        assert len(list(walk)) == count
        assert walk.complete is complete


def test_a_walk_that_is_left_leaves_no_descriptor(place: Path) -> None:
    nested(place, 20)
    before = os.listdir("/proc/self/fd")
    walk = iter(trees.Walk(place))
    for _ in range(10):
        next(walk)
    assert len(os.listdir("/proc/self/fd")) > len(before)
    del walk
    assert os.listdir("/proc/self/fd") == before


def test_a_folder_that_changes_all_the_time(place: Path) -> None:
    """Entries come and go, folders are swapped for links that lead out, while it is walked and removed."""
    (place / "root").mkdir()
    stop = threading.Event()

    def disturb() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            with suppress(OSError):
                os.mkdir(place / "root" / "a")
            with suppress(OSError):
                os.rename(place / "root" / "a", place / "root" / f"b{number % 7}")
            with suppress(OSError):
                os.symlink("/etc", place / "root" / "a")
            with suppress(OSError):
                os.unlink(place / "root" / "a")

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        for _ in range(300):
            for entry in trees.Walk(place / "root"):
                assert "passwd" not in entry.path
            with suppress(OSError):
                trees.remove(place / "root")
                os.mkdir(place / "root")
    finally:
        stop.set()
        thread.join()
    assert os.path.exists("/etc/passwd")


def test_nothing_and_a_link_have_no_entries(place: Path) -> None:
    (place / "link").symlink_to("/etc")
    for path in (place / "link", place / "nothing"):
        walk = trees.Walk(path)
        assert (list(walk), walk.complete) == ([], True)


def test_a_walk_that_lacks_open_files_says_so(place: Path) -> None:
    (place / "root" / "folder").mkdir(parents=True)
    walk = trees.Walk(place / "root")
    with no_open_files():
        assert list(walk) == []
    assert not walk.complete
    assert walk.hindered is not None
    walk = trees.Walk(place / "root")
    assert len(list(walk)) == 1
    assert walk.hindered is None


@pytest.mark.parametrize("whole", [True, False])
def test_a_program_with_rights_is_not_passed_over_for_want_of_open_files(
    place: Path, monkeypatch: pytest.MonkeyPatch, *, whole: bool
) -> None:
    """Neither when nothing can be looked at, nor when it is found and can't be opened any more."""
    (program := place / "program").touch()
    program.chmod(0o4755)

    def refuse(*_: object) -> None:
        raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    with monkeypatch.context() as patch:
        if not whole:
            patch.setattr("cellgate_kernels.walls.set_id._clear", refuse)
        with no_open_files() if whole else nullcontext(), pytest.raises(OSError, match="open files"):
            clear_set_ids(place)
    clear_set_ids(place)
    assert stat.S_IMODE(program.stat().st_mode) == 0o755


async def test_a_lack_of_open_files_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder := tmp_path / "folder").mkdir()
    refusals = [errno.EMFILE, errno.ENOTEMPTY]
    remove = trees.remove

    def refused(path: Path) -> None:
        if refusals:
            raise OSError(refusals[0], os.strerror(refusals.pop(0)))
        remove(path)

    monkeypatch.setattr(trees, "remove", refused)
    await folders.remove_tree(folder)
    assert not folder.exists()
