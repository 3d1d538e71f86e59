"""Widgets on screens that show none: each is told once, by its last state, when its cell has ended.

A bar of ``tqdm.auto`` is displayed before it begins, so what came with it says 0%. `LastWidgets` stands
between the events of one cell and a screen; ``record.widget_text`` knows how a widget is told.
"""

from __future__ import annotations

from msgspec import structs

from cellgate.client import (
    ClearOutput,
    CommMessage,
    CommOpened,
    DisplayData,
    Event,
    Finished,
    UpdateDisplayData,
)
from cellgate.record.export.widget_text import ShownWidgets, with_last


class LastWidgets:
    """Passes on the events of one cell; outputs that show widgets which it has made, before its end."""

    def __init__(self) -> None:
        self._widgets = ShownWidgets()
        self._held: list[DisplayData] = []

    def passed(self, event: Event) -> list[Event]:
        """Return the events for the screen, now that this one has come."""
        match event:
            case CommOpened() | CommMessage():
                self._widgets.change(event.comm_id, event.data)
            case UpdateDisplayData():
                pass
            case DisplayData() if self._widgets.show(event.data):
                self._held.append(event)
                return []
            case ClearOutput():
                self._held.clear()
            case Finished():
                last = self._widgets.last()
                held = [structs.replace(each, data=dict(with_last(each.data, last))) for each in self._held]
                self._held.clear()
                return [*held, event]
        return [event]
