"""The console's files: those that there are at the start, read once, and nothing else."""

from __future__ import annotations

import asyncio
import gzip
import os
from pathlib import Path

import pytest

from cellgate.console import assets
from cellgate.console.assets import FRAME, PAGE, STATIC, Assets
from cellgate.errors import NotFound, StorageError
from cellgate_kernels.base.threads import Lane

SCRIPT = "export const answer = 42;\n" * 100


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "static"
    for name, text in {
        "index.html": "<!doctype html>",
        "app/main.js": SCRIPT,
        "frame/frame.js": "0;",
        "vendor/preact.js": "0;",
        "vendor/preact-10.1.0/preact.js": "0;",
        "vendor/preact-10.1.0/LICENSE": "MIT",
        "notes.md": "#",
        "app/a b.js": "0;",
    }.items():
        path = made / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "secret.js").write_text("secret")
    (made / "link.js").symlink_to(tmp_path / "secret.js")
    (made / "folder").symlink_to(tmp_path)
    return made


async def test_a_file_is_there_in_two_forms_with_its_type(folder: Path, lane: Lane) -> None:
    found = await Assets(folder, lane).get("app/main.js")
    assert (found.kind, found.body) == ("text/javascript; charset=utf-8", SCRIPT.encode())
    assert found.zipped is not None
    assert gzip.decompress(found.zipped) == found.body
    assert len(found.zipped) < len(found.body)
    assert found.tag.startswith('W/"')


async def test_what_gains_nothing_is_not_compressed(folder: Path, lane: Lane) -> None:
    (folder / "logo.png").write_bytes(bytes(1000))
    made = Assets(folder, lane)
    assert (await made.get("frame/frame.js")).zipped is None
    assert (await made.get("logo.png")).zipped is None


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "app",
        "app/",
        "nothing.js",
        "../secret.js",
        "app/../index.html",
        "./index.html",
        "/index.html",
        "app//main.js",
        "APP/main.js",
        "link.js",
        "folder/secret.js",
        "notes.md",
        "app/a b.js",
        "vendor/preact-10.1.0/LICENSE",
        "app/main.js\0",
    ],
)
async def test_nothing_else_is_there(folder: Path, lane: Lane, name: str) -> None:
    made = Assets(folder, lane)
    assert name not in made
    with pytest.raises(NotFound):
        await made.get(name)


async def test_only_versions_in_folders_last_and_only_frames_files_are_for_all(
    folder: Path, lane: Lane
) -> None:
    made = Assets(folder, lane)
    found = [await made.get(name) for name in ("app/main.js", "frame/frame.js", "vendor/preact.js")]
    found.append(await made.get("vendor/preact-10.1.0/preact.js"))
    assert [each.is_fixed for each in found] == [False, False, False, True]
    assert [each.is_for_frames for each in found] == [False, True, True, True]


async def test_a_file_is_read_once(folder: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    load = assets._load

    def noted(name: str, path: Path) -> assets.Asset:
        read.append(name)
        return load(name, path)

    monkeypatch.setattr(assets, "_load", noted)
    made = Assets(folder, lane)
    first, *others = await asyncio.gather(*(made.get("app/main.js") for _ in range(20)))
    assert all(other is first for other in others)
    (folder / "app" / "main.js").write_text("changed")
    assert await made.get("app/main.js") is first
    assert read == ["app/main.js"]


async def test_a_file_that_is_gone_or_too_large_is_a_fault_that_is_told(folder: Path, lane: Lane) -> None:
    made = Assets(folder, lane)
    (folder / "app" / "main.js").unlink()
    with pytest.raises(StorageError, match="can't be read"):
        await made.get("app/main.js")
    os.truncate(folder / "index.html", assets.MOST_BYTES + 1)
    with pytest.raises(StorageError, match="larger than"):
        await made.get("index.html")


async def test_the_page_and_the_frame_are_there(lane: Lane) -> None:
    made = Assets(STATIC, lane)
    for name in (PAGE, FRAME):
        assert (await made.get(name)).kind == "text/html; charset=utf-8"
