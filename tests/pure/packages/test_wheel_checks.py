"""What is refused of a wheel that was unpacked for sharing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cellgate.packages.wheel_checks import UnsoundWheel, tidy


@pytest.mark.parametrize("name", ["direct_url.json", "uv_cache.json"])
def test_a_folder_in_the_place_of_metadata_is_the_wheel_s_fault(tmp_path: Path, name: str) -> None:
    """Not a failure of the gateway's storage, which an OSError would be taken for."""
    (tmp_path / "foo-1.0.dist-info" / name).mkdir(parents=True)
    (tmp_path / "foo-1.0.dist-info" / name / "x").touch()
    with pytest.raises(UnsoundWheel, match="is a folder"):
        tidy(tmp_path, sys.executable)
