"""The data of a run: what is sent, and what may be written here of what comes back."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cellgate.cli.base import UsageError
from cellgate.cli.run import run_files
from cellgate.cli.run.run_files import (
    MADE,
    Brought,
    FilesTarget,
    Sent,
    bring_back,
    changed,
    files_to_send,
    forgotten,
)
from cellgate.client import ErrorInfo, FileModel, Files


class Kernel(Files):
    """A session's files, with any names and contents that a hostile cell could make up."""

    def __init__(self, contents: dict[str, bytes]) -> None:
        self._contents = contents

    async def save(
        self, path: str, target: Path, progress: Callable[[int, int | None], object] | None = None
    ) -> None:
        content = self._contents[path]
        if progress is not None:
            progress(len(content), None)
        await asyncio.to_thread(target.write_bytes, content)

    def models(self) -> list[FileModel]:
        return [FileModel(path=path, size=len(content)) for path, content in self._contents.items()]


async def brought(
    folder: Path, contents: dict[str, bytes], *, sent: dict[str, bytes] | None = None, replaces: bool = False
) -> Brought:
    hashes = {path: hashlib.sha256(content).hexdigest() for path, content in (sent or {}).items()}
    kernel = Kernel(contents)
    return await bring_back(kernel, kernel.models(), FilesTarget(folder, hashes, replaces, time.time() + 60))


