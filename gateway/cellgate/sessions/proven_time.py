"""Decides how far to trust the system's clock before records are removed for their age.

A purge can't be undone, and a clock that is wrong for a minute would make every record look old. So the wall
clock's progress is compared with that of a clock that nobody can set and, at a start, with the time of the
gateway's last look. If the wall clock leapt ahead, that time counts only after the gateway has run for a day
since, or after an operator has confirmed the clock (`cellgate record clock --trust`).

`ClockState` is the decision, without any clock or file; `ProvenTime` asks the clocks and keeps the state in
the data folder. Only ``retention`` uses them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from cellgate.errors import StorageError
from cellgate_kernels.base.errors import in_brief, in_words

logger = logging.getLogger(__name__)

LEAP_SECONDS = 3600.0
"""If two clocks differ by more than this, one of them was set."""
STEADY_SECONDS = 86_400.0
"""Seconds that the gateway must run after a leap until it counts."""
MOST_LEAPS = 64
"""Most leaps that are stored; beyond, the oldest two become one, with the later proof of both."""
MOST_BYTES = 64 * 1024
STATE_FILE = "clock.json"
TRUST_FILE = "clock.trusted"


class Leap(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A leap of the wall clock that is not proven yet.

    `ahead`: its seconds, 0 for one backwards. `ran`: seconds that the gateway has run since. `seen`: it
    happened while a gateway ran; otherwise it may only be time without a gateway.
    """

    ahead: float
    ran: float
    seen: bool

    @property
    def left(self) -> float:
        """The seconds that the gateway must still run until this leap counts."""
        return max(0.0, STEADY_SECONDS - self.ran)


class ClockState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The wall clock's time at the last look (seconds since 1970), and the leaps before it, oldest first."""

    wall: float
    leaps: tuple[Leap, ...] = ()

    def at(self, wall: float, ran: float | None) -> ClockState:
        """Return the state at a further look, `ran` seconds later; None: the first look of a gateway."""
        passed, ahead = ran or 0.0, self.ahead(wall, ran)
        leaps = [Leap(each.ahead, each.ran + passed, each.seen) for each in self.leaps]
        leaps = [each for each in leaps if each.ran < STEADY_SECONDS]
        if abs(ahead) > LEAP_SECONDS:
            if ran is not None:
                # The clock that proved these leaps is now known to be set at times.
                leaps = [Leap(each.ahead, 0.0, each.seen) for each in leaps]
                leaps.append(Leap(max(ahead, 0.0), 0.0, seen=True))
            elif ahead > 0:
                leaps.append(Leap(ahead, 0.0, seen=False))
        if len(leaps) > MOST_LEAPS:
            first, second = leaps[:2]
            merged = Leap(first.ahead + second.ahead, second.ran, first.seen or second.seen)
            leaps[:2] = [merged]
        return ClockState(wall, tuple(leaps))

    def ahead(self, wall: float, ran: float | None) -> float:
        """Return the seconds by which the wall clock went further than the other one since the last look."""
        return wall - self.wall - (ran or 0.0)

    @property
    def proven(self) -> float | None:
        """The time that has certainly passed (seconds since 1970); None: nothing is certain for now.

        It is behind the wall clock by the unproven time, in which perhaps no gateway ran.
        """
        if any(each.seen for each in self.leaps):
            return None
        return self.wall - sum(each.ahead for each in self.leaps)


def boot_time() -> float:
    """Return the seconds since the machine's start, suspended ones included; nobody can set them."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class ProvenTime:
    """The clock of a data folder's retention. `look` is called in a thread, never twice at once."""

    def __init__(
        self, folder: Path, wall: Callable[[], float] = time.time, running: Callable[[], float] = boot_time
    ) -> None:
        self._folder = folder
        self._wall = wall
        self._running = running
        self._last: tuple[ClockState, float] | None = None

    def look(self, newest: float | None) -> ClockState:
        """Compare the clocks; store and return their present state.

        `newest`: the time of the record's newest row, used if no last look is known. A state that can't be
        stored is logged: a full disk must not stop the purges that would empty it.
        """
        running, wall = self._running(), self._wall()
        if self._last is None:
            before, ran = self._first(wall if newest is None else newest), None
        else:
            before, ran = self._last[0], running - self._last[1]
        if (said := self._trusted()) is not None:
            logger.info("The system clock is right, as an operator says: records are removed by it again")
            # The confirmation is for the clock as it was then, perhaps long before this look.
            before, ran = ClockState(said), None if ran is None else min(ran, max(0.0, wall - said))
        state = before.at(wall, ran)
        if abs(ahead := before.ahead(wall, ran)) > LEAP_SECONDS and state.leaps:
            _warn(state, ahead)
        self._last = (state, running)
        try:
            _keep(self._folder / STATE_FILE, state)
        except OSError as error:
            logger.warning("The state of the clock is not kept for the next start: %s", in_words(error))
        return state

    def _first(self, last: float) -> ClockState:
        """Return the former gateway's stored state; without one, `last` is the time of its last look.

        If the state can't be read, any leap may have happened, so nothing is certain.
        """
        try:
            return read_state(self._folder) or ClockState(last)
        except StorageError as error:
            logger.warning(
                "No record is removed for its age until the gateway has run for a day, or `cellgate record"
                " clock --trust` says that the clock is right: its former state is not known: %s",
                error.message,
            )
            return ClockState(last, (Leap(0.0, 0.0, seen=True),))

    def _trusted(self) -> float | None:
        """Return when an operator confirmed the clock, by that clock; each confirmation counts once."""
        path = self._folder / TRUST_FILE
        with suppress(OSError):
            said = path.stat().st_mtime
            path.unlink()
            return said
        return None


def read_state(folder: Path) -> ClockState | None:
    """Return the state that a gateway stored in a data folder, or None if there is none.

    Raises StorageError for a file that can't be read or decoded.
    """
    path = folder / STATE_FILE
    try:
        with path.open("rb") as file:
            return msgspec.json.decode(file.read(MOST_BYTES), type=ClockState)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StorageError(f"{path} can't be read: {in_brief(error)}") from error
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError(f"{path} holds something else than a clock's state: {error}") from error


def trust(folder: Path) -> None:
    """Tell the gateway of a data folder that the system's clock is right. Raises StorageError."""
    path = folder / TRUST_FILE
    try:
        path.touch(mode=0o600)
    except OSError as error:
        raise StorageError(f"{path} can't be written: {in_brief(error)}") from error


def _keep(path: Path, state: ClockState) -> None:
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(msgspec.json.encode(state))
        file.flush()
        # Otherwise some file systems show an empty file after a power cut, when it matters most.
        os.fsync(descriptor)
    draft.replace(path)


def _warn(state: ClockState, ahead: float) -> None:
    direction = "ahead" if ahead > 0 else "back"
    leapt = "leapt" if state.leaps[-1].seen else "is, since a gateway last looked,"
    effect = (
        "No record is removed for its age"
        if state.proven is None
        else "That time does not count for the age of records"
    )
    logger.warning(
        "The system clock %s %s by %s. %s until the gateway has run for a day, or `cellgate record clock"
        " --trust` says that the clock is right",
        leapt,
        direction,
        timedelta(seconds=round(abs(ahead))),
        effect,
    )


def in_rfc3339(moment: float) -> str:
    """Return a time (seconds since 1970) in the format of rows, to be compared with theirs."""
    found = datetime.fromtimestamp(moment, UTC)
    return found.replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def moment_of(text: str | None) -> float | None:
    """Return a row's time in seconds since 1970; None if it is missing or malformed."""
    try:
        return None if text is None else datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None
