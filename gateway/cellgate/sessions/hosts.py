"""A session's faces towards its proxy, the programs beside its kernel, and the ports they listen on.

The proxy's connections become events of the session's record, of no execution. A connection may end after the
cell that opened it, when nothing more may be recorded of that cell, so an event only names the cell.
``egress``, ``processes`` and ``ports`` do the rest; ``session`` has one of each.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cellgate.errors import StorageError
from cellgate.execution.cell_record import Traffic
from cellgate.quotas.usage import Account
from cellgate.record.events import EventLog
from cellgate.record.store.interface import EventStore
from cellgate.sessions.queue import SessionRuns
from cellgate.sessions.secrets import SessionSecrets
from cellgate.sessions.state import SessionRecord
from cellgate_kernels.kernel.kernel import Kernel
from cellgate_kernels.protocol.masking import Masker

logger = logging.getLogger(__name__)


class SessionConnections:
    """A session as a `ProxyHost`."""

    def __init__(
        self,
        record: SessionRecord,
        runs: SessionRuns,
        secrets: SessionSecrets | None,
        account: Account,
        traffic: Traffic,
    ) -> None:
        self._account = account
        self._traffic = traffic
        self._record = record
        self._secrets = secrets
        self._runs = runs

    @property
    def running(self) -> str | None:
        """The id of the current cell."""
        return None if self._runs.current is None else self._runs.current.id

    def check_writable(self) -> None:
        """Check that the session can be recorded. Raises StorageError, PrincipalQuotaExceeded."""
        self._record.check_writable()
        self._account.check_record()

    def carried(self, number: int, *, sent: bool) -> None:
        """Count the bytes for the cells that run."""
        if sent:
            self._traffic.sent += number
        else:
            self._traffic.received += number

    def note(self, event_type: str, fields: dict[str, Any]) -> None:
        """Record an event; a secret that is part of a host's name is masked."""
        if self._secrets is not None:
            mask = self._secrets.names_masker().text
            fields = {name: _masked(value, mask) for name, value in fields.items()}
        try:
            self._record.log.append(event_type, None, fields)
        except StorageError as error:
            logger.warning(
                "A connection of session %s is not recorded: %s", self._record.row.key, error.message
            )


class SessionPrograms:
    """A session as a `ProcessHost`. `used` is called when a program has ended."""

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
        """Return a masker of the session's secrets, if it has any."""
        return None if self._secrets is None else self._secrets.text_masker()

    async def room(self) -> None:
        """Return when the store accepts more. Raises StorageError."""
        await self._store.room(self.log.whose)


class SessionPortsHost:
    """A session as a `PortsHost`. `kernel` returns the current one; `used` is called after a connection."""

    def __init__(self, log: EventLog, kernel: Callable[[], Kernel], used: Callable[[], None]) -> None:
        self.log = log
        self.kernel = kernel
        self.used = used


def _masked(value: Any, mask: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return mask(value)
    return [mask(each) for each in value] if isinstance(value, list) else value
