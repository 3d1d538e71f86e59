"""The settings of a gateway that shares its record with others. Only values and their checks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from cellgate_kernels.base.errors import InvalidInput
from cellgate_kernels.base.options import SECONDS, option

BEATS_A_LEASE = 4
"""The fewest beats in a lease. ``statements.STEADY`` depends on it."""


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The database of a cluster, and this gateway's part in it. Durations in seconds.

    `advertise`: the origin under which other gateways reach this one. `workspaces`: a folder on a disk that
    all of them mount, with the files of their sessions; empty: each has them in its data folder.
    """

    address: str = option(
        "",
        "A database of PostgreSQL that several gateways share, for the record and the owner of each session;"
        " needs --advertise. Put a password into PGPASSFILE, not here.",
        name="cluster",
        metavar="URL",
        not_empty=True,
    )
    advertise: str = option(
        "",
        "Where the other gateways of the cluster reach this one, such as http://10.0.0.7:8888.",
        metavar="URL",
    )
    lease: float = option(
        15.0,
        "Seconds without a sign of life after which another gateway of the cluster may take sessions over.",
        unit=SECONDS,
        least=0.5,
        most=3600,
    )
    beat: float = option(
        3.0,
        "Seconds between two signs of life in the cluster; at most a quarter of the lease.",
        unit=SECONDS,
        least=0.1,
        most=1200,
    )
    workspaces: str = option(
        "",
        "A folder that all gateways of the cluster mount, for the files of sessions: these come along when a"
        " session goes on at another gateway.",
        name="workspaces_shared",
        metavar="DIR",
        not_empty=True,
    )


def check_cluster(settings: ClusterSettings) -> ClusterSettings:
    """Return the settings of a cluster with a plain origin. Raises InvalidInput."""
    if settings.lease < BEATS_A_LEASE * settings.beat:
        raise InvalidInput(f"lease must be at least {BEATS_A_LEASE} times the beat, {settings.beat:g} s")
    try:
        parts = urlsplit(settings.advertise)
        named = parts.hostname is not None and parts.port != 0
    except ValueError:
        named = False
    if not named or parts.scheme not in {"http", "https"} or parts.username is not None:
        raise InvalidInput("advertise must be the address of this gateway, such as http://10.0.0.7:8888")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise InvalidInput("advertise must be an address without a path, such as http://10.0.0.7:8888")
    return replace(settings, advertise=f"{parts.scheme}://{parts.netloc}")
