"""What waits for slow clients, on a disk that stands still for a while, and has only so much room."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from cellgate.channels import frame_log as module
from cellgate.channels.frame_log import CROWDED, KernelFrames, OutboxLimits
from cellgate.channels.outbox import OWN, Outbox, OutboxLost
from cellgate.record.spill_ledger import SpillLedger
from cellgate.record.unnamed_file import UnnamedFile
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.base.threads import Lane
from cellgate_kernels.protocol.websocket import Subprotocol

FORMAT = Subprotocol.V1
RESERVE = 100 * MIB


class Disk:
    """A disk of which spills may have `most` bytes, and clients of kernels on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = 1000 * MIB
        self.folder = folder
        self.lane = Lane("test", 2)
        self.ledger = SpillLedger(folder, RESERVE)
        self.kernels: list[KernelFrames] = []
        monkeypatch.setattr(
            "cellgate.record.spill_ledger.free", lambda _: RESERVE + 2 * self.most - self.ledger.used
        )

    def kernel(self, principal: str = "ada", limits: OutboxLimits | None = None) -> KernelFrames:
        opened = partial(self.ledger.open, principal)
        limits = limits or OutboxLimits(memory=MIB)
        self.kernels.append(KernelFrames(self.folder, limits, self.lane, opened))
        return self.kernels[-1]

    async def settled(self) -> None:
        """Everything that is to be written is."""
        for kernel in self.kernels:
            for log in kernel._logs.values():
                await log._tasks.finished()
                await log._ends.finished()

    def files(self) -> int:
        """How many files without a name are open here."""
        found = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            try:
                found += str(descriptor.readlink()).startswith(f"{self.folder}/")
            except FileNotFoundError:
                continue
        return found


@pytest.fixture
async def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Disk]:
    made = Disk(tmp_path, monkeypatch)
    yield made
    for kernel in made.kernels:
        await kernel.close()
        assert kernel.memory.size >= 0
    assert made.ledger.used == 0
    assert made.files() == 0
    made.lane.close()


