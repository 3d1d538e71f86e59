"""What a sandbox's files are like, and changes of them: by a program in the sandbox.

The gateway itself sees the workspace alone, and clients use the whole of a sandbox, above all ``/tmp``. So
the program does what it is told with the rights of the sandbox's code, no more. What it answers is whatever
that code lets it answer: it is bounded, and checked like a client's request.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from datetime import UTC, datetime
from typing import Annotated, Final

import msgspec

from cellgate.doors.sandbox.errors import Unsupported
from cellgate.doors.sandbox.paths import parse_program_path
from cellgate.errors import Conflict, NotFound
from cellgate.processes.request import ProcessRequest
from cellgate.record.rows import EventRow
from cellgate.sessions.session import Session
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.resources import MIB

MOST_PATHS: Final = 200
"""The most files of one request."""
MOST_WORDS: Final = 48 * 1024
"""The most characters of one request to the program."""
MOST_ENTRIES: Final = 5000
MOST_ANSWER: Final = 2 * MIB
SECONDS: Final = 60.0
LAST_SECOND: Final = 253_402_300_799.0
"""Of the year 9999."""
MOST_MODE: Final = 7777

PROGRAM: Final = f"""
import errno, fnmatch, grp, json, os, pwd, shutil, stat, sys

most = {MOST_ENTRIES}
answer = {{"entries": []}}

def named(find, number):
    try:
        return find(number)[0]
    except KeyError:
        return str(number)

def add(told, path):
    if len(answer["entries"]) == most:
        answer["more"] = True
        raise StopIteration
    state = os.lstat(path)
    answer["entries"].append([
        os.fsencode(told).decode("utf-8", "replace"), state.st_mode, state.st_size, state.st_mtime,
        state.st_ctime, named(pwd.getpwuid, state.st_uid), named(grp.getgrgid, state.st_gid),
    ])

def visit(told, path, depth, pattern):
    with os.scandir(path) as found:
        found = sorted(found, key=lambda each: each.name)
    for each in found:
        shown, is_folder = os.path.join(told, each.name), each.is_dir(follow_symlinks=False)
        if pattern is None or (not is_folder and fnmatch.fnmatchcase(each.name, pattern)):
            try:
                add(shown, each.path)
            except FileNotFoundError:
                continue
        if is_folder and depth > 1:
            try:
                visit(shown, each.path, depth - 1, pattern)
            except PermissionError:
                continue

def folder_of(path):
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)

def replace(told, path, old, new):
    with open(path, encoding="utf-8", errors="surrogateescape", newline="") as file:
        text = file.read()
    answer.setdefault("counts", {{}})[told] = text.count(old)
    with open(path, "w", encoding="utf-8", errors="surrogateescape", newline="") as file:
        file.write(text.replace(old, new))

def move(told, path, other):
    folder_of(other)
    try:
        os.rename(path, other)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        shutil.move(path, other)

def remove(told, path):
    if os.path.isdir(path) and not os.path.islink(path):
        raise IsADirectoryError(21, "Is a directory", told)
    os.remove(path)

def remove_folder(told, path):
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.remove(path)

def make(told, path, mode):
    os.makedirs(path, exist_ok=True)
    os.chmod(path, mode)

calls = {{
    "info": add,
    "visit": visit,
    "remove": remove,
    "remove_folder": remove_folder,
    "make": make,
    "mode": lambda told, path, mode: os.chmod(path, mode),
    "move": move,
    "replace": replace,
}}
try:
    for name, *words in json.loads(sys.argv[1]):
        calls[name](*words)
except StopIteration:
    pass
except (OSError, RecursionError) as error:
    why = getattr(error, "strerror", None) or str(error)
    answer = {{"error": why, "path": words[0], "missing": isinstance(error, FileNotFoundError)}}
