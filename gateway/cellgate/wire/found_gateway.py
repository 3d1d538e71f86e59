"""``gateway.json``, by which programs of the same user find the gateway of a data folder, and its content.

The gateway writes it once it serves, and removes it when it stops; the folder is its user's alone.
"""

from __future__ import annotations

import msgspec

RUNNING_FILE = "gateway.json"
RUNNING_BYTES = 64 * 1024


class FoundGateway(msgspec.Struct, frozen=True):
    """The content of the file."""

    url: str
    token: str
    pid: int
    certificate: str | None = None
    cluster: str = ""
