"""The input of ``cellgate replay``: a notebook with the files beside it, or a bundle.

It reads the caller's files and sends nothing. From a notebook's folder it reads only files that the notebook
names, never through a link; from a bundle only entries below its working folder.
"""

from __future__ import annotations

import os
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

import msgspec

from cellgate.errors import Conflict, NotFound
from cellgate.files.tree import open_file, parse_path
from cellgate.record.export.bundle import WORK, BundleManifest
from cellgate.record.export.sealed_archive import MANIFEST
from cellgate.record.verify.imported import (
    MOST_MANIFEST,
    UNREADABLE,
    decode_notebook,
    open_archive,
    read_entry,
    read_file,
)
from cellgate.replay.files import CHANGED, GONE, NO_HASH, InputFile
from cellgate_kernels.base.errors import InvalidInput, in_brief, in_words, near_file
from cellgate_kernels.base.resources import MIB

MOST_BYTES = 512 * MIB
"""The largest file that is sent to a gateway; the whole file is in memory."""
_OLDER = (1, 2, 3)
"""Versions of nbformat that are converted before their cells are read."""
_TOO_LARGE = f"It is larger than {MOST_BYTES // MIB} MiB: upload it to a session to replay that."


class Source(Protocol):
    """Where the bytes of input files may be found."""

    def bytes_of(self, path: str, most: int) -> bytes | None:
        """Up to `most` bytes of a file, or None if there is no file at this path. Blocks."""


class _Folder:
    def __init__(self, root: Path) -> None:
        self._root = root

    def bytes_of(self, path: str, most: int) -> bytes | None:
        try:
            descriptor, _ = open_file(self._root, parse_path(path))
        except (NotFound, InvalidInput, Conflict):
            return None
        with os.fdopen(descriptor, "rb") as file:
            return file.read(most)


class _Bundle:
    def __init__(self, path: Path) -> None:
        self._path = path

    def bytes_of(self, path: str, most: int) -> bytes | None:
        with open_archive(self._path) as archive:
            try:
                return read_entry(archive, f"{WORK}/{path}", most)
            except KeyError:
                return None


def open_source(path: Path) -> tuple[dict[str, Any], Source]:
    """Return the notebook and a source of its input files. Raises InvalidInput. Blocks."""
    try:
        if not zipfile.is_zipfile(path):
            return _converted(decode_notebook(read_file(path), str(path)), path), _Folder(
                path.absolute().parent
            )
        return _notebook_of_bundle(path), _Bundle(path)
    except OSError as error:
        raise InvalidInput(f"{path} can't be read: {in_brief(error)}{near_file(path)}") from error


def _converted(notebook: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the notebook as one of nbformat 4, if it is of an older format."""
    if notebook.get("nbformat") not in _OLDER:
        return notebook
    from cellgate.record.verify.older import newest  # noqa: PLC0415 - nbformat is slow to load, and few notebooks are old

    return newest(notebook, str(path))


def _notebook_of_bundle(path: Path) -> dict[str, Any]:
    try:
        with open_archive(path) as archive:
            manifest = msgspec.json.decode(read_entry(archive, MANIFEST, MOST_MANIFEST), type=BundleManifest)
            content = read_entry(archive, manifest.notebook)
    except (KeyError, RecursionError, *UNREADABLE) as error:
        if isinstance(error, OSError):
            raise
        raise InvalidInput(f"{path} is no bundle of Cellgate's: {in_words(error)}") from error
    return decode_notebook(content, str(path))


def recorded_bytes(source: Source, file: InputFile) -> bytes | str:
    """Return the file's bytes if they are the recorded ones, otherwise why they are missing. Blocks."""
    if file.sha256 is None or file.size is None or file.size < 0:
        return NO_HASH
    if file.size > MOST_BYTES:
        return _TOO_LARGE
    try:
        content = source.bytes_of(file.path, file.size + 1)
    except (InvalidInput, *UNREADABLE):
        return CHANGED
    if content is None:
        return GONE
    return content if sha256(content).hexdigest() == file.sha256 else CHANGED
