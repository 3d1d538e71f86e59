"""Limits of clients' connections, and how many open files there are for them.

Only the limit of open files is measured here. ``listener.streams`` and ``listener.server`` enforce the rest.
"""

from __future__ import annotations

import resource
from dataclasses import dataclass, field

from cellgate.http.listener.forwarded import HandedOn, TrustedProxies
from cellgate_kernels.base.options import BYTES, SECONDS, option
from cellgate_kernels.base.resources import MIB

MOST_CONNECTIONS = 4096
BACKLOG = 1024
"""Connections that the system queues for us. A client beyond them tries again a second later."""
MOST_OPEN_FILES = 65_536
FILES_OF_A_KERNEL = 24
FILES_OF_OUR_OWN = 128
FEWEST_CONNECTIONS = 16
PART_OF_STRANGERS = 8
"""One in so many connections, up to `MOST_OF_STRANGERS`, is for connections without a token."""
MOST_OF_STRANGERS = 64


@dataclass(frozen=True, slots=True)
class ListenerSettings:
    """Limits of connections. Durations in seconds, sizes in bytes.

    `head_timeout`: for a whole request head, from its first byte; for a connection's first head, from its
    acceptance. `body_rate`: bytes a second, on average in each `body_timeout`. `per_address`: None: half of
    all, for connections without a token. `proxies`: the trusted ones.
    `handed_on`: says whose a request is that another gateway of a cluster hands on; None without one.
    """

    connections: int = option(
        MOST_CONNECTIONS,
        "The most connections at once; 0: up to 4096, depending on how many open files are allowed.",
        name="max_connections",
        absent=0,
    )
    per_address: int | None = option(
        None,
        "The most connections of one remote address; 0: half of all; loopback has no limit.",
        name="connections_per_address",
        absent=0,
    )
    head_timeout: float = 10.0
    idle_timeout: float = option(
        120.0,
        "Seconds that a connection may wait for its next request.",
        name="connection_idle_timeout",
        unit=SECONDS,
        least=0.1,
    )
    body_timeout: float = option(
        60.0,
        "Seconds in which a request's body, or a message on a WebSocket, must end or grow by 1024 bytes a "
        "second.",
        unit=SECONDS,
        least=0.1,
    )
    body_rate: int = 1024
    answer_timeout: float = option(
        180.0, "Seconds in which a client must take some of its answer.", unit=SECONDS, least=0.1
    )
    memory: int = option(
        512 * MIB,
        "Memory for all clients' unfinished requests and untaken answers together.",
        name="client_memory",
        unit=BYTES,
    )
    proxies: TrustedProxies = field(default_factory=TrustedProxies)
    handed_on: HandedOn | None = None


def for_principals(connections: int) -> int:
    """Return the number of connections for principals: at least one is left for strangers."""
    return max(1, connections - min(MOST_OF_STRANGERS, max(1, connections // PART_OF_STRANGERS)))


def raise_open_files() -> int:
    """Let this process open as many files as its hard limit allows, within reason; returns how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        return most
    return MOST_OPEN_FILES if soft == resource.RLIM_INFINITY else soft


def too_few(open_files: int, kernels: int, connections: int) -> str | None:
    """Return a warning if so many kernels and connections may reach the limit of open files; else None."""
    left = open_files - FILES_OF_OUR_OWN - FILES_OF_A_KERNEL * kernels
    if connections <= left:
        return None
    return (
        f"The gateway may open {open_files} files, of which {kernels} kernels (max_kernels) need up to"
        f" {FILES_OF_A_KERNEL * kernels}: that leaves {max(0, left)} for {connections} connections"
        " (max_connections). Beyond that new ones wait, and kernels don't start; raise RLIMIT_NOFILE"
        " (`ulimit -n`, `LimitNOFILE=`), or lower one of the two"
    )


def connections_for(open_files: int, kernels: int) -> int:
    """Return the number of connections that leave open files for `kernels` kernels and the gateway itself.

    A connection may need a second one: the file that it downloads or uploads.
    """
    left = (open_files - FILES_OF_OUR_OWN - FILES_OF_A_KERNEL * kernels) // 2
    return max(FEWEST_CONNECTIONS, min(MOST_CONNECTIONS, max(left, open_files // 4)))
