"""The blocking facades of the client's classes. What each has, with its types, is in ``sync.pyi``.

That stub is made from the asynchronous classes by ``make reference``, for editors and type checkers.
"""

from cellgate.client.blocking import Blocking, Owning


class SyncGateway(Owning):
    """A `Gateway` whose methods block; made by `Gateway.sync`."""


class SyncSession(Blocking):
    """A `Session` whose methods block; made by `SyncGateway.session`."""


class SyncUsers(Blocking):
    """The `Users` of a gateway, with methods that block."""


class SyncFiles(Blocking):
    """The `Files` of a session, with methods that block."""
