"""Listings hash within limits and end with their client."""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from cellgate.errors import QueueFull, ShuttingDown
from cellgate.files import listing
from cellgate.files.listing import MOST_WAITING_OF_ONE, Listings, Most, Stop
from cellgate_kernels.base.resources import GIB, MIB
from cellgate_kernels.base.threads import Lane


@pytest.fixture
async def lane() -> AsyncIterator[Lane]:
    lane = Lane("test", 2)
    yield lane
    lane.close()


async def page(listings: Listings, root: Path, **options: object) -> list[str | None]:
    """The hashes of all files, by path."""
    arguments = {"limit": 1000, "after": "", "stop": Stop()} | options
    found = await listings.page(("ada", "s"), root, **arguments)  # type: ignore[arg-type]
    return [file.sha256 for file in found.files]


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
    found = await Listings(lane).page(("ada", "s"), tmp_path, limit=10, after="", stop=Stop())
    assert [file.modified[:4] for file in found.files][2] == "1970"
    assert all(len(file.modified) == 27 for file in found.files)


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
    await listings.page(("ada", "another"), tmp_path, limit=1, after="", stop=Stop())
    await asyncio.gather(*running)
    assert await page(listings, tmp_path) == []


async def test_a_page_of_long_paths_is_short(
    lane: Lane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All files are on some page, and none is made in the event loop's turn."""
    monkeypatch.setattr(listing, "MOST_PATHS", 600)
    for number in range(20):
        (tmp_path / f"{number:02d}{'x' * 148}").touch()
    pages, after = list[list[str]](), ""
    while not pages or after:
        found = await Listings(lane).page(("ada", "s"), tmp_path, limit=6, after=after, stop=Stop())
        assert found.complete
        pages.append([file.path for file in found.files])
        after = found.next or ""
    assert [len(each) for each in pages] == [4] * 5
    assert [int(path[:2]) for each in pages for path in each] == list(range(20))
