"""What ``cellgate user``, ``token`` and ``secret`` share: the users of a data folder, and their lists.

They work on what is kept, in the data folder or in a cluster's database, so no gateway need be running; for
those that are, a change counts at once.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
from rich.console import Console
from rich.table import Table
from traitlets import Bool, Unicode

from cellgate.cli.actions import check_options, choose_action
from cellgate.cli.base import BaseApp, UsageError, absolute
from cellgate.cli.terminal.tables import PIPE_WIDTH

if TYPE_CHECKING:
    from cellgate.identity.store.interface import UserStore
    from cellgate.identity.store.opening import UsersPlace


class PrincipalsApp(BaseApp):
    """A command that reads and changes users and tokens."""

    actions: dict[str, str]
    """The names of the arguments of each action."""

    json = Bool(False, help="Print JSON.").tag(config=True)
    cluster = Unicode(
        help="The database of the cluster whose users these are; default: the data folder's."
    ).tag(config=True, metavar="URL", not_empty=True)
    cluster_key = Unicode(
        help="The file with the cluster's key; default: secrets.key in the data folder."
    ).tag(config=True, metavar="FILE")

    aliases = {  # noqa: RUF012
        "cluster": "PrincipalsApp.cluster",
        **BaseApp.aliases,
    }

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

    @property
    def place(self) -> UsersPlace:
        """The place of the users. Raises UsageError if a gateway of a cluster runs with this data folder."""
        from cellgate.identity.store.opening import UsersPlace  # noqa: PLC0415 - keeps --help quick

        running = None if self.cluster else self._running_gateway()
        if running is not None and running.cluster:
            raise UsageError(
                f"the users of this gateway are those of its cluster, in {running.cluster}: name that by"
                " --cluster URL, or in CELLGATE_CLUSTER"
            )
        return UsersPlace(
            self.data_path, self.cluster, absolute(self.cluster_key) if self.cluster_key else None
        )

    @contextmanager
    def store(self, *, create: bool = False) -> Iterator[UserStore]:
        """Open the users. Raises NotFound if there are none and they are not to be made."""
        from cellgate.identity.store.opening import open_users_at  # noqa: PLC0415 - keeps --help quick

        place = self.place
        with open_users_at(place, create=create) as store:
            yield store
        if place.cluster and not self.json:
            sys.stderr.write(f"(users of the cluster in {place})\n")

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
