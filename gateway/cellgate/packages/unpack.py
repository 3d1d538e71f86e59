"""``python -m cellgate.packages.unpack MOST WHEEL FOLDER [WHEEL FOLDER ...]``: wheels become folders.

Run as a process of its own, with a bound in bytes: what a wheel holds is nobody's word but its maker's.
Modules come to lie at the folder's top, scripts in ``bin``. No code of a package runs. A wheel that would
write outside of its folder, or holds more than MOST bytes, is refused (exit code 3, 4) with a last line that
begins with the wheel's number and says why, for the log. Source: PyPA's "Binary distribution format".
"""

from __future__ import annotations

import os
import sys
import zipfile
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from installer import install
from installer.destinations import SchemeDictionaryDestination
from installer.exceptions import InstallerError
from installer.records import RecordEntry
from installer.sources import WheelFile
from installer.utils import Scheme

UNSOUND, TOO_LARGE = 3, 4
MOST_FILES = 200_000
SHEBANG = "/usr/bin/env python"

_SCRIPT = """\
#!{shebang}
import sys
from {module} import {first}
if __name__ == "__main__":
    sys.exit({attr}())
"""


class _Destination(SchemeDictionaryDestination):
    """Scripts run under whatever `python` is first on the kernel's path: the tree is shared by kernels."""

    def write_script(self, name: str, module: str, attr: str, section: str) -> RecordEntry:
        text = _SCRIPT.format(shebang=SHEBANG, module=module, first=attr.partition(".")[0], attr=attr)
        return self.write_to_fs(Scheme("scripts"), name, BytesIO(text.encode()), is_executable=True)


def main(arguments: Sequence[str]) -> int:
    """Unpack all, or say why not."""
    os.umask(0o022)
    room = int(arguments[0])
    for number, (wheel, folder) in enumerate(zip(arguments[1::2], arguments[2::2], strict=True)):
        path = Path(wheel)
        try:
            room -= _unpack(path, Path(folder), room)
        except (
            InstallerError,
            zipfile.BadZipFile,
            AssertionError,
            KeyError,
            ValueError,
            FileExistsError,
            NotADirectoryError,
            IsADirectoryError,
            NotImplementedError,
            RuntimeError,
        ) as error:
            return _refuse(UNSOUND, f"{number} {path.name!a} is no sound wheel: {error!a}")
        if room < 0:
            return _refuse(TOO_LARGE, f"{number} {path.name!a} holds too much")
    return 0


def _unpack(wheel: Path, folder: Path, room: int) -> int:
    """The bytes that were unpacked, or, without unpacking, more than `room` when there are."""
    with zipfile.ZipFile(wheel) as archive:
        # zipfile reads no more of a member than it declares.
        entries = archive.infolist()
        size = sum(entry.file_size for entry in entries)
        if size > room or len(entries) > MOST_FILES:
            return room + 1
    places = {scheme: str(folder) for scheme in ("purelib", "platlib", "data")}
    places |= {"scripts": str(folder / "bin"), "headers": str(folder / "include")}
    destination = _Destination(places, interpreter=SHEBANG, script_kind="posix")
    with WheelFile.open(wheel) as source:
        install(source, destination, additional_metadata={"INSTALLER": b"cellgate\n"})
    return size


def _refuse(code: int, message: str) -> int:
    sys.stderr.write(message + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
