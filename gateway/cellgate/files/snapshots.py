"""Snapshots of one workspace: its files at a checkpoint, kept to be restored.

A snapshot is a manifest of all entries and the data of its files in blobs, in a folder of the gateway's that
no kernel sees. A file that is unchanged since the last look, by its inode, size and both times, shares its
blob with the snapshot before. Other files are reflinked where the file system can, and copied elsewhere.
``restoring`` brings the files back. A session's code can cause only CellgateErrors: its files are too many,
too large or not readable. A gateway that ends in the middle leaves blobs that no manifest names, which the
next one removes, or a mark, by which it completes a restore.

It knows no session and no kernel. All methods block, and may be called in any thread, one after the other.
"""

from __future__ import annotations

import logging
import os
import stat
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from cellgate.errors import NotFound, QuotaExceeded, SnapshotsFull, StorageError, StorageFull, storage
from cellgate.files import data
from cellgate.files.data import Stop, never
from cellgate.files.manifest import (
    MOST_BYTES,
    ROOT,
    Blob,
    Identity,
    Record,
    SnapshotManifest,
    decoded,
    record,
)
from cellgate.files.restoring import Restored, Restoring
from cellgate_kernels.base import trees
from cellgate_kernels.base.trees import free

logger = logging.getLogger(__name__)

SnapshotId = int

_BLOBS = "blobs"
_MANIFESTS = "snapshots"
_DRAFT = "draft"
_NEW = "new"
_MARK = "restoring"
_BLOCK = 4096
_FEW_RECORDS = 20_000
"""Most entries of a manifest that is kept decoded, for the restore that usually follows a check."""
_SETTLED = 50_000_000
"""Nanoseconds after which a further change of a file certainly has another ctime."""
_SETTLED_SECONDS = 2_000_000_000
"""The same on a file system whose times are whole seconds."""


class Method(StrEnum):
    """How the data of changed files got into a snapshot; `NONE`: no file had changed."""

    NONE = "none"
    REFLINK = "reflink"
    COPY = "copy"


@dataclass(frozen=True, slots=True)
class Taken:
    """A new snapshot. `bytes_added`: its space beside the earlier ones; `copied`: how many files."""

    snapshot: SnapshotId
    bytes_added: int
    files: int
    copied: int
    method: Method


@dataclass(frozen=True, slots=True)
class _Known:
    """A file from an earlier look: its identity, and the blob with its data."""

    identity: Identity
    blob: Blob
    sure: bool


