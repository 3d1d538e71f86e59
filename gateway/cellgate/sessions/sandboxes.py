"""The state of other systems' sandboxes besides the session: variables for each cell, further sessions with
the same files, and folders that clients watch.

Kept in memory while the session lives: values of variables are never recorded. The doors fill it in; nothing
here knows their wires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

from cellgate.errors import NotFound, QueueFull, QuotaExceeded
from cellgate.files.folder_watch import FolderWatch
from cellgate.sessions.terminal_sizes import TerminalSizes
from cellgate_kernels.kernel.asleep import Sleep

if TYPE_CHECKING:
    from cellgate.sessions.session import Session

MOST_WATCHES: Final = 16
"""Folders of one sandbox that are watched at once."""
MOST_WATCHED: Final = 10_000
"""Entries in all of them together."""
RETRY_AFTER: Final = 5.0


@dataclass(frozen=True, slots=True)
class ProcessorTime:
    """The seconds of processor time that a kernel had used at a moment of the loop's clock."""

    kernel: str
    moment: float
    seconds: float


@dataclass(slots=True, eq=False)
class Sandbox:
    """A session as a sandbox. `env`: for each of its cells. `set_up`: the kernel that has been prepared.

    `further`: the live sessions that belong to it, by the client's names for them, oldest first. `making`:
    held while one is made that two requests might make at once. `watches`: by the clients' names for them.
    `measured`: the last measurement of its kernel that a client was told. `sizes`: those of its terminals.
    `paused`: the sleep of its kernel that a client asked for.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    set_up: str | None = None
    further: dict[str, Session] = field(default_factory=dict)
    making: asyncio.Lock = field(default_factory=asyncio.Lock)
    watches: dict[str, FolderWatch] = field(default_factory=dict)
    measured: ProcessorTime | None = None
    sizes: TerminalSizes = field(default_factory=TerminalSizes)
    paused: Sleep | None = None

    @property
    def is_paused(self) -> bool:
        """Whether a client has let its kernel sleep, and nothing has woken that since."""
        return self.paused is not None and not self.paused.over

    def add(self, name: str, session: Session) -> None:
        """Keep a further session until it is over. `name`: unique in the sandbox."""
        self.further[name] = session
        session.over.add_done_callback(lambda _: self.further.pop(name, None))

    def begin_watch(self, name: str, watch: FolderWatch) -> None:
        """Keep a watch until `watches` loses it. `name`: unique in the sandbox. Raises QueueFull."""
        if len(self.watches) >= MOST_WATCHES:
            raise QueueFull(
                f"{MOST_WATCHES} folders of this sandbox are watched already; stop one first",
                retry_after=RETRY_AFTER,
            )
        self.watches[name] = watch

    def watch(self, name: str) -> FolderWatch:
        """Return the watch of this name. Raises NotFound."""
        found = self.watches.get(name)
        if found is None:
            raise NotFound(f"There is no watcher {name[:64]!r} in this sandbox")
        return found

    def check_watched(self, watch: FolderWatch, entries: int) -> None:
        """Check that a watch may keep so many entries beside those of the others. Raises QuotaExceeded."""
        others = sum(each.size for each in self.watches.values() if each is not watch)
        if others + entries > MOST_WATCHED:
            raise QuotaExceeded(
                f"The watched folders of this sandbox have more than {MOST_WATCHED} entries; watch fewer"
            )


class Sandboxes:
    """The sandboxes of all live sessions that have been used as one."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Session, Sandbox] = WeakKeyDictionary()

    def of(self, session: Session) -> Sandbox:
        """Return the session's sandbox, which is empty after a restart of the gateway."""
        return self._known.setdefault(session, Sandbox())
