"""How many kernels there may be by default, and when the start warns of too many."""

from __future__ import annotations

import pytest

from cellgate.cli.serve.sizing import kernels_for, too_many
from cellgate_kernels.base.resources import GIB, MIB


@pytest.mark.parametrize(
    ("memory", "kernels"),
    [(512 * MIB, 4), (2 * GIB, 8), (16 * GIB, 64), (16 * GIB + 255 * MIB, 64), (1024 * GIB, 512)],
)
def test_the_memory_decides_how_many_kernels_there_may_be(memory: int, kernels: int) -> None:
    assert kernels_for(memory) == kernels


def test_the_start_warns_if_kernels_may_use_many_times_the_memory() -> None:
    for memory in (2 * GIB, 8 * GIB, 64 * GIB, 128 * GIB):
        assert too_many(kernels_for(memory), GIB, memory) is None
    assert too_many(64, GIB, 8 * GIB) is None
    told = too_many(64, 4 * GIB, 16 * GIB)
    assert told is not None
    assert told.startswith("64 kernels (max_kernels) of 4 GiB each (memory) would use 16 times the 16 GiB")