class Snapshots:
    """The snapshots of one workspace, in a folder of their own on the workspace's disk.

    `most_bytes`: the limit of all together; `reserve`: bytes of the disk to keep free; `stop` returns whether
    to give up taking one. The folder is created, and leftovers in it are removed. Raises StorageError.
    """

    def __init__(self, folder: Path, most_bytes: int, *, reserve: int = 0, stop: Stop = never) -> None:
        self._folder = folder
        self._stop = stop
        self._most = most_bytes
        self._reserve = reserve
        self._lock = threading.Lock()
        self._last = 0
        self._last_blob = 0
        self._sizes: dict[SnapshotId, int] = {}
        self._users: Counter[int] = Counter()
        self._blob_bytes: dict[int, int] = {}
        self._known: dict[tuple[int, int], _Known] = {}
        # The known files are made from these on demand: a waiting restore does not need them.
        self._files_are: tuple[SnapshotManifest, Mapping[int, Identity]] | None = None
        self._read_last: tuple[SnapshotId, SnapshotManifest] | None = None
        with storage("The snapshots can't be opened"):
            self._open()

    @property
    def ids(self) -> tuple[SnapshotId, ...]:
        """The snapshots that are kept, oldest first."""
        return tuple(sorted(self._sizes))

    @property
    def size(self) -> int:
        """The bytes of all snapshots on the disk, without blocks that reflinks share with the workspace."""
        return sum(self._blob_bytes.values()) + sum(self._sizes.values())

    @property
    def unfinished(self) -> SnapshotId | None:
        """The snapshot whose restore was interrupted or could not be completed, if any."""
        try:
            text = (self._folder / _MARK).read_text()
        except FileNotFoundError:
            return None
        return int(text) if text.isdecimal() and int(text) in self._sizes else None

    def take(self, workspace: Path, *, stop: Stop | None = None) -> Taken:
        """Take a snapshot of the workspace's files as they are now.

        Raises QuotaExceeded: they are too many, too deep, not readable, or too large; SnapshotsFull: there is
        no room beside the other snapshots; FileHeld; StorageFull, StorageError; ShuttingDown once `stop`
        returns True. In all cases nothing has changed.
        """
        with self._lock, storage("The files can't be kept"):
            trees.remove(self._folder / _DRAFT)
            taking = _Taking(self, workspace, self._stop if stop is None else stop)
            try:
                records = taking.records()
                return self._keep(records, taking)
            except BaseException:
                for blob in taking.new:
                    self._blob_path(blob).unlink(missing_ok=True)
                raise

    def restore(self, snapshot: SnapshotId, workspace: Path, *, stop: Stop = never) -> Restored:
        """Restore the workspace's contents, permissions, times and links; and remove added entries.

        Removed or replaced entries are only taken out of the workspace: `tidy` removes them. Raises NotFound;
        StorageFull, StorageError or ShuttingDown, either before any change or, if `unfinished` is set, in the
        middle: a repeat completes the restore.
        """
        with self._lock, storage("The files can't be brought back"):
            manifest = self._manifest(snapshot)
            self._read_last = None
            (draft := self._folder / _DRAFT).mkdir(mode=0o700, exist_ok=True)
            mark = self._folder / _MARK
            with Restoring(manifest, workspace, draft, self._folder / _BLOBS, stop) as restoring:
                restoring.prepare()
                mark.write_text(str(snapshot))
                restored = restoring.apply()
            mark.unlink()
            self._know(manifest, restored)
            return restored

    def check(self, snapshot: SnapshotId, workspace: Path) -> None:
        """Check that `restore` can begin: the snapshot is readable, and there is room for differing files.

        Raises NotFound, StorageFull, StorageError. Nothing changes.
        """
        with self._lock, storage("The files can't be brought back"):
            manifest = self._manifest(snapshot)
            if len(manifest.records) <= _FEW_RECORDS:
                self._read_last = snapshot, manifest
            if free(self._folder) >= sum(manifest.blobs().values()):
                return  # nearly always: then nothing has to be looked at
            (draft := self._folder / _DRAFT).mkdir(mode=0o700, exist_ok=True)
            with Restoring(manifest, workspace, draft, self._folder / _BLOBS, self._stop) as restoring:
                if free(self._folder) < restoring.needed():
                    raise StorageFull("There is no room on the gateway's disk to bring back the files")

    def recover(self, workspace: Path) -> Restored | None:
        """Complete an interrupted restore, if there is one. Raises as `restore`."""
        snapshot = self.unfinished
        if snapshot is None:
            return None
        # The workspace may have been empty, and empty folders are not kept.
        with storage("The files can't be brought back"):
            workspace.mkdir(mode=0o700, exist_ok=True)
        return self.restore(snapshot, workspace)

    def tidy(self) -> None:
        """Remove the entries that restores took out of the workspace. Raises StorageError."""
        with self._lock, storage("What was brought out of the workspace can't be removed"):
            trees.remove(self._folder / _DRAFT)

    def drop(self, snapshot: SnapshotId) -> None:
        """Drop a snapshot; an unknown one is no error. Raises StorageError."""
        with self._lock, storage("The snapshot can't be removed"):
            if snapshot not in self._sizes:
                return
            blobs = self._manifest(snapshot).blobs()
            self._manifest_path(snapshot).unlink(missing_ok=True)
            del self._sizes[snapshot]
            self._read_last = None
            self._users.subtract(blobs.keys())
            for blob in blobs:
                if self._users[blob] <= 0:
                    del self._users[blob], self._blob_bytes[blob]
                    self._blob_path(blob).unlink(missing_ok=True)
            known = self._known_files()
            self._known = {at: each for at, each in known.items() if each.blob.number in self._users}

    def remove(self) -> None:
        """Remove all snapshots and their folder. Raises StorageError."""
        with self._lock, storage("The snapshots can't be removed"):
            self._sizes.clear()
            self._users.clear()
            self._blob_bytes.clear()
            self._known.clear()
            self._files_are = None
            trees.remove(self._folder)

    def _open(self) -> None:
        for folder in (self._folder, self._folder / _BLOBS, self._folder / _MANIFESTS):
            folder.mkdir(mode=0o700, exist_ok=True)
        trees.remove(self._folder / _DRAFT)
        last: SnapshotManifest | None = None
        for path in sorted(
            (self._folder / _MANIFESTS).iterdir(), key=lambda path: (len(path.name), path.name)
        ):
            try:
                last = _read(path)
                self._count(int(path.name), last)
            except ValueError as error:
                logger.warning("The snapshot %s is damaged and is removed: %s", path, error)
                path.unlink()
        for path in (self._folder / _BLOBS).iterdir():
            if not path.name.isdecimal() or int(path.name) not in self._users:
                path.unlink()
        if last is not None:
            self._know(last, None)

    def _count(self, snapshot: SnapshotId, manifest: SnapshotManifest) -> None:
        blobs = manifest.blobs()
        self._last = max(self._last, snapshot)
        self._last_blob = max(self._last_blob, max(blobs, default=0))
        self._sizes[snapshot] = _blocks(self._manifest_path(snapshot).stat().st_size)
        self._users.update(blobs.keys())
        self._blob_bytes.update(blobs)

    def _keep(self, records: list[Record], taking: _Taking) -> Taken:
        manifest = SnapshotManifest(tuple(records))
        content = manifest.encoded()
        self.make_room(taking.added + _blocks(len(content)))
        snapshot = self._last + 1
        draft = self._folder / _NEW
        try:
            draft.write_bytes(content)
            draft.rename(self._manifest_path(snapshot))
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        self._count(snapshot, manifest)
        self._know(manifest, None)
        added = taking.added + self._sizes[snapshot]
        return Taken(snapshot, added, taking.files, len(taking.new), taking.method)

    def make_room(self, added: int) -> None:
        """Raise QuotaExceeded, SnapshotsFull or StorageFull if `added` bytes are too much."""
        if added > self._most:
            raise QuotaExceeded(f"The files of a checkpoint would take more than {self._most:,} bytes")
        if self.size + added > self._most:
            raise SnapshotsFull(f"The files of all checkpoints would take more than {self._most:,} bytes")
        if free(self._folder) - self._reserve < 0:
            raise StorageFull("There is no room on the gateway's disk for the files of a checkpoint")

    def new_blob(self) -> int:
        """Return a number that no blob has."""
        return self._last_blob + 1

    def known(self, found: os.stat_result) -> _Known | None:
        """Return the known file with this inode; None if there is none."""
        return self._known_files().get((found.st_dev, found.st_ino))

    def _know(self, manifest: SnapshotManifest, restored: Restored | None) -> None:
        """Remember a manifest's files as the workspace's, except those that a restore has replaced."""
        self._known = {}
        self._files_are = manifest, {} if restored is None else restored.anew

    def _known_files(self) -> dict[tuple[int, int], _Known]:
        if self._files_are is None:
            return self._known
        manifest, anew = self._files_are
        self._files_are = None
        for number, each in enumerate(manifest.records):
            if each.blob is None or each.identity is None or each.first != number:
                continue
            sure = each.sure and number not in anew
            identity = anew.get(number, each.identity)
            self._known[identity.device, identity.inode] = _Known(identity, each.blob, sure)
        return self._known

    def _manifest(self, snapshot: SnapshotId) -> SnapshotManifest:
        if snapshot not in self._sizes:
            raise NotFound("There is no such snapshot")
        if self._read_last is not None and self._read_last[0] == snapshot:
            return self._read_last[1]
        try:
            return _read(self._manifest_path(snapshot))
        except ValueError as error:
            raise StorageError(f"The snapshot is damaged: {error}") from error

    def _manifest_path(self, snapshot: SnapshotId) -> Path:
        return self._folder / _MANIFESTS / str(snapshot)

    def _blob_path(self, blob: int) -> Path:
        return self._folder / _BLOBS / str(blob)

    @property
    def blobs(self) -> Path:
        """The folder of the blobs."""
        return self._folder / _BLOBS


