"""What the clients of other systems have of their sandboxes besides the session: variables for each cell, and
further sessions with the same files.

Kept in memory for as long as the session lives: values of variables are recorded nowhere. The doors fill it
in; nothing here knows their wires.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

if TYPE_CHECKING:
    from cellgate.sessions.session import Session


@dataclass(slots=True, eq=False)
class Sandbox:
    """A session as a sandbox. `env`: for each of its cells. `set_up`: the kernel that has been prepared.

    `further`: the live sessions that belong to it, by what its client calls them, the oldest first.
    """

    env: Mapping[str, str] = field(default_factory=dict)
    set_up: str | None = None
    further: dict[str, Session] = field(default_factory=dict)

    def add(self, name: str, session: Session) -> None:
        """Keep a further session until it is over. `name`: no other of the sandbox's has it."""
        self.further[name] = session
        session.over.add_done_callback(lambda _: self.further.pop(name, None))


class Sandboxes:
    """The sandboxes of all live sessions that have been used as one."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Session, Sandbox] = WeakKeyDictionary()

    def of(self, session: Session) -> Sandbox:
        """Return the session's sandbox; after a restart of the gateway it knows nothing yet."""
        return self._known.setdefault(session, Sandbox())
