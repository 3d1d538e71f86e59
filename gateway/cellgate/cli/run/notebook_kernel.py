"""Chooses the kernel for a notebook by what its metadata says of the one that it was written with.

Pure. ``run`` asks, before it creates a session; the gateway has the last word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cellgate.cli.run.cells import Written
from cellgate.wire.words import LanguageName, language_name
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.specs.languages import Language, find_language

_SHOWN = 60


@dataclass(frozen=True, slots=True)
class Choice:
    """What to ask the gateway for: a kernelspec, a language, or neither."""

    kernel: str | None = None
    language: LanguageName | None = None
    notice: str = ""


def is_python(written: Written) -> bool:
    """Return whether a notebook is one of Python, or says nothing: any gateway's default is for it."""
    name = written.language or written.kernelspec
    return not name or find_language(name) is Language.PYTHON


def written_with(metadata: Mapping[str, Any]) -> Written:
    """Return what a notebook's metadata says of its kernel."""
    spec, info = (_mapping(metadata.get(name)) for name in ("kernelspec", "language_info"))
    language = _text(spec.get("language")) or _text(info.get("name"))
    return Written(_text(spec.get("name")), language)


def choose_kernel(written: Written, offered: Mapping[str, str]) -> Choice:
    """Return the kernel for a notebook. `offered`: the language of each kernelspec of the gateway.

    Raises InvalidInput, naming the notebook's kernelspec, if none is of the notebook's language.
    """
    name, language = written.kernelspec, written.language
    if name in offered and language.lower() in {"", offered[name].lower()}:
        return Choice(kernel=name)
    known = find_language(language or name)
    if known is not None:
        wanted = known.kernel_language
    elif language:
        wanted = language.lower()
    else:
        shown = name[:_SHOWN]
        return Choice(
            notice=f"there is no kernelspec {shown!r} here, and the notebook names no language: run as Python"
        )
    for other, its_language in sorted(offered.items()):
        if its_language.lower() == wanted:
            return Choice(language=language_name(known)) if known is not None else Choice(kernel=other)
    names = ", ".join(f"{other} ({its_language})" for other, its_language in sorted(offered.items()))
    raise InvalidInput(
        f"the notebook is for the kernelspec {name[:_SHOWN]!r} of {language[:_SHOWN] or wanted}, which is not"
        f" here: this gateway has {names}. --kernel or --language runs its cells all the same"
    )


def _mapping(found: object) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def _text(found: object) -> str:
    return found if isinstance(found, str) else ""
