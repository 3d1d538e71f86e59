"""Languages by their common names, and which kernel runs which.

Pure. ``catalog`` uses it to find kernelspecs; ``execution.blocks`` makes cells of blocks in another language.
"""

from __future__ import annotations

from enum import StrEnum

from cellgate_kernels.base.errors import InvalidInput


class Language(StrEnum):
    """A language that code can be in."""

    PYTHON = "python"
    BASH = "bash"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"

    @property
    def kernel_language(self) -> str:
        """The language of the kernelspec that runs it: a kernel of TypeScript runs JavaScript too."""
        return Language.TYPESCRIPT if self is Language.JAVASCRIPT else self


_NAMES = {
    Language.PYTHON: ("python", "python3", "py", "py3", "ipython", "ipython3"),
    Language.BASH: ("bash", "sh", "shell"),
    Language.JAVASCRIPT: ("javascript", "js"),
    Language.TYPESCRIPT: ("typescript", "ts"),
}
_LANGUAGES = {name: language for language, names in _NAMES.items() for name in names}

LANGUAGE_NAMES = ", ".join(("python", "bash", "sh", "javascript", "js", "typescript", "ts"))
"""For people."""


def find_language(name: str) -> Language | None:
    """Return the language of this name, whatever its case; None when it is not known."""
    return _LANGUAGES.get(name.lower())


def parse_language(name: str) -> Language:
    """Return the language of this name. Raises InvalidInput, naming those that are known."""
    if (language := find_language(name)) is None:
        raise InvalidInput(f"The language {name[:40]!r} is not known; the languages are {LANGUAGE_NAMES}")
    return language