class Stopped:
    """A disk that stands still until it `moves`; it `stands` once something is to be written."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.stands, self.moves = threading.Event(), threading.Event()
        write = UnnamedFile.write

        def write_later(file: UnnamedFile, chunks: Sequence[bytes], offset: int) -> None:
            self.stands.set()
            assert self.moves.wait(60)
            write(file, chunks, offset)

        monkeypatch.setattr(UnnamedFile, "write", write_later)


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Stopped:
    return Stopped(monkeypatch)


async def everything(outbox: Outbox, size: int) -> bytes:
    """The next `size` bytes."""
    received = b""
    async with asyncio.timeout(60):
        while len(received) < size:
            received += await outbox.take() or b""
            outbox.written()
    return received


async def test_more_than_the_disk_takes_is_told_until_it_has_taken_it(disk: Disk, stopped: Stopped) -> None:
    kernel = disk.kernel()
    outbox = Outbox(kernel.log(FORMAT))
    sent = [bytes([number]) * MIB for number in range(20)]
    outbox.put(sent[0])
    outbox.put(sent[1])
    await asyncio.to_thread(stopped.stands.wait, 60)
    await asyncio.wait_for(kernel.room(), 60)
    for frame in sent[2:]:
        outbox.put(frame)
    assert kernel.crowded
    room = asyncio.create_task(kernel.room())
    await asyncio.sleep(0)
    assert not room.done()
    stopped.moves.set()
    async with asyncio.timeout(60):
        await room
    received = await everything(outbox, len(sent) * MIB)
    assert not kernel.crowded
    assert received == b"".join(sent)
    assert outbox.size == 0
    outbox.close()


async def test_an_outbox_that_is_given_up_holds_nobody_back(disk: Disk, stopped: Stopped) -> None:
    kernel = disk.kernel(limits=OutboxLimits(memory=MIB, unwritten=2 * CROWDED))
    told: list[str] = []
    outbox = Outbox(kernel.log(FORMAT), lambda: told.append("lost"))
    while not outbox.put(bytes(MIB)):
        pass
    assert outbox.lost is not None
    assert told == ["lost"]
    assert not kernel.crowded
    stopped.moves.set()


async def test_what_all_clients_of_a_kernel_are_sent_is_kept_once(disk: Disk) -> None:
    """In the order of each, with what only some of them are sent; and removed when the last has read it."""
    kernel = disk.kernel(limits=OutboxLimits(memory=3 * OWN))
    log = kernel.log(FORMAT)
    clients = [Outbox(log) for _ in range(8)]
    expected = [b""] * 8
    for number in range(200):
        frame = os.urandom(50_000 + number)
        for each, client in enumerate(clients):
            if number % 10 != each:
                client.put(frame)
                expected[each] += frame
    await disk.settled()
    assert kernel.memory.size <= 8 * OWN + 3 * OWN
    assert 8 * MIB < disk.ledger.held_by("ada") < 11 * MIB
    for each in range(7):
        assert await everything(clients[each], len(expected[each])) == expected[each]
    assert disk.ledger.held_by("ada") > 8 * MIB, "one has not read it"
    assert await everything(clients[7], len(expected[7])) == expected[7]
    await disk.settled()
    assert disk.ledger.used == disk.files() == 0
    assert kernel.memory.size == 0


async def test_what_all_have_read_leaves_the_disk_before_the_rest(disk: Disk) -> None:
    kernel = disk.kernel(limits=OutboxLimits(memory=0))
    log = kernel.log(FORMAT)
    slow, slower = Outbox(log), Outbox(log)
    sent = [os.urandom(MIB) for _ in range(40)]
    for frame in sent:
        slow.put(frame)
        slower.put(frame)
    await disk.settled()
    assert disk.ledger.used == 40 * MIB
    assert await everything(slow, 40 * MIB) == b"".join(sent)
    assert disk.ledger.used == 40 * MIB
    assert await everything(slower, 20 * MIB) == b"".join(sent[:20])
    await disk.settled()
    assert disk.ledger.used <= 27 * MIB
    slow.put(b"more")
    slower.put(b"more")
    assert await everything(slow, 4) == b"more"
    assert await everything(slower, 20 * MIB + 4) == b"".join(sent[20:]) + b"more"


async def test_what_nobody_takes_from_memory_is_little_however_large_the_frames_are(disk: Disk) -> None:
    """Each client of a kernel waits at another frame, none of which any other still needs."""
    kernel = disk.kernel()
    clients: list[Outbox] = []
    sent = [os.urandom(4 * MIB) for _ in range(12)]
    for frame in sent:
        clients.append(Outbox(kernel.log(FORMAT)))
        for client in clients:
            client.put(frame)
    assert kernel.memory.size <= MIB + len(clients) * OWN
    await disk.settled()
    for number, client in enumerate(clients):
        left = b"".join(sent[number:])
        assert await everything(client, len(left)) == left


async def test_what_a_client_waits_for_needs_no_disk(disk: Disk) -> None:
    disk.most = 0
    outbox = Outbox(disk.kernel().log(FORMAT))
    for _ in range(3):
        taking = asyncio.create_task(outbox.take())
        await asyncio.sleep(0)
        outbox.put(frame := os.urandom(4 * MIB))
        assert await taking == frame
        outbox.written()
    assert outbox.lost is None


async def test_who_is_lost_while_the_disk_writes_leaves_no_gap_for_the_next(
    disk: Disk, stopped: Stopped
) -> None:
    kernel = disk.kernel(limits=OutboxLimits(memory=0))
    log = kernel.log(FORMAT)
    first = Outbox(log)
    for _ in range(10):
        first.put(os.urandom(MIB))
    await asyncio.to_thread(stopped.stands.wait, 60)
    first.lose("gone")
    second = Outbox(log)
    sent = [os.urandom(MIB) for _ in range(10)]
    for frame in sent:
        second.put(frame)
    stopped.moves.set()
    assert await everything(second, 10 * MIB) == b"".join(sent)


def flood(kernel: KernelFrames, clients: list[Outbox], count: int) -> None:
    """So many megabytes for all of them."""
    for _ in range(count):
        frame = bytes(MIB)
        for client in clients:
            client.put(frame)


def lost(clients: list[Outbox]) -> list[bool]:
    return [client.lost is not None for client in clients]


async def test_of_one_principal_s_clients_the_one_furthest_behind_is_closed(disk: Disk) -> None:
    """When the principal has more than its share; the others get everything."""
    disk.most = 40 * MIB
    kernel = disk.kernel()
    behind, reading = Outbox(kernel.log(FORMAT)), Outbox(kernel.log(FORMAT))
    for _ in range(60):
        flood(kernel, [behind, reading], 1)
        assert await everything(reading, MIB) == bytes(MIB)
        await disk.settled()
        assert disk.ledger.used <= 30 * MIB
    assert lost([behind, reading]) == [True, False]
    assert behind.lost == module.NO_ROOM


async def test_who_holds_most_is_closed_and_not_who_asks(disk: Disk) -> None:
    disk.most = 40 * MIB
    small, large, other = disk.kernel("ada"), disk.kernel("ada"), disk.kernel("bea")
    clients = [Outbox(kernel.log(FORMAT)) for kernel in (small, large, other)]
    flood(small, clients[:1], 10)
    flood(large, clients[1:2], 18)
    await disk.settled()
    assert disk.ledger.held_by("ada") > 24 * MIB
    flood(other, clients[2:], 20)
    await disk.settled()
    assert lost(clients) == [False, True, False]
    flood(small, clients[:1], 10)
    await disk.settled()
    assert lost(clients) == [False, True, False], "there is room again"
    assert len(await everything(clients[2], 20 * MIB)) == 20 * MIB
    assert len(await everything(clients[0], 20 * MIB)) == 20 * MIB


async def test_clients_at_the_same_place_go_together(disk: Disk) -> None:
    """The first of them alone would free nothing; and another kernel's of the same principal stays."""
    disk.most = 40 * MIB
    kernel, other = disk.kernel(), disk.kernel()
    clients = [Outbox(kernel.log(FORMAT)) for _ in range(8)]
    bystander = Outbox(other.log(FORMAT))
    flood(other, [bystander], 5)
    flood(kernel, clients, 60)
    await disk.settled()
    assert lost(clients) == [True] * 8
    assert bystander.lost is None


