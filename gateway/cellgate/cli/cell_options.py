"""Options of commands that run cells: which session, which kernel, how long a cell may take.

Each command inherits the options that it has; the gateway interprets the values.
"""

from __future__ import annotations

from typing import Any

from traitlets import Unicode

from cellgate.cli.base import CommandApp
from cellgate.cli.setting_checks import Duration


class KernelOption(CommandApp):
    """A command that may create a session."""

    kernel = Unicode(help="The kernelspec of a new session; default: the gateway's.").tag(
        config=True, metavar="NAME"
    )

    aliases: Any = {"kernel": "KernelOption.kernel", **CommandApp.aliases}  # noqa: RUF012


class TimeoutOption(KernelOption):
    """A command that runs cells in a session named by the user."""

    timeout = Duration(
        None, allow_none=True, help="Seconds that a cell may take; default: the session's own limit."
    ).tag(config=True, metavar="SECONDS")

    aliases: Any = {"timeout": "TimeoutOption.timeout", **KernelOption.aliases}  # noqa: RUF012


class SessionOptions(TimeoutOption):
    """A command that runs cells in a new session, or in the one named by `--session`."""

    session = Unicode(
        help="The session to run in, created if missing and left running; default: a fresh one, ended "
        "afterwards."
    ).tag(config=True, metavar="NAME")

    aliases: Any = {"session": "SessionOptions.session", **TimeoutOption.aliases}  # noqa: RUF012
