"""The console's third-party files are what npm's packages of the lock make, byte for byte."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.support.requirements import require
from tests.support.vendor import DRAWING, LOCK, SOURCES, VENDOR, install, make


def files(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


@pytest.mark.nightly
@pytest.mark.timeout(600)
def test_they_can_be_made_anew(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        require("clients", "there is no npm")
    work = tmp_path / "work"
    install(work)
    assert (work / LOCK).read_text() == (SOURCES / LOCK).read_text()
    make(tmp_path / "made", work, tmp_path / "image")
    assert files(tmp_path / "made") == files(VENDOR)
    stills = files(tmp_path / "image")
    assert stills == {name: (DRAWING / name).read_bytes() for name in stills}
