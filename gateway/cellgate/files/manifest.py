"""The content of one snapshot of a workspace, and the file that it is written to.

A manifest lists each entry with the number of its folder in the list and its name, so no path is long,
however deep the tree. The data of files is in blobs, by number; several files, also of several snapshots,
may have the same. Pure, but for `found`, which only reads numbers of a stat result.
"""

from __future__ import annotations

import os
import stat

import msgspec

from cellgate_kernels.base import trees

ROOT = 0
MOST_BYTES = 512 * 1024 * 1024
"""More bytes than a manifest with the most entries, each with the longest name and link."""


class Identity(msgspec.Struct, frozen=True, array_like=True):
    """Changes when a file's data may have changed: no code can set `changed` (the ctime)."""

    device: int
    inode: int
    size: int
    modified: int
    changed: int

    @classmethod
    def of(cls, found: os.stat_result) -> Identity:
        """Return the identity of a file with this stat result."""
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class Blob(msgspec.Struct, frozen=True, array_like=True):
    """The place of a file's data. `bytes`: its space on the disk at most, in whole blocks."""

    number: int
    bytes: int


class Record(msgspec.Struct, frozen=True, array_like=True):
    """One entry of the workspace. `folder` is the number of its folder, the root's own for the root.

    `first`: the number of the first of a file's names. `sure`: its data can't have changed while the identity
    is the same. `modified` is in nanoseconds.
    """

    folder: int
    name: bytes
    mode: int
    owner: int
    group: int
    modified: int
    identity: Identity | None = None
    first: int = 0
    blob: Blob | None = None
    sure: bool = False
    leads_to: bytes = b""

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.mode)

    def is_untouched(self, found: os.stat_result) -> bool:
        """Return whether the file is the same, with the same data, owner and permissions.

        All changes of these show in the ctime.
        """
        known = self.identity
        return (
            known is not None
            and self.sure
            and found.st_ctime_ns == known.changed
            and found.st_ino == known.inode
            and found.st_size == known.size
            and found.st_mtime_ns == known.modified
            and found.st_dev == known.device
        )


class SnapshotManifest(msgspec.Struct, frozen=True, array_like=True):
    """The entries of one snapshot, each after its folder; the first is the workspace itself."""

    records: tuple[Record, ...]

    def names(self) -> dict[int, list[int]]:
        """Return the numbers of the entries in each folder, by the folder's number."""
        folders = (number for number, each in enumerate(self.records) if each.is_folder)
        inside: dict[int, list[int]] = {number: [] for number in folders}
        for number, each in enumerate(self.records):
            if number != ROOT:
                inside[each.folder].append(number)
        return inside

    def blobs(self) -> dict[int, int]:
        """Return the bytes of all its blobs, by their numbers."""
        return {each.blob.number: each.blob.bytes for each in self.records if each.blob is not None}

    def encoded(self) -> bytes:
        """Encode the manifest for its file."""
        return msgspec.msgpack.encode(self)


def decoded(content: bytes) -> SnapshotManifest:
    """Read a manifest. Raises ValueError."""
    manifest = msgspec.msgpack.decode(content, type=SnapshotManifest)
    for number, each in enumerate(manifest.records):
        above = manifest.records[each.folder] if 0 <= each.folder <= number else None
        is_plain = b"/" not in each.name and b"\0" not in each.name and each.name not in {b".", b".."}
        if above is None or not above.is_folder or not is_plain or (number == ROOT) == bool(each.name):
            raise ValueError(f"Entry {number} is no entry of a folder before it")
        if not 0 <= each.first <= number:
            raise ValueError(f"Entry {number} is another name of none before it")
    if not manifest.records or len(manifest.records) > trees.MOST + 1:
        raise ValueError("There are no entries, or too many")
    return manifest


def record(
    found: os.stat_result,
    folder: int,
    name: str,
    *,
    first: int = 0,
    blob: Blob | None = None,
    sure: bool = False,
    leads_to: str = "",
) -> Record:
    """Return the record of an entry with this stat result."""
    return Record(
        folder,
        os.fsencode(name),
        found.st_mode,
        found.st_uid,
        found.st_gid,
        found.st_mtime_ns,
        None if stat.S_ISDIR(found.st_mode) or stat.S_ISLNK(found.st_mode) else Identity.of(found),
        first,
        blob,
        sure,
        os.fsencode(leads_to),
    )
