"""``cellgate sessions``: lists the gateway's sessions, as a table or as JSON."""

from __future__ import annotations

import msgspec
from rich.console import Console
from rich.table import Table
from traitlets import Bool, Unicode

from cellgate.cli.base import CommandApp
from cellgate.client import SessionModel


class SessionsApp(CommandApp):
    """``cellgate sessions``."""

    name = "cellgate-sessions"
    usage = "[options]"
    description = """
        Lists your sessions, including those that have ended: their records stay and can be exported.
    """
    examples = """
        cellgate sessions
        cellgate sessions --state idle --json
    """

    state = Unicode(help="Only sessions in this state: starting, idle, busy, dead or ended.").tag(
        config=True, metavar="STATE"
    )
    json = Bool(False, help="Print a JSON list.").tag(config=True)

    aliases = {"state": "SessionsApp.state", **CommandApp.aliases}  # noqa: RUF012
    flags = {"json": ({"SessionsApp": {"json": True}}, "Print a JSON list.")}  # noqa: RUF012

    async def run_command(self) -> int:
        """Prints the list."""
        self.arguments()
        models = [model async for model in self.gateway().sessions(state=self.state or None)]
        if self.json:
            self.print(msgspec.json.format(msgspec.json.encode(models), indent=2).decode())
        elif models:
            Console().print(_table(models))
        else:
            self.print("No sessions.")
        return 0


def _table(models: list[SessionModel]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("SESSION", "STATE", "KERNEL", "CELLS", "LAST ACTIVITY (UTC)", "ISOLATION"):
        table.add_column(heading, justify="right" if heading == "CELLS" else "left", overflow="fold")
    for model in models:
        last = model.last_activity[:19].replace("T", " ")
        table.add_row(
            model.session, model.state, model.kernel, str(model.execution_count), last, model.isolation or "-"
        )
    return table
