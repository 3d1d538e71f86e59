"""Reads notebooks and bundles from any source, and limits their size and density.

A few bytes of JSON become an object of fifty to seventy bytes, so a limit of a file's size does not limit the
memory for decoding it; a limit of the number of its values does. Every reader of a submitted notebook or
bundle, such as ``verify``, ``replay`` and ``run``, uses this module. The meaning of a notebook is not checked
here.
"""

from __future__ import annotations

import io
import lzma
import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB
from cellgate_kernels.codec.decoding import json_decoder

MOST_BYTES = 512 * MIB
"""The largest notebook or list of rows that is read into memory as a whole."""
MOST_MANIFEST = 64 * MIB
MOST_VALUES = 16_000_000
"""Values in one notebook; each takes up to seventy bytes once it is decoded."""
MOST_LIST = 16 * MIB
"""Bytes of an archive's list of entries: enough for 10,000 of the longest names."""
UNREADABLE = (zipfile.BadZipFile, EOFError, OSError, RuntimeError, zlib.error, lzma.LZMAError, ValueError)
"""zipfile's errors for a damaged or unusual archive, such as RuntimeError for an encrypted one."""

# zipfile decompresses the other methods without a limit: 1 MiB of bzip2 can hold 20 GB.
_COMPRESSIONS = frozenset({zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED})
_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
_SEPARATORS = (b"[", b"{", b",", b":")
_CHUNK = MIB
_decode = json_decoder(dict[str, Any]).decode


def check_size(content: bytes, what: str) -> None:
    """Raise InvalidInput when decoding `content` as JSON would take too much memory."""
    if len(content) > MOST_BYTES:
        raise too_large(what, MOST_BYTES)
    # Most notebooks pass the first count; only for dense ones are strings removed before counting.
    if _values(content) > MOST_VALUES and _values(_STRINGS.sub(b"", content)) > MOST_VALUES:
        raise InvalidInput(f"{what} has more than {MOST_VALUES:,} values: that is too many to read at once")


def _values(content: bytes) -> int:
    return sum(map(content.count, _SEPARATORS))


def too_large(what: str, most: int) -> InvalidInput:
    """Return the error for content of more than `most` bytes."""
    return InvalidInput(f"{what} is larger than {most // MIB} MiB: that is too large to read at once")


def decode_notebook(content: bytes, what: str) -> dict[str, Any]:
    """Return a notebook's JSON object. Raises InvalidInput that names the file, `what`."""
    check_size(content, what)
    try:
        return _decode(content.removeprefix(b"\xef\xbb\xbf"))
    except RecursionError:
        raise InvalidInput(f"{what} is no notebook: it is nested too deeply") from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{what} is no notebook: {error}") from error


def read_file(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return a file's bytes. Raises InvalidInput when there are more than `most`, and OSError. Blocks."""
    with path.open("rb") as file:
        content = file.read(most + 1)
    if len(content) > most:
        raise too_large(str(path), most)
    return content


def open_archive(path: Path) -> zipfile.ZipFile:
    """Return a bundle, open for reading. Raises one of `UNREADABLE` for a file that no gateway would write.

    The number of its entries is limited, and no two of them share bytes.
    """
    # _Archive closes the file: ZipFile closes only files that it has opened itself.
    archive = _Archive(_Reader(io.FileIO(path)))
    try:
        if sum(info.compress_size for info in archive.infolist()) > path.stat().st_size:
            raise zipfile.BadZipFile("its files overlap")
    except BaseException:
        archive.close()
        raise
    return archive


class _Archive(zipfile.ZipFile):
    def __init__(self, file: io.BufferedReader) -> None:
        self._source = file
        try:
            super().__init__(file)
        except BaseException:
            file.close()
            raise

    def close(self) -> None:
        super().close()
        self._source.close()


class _Reader(io.BufferedReader):
    """A file that refuses large reads: zipfile reads the list of an archive's entries in a single one."""

    def read(self, size: int | None = -1, /) -> bytes:
        wanted = MOST_LIST + 1 if size is None or size < 0 else size
        # The list has the length that the archive gives; everything else is read in much smaller parts.
        if wanted > MOST_LIST + 1:
            raise zipfile.BadZipFile("it has too many files")
        content = super().read(wanted)
        if len(content) > MOST_LIST:
            raise zipfile.BadZipFile("it has too many files")
        return content


def entry_parts(archive: zipfile.ZipFile, name: str) -> Iterator[bytes]:
    """Yield an entry's content, in parts of 1 MiB. Raises KeyError, and `UNREADABLE` for a damaged one."""
    if archive.getinfo(name).compress_type not in _COMPRESSIONS:
        raise zipfile.BadZipFile(f"{name} is compressed in another way than bundles are")
    with archive.open(name) as entry:
        while part := entry.read(_CHUNK):
            yield part


def read_entry(archive: zipfile.ZipFile, name: str, most: int = MOST_BYTES) -> bytes:
    """Return a whole entry, whatever its stated size. Raises InvalidInput above `most` bytes."""
    parts: list[bytes] = []
    size = 0
    for part in entry_parts(archive, name):
        parts.append(part)
        size += len(part)
        if size > most:
            raise too_large(name, most)
    return b"".join(parts)
