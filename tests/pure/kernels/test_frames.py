"""Both halves of the keeper's protocol have the same numbers."""

from __future__ import annotations

import runpy
from pathlib import Path

import cellgate_kernels
from cellgate_kernels.keeper.frames import HEAD, NUMBER, FromKeeper, ToKeeper, frame

KEEPERS = Path(cellgate_kernels.__file__).parent / "inside" / "frames.py"


def test_both_halves_have_the_same_numbers() -> None:
    keepers = runpy.run_path(str(KEEPERS))
    for kind in (*ToKeeper, *FromKeeper):
        assert keepers[kind.name] == kind
    for name, ours in (("HEAD", HEAD), ("NUMBER", NUMBER)):
        assert keepers[name].format == ours.format


def test_a_frame_is_its_kind_the_size_of_what_follows_and_that() -> None:
    assert frame(ToKeeper.INPUT, b"abc") == b"\x02\x00\x00\x00\x03abc"
    assert frame(ToKeeper.ALONE) == b"\x08\x00\x00\x00\x00"
