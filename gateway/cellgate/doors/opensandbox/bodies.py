"""The bodies of requests about sandboxes, and their checks. Pure.

Of what a client may ask for, what would be wrong to pass over is refused by name. The image and the
entrypoint are kept and told; an image that is the name of an operator's environment chooses that one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import field

from cellgate.doors.base import Asked
from cellgate.doors.sandbox.errors import Unsupported
from cellgate.execution.checks import check_text
from cellgate.execution.limits import LimitCeilings
from cellgate_kernels.base.errors import InvalidInput

MOST_IMAGE: Final = 512
MOST_WORDS: Final = 64
MOST_WORD: Final = 1024
DENY: Final = "deny"
POLICIES: Final = frozenset({DENY, "allow"})
_UNITS: Final = {
    "": 1,
    "k": 1000,
    "M": 1000**2,
    "G": 1000**3,
    "T": 1000**4,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    "Ti": 1 << 40,
}
_QUANTITY: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)(k|Ki|[MGT]i?|m|)", re.ASCII)
_MILLI: Final = "m"


class ImageSpec(Asked, frozen=True):
    """An image. What would sign in at its registry is passed over, and kept nowhere."""

    uri: str = ""


class PolicyBody(Asked, frozen=True):
    """A policy for a sandbox's network."""

    default: str | None = field(name="defaultAction", default=None)
    egress: list[Any] | None = None


class CredentialProxy(Asked, frozen=True):
    """Whether credentials are to be put into what a sandbox sends."""

    enabled: bool = False


class NewSandboxBody(Asked, frozen=True):
    """A sandbox to make. `timeout` in seconds; None: as long as it may live."""

    image: ImageSpec | None = None
    entrypoint: list[str] | None = None
    timeout: float | None = None
    env: dict[str, str] | None = None
    metadata: dict[str, str] | None = None
    limits: dict[str, str] | None = field(name="resourceLimits", default=None)
    policy: PolicyBody | None = field(name="networkPolicy", default=None)
    snapshot: str | None = field(name="snapshotId", default=None)
    template: str | None = field(name="templateId", default=None)
    platform: Any = None
    volumes: Any = None
    extensions: Any = None
    lifecycle: Any = None
    credentials: CredentialProxy | None = field(name="credentialProxy", default=None)

    def check(self) -> None:
        """Raise Unsupported for what would be wrong to pass over, and InvalidInput."""
        absent = {
            "snapshotId": self.snapshot,
            "templateId": self.template,
            "platform": self.platform,
            "volumes": self.volumes,
            "extensions": self.extensions,
            "lifecycle": self.lifecycle,
            "credentialProxy": self.credentials is not None and self.credentials.enabled,
            "networkPolicy.egress": self.policy is not None and self.policy.egress,
        }
        for name, wanted in absent.items():
            if wanted:
                raise Unsupported(f"{name} of OpenSandbox is not there in this gateway")
        if self.policy is not None and self.policy.default not in {None, *POLICIES}:
            raise InvalidInput("networkPolicy.defaultAction must be allow or deny")
        check_text(self.uri, "image.uri", MOST_IMAGE)
        if len(self.words) > MOST_WORDS:
            raise InvalidInput(f"entrypoint has at most {MOST_WORDS} words")
        for word in self.words:
            check_text(word, "entrypoint", MOST_WORD)

    @property
    def uri(self) -> str:
        """The name of the image; empty without one."""
        return "" if self.image is None else self.image.uri

    @property
    def words(self) -> list[str]:
        """The words of the entrypoint; none without one."""
        return self.entrypoint or []

    @property
    def has_network(self) -> bool:
        """Whether it may have the network that the operator gives.

        A policy without a default action denies, and an empty one is none.
        """
        policy = self.policy
        if policy is None:
            return True
        return policy.egress is None if policy.default is None else policy.default != DENY


class RenewBody(Asked, frozen=True):
    """When a sandbox is to end."""

    at: str = field(name="expiresAt")

    def seconds(self) -> float:
        """Return how long it is until then. Raises InvalidInput."""
        try:
            then = datetime.fromisoformat(self.at)
        except ValueError as error:
            raise InvalidInput("expiresAt must be a time such as 2030-01-31T12:00:00Z") from error
        if then.tzinfo is None:
            raise InvalidInput("expiresAt must have a time zone, such as Z at its end")
        left = (then - datetime.now(UTC)).total_seconds()
        if left <= 0:
            raise InvalidInput("expiresAt is in the past; delete the sandbox to end it now")
        return left


def resources(asked: Mapping[str, str] | None, most: LimitCeilings) -> tuple[float | None, int | None]:
    """Return the processors and the bytes of memory that are asked for, lowered to the ceilings.

    None for what is not asked for. Raises InvalidInput, and Unsupported for another resource.
    """
    asked = asked or {}
    for name in asked:
        if name not in {"cpu", "memory"}:
            raise Unsupported(f"resourceLimits.{name[:40]} is not there in this gateway; cpu and memory are")
    cpus = memory = None
    if "cpu" in asked:
        cpus = min(_quantity("cpu", asked["cpu"]), most.resources.cpus)
    if "memory" in asked:
        memory = min(math.ceil(_quantity("memory", asked["memory"])), most.resources.memory)
    return cpus, memory


def _quantity(name: str, told: str) -> float:
    """Return a quantity as Kubernetes writes it, such as ``500m`` or ``2Gi``. Raises InvalidInput."""
    found = _QUANTITY.fullmatch(told)
    if found is None:
        raise InvalidInput(f"resourceLimits.{name} must be a quantity such as 500m or 2Gi, not {told[:40]!r}")
    number = float(found[1])
    return number / 1000 if found[2] == _MILLI else number * _UNITS[found[2]]
