"""Unfinished copies of records: each in a private folder beside its target, locked while it is made.

A killed process leaves its folder behind, unlocked: the next copy that is made beside it removes it. A file
in the folder is locked and not the folder itself, because network file systems lock files. Where no file can
be locked either, drafts are left alone. ``backup`` makes the copies.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_ATTEMPTS = 10
_NAME = re.compile(r"\.cellgate-copy-[0-9a-f]{16}")
_LOCK = "lock"
_NO_LOCKS = frozenset({errno.EINVAL, errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP})


@contextmanager
def draft_folder(parent: Path) -> Iterator[Path]:
    """Yield a new folder for a copy that gets its name in `parent`; remove it at the end.

    A folder that can't be removed at the end is left for the next copy. Raises OSError if none can be made.
    """
    for abandoned in _drafts(parent):
        with suppress(OSError), os.fdopen(_lock(abandoned), "rb"):
            shutil.rmtree(abandoned, ignore_errors=True)
    folder, lock = _make(parent)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def _drafts(parent: Path) -> list[Path]:
    """Return this user's drafts in a folder."""
    with suppress(OSError):
        found = [Path(entry) for entry in os.scandir(parent) if _NAME.fullmatch(entry.name)]
        return [path for path in found if path.lstat().st_uid == os.geteuid()]
    return []


def _lock(folder: Path) -> int:
    """Lock a folder; return the lock's descriptor. Raises OSError if another process holds the lock."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(folder / _LOCK, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _make(parent: Path) -> tuple[Path, int | None]:
    """Return a new folder and its lock's descriptor, if any. Others may remove an unlocked folder."""
    for _ in range(_ATTEMPTS):
        folder = parent / f".cellgate-copy-{secrets.token_hex(8)}"
        folder.mkdir(mode=0o700)
        try:
            lock = _lock(folder)
        except (FileNotFoundError, BlockingIOError):
            continue
        except OSError as error:
            if error.errno in _NO_LOCKS:
                return folder, None
            raise
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(folder / _LOCK)):  # noqa: PTH116 - as fstat
                return folder, lock
        os.close(lock)
    raise FileNotFoundError(f"Folders in {parent} keep being removed")
