"""The packages that a recorded session had installed, beside its kernel's environment.

Pure. A notebook may come from anywhere: names and versions are validated before they are used. They are in
the notebook's ``metadata.cellgate``. Who replays installs what was asked for, bound to the recorded versions;
whether all came out the same is seen when the environments are compared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cellgate.record.requirement_lines import Line, pin_line
from cellgate_kernels.distributions import Distribution
from cellgate_kernels.environment import MOST_PACKAGES
from cellgate_kernels.errors import InvalidInput


class RecordedPackage(msgspec.Struct, frozen=True):
    """A package as the record tells it."""

    name: str
    version: str
    requested: bool = False

    def __post_init__(self) -> None:
        Distribution.read(self.name, self.version)

    @property
    def pin(self) -> Line:
        """The requirement of this very version."""
        return pin_line(Distribution.read(self.name, self.version))


def installed_packages(notebook: Mapping[str, Any]) -> list[RecordedPackage]:
    """The packages that a notebook of ours names. Raises InvalidInput when it does not do so as we do."""
    try:
        told = notebook.get("metadata", {}).get("cellgate", {}).get("installed_packages", [])
        packages = msgspec.convert(told, list[RecordedPackage])
    except (AttributeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"The notebook's list of installed packages can't be read: {error}") from error
    if len(packages) > MOST_PACKAGES:
        raise InvalidInput(f"The notebook names {len(packages)} installed packages; at most {MOST_PACKAGES}")
    return packages


def pins(packages: list[RecordedPackage]) -> tuple[list[Line], list[Line]]:
    """What to install, the packages that were asked for, and the versions of all as constraints."""
    return [package.pin for package in packages if package.requested], [package.pin for package in packages]
