"""The environment variables of sessions that have ended, for as long as this gateway runs.

Their values may be secrets, so they are only ever in memory: the record has their names. A session that is
resumed gets them back; those of too many sessions, or too large ones, are forgotten, the oldest first.
"""

from __future__ import annotations

from collections import OrderedDict

from cellgate_kernels.limits import MIB

MOST_SESSIONS = 1000
MOST_BYTES = 4 * MIB

Variables = tuple[tuple[str, str], ...]


class KeptVariables:
    """Variables by the record id of their session."""

    def __init__(self, most_sessions: int = MOST_SESSIONS, most_bytes: int = MOST_BYTES) -> None:
        self._most_sessions = most_sessions
        self._most_bytes = most_bytes
        self._kept: OrderedDict[int, Variables] = OrderedDict()
        self._bytes = 0

    def keep(self, session_id: int, variables: Variables) -> None:
        """Keep what a session had when it ended, instead of what it had before."""
        self.forget(session_id)
        if not variables:
            return
        self._kept[session_id] = variables
        self._bytes += _size(variables)
        while self._bytes > self._most_bytes or len(self._kept) > self._most_sessions:
            self.forget(next(iter(self._kept)))

    def of(self, session_id: int) -> Variables | None:
        """The variables of an ended session; None if it had none, or if they were forgotten."""
        return self._kept.get(session_id)

    def forget(self, session_id: int) -> None:
        """Forget a session's variables, if any are kept."""
        self._bytes -= _size(self._kept.pop(session_id, ()))


def _size(variables: Variables) -> int:
    return sum(len(name) + len(value.encode()) for name, value in variables)