json.dump(answer, sys.stdout)
"""


class FileEntry(msgspec.Struct, array_like=True, frozen=True):
    """A file or a folder, as the program tells it."""

    path: Annotated[str, msgspec.Meta(max_length=8192)]
    mode: int
    size: int
    modified: float
    changed: float
    owner: Annotated[str, msgspec.Meta(max_length=256)]
    group: Annotated[str, msgspec.Meta(max_length=256)]

    def told(self) -> dict[str, object]:
        """Return the entry as it is told."""
        kind = "other"
        for is_of, name in ((stat.S_ISDIR, "directory"), (stat.S_ISLNK, "symlink"), (stat.S_ISREG, "file")):
            if is_of(self.mode & 0o177777):
                kind = name
        return {
            "path": self.path,
            "type": kind,
            "size": self.size,
            "mode": int(f"{stat.S_IMODE(self.mode & 0o177777):o}"),
            "owner": self.owner,
            "group": self.group,
            "modified_at": _time(self.modified),
            "created_at": _time(self.changed),
        }


class Filed(msgspec.Struct, frozen=True):
    """The program's answer."""

    entries: list[FileEntry] = []
    counts: dict[str, int] = {}
    more: bool = False
    error: str = ""
    path: str = ""
    missing: bool = False


Call = tuple[str, ...] | tuple[str | int | None, ...]


class _Output(msgspec.Struct):
    name: str = ""
    text: str = ""


def call(name: str, path: str, *words: str | int | None) -> Call:
    """Return a call of the program about a path. Raises InvalidInput."""
    if not path:
        raise InvalidInput("A path is missing")
    return (name, path, parse_program_path(path) or ".", *words)


def check_mode(mode: int) -> int:
    """Return a mode that is written with octal digits, such as 755, as a number. Raises InvalidInput."""
    if not 0 <= mode <= MOST_MODE or set(str(mode)) & {"8", "9"}:
        raise InvalidInput("mode must be octal digits, such as 755")
    return int(str(mode), 8)


def check_owner(owner: str | None, group: str | None) -> None:
    """Raise Unsupported for an owner: all files of a sandbox are its one user's."""
    if owner or group:
        raise Unsupported("owner and group can't be chosen: a sandbox has one user here")


async def file(session: Session, calls: Sequence[Call]) -> Filed:
    """Make these calls in a sandbox, up to the first that fails.

    Raises NotFound, Conflict if one fails for another reason, InvalidInput, and what `start_process`
    does.
    """
    if not calls:
        return Filed()
    if len(calls) > MOST_PATHS:
        raise InvalidInput(f"A request has at most {MOST_PATHS} paths")
    words = json.dumps(calls)
    if len(words) > MOST_WORDS:
        raise InvalidInput(f"A request has paths and texts of at most {MOST_WORDS} characters as JSON")
    argv = ("python3", "-IS", "-c", PROGRAM, words)
    run = await session.start_process(ProcessRequest(argv, timeout=SECONDS, waits=True))
    told: list[str] = []
    async with aclosing(run.events()) as batches:
        async for rows in batches:
            told += _printed(rows)
            if sum(map(len, told)) > MOST_ANSWER:
                run.terminate()
                raise InvalidInput("There is more than can be told at once; ask for a smaller folder")
    try:
        filed = msgspec.json.decode("".join(told), type=Filed)
    except msgspec.MsgspecError as error:
        raise Conflict("The program that looks at the sandbox's files was ended, or failed") from error
    if filed.error:
        kind = NotFound if filed.missing else Conflict
        raise kind(f"{filed.path[:200]!r}: {filed.error[:200]}")
    if filed.more:
        raise InvalidInput(f"There are more than {MOST_ENTRIES} files; ask for a smaller folder")
    return filed


def _printed(rows: Sequence[EventRow]) -> list[str]:
    decode = msgspec.json.Decoder(_Output).decode
    outputs = [decode(row.body) for row in rows if row.type == "process_output"]
    return [each.text for each in outputs if each.name == "stdout"]


def _time(seconds: float) -> str:
    # Code may give a file any time; not each is one of a calendar.
    return datetime.fromtimestamp(min(max(seconds, 0.0), LAST_SECOND), UTC).isoformat()


def told_of_all(filed: Filed) -> list[dict[str, object]]:
    """Return the entries as they are told."""
    return [each.told() for each in filed.entries]


def told_by_path(filed: Filed) -> Mapping[str, dict[str, object]]:
    """Return the same by their paths, which are those that were asked for."""
    return {each.path: each.told() for each in filed.entries}
