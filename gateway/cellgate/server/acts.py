"""Copies acts, the changes of users and tokens, into the record's audit trail: in order, each exactly once.

Commands write acts into the store of users, whether a gateway serves or not. This looks after the start, and
then whenever users have changed. Where to go on is found by comparing the trail's newest act with the store's
of the same number, so a store or a record that was put back from a copy, or made anew, loses no act.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cellgate.errors import NotFound, StorageError
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.store.interface import Act
from cellgate.identity.store.opening import open_users
from cellgate.record.store.interface import RecordStore
from cellgate.record.trail import ACT, NewEntry
from cellgate_kernels.base.tasks import Supervisor

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.25
RETRY_SECONDS = 5.0
BATCH = 500


class ActRecorder:
    """Keeps the trail up to date with the acts. Call `start` once, and `close` before the journal's end."""

    def __init__(self, directory: PrincipalDirectory, journal: RecordStore) -> None:
        self._directory = directory
        self._journal = journal
        self._copied_generation = -1
        self._told = ""
        self._tasks = Supervisor()

    def start(self) -> None:
        """Copy acts from now on, starting with earlier ones."""
        self._tasks.repeat(self._look, "acts for the audit trail", pause=RETRY_SECONDS)

    async def close(self) -> None:
        """Stop copying; a later gateway copies the missing acts."""
        await self._tasks.cancel()

    async def _look(self) -> float:
        try:
            await self.catch_up()
        except StorageError as error:
            if error.message != self._told:
                logger.error("Acts can't be copied into the audit trail for now: %s", error.message)
                self._told = error.message
            return RETRY_SECONDS
        self._told = ""
        return LOOK_SECONDS

    async def catch_up(self) -> None:
        """Copy the acts that the trail does not have yet. Raises StorageError."""
        generation = self._directory.generation
        if generation == self._copied_generation:
            return
        after = await self._last_common()
        while acts := await self._directory.acts(after, BATCH):
            await self._journal.add_to_trail([NewEntry(ACT, fields_of(act)) for act in acts])
            after = acts[-1].seq
        self._copied_generation = generation

    async def _last_common(self) -> int:
        """Return the number of the newest act in the trail that the store has too; 0 if there is none."""
        before: int | None = None
        while recorded := await self._journal.reads.acts(before, BATCH):
            for before, entry in recorded:  # noqa: B007 - `before` is used after the loop
                number = entry["number"]
                if _has(entry, await self._directory.acts(number - 1, 1)):
                    return int(number)
        return 0


def waiting(recorded: Generator[Mapping[str, Any], None, None], data_dir: Path) -> int:
    """Count the acts in a data folder's users that are not among those of a trail, newest first.

    A gateway copies them, at its start or soon. Raises StorageError.
    """
    with closing(recorded), ExitStack() as stack:
        try:
            store = stack.enter_context(open_users(data_dir))
        except NotFound:
            return 0
        numbers = (entry["number"] for entry in recorded if _has(entry, store.acts(entry["number"] - 1, 1)))
        return store.count_acts(next(numbers, 0))


def _has(entry: Mapping[str, Any], acts: Sequence[Act]) -> bool:
    """Return whether the entry is about the first of these acts."""
    return bool(acts) and fields_of(acts[0]).items() <= entry.items()


def fields_of(act: Act) -> Mapping[str, Any]:
    """Return the fields of an act's entry in the trail."""
    fields = {"number": act.seq, "done_at": _time(act.at), **act.fields}
    if (expires_at := fields.get("expires_at")) is not None:
        fields["expires_at"] = _time(expires_at)
    return fields


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
