"""What a session is for the programs beside its kernel; ``processes`` starts and follows them."""

from __future__ import annotations

from collections.abc import Callable

from cellgate.record.events import EventLog
from cellgate.record.store.interface import EventStore
from cellgate.sessions.secrets import SessionSecrets
from cellgate_kernels.protocol.masking import Masker


class SessionPrograms:
    """A `ProcessHost`. `used` is called when a program has ended."""

    def __init__(
        self,
        log: EventLog,
        store: EventStore,
        cap: int,
        secrets: SessionSecrets | None,
        used: Callable[[], None],
    ) -> None:
        self.log = log
        self.cap = cap
        self._store = store
        self._secrets = secrets
        self.used = used

    def masker(self) -> Masker | None:
        """Finds the values of the session's secrets, if it has any."""
        return None if self._secrets is None else self._secrets.text_masker()

    async def room(self) -> None:
        """Return when the store takes more. Raises StorageError."""
        await self._store.room(self.log.whose)
