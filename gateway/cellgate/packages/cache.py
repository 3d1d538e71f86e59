"""A cache of unpacked, compiled wheels, shared by all sessions, and of locks that save running the resolver.

Content-addressed: an entry is named by the SHA-256 of its wheel and the Python that it is compiled for; it is
compiled some time after it is added. Kernels get read-only hard links to its files, so they keep the files of
an evicted entry. When the cache is too large, the least recently used entries are evicted. Only one gateway
uses it. All methods block and belong in a thread.
"""

from __future__ import annotations

import errno
import glob
import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from cellgate.packages.child import MOST_ENTRIES, folder_bytes
from cellgate_kernels.base import trees

TREE = "tree"
META = "meta.json"
CACHED = "__pycache__"
MOST_LOCKS = 10_000
"""Most locks that are kept; beyond, the oldest are dropped."""
LOOK_AFTER = 500
"""Number of new locks after which all are counted again."""
_KEY = re.compile(r"[0-9a-f]{64}-[0-9]{2,5}", re.ASCII)
_COPY_INSTEAD = {errno.EXDEV, errno.EMLINK, errno.EPERM}


class Wheel(msgspec.Struct, frozen=True):
    """A wheel in the cache. `key`: the name of its entry; `size`: its unpacked size in bytes.

    `compiled`: its bytecode is there too, and `size` includes it.
    """

    name: str
    version: str
    sha256: str
    key: str
    size: int
    compiled: bool = False

    def __post_init__(self) -> None:
        _check_key(self.key)


class PackageLock(msgspec.Struct, frozen=True):
    """The wheels that a list of requirements needs."""

    wheels: list[Wheel]


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """The folder of a future entry: its creator fills `tree`, then `WheelCache.adopt` takes it over."""

    name: str
    version: str
    sha256: str
    key: str
    folder: Path

    def __post_init__(self) -> None:
        _check_key(self.key)

    @property
    def tree(self) -> Path:
        """The folder of the modules."""
        return self.folder / TREE


class WheelCache:
    """Keeps up to `most` bytes below `root`; locks are valid for `lock_life` seconds."""

    def __init__(self, root: Path, most: int, lock_life: float) -> None:
        self._wheels = root / "wheels"
        self._locks = root / "locks"
        self._most = most
        self._lock_life = lock_life
        self._unlooked = 0
        for folder in (self._wheels, self._locks):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def get(self, key: str) -> Wheel | None:
        """Return the wheel of this entry, and mark it as just used."""
        meta = self._wheels / key / META
        try:
            wheel = msgspec.json.decode(meta.read_bytes(), type=Wheel)
            os.utime(meta)
        except (OSError, msgspec.MsgspecError):
            return None
        return wheel

    def adopt(self, entries: Iterable[CacheEntry]) -> list[Wheel]:
        """Take over finished folders; existing entries are left alone."""
        wheels = []
        for entry in entries:
            wheel = Wheel(entry.name, entry.version, entry.sha256, entry.key, folder_bytes(entry.tree))
            (entry.folder / META).write_bytes(msgspec.json.encode(wheel))
            entry.folder.chmod(0o700)
            with suppress(FileExistsError):
                try:
                    entry.folder.rename(self._wheels / entry.key)
                except OSError as error:
                    if error.errno not in {errno.ENOTEMPTY, errno.EEXIST}:
                        raise
            wheels.append(wheel)
        return wheels

    def tree(self, wheel: Wheel) -> Path:
        """Return the folder with the wheel's files, which may not exist."""
        return self._wheels / wheel.key / TREE

    def add_bytecode(self, wheel: Wheel, compiled: Path) -> None:
        """Add a wheel's bytecode, which is laid out below `compiled` as the sources are below its tree."""
        entry = self._wheels / wheel.key
        if _meta(entry) is None:
            return  # the entry was evicted
        for name in _files(compiled):
            source = compiled / name
            target = entry / TREE / Path(name).parent / CACHED / source.name
            target.parent.mkdir(exist_ok=True)
            source.replace(target)
        known = msgspec.structs.replace(wheel, size=folder_bytes(entry / TREE), compiled=True)
        draft = entry / f"{META}.new"
        draft.write_bytes(msgspec.json.encode(known))
        draft.replace(entry / META)

    def evict(self, spared: Iterable[Wheel] = ()) -> None:
        """Remove the least recently used entries until the rest fits, except those in `spared`."""
        keep = {wheel.key for wheel in spared}
        found = []
        for folder in self._wheels.iterdir():
            wheel = _meta(folder)
            if wheel is None:
                with suppress(OSError):
                    trees.remove(folder)
            else:
                found.append(((folder / META).stat().st_mtime, wheel))
        total = sum(wheel.size for _, wheel in found)
        for _, wheel in sorted(found, key=lambda each: each[0]):
            if total <= self._most:
                break
            if wheel.key not in keep:
                trees.remove(self._wheels / wheel.key)
                total -= wheel.size
        self._drop_old_locks()

    def _drop_old_locks(self) -> None:
        self._unlooked = 0
        oldest = time.time() - self._lock_life
        made = sorted((path.stat().st_mtime, path) for path in self._locks.iterdir())
        surplus = len(made) - MOST_LOCKS
        for number, (at, path) in enumerate(made):
            if at >= oldest and number >= surplus:
                break
            path.unlink()

    def lock(self, digest: str) -> list[Wheel] | None:
        """Return the wheels of a lock, if it is recent enough and complete."""
        path = self._locks / digest
        try:
            if path.stat().st_mtime < time.time() - self._lock_life:
                return None
            wheels = msgspec.json.decode(path.read_bytes(), type=PackageLock).wheels
        except (OSError, msgspec.MsgspecError):
            return None
        known = [found for wheel in wheels if (found := self.get(wheel.key)) is not None]
        return known if len(known) == len(wheels) else None

    def keep_lock(self, digest: str, wheels: Sequence[Wheel]) -> None:
        """Store the wheels that a list of requirements needs."""
        draft = self._locks / f"{digest}.new"
        draft.write_bytes(msgspec.json.encode(PackageLock(list(wheels))))
        draft.replace(self._locks / digest)
        self._unlooked += 1
        if self._unlooked >= LOOK_AFTER:
            # Variants of requirements for cached wheels make new locks without evicting anything.
            self._drop_old_locks()

    def link(self, wheel: Wheel, site: Path, but: Collection[str] = ()) -> list[str]:
        """Link the wheel's files, except those in `but`, into the folder `site`; returns relative names.

        Metadata is linked last, so that it is visible only when everything is. Existing files are replaced.
        Raises OSError; then no file of the wheel is left there.
        """
        tree = self._wheels / wheel.key / TREE
        found = set(_files(tree)).difference(but)
        names = sorted(found, key=lambda name: (".dist-info/" in name, name))
        made = {site}
        for done, name in enumerate(names):
            target = site / name
            try:
                _make(target.parent, made)
                _link(tree / name, target)
            except OSError:
                for linked in names[: done + 1]:
                    with suppress(OSError):
                        (site / linked).unlink()
                raise
        # Importers cache a folder's listing by its mtime, which a change within the same tick may not alter.
        moment = time.time_ns()
        os.utime(site, ns=(moment, moment))
        return names


