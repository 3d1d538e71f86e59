"""``cellgate sessions``: lists the gateway's sessions, as a table or as JSON. The same as ``session ls``."""

from __future__ import annotations

from traitlets import Bool, Unicode

from cellgate.cli.base import UsageError, switches
from cellgate.cli.run.owner import EVERYBODY, OwnerOption
from cellgate.cli.terminal.escaping import printed_line
from cellgate.cli.terminal.tables import as_json, make_table, print_table
from cellgate.client import SessionModel

ENDED = "ended"


class ListOptions(OwnerOption):
    """A command that lists sessions."""

    state = Unicode(help="Only sessions in this state: starting, idle, asleep, busy, dead or ended.").tag(
        config=True, metavar="STATE"
    )
    live = Bool(False, help="Only sessions that have not ended.").tag(config=True)
    search = Unicode(help="Only sessions whose name or title has this text, in capital letters or not.").tag(
        config=True, metavar="TEXT"
    )
    cells = Bool(
        False, help="With --search: also sessions whose cells have the text in code or outputs."
    ).tag(config=True)
    json = Bool(False, help="Print JSON.").tag(config=True)

    aliases = {  # noqa: RUF012
        "state": "ListOptions.state",
        "search": "ListOptions.search",
        **OwnerOption.aliases,
    }
    flags = switches("ListOptions", live=live, cells=cells, json=json)

    async def list_sessions(self) -> None:
        """Print the sessions, the one used last first."""
        if self.cells and not self.search:
            raise UsageError("--cells needs --search TEXT: what to look for in the cells")
        models = [
            model
            async for model in self.gateway_for(self.principal or None).sessions(
                state=self.state or ("live" if self.live else None),
                search=self.search or None,
                cells=self.cells,
                usage=True,  # with the numbers of cells
            )
            if not self.live or model.state != ENDED
        ]
        models.sort(key=lambda model: model.last_activity, reverse=True)
        if self.json:
            self.print(as_json(models))
        elif models:
            _print(models, owners=self.principal == EVERYBODY)
        elif self.search and not self.cells:
            self.print(
                "No sessions. Their names and titles were searched; --cells searches their cells, too."
            )
        else:
            self.print("No sessions.")


class SessionsApp(ListOptions):
    """``cellgate sessions``."""

    name = "cellgate-sessions"
    usage = "[options]"
    description = """
        Lists your sessions, the one used last first, including those that have ended: their records stay and
        can be exported. cellgate session does more with them.
    """
    examples = """
        cellgate sessions
        cellgate sessions --state idle --json
        cellgate sessions --live
        cellgate sessions --search agent-
        cellgate sessions --search revenue --cells
        cellgate sessions --principal '*' --live
    """

    async def run_command(self) -> int:
        self.arguments()
        await self.list_sessions()
        return 0


def cells_of(model: SessionModel) -> str:
    """Return the number of a session's cells as text; older gateways don't tell."""
    return str(model.executions) if isinstance(model.executions, int) else "-"


def _print(models: list[SessionModel], *, owners: bool) -> None:
    headings = ["SESSION", "STATE", "KERNEL", "CELLS", "LAST ACTIVITY (UTC)", "ISOLATION"]
    titled = any(model.title for model in models)
    more = [*(["OWNER"] if owners else []), *(["TITLE"] if titled else [])]
    table = make_table(*headings, *more, right=("CELLS",))
    for model in models:
        last = model.last_activity[:19].replace("T", " ")
        table.add_row(
            printed_line(model.session),
            model.state,
            printed_line(model.kernel),
            cells_of(model),
            last,
            model.isolation or "-",
            *([printed_line(model.principal or "-")] if owners else []),
            *([printed_line(model.title or "-")] if titled else []),
        )
    print_table(table)
