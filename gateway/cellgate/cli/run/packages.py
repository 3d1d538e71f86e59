"""``cellgate packages``: the packages of a session, beside its kernel's environment.

The gateway installs and removes them, as far as its operator allows; this is a client of its routes.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import MappingProxyType

from traitlets import Bool

from cellgate.cli.actions import check_options, choose_action, forms_of
from cellgate.cli.base import switches
from cellgate.cli.run.owner import OwnerOption
from cellgate.cli.terminal.escaping import printed_line
from cellgate.cli.terminal.tables import as_json, make_table, print_table
from cellgate.client import Package, PackageChanges


class PackagesApp(OwnerOption):
    """``cellgate packages``."""

    name = "cellgate-packages"
    usage = "list|install|uninstall|allowed [SESSION] [NAME...] [options]"
    actions = {  # noqa: RUF012
        "list": "SESSION",
        "install": "SESSION REQUIREMENT...",
        "uninstall": "SESSION NAME...",
        "allowed": "",
    }
    forms = forms_of(actions)
    description = """
        list shows what a session has installed in addition to its kernel's environment. install and uninstall
        change that; a missing session is created. A REQUIREMENT is a name, with versions if you like. What is
        refused or fails changes nothing.

        allowed shows the names that may be installed here; the operator allows them by `cellgate serve
        --allow-package NAME`.
    """
    examples = """
        cellgate packages allowed
        cellgate packages install my-session 'humanize>=4'
        cellgate packages list my-session
        cellgate packages uninstall my-session humanize
    """

    options_of_some = MappingProxyType({"upgrade": "install"})

    upgrade = Bool(False, help="Replace installed versions by newer ones.").tag(config=True)
    json = Bool(False, help="Print JSON.").tag(config=True)

    aliases = {**OwnerOption.aliases}  # noqa: RUF012
    flags = switches("PackagesApp", upgrade=upgrade, json=json)

    async def run_command(self) -> int:
        action, words = choose_action("cellgate packages", self.usage, self.actions, self.extra_args)
        check_options(self, action)
        gateway = self.gateway()
        match action:
            case "allowed":
                self._show_allowed((await gateway.info()).packages)
            case "list":
                self._show_installed(words[0], await gateway.installed(words[0]))
            case "install":
                session, *requirements = words
                self._show_changes(
                    await gateway.packages(session, install=requirements, upgrade=self.upgrade)
                )
            case _:
                session, *names = words
                self._show_changes(await gateway.packages(session, uninstall=names))
        return 0

    def _show_allowed(self, names: Sequence[str]) -> None:
        if self.json:
            self.print(as_json(names))
        elif "*" in names:
            self.print("Any package may be installed.")
        elif names:
            for name in sorted(names):
                self.print(printed_line(name))
        else:
            self.print("No packages may be installed; the operator allows some by --allow-package NAME.")

    def _show_installed(self, session: str, packages: Sequence[Package]) -> None:
        if self.json:
            self.print(as_json(packages))
        elif packages:
            table = make_table("PACKAGE", "VERSION", "REQUESTED")
            for package in packages:
                requested = "yes" if package.requested else "no"
                table.add_row(printed_line(package.name), printed_line(package.version), requested)
            print_table(table)
        else:
            self.print(f"{session} has only the packages of its kernel's environment.")

    def _show_changes(self, changes: PackageChanges) -> None:
        if self.json:
            self.print(as_json(changes))
            return
        for word, packages in (("installed", changes.installed), ("removed", changes.removed)):
            for package in packages:
                self.print(printed_line(f"{word}: {package.name} {package.version}"))
        if not changes.installed and not changes.removed:
            self.print("Nothing to change: it is all there.")
