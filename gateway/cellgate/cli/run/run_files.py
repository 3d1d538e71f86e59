"""The data beside a file that ``cellgate run`` runs: sent before the first cell, brought back after the last.

What comes back is not trusted. Names are checked part by part; nothing is written outside the target folder,
through a link, or over a file that the user did not send, or that changed here in the meantime; and there are
limits to how many files and bytes come. What an earlier run made, and nobody has changed since, is replaced:
an attribute of the file tells, where the file system keeps some. What stays behind is named. ``files`` of
the client transfers.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import stat
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

from cellgate.cli.base import UsageError, expanded
from cellgate.cli.terminal.escaping import printed_line
from cellgate.client import ErrorInfo, FileModel, Files, GatewayError
from cellgate_kernels.base.errors import InvalidInput, in_brief, near_file
from cellgate_kernels.base.resources import GIB

MOST_FILES = 1000
MOST_BYTES = GIB
_LONGEST_NAME = 255
_PIECE = 1024 * 1024
MADE: Final = "user.cellgate.made"
"""The attribute of a file that a run has made: the SHA-256 of what was in it."""
_NOT_FOUND = re.compile(r"\[Errno 2\] No such file or directory: '([^']+)'\Z")
"""How Python's own functions, and libraries that call them, name a file that they don't find."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A local file to be sent, and its path in the session."""

    source: Path
    path: str


class RefusedFile(InvalidInput):
    """A file of the session is not brought back; the message says why."""


@dataclass(slots=True)
class Brought:
    """What became of the session's new and changed files."""

    written: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)


# ---- there ------------------------------------------------------------------------------------------------


def files_to_send(beside: Path, single: Iterable[str], folders: Iterable[str]) -> list[Sent]:
    """Return the files that the user names, and those in the folders; hidden ones and links only if named.

    What is in the folder `beside` keeps its path relative to it, as the file that is run expects; anything
    else goes under its own name. Raises UsageError.
    """
    found: dict[str, Sent] = {}
    for name in single:
        path = expanded(name)
        if not path.is_file():
            raise UsageError(
                f"--with {name}: there is no such file" + (_folder_hint(path) or near_file(path))
            )
        _add(found, Sent(path, _place(path, beside)))
    for name in folders:
        path = expanded(name)
        if not path.is_dir():
            raise UsageError(f"--files {name}: there is no such folder{near_file(path)}")
        prefix = _place(path, beside)
        for file in _files_in(path):
            inside = file.relative_to(path).as_posix()
            _add(found, Sent(file, inside if prefix == "." else f"{prefix}/{inside}"))
    if len(found) > MOST_FILES:
        raise UsageError(f"these are {len(found):,} files; at most {MOST_FILES:,} can be sent")
    return list(found.values())


def forgotten(beside: Path, error: ErrorInfo | None, sent: Iterable[Sent]) -> str | None:
    """Return a hint if the file that a cell did not find lies in the folder `beside`, and was not sent."""
    if error is None or error.ename != "FileNotFoundError":
        return None
    found = _NOT_FOUND.search(error.evalue)
    if found is None or ".." in found[1].split("/") or found[1] in {file.path for file in sent}:
        return None
    path = beside / found[1]
    try:
        if Path(found[1]).is_absolute() or not path.is_file():
            return None
    except (OSError, ValueError):
        return None
    return (
        f"{printed_line(str(path))} is here, and not in the session: --with {shlex.quote(str(path))} sends it"
    )


def _folder_hint(path: Path) -> str:
    return "; a folder is sent by --files" if path.is_dir() else ""


def _add(found: dict[str, Sent], file: Sent) -> None:
    known = found.setdefault(file.path, file)
    if known.source.resolve() != file.source.resolve():
        raise UsageError(f"{known.source} and {file.source} would both be {file.path} in the session")


def _place(path: Path, beside: Path) -> str:
    """Return a file's or folder's path in the session; "." for the folder `beside` itself."""
    whole = _whole(path)
    root = beside.resolve()
    return whole.relative_to(root).as_posix() if whole.is_relative_to(root) else whole.name or "."


def _whole(path: Path) -> Path:
    """Return the absolute path; if it is that of a link, of the link itself."""
    return path.parent.resolve() / path.name if path.name not in {"", ".."} else path.resolve()


def _files_in(folder: Path) -> Iterator[Path]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and stat.S_ISREG(path.lstat().st_mode):
                yield path


def sent_from(folder: Path, sent: Iterable[Sent], hashes: Mapping[str, str]) -> dict[str, str]:
    """Return the hashes of files that would be brought back to where they came from."""
    return {
        each.path: hashes[each.path] for each in sent if _whole(folder / each.path) == _whole(each.source)
    }


async def send(files: Files, sent: Sequence[Sent]) -> dict[str, str]:
    """Upload the files; return each one's SHA-256 by path. Raises InvalidInput for one that can't be read."""
    hashes: dict[str, str] = {}
    for each in sent:
        try:
            model = await files.put(each.path, each.source)
        except OSError as error:
            raise InvalidInput(f"{each.source} can't be read: {in_brief(error)}") from error
        hashes[each.path] = model.sha256 or ""
    return hashes


# ---- and back ---------------------------------------------------------------------------------------------


async def listed(files: Files) -> dict[str, FileModel]:
    """Return the session's files by path."""
    return {model.path: model async for model in files.list()}


def changed(
    before: Mapping[str, FileModel], after: Mapping[str, FileModel], sent: Mapping[str, str]
) -> list[FileModel]:
    """Return new and changed files; hidden ones, such as caches, only if they were sent."""
    return [
        model
        for path, model in after.items()
        if _differs(before.get(path), model) and (path in sent or not _is_hidden(path))
    ]