class _Taking:
    """One snapshot while it is taken: the records, and the blobs that were made for it."""

    def __init__(self, snapshots: Snapshots, workspace: Path, stop: Stop) -> None:
        self.new: list[int] = []
        self.added = 0
        self.files = 0
        self.method = Method.NONE
        self._snapshots = snapshots
        self._workspace = workspace
        self._stop = stop
        self._next = snapshots.new_blob()
        self._records: list[Record] = []
        self._first: dict[Identity, int] = {}

    def records(self) -> list[Record]:
        """Return all entries of the workspace. Raises QuotaExceeded, ShuttingDown and OSError."""
        self._add(record(self._workspace.lstat(), ROOT, ""))
        if (
            self._records[ROOT].is_folder
            and self._workspace.lstat().st_dev != self._snapshots.blobs.stat().st_dev
        ):
            raise StorageError("The snapshots and the workspace are not on one file system")
        walk = trees.Walk(self._workspace)
        folders = {"": ROOT}
        for entry in walk:
            data.go_on(self._stop)
            folder = folders[entry.path[: -len(entry.name)].rstrip("/")]
            if entry.is_folder:
                folders[entry.path] = len(self._records)
            self._entry(entry, folder)
        if walk.hindered is not None:
            raise walk.hindered
        if not walk.complete:
            raise QuotaExceeded(
                f"The files can't be kept: there are more than {trees.MOST:,}, or they lie deeper than"
                f" {trees.DEEPEST} folders, or their permissions forbid it"
            )
        return self._records

    def _add(self, new: Record) -> None:
        self._records.append(new)

    def _entry(self, entry: trees.Entry, folder: int) -> None:
        found = entry.found
        if stat.S_ISLNK(found.st_mode):
            leads_to = data.link_text(entry.name, entry.folder)
            if leads_to is not None:
                self._add(record(found, folder, entry.name, leads_to=leads_to))
        elif entry.is_file:
            self._file(entry, folder)
        else:
            self._add(record(found, folder, entry.name))

    def _file(self, entry: trees.Entry, folder: int) -> None:
        number = len(self._records)
        identity = Identity.of(entry.found)
        first = self._first.get(identity, number) if entry.found.st_nlink > 1 else number
        known = self._snapshots.known(entry.found)
        if first != number:
            twin = self._records[first]
            self._add(record(entry.found, folder, entry.name, first=first, blob=twin.blob, sure=twin.sure))
        elif known is not None and known.sure and known.identity == identity:
            self._add(record(entry.found, folder, entry.name, first=number, blob=known.blob, sure=True))
        else:
            try:
                self._look(entry, folder, known)
            except PermissionError as error:
                raise QuotaExceeded(
                    f"The files can't be kept: {entry.path[-200:]!r} is not readable; change its permissions"
                ) from error
        if len(self._records) > number:
            self.files += 1
            if entry.found.st_nlink > 1:
                self._first.setdefault(identity, number)

    def _look(self, entry: trees.Entry, folder: int, known: _Known | None) -> None:
        """Compare a file that may have changed with its blob, and keep a copy if they differ."""
        with data.opened(entry.name, entry.folder, entry.path) as source:
            if source is None:
                return
            before = os.fstat(source)
            settled = _is_settled(before) and not data.is_open(source, for_writing=True)
            blob = None
            if known is not None and known.identity.size == before.st_size:
                blob = self._same(source, before.st_size, known.blob)
            if blob is None:
                blob = self._copy(source, before.st_size)
            sure = settled and Identity.of(os.fstat(source)) == Identity.of(before)
            number = len(self._records)
            self._add(record(before, folder, entry.name, first=number, blob=blob, sure=sure))

    def _same(self, source: int, size: int, blob: Blob) -> Blob | None:
        kept = os.open(self._snapshots.blobs / str(blob.number), os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(kept).st_size == size and data.same(source, kept, size, self._stop):
                return blob
        finally:
            os.close(kept)
        return None

    def _copy(self, source: int, size: int) -> Blob:
        number = self._next
        self._next += 1
        target = os.open(self._snapshots.blobs / str(number), data.NEW, 0o600)
        self.new.append(number)
        try:
            taken = sum(end - at for at, end in data.parts(source, size))
            self._snapshots.make_room(self.added + _blocks(taken))
            if data.clone(source, target):
                self.method = Method.COPY if self.method is Method.COPY else Method.REFLINK
            else:
                self.method = Method.COPY
                taken = size - data.copy_data(source, target, size, size, self._stop)
        finally:
            os.close(target)
        # An empty one takes an inode and memory of the gateway.
        taken = max(_blocks(taken), _BLOCK)
        self.added += taken
        return Blob(number, taken)


def is_unfinished(folder: Path) -> bool:
    """Return whether a restore from the snapshots in this folder was interrupted. Raises OSError."""
    return os.path.lexists(folder / _MARK)


def _read(path: Path) -> SnapshotManifest:
    if path.stat().st_size > MOST_BYTES or not path.name.isdecimal():
        raise ValueError("It is no manifest")
    return decoded(path.read_bytes())


def _blocks(count: int) -> int:
    """Return so many bytes rounded up to whole blocks."""
    return -(-count // _BLOCK) * _BLOCK


def _is_settled(found: os.stat_result) -> bool:
    """Return whether a change from now on certainly gives the file another ctime."""
    granularity = _SETTLED if found.st_ctime_ns % 1_000_000_000 else _SETTLED_SECONDS
    return found.st_ctime_ns + granularity < time.time_ns()
