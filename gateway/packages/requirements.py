"""Requirements as callers and cells write them, read and checked.

Pure. Only names with versions, extras and markers are requirements here: no options, addresses or paths. In
a cell, lines that run pip (``%pip install``, ``!pip install``, ``pip install`` in a shell's cell) are found
by their looks, and stay in the cell: the kernel's own pip then finds what they ask for.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name

from gateway.models import check_text
from kernels.errors import InvalidInput

MOST_REQUIREMENTS, MOST_CONSTRAINTS = 100, 1000
MAX_REQUIREMENT = 500

_PIP = (
    r"(?:python3?(?:\.\d+)?\s+-m\s+|\{sys\.executable\}\s+-m\s+)?pip3?\s+"
    r"(?P<verb>install|uninstall)\s+(?P<rest>.*)"
)
_IN_PYTHON = re.compile(rf"[ \t]*(?:%|!{{1,2}})[ \t]*{_PIP}")
_IN_SHELL = re.compile(rf"[ \t]*{_PIP}")
_SHELL_CELL = re.compile(r"\s*%%(?:bash|sh|script\s+(?:/bin/|/usr/bin/)?(?:bash|sh))\b")
_ENDS = frozenset("();<>|&")
_FLAGS = re.compile(
    r"-q+|-v+|--quiet|--verbose|-y|--yes|--user|--no-cache-dir|--no-input|--disable-pip-version-check"
    r"|--no-warn-script-location|--prefer-binary|--only-binary=\S+|--break-system-packages|--no-color"
    r"|--(?:progress-bar|root-user-action|timeout|default-timeout|retries)=\S+"
)
_WITH_VALUE = frozenset(
    {"--progress-bar", "--root-user-action", "--timeout", "--default-timeout", "--retries", "--only-binary"}
)
_UPGRADE = frozenset({"-U", "--upgrade"})


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be installed and removed, the latter by canonical names.

    `upgrade`: newer versions are wanted, too. `constraints` bound the versions of whatever comes along.
    """

    install: tuple[Requirement, ...] = ()
    uninstall: tuple[str, ...] = ()
    upgrade: bool = False
    constraints: tuple[Requirement, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The distributions that are asked for."""
        return frozenset(canonicalize_name(requirement.name) for requirement in self.install)


def parse_requirement(text: str) -> Requirement:
    """A requirement by name. Raises InvalidInput."""
    check_text(text, "a requirement", MAX_REQUIREMENT)
    shown = repr(text[:80])
    if text.lstrip().startswith("-"):
        raise InvalidInput(f"{shown} is an option of pip's; only requirements are taken, such as 'pandas>=2'")
    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        raise InvalidInput(
            f"{shown} is no requirement such as 'pandas>=2': {str(error).splitlines()[0]}"
        ) from error
    if requirement.url is not None:
        raise InvalidInput(f"{shown} names an address; packages are taken from the operator's index only")
    return requirement


def parse_change(
    install: Sequence[str],
    uninstall: Sequence[str] = (),
    *,
    upgrade: bool = False,
    constraints: Sequence[str] = (),
) -> Change:
    """The texts of a request. Raises InvalidInput."""
    if max(len(install), len(uninstall)) > MOST_REQUIREMENTS or len(constraints) > MOST_CONSTRAINTS:
        raise InvalidInput(
            f"At most {MOST_REQUIREMENTS} requirements and {MOST_CONSTRAINTS} constraints are taken at once"
        )
    bounds = tuple(map(parse_requirement, constraints))
    for bound in bounds:
        if bound.extras:
            raise InvalidInput(f"A constraint has no extras: {str(bound)[:80]!r}")
    removed = []
    for name in uninstall:
        requirement = parse_requirement(name)
        if requirement.specifier or requirement.extras or requirement.marker:
            raise InvalidInput(f"To uninstall, give the name alone, not {name[:80]!r}")
        removed.append(canonicalize_name(requirement.name))
    return Change(tuple(map(parse_requirement, install)), tuple(removed), upgrade, bounds)


def changes_of_cell(code: str) -> list[Change]:
    """What the lines of a Python kernel's cell that run pip ask for, in order. Raises InvalidInput."""
    if "pip" not in code:
        return []
    pattern = _IN_SHELL if _SHELL_CELL.match(code) else _IN_PYTHON
    lines = code.replace("\\\n", " ").splitlines()
    found = [match for line in lines if (match := pattern.match(line)) is not None]
    return [
        change for match in found if (change := _change_of_line(match["verb"], match["rest"])) is not None
    ]


def _change_of_line(verb: str, rest: str) -> Change | None:
    texts: list[str] = []
    upgrade = False
    words = _words(rest)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word in _UPGRADE:
            upgrade = True
        elif word.startswith("-") and not _FLAGS.fullmatch(word):
            raise InvalidInput(
                f"pip's option {word[:40]!r} is not taken here: name the packages; the operator of the"
                " gateway chooses where they come from"
            )
        elif not word.startswith("-"):
            texts.append(word)
    if not texts:
        return None
    if verb == "uninstall":
        return parse_change((), texts)
    return parse_change(texts, upgrade=upgrade)


def _words(rest: str) -> Iterator[str]:
    """A shell's words up to what is no argument any more."""
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word and not set(word) - _ENDS:
                # In 2>/dev/null the number is no word either.
                if word[0] in "<>" and words and words[-1].isdecimal():
                    words.pop()
                break
            words.append(word)
    except ValueError as error:
        raise InvalidInput(f"The line 'pip ... {rest[:80]}' can't be read: {error}") from error
    return iter(words)
