"""Settings of ``cellgate serve`` that were removed: what is in the place of each."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

_ALWAYS: Final = (
    {"slow_client_memory": "8 MiB", "slow_client_disk": "1 GiB", "client_silence": "180 s"}
    | {"replay_seconds": "60 s", "replay_size": "16 MiB", "channel_compression": "off"}
    | {"head_timeout": "10 s", "body_rate": "1,024 bytes a second", "channel_queue": "1,000 cells"}
    | {"max_queue": "64 cells", "data_cap": "50 MiB", "cull_interval": "5 s", "keep_alive": "15 s"}
    | {"interrupt_grace": "5 s", "retention_interval": "600 s", "package_lock_life": "a day"}
)
REMOVED: Final[Mapping[str, str]] = MappingProxyType(
    {name: f"it is always {value}" for name, value in _ALWAYS.items()}
    | {
        "channel_cell_timeout": "--max-cell-timeout holds in its place",
        "transport": "kernels are reached by Unix sockets only",
    }
)
