"""TCP's options of the client's connections, by which a gateway's machine that died silently is noticed."""

from __future__ import annotations

import socket
from typing import Final

SILENCE: Final = 15
"""Seconds after which a machine that acknowledges nothing is gone, and the connection with it."""
_PROBES: Final = (
    ("TCP_KEEPIDLE", 5),
    ("TCP_KEEPALIVE", 5),  # the same in macOS
    ("TCP_KEEPINTVL", 5),
    ("TCP_KEEPCNT", 2),
)
"""TCP's options, as far as the system has them, by which a silent machine is asked whether it is there."""


def socket_options(*, is_small: bool) -> list[tuple[int, int, int]]:
    """Return the options by which a machine that died without a word is noticed within `SILENCE` seconds.

    `is_small`: whether the gateway's system takes the request at once. A limit for what is not acknowledged
    would also end an upload that a gateway only reads slowly, so that has none.
    """
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    limits = (*_PROBES, ("TCP_USER_TIMEOUT", SILENCE * 1000)) if is_small else _PROBES
    for name, value in limits:
        if (option := getattr(socket, name, None)) is not None:
            options.append((socket.IPPROTO_TCP, option, value))
    return options
