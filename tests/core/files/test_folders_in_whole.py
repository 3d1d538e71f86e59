"""Folders of a workspace, listed and removed with all that is in them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cellgate.errors import Conflict, NotFound
from cellgate.files import tree
from cellgate.sessions.files import RECORDED_AT_ONCE, SessionFiles, UploadSpace
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.threads import ThreadLanes
from tests.core.fakes import House
from tests.core.test_faults import BODY

HERE = ("here",)


@pytest.fixture
def crowded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace with a small folder, beside one with more than a walk of everything visits."""
    monkeypatch.setattr(tree, "MAX_ENTRIES", 10)
    for name in ("others", "here/inner"):
        (tmp_path / name).mkdir(parents=True)
    for number in range(20):
        (tmp_path / "others" / str(number)).touch()
        (tmp_path / str(number)).touch()
    (tmp_path / "here" / "inner" / "file").touch()
    (tmp_path / "here" / "link").symlink_to("/etc/passwd")
    return tmp_path


def test_what_is_beside_a_folder_hides_nothing_of_it(crowded: Path) -> None:
    assert [item.path for item in tree.look_into(crowded, HERE, 1)] == ["here/inner", "here/link"]
    assert [item.path for item in tree.look_into(crowded, HERE, 5)] == [
        "here/inner",
        "here/inner/file",
        "here/link",
    ]
    with pytest.raises(InvalidInput):
        tree.look_into(crowded, ("here", "link"), 1)


def test_a_folder_is_removed_whatever_is_beside_it(crowded: Path) -> None:
    assert tree.remove_all(crowded, HERE) == ["here/inner/file"]
    assert not (crowded / "here").exists()
    assert (crowded / "others" / "19").exists()
    assert tree.remove_all(crowded, ("1",)) == ["1"]
    with pytest.raises(NotFound):
        tree.remove_all(crowded, HERE)


def test_a_folder_is_moved_whatever_is_beside_it(crowded: Path) -> None:
    # Deeper than a walk of everything goes.
    crowded.joinpath(*["d"] * (tree.MAX_DEPTH + 2)).mkdir(parents=True)
    assert [state.path for state in tree.move(crowded, HERE, ("new", "there"))] == ["new/there/inner/file"]
    assert (crowded / "new" / "there" / "link").is_symlink()
    assert [state.path for state in tree.move(crowded, ("1",), ("one",))] == ["one"]
    with pytest.raises(Conflict):
        tree.move(crowded, ("d",), ("e",))
    with pytest.raises(Conflict):
        tree.move(crowded, ("others",), ("more",))
    assert not (crowded / "e").exists()
    assert not (crowded / "more").exists()


def test_too_much_is_said_and_nothing_is_removed(crowded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree, "MOST_SHOWN", 19)
    monkeypatch.setattr(tree, "MOST_REMOVED", 19)
    with pytest.raises(Conflict):
        tree.look_into(crowded, ("others",), 1)
    with pytest.raises(Conflict):
        tree.remove_all(crowded, ("others",))
    assert len(list((crowded / "others").iterdir())) == 20


def test_the_deepest_folder(tmp_path: Path) -> None:
    parts = ("d",) * tree.MAX_DEPTH
    tree.make_folder(tmp_path, parts)
    assert tree.look_into(tmp_path, parts, 1) == []
    assert [item.path for item in tree.look_into(tmp_path, parts[:-1], 3)] == ["/".join(parts)]
    assert tree.remove_all(tmp_path, ("d",)) == []
    assert list(tmp_path.iterdir()) == []


def test_code_may_remove_things_at_the_same_time(crowded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove = tree.remove

    def late(root: Path, parts: tuple[str, ...]) -> None:
        if parts == ("here", "link"):
            (root / "here" / "link").unlink()
        remove(root, parts)

    monkeypatch.setattr(tree, "remove", late)
    assert tree.remove_all(crowded, HERE) == ["here/inner/file"]
    assert not (crowded / "here").exists()


async def test_others_have_their_turn_while_a_large_folder_is_removed(tmp_path: Path) -> None:
    house = await House.open(tmp_path / "house")
    lanes = ThreadLanes(1)
    space = UploadSpace(tmp_path, 0, 0)
    files = SessionFiles(house.journal, house.manager, lanes, space)
    session, _ = await house.manager.get_or_create("ada", BODY)
    folder = session.slot.workspace / "many"
    folder.mkdir()
    for number in range(2 * RECORDED_AT_ONCE):
        (folder / str(number)).touch()
    turns: list[int] = []
    append = session.log.append

    async def others() -> None:
        while True:
            turns.append(0)
            await asyncio.sleep(0)

    at: list[int] = []
    session.log.append = lambda *given, **more: (at.append(len(turns)), append(*given, **more))[1]  # type: ignore[method-assign]
    task = asyncio.create_task(others())
    await files.remove_all("ada", "s", ("many",))
    task.cancel()
    assert len(at) == 2 * RECORDED_AT_ONCE
    assert at[-1] > at[0]
    await files.close()
    await house.close()
    lanes.close()
