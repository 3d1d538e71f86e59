"""Listings hash within limits, end with their client, and hold up nobody else."""

from __future__ import annotations

import asyncio
import hashlib
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from cellgate.files import listing
from cellgate.files.listing import MOST_WAITING_OF_ONE, Listings, Most, Stop
from cellgate.wire.errors import QueueFull, ShuttingDown
from cellgate_kernels.limits import GIB, MIB
from cellgate_kernels.threads import Lane
from tests.conftest import StartGateway
from tests.gateway.files.test_files import put
from tests.support.server import GatewayProcess, send, together, until

HUGE = """
for n in range(400):
    with open(f'{n:03d}', 'wb') as file:
        file.truncate(1 << 29)
"""


@pytest.fixture
async def lane() -> AsyncIterator[Lane]:
    lane = Lane("test", 2)
    yield lane
    lane.close()


async def page(listings: Listings, root: Path, **options: object) -> list[str | None]:
    """The hashes of all files, by path."""
    arguments = {"limit": 1000, "after": "", "stop": Stop()} | options
    models, _, _ = await listings.page("owner", root, **arguments)  # type: ignore[arg-type]
    return [model["sha256"] for model in models]


async def test_what_one_listing_does_not_hash_the_next_ones_do(lane: Lane, tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).write_bytes(name.encode() * MIB)
    (tmp_path / "e").write_bytes(b"small")
    hashes = [hashlib.sha256((tmp_path / name).read_bytes()).hexdigest() for name in "abcde"]
    listings = Listings(lane, Most(size=2 * MIB + MIB // 2))
    assert await page(listings, tmp_path) == [*hashes[:2], None, None, hashes[4]]
    assert await page(listings, tmp_path) == hashes
    (tmp_path / "a").write_bytes(b"x")
    assert (await page(listings, tmp_path))[0] == hashlib.sha256(b"x").hexdigest()


async def test_a_file_that_is_too_large_is_listed_without_a_hash(lane: Lane, tmp_path: Path) -> None:
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", 1 << 40)
    (tmp_path / "small").write_bytes(b"x")
    assert await page(Listings(lane), tmp_path) == [None, hashlib.sha256(b"x").hexdigest()]


async def test_a_listing_ends_in_time(lane: Lane, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(8 * MIB))
    assert await page(Listings(lane, Most(seconds=0.0)), tmp_path) == [None]


async def test_a_time_that_no_date_can_tell_is_told_as_the_nearest(lane: Lane, tmp_path: Path) -> None:
    for name, seconds in (("a", 2**40), ("b", -(2**40)), ("c", 0)):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (seconds, seconds))
    models, _, _ = await Listings(lane).page("owner", tmp_path, limit=10, after="", stop=Stop())
    assert [model["modified"][:4] for model in models][2] == "1970"
    assert all(len(model["modified"]) == 27 for model in models)


async def test_a_listing_ends_within_one_piece_when_it_is_stopped(
    lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").touch()
    os.truncate(tmp_path / "a", GIB)
    stop, reads = Stop(), []

    def read(descriptor: int, count: int) -> bytes:
        reads.append(count)
        if len(reads) == 3:
            stop.set()
        return bytes(count)

    monkeypatch.setattr(listing.os, "read", read)
    with pytest.raises(ShuttingDown):
        await page(Listings(lane, Most(size=GIB, seconds=3600)), tmp_path, stop=stop)
    assert len(reads) == 3


async def test_closing_ends_what_runs_and_what_waits(lane: Lane, tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    listings = Listings(lane)
    running = [asyncio.ensure_future(page(listings, tmp_path)) for _ in range(3)]
    await asyncio.sleep(0)
    listings.close()
    ended = await asyncio.gather(*running, page(listings, tmp_path), return_exceptions=True)
    assert [type(error) for error in ended] == [ShuttingDown] * 4


async def test_too_many_listings_of_one_session_are_refused(lane: Lane, tmp_path: Path) -> None:
    listings = Listings(lane)
    running = [asyncio.ensure_future(page(listings, tmp_path)) for _ in range(MOST_WAITING_OF_ONE)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await page(listings, tmp_path)
    await listings.page("another", tmp_path, limit=1, after="", stop=Stop())
    await asyncio.gather(*running)
    assert await page(listings, tmp_path) == []


def test_huge_listings_hold_up_nobody(start_gateway: StartGateway) -> None:
    """200 GiB in sparse files, and eight listings of it whose clients leave: uploads and cells go on."""
    gateway = start_gateway(pool_size=1)
    gateway.execute("huge", HUGE)
    gateway.execute("other", "1")

    def begin(_: int) -> None:
        connection = gateway.connect()
        send(connection, "GET", "/v1/sessions/huge/files?limit=10000")
        time.sleep(0.2)
        connection.close()

    together(8, begin)
    assert put(gateway, "other", "two", b"ab").status == 201
    assert gateway.execute("other", "1 + 1")["text"] == "2"
    # A kernel starts meanwhile too: that needs threads.
    assert gateway.execute("third", "open('x', 'w').close()")["status"] == "ok"
    assert gateway.get("/v1/sessions/other/files").json()["files"][0]["path"] == "two"
    process = psutil.Process(gateway.process.pid)

    def at_rest() -> bool:
        before = sum(process.cpu_times()[:2])
        time.sleep(0.5)
        return sum(process.cpu_times()[:2]) - before < 0.25

    until(at_rest, "something is still hashed for nobody", 10)


def test_a_listing_that_is_read_ends_although_it_is_huge(start_gateway: StartGateway) -> None:
    gateway = start_gateway(pool_size=1)
    assert put(gateway, "huge", "own", b"1").status == 201
    gateway.execute("huge", HUGE)
    answers = together(4, lambda _: gateway.get("/v1/sessions/huge/files"))
    for answer in answers:
        files = answer.json()["files"]
        assert len(files) == 401
        assert files[0]["sha256"] is None
        assert files[-1]["sha256"] == hashlib.sha256(b"1").hexdigest()


def test_a_hash_of_an_upload_is_known(start_gateway: StartGateway) -> None:
    """However large it is: it was hashed on its way in."""
    gateway: GatewayProcess = start_gateway(pool_size=0)
    data = bytes(257 * MIB)
    uploaded = put(gateway, "a", "f", data).json()["sha256"]
    assert gateway.get("/v1/sessions/a/files").json()["files"][0]["sha256"] == uploaded


async def test_a_page_of_long_paths_is_short(
    lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are on some page, and none is made in the event loop's turn."""
    monkeypatch.setattr(listing, "MOST_PATHS", 600)
    for number in range(20):
        (tmp_path / f"{number:02d}{'x' * 148}").touch()
    pages, after = list[list[str]](), ""
    while not pages or after:
        models, following, complete = await Listings(lane).page(
            "owner", tmp_path, limit=6, after=after, stop=Stop()
        )
        assert complete
        pages.append([model["path"] for model in models])
        after = following or ""
    assert [len(each) for each in pages] == [4] * 5
    assert [int(path[:2]) for each in pages for path in each] == list(range(20))
