"""The kernel environments that Cellgate has lists of packages for, and the choice among them for a prefix.

The choice is stored beside the environment, so that a later ``cellgate setup`` without a name makes the same
environment again. ``install`` and the recipe make environments from these lists and the start-up files.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.regular import read_regular
from cellgate_kernels.specs.catalog import data_folder

INSIDE = Path(__file__).parents[1] / "inside"

OWN = "own"
"""The name of an environment that was made from an operator's own list."""

_CHOICE = "environment.json"
_CHOICE_BYTES = 8192


class ListedEnvironment(StrEnum):
    """An environment that Cellgate has a list for, ``NAME.txt``, with the reason for each package."""

    STANDARD = "standard"
    MINIMAL = "minimal"

    @property
    def lock(self) -> Path:
        """The file of versions, with hashes, for the environment's list; ``make lock`` writes it."""
        return INSIDE / f"{self.value}.lock"


def start_up_files() -> list[Path]:
    """Return the files that start an environment's kernels, at the same relative paths as below `INSIDE`."""
    return sorted((*INSIDE.glob("*.py"), *INSIDE.glob("*.js"), *INSIDE.glob("drawing/*.js")))


def environment_of(requirements: Path) -> ListedEnvironment | None:
    """Return the environment that a list belongs to; None for an operator's own list."""
    return next((each for each in ListedEnvironment if each.lock == requirements), None)


class _Choice(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The choice of an environment by its name, or of a list by its path."""

    environment: ListedEnvironment | None = None
    requirements: str | None = None


def chosen_requirements(prefix: Path) -> Path | None:
    """Return the list that the environment below `prefix` was made from; None without an environment.

    Raises InvalidInput if the file of the choice is damaged; OSError.
    """
    path = data_folder(prefix.absolute()) / _CHOICE
    try:
        choice = msgspec.json.decode(read_regular(path, _CHOICE_BYTES), type=_Choice)
    except FileNotFoundError:
        return None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is damaged ({error}). Remove it, and choose again") from error
    if choice.environment is not None:
        return choice.environment.lock
    return None if choice.requirements is None else Path(choice.requirements)


def choice_of(requirements: Path) -> tuple[str, bytes]:
    """Return the name and the content of the file that keeps the choice of this list."""
    environment = environment_of(requirements)
    choice: dict[str, Any] = (
        {"requirements": str(requirements)} if environment is None else {"environment": environment.value}
    )
    return _CHOICE, msgspec.json.encode(choice) + b"\n"
