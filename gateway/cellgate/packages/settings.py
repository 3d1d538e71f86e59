"""What an operator allows of packages, as values.

It says whether a name may be asked for, and nothing else; ``installer`` acts on it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from packaging.utils import canonicalize_name

from cellgate.wire.errors import PackagesNotAllowed
from cellgate_kernels.limits import GIB

EVERYTHING = "*"


@dataclass(frozen=True, slots=True)
class PackageSettings:
    """The policy. Sizes in bytes, durations in seconds.

    `allowed`: names that may be asked for, ``*`` for all, none for no packages at all; what these need comes
    along. `index`: the address of the index, empty for what pip is configured to use on this machine.
    `links`: folders or pages with further wheels. `environment`: variables that pip gets, such as proxies.
    `timeout` bounds one install, `disk` what a session has installed, `cache` all that is kept of wheels.
    """

    allowed: frozenset[str] = frozenset()
    index: str = ""
    links: tuple[str, ...] = ()
    timeout: float = 300.0
    most: int = 100
    disk: int = 2 * GIB
    cache: int = 4 * GIB
    lock_life: float = 86400.0
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def allowing(cls, names: Collection[str]) -> frozenset[str]:
        """`allowed` of names as people write them."""
        return frozenset(name if name == EVERYTHING else canonicalize_name(name) for name in names)

    def allows(self, name: str) -> bool:
        """Whether the distribution of this canonical name may be asked for."""
        return EVERYTHING in self.allowed or name in self.allowed

    def check(self, names: Collection[str]) -> None:
        """Raises PackagesNotAllowed, naming what is not allowed."""
        refused = sorted(name for name in names if not self.allows(name))
        if refused:
            raise PackagesNotAllowed(
                f"Packages that may not be installed here: {', '.join(refused)[:500]}."
                " The operator of the gateway allows names (ServeApp.packages)"
            )


def not_allowed() -> PackagesNotAllowed:
    """The refusal of a gateway without a policy."""
    return PackagesNotAllowed(
        "No packages are installed here: the operator of the gateway allows none (ServeApp.packages)"
    )
