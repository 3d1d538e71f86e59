"""A session as one archive: notebook, workspace files, lock, rows and a README, streamed as a zip file.

Reading a bundle takes no Cellgate: the notebook runs in plain Jupyter. The manifest lists all files before it
with their hashes, and the archive's comment is the SHA-256 of all bytes before it, so that ``verify`` finds
any change. The workspace was made by user code: links are never followed, and only regular files within a
limit are included. Records hold texts of kernels: only texts that fit their grammar go into lock and README.
All of this runs in a thread (`Reads.in_steps`).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from cellgate.record.export.requirement_lines import comment_line, document, pin_line
from cellgate.record.export.sealed_archive import MANIFEST, SealedArchive
from cellgate.record.facts import WITHOUT_VARIABLES
from cellgate.record.keys import SigningKey
from cellgate_kernels.base import trees
from cellgate_kernels.base.regular import open_at_once
from cellgate_kernels.kernel.environment import count, distributions, is_python
from cellgate_kernels.protocol.kernel_info import known_info

README = "README.md"
LOCK = "requirements.txt"
ROWS = "audit.ndjson"
ANCESTORS = "ancestors"
WORK = "work"

MOST_FILES = 10_000
UNSEEN = f"(what lies deeper than {trees.DEEPEST} names, comes after {trees.MOST} entries or can't be read)"
"""Stands in `left_out` for everything that the walk of the workspace did not reach."""
_CHUNK = 256 * 1024
_UNFIT = re.compile(r'[\\\x00-\x1f\x7f:*?"<>|]')
"""Characters that some system forbids in names or uses to separate paths."""


class BundleManifest(msgspec.Struct, frozen=True):
    """`files`: SHA-256 by name, in the archive's order. `left_out`: workspace files that are not included,
    the first of them by name, the rest as a count.
    """

    notebook: str
    files: dict[str, str]
    left_out: list[str]


@dataclass(frozen=True, slots=True)
class Contents:
    """A bundle's contents. `notebook` and `rows` are parts of bytes; at most `most_bytes` of `workspace` go
    in. `ancestors`: the key of each session that this one continues, oldest first, with parts of its rows.

    `check_there` is called after the files; it raises if the session was purged, and its files with it.
    """

    session: str
    exported_at: str
    environment: Mapping[str, Any]
    notebook: Iterable[bytes]
    rows: Iterable[bytes]
    workspace: Path | None
    most_bytes: int
    check_there: Callable[[], None]
    ancestors: Sequence[tuple[str, Iterable[bytes]]] = ()


def bundle_parts(contents: Contents, key: SigningKey | None) -> Iterator[bytes]:
    """Yield the archive's bytes, some of them empty."""
    left_out: list[str] = []
    with SealedArchive(contents.exported_at) as archive:
        notebook = f"{WORK}/{_notebook_name(contents)}"
        yield from archive.add(README, [_readme(contents, notebook).encode()])
        yield from archive.add(LOCK, [lock(contents.environment).encode()])
        yield from archive.add(notebook, contents.notebook)
        yield from archive.add(ROWS, contents.rows)
        for number, (_, rows) in enumerate(contents.ancestors, 1):
            yield from archive.add(rows_of_ancestor(number), rows)
        if contents.workspace is not None:
            for name, file in _files(contents.workspace, contents.most_bytes, left_out):
                yield from archive.add(f"{WORK}/{name}", file)
        contents.check_there()
        yield from archive.sign(BundleManifest(notebook, archive.digests.copy(), left_out), key)
    yield from archive.last()


def rows_of_ancestor(number: int) -> str:
    """Return the name of the file with an ancestor's rows; the oldest has number 1."""
    return f"{ANCESTORS}/{number}.ndjson"


def _notebook_name(contents: Contents) -> str:
    name = f"{contents.session}.ipynb"
    taken = contents.workspace is not None and os.path.lexists(contents.workspace / name)
    return f"{contents.session}.cellgate.ipynb" if taken else name


# ---- the workspace ----------------------------------------------------------------------------------------


