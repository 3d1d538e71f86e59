"""``cellgate usage``: what cells used together over a time, as a table, as JSON or as a file.

The gateway sums it from its record; this asks and shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from traitlets import Bool, Enum, Unicode

from cellgate.cli.base import UsageError, switches
from cellgate.cli.run.owner import OwnerOption
from cellgate.cli.run.transfer import target_of, transfer
from cellgate.cli.terminal.escaping import printed_line
from cellgate.cli.terminal.tables import as_json, make_table, print_table
from cellgate_kernels.base.errors import InvalidInput, in_brief

if TYPE_CHECKING:
    from cellgate.wire.usage import UsageSum
    from cellgate.wire.words import UsageBy

_NAMES = {"principal": ("principal",), "session": ("principal", "session"), "day": ("day",)}
_FIGURES = {
    "cpu_seconds": "CPU SECONDS",
    "memory_peak": "MEMORY PEAK",
    "disk_written": "DISK WRITTEN",
    "network_sent": "SENT",
    "network_received": "RECEIVED",
}


class UsageApp(OwnerOption):
    """``cellgate usage``."""

    name = "cellgate-usage"
    usage = "[options]"
    description = """
        Sums what cells used, from the gateway's record: processor time, the largest peak of memory, bytes
        written to disks, sent to hosts and received. Cells count that ended in the time, by default in this
        month so far. What was purged is not counted.

        UNKNOWN is the number of cells of which nothing is known, such as those whose gateway was killed: the
        sums are at least what was used. --json also tells of how many cells each figure is known.

        With -o the sums are written to a file: a table (.csv), or an archive (.zip) with the table, its hash
        and the gateway's signature, which cellgate verify checks.
    """
    examples = """
        cellgate usage
        cellgate usage --from 2026-11-01 --to 2026-12-01 --by day
        cellgate usage --principal '*' --from 2026-11-01 --to 2026-12-01
        cellgate usage --principal alice --by session -o alice.csv
        cellgate usage --principal '*' --from 2026-11-01 --to 2026-12-01 -o november.zip
    """

    since = Unicode(
        help="Cells count that ended from then on: a day in UTC, or a time with its zone. Default: the first"
        " day of this month."
    ).tag(config=True, metavar="TIME")
    until = Unicode(help="Cells count that ended before then; default: now.").tag(config=True, metavar="TIME")
    by = Enum(("principal", "session", "day"), "principal", help="What each sum is of.").tag(
        config=True, metavar="WHAT"
    )
    output = Unicode(help="The file to write, replaced if it exists: FILE.csv or FILE.zip.").tag(
        config=True, metavar="FILE"
    )
    json = Bool(False, help="Print JSON.").tag(config=True)

    aliases: Any = {  # noqa: RUF012
        "from": "UsageApp.since",
        "to": "UsageApp.until",
        "by": "UsageApp.by",
        ("o", "output"): "UsageApp.output",
        **OwnerOption.aliases,
    }
    flags = switches("UsageApp", json=json)

    async def run_command(self) -> int:
        self.arguments()
        if not self.output:
            await self._show()
            return 0
        if self.json:
            raise UsageError("--json prints the sums, and -o writes them to a file; leave one out")
        path = target_of(self.output)
        gateway = self.gateway_for(self.principal or None)
        try:
            with transfer(path.name, "summing") as progress:
                await gateway.save_usage(path, progress=progress, **self._asked())
        except OSError as error:
            raise InvalidInput(f"{path} can't be written: {in_brief(error)}") from error
        self.print(str(path))
        return 0

    async def _show(self) -> None:
        sums = [each async for each in self.gateway_for(self.principal or None).usage(**self._asked())]
        if self.json:
            self.print(as_json(sums))
        elif sums:
            _print(sums, _NAMES[str(self.by)])
        else:
            self.print("No cell ended in that time.")

    def _asked(self) -> dict[str, Any]:
        return {"by": cast("UsageBy", self.by), "begin": self.since or None, "end": self.until or None}


def _print(sums: list[UsageSum], names: tuple[str, ...]) -> None:
    figures = tuple(_FIGURES.values())
    table = make_table(
        *(name.upper() for name in names), "CELLS", "UNKNOWN", *figures, right=("CELLS", "UNKNOWN", *figures)
    )
    for each in sums:
        values = (getattr(each, name) for name in _FIGURES)
        table.add_row(
            *(printed_line(str(getattr(each, name))) for name in names),
            str(each.cells),
            str(each.unknown),
            *("-" if value is None else str(value) for value in values),
        )
    print_table(table)
