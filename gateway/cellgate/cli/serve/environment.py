"""``cellgate environment``: environments of packages that sessions name, beside that of ``cellgate setup``.

``cellgate_kernels.specs.added_environments`` makes them; this shows it. It needs no running gateway, and one
that serves offers what is added at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import NoReturn

import msgspec
from rich.console import Console
from traitlets import Bool, Unicode

from cellgate.cli.actions import check_options, choose_action, forms_of
from cellgate.cli.base import BaseApp, UsageError, absolute, expanded, switches
from cellgate.cli.terminal.escaping import printed_line
from cellgate.cli.terminal.tables import as_json, make_table, print_table
from cellgate_kernels.base.errors import InvalidInput, near_file
from cellgate_kernels.base.prefix import own_prefix
from cellgate_kernels.base.regular import read_given
from cellgate_kernels.specs.added_environments import AddedEnvironment, AddedEnvironments, Built, Recipe
from cellgate_kernels.specs.requirement_list import MOST_LIST_BYTES

_SHOWN_DIGITS = 16


class EnvironmentApp(BaseApp):
    """``cellgate environment``."""

    name = "cellgate-environment"
    usage = "add|ls|build|remove [NAME] [options]"
    actions = {  # noqa: RUF012
        "add": "NAME",
        "ls": "",
        "build": "NAME",
        "remove": "NAME",
    }
    forms = forms_of(actions)
    description = """
        Environments of packages beside the one of `cellgate setup`. A session gets one by its name:
        {"environment": NAME}, environment=NAME, --environment NAME.

        add makes one of a list of packages, of another environment, or of both. The newest versions that fit
        are chosen, and locked with their hashes; a list that has hashes itself is taken as it is. ipykernel
        and pip come by themselves. build does it again, with the versions that are the newest by then; what
        --from named stays as it is there. If that fails, the environment stays as it was.

        A gateway that serves offers it at once, to new sessions; sessions that run keep what they have. So
        the folder of a former version, or of one that remove removes, stays until a later add, build or
        remove while no gateway serves. Kernels in containers have the packages of their image instead.
    """
    examples = """
        cellgate environment add geo --requirements geo.txt
        cellgate environment add reports --from standard --requirements reports.txt
        cellgate environment add old --from minimal --python 3.12
        cellgate environment ls
        cellgate environment build geo
        cellgate environment remove geo
    """

    options_of_some = MappingProxyType({"requirements": "add", "base": "add", "python": "add", "json": "ls"})

    prefix = Unicode(
        help="Where environments are, in its folder share/cellgate; default: as for cellgate setup."
    ).tag(config=True, metavar="DIR")
    requirements = Unicode(help="A list of packages.").tag(config=True, metavar="FILE")
    base = Unicode(
        help="The environment whose packages it has, too: standard, minimal, or one that was added."
    ).tag(config=True, metavar="NAME")
    python = Unicode(
        help="The Python that it has, by its version or its path, if this machine has it; default: the "
        "gateway's own, or that of --from."
    ).tag(config=True, metavar="VERSION")
    json = Bool(False, help="Print JSON.").tag(config=True)

    aliases = {  # noqa: RUF012
        "prefix": "EnvironmentApp.prefix",
        "requirements": "EnvironmentApp.requirements",
        "from": "EnvironmentApp.base",
        "python": "EnvironmentApp.python",
        **BaseApp.aliases,
    }
    flags = switches("EnvironmentApp", json=json)

    def start(self) -> NoReturn:
        """Run the action of the first argument and exit with 0. Raises UsageError, BackendUnavailable."""
        action, words = choose_action(
            "cellgate environment", self.usage, self.actions, self.extra_args, self.forms
        )
        check_options(self, action)
        console = Console(highlight=False, soft_wrap=True, markup=False)
        try:
            match action:
                case "add":
                    recipe = self._recipe()
                    with self._progress(console) as environments:
                        built = environments.add(words[0], recipe)
                    self._tell(console, built)
                case "build":
                    with self._progress(console) as environments:
                        built = environments.build(words[0])
                    self._tell(console, built)
                case "remove":
                    with self._progress(console) as environments:
                        left = environments.remove(words[0])
                    console.print(f"removed             {words[0]}")
                    _tell_what_stays(console, left)
                case _:
                    self._list(AddedEnvironments(self._place).all())
        except InvalidInput as error:
            raise UsageError(error.message) from error
        raise SystemExit(0)

    @property
    def _place(self) -> Path:
        return absolute(self.prefix or str(own_prefix()))

    def _recipe(self) -> Recipe:
        if not (self.requirements or self.base):
            raise UsageError(
                "name a list of packages with --requirements, an environment with --from, or both"
            )
        listed = ""
        if self.requirements:
            path = expanded(self.requirements)
            if not path.is_file():
                raise UsageError(f"--requirements: there is no file {path}{near_file(path)}")
            try:
                listed = read_given(path, MOST_LIST_BYTES, "a list of packages").decode()
            except UnicodeDecodeError as error:
                raise UsageError(f"--requirements: {path} is no text") from error
        return Recipe(self.base, listed, self.python)

    @contextmanager
    def _progress(self, console: Console) -> Iterator[AddedEnvironments]:
        with console.status("") as status:

            def step(text: str) -> None:
                console.print(f"{text} ...")
                status.update(text)

            yield AddedEnvironments(self._place, step, status.update)

    def _tell(self, console: Console, built: Built) -> None:
        environment = built.environment
        if not built.changed:
            console.print(f"{environment.named.name} is as new as it can be: nothing has changed.")
        console.print(f"environment         {environment.named.name}")
        console.print(f"digest              {environment.named.digest}")
        console.print(f"packages            {environment.packages}, for Python {environment.python}")
        console.print(f"folder              {environment.folder}")
        if self.config.get("ServeApp", {}).get("backend") == "docker":
            console.print(
                "not offered         the configuration says that kernels run in containers, which have the"
                " packages of their image: see cellgate image build --requirements"
            )
        _tell_what_stays(console, built.left)

    def _list(self, found: list[AddedEnvironment]) -> None:
        if self.json:
            self._print(as_json([_told(environment) for environment in found]))
            return
        if not found:
            self._print("No environments: cellgate environment add NAME --requirements FILE adds one.")
            return
        table = make_table("NAME", "PYTHON", "PACKAGES", "FROM", "DIGEST", right=("PACKAGES",))
        for environment in found:
            named = environment.named
            cells = (named.name, environment.python, str(environment.packages), environment.base or "-")
            table.add_row(*map(printed_line, cells), named.digest[:_SHOWN_DIGITS])
        print_table(table)

    def _print(self, text: str) -> None:
        Console(highlight=False, soft_wrap=True, markup=False).print(text)


def _told(environment: AddedEnvironment) -> dict[str, object]:
    told = msgspec.to_builtins(environment.named)
    return {
        **told,
        "python": environment.python,
        "packages": environment.packages,
        "from": environment.base,
        "folder": str(environment.folder),
    }


def _tell_what_stays(console: Console, left: int) -> None:
    if left:
        folders = "1 former folder stays" if left == 1 else f"{left} former folders stay"
        console.print(
            f"{folders} while a gateway serves, whose sessions may use it: a later add, build or remove, when"
            " none serves, removes it"
        )
