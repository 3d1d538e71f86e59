"""Checks that every byte of an archive belongs to one of its files, or to the list of them.

A bundle's signature covers its manifest, and so the content of its files. Around these a zip file may have
anything: before the first, between two, after the end of compressed data, in extra fields and comments. These
checks find such bytes. They read an archive only in the form that ``sealed_archive`` writes.
Blocks.
"""

from __future__ import annotations

import stat
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from cellgate.record.findings import BrokenRecord
from cellgate_kernels.base.resources import MIB

_LOCAL = struct.Struct("<4s5H3L2H")
_CENTRAL = struct.Struct("<4s6H3L5H2L")
_END = struct.Struct("<4s4H2LH")
_END_64 = struct.Struct("<4sQ2H2L4Q")
_LOCATOR = struct.Struct("<4sLQL")
_SIZES = struct.Struct("<2H2Q")
_EXTRA_64 = 1
_DESCRIBED_LATER = 0x08
_IN_UTF_8 = 0x800
_UNIX = 3
_MODE = (stat.S_IFREG | 0o644) << 16
_FULL_16, _FULL_32 = 0xFFFF, 0xFFFFFFFF
_CHUNK = MIB


def check_layout(path: Path, archive: zipfile.ZipFile, comment: int) -> None:
    """Raise Broken unless the archive is only files, their list, and a final comment of so many bytes."""
    with path.open("rb") as file:
        _check_files(file, archive)
        start = file.tell()
        rest = path.stat().st_size - start
        if rest > _most_of_the_end(archive, comment):
            raise _foreign()
        _check_list(file.read(rest), start, archive, comment)


def _most_of_the_end(archive: zipfile.ZipFile, comment: int) -> int:
    names = sum(len(_name(info)) for info in archive.infolist())
    entries = len(archive.infolist()) * (_CENTRAL.size + _SIZES.size + 8)
    return names + entries + _END_64.size + _LOCATOR.size + _END.size + comment


def _name(info: zipfile.ZipInfo) -> bytes:
    return info.orig_filename.encode("utf-8" if info.flag_bits & _IN_UTF_8 else "cp437")


def _check_files(file: BinaryIO, archive: zipfile.ZipFile) -> None:
    """Check that files follow one another from the first byte on. Leaves `file` at their end."""
    for info in archive.infolist():
        if info.header_offset != file.tell():
            raise _foreign()
        _check_header(file, info)
        _check_data(file, info)
        if info.flag_bits & _DESCRIBED_LATER:
            wide = struct.pack("<4sLQQ", b"PK\x07\x08", info.CRC, info.compress_size, info.file_size)
            if file.read(len(wide)) != wide:
                raise _foreign()


def _check_header(file: BinaryIO, info: zipfile.ZipInfo) -> None:
    head = file.read(_LOCAL.size)
    if len(head) < _LOCAL.size:
        raise _foreign()
    sign, _, flags, method, _, _, crc, packed, size, name, extra = _LOCAL.unpack(head)
    expected = b"PK\x03\x04", info.flag_bits, info.compress_type
    if (sign, flags, method) != expected or file.read(name) != _name(info):
        raise _foreign()
    if flags & ~(_DESCRIBED_LATER | _IN_UTF_8):
        raise _foreign()
    told = file.read(extra)
    if extra:
        if extra != _SIZES.size or _SIZES.unpack(told)[:2] != (_EXTRA_64, _SIZES.size - 4):
            raise _foreign()
        if _SIZES.unpack(told)[2:] not in {(0, 0), (info.file_size, info.compress_size)}:
            raise _foreign()
    known = {0, _FULL_32}
    if not ({packed} <= known | {info.compress_size} and {size} <= known | {info.file_size}):
        raise _foreign()
    if crc not in {0, info.CRC}:
        raise _foreign()


def _check_data(file: BinaryIO, info: zipfile.ZipInfo) -> None:
    """Check that compressed data ends where the archive says, and not before."""
    if info.compress_type == zipfile.ZIP_STORED:
        if info.compress_size != info.file_size:
            raise _foreign()
        file.seek(info.compress_size, 1)
        return
    packed = zlib.decompressobj(-zlib.MAX_WBITS)
    left, size = info.compress_size, 0
    while left > 0 and not packed.eof:
        part = file.read(min(left, _CHUNK))
        if not part:
            raise _foreign()
        left -= len(part)
        while part and not packed.eof:
            size += len(packed.decompress(part, _CHUNK))
            part = packed.unconsumed_tail
    while not packed.eof and (more := packed.decompress(b"", _CHUNK)):
        size += len(more)
    if left or packed.unused_data or not packed.eof or size != info.file_size:
        raise _foreign()


def _check_list(data: bytes, start: int, archive: zipfile.ZipFile, comment: int) -> None:
    """Check the list of files and the archive's end, with nothing between or beside them."""
    at = 0
    if len({info.date_time for info in archive.infolist()}) > 1:
        raise _foreign()
    for info in archive.infolist():
        at = _after_entry(data, at, info)
    _check_end(data[at:], at, start, len(archive.infolist()), comment)


def _after_entry(data: bytes, at: int, info: zipfile.ZipInfo) -> int:
    """Return the end of the file's entry in the list."""
    fields = _CENTRAL.unpack(data[at : at + _CENTRAL.size].ljust(_CENTRAL.size, b"\0"))
    sign, name, extra, remark, disk, internal, external = (fields[n] for n in (0, 10, 11, 12, 13, 14, 15))
    begin = at + _CENTRAL.size
    if (sign, data[begin : begin + name]) != (b"PK\x01\x02", _name(info)):
        raise _foreign()
    # Only values that do not fit are in the extra field.
    wide = sum(fields[n] == _FULL_32 for n in (8, 9, 16))
    if extra != (4 + 8 * wide if wide else 0) or (remark, disk, internal, external) != (0, 0, 0, _MODE):
        raise _foreign()
    if info.create_system != _UNIX:
        raise _foreign()
    return begin + int(name) + int(extra)


def _check_end(data: bytes, listed: int, start: int, number: int, comment: int) -> None:
    """Check the end after the list, which has `listed` bytes for `number` files and begins at `start`."""
    at = 0
    if data.startswith(b"PK\x06\x06"):
        fields = _END_64.unpack(data[: _END_64.size].ljust(_END_64.size, b"\0"))
        if fields[1] != _END_64.size - 12 or fields[4:] != (0, 0, number, number, listed, start):
            raise _foreign()
        at = _END_64.size + _LOCATOR.size
        if data[_END_64.size : at] != _LOCATOR.pack(b"PK\x06\x07", 0, start + listed, 1):
            raise _foreign()
    count = min(number, _FULL_16)
    sizes = min(listed, _FULL_32), min(start, _FULL_32)
    end = _END.pack(b"PK\x05\x06", 0, 0, count, count, *sizes, comment)
    if data[at : at + _END.size] != end or len(data) != at + _END.size + comment:
        raise _foreign()


def _foreign() -> BrokenRecord:
    return BrokenRecord("the archive has bytes that belong to none of its files")
