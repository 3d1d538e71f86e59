"""What ``cellgate user``, ``token`` and ``secret`` share: the users of a data folder, and their lists.

They work on what is kept, so a gateway need not be running; for one that is, a change counts at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from rich.console import Console
from rich.table import Table
from traitlets import Bool

from cellgate.cli.actions import check_options, choose_action
from cellgate.cli.base import BaseApp
from cellgate.cli.terminal.tables import PIPE_WIDTH

if TYPE_CHECKING:
    from cellgate.identity.store.interface import UserStore


class PrincipalsApp(BaseApp):
    """A command that reads and changes users and tokens."""

    actions: dict[str, str]
    """The names of the arguments of each action."""

    json = Bool(False, help="Print JSON.").tag(config=True)

    def start(self) -> NoReturn:
        """Run the action of the first argument."""
        command = self.name.replace("-", " ", 1)
        action, words = choose_action(command, self.usage, self.actions, self.extra_args, self.forms)
        check_options(self, action)
        self.run_action(action, *words)
        sys.stdout.flush()
        raise SystemExit(0)

    def run_action(self, action: str, *words: str) -> None:
        """Carry out an action."""
        raise NotImplementedError

    def store(self, *, create: bool = False) -> AbstractContextManager[UserStore]:
        """Return the data folder's users. Raises NotFound if there are none and they are not to be made."""
        from cellgate.identity.store.opening import open_users  # noqa: PLC0415 - keeps --help quick

        if create:
            self.data_path.mkdir(mode=0o700, parents=True, exist_ok=True)
        return open_users(self.data_path, create=create)

    def show(self, models: Sequence[dict[str, Any]], nothing: str) -> None:
        """Print these as JSON or as a table."""
        if self.json:
            sys.stdout.write(msgspec.json.format(msgspec.json.encode(models), indent=2).decode() + "\n")
        elif models:
            # Lines of a pipe are for programs: they are never folded.
            Console(width=None if sys.stdout.isatty() else PIPE_WIDTH).print(_table(models))
        else:
            sys.stdout.write(f"{nothing}\n")


def _table(models: Iterable[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    rows = list(models)
    for name in rows[0]:
        table.add_column(name.replace("_", " ").upper(), overflow="fold")
    for row in rows:
        table.add_row(*("-" if value is None else str(value) for value in row.values()))
    return table
