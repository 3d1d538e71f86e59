"""The only writer of lines that an installer reads: requirements, constraints, wheels, a bundle's lock.

Pure. A line is made only from typed values and checked the way an installer will read it: one line, no
option, no variable that an installer would expand, no comment, no continuation; and a parser must read the
original values from it. All else is refused with InvalidInput, so a `Line` can go into a file unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NewType

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.protocol.distributions import MOST_NAME, MOST_VERSION, Distribution, is_name

Line = NewType("Line", str)
"""One line without its line end; only this module makes them."""

MOST_LINE = 4000
"""Most characters of a line."""

# pip and uv join lines at a backslash, expand ${NAME}, and cut at a # after white space.
_TEXT = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+*!,;|~<>=()\[\]@:/%?&'\"-]*", re.ASCII)
_OPTION = re.compile(r"\s-")
_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)
_CLAUSE = re.compile(r"(?:===?|~=|!=|<=|>=|<|>)[A-Za-z0-9][A-Za-z0-9._+!-]*(?:\.\*)?", re.ASCII)
_COMMENT = re.compile(r"[A-Za-z0-9 .,:;()+_'-]*", re.ASCII)


def requirement_line(requirement: Requirement) -> Line:
    """Return a requirement by name, with its extras, versions and marker. Raises InvalidInput."""
    if requirement.url is not None:
        raise InvalidInput("A requirement may not name an address")
    names = [requirement.name, *requirement.extras]
    if not all(map(is_name, names)):
        raise InvalidInput(f"A requirement's name or extra is none, or has more than {MOST_NAME} characters")
    clauses = sorted(map(str, requirement.specifier))
    if not all(len(clause) <= MOST_VERSION + 3 and _CLAUSE.fullmatch(clause) for clause in clauses):
        raise InvalidInput("A requirement's versions hold characters that no version has")
    marker = _marker(requirement)
    extras = ",".join(sorted(map(canonicalize_name, requirement.extras)))
    line: str = canonicalize_name(requirement.name)
    if extras:
        line += f"[{extras}]"
    line += ",".join(clauses)
    if marker:
        line += f"; {marker}"
    return _checked(line, requirement)


def pin_line(package: Distribution) -> Line:
    """Return the requirement of exactly this version of a package, under its own name."""
    text = f"{package.name}=={package.version}"
    return _checked(text, Requirement(text))


def hashed_line(package: Distribution, sha256: str) -> Line:
    """Return the requirement of a package's version and file hash. Raises InvalidInput."""
    if _SHA256.fullmatch(sha256) is None:
        raise InvalidInput("A package's hash can't be used")
    return Line(f"{pin_line(package)} --hash=sha256:{sha256}")


def comment_line(text: str) -> Line:
    """Return a comment for people. Raises InvalidInput when it is not plain text."""
    if not _COMMENT.fullmatch(text) or len(text) > MOST_LINE:
        raise InvalidInput("A comment holds characters that it may not have")
    return Line(f"# {text}")


def document(lines: Iterable[Line]) -> str:
    """Return a file of these lines."""
    return "".join(f"{line}\n" for line in lines)


def _marker(requirement: Requirement) -> str:
    """Return the marker as text; empty without one."""
    try:
        return "" if requirement.marker is None else str(requirement.marker)
    except (ValueError, RecursionError):
        # A value with both kinds of quotes can't be written so that it could be parsed again.
        raise InvalidInput("A requirement's marker can't be written") from None


def _checked(text: str, meant: Requirement | None) -> Line:
    """Return the text as a line, if it is valid and is parsed as `meant`."""
    if not _TEXT.fullmatch(text) or _OPTION.search(text) or len(text) > MOST_LINE:
        raise InvalidInput("A requirement has characters that no requirement needs")
    try:
        same = meant is None or _essence(_parse(text)) == _essence(meant)
    except RecursionError:
        raise InvalidInput("A requirement is nested too deeply") from None
    if not same:
        raise InvalidInput("A requirement is not read as it was meant")
    return Line(text)


def _parse(text: str) -> Requirement:
    try:
        return Requirement(text)
    except (InvalidRequirement, RecursionError):
        raise InvalidInput("A requirement can't be read again") from None


def _essence(requirement: Requirement) -> tuple[object, ...]:
    extras = frozenset(map(canonicalize_name, requirement.extras))
    return canonicalize_name(requirement.name), extras, requirement.specifier, str(requirement.marker or "")
