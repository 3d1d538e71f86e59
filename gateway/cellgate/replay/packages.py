"""The packages that a recorded session had installed in addition to its kernel's environment.

Pure. They are listed in the notebook's ``metadata.cellgate``. A notebook may come from anywhere, so names and
versions are validated before they are used. A replay installs the requested packages, constrained to the
recorded versions; comparing the environments shows whether the result is the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from cellgate.record.export.requirement_lines import Line, pin_line
from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.kernel.environment import MOST_PACKAGES
from cellgate_kernels.protocol.distributions import Distribution


class RecordedPackage(msgspec.Struct, frozen=True):
    """A package as described in the record."""

    name: str
    version: str
    requested: bool = False

    def __post_init__(self) -> None:
        Distribution.read(self.name, self.version)

    @property
    def pin(self) -> Line:
        """The requirement for exactly this version."""
        return pin_line(Distribution.read(self.name, self.version))


def installed_packages(notebook: Mapping[str, Any]) -> list[RecordedPackage]:
    """Return the packages listed in a Cellgate notebook. Raises InvalidInput if the list is malformed."""
    try:
        told = notebook.get("metadata", {}).get("cellgate", {}).get("installed_packages", [])
        packages = msgspec.convert(told, list[RecordedPackage])
    except (AttributeError, msgspec.ValidationError) as error:
        raise InvalidInput(f"The notebook's list of installed packages can't be read: {error}") from error
    if len(packages) > MOST_PACKAGES:
        raise InvalidInput(f"The notebook names {len(packages)} installed packages; at most {MOST_PACKAGES}")
    return packages


def pins(packages: list[RecordedPackage]) -> tuple[list[Line], list[Line]]:
    """Return the requested packages to install, and all packages' versions as constraints."""
    return [package.pin for package in packages if package.requested], [package.pin for package in packages]