def _is_hidden(path: str) -> bool:
    return any(part.startswith(".") and part not in {".", ".."} for part in path.split("/"))


def _differs(before: FileModel | None, now: FileModel) -> bool:
    if before is None or before.size != now.size:
        return True
    if before.sha256 is not None and now.sha256 is not None:
        return before.sha256 != now.sha256
    return before.modified != now.modified  # too large to be hashed in a listing


@dataclass(frozen=True, slots=True)
class FilesTarget:
    """The folder that files are brought to.

    `sent`: the SHA-256 of the files that came from just there, by path, which may be replaced. `replaces`:
    whether others may be too, unless they changed after `begun` (seconds since 1970).
    """

    folder: Path
    sent: Mapping[str, str]
    replaces: bool
    begun: float


async def bring_back(files: Files, models: Sequence[FileModel], target: FilesTarget) -> Brought:
    """Write files of the session to the target's folder. `refused` has the others, with the reasons."""
    brought = Brought()
    room = MOST_BYTES
    for number, model in enumerate(models):
        try:
            if number >= MOST_FILES:
                raise RefusedFile(f"only {MOST_FILES:,} files are brought back")
            if model.size > room:
                raise RefusedFile(f"{model.size:,} bytes; {MOST_BYTES:,} are brought back in all")
            await _bring(files, model, target)
        except RefusedFile as error:
            brought.refused.append(f"{printed_line(model.path)}: {error.message}")
        except OSError as error:
            brought.refused.append(f"{printed_line(model.path)}: {in_brief(error)}")
        except GatewayError as error:
            brought.refused.append(f"{printed_line(model.path)}: {error.message}")
        else:
            room -= model.size
            brought.written.append(model.path)
    return brought


async def _bring(files: Files, model: FileModel, target: FilesTarget) -> None:
    """Download one file beside its place, and put it there if nothing of the user's is lost."""
    parts = safe_parts(model.path)
    target.folder.mkdir(parents=True, exist_ok=True)

    def stop_at_size(done: int, _: int | None) -> None:
        if done > model.size:
            raise RefusedFile("it grows while it is brought back")

    with tempfile.TemporaryDirectory(dir=target.folder, prefix=".cellgate-") as folder:
        whole = Path(folder) / "file"
        await files.save(model.path, whole, stop_at_size)
        _place_file(whole, parts, model.path, target)


def safe_parts(path: str) -> list[str]:
    """Return the parts of a path that the session gave. Raises RefusedFile if it could lead away."""
    parts = path.split("/")
    for part in parts:
        if part in {"", ".", ".."} or "\x00" in part or len(os.fsencode(part)) > _LONGEST_NAME:
            raise RefusedFile("this is no name for a file here")
        if not part.isprintable():
            raise RefusedFile("its name has control characters")
    return parts


def _place_file(whole: Path, parts: Sequence[str], path: str, target: FilesTarget) -> None:
    if path not in target.sent:
        _mark(whole)
    with _opened_parent(target.folder, parts[:-1]) as parent:
        name = parts[-1]
        try:
            known = os.stat(name, dir_fd=parent, follow_symlinks=False)
        except FileNotFoundError:
            whole.chmod(0o666 & ~_umask())
            # A link is made only where there is nothing, even if something has come in the meantime.
            os.link(whole, name, dst_dir_fd=parent)
            return
        if not stat.S_ISREG(known.st_mode):
            raise RefusedFile("there is something else of this name, which is no file")
        if path in target.sent:
            if _hash_of(name, parent) != target.sent[path]:
                raise RefusedFile("the file here has changed since it was sent")
        elif not (target.replaces or _was_made(name, parent)):
            raise RefusedFile(
                "there is a file of this name, which was not sent; --results DIR puts it elsewhere"
            )
        elif known.st_mtime > target.begun:
            raise RefusedFile("the file here has changed since the run began")
        whole.chmod(stat.S_IMODE(known.st_mode))
        os.replace(whole, name, dst_dir_fd=parent)


@contextlib.contextmanager
def _opened_parent(root: Path, parts: Sequence[str]) -> Iterator[int]:
    """Return a descriptor of the folder below `root`, made if missing. Raises RefusedFile at a link."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=descriptor)
            try:
                inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=descriptor)
            except OSError as error:
                raise RefusedFile(f"{part} is no folder here, or a link to one") from error
            os.close(descriptor)
            descriptor = inner
        yield descriptor
    finally:
        os.close(descriptor)


def _hash_of(name: str, parent: int) -> str:
    """Return the SHA-256 of a file in a folder."""
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=parent), "rb") as file:
        return _hash(file)


def _hash(file: BinaryIO) -> str:
    digest = hashlib.sha256()
    while piece := file.read(_PIECE):
        digest.update(piece)
    return digest.hexdigest()


def _mark(whole: Path) -> None:
    """Note in a file's attributes that a run has made it, where there are any."""
    with whole.open("rb") as file, contextlib.suppress(OSError, AttributeError):
        os.setxattr(file.fileno(), MADE, _hash(file).encode())


def _was_made(name: str, parent: int) -> bool:
    """Return whether an earlier run has made this file, and nobody has changed it since."""
    with os.fdopen(os.open(name, os.O_RDONLY | os.O_NOFOLLOW, dir_fd=parent), "rb") as file:
        try:
            made = os.getxattr(file.fileno(), MADE)
        except (OSError, AttributeError):  # no attribute, or none on this file system, or not on this system
            return False
        return made == _hash(file).encode()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