def _files(root: Path, most_bytes: int, left_out: list[str]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the regular files below `root` by relative name; others are noted in `left_out`, up to a limit.

    Folders are entered by descriptor, so that nobody can replace one with a link in between.
    """
    room = most_bytes
    count = 0
    unnamed = 0
    walk = trees.Walk(root, ordered=True)
    for entry in walk:
        if entry.is_folder:
            continue
        opened = _open(entry.name, entry.folder)
        if opened is not None:
            file, size = opened
            if size <= room and count < MOST_FILES and _fits(entry.path):
                room -= size
                count += 1
                yield entry.path, _content(file, size)
                continue
            os.close(file)
        if len(left_out) < MOST_FILES:
            left_out.append(entry.path.encode("utf-8", "backslashreplace").decode())
        else:
            unnamed += 1
    if unnamed:
        left_out.append(f"and {unnamed} more")
    if not walk.complete:
        left_out.append(UNSEEN)


def _open(name: str, folder: int) -> tuple[int, int] | None:
    """Return a regular file's descriptor and size; None for anything else, and for a held file."""
    try:
        file = open_at_once(name, os.O_RDONLY, folder=folder)
    except OSError:
        return None
    found = os.fstat(file)
    if stat.S_ISREG(found.st_mode):
        return file, found.st_size
    os.close(file)
    return None


def _fits(path: str) -> bool:
    try:
        return not _UNFIT.search(path) and len(path.encode()) < 1024
    except UnicodeEncodeError:
        return False


def _content(file: int, size: int) -> Iterator[bytes]:
    """Yield the file's content, at most its size when it was opened."""
    with os.fdopen(file, "rb", buffering=0) as opened:
        while size > 0 and (part := opened.read(min(size, _CHUNK))):
            size -= len(part)
            yield part


# ---- texts ------------------------------------------------------------------------------------------------


# How to register kernels of other languages with Jupyter, by the name of their implementation.
_REGISTERED_BY = {
    "bash_kernel": "environment/bin/python -m bash_kernel.install --sys-prefix",
    "deno": "environment/bin/deno jupyter --install",
}


_UNKNOWN = "# The record does not tell the packages of this session's kernel.\n"
_IMAGE = re.compile(r"[A-Za-z0-9./:@_-]{0,300}", re.ASCII)


def lock(environment: Mapping[str, Any]) -> str:
    """Return the environment's packages as a requirements file for pip.

    Records hold what kernels reported, old ones without checks: entries that are not packages are left out.
    """
    reported = environment.get("packages")
    kernel = _words(environment.get("kernel_info"))
    name = kernel.get("implementation")
    if not reported and name in _REGISTERED_BY:
        packages, _ = distributions({name: kernel.get("implementation_version", "")})
        return document(map(pin_line, packages)) or _UNKNOWN
    if not isinstance(reported, dict) or not reported:
        return _UNKNOWN
    packages, left_out = distributions(reported)
    left_out += count(environment.get("packages_left_out"))
    lines = [comment_line(f"Python {_python(environment)}, as a kernel told before anybody used it")]
    if environment.get("packages_of") == WITHOUT_VARIABLES:
        lines.append(comment_line("The session had variables of its own: it may have found other packages"))
    if left_out:
        lines.append(comment_line(f"{left_out} left out: their names or versions are none that pip knows"))
    return document([*lines, *(pin_line(package) for package in packages if package.canonical != "pip")])


def _python(environment: Mapping[str, Any]) -> str:
    """Python's version, or just 3 if the record has no valid one."""
    version = environment.get("python")
    return version if isinstance(version, str) and is_python(version) else "3"


def _words(kernel_info: Any) -> dict[str, str]:
    """Return the texts of a kernel_info that are safe to repeat."""
    known = known_info(kernel_info) if isinstance(kernel_info, dict) else {}
    return {name: value for name, value in known.items() if isinstance(value, str)}


def _image(environment: Mapping[str, Any]) -> str:
    """Return the README's line about the image; empty without one."""
    words = [environment.get(name, "") for name in ("image", "image_digest")]
    if not words[0] or not all(isinstance(word, str) and _IMAGE.fullmatch(word) for word in words):
        return ""
    return f"\n- its kernel ran in image {' '.join(words).strip()}"


def _readme(contents: Contents, notebook: str) -> str:
    environment = contents.environment
    python = _python(environment)
    image = _image(environment)
    name = notebook.removeprefix(f"{WORK}/")
    command = _REGISTERED_BY.get(_words(environment.get("kernel_info")).get("implementation", ""))
    register = f"\n{command}" if command else ""
    before = ""
    if contents.ancestors:
        keys = ", ".join(key for key, _ in contents.ancestors)
        before = f"\n- `{ANCESTORS}/`: the records that it continues as a branch, up to there: {keys}"
    return f"""\
# Session {contents.session}

Exported by Cellgate at {contents.exported_at}.

- `{notebook}`: the session as a notebook, with all its outputs, uncut
- `{WORK}/`: the files of its workspace, as they were at the export
- `{LOCK}`: the packages of its kernel's environment, for Python {python}
- `{ROWS}`: its record, a row a line; each line's hash is the SHA-256 of the hash before and the row's bytes\
{before}
- `{MANIFEST}`: the SHA-256 of every file here, and what was left out{image}

## Run it again

With Python {python} and nothing of Cellgate's:

```
python -m venv environment
environment/bin/pip install -r {LOCK} jupyterlab{register}
cd {WORK}
../environment/bin/jupyter execute --inplace --allow-errors {name}
```

or open `{name}` with `../environment/bin/jupyter lab`. The files that the cells read must be as they were
when the cells ran; those in `{WORK}/` are as the session left them.

## Check it

`cellgate verify BUNDLE.zip` needs no gateway. It checks the archive, the chain of the rows, and that the
notebook is what the rows make.
"""
