"""Old checkpoints are looked at when no cell follows at once: the next checkpoint does not wait for that."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from cellgate.files.snapshots import Snapshots
from cellgate.quotas.quotas import Quotas
from cellgate.quotas.usage import Account
from cellgate.sessions import undo
from cellgate.sessions.checkpoints import Position
from cellgate.sessions.undo import SessionUndo
from cellgate_kernels.base.resources import MIB, ResourceLimits
from cellgate_kernels.base.settings import PoolSettings
from cellgate_kernels.base.turns import Claimant
from cellgate_kernels.kernel.kernel import KernelProfile
from cellgate_kernels.pool.pool import KernelPool
from cellgate_kernels.testing import FakeHeldFork, FakeLauncher


async def test_the_next_checkpoint_does_not_wait_for_a_look_at_the_former(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    async def memory(held: FakeHeldFork) -> int:
        asked.append(held.id)
        return MIB

    async def snapshots(most_bytes: int) -> Snapshots:
        return Snapshots(tmp_path / "snapshots", most_bytes)

    monkeypatch.setattr(FakeHeldFork, "memory", memory)
    monkeypatch.setattr(undo, "THIN_AFTER", 600.0)
    workspaces = tmp_path / "workspaces"
    workspaces.mkdir()
    pool = KernelPool(FakeLauncher(workspaces), PoolSettings(size=0, max_kernels=1), [])
    kernel = await pool.claim(KernelProfile("python3"), Claimant("ada"))
    kernel.workspace.mkdir(exist_ok=True)
    account = Account("ada", Quotas(), time.monotonic, lambda _: None)
    points = SessionUndo(pool, snapshots, account, ResourceLimits(), automatic=True)
    for cells in range(3):
        await points.make_automatic(kernel, Position(cells, cells))
        for _ in range(10):
            await asyncio.sleep(0)
    assert len(points.alive) == 3
    assert asked == []
    # Not so if there are many.
    monkeypatch.setattr(undo, "MOST_UNSEEN", 3)
    await points.make_automatic(kernel, Position(3, 3))
    for _ in range(1000):
        if len(asked) == 4:
            break
        await asyncio.sleep(0.01)
    assert len(asked) == 4
    monkeypatch.setattr(undo, "MOST_UNSEEN", 16)
    # The end of a session does not wait for it either.
    await points.make_automatic(kernel, Position(4, 4))
    await asyncio.wait_for(points.close(None), 30)
    assert len(asked) == 4
    await pool.close()
