"""The environment variables of sessions that have ended, for as long as this gateway runs.

Values may be secrets, so they are only ever in memory: the record has just the names. A resumed session gets
them back. When there are too many, the oldest of the principal with the most are dropped, so no principal can
push out the variables of others.
"""

from __future__ import annotations

from collections import OrderedDict

from cellgate_kernels.base.resources import MIB

MOST_SESSIONS = 1000
MOST_BYTES = 4 * MIB

Variables = tuple[tuple[str, str], ...]


class _Share:
    """One principal's kept variables, by the record ids of sessions, oldest first."""

    def __init__(self) -> None:
        self.kept: OrderedDict[int, Variables] = OrderedDict()
        self.bytes = 0

    def put(self, session_id: int, variables: Variables) -> None:
        self.kept[session_id] = variables
        self.bytes += _size(variables)

    def pop(self, session_id: int) -> None:
        self.bytes -= _size(self.kept.pop(session_id, ()))


class KeptVariables:
    """Variables by the principal and the record id of their session."""

    def __init__(self, most_sessions: int = MOST_SESSIONS, most_bytes: int = MOST_BYTES) -> None:
        self._most_sessions = most_sessions
        self._most_bytes = most_bytes
        self._shares: dict[str, _Share] = {}

    def keep(self, principal: str, session_id: int, variables: Variables) -> None:
        """Keep a session's variables at its end, replacing those of an earlier end."""
        self.forget(principal, session_id)
        if not variables:
            return
        self._shares.setdefault(principal, _Share()).put(session_id, variables)
        while sum(share.bytes for share in self._shares.values()) > self._most_bytes:
            self._forget_oldest(max(self._shares, key=lambda name: self._shares[name].bytes))
        while sum(len(share.kept) for share in self._shares.values()) > self._most_sessions:
            self._forget_oldest(max(self._shares, key=lambda name: len(self._shares[name].kept)))

    def of(self, principal: str, session_id: int) -> Variables | None:
        """Return the variables of an ended session; None if it had none, or if they were dropped."""
        share = self._shares.get(principal)
        return None if share is None else share.kept.get(session_id)

    def forget(self, principal: str, session_id: int) -> None:
        """Drop a session's variables, if any are kept."""
        share = self._shares.get(principal)
        if share is not None:
            share.pop(session_id)
            if not share.kept:
                del self._shares[principal]

    def _forget_oldest(self, principal: str) -> None:
        self.forget(principal, next(iter(self._shares[principal].kept)))


def _size(variables: Variables) -> int:
    return sum(len(name) + len(value.encode()) for name, value in variables)
