"""The operator's policy for packages, as values.

It decides whether a name may be requested, and nothing else; ``installer`` acts on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from packaging.utils import InvalidName, canonicalize_name

from cellgate.errors import PackagesNotAllowed
from cellgate_kernels.base.errors import InvalidInput, nearest
from cellgate_kernels.base.options import BYTES, SECONDS, option
from cellgate_kernels.base.resources import GIB

EVERYTHING = "*"
MOST_NAMED = 40
"""Most allowed packages that a refusal names."""
OUT_OF_SCOPE = "This token's scopes do not include packages"


@dataclass(frozen=True, slots=True)
class PackageSettings:
    """The policy. Sizes in bytes, durations in seconds.

    `allowed`: with all their dependencies. `lock_life`: seconds for which a list of requirements is not
    resolved again. `environment`: variables for the installer, such as proxies.
    """

    PREFIX: ClassVar[str] = "package_"

    allowed: frozenset[str] = option(
        frozenset(),
        "Names of packages that sessions may install, * for all; default: none.",
        name="packages",
        metavar="NAME",
    )
    index: str = option(
        "",
        "The address of the package index; default: what pip is configured to use on this machine.",
        metavar="URL",
    )
    links: tuple[str, ...] = option((), "Folders or pages with additional wheels.", metavar="PLACE")
    timeout: float = option(300.0, "Seconds that one step of an install may take.", unit=SECONDS, least=0.1)
    most: int = option(100, "The most packages a session may have.", name="package_count", least=1)
    disk: int = option(2 * GIB, "Size of a session's packages, unpacked.", unit=BYTES)
    cache: int = option(4 * GIB, "Size of the cache of packages for all sessions.", unit=BYTES)
    lock_life: float = 86400.0
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def allowing(cls, names: Collection[str]) -> frozenset[str]:
        """Return the value of `allowed` for names as people write them. Raises InvalidInput."""
        return frozenset(name if name == EVERYTHING else _canonical(name) for name in names)

    def allows(self, name: str) -> bool:
        """Return whether the distribution with this canonical name may be requested."""
        return EVERYTHING in self.allowed or name in self.allowed

    def check(self, names: Collection[str]) -> None:
        """Raise PackagesNotAllowed with the names that are not allowed, if any."""
        if (refusal := self.refusal(names)) is not None:
            raise PackagesNotAllowed(refusal)

    def refusal(self, names: Collection[str]) -> str | None:
        """Return which of these names are not allowed, and which are instead; None if all are allowed."""
        refused = sorted(name for name in names if not self.allows(name))
        if not refused:
            return None
        near = nearest(refused[0], self.allowed) if len(refused) == 1 else None
        meant = f"; did you mean {near}?" if near else "."
        return (
            f"Packages that may not be installed here: {', '.join(refused)[:500]}{meant}"
            f" {self._said_to_be_allowed()}; the operator allows more by --allow-package NAME"
        )

    def _said_to_be_allowed(self) -> str:
        """Return which packages are allowed, to append to a refusal."""
        names = sorted(self.allowed)
        more = len(names) - MOST_NAMED
        told = ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
        return f"Allowed here: {told or 'none'}"


def _canonical(name: str) -> str:
    try:
        return canonicalize_name(name, validate=True)
    except InvalidName:
        raise InvalidInput(
            f"--allow-package {name!r} is no package's name: give each name an option of its own,"
            " without a version"
        ) from None


def not_allowed() -> PackagesNotAllowed:
    """Return the error of a gateway that allows no packages."""
    return PackagesNotAllowed(
        "No packages are installed here: the operator of the gateway allows none (--allow-package NAME)"
    )
