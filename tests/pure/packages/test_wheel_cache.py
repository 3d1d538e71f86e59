"""The wheels that packages of sessions are linked from."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import pytest

from cellgate.packages import cache
from cellgate.packages.cache import CacheEntry, WheelCache, entry_key


def test_of_a_wheel_that_is_not_linked_whole_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would know of these files, and no later change would remove them."""
    folder = tmp_path / "new"
    entry = CacheEntry("banana", "1.0", "0" * 64, entry_key("0" * 64, "311"), folder)
    for name in ("banana/__init__.py", "banana/peel.py", "banana-1.0.dist-info/METADATA"):
        (entry.tree / name).parent.mkdir(parents=True, exist_ok=True)
        (entry.tree / name).write_text(name)
    wheels = WheelCache(tmp_path / "cache", 10**6, 60.0)
    (wheel,) = wheels.adopt([entry])
    site = tmp_path / "site"
    site.mkdir()
    (site / "other.py").write_text("stays")
    link = cache._link

    def fail(source: Path, target: Path) -> None:
        if target.name == "METADATA":
            target.write_text("half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        link(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(cache, "_link", fail)
        with pytest.raises(OSError, match="No space left"):
            wheels.link(wheel, site)
    assert [path.name for path in site.rglob("*") if path.is_file()] == ["other.py"]
    assert len(wheels.link(wheel, site)) == 3


def test_locks_are_limited_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for one package in ever other words gets a lock each time, though nothing is added."""
    monkeypatch.setattr(cache, "MOST_LOCKS", 10)
    monkeypatch.setattr(cache, "LOOK_AFTER", 5)
    wheels = WheelCache(tmp_path, 10**6, 1000.0)
    kept = tmp_path / "locks"
    now = time.time()
    for number in range(100):
        wheels.keep_lock(f"{number:064x}", [])
        os.utime(kept / f"{number:064x}", (now, now - 100 + number))
    assert len(list(kept.iterdir())) < 10 + 5
    assert wheels.lock(f"{99:064x}") == []
    assert wheels.lock(f"{0:064x}") is None
