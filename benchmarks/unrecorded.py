"""``python FILE serve ...``: the gateway with its record switched off, only to measure against.

Events are still made, because streams and results depend on them, but they are not chained, no row is
enqueued or written, and a commit returns at once. Cellgate itself has no switch for this.
"""

from __future__ import annotations

from cellgate.cli.main import main
from cellgate.record import events
from cellgate.record.rows import EventRow, ExecutionRow, SessionRow
from cellgate.record.store.sqlite.journal import Journal
from cellgate.server import storage


class Unrecorded(Journal):
    """A journal that keeps nothing."""

    def save_session(self, row: SessionRow, **_: object) -> None:
        """Keep nothing."""

    def save_execution(self, row: ExecutionRow, **_: object) -> None:
        """Keep nothing."""

    def append(self, row: EventRow, **_: object) -> None:
        """Keep nothing."""

    async def commit(self, session_id: int | None = None, **_: object) -> None:
        """Nothing: no row is enqueued."""


def _unchained(previous: bytes, body: bytes) -> bytes:
    return previous


if __name__ == "__main__":
    storage.Journal = Unrecorded  # type: ignore[attr-defined]
    events.link = _unchained  # type: ignore[attr-defined]
    raise SystemExit(main())
