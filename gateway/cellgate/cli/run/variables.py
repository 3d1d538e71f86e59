"""A kernel's variables as a table."""

from __future__ import annotations

from cellgate.cli.terminal.escaping import printed_line
from cellgate.cli.terminal.tables import make_table, print_table
from cellgate.client import VariableList


def print_variables(found: VariableList) -> None:
    """Write the variables to stdout, in the order of their definition."""
    table = make_table("NAME", "TYPE", "BYTES", "SUMMARY", right=("BYTES",))
    for each in found.variables:
        size = str(each.size) if isinstance(each.size, int) else "-"
        table.add_row(printed_line(each.name), printed_line(each.type), size, printed_line(each.summary))
    print_table(table)
