"""Files without a name, and memory that processes share, of a fork that is held.

Both are outside of a process's own memory, and nobody else can bring them back: a temporary file that has no
name, one that was removed while it was open, a memfd, memory that `mmap` or multiprocessing shares. So a held
fork keeps what was in them (`Unnamed.note`), and each kernel that is made of it gets new ones with the same
content (`Unnamed.come_back`), below the same numbers and at the same addresses.
"""

import ctypes
import mmap
import os
import stat
from contextlib import suppress

MOST = 64 * 2**20
"""Bytes of all that is kept; what is more is an obstacle to a checkpoint."""
REMOVED = " (deleted)"
MEMFD = "/memfd:"
SHARED_MEMORY = ("/dev/zero", "/dev/shm/", MEMFD)  # noqa: S108 - nothing is made there
"""How the files begin that shared memory is mapped from when nothing but a process has it."""
MAP_FIXED = 0x10
CHUNK = 2**20
NO_ADDRESS = 2 ** (8 * ctypes.sizeof(ctypes.c_void_p)) - 1


class Area:
    """A part of memory that is shared: of which file, from where in it, where it is, and its rights."""

    def __init__(self, file, offset, start, end, rights, path):
        self.file = file
        self.offset = offset
        self.start = start
        self.end = end
        self.rights = rights
        self.path = path

    @property
    def size(self):
        """The size in bytes."""
        return self.end - self.start

    @property
    def is_nowhere_else(self):
        """Whether it has no name, and is memory that can be read and written to."""
        removed = self.path.endswith(REMOVED) and self.path.startswith(SHARED_MEMORY)
        return removed and self.rights.startswith("rw")


class Unnamed:
    """What a process has of the kind.

    `opened`: the descriptors that cells have opened, with what they are. `maps`: the list of its memory.
    """

    def __init__(self, opened, maps):
        self.files = {}
        self.numbers = {}
        for number, path in opened.items():
            with suppress(OSError):
                found = os.fstat(number)
                if stat.S_ISREG(found.st_mode) and found.st_nlink == 0:
                    file = identity(found)
                    self.numbers[number] = file
                    self.files[file] = (number, path, found)
        # Those whose file is open come back with it.
        self.areas = [area for area in shared_areas(maps) if area.file in self.files or area.is_nowhere_else]
        self.alone = [area for area in self.areas if area.file not in self.files]
        self.contents = {}

    def too_large(self):
        """Return the names of what there is, if it is more than can be kept."""
        sizes = [(path, found.st_size) for _, path, found in self.files.values()]
        sizes += [(area.path, area.size) for area in self.alone]
        if sum(size for _, size in sizes) <= MOST:
            return []
        sizes.sort(key=lambda each: -each[1])
        return [f"{path.removesuffix(REMOVED)}, {size / 2**20:.0f} MiB" for path, size in sizes]

    def note(self):
        """Keep what is in them, in the process that is held; nothing if that is too much."""
        if self.too_large():
            self.numbers = {}
            return
        for file, (number, _, _) in self.files.items():
            with suppress(OSError):
                self.contents[file] = whole(number)
        for area in self.alone:
            self.contents[area.file, area.start] = ctypes.string_at(area.start, area.size)

    def come_back(self):
        """Make new ones; return paths to open them by, until `close`, by the descriptors they belong to."""
        self.made = {}
        for file, (_, path, found) in self.files.items():
            if file in self.contents:
                self.made[file] = made(path, found, self.contents[file])
        for area in self.areas:
            if area.file in self.made:
                put_in_place(area, self.made[area.file], area.offset)
            elif (area.file, area.start) in self.contents:
                file = made(MEMFD, None, self.contents[area.file, area.start])
                put_in_place(area, file, 0)
                os.close(file)
        self.contents = {}
        numbers = self.numbers.items()
        return {number: f"/proc/self/fd/{self.made[file]}" for number, file in numbers if file in self.made}

    def close(self):
        """Forget what `come_back` returned."""
        for file in self.made.values():
            os.close(file)


def identity(found):
    """Return a file's device and inode numbers in the form of a process's memory map."""
    return os.major(found.st_dev), os.minor(found.st_dev), found.st_ino


def shared_areas(maps):
    """Return the parts of a process's memory that it shares with whoever has mapped the same file."""
    areas = []
    for line in maps:
        if line[line.index(" ") + 4] != "s":
            continue
        addresses, rights, offset, device, inode, *path = line.split(maxsplit=5)
        start, end = (int(each, 16) for each in addresses.split("-"))
        major, minor = (int(each, 16) for each in device.split(":"))
        file = (major, minor, int(inode))
        areas.append(Area(file, int(offset, 16), start, end, rights, "".join(path)))
    return areas


def whole(number):
    """Read an open file whole, whatever mode it was opened in, up to the limit. Raises OSError."""
    parts = []
    file = os.open(f"/proc/self/fd/{number}", os.O_RDONLY | os.O_CLOEXEC)
    try:
        while len(parts) * CHUNK <= MOST and (part := os.pread(file, CHUNK, sum(map(len, parts)))):
            parts.append(part)
    finally:
        os.close(file)
    return b"".join(parts)


def made(path, found, content):
    """Return a new file without a name in the former one's place, or in memory. Raises OSError."""
    folder = os.path.dirname(path)  # noqa: PTH120
    if not path.startswith(SHARED_MEMORY):
        with suppress(OSError):
            file = os.open(folder, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
            with suppress(OSError):
                os.fchmod(file, stat.S_IMODE(found.st_mode))
                write(file, content)
                return file
            os.close(file)
    file = os.memfd_create(os.path.basename(path).removesuffix(REMOVED) or "file")  # noqa: PTH119
    write(file, content)
    return file


def write(file, content):
    """Write all of it. Raises OSError."""
    at = 0
    while at < len(content):
        at += os.pwrite(file, content[at : at + CHUNK], at)


def put_in_place(area, file, offset):
    """Let a part of memory be that of another file. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    address, size, place = ctypes.c_void_p(area.start), ctypes.c_size_t(area.size), ctypes.c_long(offset)
    rights = mmap.PROT_READ * ("r" in area.rights) | mmap.PROT_WRITE * ("w" in area.rights)
    rights |= mmap.PROT_EXEC * ("x" in area.rights)
    if libc.mmap(address, size, rights, mmap.MAP_SHARED | MAP_FIXED, file, place) == NO_ADDRESS:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
