"""An obstacle to a branch or a checkpoint, as events and problems name it."""

from __future__ import annotations

from typing import Annotated

from cellgate.wire.base import Value, say


class Obstacle(Value, frozen=True, kw_only=True):
    """Something that a branch would not have, or that would not work in it."""

    kind: Annotated[str, say("What it is, as a stable word, such as `thread`.")]
    name: Annotated[str, say("Its name, such as that of a thread.")] = ""
