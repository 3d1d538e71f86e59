"""Options of commands that run cells: which session, which kernel, how long a cell may take.

Each command inherits the options that it has; the gateway interprets the values.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from traitlets import Bool, Unicode

from cellgate.cli.base import CommandApp, expanded
from cellgate.cli.setting_checks import Duration
from cellgate.cli.terminal.images import Handling, Pictures
from cellgate.wire.words import CheckpointMode


class KernelOption(CommandApp):
    """A command that may create a session."""

    kernel = Unicode(help="A new session's kernelspec; default: the gateway's.").tag(
        config=True, metavar="NAME"
    )

    kernel_environment = Unicode(
        help="A new session's environment, one that the operator has added; default: that of the kernelspec."
    ).tag(config=True, metavar="NAME")

    checkpoints = Bool(
        False, help="Let a new session make a checkpoint after each cell, so that cells can be undone."
    ).tag(config=True)

    aliases: Any = {  # noqa: RUF012
        "kernel": "KernelOption.kernel",
        "environment": "KernelOption.kernel_environment",
        **CommandApp.aliases,
    }
    flags: Any = {  # noqa: RUF012
        "checkpoints": (
            {"KernelOption": {"checkpoints": True}},
            "Let a new session make a checkpoint after each cell, so that cells can be undone.",
        )
    }

    @property
    def checkpoint(self) -> CheckpointMode | None:
        """The checkpoints to request; None accepts a session with or without them."""
        return "auto" if self.checkpoints else None


class TimeoutOption(KernelOption):
    """A command that runs cells in a session named by the user, and shows what they show."""

    images = Unicode(
        help="What happens to pictures. show: they are shown if the terminal can (by the protocols of kitty, "
        "of iTerm, or sixel), otherwise saved; save: they are saved, in a folder named NAME-images; none: "
        "they are only described; any other word is the name of a folder to save them in. Default: show on "
        "a terminal, none elsewhere."
    ).tag(config=True, metavar="HOW")
    timeout = Duration(
        None, allow_none=True, help="Seconds that a cell may take; default: the session's own limit."
    ).tag(config=True, metavar="SECONDS")

    aliases: Any = {  # noqa: RUF012
        "timeout": "TimeoutOption.timeout",
        "images": "TimeoutOption.images",
        **KernelOption.aliases,
    }

    def pictures(self, name: str) -> Pictures:
        """Return what handles pictures; files go to the folder NAME-images unless the user names another."""
        on_terminal = sys.stdout.isatty()
        folder = Path(f"{name}-images")
        if not self.images:
            handling = Handling.SHOW if on_terminal else Handling.NONE
        elif self.images in set(Handling):
            handling = Handling(self.images)
        else:
            handling = Handling.SAVE
            folder = expanded(self.images)
        return Pictures(handling, folder, self.environment if on_terminal else None)


class SessionOptions(TimeoutOption):
    """A command that runs cells in a new session, or in the one named by `--session`."""

    session = Unicode(
        help="The session to run in, created if missing and left running; default: a fresh one, ended "
        "afterwards."
    ).tag(config=True, metavar="NAME")

    aliases: Any = {"session": "SessionOptions.session", **TimeoutOption.aliases}  # noqa: RUF012
