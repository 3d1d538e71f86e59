"""Copies acts, the changes of users and tokens, into the record's audit trail: in order, each exactly once.

Commands write acts into the store of users, whether a gateway serves or not. This looks after the start, and
then whenever users have changed. Where to go on is found by comparing the trail's newest act with the store's
of the same number, so a store or a record that was put back from a copy, or made anew, loses no act. Each
gateway of a cluster does this: the trail takes acts only after the newest one that the gateway knows of.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from typing import Any

from cellgate.errors import NotFound, StorageError
from cellgate.identity.directory import PrincipalDirectory
from cellgate.identity.store.interface import Act
from cellgate.identity.store.opening import UsersPlace, open_users_at
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
        copied = 0
        while True:
            newest, after = await self._last_common()
            acts = await self._directory.acts(max(after, copied), BATCH)
            if not acts:
                break
            entries = [NewEntry(ACT, fields_of(act)) for act in acts]
            if await self._journal.add_to_trail(entries, newest_act=newest):
                copied = acts[-1].seq
        self._copied_generation = generation

    async def _last_common(self) -> tuple[int, int]:
        """Return the entry of the trail's newest act, and the number of the newest that the store has, too.

        Either is 0 if there is none.
        """
        newest = 0
        before: int | None = None
        while recorded := await self._journal.reads.acts(before, BATCH):
            newest = newest or recorded[0][0]
            for before, entry in recorded:  # noqa: B007 - `before` is used after the loop
                number = entry["number"]
                if _has(entry, await self._directory.acts(number - 1, 1)):
                    return newest, int(number)
        return newest, 0


def waiting(recorded: Generator[Mapping[str, Any], None, None], *places: UsersPlace) -> int:
    """Count the acts of users that are not among those of a trail, newest first.

    The users are in the first of the places that has any. A gateway copies them, at its start or soon. Raises
    StorageError.
    """
    with closing(recorded), ExitStack() as stack:
        store = None
        for place in places:
            with suppress(NotFound):
                store = store or stack.enter_context(open_users_at(place))
        if store is None:
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
