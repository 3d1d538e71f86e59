"""Lists of packages that operators give, and the locks that are made of them. Pure.

A list names packages of an index, with versions if it likes. A lock names one version of each, with hashes.
Both are checked before uv gets them: what a list can't say, such as where to download from, nobody obeys.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from cellgate_kernels.base.errors import InvalidInput

MOST_LIST_BYTES = 1024 * 1024
"""The largest list: one with hashes has some kilobytes for a package that has many wheels."""
MOST_LOCK_BYTES = 4 * 1024 * 1024
MOST_PACKAGES = 2000

_COMMENT = re.compile(r"(?:^|\s)#.*", re.ASCII)
_HASH_OPTION = "--hash="
_HASH = re.compile(r"sha(?:256:[0-9a-f]{64}|384:[0-9a-f]{96}|512:[0-9a-f]{128})", re.ASCII)
_SHOWN = 60


@dataclass(frozen=True, slots=True)
class RequirementList:
    """Requirements in canonical form and order, each with its hashes; those of a list may have none."""

    entries: tuple[tuple[str, tuple[str, ...]], ...]

    @property
    def is_lock(self) -> bool:
        """Whether it names one version of each package, with hashes."""
        return any(hashes for _, hashes in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    def text(self, *, hashes: bool = True) -> str:
        """Return it as the text of a requirements file, without `hashes` if so asked."""
        lines = [
            " \\\n    ".join([requirement, *(f"--hash={each}" for each in known if hashes)])
            for requirement, known in self.entries
        ]
        return "".join(f"{line}\n" for line in lines)


def read_list(text: str, what: str) -> RequirementList:
    """Return a list. `what`: its name, for errors. Raises InvalidInput, which names the line."""
    entries = sorted(
        (_entry(line, f"{what}, line {number}") for number, line in _lines(text)),
        key=lambda entry: (canonicalize_name(entry[0].name), str(entry[0])),
    )
    if len(entries) > MOST_PACKAGES:
        raise InvalidInput(f"{what}: there are more than {MOST_PACKAGES:,} packages")
    found = RequirementList(tuple((str(requirement), hashes) for requirement, hashes in entries))
    if found.is_lock:
        for requirement, hashes in entries:
            if not hashes or [each.operator for each in requirement.specifier] != ["=="]:
                raise InvalidInput(
                    f"{what}: if one package has a hash, all need one, and a version with ==:"
                    f" {requirement.name} has not"
                )
    return found


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines that say something, with their numbers; one that is continued as a whole."""
    parts: list[str] = []
    first = 0
    for number, line in enumerate(text.splitlines(), 1):
        first = first if parts else number
        said = _COMMENT.sub("", line).rstrip()
        parts.append(said.removesuffix("\\"))
        if not said.endswith("\\"):
            if whole := " ".join(parts).strip():
                yield first, whole
            parts.clear()
    if whole := " ".join(parts).strip():
        yield first, whole


def _entry(line: str, where: str) -> tuple[Requirement, tuple[str, ...]]:
    said, *hashes = line.split(_HASH_OPTION)
    if said.startswith("-"):
        raise InvalidInput(
            f"{where}: a list has only names of packages, not {said[:_SHOWN]!r}; where they come from is up"
            " to pip's or uv's configuration"
        )
    try:
        requirement = Requirement(said.strip())
    except InvalidRequirement as error:
        raise InvalidInput(f"{where}: {said[:_SHOWN]!r} does not name a package of an index") from error
    if requirement.url is not None:
        raise InvalidInput(f"{where}: {requirement.name} is to come from an address; only an index is asked")
    known = tuple(sorted({each.strip() for each in hashes}))
    if any(not _HASH.fullmatch(each) for each in known):
        raise InvalidInput(f"{where}: a hash of {requirement.name} is not SHA-256, SHA-384 or SHA-512")
    return requirement, known
