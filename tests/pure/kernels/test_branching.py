"""What a refused branch says: what is in the way, and what to do about each kind of it."""

from __future__ import annotations

import pytest

from cellgate_kernels.base.branching import Obstacle, ObstacleKind
from cellgate_kernels.base.errors import CannotBranch


@pytest.mark.parametrize(
    ("kind", "name", "advice"),
    [
        (ObstacleKind.THREAD, "mine", "end them, or branch with `anyway` (`--anyway`)"),
        (ObstacleKind.NATIVE_THREAD, "polars-0", "branch before the library computes anything"),
        (ObstacleKind.NATIVE_THREAD, "duckdb", "end when the connection is closed"),
        (ObstacleKind.OPENMP, "numba", "Choose another threading layer"),
        (ObstacleKind.DEBUGGER, "debugpy", "end the debugging"),
        (ObstacleKind.CUDA, "libcuda", "branch before anything uses the GPU"),
        (ObstacleKind.EVENT_LOOP, "tk", "end it with `%gui`"),
        (ObstacleKind.UNNAMED_FILE, "/tmp/#5, 80 MiB", "give the file a name"),
        (ObstacleKind.KERNEL, "bash", "bash kernels can't be branched here, and `anyway` does not help"),
    ],
)
def test_a_refusal_says_what_to_do(kind: ObstacleKind, name: str, advice: str) -> None:
    said = CannotBranch((Obstacle(kind, name),)).message
    assert name in said
    assert advice in said


def test_obstacles_of_one_kind_have_one_sentence() -> None:
    threads = (Obstacle(ObstacleKind.THREAD, "{names}"), Obstacle(ObstacleKind.THREAD, "b"))
    said = CannotBranch((*threads, Obstacle(ObstacleKind.DEBUGGER, "debugpy"))).message
    assert said.count("Threads ({names}, b): ") == 1
    assert said.count("A debugger (debugpy): ") == 1