async def test_what_waits_leaves_a_disk_that_others_fill(disk: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who holds most gives way, one after the other, until the reserve is free."""
    small, large = disk.kernel("ada"), disk.kernel("bea")
    clients = [Outbox(kernel.log(FORMAT)) for kernel in (small, large)]
    flood(small, clients[:1], 10)
    flood(large, clients[1:], 20)
    await disk.settled()
    others = 0
    monkeypatch.setattr(
        "cellgate.record.spill_ledger.free", lambda _: RESERVE + 100 * MIB - disk.ledger.used - others
    )
    assert not disk.ledger.relieve()
    others = 80 * MIB
    assert disk.ledger.relieve()
    assert not disk.ledger.relieve(), "what has given way has not left the disk yet"
    await disk.settled()
    assert not disk.ledger.relieve()
    assert lost(clients) == [False, True]
    others = 1000 * MIB
    assert disk.ledger.relieve()
    await disk.settled()
    assert lost(clients) == [True, True]
    assert not disk.ledger.relieve(), "there is nothing left to give"


async def test_a_disk_without_room_loses_who_asks_if_nobody_else_holds_anything(disk: Disk) -> None:
    disk.most = 0
    kernel = disk.kernel()
    client = Outbox(kernel.log(FORMAT))
    flood(kernel, [client], 3)
    await disk.settled()
    assert client.lost is not None


async def test_what_is_lost_while_it_is_read_is_lost_once_and_for_that_reason(
    disk: Disk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file is closed before the thread comes to it."""
    told: list[str] = []
    outbox = Outbox(disk.kernel(limits=OutboxLimits(memory=0)).log(FORMAT), lambda: told.append("lost"))
    loop, read = asyncio.get_running_loop(), UnnamedFile.read

    def read_late(file: UnnamedFile, count: int, offset: int) -> bytes:
        loop.call_soon_threadsafe(outbox.lose, "too slow")
        file.close()
        return read(file, count, offset)

    monkeypatch.setattr(UnnamedFile, "read", read_late)
    outbox.put(bytes(MIB))
    await disk.settled()
    with pytest.raises(OutboxLost, match="too slow"):
        await outbox.take()
    assert told == ["lost"]