def everything(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


async def test_new_files_come_with_their_folders_and_the_user_s_permissions(tmp_path: Path) -> None:
    done = await brought(tmp_path / "made", {"a.png": b"1", "out/deep/b.csv": b"2"})
    assert done == Brought(["a.png", "out/deep/b.csv"], [])
    assert everything(tmp_path) == {"made/a.png": "1", "made/out/deep/b.csv": "2"}
    mask = os.umask(0)
    os.umask(mask)
    assert (tmp_path / "made" / "a.png").stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize(
    "path",
    [
        "../evil",
        "a/../../evil",
        "/evil",
        "a//evil",
        "./evil",
        "",
        "..",
        "evil\n[31m",
        "\x1b]0;evil\x07",
        "e" * 300,
    ],
)
async def test_names_that_lead_elsewhere_or_spoil_the_screen_are_refused(tmp_path: Path, path: str) -> None:
    inside = tmp_path / "inside"
    done = await brought(inside, {path: b"evil", "good": b"1"}, replaces=True)
    assert done.written == ["good"]
    assert len(done.refused) == 1
    assert done.refused[0].isprintable()
    assert everything(tmp_path) == {"inside/good": "1"}


async def test_nothing_goes_through_a_link_or_over_what_is_no_file(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    inside = tmp_path / "inside"
    for folder in (outside, inside, inside / "folder"):
        folder.mkdir()
    (outside / "mine").write_text("mine")
    (inside / "way").symlink_to(outside)
    (inside / "file").symlink_to(outside / "mine")
    (inside / "none").symlink_to(outside / "new")
    os.mkfifo(inside / "pipe")
    evil = dict.fromkeys(("way/mine", "way/new", "file", "none", "pipe", "folder"), b"evil")
    done = await brought(inside, evil, replaces=True)
    assert (done.written, len(done.refused)) == ([], len(evil))
    assert everything(outside) == {"mine": "mine"}


async def test_a_file_that_was_sent_is_replaced_unless_it_changed_here(tmp_path: Path) -> None:
    for name in ("data.csv", "edited.csv"):
        (tmp_path / name).write_text("sent")
    sent = {"data.csv": b"sent", "edited.csv": b"sent", "gone.csv": b"sent"}
    (tmp_path / "data.csv").chmod(0o640)
    (tmp_path / "edited.csv").write_text("edited")
    done = await brought(tmp_path, dict.fromkeys(sent, b"new"), sent=sent)
    assert done.written == ["data.csv", "gone.csv"]
    assert done.refused == ["edited.csv: the file here has changed since it was sent"]
    assert everything(tmp_path) == {"data.csv": "new", "edited.csv": "edited", "gone.csv": "new"}
    assert (tmp_path / "data.csv").stat().st_mode & 0o777 == 0o640


async def test_others_are_replaced_only_in_a_folder_for_results(tmp_path: Path) -> None:
    (tmp_path / "plot.png").write_text("old")
    done = await brought(tmp_path, {"plot.png": b"new"})
    assert done.refused == [
        "plot.png: there is a file of this name, which was not sent; --results DIR puts it elsewhere"
    ]
    assert everything(tmp_path) == {"plot.png": "old"}
    assert (await brought(tmp_path, {"plot.png": b"new"}, replaces=True)).written == ["plot.png"]
    assert everything(tmp_path) == {"plot.png": "new"}
    late = time.time() + 120
    os.utime(tmp_path / "plot.png", (late, late))
    done = await brought(tmp_path, {"plot.png": b"newer"}, replaces=True)
    assert done.refused == ["plot.png: the file here has changed since the run began"]


async def test_what_an_earlier_run_made_is_replaced_until_somebody_changes_it(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("sent")
    sent = {"data.csv": b"sent"}
    if not has_attributes(tmp_path):
        pytest.skip("this file system keeps no attributes of files")
    first = {"plot.png": b"first", "table.csv": b"first", "data.csv": b"changed by the run"}
    assert (await brought(tmp_path, first, sent=sent)).refused == []
    (tmp_path / "table.csv").write_text("edited")
    done = await brought(tmp_path, dict.fromkeys(first, b"second"))
    # Data of the user's own does not become a run's, though a run has changed it.
    assert (done.written, len(done.refused)) == (["plot.png"], 2)
    assert everything(tmp_path) == {
        "data.csv": "changed by the run",
        "plot.png": "second",
        "table.csv": "edited",
    }
    assert (await brought(tmp_path, {"plot.png": b"third"})).written == ["plot.png"]


def has_attributes(folder: Path) -> bool:
    try:
        os.setxattr(folder, MADE, b"")
    except OSError:
        return False
    return True


async def test_how_much_comes_back_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_files, "MOST_BYTES", 10)
    monkeypatch.setattr(run_files, "MOST_FILES", 3)
    done = await brought(tmp_path, {"a": b"1" * 6, "b": b"1" * 6, "c": b"1" * 4, "d": b""})
    assert done.written == ["a", "c"]
    assert [reason.partition(":")[0] for reason in done.refused] == ["b", "d"]
    grown = Kernel({"grown": b"1" * 5})
    target = FilesTarget(tmp_path, {}, False, time.time())
    done = await bring_back(grown, [FileModel(path="grown", size=1)], target)
    assert done.refused == ["grown: it grows while it is brought back"]
    assert sorted(everything(tmp_path)) == ["a", "c"]


def test_only_what_is_new_or_other_comes_back_and_hidden_files_only_if_they_were_sent() -> None:
    def model(path: str, sha256: str | None = "1", size: int = 1, modified: str = "then") -> FileModel:
        return FileModel(path=path, size=size, sha256=sha256, modified=modified)

    before = {name: model(name) for name in ("same", "other", "longer", ".env", "touched")}
    before["large"] = before["later"] = model("large", None)
    now = [
        model("same"),
        model("other", "2"),
        model("longer", size=2),
        model(".env", "2"),
        model("touched", modified="now"),
        model("large", None),
        model("later", None, modified="now"),
        model("new", None),
        model(".cache/x"),
        model("../x"),
    ]
    found = changed(before, {each.path: each for each in now}, {".env": "1"})
    assert [each.path for each in found] == ["other", "longer", ".env", "later", "new", "../x"]


def test_what_is_beside_the_file_keeps_its_place_and_the_rest_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    for folder in ("project/data/raw", "project/data/.git", "elsewhere/more"):
        (tmp_path / folder).mkdir(parents=True)
    names = (
        "project/data/raw/a.csv",
        "project/data/.git/x",
        "project/.env",
        "elsewhere/b.csv",
        "elsewhere/more/c",
    )
    for name in names:
        (tmp_path / name).write_text(name)
    (project / "data" / "link").symlink_to(tmp_path / "elsewhere" / "b.csv")
    monkeypatch.chdir(project)

    def places(single: tuple[str, ...] = (), folders: tuple[str, ...] = (), beside: str = ".") -> list[str]:
        return sorted(each.path for each in files_to_send(Path(beside), single, folders))

    assert places(folders=("data",)) == ["data/raw/a.csv"]
    assert places(folders=(".",)) == ["data/raw/a.csv"]
    assert places(folders=("data",), beside="data") == ["raw/a.csv"]
    assert places(folders=("../elsewhere",)) == ["elsewhere/b.csv", "elsewhere/more/c"]
    assert places((".env", "../elsewhere/b.csv", "data/link")) == [".env", "b.csv", "data/link"]
    assert places(("data/raw/a.csv",), ("data",), str(project)) == ["data/raw/a.csv"]
    (tmp_path / "b.csv").write_text("another")
    for single, folders, said in (
        (("nowhere",), (), "--with nowhere: there is no such file"),
        (("data",), (), "a folder is sent by --files"),
        ((), ("nowhere",), "--files nowhere: there is no such folder"),
        (("../b.csv", "../elsewhere/b.csv"), (), "would both be b.csv"),
    ):
        with pytest.raises(UsageError, match=said):
            files_to_send(Path(), single, folders)


@pytest.mark.parametrize(
    ("ename", "path", "said"),
    [
        ("FileNotFoundError", "data.csv", True),
        ("FileNotFoundError", "sent.csv", False),
        ("FileNotFoundError", "other.csv", False),
        ("FileNotFoundError", "../here/data.csv", False),
        ("FileNotFoundError", "/etc/passwd", False),
        ("FileNotFoundError", "a\0b", False),
        ("FileNotFoundError", "x" * 5000, False),
        ("OSError", "data.csv", False),
    ],
)
def test_only_a_file_that_is_beside_and_was_not_sent_is_hinted_at(
    tmp_path: Path, ename: str, path: str, said: bool
) -> None:
    beside = tmp_path / "here"
    beside.mkdir()
    for name in ("data.csv", "sent.csv"):
        (beside / name).touch()
    error = ErrorInfo(ename=ename, evalue=f"[Errno 2] No such file or directory: '{path}'")
    hint = forgotten(beside, error, [Sent(beside / "sent.csv", "sent.csv")])
    assert hint == (
        f"{beside}/data.csv is here, and not in the session: --with {beside}/data.csv sends it"
        if said
        else None
    )
