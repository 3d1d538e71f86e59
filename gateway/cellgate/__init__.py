"""Cellgate runs code cells in isolated kernels and keeps each session as a record.

``from cellgate import Gateway`` is the Python client, and all its errors are kinds of `GatewayError`; the
command ``cellgate`` starts the server. The public names are the client's; ``client.__all__`` is their only
list. They load on first use: the command and the server import this package too, and need none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cellgate.client import *  # noqa: F403 - re-exported to type checkers, as it is to programs below


def __getattr__(name: str) -> Any:
    # All public names but two are classes. A lookup of anything else, such as the import system's lookups of
    # submodules, must not load the client.
    if name not in {"__all__", "local", "run"} and not name[:1].isupper():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from cellgate import client  # noqa: PLC0415 - see above

    if name == "__all__":
        return client.__all__
    if name not in client.__all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(client, name)


def __dir__() -> list[str]:
    from cellgate import client  # noqa: PLC0415 - see above

    return [*globals(), *client.__all__]
