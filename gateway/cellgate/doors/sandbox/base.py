"""What all handlers of doors with sandboxes share: the sandbox that a request is for, and events as bytes."""

from __future__ import annotations

from collections.abc import Callable

from cellgate.doors.base import DoorHandler
from cellgate.doors.sandbox.keys import find, session_key
from cellgate.errors import NotFound
from cellgate.record.rows import EventRow
from cellgate.sessions.session import Session


class SandboxDoorHandler(DoorHandler):
    """A handler of a door whose clients make sandboxes."""

    def session_wanted(self) -> str | None:
        return self.key_of(self.path_args[0]) if self.path_args else None

    def key_of(self, identifier: str) -> str:
        """Return the key of the login's sandbox of this id."""
        return session_key(self.door, self.login, identifier)

    def find_sandbox(self, identifier: str) -> Session | None:
        """Return the login's sandbox of this id, if it runs."""
        return find(self.door, self.services, self.login, identifier)

    def sandbox(self, identifier: str) -> Session:
        """Return the login's sandbox of this id. Raises NotFound."""
        session = self.find_sandbox(identifier)
        if session is None:
            raise NotFound(f"Sandbox {identifier[:64]!r} was not found")
        return session

    async def encoded_by(
        self, encode: Callable[[list[EventRow]], list[bytes]], rows: list[EventRow]
    ) -> list[bytes]:
        """Return events as `encode` does, in a thread if they are large."""
        return await self.aside(sum(len(row.body) for row in rows), encode, rows)
