"""What waits for a slow client, on a disk that stands still for a while."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pytest

from cellgate.channels import outbox as module
from cellgate.channels.outbox import CROWDED, Outbox, OutboxLimits
from cellgate_kernels.limits import MIB
from cellgate_kernels.threads import Lane


@pytest.fixture
def lane() -> Iterator[Lane]:
    lane = Lane("test", 2)
    yield lane
    lane.close()


async def test_more_than_the_disk_takes_is_told_until_it_has_taken_it(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    stands, moves = threading.Event(), threading.Event()
    write = module._write

    def slow(file: BinaryIO, chunks: Sequence[bytes], offset: int) -> None:
        stands.set()
        assert moves.wait(60)
        write(file, chunks, offset)

    monkeypatch.setattr(module, "_write", slow)
    outbox = Outbox(tmp_path, OutboxLimits(memory=MIB), lane)
    sent = [bytes([number]) * MIB for number in range(20)]
    outbox.put(sent[0])
    outbox.put(sent[1])
    await asyncio.to_thread(stands.wait, 60)
    assert not outbox.crowded
    for frame in sent[2:]:
        outbox.put(frame)
    assert outbox.crowded
    room = asyncio.create_task(outbox.room())
    await asyncio.sleep(0)
    assert not room.done()
    moves.set()
    async with asyncio.timeout(60):
        await room
        received = b""
        while len(received) < len(sent) * MIB:
            received += await outbox.take() or b""
            outbox.written()
    assert not outbox.crowded
    assert received == b"".join(sent)
    assert outbox.size == 0
    await outbox.close()


async def test_an_outbox_that_is_given_up_holds_nobody_back(
    tmp_path: Path, lane: Lane, monkeypatch: pytest.MonkeyPatch
) -> None:
    moves = threading.Event()
    monkeypatch.setattr(module, "_write", lambda *_: moves.wait(60))
    outbox = Outbox(tmp_path, OutboxLimits(memory=MIB, unwritten=2 * CROWDED), lane)
    while not outbox.put(bytes(MIB)):
        pass
    assert outbox.lost is not None
    assert not outbox.crowded
    moves.set()
    await outbox.close()
