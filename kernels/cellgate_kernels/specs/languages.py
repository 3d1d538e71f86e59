"""Languages by their common names, and the kernel language that runs each.

Pure. ``catalog`` finds kernelspecs by language; ``execution.blocks`` makes cells of blocks in another one.
"""

from __future__ import annotations

from enum import StrEnum

from cellgate_kernels.base.errors import InvalidInput


class Language(StrEnum):
    """A programming language of cells."""

    PYTHON = "python"
    BASH = "bash"
    JAVASCRIPT = "javascript"
    TYPESCRIPT = "typescript"

    @property
    def kernel_language(self) -> str:
        """The language of the kernelspec that runs this language: JavaScript kernels run TypeScript too."""
        return Language.TYPESCRIPT if self is Language.JAVASCRIPT else self


_NAMES = {
    Language.PYTHON: ("python", "python3", "py", "py3", "ipython", "ipython3"),
    Language.BASH: ("bash", "sh", "shell"),
    Language.JAVASCRIPT: ("javascript", "js"),
    Language.TYPESCRIPT: ("typescript", "ts"),
}
_LANGUAGES = {name: language for language, names in _NAMES.items() for name in names}

LANGUAGE_NAMES = ", ".join(("python", "bash", "sh", "javascript", "js", "typescript", "ts"))
"""The names of languages, for messages."""


def find_language(name: str) -> Language | None:
    """Return the language of this name, whatever its case; None when it is not known."""
    return _LANGUAGES.get(name.lower())


def parse_language(name: str) -> Language:
    """Return the language of this name. Raises InvalidInput, which lists the known names."""
    if (language := find_language(name)) is None:
        raise InvalidInput(f"The language {name[:40]!r} is not known; the languages are {LANGUAGE_NAMES}")
    return language
