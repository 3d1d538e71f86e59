"""Ports for what must know its number before it listens. Whoever can listen on port 0 does that instead."""

from __future__ import annotations

import secrets
import socket
from contextlib import suppress
from pathlib import Path

FIRST = 10_000
KEPT = 1_000
"""The last ports below those that the system hands out: `server_at_a_fixed_port` takes those."""


def free_port() -> int:
    """A port of the loopback interface on which nothing listens, and that nobody else gets by chance.

    The system gives the ports of its own range to whoever listens on port 0, and to every connection: one
    that was free a moment ago may be somebody's when it is used. Below that range nobody gets one unasked.
    Tests that run side by side have the same seed, so `random` would give all of them the same number.
    """
    handed_out = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    for _ in range(1000):
        port = FIRST + secrets.randbelow(handed_out - KEPT - FIRST)
        with suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free below those that the system hands out")