def entry_key(sha256: str, python: str) -> str:
    """Return the name of an entry: its wheel and the Python it is compiled for, such as ``311``."""
    return _check_key(f"{sha256}-{python}")


def _check_key(key: str) -> str:
    """Return the key, which is used as a folder's name. Raises ValueError if it is not valid."""
    if not _KEY.fullmatch(key):
        raise ValueError("this is no name of an entry")
    return key


def unlink(site: Path, names: Iterable[str]) -> None:
    """Remove files from `site`, and the folders that become empty.

    A kernel without isolation may have written bytecode beside modules that had none yet; it is removed too.
    """
    folders: set[Path] = set()
    for name in names:
        path = site / name
        gone = [path]
        if path.suffix == ".py":
            gone += path.parent.joinpath(CACHED).glob(f"{glob.escape(path.stem)}.*.pyc")
        for each in gone:
            with suppress(FileNotFoundError, NotADirectoryError):
                each.unlink()
            folders.update(above for above in each.parents if above != site and above.is_relative_to(site))
    for folder in sorted(folders, key=lambda each: len(each.parts), reverse=True):
        with suppress(OSError):
            folder.rmdir()


def _meta(folder: Path) -> Wheel | None:
    try:
        return msgspec.json.decode((folder / META).read_bytes(), type=Wheel)
    except (OSError, msgspec.MsgspecError) as error:
        if isinstance(error, OSError) and error.errno in trees.NO_OPEN_FILES:
            raise
        return None


def _files(tree: Path) -> list[str]:
    walk = trees.Walk(tree, most=MOST_ENTRIES)
    names = [entry.path for entry in walk if not entry.is_folder]
    if walk.hindered is not None:
        raise walk.hindered
    return names


def _make(folder: Path, made: set[Path]) -> None:
    """Create a folder that the kernel's user can read, regardless of this process's umask."""
    missing = []
    while folder not in made:
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        with suppress(FileExistsError):
            each.mkdir()
            each.chmod(0o755)
        made.add(each)


def _link(source: Path, target: Path) -> None:
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _COPY_INSTEAD:
            raise
        shutil.copy2(source, target)
