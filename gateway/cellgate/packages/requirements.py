"""Parses and checks requirements from callers and cells.

Pure. A requirement here is a name with versions, extras and markers: no options, addresses or paths, and
nothing that can't be written as one line for an installer (``record.requirement_lines``). Lines of a cell
that run pip (``%pip install``, ``!pip install``, ``pip install`` in a shell cell) are recognised by a
pattern and stay in the cell: the kernel's own pip then finds the packages already installed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import NormalizedName, canonicalize_name

from cellgate.execution.checks import check_text
from cellgate.record.export.requirement_lines import Line, requirement_line
from cellgate_kernels.base.errors import InvalidInput

MOST_REQUIREMENTS = 100
MOST_CONSTRAINTS = 1000
MAX_REQUIREMENT = 500
MOST_PARENTHESES = 20
MAX_TEXT = 128 * 1024
"""Most characters of all texts of one request: the worst ones take half a second to parse."""
MOST_PIP_LINES = 500
"""Most lines of one cell that run pip."""
MAX_PIP_TEXT = 64 * 1024
"""Most characters of these lines together."""

_PIP = (
    r"(?:python3?(?:\.\d+)?\s+-m\s+|\{sys\.executable\}\s+-m\s+)?pip3?\s+"
    r"(?P<verb>install|uninstall)\s++(?P<rest>.*)"
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
class PackageWish:
    """A parsed and checked requirement; `line` is the whole of it, including its marker."""

    name: NormalizedName
    extras: frozenset[NormalizedName]
    specifier: SpecifierSet
    line: Line

    def __str__(self) -> str:
        return self.line


@dataclass(frozen=True, slots=True)
class Change:
    """What to install, and what to uninstall by canonical name.

    `upgrade`: replace installed versions by newer ones. `constraints` limit the versions of all dependencies.
    """

    install: tuple[PackageWish, ...] = ()
    uninstall: tuple[str, ...] = ()
    upgrade: bool = False
    constraints: tuple[Line, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """The distributions to install."""
        return frozenset(wanted.name for wanted in self.install)


def parse_requirement(text: str) -> PackageWish:
    """Return a requirement by name that fits on one line. Raises InvalidInput."""
    check_text(text, "a requirement", MAX_REQUIREMENT)
    shown = ascii(text[:80])
    if text.lstrip().startswith("-"):
        raise InvalidInput(f"{shown} is an option of pip's; only requirements are taken, such as 'pandas>=2'")
    if "\\" in text or not text.isprintable():
        # Parsers unescape a marker's quoted strings, so two characters here could become a line break.
        raise InvalidInput(f"{shown} holds a backslash or a control character, which no requirement needs")
    if text.count("(") > MOST_PARENTHESES:
        raise InvalidInput(f"{shown} has more than {MOST_PARENTHESES} parentheses")
    try:
        requirement = Requirement(text)
    except (InvalidRequirement, RecursionError):
        raise InvalidInput(f"{shown} is no requirement such as 'pandas>=2'") from None
    if requirement.url is not None:
        raise InvalidInput(f"{shown} names an address; packages are taken from the operator's index only")
    try:
        line = requirement_line(requirement)
    except InvalidInput as error:
        raise InvalidInput(f"{shown}: {error.message}") from None
    extras = frozenset(map(canonicalize_name, requirement.extras))
    return PackageWish(canonicalize_name(requirement.name), extras, requirement.specifier, line)


def parse_change(
    install: Sequence[str],
    uninstall: Sequence[str] = (),
    *,
    upgrade: bool = False,
    constraints: Sequence[str] = (),
) -> Change:
    """Return the change that a request describes. Raises InvalidInput. Slow: call it in a thread."""
    if max(len(install), len(uninstall)) > MOST_REQUIREMENTS or len(constraints) > MOST_CONSTRAINTS:
        raise InvalidInput(
            f"At most {MOST_REQUIREMENTS} requirements and {MOST_CONSTRAINTS} constraints are allowed"
        )
    if sum(map(len, (*install, *uninstall, *constraints))) > MAX_TEXT:
        raise InvalidInput(f"At most {MAX_TEXT} characters of requirements and constraints are taken at once")
    parsed = tuple(map(parse_requirement, constraints))
    for constraint in parsed:
        if constraint.extras:
            raise InvalidInput(f"A constraint has no extras: {constraint.line[:80]!r}")
    removed = []
    for name in uninstall:
        wanted = parse_requirement(name)
        if wanted.line != str(wanted.name):
            raise InvalidInput(f"To uninstall, give the name alone, not {name[:80]!r}")
        removed.append(wanted.name)
    lines = tuple(constraint.line for constraint in parsed)
    return Change(tuple(map(parse_requirement, install)), tuple(removed), upgrade, lines)


def may_run_pip(code: str) -> bool:
    """Return whether the cell may contain lines that run pip; a quick check."""
    return "pip" in code


def changes_of_cell(code: str) -> list[Change]:
    """Return the changes that a Python kernel's cell requests by running pip, in order. Raises InvalidInput.

    Like `parse_change`, it belongs in a thread; `may_run_pip` quickly rules out most cells.
    """
    match_pip = _IN_SHELL.match if _SHELL_CELL.match(code) else _IN_PYTHON.match
    lines = code.replace("\\\n", " ").splitlines()
    found = [match for line in lines if (match := match_pip(line)) is not None]
    if len(found) > MOST_PIP_LINES or sum(len(match["rest"]) for match in found) > MAX_PIP_TEXT:
        raise InvalidInput(
            f"A cell may run pip in {MOST_PIP_LINES} lines of {MAX_PIP_TEXT} characters in all; install what"
            " it needs by requests of their own"
        )
    changes = [_change_of_line(match["verb"], match["rest"]) for match in found]
    return [change for change in changes if change is not None]


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
    """Return the words of a shell command, up to the end of its arguments."""
    lexer = shlex.shlex(rest, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word and not set(word) - _ENDS:
                # In 2>/dev/null the number is not an argument either.
                if word[0] in "<>" and words and words[-1].isdecimal():
                    words.pop()
                break
            words.append(word)
    except ValueError as error:
        raise InvalidInput(f"The line 'pip ... {rest[:80]}' can't be read: {error}") from error
    return iter(words)
