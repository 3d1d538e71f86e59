"""The state of other systems' sandboxes besides the session: variables for each cell, and further sessions
with the same files.

Kept in memory while the session lives: values of variables are never recorded. The doors fill it in; nothing
here knows their wires.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from cellgate.sessions.session import Session


@dataclass(slots=True, eq=False)
class Sandbox:
    """A session as a sandbox. `env`: for each of its cells. `set_up`: the kernel that has been prepared.

    `further`: the live sessions that belong to it, by the client's names for them, oldest first. `making`:
    held while one is made that two requests might make at once.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    set_up: str | None = None
    further: dict[str, Session] = field(default_factory=dict)
    making: asyncio.Lock = field(default_factory=asyncio.Lock)

    def add(self, name: str, session: Session) -> None:
        """Keep a further session until it is over. `name`: unique in the sandbox."""
        self.further[name] = session
        session.over.add_done_callback(lambda _: self.further.pop(name, None))


class Sandboxes:
    """The sandboxes of all live sessions that have been used as one."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Session, Sandbox] = WeakKeyDictionary()

    def of(self, session: Session) -> Sandbox:
        """Return the session's sandbox, which is empty after a restart of the gateway."""
        return self._known.setdefault(session, Sandbox())
